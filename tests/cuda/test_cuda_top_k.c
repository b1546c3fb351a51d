/* The candidates of rows of logits: in the order of the definition, whatever the number of tiles and rounds,
 * with ties, zeros of both signs, infinities and what is no number. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cuda/gpu_run.h"
#include "support/top_k_reference.h"

/* In scratch memory for as many rows; 0: for all. */
static void check(gpu *g, const float *x, int64_t n, int64_t n_rows, int64_t k, int64_t rows_of_round)
{
    const int64_t first = 1000;
    const size_t bytes = (size_t)(n_rows * k) * sizeof(tsr_candidate);
    tsr_candidate *found = malloc(bytes), *expected = malloc((size_t)k * sizeof *expected);
    const tsr_op op = {.kind = TSR_OP_TOP_K,
                       .top_k = {gpu_put(g, x, (size_t)(n * n_rows) * sizeof *x, false),
                                 gpu_alloc(g, bytes, false), n, n_rows, k, first}};
    if (rows_of_round > 0) {
        const size_t all = g->scratch_bytes;
        g->scratch_bytes = tsr_cuda_top_k_scratch(&op.top_k, rows_of_round);
        const tsr_cuda_stream few = gpu_stream(g, gpu_alloc(g, g->scratch_bytes, true));
        assert_int_equal(tsr_cuda_op_launch(&op, &few), TSR_OK);
        assert_false(gpu_fault(g));
        g->scratch_bytes = all;
    } else {
        gpu_run(g, &op);
    }
    gpu_get(found, op.top_k.y, bytes);
    for (int64_t r = 0; r < n_rows; r++) {
        top_k_reference(x + r * n, n, k, first, expected);
        assert_memory_equal(found + r * k, expected, (size_t)k * sizeof *expected);
    }
    free(found);
    free(expected);
    gpu_clear(g);
}

static void candidates_are_those_of_the_definition(void **state)
{
    (void)state;
    /* One tile, and two and three launches; lists longer than rows. */
    static const int64_t shapes[][3] = {{1, 1, 1},    {40, 3, 40},    {7, 2, 256},   {1024, 1, 5},
                                        {1025, 2, 1}, {3000, 2, 256}, {9001, 3, 40}, {5000, 1, 255}};
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int kind = 0; kind < TOP_K_KINDS; kind++) {
            const int64_t n = shapes[i][0] * shapes[i][1];
            float *x = malloc((size_t)n * sizeof *x);
            top_k_fill(x, n, kind, (uint64_t)i + 1);
            check(&g, x, shapes[i][0], shapes[i][1], shapes[i][2], 0);
            free(x);
        }
    gpu_close(&g);
}

static void rows_come_in_rounds(void **state)
{
    (void)state;
    enum { N = 2500, ROWS = 5, K = 64 };
    float x[N * ROWS];
    gpu g = gpu_open();
    top_k_fill(x, N * ROWS, 0, 3);
    check(&g, x, N, ROWS, K, 1);
    check(&g, x, N, ROWS, K, 2);
    gpu_close(&g);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    const tsr_op many = {.kind = TSR_OP_TOP_K, .top_k = {.n = 100, .n_rows = 1, .k = TSR_MAX_CANDIDATES + 1}},
                 longest = {.kind = TSR_OP_TOP_K, .top_k = {.n = INT32_MAX, .n_rows = 1, .k = 256}};
    assert_int_equal(tsr_cuda_op_check(&many), TSR_ERR_UNSUPPORTED);
    assert_int_equal(tsr_cuda_op_check(&longest), TSR_ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidates_are_those_of_the_definition),
        cmocka_unit_test(rows_come_in_rounds),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
