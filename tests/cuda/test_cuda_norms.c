/* Norms of queries and keys as kernels. The halves of a norm of divided rows, sum_squares and rms_scale:
 * against double precision, and sums of parts against that of the whole row. */
#include "gpu_run.h"

#include <math.h>

#include "core/quant/fixed.h"
#include "core/quant/half.h"

enum { N = 1500, GRANULE = 640, ROWS = 3, N_GRANULES = (N + GRANULE - 1) / GRANULE };

/* Of columns [begin, end) of rows of N. Returns whether the range fault was raised. */
static bool sum_squares(gpu *g, const float *x, int64_t begin, int64_t end, tsr_reduce_type reduce, void *y)
{
    const int64_t n = end - begin;
    const size_t bytes = 2 * ROWS * tsr_reduce_bytes(reduce);
    float part[ROWS * N];
    for (int64_t r = 0; r < ROWS; r++)
        memcpy(part + r * n, x + r * N + begin, (size_t)n * sizeof *part);
    const tsr_op op = {.kind = TSR_OP_SUM_SQUARES,
                       .sum_squares = {.x = gpu_put(g, part, (size_t)(n * ROWS) * sizeof *part, false),
                                       .n = n,
                                       .n_rows = ROWS,
                                       .granule = GRANULE,
                                       .reduce = reduce,
                                       .limit = tsr_fixed_limit(N_GRANULES),
                                       .y = gpu_alloc(g, bytes, true)}};
    const bool fault = gpu_run(g, &op);
    gpu_get(y, op.sum_squares.y, bytes);
    return fault;
}

static double squares_of(const float *x, int64_t r)
{
    double sum = 0;
    for (int64_t i = 0; i < N; i++)
        sum += (double)x[r * N + i] * (double)x[r * N + i];
    return sum;
}

/* From squares that a single fixed-point number would lose to those that would leave its range. */
static void sums_of_parts_are_those_of_the_whole_row(void **state)
{
    (void)state;
    static const float factors[] = {1e-5f, 1, 3000, 1e6f};
    const double limit = (double)tsr_fixed_limit(N_GRANULES);
    gpu g = gpu_open();
    for (int f = 0; f < 4; f++) {
        float *x = random_floats(ROWS * N, -factors[f], factors[f], (uint64_t)f);
        int64_t whole[ROWS][2], parts[2][ROWS][2];
        float plain[ROWS][2];
        uint16_t half[ROWS][2];
        assert_false(sum_squares(&g, x, 0, N, TSR_REDUCE_EXACT, whole));
        assert_false(sum_squares(&g, x, 0, GRANULE, TSR_REDUCE_EXACT, parts[0]));
        assert_false(sum_squares(&g, x, GRANULE, N, TSR_REDUCE_EXACT, parts[1]));
        assert_false(sum_squares(&g, x, 0, N, TSR_REDUCE_F32, plain));
        assert_false(sum_squares(&g, x, 0, N, TSR_REDUCE_BF16, half));
        for (int r = 0; r < ROWS; r++) {
            const double exact = squares_of(x, r);
            for (int i = 0; i < 2; i++)
                assert_true(whole[r][i] == parts[0][r][i] + parts[1][r][i]);
            const double sum = ((double)whole[r][0] * limit + (double)whole[r][1]) / TSR_FIXED_ONE;
            assert_float_equal(sum, exact, 16 * 0x1p-24 * exact + N_GRANULES * 0.5 / TSR_FIXED_ONE);
            assert_true(plain[r][0] == 0 && half[r][0] == 0);
            assert_float_equal(plain[r][1], exact, 16 * 0x1p-24 * exact);
            assert_float_equal(tsr_bf16_to_f32(half[r][1]), exact, 0x1.1p-8 * exact);
        }
        free(x);
        gpu_clear(&g);
    }
    gpu_close(&g);
}

static void infinite_squares_raise_the_range_fault(void **state)
{
    (void)state;
    static const float bad[] = {INFINITY, NAN, 1e12f, 1e30f};
    gpu g = gpu_open();
    for (int i = 0; i < 4; i++) {
        float *x = random_floats(ROWS * N, -1, 1, 5), plain[ROWS][2];
        int64_t y[ROWS][2];
        x[N + 700] = bad[i];
        assert_true(sum_squares(&g, x, 0, N, TSR_REDUCE_EXACT, y));
        assert_false(sum_squares(&g, x, 0, N, TSR_REDUCE_F32, plain));
        free(x);
        gpu_clear(&g);
    }
    gpu_close(&g);
}

/* In place or not. */
static void rows_are_scaled_by_the_root_of_their_mean_square(void **state)
{
    (void)state;
    const float squares[ROWS][2] = {{0, 3}, {2, 0.5f}, {0, 0}};
    const size_t bytes = ROWS * N * sizeof(float);
    gpu g = gpu_open();
    float *x = random_floats(ROWS * N, -4, 4, 6), *weight = random_floats(N, -2, 2, 7), *y = malloc(bytes);
    assert_non_null(y);
    tsr_op op = {.kind = TSR_OP_RMS_SCALE,
                 .rms_scale = {.x = gpu_put(&g, x, bytes, false),
                               .squares = gpu_put(&g, squares, sizeof squares, false),
                               .weight = gpu_put(&g, weight, N * sizeof(float), false),
                               .y = gpu_alloc(&g, bytes, false),
                               .n = N,
                               .n_rows = ROWS,
                               .n_all = 3 * N,
                               .unit = 1024,
                               .eps = 1e-6f}};
    for (int in_place = 0; in_place < 2; in_place++) {
        if (in_place)
            op.rms_scale.y = (float *)op.rms_scale.x;
        assert_false(gpu_run(&g, &op));
        gpu_get(y, op.rms_scale.y, bytes);
        for (int i = 0; i < ROWS * N; i++) {
            const float *sum = squares[i / N];
            const double mean = ((double)sum[0] * 1024 + (double)sum[1]) / (3 * N);
            const double expected = (double)x[i] * (double)weight[i % N] / sqrt(mean + (double)1e-6f);
            assert_float_equal(y[i], expected, 8 * 0x1p-24 * fabs(expected));
        }
    }
    free(x);
    free(weight);
    free(y);
    gpu_close(&g);
}

/* LayerNorms and others of heads, row after row with the next weight. */
static void heads_are_normed_with_a_weight_for_each(void **state)
{
    (void)state;
    enum { DIM = 70, HEADS = 3, TOKENS = 2, COUNT = DIM * HEADS * TOKENS };
    gpu g = gpu_open();
    float *x = random_floats(COUNT, -3, 3, 8), *weight = random_floats(DIM * HEADS, -2, 2, 9), y[COUNT];
    tsr_op op = {.kind = TSR_OP_RMS_NORM,
                 .rms_norm = {.x = gpu_put(&g, x, COUNT * sizeof(float), false),
                              .weight = gpu_put(&g, weight, DIM * HEADS * sizeof(float), false),
                              .y = gpu_alloc(&g, COUNT * sizeof(float), false),
                              .n = DIM,
                              .n_rows = HEADS * TOKENS,
                              .eps = 1e-5f,
                              .n_weights = HEADS}};
    for (int center = 0; center < 2; center++) {
        op.rms_norm.center = center;
        assert_false(gpu_run(&g, &op));
        gpu_get(y, op.rms_norm.y, sizeof y);
        for (int r = 0; r < HEADS * TOKENS; r++) {
            double mean = 0, spread = 0;
            for (int i = 0; center && i < DIM; i++)
                mean += (double)x[r * DIM + i] / DIM;
            for (int i = 0; i < DIM; i++)
                spread += pow((double)x[r * DIM + i] - mean, 2) / DIM;
            for (int i = 0; i < DIM; i++)
                assert_float_equal(y[r * DIM + i],
                                   ((double)x[r * DIM + i] - mean) / sqrt(spread + (double)1e-5f) *
                                       (double)weight[r % HEADS * DIM + i],
                                   2e-6);
        }
    }
    free(x);
    free(weight);
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_parts_are_those_of_the_whole_row),
        cmocka_unit_test(infinite_squares_raise_the_range_fault),
        cmocka_unit_test(heads_are_normed_with_a_weight_for_each),
        cmocka_unit_test(rows_are_scaled_by_the_root_of_their_mean_square),
    };
    return cmocka_run_group_tests_name("norms of queries and keys on GPUs", tests, NULL, NULL);
}
