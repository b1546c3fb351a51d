/* stream_weights and stream_mix on the host, every instruction set: against double precision
 * (support/stream_case.h), and the bits of any number of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/kernel_run.h"
#include "support/stream_case.h"

enum { TOKENS = 7 };

static float *fresh(int64_t n, float low, float high, uint64_t *seed)
{
    float *x = guarded_alloc((size_t)n * sizeof *x);
    random_fill(seed, x, n, low, high);
    return x;
}

static void drop(const float *x, int64_t n)
{
    guarded_free((void *)(uintptr_t)x, (size_t)n * sizeof *x);
}

static void check_weights(const tsr_kernel_set *set, int64_t n, bool mixes, int64_t iterations)
{
    uint64_t seed = (uint64_t)n;
    const int64_t width = mixes ? (2 + n) * n : n, n_scales = mixes ? 3 : 1;
    tsr_op op = {.kind = TSR_OP_STREAM_WEIGHTS,
                 .stream_weights = {.x = fresh(TOKENS * width, -6, 6, &seed),
                                    .scale = fresh(n_scales, 0.5f, 2, &seed),
                                    .base = fresh(width, -1, 1, &seed),
                                    .y = fresh(TOKENS * width, 0, 0, &seed),
                                    .n_tokens = TOKENS,
                                    .n = n,
                                    .mixes = mixes,
                                    .iterations = iterations,
                                    .eps = 1e-6f}};
    tsr_op_stream_weights *a = &op.stream_weights;
    const size_t bytes = (size_t)(TOKENS * width) * sizeof(float);
    kernel_run(set, &op, 1);
    stream_case_check_weights(a);
    float *y = a->y;
    a->y = (float *)(uintptr_t)a->x; /* in place */
    kernel_run(set, &op, 3);
    assert_memory_equal(a->y, y, bytes);
    drop(a->x, TOKENS * width);
    drop(a->scale, n_scales);
    drop(a->base, width);
    drop(y, TOKENS * width);
}

static void weights_are_close_to_their_formula(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++) {
        check_weights(set, 4, true, 20);
        check_weights(set, 4, false, 20);
        check_weights(set, 1, true, 1);
        check_weights(set, 8, true, 3);
        check_weights(set, 3, true, 2);
    }
}

/* weights 0: one stream is copied. */
static void check_mix(const tsr_kernel_set *set, int64_t n, int64_t n_in, int64_t n_out, int64_t weights,
                      int64_t first, int64_t add_first, bool adds)
{
    uint64_t seed = (uint64_t)(n + n_in);
    const int64_t n_x = TOKENS * n_in * n, n_y = TOKENS * n_out * n;
    tsr_op op = {.kind = TSR_OP_STREAM_MIX,
                 .stream_mix = {.x = fresh(n_x, -2, 2, &seed),
                                .weights = weights ? fresh(TOKENS * weights, -1, 1, &seed) : NULL,
                                .add = adds ? fresh(TOKENS * n, -2, 2, &seed) : NULL,
                                .y = fresh(n_y, 0, 0, &seed),
                                .n_tokens = TOKENS,
                                .n = n,
                                .n_in = n_in,
                                .n_out = n_out,
                                .n_weights = weights,
                                .first = first,
                                .add_first = add_first}};
    tsr_op_stream_mix *a = &op.stream_mix;
    float *again = fresh(n_y, 0, 0, &seed), *y = a->y;
    kernel_run(set, &op, 1);
    stream_case_check_mix(a);
    a->y = again;
    kernel_run(set, &op, 3);
    assert_memory_equal(again, y, (size_t)n_y * sizeof(float));
    drop(a->x, n_x);
    drop(y, n_y);
    drop(again, n_y);
    if (weights)
        drop(a->weights, TOKENS * weights);
    if (adds)
        drop(a->add, TOKENS * n);
}

static void sums_are_close_to_their_formula(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++) {
        check_mix(set, 64, 1, 4, 0, 0, 0, false);
        check_mix(set, 100, 4, 1, 24, 0, 0, false);
        check_mix(set, 33, 4, 4, 24, 8, 4, true);
        check_mix(set, 5, 8, 8, 80, 16, 8, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_close_to_their_formula),
        cmocka_unit_test(sums_are_close_to_their_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
