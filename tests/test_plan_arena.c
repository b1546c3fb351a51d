/* The compute arena of a model of true size: as small as the bytes that must be alive at once, and under a
 * tensor split every device has its share of what is divided, not all of it. From a header alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <tsr/model.h>

#include "support/header_plan.h"
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
    tsr_model_config config = TSR_MODEL_CONFIG_INIT;
    tsr_plan *plan;
    tsr_plan_info info;
    config.n_ctx = N_CTX;
    config.n_batch = N_TOKENS;
    config.tensor_split = split;
    config.n_tensor_split = n_devices;
    runner_ok(header_plan(f, arch_model_writer(&llama_8b, TSR_TYPE_Q4_0), n_devices, &config, &plan), "plan");
    tsr_plan_describe(plan, &info);
    assert_true(info.runnable && info.exact_arena && info.least_order);
    for (int d = 0; d < n_devices; d++) {
        tsr_plan_device device;
        runner_ok(tsr_plan_describe_device(plan, d, &device), "device");
        int64_t columns = device.granules[TSR_CLASS_FFN] * info.granule_size[TSR_CLASS_FFN];
        size_t arena = device.bytes[TSR_MEMORY_ARENA], need = needed(config.n_outputs_max, columns);
        print_message("%s: %lld of %d columns, arena %zu bytes, bound %zu\n", device.name, (long long)columns,
                      N_FF, arena, device.arena_bound_bytes);
        assert_int_equal(arena, device.arena_bound_bytes);
        assert_true(need <= arena && arena <= need + ALIGNMENT_SLACK);
        if (n_devices > 1)
            assert_true(arena < needed(config.n_outputs_max, N_FF));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_prompt_of_8b_needs_its_bound, header_set_up, header_tear_down),
        cmocka_unit_test_setup_teardown(a_split_divides_the_arena_too, header_set_up, header_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
