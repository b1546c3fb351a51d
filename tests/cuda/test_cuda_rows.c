/* Ops with more rows than a card's grids have blocks, so that a block takes several rows, one after the
 * other: each row is what it is alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cuda/gpu_run.h"

enum { N = 37, ROUNDS = 3 }; /* elements of a row; rows of a block */

static int64_t many_rows(const gpu *g)
{
    return (ROUNDS - 1) * 16 * (int64_t)g->props.n_sms + 5;
}

static void check_argmax(gpu *g, const float *x, const float *host, int64_t rows)
{
    int32_t *y = malloc((size_t)rows * sizeof *y);
    const tsr_op op = {.kind = TSR_OP_ARGMAX,
                       .argmax = {x, gpu_alloc(g, (size_t)rows * sizeof *y, false), N, rows}};
    gpu_run(g, &op);
    gpu_get(y, op.argmax.y, (size_t)rows * sizeof *y);
    for (int64_t r = 0; r < rows; r++) {
        int best = 0;
        for (int i = 1; i < N; i++)
            best = host[r * N + i] > host[r * N + best] ? i : best;
        assert_int_equal(y[r], best);
    }
    free(y);
}

/* `op` for all rows, and for the last ones alone, which are the last of a block where there are many. */
static void check_floats(gpu *g, const tsr_op *op, const tsr_op *last, const float *y, const float *y_last)
{
    float many[5 * N], few[5 * N];
    gpu_run(g, op);
    gpu_run(g, last);
    gpu_get(many, y, sizeof many);
    gpu_get(few, y_last, sizeof few);
    assert_memory_equal(many, few, sizeof many);
}

static void a_block_takes_several_rows(void **state)
{
    (void)state;
    gpu g = gpu_open();
    const int64_t rows = many_rows(&g), before = (rows - 5) * N;
    const size_t bytes = (size_t)rows * N * sizeof(float);
    float *host;
    const float *x = gpu_random(&g, rows * N, -3, 3, 7, &host);
    check_argmax(&g, x, host, rows);

    float *y = gpu_alloc(&g, bytes, false), *alone = gpu_alloc(&g, 5 * N * sizeof(float), false);
    const tsr_op softmax = {.kind = TSR_OP_SOFTMAX, .softmax = {x, y, N, rows, 0.5f}},
                 softmax_last = {.kind = TSR_OP_SOFTMAX, .softmax = {x + before, alone, N, 5, 0.5f}};
    check_floats(&g, &softmax, &softmax_last, y + before, alone);
    const tsr_op norm = {.kind = TSR_OP_RMS_NORM,
                         .rms_norm = {.x = x, .y = y, .n = N, .n_rows = rows, .eps = 1e-5f}},
                 norm_last = {.kind = TSR_OP_RMS_NORM,
                              .rms_norm = {.x = x + before, .y = alone, .n = N, .n_rows = 5, .eps = 1e-5f}};
    check_floats(&g, &norm, &norm_last, y + before, alone);
    free(host);
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_block_takes_several_rows)};
    return cmocka_run_group_tests_name("rows of a block", tests, NULL, NULL);
}
