/* Planning from headers that are unusual or wrong: layers that differ, windows, both forms of MLA, experts
 * one by one, names and architectures nobody knows, damaged numbers, memory that runs out. */
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

#include "support/arch_models.h"
#include "support/failing_alloc.h"
#include "support/runner.h"

typedef struct fixture {
    char path[40];
    tsr_topology *topo;
} fixture;

static int set_up(void **state)
{
    static fixture f = {.path = "/tmp/tsr_headers_XXXXXX"};
    close(mkstemp(f.path));
    runner_ok(tsr_topology_discover(NULL, &f.topo), "topology");
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    tsr_topology_destroy(f->topo);
    return unlink(f->path);
}

/* The plan of what a writer holds, for n devices of 400 GiB; the writer's end. */
static tsr_status plan_writer(const fixture *f, gguf_writer *w, int n_devices, const tsr_model_config *config,
                              tsr_plan **plan_out)
{
    tsr_gguf *gguf;
    tsr_device_list *list;
    tsr_gguf_config header = TSR_GGUF_CONFIG_INIT;
    char devices[32];
    header.header_only = true;
    gguf_writer_save_header(w, f->path, false);
    gguf_writer_destroy(w);
    snprintf(devices, sizeof devices, "host:%d,mem=400GiB", n_devices);
    runner_ok(tsr_gguf_open(f->path, &header, &gguf), f->path);
    runner_ok(tsr_device_list_create(f->topo, devices, NULL, &list), devices);
    tsr_status status = tsr_plan_create(gguf, list, config, plan_out);
    tsr_device_list_destroy(list);
    tsr_gguf_close(gguf);
    return status;
}

static tsr_plan *planned(const fixture *f, gguf_writer *w, int n_devices, int64_t n_ctx)
{
    static const float even[] = {1, 1, 1, 1};
    tsr_model_config config = TSR_MODEL_CONFIG_INIT;
    tsr_plan *plan;
    config.n_ctx = n_ctx;
    config.tensor_split = even;
    config.n_tensor_split = n_devices;
    runner_ok(plan_writer(f, w, n_devices, &config, &plan), "plan");
    return plan;
}

static size_t bytes_of(const tsr_plan *plan, int device, tsr_memory_owner owner)
{
    tsr_plan_device d;
    runner_ok(tsr_plan_describe_device(plan, device, &d), "device");
    return d.bytes[owner];
}

static bool has_note(const tsr_plan *plan, const char *part)
{
    for (int i = 0; tsr_plan_note(plan, i); i++)
        if (strstr(tsr_plan_note(plan, i), part))
            return true;
    return false;
}

static const struct arch_model *published(const char *title)
{
    for (size_t i = 0; i < n_arch_models; i++)
        if (strcmp(arch_models[i].title, title) == 0)
            return &arch_models[i];
    fail_msg("there is no %s", title);
    return NULL;
}

static size_t round_up(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* ---- layers that differ ---------------------------------------------------------------------- */

/* Layer 0 has 8 KV heads and a long FFN, layer 1 has 2 and a short one, layer 2 has neither heads nor window.
 */
static const struct arch_model uneven = {
    "uneven",
    "granite",
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
    gguf_writer_array(w, "granite.attention.head_count", TSR_GGUF_U32, (uint32_t[]){16, 8, 0}, 3);
    gguf_writer_array(w, "granite.attention.head_count_kv", TSR_GGUF_U32, (uint32_t[]){8, 2, 0}, 3);
    gguf_writer_array(w, "granite.feed_forward_length", TSR_GGUF_U32, (uint32_t[]){2048, 512, 512}, 3);
    tsr_plan *plan = planned(*state, w, 2, 1024);
    tsr_plan_info info;
    tsr_plan_describe(plan, &info);
    assert_int_equal(info.n_granules[TSR_CLASS_ATTENTION], 2); /* of the layer with the fewest heads */
    assert_int_equal(info.n_granules[TSR_CLASS_FFN], 4);       /* 512 columns */
    /* Half of every matrix, all norms, half of the vocabulary, which is the output's, too. */
    size_t matrices = 512 * (1024 + 512 + 512 + 1024) + 512 * (512 + 128 + 128 + 512) + 2 * 512 * 2048 +
                      4 * 512 * 512 + 512 * 1000;
    for (int d = 0; d < 2; d++) {
        assert_int_equal(bytes_of(plan, d, TSR_MEMORY_WEIGHTS), matrices / 2 * 2 + 4 * 512 * sizeof(float));
        assert_int_equal(bytes_of(plan, d, TSR_MEMORY_KV), 1024 * (8 + 2) / 2 * 64 * 2 * 2);
    }
    tsr_plan_destroy(plan);
}

/* ---- windows --------------------------------------------------------------------------------- */

/* Of 48 layers every sixth sees everything, the others 1024 tokens and the batch. */
static void windows_count_where_the_file_tells(void **state)
{
    const struct arch_model *gemma = published("Gemma-3-12B");
    const int64_t n_ctx = 32768, layer_token = gemma->kv_token_bytes / 48, windowed = 1024 + 512;
    bool flags[48];
    for (int l = 0; l < 48; l++)
        flags[l] = l % 6 != 5;
    for (int form = 0; form < 3; form++) {
        const char *key = "gemma3.attention.sliding_window_pattern";
        gguf_writer *w = arch_model_writer(gemma, TSR_TYPE_Q8_0);
        if (form == 1)
            gguf_writer_u32(w, key, 6);
        if (form == 2)
            gguf_writer_array(w, key, TSR_GGUF_BOOL, flags, 48);
        tsr_plan *plan = planned(*state, w, 1, n_ctx);
        int64_t tokens = form ? 8 * n_ctx + 40 * windowed : 48 * n_ctx;
        assert_int_equal(bytes_of(plan, 0, TSR_MEMORY_KV), round_up((size_t)(tokens * layer_token)));
        tsr_plan_destroy(plan);
    }
}

/* ---- MLA ------------------------------------------------------------------------------------- */

#define MLA_TENSORS                                                                                          \
    {"token_embd.weight", {512, 1000}}, {"output.weight", {512, 1000}}, {"output_norm.weight", {512}, true}, \
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

#define MLA_KEYS                                                                        \
    {"embedding_length", 512}, {"context_length", 1024}, {"feed_forward_length", 1024}, \
        {"attention.head_count", 8}, {"attention.kv_lora_rank", 128},                   \
    {                                                                                   \
        "rope.dimension_count", 32                                                      \
    }

/* Files of before and after llama.cpp took to the compressed form: keys and values of 64 + 32 and 64 elements
 * come out of a row of 128 + 32. */
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
        tsr_plan *plan = planned(*state, arch_model_writer(&mla[form], TSR_TYPE_F16), 2, 1024);
        for (int d = 0; d < 2; d++) {
            weights[form][d] = bytes_of(plan, d, TSR_MEMORY_WEIGHTS);
            assert_int_equal(bytes_of(plan, d, TSR_MEMORY_KV), 1024 * 2 * (128 + 32) * 2);
        }
        assert_false(has_note(plan, "unknown names"));
        tsr_plan_destroy(plan);
    }
    assert_memory_equal(weights[0], weights[1], sizeof weights[0]);
    size_t divided = 2 * 512 * 1000 + 2 * (256 * 768 + 128 * 1024 + 512 * 512 + 3 * 512 * 1024);
    size_t whole = 2 * 512 * (256 + 160);
    assert_int_equal(weights[0][0], (divided / 2 + whole) * 2 + 512 * sizeof(float));
}

/* ---- experts --------------------------------------------------------------------------------- */

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
    "llama",
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
    "apart", "llama", 0, 0, false, 2, moe_keys, (const struct arch_tensor[]){MOE_TENSORS, {NULL}}};

static gguf_writer *moe_writer(const struct arch_model *model, uint32_t n_used)
{
    gguf_writer *w = arch_model_writer(model, TSR_TYPE_F16);
    gguf_writer_u32(w, "llama.expert_used_count", n_used);
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

static void experts_may_lie_apart(void **state)
{
    tsr_plan *a = planned(*state, moe_writer(&together, 2), 3, 1024);
    tsr_plan *b = planned(*state, apart_writer(2), 3, 1024);
    tsr_plan_times times_a, times_b;
    for (int d = 0; d < 3; d++)
        assert_int_equal(bytes_of(a, d, TSR_MEMORY_WEIGHTS), bytes_of(b, d, TSR_MEMORY_WEIGHTS));
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
        tsr_plan *plan = planned(*state, moe_writer(&together, n_used), 1, 1024);
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

/* ---- unknown names --------------------------------------------------------------------------- */

static void unknown_tensors_are_whole_and_told(void **state)
{
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        gguf_writer *w = moe_writer(&together, 2);
        if (i == 1)
            gguf_writer_tensor_zero(w, "blk.1.attn_mystery.weight", TSR_TYPE_F16, 2, (int64_t[]){512, 300});
        tsr_plan *plan = planned(*state, w, 2, 1024);
        bytes[i] = bytes_of(plan, 0, TSR_MEMORY_WEIGHTS);
        assert_int_equal(has_note(plan, "blk.1.attn_mystery.weight"), i);
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
        tsr_plan *plan = planned(*state, arch_model_writer(&strange, TSR_TYPE_F16), 3, 256);
        for (int d = 0; d < 3; d++) {
            weights += bytes_of(plan, d, TSR_MEMORY_WEIGHTS);
            kv += bytes_of(plan, d, TSR_MEMORY_KV);
            assert_int_equal(bytes_of(plan, d, TSR_MEMORY_ARENA), 0);
        }
        assert_int_equal(weights, divided + 3 * whole);
        assert_int_equal(kv, with_heads ? 256 * 5 * 4 * 64 * 2 * 2 : 0);
        assert_true(has_note(plan, "by size only"));
        assert_true(has_note(plan, with_heads ? "KV is that of ordinary" : "nor is KV"));
        tsr_plan_describe(plan, &info);
        assert_false(info.runnable || info.exact_arena);
        tsr_plan_destroy(plan);
    }
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* Write the model with one key replaced (value < 0: left out). */
static gguf_writer *damaged(const struct arch_model *m, const char *suffix, int64_t value)
{
    struct arch_key keys[32];
    struct arch_model copy = *m;
    int n = 0;
    for (const struct arch_key *k = m->keys; k->suffix; k++)
        if (strcmp(k->suffix, suffix) != 0)
            keys[n++] = *k;
    if (value >= 0)
        keys[n++] = (struct arch_key){suffix, value};
    keys[n] = (struct arch_key){NULL};
    copy.keys = keys;
    return arch_model_writer(&copy, TSR_TYPE_Q8_0);
}

static void check_message(const char *object)
{
    const char *text = tsr_last_error();
    if (!strstr(text, object) || strchr(text, '\n'))
        fail_msg("this should name %s and be one line: %s", object, text);
}

static void damage_is_named(void **state)
{
    static const struct {
        const char *title, *suffix;
        int64_t value;
        const char *object;
    } cases[] = {
        {"Qwen3-8B", "embedding_length", -1, "qwen3.embedding_length"},
        {"Qwen3-8B", "embedding_length", 4095, "token_embd.weight"},
        {"Qwen3-8B", "context_length", 0, "qwen3.context_length"},
        {"Qwen3-8B", "attention.head_count", -1, "qwen3.attention.head_count"},
        {"Qwen3-8B", "attention.head_count", 64, "blk.0.attn_q.weight"},
        {"Qwen3-8B", "attention.head_count_kv", 5, "no multiple of its 5 KV heads"},
        {"Qwen3-8B", "attention.head_count_kv", 4, "blk.0.attn_k.weight"},
        {"Qwen3-8B", "attention.key_length", 1 << 30, "qwen3.attention.key_length"},
        {"Qwen3-8B", "attention.value_length", 64, "blk.0.attn_v.weight"},
        {"Qwen3-8B", "feed_forward_length", 12289, "blk.0.ffn_gate.weight"},
        {"Qwen3-30B-A3B", "expert_count", 127, "blk.0.ffn_gate_exps.weight"},
        {"Qwen3-30B-A3B", "expert_used_count", -1, "qwen3moe.expert_used_count"},
        {"Qwen3-30B-A3B", "expert_used_count", 129, "qwen3moe.expert_used_count"},
        {"Qwen3-30B-A3B", "expert_feed_forward_length", 767, "blk.0.ffn_gate_exps.weight"},
        {"DeepSeek-V2-Lite", "rope.dimension_count", -1, "deepseek2.rope.dimension_count"},
        {"DeepSeek-V2-Lite", "rope.dimension_count", 192, "deepseek2.rope.dimension_count"},
        {"DeepSeek-V2-Lite", "attention.value_length", 192, "blk.0.attn_kv_b.weight"},
        {"DeepSeek-V2-Lite", "expert_shared_count", 3, "blk.1.ffn_gate_shexp.weight"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_writer *w = damaged(published(cases[i].title), cases[i].suffix, cases[i].value);
        tsr_plan *plan = NULL;
        tsr_status status = plan_writer(*state, w, 2, NULL, &plan);
        if (status != TSR_ERR_FORMAT)
            fail_msg("%s, %s: %s", cases[i].title, cases[i].suffix, tsr_status_name(status));
        assert_null(plan);
        check_message(cases[i].object);
    }
    struct arch_model longer = *published("Qwen3-8B");
    tsr_plan *plan = NULL;
    longer.tensors = strange_tensors + 2; /* no token_embd */
    assert_int_equal(plan_writer(*state, arch_model_writer(&longer, TSR_TYPE_F16), 1, NULL, &plan),
                     TSR_ERR_FORMAT);
    check_message("token_embd.weight");
}

/* Every key with every absurd number, tensors of the divided kind left out so that no shape objects: a plan
 * or one line. */
static void absurd_numbers_end_in_one_line(void **state)
{
    static const int64_t values[] = {-1, 0, 1, 3, 65535, 65536, 1 << 20, (1 << 22) - 1, INT32_MAX};
    static const struct arch_tensor few[] = {
        {"token_embd.weight", {2048, 100}}, {"blk.%d.attn_norm.weight", {2048}, true}, {NULL}};
    const struct arch_model *models[] = {published("DeepSeek-V2-Lite"), published("Qwen3-30B-A3B")};
    for (int m = 0; m < 2; m++) {
        struct arch_model model = *models[m];
        model.tensors = few;
        for (const struct arch_key *k = model.keys; k->suffix; k++) {
            for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
                tsr_plan *plan = NULL;
                tsr_model_config config = TSR_MODEL_CONFIG_INIT;
                config.n_ctx = 64;
                config.n_batch = 4;
                tsr_status status =
                    plan_writer(*state, damaged(&model, k->suffix, values[v]), 2, &config, &plan);
                if (status != TSR_OK && (strlen(tsr_last_error()) < 20 || strchr(tsr_last_error(), '\n')))
                    fail_msg("%s = %lld: %s", k->suffix, (long long)values[v], tsr_last_error());
                tsr_plan_destroy(plan);
            }
        }
    }
}

/* ---- offload and fit ------------------------------------------------------------------------- */

/* The first layer's FFN, router included, goes to the second device; nothing else does. */
static void experts_may_be_offloaded(void **state)
{
    tsr_model_config config = TSR_MODEL_CONFIG_INIT;
    tsr_plan *plan;
    const size_t experts = 3 * 512 * 1024 * 8 * 2, router = 512 * 8 * 2;
    const size_t attention = 2 * (512 * 512 + 512 * 256) * 2, ends = 512 * 1000 * 2 + 512 * 4;
    config.n_cpu_moe = 1;
    config.offload_device = "host1";
    runner_ok(plan_writer(*state, moe_writer(&together, 2), 2, &config, &plan), "offload");
    assert_int_equal(bytes_of(plan, 1, TSR_MEMORY_WEIGHTS), experts + router);
    assert_int_equal(bytes_of(plan, 1, TSR_MEMORY_KV), 0);
    assert_int_equal(bytes_of(plan, 0, TSR_MEMORY_WEIGHTS), experts + router + 2 * attention + ends);
    tsr_plan_destroy(plan);
}

static void fits_are_found_from_headers(void **state)
{
    const fixture *f = *state;
    const struct arch_model *models[] = {published("DeepSeek-V2-Lite"), published("Gemma-3-12B")};
    for (int m = 0; m < 2; m++) {
        tsr_gguf *gguf;
        tsr_device_list *list;
        tsr_fit *fit;
        tsr_fit_info info;
        tsr_gguf_config header = TSR_GGUF_CONFIG_INIT;
        tsr_model_config config = TSR_MODEL_CONFIG_INIT;
        gguf_writer *w = arch_model_writer(models[m], TSR_TYPE_Q8_0);
        header.header_only = true;
        config.n_seq_max = 4;
        gguf_writer_save_header(w, f->path, false);
        gguf_writer_destroy(w);
        runner_ok(tsr_gguf_open(f->path, &header, &gguf), f->path);
        runner_ok(tsr_device_list_create(f->topo, "host:2,mem=9728MiB", NULL, &list), "");
        runner_ok(tsr_fit_create(gguf, list, &config, &fit), models[m]->title);
        tsr_fit_describe(fit, &info);
        assert_true(info.chosen.n_ctx < 32768 && info.chosen.n_ctx >= 4096);
        for (int d = 0; d < 2; d++) {
            tsr_plan_device device;
            runner_ok(tsr_plan_describe_device(tsr_fit_plan(fit), d, &device), "device");
            assert_true(device.total_bytes <= device.memory_cap);
        }
        tsr_fit_destroy(fit);
        tsr_device_list_destroy(list);
        tsr_gguf_close(gguf);
    }
}

/* ---- opening, and memory --------------------------------------------------------------------- */

/* A llama, but for its types. */
static const struct arch_model plain = {
    "plain",
    "llama",
    0,
    0,
    false,
    2,
    (const struct arch_key[]){{"embedding_length", 512},
                              {"context_length", 1024},
                              {"feed_forward_length", 1024},
                              {"attention.head_count", 8},
                              {NULL}},
    (const struct arch_tensor[]){{"token_embd.weight", {512, 1000}},
                                 {"output_norm.weight", {512}, true},
                                 {"blk.%d.attn_norm.weight", {512}, true},
                                 {"blk.%d.attn_q.weight", {512, 512}},
                                 {"blk.%d.attn_k.weight", {512, 512}},
                                 {"blk.%d.attn_v.weight", {512, 512}},
                                 {"blk.%d.attn_output.weight", {512, 512}},
                                 {"blk.%d.ffn_norm.weight", {512}, true},
                                 {"blk.%d.ffn_gate.weight", {512, 1024}},
                                 {"blk.%d.ffn_up.weight", {512, 1024}},
                                 {"blk.%d.ffn_down.weight", {1024, 512}},
                                 {NULL}}};

/* Planned like the same file in a type of as many bytes that runs, arena included. */
static void types_without_kernels_are_planned(void **state)
{
    tsr_plan *plans[2];
    tsr_plan_info info;
    for (int i = 0; i < 2; i++)
        plans[i] = planned(*state, arch_model_writer(&plain, i ? TSR_TYPE_IQ4_NL : TSR_TYPE_Q4_0), 2, 1024);
    for (int d = 0; d < 2; d++)
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            assert_int_equal(bytes_of(plans[0], d, o), bytes_of(plans[1], d, o));
    tsr_plan_describe(plans[0], &info);
    assert_true(info.runnable && info.exact_arena);
    tsr_plan_describe(plans[1], &info);
    assert_false(info.runnable || info.exact_arena);
    assert_true(has_note(plans[1], "is IQ4_NL"));
    tsr_plan_destroy(plans[0]);
    tsr_plan_destroy(plans[1]);
}

static void opening_is_refused_by_name(void **state)
{
    fixture *f = *state;
    tsr_runtime_config config = TSR_RUNTIME_CONFIG_INIT;
    tsr_runtime *rt;
    config.devices = "host:1,threads=1";
    config.topology = f->topo;
    runner_ok(tsr_runtime_open(&config, &rt), "runtime");
    const struct arch_model *models[] = {&uneven, &mla[0], &together, &plain};
    static const char *const names[] = {"\"granite\"", "\"deepseek2\"", "experts",
                                        "token_embd.weight is Q5_1"};
    for (int i = 0; i < 4; i++) {
        tsr_model *model = NULL;
        gguf_writer *w = arch_model_writer(models[i], i < 3 ? TSR_TYPE_F16 : TSR_TYPE_Q5_1);
        gguf_writer_save_header(w, f->path, true);
        gguf_writer_destroy(w);
        int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
        assert_int_equal(tsr_model_open(rt, f->path, NULL, &model), TSR_ERR_UNSUPPORTED);
        check_message(names[i]);
        assert_null(model);
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(failing_alloc_live_maps(), maps);
    }
    tsr_runtime_close(rt);
}

static void every_allocation_may_fail(void **state)
{
    fixture *f = *state;
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
        cmocka_unit_test(windows_count_where_the_file_tells),
        cmocka_unit_test(both_forms_of_mla_are_one),
        cmocka_unit_test(experts_may_lie_apart),
        cmocka_unit_test(experts_cost_what_is_used),
        cmocka_unit_test(unknown_tensors_are_whole_and_told),
        cmocka_unit_test(unknown_architectures_are_planned_by_size),
        cmocka_unit_test(damage_is_named),
        cmocka_unit_test(absurd_numbers_end_in_one_line),
        cmocka_unit_test(experts_may_be_offloaded),
        cmocka_unit_test(fits_are_found_from_headers),
        cmocka_unit_test(types_without_kernels_are_planned),
        cmocka_unit_test(opening_is_refused_by_name),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
