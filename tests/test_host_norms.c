/* Norms of queries and keys on every instruction set. The halves of a norm of divided rows, sum_squares and
 * rms_scale: against double precision, and sums of parts against that of the whole row. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/quant/fixed.h"
#include "core/quant/half.h"
#include "support/kernel_run.h"

enum { N = 700, GRANULE = 96, ROWS = 3, N_GRANULES = (N + GRANULE - 1) / GRANULE };

static const float factors[] = {1e-5f, 1, 3000, 1e6f};

static float *random_floats(int64_t n, float largest, uint64_t seed)
{
    float *x = guarded_alloc((size_t)n * sizeof *x);
    random_fill(&seed, x, n, -largest, largest);
    return x;
}

/* Of columns [begin, end) of rows of N. */
static bool sum_squares(const tsr_kernel_set *set, const float *x, int64_t begin, int64_t end,
                        tsr_reduce_type reduce, int n_threads, void *y)
{
    const int64_t n = end - begin;
    float *part = guarded_alloc((size_t)(n * ROWS) * sizeof *part);
    for (int64_t r = 0; r < ROWS; r++)
        memcpy(part + r * n, x + r * N + begin, (size_t)n * sizeof *part);
    const tsr_op op = {.kind = TSR_OP_SUM_SQUARES,
                       .sum_squares = {.x = part,
                                       .n = n,
                                       .n_rows = ROWS,
                                       .granule = GRANULE,
                                       .reduce = reduce,
                                       .limit = tsr_fixed_limit(N_GRANULES),
                                       .y = y}};
    const bool fault = kernel_run(set, &op, n_threads);
    guarded_free(part, (size_t)(n * ROWS) * sizeof *part);
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
    const tsr_kernel_set *set;
    const double limit = (double)tsr_fixed_limit(N_GRANULES);
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
        for (int f = 0; f < 4; f++) {
            float *x = random_floats(ROWS * N, factors[f], (uint64_t)f);
            int64_t whole[ROWS][2], parts[2][ROWS][2];
            float plain[ROWS][2];
            uint16_t half[ROWS][2];
            assert_false(sum_squares(set, x, 0, N, TSR_REDUCE_EXACT, 2, whole));
            assert_false(sum_squares(set, x, 0, 3 * GRANULE, TSR_REDUCE_EXACT, 1, parts[0]));
            assert_false(sum_squares(set, x, 3 * GRANULE, N, TSR_REDUCE_EXACT, 4, parts[1]));
            assert_false(sum_squares(set, x, 0, N, TSR_REDUCE_F32, 2, plain));
            assert_false(sum_squares(set, x, 0, N, TSR_REDUCE_BF16, 2, half));
            for (int r = 0; r < ROWS; r++) {
                const double exact = squares_of(x, r);
                for (int i = 0; i < 2; i++)
                    assert_true(whole[r][i] == parts[0][r][i] + parts[1][r][i]);
                const double sum = ((double)whole[r][0] * limit + (double)whole[r][1]) / TSR_FIXED_ONE;
                assert_float_equal(sum, exact, 20 * 0x1p-24 * exact + N_GRANULES * 0.5 / TSR_FIXED_ONE);
                assert_true(plain[r][0] == 0 && half[r][0] == 0);
                assert_float_equal(plain[r][1], exact, 24 * 0x1p-24 * exact);
                assert_float_equal(tsr_bf16_to_f32(half[r][1]), exact, 0x1.1p-8 * exact);
            }
            guarded_free(x, ROWS * N * sizeof *x);
        }
}

static void infinite_squares_raise_the_range_fault(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    static const float bad[] = {INFINITY, NAN, 1e12f, 1e30f};
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
        for (int i = 0; i < 4; i++) {
            float *x = random_floats(ROWS * N, 1, 5);
            int64_t y[ROWS][2];
            float plain[ROWS][2];
            x[N + 7] = bad[i];
            assert_true(sum_squares(set, x, 0, N, TSR_REDUCE_EXACT, 2, y));
            assert_false(sum_squares(set, x, 0, N, TSR_REDUCE_F32, 2, plain));
            guarded_free(x, ROWS * N * sizeof *x);
        }
}

/* In place or not. */
static void rows_are_scaled_by_the_root_of_their_mean_square(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    const float squares[ROWS][2] = {{0, 3}, {2, 0.5f}, {0, 0}};
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
        for (int threads = 1; threads <= 3; threads++) {
            const size_t bytes = ROWS * N * sizeof(float);
            float *x = random_floats(ROWS * N, 4, 6), *weight = random_floats(N, 2, 7),
                  *y = guarded_alloc(bytes);
            tsr_op op = {.kind = TSR_OP_RMS_SCALE,
                         .rms_scale = {.x = x,
                                       .squares = squares[0],
                                       .weight = weight,
                                       .y = y,
                                       .n = N,
                                       .n_rows = ROWS,
                                       .n_all = 3 * N,
                                       .unit = 1024,
                                       .eps = 1e-6f}};
            kernel_run(set, &op, threads);
            for (int i = 0; i < ROWS * N; i++) {
                const float *sum = squares[i / N];
                const double mean = ((double)sum[0] * 1024 + (double)sum[1]) / (3 * N);
                const double expected = (double)x[i] * (double)weight[i % N] / sqrt(mean + (double)1e-6f);
                assert_float_equal(y[i], expected, 6 * 0x1p-24 * fabs(expected));
            }
            op.rms_scale.y = x;
            kernel_run(set, &op, threads);
            assert_memory_equal(x, y, bytes);
            guarded_free(x, bytes);
            guarded_free(weight, N * sizeof(float));
            guarded_free(y, bytes);
        }
}

/* LayerNorms of heads in place or not, row after row with the next weight. */
static void heads_are_normed_with_a_weight_for_each(void **state)
{
    (void)state;
    enum { DIM = 70, HEADS = 3, TOKENS = 2, COUNT = DIM * HEADS * TOKENS };
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++) {
        float *x = random_floats(COUNT, 3, 8), *weight = random_floats(DIM * HEADS, 2, 9),
              *y = guarded_alloc(COUNT * sizeof(float));
        tsr_op op = {.kind = TSR_OP_RMS_NORM,
                     .rms_norm = {.x = x,
                                  .weight = weight,
                                  .y = y,
                                  .n = DIM,
                                  .n_rows = HEADS * TOKENS,
                                  .eps = 1e-5f,
                                  .center = true,
                                  .n_weights = HEADS}};
        kernel_run(set, &op, 4);
        for (int r = 0; r < HEADS * TOKENS; r++) {
            double mean = 0, spread = 0;
            for (int i = 0; i < DIM; i++)
                mean += (double)x[r * DIM + i] / DIM;
            for (int i = 0; i < DIM; i++)
                spread += pow((double)x[r * DIM + i] - mean, 2) / DIM;
            for (int i = 0; i < DIM; i++)
                assert_float_equal(y[r * DIM + i],
                                   ((double)x[r * DIM + i] - mean) / sqrt(spread + (double)1e-5f) *
                                       (double)weight[r % HEADS * DIM + i],
                                   2e-6);
        }
        op.rms_norm.y = x;
        kernel_run(set, &op, 1);
        assert_memory_equal(x, y, COUNT * sizeof(float));
        guarded_free(x, COUNT * sizeof(float));
        guarded_free(weight, DIM * HEADS * sizeof(float));
        guarded_free(y, COUNT * sizeof(float));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_parts_are_those_of_the_whole_row),
        cmocka_unit_test(infinite_squares_raise_the_range_fault),
        cmocka_unit_test(heads_are_normed_with_a_weight_for_each),
        cmocka_unit_test(rows_are_scaled_by_the_root_of_their_mean_square),
    };
    return cmocka_run_group_tests_name("norms of queries and keys on the host", tests, NULL, NULL);
}
