/* Ops with more rows than a card's grids have blocks, so that a block takes several rows, one after the
 * other: each row is what it is alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cuda/gpu_run.h"

enum { N = 37, ROUNDS = 3, LAST = 5 }; /* elements of a row; rows of a block; rows taken alone */

static int64_t many_rows(const gpu *g)
{
    return (ROUNDS - 1) * 16 * (int64_t)g->props.n_sms + LAST;
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

/* `op` for all rows of n floats, and for the last ones alone, which are the last of a block where there are
 * many. */
static void check_floats(gpu *g, const tsr_op *op, const tsr_op *last, const float *y, const float *y_last,
                         size_t n)
{
    float many[LAST * N], few[LAST * N];
    gpu_run(g, op);
    gpu_run(g, last);
    gpu_get(many, y, LAST * n * sizeof *many);
    gpu_get(few, y_last, LAST * n * sizeof *few);
    assert_memory_equal(many, few, LAST * n * sizeof *many);
}

static void a_block_takes_several_rows(void **state)
{
    (void)state;
    gpu g = gpu_open();
    const int64_t rows = many_rows(&g), before = (rows - LAST) * N;
    const size_t bytes = (size_t)rows * N * sizeof(float);
    float *host;
    const float *x = gpu_random(&g, rows * N, -3, 3, 7, &host);
    check_argmax(&g, x, host, rows);

    float *y = gpu_alloc(&g, bytes, false), *alone = gpu_alloc(&g, LAST * N * sizeof(float), false);
    const tsr_op softmax = {.kind = TSR_OP_SOFTMAX, .softmax = {x, y, N, rows, 0.5f}},
                 softmax_last = {.kind = TSR_OP_SOFTMAX, .softmax = {x + before, alone, N, LAST, 0.5f}};
    check_floats(&g, &softmax, &softmax_last, y + before, alone, N);
    const tsr_op norm = {.kind = TSR_OP_RMS_NORM,
                         .rms_norm = {.x = x, .y = y, .n = N, .n_rows = rows, .eps = 1e-5f}},
                 norm_last = {
                     .kind = TSR_OP_RMS_NORM,
                     .rms_norm = {.x = x + before, .y = alone, .n = N, .n_rows = LAST, .eps = 1e-5f}};
    check_floats(&g, &norm, &norm_last, y + before, alone, N);

    const tsr_op squares = {.kind = TSR_OP_SUM_SQUARES,
                            .sum_squares = {x, N, rows, 16, TSR_REDUCE_F32, 1, y}},
                 squares_last = {.kind = TSR_OP_SUM_SQUARES,
                                 .sum_squares = {x + before, N, LAST, 16, TSR_REDUCE_F32, 1, alone}};
    check_floats(&g, &squares, &squares_last, y + 2 * (rows - LAST), alone, 2);
    free(host);
    gpu_close(&g);
}

/* The last rows alone begin with the weight that is theirs among all. */
static void a_block_takes_rows_with_different_weights(void **state)
{
    (void)state;
    enum { WEIGHTS = 3 };
    gpu g = gpu_open();
    const int64_t rows = many_rows(&g), before = rows - LAST;
    const float *x = gpu_random(&g, rows * N, -3, 3, 8, NULL);
    float *weight, *y = gpu_alloc(&g, (size_t)rows * N * sizeof(float), false),
                   *alone = gpu_alloc(&g, LAST * N * sizeof(float), false), turned[WEIGHTS * N];
    const tsr_op norm = {.kind = TSR_OP_RMS_NORM,
                         .rms_norm = {.x = x,
                                      .weight = gpu_random(&g, WEIGHTS * N, -2, 2, 9, &weight),
                                      .y = y,
                                      .n = N,
                                      .n_rows = rows,
                                      .eps = 1e-5f,
                                      .n_weights = WEIGHTS}};
    for (int64_t i = 0; i < WEIGHTS * N; i++)
        turned[i] = weight[(before * N + i) % (WEIGHTS * N)];
    tsr_op last = norm;
    last.rms_norm.x = x + before * N;
    last.rms_norm.weight = gpu_put(&g, turned, sizeof turned, false);
    last.rms_norm.y = alone;
    last.rms_norm.n_rows = LAST;
    check_floats(&g, &norm, &last, y + before * N, alone, N);
    free(weight);
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_block_takes_several_rows),
                                       cmocka_unit_test(a_block_takes_rows_with_different_weights)};
    return cmocka_run_group_tests_name("rows of a block", tests, NULL, NULL);
}
