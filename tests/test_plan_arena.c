/* The compute arena of a model of true size: as small as the bytes that must be alive at once, and under a
 * tensor split every device has its share of what is divided, not all of it. From a header alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/model.h>

#include "support/header_plan.h"
#include "support/random.h"
#include "support/runner.h"

/* Llama-3-8B as in its config.json. */
enum { N_LAYERS = 32, N_EMBD = 4096, N_KV = 1024, N_FF = 14336, N_VOCAB = 128256, HEAD_DIM = 128 };
enum { N_CTX = 4096, N_TOKENS = 512 };

static const struct arch_model llama_8b = {
    "Llama-3-8B",
    "llama",
    8030261248,
    131072,
    false,
    N_LAYERS,
    (const struct arch_key[]){{"embedding_length", N_EMBD},
                              {"attention.head_count", 32},
                              {"attention.head_count_kv", 8},
                              {"feed_forward_length", N_FF},
                              {"context_length", 8192},
                              {NULL}},
    (const struct arch_tensor[]){{"token_embd.weight", {N_EMBD, N_VOCAB}},
                                 {"output_norm.weight", {N_EMBD}, true},
                                 {"output.weight", {N_EMBD, N_VOCAB}},
                                 {"blk.%d.attn_norm.weight", {N_EMBD}, true},
                                 {"blk.%d.attn_q.weight", {N_EMBD, N_EMBD}},
                                 {"blk.%d.attn_k.weight", {N_EMBD, N_KV}},
                                 {"blk.%d.attn_v.weight", {N_EMBD, N_KV}},
                                 {"blk.%d.attn_output.weight", {N_EMBD, N_EMBD}},
                                 {"blk.%d.ffn_norm.weight", {N_EMBD}, true},
                                 {"blk.%d.ffn_gate.weight", {N_EMBD, N_FF}},
                                 {"blk.%d.ffn_up.weight", {N_EMBD, N_FF}},
                                 {"blk.%d.ffn_down.weight", {N_FF, N_EMBD}},
                                 {NULL}}};

/* What a prompt of 512 tokens needs at its busiest moment, when gate and up are computed: the inputs (the
 * angles of RoPE, the page table, three numbers per token and the rows of the outputs), the residual stream
 * and its norm on every device, and the device's columns of gate and up. */
static size_t needed(int64_t n_outputs, int64_t n_columns)
{
    size_t inputs = 4 * (N_TOKENS * HEAD_DIM + N_CTX / 32 + 3 * N_TOKENS + n_outputs);
    return inputs + sizeof(float) * N_TOKENS * (size_t)(2 * N_EMBD + 2 * n_columns);
}

static void check_arenas(const header_fixture *f, const float *split, int n_devices)
{
    enum { ALIGNMENT_SLACK = 8 * 4096 }; /* every input begins at the device's alignment */
    tsr_model_config config = tsr_model_config_default();
    tsr_plan *plan;
    tsr_plan_info info;
    config.session.n_ctx = N_CTX;
    config.session.n_batch = N_TOKENS;
    config.split.tensor_split = split;
    config.split.n_tensor_split = n_devices;
    runner_ok(header_plan(f, arch_model_writer(&llama_8b, TSR_TYPE_Q4_0), n_devices, &config, &plan), "plan");
    tsr_plan_get_info(plan, &info);
    assert_true(info.runnable && info.exact_arena);
    for (int d = 0; d < n_devices; d++) {
        tsr_plan_device device;
        runner_ok(tsr_plan_get_device(plan, d, &device), "device");
        int64_t columns = device.granules[TSR_CLASS_FFN] * info.granule_size[TSR_CLASS_FFN];
        size_t arena = device.bytes[TSR_MEMORY_ARENA], need = needed(config.session.n_outputs_max, columns);
        print_message("%s: %lld of %d columns, arena %zu bytes, bound %zu\n", device.name, (long long)columns,
                      N_FF, arena, device.arena_bound_bytes);
        assert_int_equal(arena, device.arena_bound_bytes);
        assert_true(need <= arena && arena <= need + ALIGNMENT_SLACK);
        if (n_devices > 1)
            assert_true(arena < needed(config.session.n_outputs_max, N_FF));
    }
    tsr_plan_destroy(plan);
}

static void a_prompt_of_8b_needs_its_bound(void **state)
{
    check_arenas(*state, (const float[]){1}, 1);
}

static void a_split_divides_the_arena_too(void **state)
{
    check_arenas(*state, (const float[]){1, 1}, 2);
    check_arenas(*state, (const float[]){3, 1}, 2);
    check_arenas(*state, (const float[]){1, 2, 1}, 3);
    check_arenas(*state, (const float[]){1, 1, 1, 1, 1, 1, 1, 1}, 8);
}

/* -- many shapes -- */

enum { MOST_TENSORS = 24 };

/* A model that a random number made up. */
typedef struct shape {
    struct arch_model model;
    struct arch_key keys[10];
    struct arch_tensor tensors[MOST_TENSORS];
    int n_tensors;
} shape;

static void add_tensor(shape *s, const char *name, int64_t columns, int64_t rows)
{
    s->tensors[s->n_tensors++] = (struct arch_tensor){name, {columns, rows}, rows == 0, 0, 0};
}

static void add_attention(shape *s, int64_t n_embd, int64_t n_q, int64_t n_kv, bool fused)
{
    add_tensor(s, "blk.%d.attn_norm.weight", n_embd, 0);
    if (fused) {
        add_tensor(s, "blk.%d.attn_qkv.weight", n_embd, n_q + 2 * n_kv);
    } else {
        add_tensor(s, "blk.%d.attn_q.weight", n_embd, n_q);
        add_tensor(s, "blk.%d.attn_k.weight", n_embd, n_kv);
        add_tensor(s, "blk.%d.attn_v.weight", n_embd, n_kv);
    }
    add_tensor(s, "blk.%d.attn_output.weight", n_q, n_embd);
}

static void add_ffn(shape *s, int64_t n_embd, int64_t n_ff, bool fused)
{
    add_tensor(s, "blk.%d.ffn_norm.weight", n_embd, 0);
    if (!fused)
        add_tensor(s, "blk.%d.ffn_gate.weight", n_embd, n_ff);
    add_tensor(s, "blk.%d.ffn_up.weight", n_embd, fused ? 2 * n_ff : n_ff);
    add_tensor(s, "blk.%d.ffn_down.weight", n_ff, n_embd);
}

/* Biases of q, k and v; norms per head; norms behind the blocks;
 * q, k and v in one tensor, gate and up too. */
static const struct kind {
    const char *architecture;
    bool biases, head_norms, post_norms, fused;
} kinds[] = {{"llama", false, false, false, false}, {"qwen2", true, false, false, false},
             {"qwen3", false, true, false, false},  {"gemma2", false, false, true, false},
             {"gemma3", false, true, true, false},  {"phi3", false, false, false, true}};

static void random_shape(uint64_t *seed, const struct kind *kind, shape *s)
{
    int64_t head = 64 << random_below(seed, 2), n_kv_heads = INT64_C(4) << random_below(seed, 2);
    int64_t n_heads = n_kv_heads << random_below(seed, 3),
            n_embd = 256 * (2 + (int64_t)random_below(seed, 14));
    int64_t n_ff = 256 * (4 + (int64_t)random_below(seed, 40)), n_q = n_heads * head,
            n_kv = n_kv_heads * head;
    *s = (shape){.model = {.title = "shape", .architecture = kind->architecture}};
    s->model.n_layers = 1 + (int)random_below(seed, 6);
    s->model.keys = s->keys;
    s->model.tensors = s->tensors;
    const struct arch_key keys[] = {{"embedding_length", n_embd},
                                    {"attention.head_count", n_heads},
                                    {"attention.head_count_kv", n_kv_heads},
                                    {"feed_forward_length", n_ff},
                                    {"attention.key_length", head},
                                    {"attention.value_length", head},
                                    {"rope.dimension_count", head},
                                    {"context_length", 4096},
                                    {NULL, 0}};
    memcpy(s->keys, keys, sizeof keys);
    add_tensor(s, "token_embd.weight", n_embd, 2048);
    add_tensor(s, "output_norm.weight", n_embd, 0);
    add_attention(s, n_embd, n_q, n_kv, kind->fused);
    add_ffn(s, n_embd, n_ff, kind->fused);
    if (kind->biases) {
        s->tensors[s->n_tensors++] = (struct arch_tensor){.name = "blk.%d.attn_q.bias", .ne = {n_q}};
        s->tensors[s->n_tensors++] = (struct arch_tensor){.name = "blk.%d.attn_k.bias", .ne = {n_kv}};
        s->tensors[s->n_tensors++] = (struct arch_tensor){.name = "blk.%d.attn_v.bias", .ne = {n_kv}};
    }
    if (kind->head_norms) {
        add_tensor(s, "blk.%d.attn_q_norm.weight", head, 0);
        add_tensor(s, "blk.%d.attn_k_norm.weight", head, 0);
    }
    if (kind->post_norms) {
        add_tensor(s, "blk.%d.post_attention_norm.weight", n_embd, 0);
        add_tensor(s, "blk.%d.post_ffw_norm.weight", n_embd, 0);
    }
}

static void check_shape(const header_fixture *f, const shape *s, uint64_t *seed)
{
    static const tsr_split_mode modes[] = {TSR_SPLIT_MODE_TENSOR, TSR_SPLIT_MODE_LAYER, TSR_SPLIT_MODE_NONE};
    float split[4];
    int n_devices = 1 + (int)random_below(seed, 4);
    tsr_model_config config = tsr_model_config_default();
    tsr_plan *plan;
    tsr_plan_info info;
    for (int d = 0; d < n_devices; d++)
        split[d] = (float)(1 + random_below(seed, 4));
    config.session.n_ctx = 1024;
    config.session.n_batch = 1 + (int)random_below(seed, 512);
    config.session.n_outputs_max = 1 + (int)random_below(seed, (uint64_t)config.session.n_batch);
    config.split.tensor_split = split;
    config.split.n_tensor_split = n_devices;
    config.split.mode = modes[random_below(seed, 3)];
    runner_ok(header_plan(f, arch_model_writer(&s->model, TSR_TYPE_F16), n_devices, &config, &plan), "plan");
    tsr_plan_get_info(plan, &info);
    if (!info.runnable)
        fail_msg("%s: %s", s->model.architecture, tsr_plan_note(plan, 0));
    for (int d = 0; d < n_devices; d++) {
        tsr_plan_device device;
        runner_ok(tsr_plan_get_device(plan, d, &device), "device");
        assert_int_equal(device.bytes[TSR_MEMORY_ARENA], device.arena_bound_bytes);
    }
    tsr_plan_destroy(plan);
}

static void many_shapes_need_their_bound(void **state)
{
    enum { N_KINDS = sizeof kinds / sizeof *kinds };
    uint64_t seed = 51;
    for (int round = 0; round < 25 * N_KINDS; round++) {
        shape s;
        random_shape(&seed, &kinds[round % N_KINDS], &s);
        check_shape(*state, &s, &seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_prompt_of_8b_needs_its_bound, header_set_up, header_tear_down),
        cmocka_unit_test_setup_teardown(many_shapes_need_their_bound, header_set_up, header_tear_down),
        cmocka_unit_test_setup_teardown(a_split_divides_the_arena_too, header_set_up, header_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
