/* Planning from headers that are unusual: layers that differ, windows, both forms of MLA, experts
 * one by one, names, types and architectures that are unknown, memory that runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/fit.h>
#include <tsr/model.h>
#include <tsr/runtime.h>

#include "support/arch_models.h"
#include "support/failing_alloc.h"
#include "support/header_plan.h"
#include "support/runner.h"

/* -- layers that differ -- */

/* Layer 0 has 8 KV heads and a long FFN, layer 1 has 2 and a short one,
 * layer 2 has neither heads nor window. */
static const struct arch_model uneven = {
    "uneven",
    "qwen2vl",
    0,
    0,
    false,
    3,
    (const struct arch_key[]){{"embedding_length", 512},
                              {"context_length", 1024},
                              {"attention.key_length", 64},
                              {"attention.value_length", 64},
                              {NULL}},
    (const struct arch_tensor[]){{"token_embd.weight", {512, 1000}},
                                 {"output_norm.weight", {512}, true},
                                 {"blk.%d.ffn_norm.weight", {512}, true},
                                 {"blk.%d.attn_q.weight", {512, 1024}, false, 0, 1},
                                 {"blk.%d.attn_k.weight", {512, 512}, false, 0, 1},
                                 {"blk.%d.attn_v.weight", {512, 512}, false, 0, 1},
                                 {"blk.%d.attn_output.weight", {1024, 512}, false, 0, 1},
                                 {"blk.%d.attn_q.weight", {512, 512}, false, 1, 1},
                                 {"blk.%d.attn_k.weight", {512, 128}, false, 1, 1},
                                 {"blk.%d.attn_v.weight", {512, 128}, false, 1, 1},
                                 {"blk.%d.attn_output.weight", {512, 512}, false, 1, 1},
                                 {"blk.%d.ffn_up.weight", {512, 2048}, false, 0, 1},
                                 {"blk.%d.ffn_down.weight", {2048, 512}, false, 0, 1},
                                 {"blk.%d.ffn_up.weight", {512, 512}, false, 1, 2},
                                 {"blk.%d.ffn_down.weight", {512, 512}, false, 1, 2},
                                 {NULL}}};

static void layers_may_differ(void **state)
{
    gguf_writer *w = arch_model_writer(&uneven, TSR_TYPE_F16);
    gguf_writer_array(w, "qwen2vl.attention.head_count", TSR_GGUF_U32, (uint32_t[]){16, 8, 0}, 3);
    gguf_writer_array(w, "qwen2vl.attention.head_count_kv", TSR_GGUF_U32, (uint32_t[]){8, 2, 0}, 3);
    gguf_writer_array(w, "qwen2vl.feed_forward_length", TSR_GGUF_U32, (uint32_t[]){2048, 512, 512}, 3);
    tsr_plan *plan = header_planned(*state, w, 2, 1024);
    tsr_plan_info info;
    tsr_plan_get_info(plan, &info);
    assert_int_equal(info.n_granules[TSR_CLASS_ATTENTION], 2); /* of the layer with the fewest heads */
    assert_int_equal(info.n_granules[TSR_CLASS_FFN], 4);       /* 512 columns */
    /* Half of every matrix, all norms, half of the vocabulary, which is the output's, too. */
    size_t matrices = 512 * (1024 + 512 + 512 + 1024) + 512 * (512 + 128 + 128 + 512) + 2 * 512 * 2048 +
                      4 * 512 * 512 + 512 * 1000;
    for (int d = 0; d < 2; d++) {
        assert_int_equal(header_bytes(plan, d, TSR_MEMORY_WEIGHTS),
                         matrices / 2 * 2 + 4 * 512 * sizeof(float));
        assert_int_equal(header_bytes(plan, d, TSR_MEMORY_KV), 1024 * (8 + 2) / 2 * 64 * 2 * 2);
    }
    tsr_plan_destroy(plan);
}

static void prediction_layers_are_not_planned(void **state)
{
    tsr_model_config config = tsr_model_config_default();
    tsr_plan *plan = NULL;
    config.prediction.load = true;
    assert_int_equal(header_plan(*state, arch_model_writer(&uneven, TSR_TYPE_F16), 2, &config, &plan),
                     TSR_ERR_UNSUPPORTED);
    header_check_message("without a prediction layer; leave out --prediction");
}

/* -- windows -- */

static size_t round_up(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* Of 48 layers every sixth sees everything, the others 1024 tokens: with a batch of 512, 1535 positions in a
 * row touch at most 49 pages of 32. */
static void windows_count_where_the_file_tells(void **state)
{
    struct arch_model gemma3 = *header_published("Gemma-3-12B"), *gemma = &gemma3;
    gemma3.architecture = "qwen2vl"; /* which does not run, but has windows, too */
    const int64_t n_ctx = 32768, layer_token = gemma->kv_token_bytes / 48, windowed = 49 * 32;
    bool flags[48];
    for (int l = 0; l < 48; l++)
        flags[l] = l % 6 != 5;
    for (int form = 0; form < 3; form++) {
        const char *key = "qwen2vl.attention.sliding_window_pattern";
        gguf_writer *w = arch_model_writer(gemma, TSR_TYPE_Q8_0);
        if (form == 1)
            gguf_writer_u32(w, key, 6);
        if (form == 2)
            gguf_writer_array(w, key, TSR_GGUF_BOOL, flags, 48);
        tsr_plan *plan = header_planned(*state, w, 1, n_ctx);
        assert_int_equal(header_has_note(plan, "sliding window of 1024"), form == 0);
        int64_t whole = form ? 8 * n_ctx : 48 * n_ctx, rest = form ? 40 * windowed : 0;
        assert_int_equal(header_bytes(plan, 0, TSR_MEMORY_KV),
                         round_up((size_t)(whole * layer_token)) + round_up((size_t)(rest * layer_token)));
        tsr_plan_info info;
        tsr_plan_device device;
        tsr_plan_get_info(plan, &info);
        runner_ok(tsr_plan_get_device(plan, 0, &device), "device");
        assert_int_equal(device.kv_windowed_bytes, round_up((size_t)(rest * layer_token)));
        assert_int_equal(info.n_windowed, form ? 40 : 0);
        assert_int_equal(info.window, form ? 1024 : 0);
        tsr_plan_destroy(plan);
    }
}

/* -- MLA -- */

#define MLA_TENSORS                                                                                          \
    {"token_embd.weight", {512, 1000}}, {"output.weight", {512, 1000}}, {"output_norm.weight", {512}, true}, \
        {"blk.%d.attn_norm.weight", {512}, true}, {"blk.%d.ffn_norm.weight", {512}, true},                   \
        {"blk.%d.attn_q_a_norm.weight", {256}, true}, {"blk.%d.attn_kv_a_norm.weight", {128}, true},         \
        {"blk.%d.attn_q_a.weight", {512, 256}, true}, {"blk.%d.attn_q_b.weight", {256, 8 * 96}},             \
        {"blk.%d.attn_kv_a_mqa.weight", {512, 128 + 32}, true},                                              \
        {"blk.%d.attn_output.weight", {8 * 64, 512}}, {"blk.%d.ffn_gate.weight", {512, 1024}},               \
        {"blk.%d.ffn_up.weight", {512, 1024}},                                                               \
    {                                                                                                        \
        "blk.%d.ffn_down.weight",                                                                            \
        {                                                                                                    \
            1024, 512                                                                                        \
        }                                                                                                    \
    }

#define MLA_KEYS                                                                                      \
    {"embedding_length", 512}, {"context_length", 1024}, {"feed_forward_length", 1024},               \
        {"attention.head_count", 8}, {"attention.q_lora_rank", 256}, {"attention.kv_lora_rank", 128}, \
    {                                                                                                 \
        "rope.dimension_count", 32                                                                    \
    }

/* Files of before and after llama.cpp took to the compressed form: keys and values of 64 + 32 and 64 elements
 * come out of a row of 128 + 32. Only the second form runs. */
static const struct arch_model mla[2] = {
    {"old", "deepseek2", 0, 0, true, 2,
     (const struct arch_key[]){MLA_KEYS,
                               {"attention.head_count_kv", 8},
                               {"attention.key_length", 96},
                               {"attention.value_length", 64},
                               {NULL}},
     (const struct arch_tensor[]){MLA_TENSORS, {"blk.%d.attn_kv_b.weight", {128, 8 * 128}}, {NULL}}},
    {"new", "deepseek2", 0, 0, true, 2,
     (const struct arch_key[]){MLA_KEYS,
                               {"attention.head_count_kv", 1},
                               {"attention.key_length", 160},
                               {"attention.value_length", 128},
                               {"attention.key_length_mla", 96},
                               {"attention.value_length_mla", 64},
                               {NULL}},
     (const struct arch_tensor[]){MLA_TENSORS,
                                  {"blk.%d.attn_k_b.weight", {64, 128, 8}},
                                  {"blk.%d.attn_v_b.weight", {128, 64, 8}},
                                  {NULL}}}};

static void both_forms_of_mla_are_one(void **state)
{
    size_t weights[2][2];
    for (int form = 0; form < 2; form++) {
        tsr_plan *plan = header_planned(*state, arch_model_writer(&mla[form], TSR_TYPE_F16), 2, 1024);
        for (int d = 0; d < 2; d++) {
            weights[form][d] = header_bytes(plan, d, TSR_MEMORY_WEIGHTS);
            assert_int_equal(header_bytes(plan, d, TSR_MEMORY_KV), 1024 * 2 * (128 + 32) * 2);
        }
        assert_false(header_has_note(plan, "unknown names"));
        assert_int_equal(header_has_note(plan, "attn_kv_b; convert the model anew"), form == 0);
        assert_int_equal(header_has_note(plan, "planned, not run"), form == 0);
        tsr_plan_destroy(plan);
    }
    assert_memory_equal(weights[0], weights[1], sizeof weights[0]);
    size_t divided = 2 * 512 * 1000 + 2 * (256 * 768 + 128 * 1024 + 512 * 512 + 3 * 512 * 1024);
    size_t whole = 2 * 512 * (256 + 160);
    size_t norms = 512 + 2 * (512 + 512 + 256 + 128);
    assert_int_equal(weights[0][0], (divided / 2 + whole) * 2 + norms * sizeof(float));
}

/* -- experts -- */

static const struct arch_key moe_keys[] = {{"embedding_length", 512},
                                           {"context_length", 1024},
                                           {"feed_forward_length", 1024},
                                           {"attention.head_count", 8},
                                           {"attention.head_count_kv", 4},
                                           {"expert_count", 8},
                                           {NULL}};

#define MOE_TENSORS                                                                      \
    {"token_embd.weight", {512, 1000}}, {"output_norm.weight", {512}, true},             \
        {"blk.%d.attn_q.weight", {512, 512}}, {"blk.%d.attn_k.weight", {512, 256}},      \
        {"blk.%d.attn_v.weight", {512, 256}}, {"blk.%d.attn_output.weight", {512, 512}}, \
    {                                                                                    \
        "blk.%d.ffn_gate_inp.weight", {512, 8}, true                                     \
    }

static const struct arch_model together = {
    "together",
    "qwen2vl",
    0,
    0,
    false,
    2,
    moe_keys,
    (const struct arch_tensor[]){MOE_TENSORS,
                                 {"blk.%d.ffn_gate_exps.weight", {512, 1024, 8}},
                                 {"blk.%d.ffn_up_exps.weight", {512, 1024, 8}},
                                 {"blk.%d.ffn_down_exps.weight", {1024, 512, 8}},
                                 {NULL}}};
static const struct arch_model apart = {
    "apart", "qwen2vl", 0, 0, false, 2, moe_keys, (const struct arch_tensor[]){MOE_TENSORS, {NULL}}};

static gguf_writer *moe_writer(const struct arch_model *model, uint32_t n_used)
{
    gguf_writer *w = arch_model_writer(model, TSR_TYPE_F16);
    gguf_writer_u32(w, "qwen2vl.expert_used_count", n_used);
    return w;
}

static gguf_writer *apart_writer(uint32_t n_used)
{
    static const char *const kinds[] = {"gate", "up", "down"};
    gguf_writer *w = moe_writer(&apart, n_used);
    for (int i = 0; i < 2 * 8 * 3; i++) {
        char name[64];
        bool down = i % 3 == 2;
        snprintf(name, sizeof name, "blk.%d.ffn_%s.%d.weight", i / 24, kinds[i % 3], i / 3 % 8);
        gguf_writer_tensor_zero(w, name, TSR_TYPE_F16, 2, (int64_t[]){down ? 1024 : 512, down ? 512 : 1024});
    }
    return w;
}

static void experts_may_be_apart(void **state)
{
    tsr_plan *a = header_planned(*state, moe_writer(&together, 2), 3, 1024);
    tsr_plan *b = header_planned(*state, apart_writer(2), 3, 1024);
    tsr_plan_times times_a, times_b;
    for (int d = 0; d < 3; d++)
        assert_int_equal(header_bytes(a, d, TSR_MEMORY_WEIGHTS), header_bytes(b, d, TSR_MEMORY_WEIGHTS));
    tsr_plan_predict(a, &times_a);
    tsr_plan_predict(b, &times_b);
    assert_float_equal(times_a.decode.total_ns / times_b.decode.total_ns, 1, 1e-9);
    tsr_plan_destroy(a);
    tsr_plan_destroy(b);
}

/* A token reads the experts it uses, a prompt all of them. */
static void experts_cost_what_is_used(void **state)
{
    double decode[9], prompt[9];
    for (uint32_t n_used = 1; n_used <= 8; n_used++) {
        tsr_plan *plan = header_planned(*state, moe_writer(&together, n_used), 1, 1024);
        tsr_plan_times times;
        tsr_plan_predict(plan, &times);
        decode[n_used] = times.decode.device_ns[TSR_CLASS_FFN][0];
        prompt[n_used] = times.prompt.device_ns[TSR_CLASS_FFN][0];
        tsr_plan_destroy(plan);
    }
    for (int n = 2; n < 8; n++) /* in proportion, whatever is fixed */
        assert_float_equal((decode[n + 1] - decode[n]) / (decode[2] - decode[1]), 1, 1e-6);
    assert_true(decode[2] > decode[1]);
    assert_true(prompt[1] > decode[7]); /* all are read, and more */
}

/* -- unknown names -- */

static void unknown_tensors_are_whole_and_told(void **state)
{
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        gguf_writer *w = moe_writer(&together, 2);
        if (i == 1)
            gguf_writer_tensor_zero(w, "blk.1.attn_mystery.weight", TSR_TYPE_F16, 2, (int64_t[]){512, 300});
        tsr_plan *plan = header_planned(*state, w, 2, 1024);
        bytes[i] = header_bytes(plan, 0, TSR_MEMORY_WEIGHTS);
        assert_int_equal(header_has_note(plan, "blk.1.attn_mystery.weight"), i);
        tsr_plan_destroy(plan);
    }
    assert_int_equal(bytes[1] - bytes[0], 512 * 300 * 2);
}

static const struct arch_tensor strange_tensors[] = {{"token_embd.weight", {512, 1000}},
                                                     {"output_norm.weight", {512}, true},
                                                     {"blk.%d.ssm_in.weight", {512, 2048}},
                                                     {"blk.%d.ssm_a", {16, 100}},
                                                     {"blk.%d.ssm_norm.weight", {512}, true},
                                                     {"other.weight", {512, 512}, true},
                                                     {NULL}};

static void unknown_architectures_are_planned_by_size(void **state)
{
    static const struct arch_key none[] = {{"context_length", 256}, {NULL}};
    static const struct arch_key heads[] = {{"context_length", 256},     {"embedding_length", 512},
                                            {"attention.head_count", 8}, {"attention.head_count_kv", 4},
                                            {"expert_count", 3},         {NULL}};
    size_t divided = (512 * 1000 + 5 * (512 * 2048 + 16 * 100)) * 2, whole = 6 * 512 * 4 + 512 * 512 * 2;
    for (int with_heads = 0; with_heads < 2; with_heads++) {
        struct arch_model strange = {"strange",      "zamba9", 0, 0, false, 5, with_heads ? heads : none,
                                     strange_tensors};
        size_t weights = 0, kv = 0;
        tsr_plan_info info;
        tsr_plan *plan = header_planned(*state, arch_model_writer(&strange, TSR_TYPE_F16), 3, 256);
        for (int d = 0; d < 3; d++) {
            weights += header_bytes(plan, d, TSR_MEMORY_WEIGHTS);
            kv += header_bytes(plan, d, TSR_MEMORY_KV);
            assert_int_equal(header_bytes(plan, d, TSR_MEMORY_ARENA), 0);
        }
        assert_int_equal(weights, divided + 3 * whole);
        assert_int_equal(kv, with_heads ? 256 * 5 * 4 * 64 * 2 * 2 : 0);
        assert_true(header_has_note(plan, "by size only"));
        assert_true(header_has_note(plan, with_heads ? "KV is that of ordinary" : "nor is KV"));
        tsr_plan_get_info(plan, &info);
        assert_false(info.runnable || info.exact_arena);
        tsr_plan_destroy(plan);
    }
}

/* -- offload and fit -- */

/* The first layer's FFN, router included, goes to the second device; nothing else does. */
static void experts_may_be_offloaded(void **state)
{
    tsr_model_config config = tsr_model_config_default();
    tsr_plan *plan;
    const size_t experts = 3 * 512 * 1024 * 8 * 2, router = 512 * 8 * 2;
    const size_t attention = 2 * (512 * 512 + 512 * 256) * 2, ends = 512 * 1000 * 2 + 512 * 4;
    config.offload.n_cpu_moe = 1;
    config.offload.device = "host1";
    runner_ok(header_plan(*state, moe_writer(&together, 2), 2, &config, &plan), "offload");
    assert_int_equal(header_bytes(plan, 1, TSR_MEMORY_WEIGHTS), experts + router);
    assert_int_equal(header_bytes(plan, 1, TSR_MEMORY_KV), 0);
    assert_int_equal(header_bytes(plan, 0, TSR_MEMORY_WEIGHTS), experts + router + 2 * attention + ends);
    tsr_plan_destroy(plan);
}

/* Two devices that the weights fill but for a few GB. */
static int64_t fitted_context(const header_fixture *f, const struct arch_model *model, tsr_split_mode mode)
{
    tsr_gguf *gguf;
    tsr_device_list *list;
    tsr_fit *fit;
    tsr_fit_info info;
    tsr_gguf_config header = tsr_gguf_config_default();
    tsr_model_config config = tsr_model_config_default();
    gguf_writer *w = arch_model_writer(model, TSR_TYPE_Q8_0);
    header.header_only = true;
    config.session.n_seq_max = 4;
    config.split.mode = mode;
    gguf_writer_save_header(w, f->path, false);
    gguf_writer_destroy(w);
    runner_ok(tsr_gguf_open(f->path, &header, &gguf), f->path);
    runner_ok(tsr_device_list_create(f->topo, "host:2,mem=9728MiB", NULL, &list), "devices");
    runner_ok(tsr_fit_create(gguf, list, &config, &fit), model->title);
    tsr_fit_get_info(fit, &info);
    for (int d = 0; d < 2; d++) {
        tsr_plan_device device;
        runner_ok(tsr_plan_get_device(tsr_fit_plan(fit), d, &device), "device");
        assert_true(device.total_bytes <= device.memory_cap);
    }
    tsr_fit_destroy(fit);
    tsr_device_list_destroy(list);
    tsr_gguf_close(gguf);
    return info.chosen.n_ctx;
}

static void fits_are_found_from_headers(void **state)
{
    const struct arch_model *mla_model = header_published("DeepSeek-V2-Lite");
    struct arch_model gemma3 = *header_published("Gemma-3-12B"), *gemma = &gemma3;
    gemma3.architecture = "qwen2vl"; /* which does not run, but has windows, too */
    for (int mode = TSR_SPLIT_MODE_LAYER; mode <= TSR_SPLIT_MODE_TENSOR; mode++) {
        int64_t n_ctx = fitted_context(*state, gemma, (tsr_split_mode)mode);
        assert_true(n_ctx >= 4096 && n_ctx < 32768);
    }
    /* The compressed row is on every device, unless layers are whole. */
    int64_t n_ctx = fitted_context(*state, mla_model, TSR_SPLIT_MODE_TENSOR);
    assert_true(n_ctx >= 4096 && n_ctx < fitted_context(*state, mla_model, TSR_SPLIT_MODE_LAYER));
}

/* -- opening, and memory -- */

static void opening_is_refused_by_name(void **state)
{
    header_fixture *f = *state;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt;
    config.devices = "host:1,threads=1";
    config.topology = f->topo;
    runner_ok(tsr_runtime_open(&config, &rt), "runtime");
    const struct arch_model *models[] = {&uneven, &mla[0], &together};
    static const char *const names[] = {"\"qwen2vl\"", "attn_kv_b", "\"qwen2vl\""};
    for (int i = 0; i < 3; i++) {
        tsr_model *model = NULL;
        gguf_writer *w = arch_model_writer(models[i], TSR_TYPE_F16);
        gguf_writer_save_header(w, f->path, true);
        gguf_writer_destroy(w);
        int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
        assert_int_equal(tsr_model_open(rt, f->path, NULL, &model), TSR_ERR_UNSUPPORTED);
        header_check_message(names[i]);
        assert_null(model);
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(failing_alloc_live_maps(), maps);
    }
    tsr_runtime_close(rt);
}

static void every_allocation_may_fail(void **state)
{
    header_fixture *f = *state;
    tsr_gguf *gguf;
    tsr_device_list *list;
    gguf_writer *w = moe_writer(&together, 2);
    gguf_writer_save_header(w, f->path, true);
    gguf_writer_destroy(w);
    runner_ok(tsr_gguf_open(f->path, NULL, &gguf), f->path);
    runner_ok(tsr_device_list_create(f->topo, "host:2", NULL, &list), "devices");
    for (int n = 1;; n++) {
        int64_t blocks = failing_alloc_live();
        tsr_plan *plan = NULL;
        failing_alloc_set(n);
        tsr_status status = tsr_plan_create(gguf, list, NULL, &plan);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (!fired) {
            assert_int_equal(status, TSR_OK);
            assert_true(n > 50);
            tsr_plan_destroy(plan);
            break;
        }
        assert_int_equal(status, TSR_ERR_MEMORY);
        assert_null(plan);
        assert_int_equal(failing_alloc_live(), blocks);
    }
    tsr_device_list_destroy(list);
    tsr_gguf_close(gguf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_may_differ),
        cmocka_unit_test(prediction_layers_are_not_planned),
        cmocka_unit_test(windows_count_where_the_file_tells),
        cmocka_unit_test(both_forms_of_mla_are_one),
        cmocka_unit_test(experts_may_be_apart),
        cmocka_unit_test(experts_cost_what_is_used),
        cmocka_unit_test(unknown_tensors_are_whole_and_told),
        cmocka_unit_test(unknown_architectures_are_planned_by_size),
        cmocka_unit_test(experts_may_be_offloaded),
        cmocka_unit_test(fits_are_found_from_headers),
        cmocka_unit_test(opening_is_refused_by_name),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, header_set_up, header_tear_down);
}
