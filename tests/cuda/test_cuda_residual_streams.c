/* stream_weights and stream_mix on a GPU, against double precision (support/stream_case.h). */
#include "gpu_run.h"

#include "support/stream_case.h"

enum { TOKENS = 5 };

static void check_weights(gpu *g, int64_t n, bool mixes, int64_t iterations)
{
    const int64_t width = mixes ? (2 + n) * n : n;
    float *x, *scale, *base, *y = malloc((size_t)(TOKENS * width) * sizeof *y);
    tsr_op op = {.kind = TSR_OP_STREAM_WEIGHTS,
                 .stream_weights = {.x = gpu_random(g, TOKENS * width, -6, 6, 1, &x),
                                    .scale = gpu_random(g, mixes ? 3 : 1, 0.5f, 2, 2, &scale),
                                    .base = gpu_random(g, width, -1, 1, 3, &base),
                                    .n_tokens = TOKENS,
                                    .n = n,
                                    .mixes = mixes,
                                    .iterations = iterations,
                                    .eps = 1e-6f}};
    op.stream_weights.y = (float *)(uintptr_t)op.stream_weights.x; /* in place */
    assert_int_equal(tsr_cuda_op_check(&op), TSR_OK);
    assert_false(gpu_run(g, &op));
    gpu_get(y, op.stream_weights.y, (size_t)(TOKENS * width) * sizeof *y);
    op.stream_weights.x = x, op.stream_weights.scale = scale, op.stream_weights.base = base;
    op.stream_weights.y = y;
    stream_case_check_weights(&op.stream_weights);
    free(x), free(scale), free(base), free(y);
    gpu_clear(g);
}

static void weights_are_close_to_their_formula(void **state)
{
    (void)state;
    gpu g = gpu_open();
    check_weights(&g, 4, true, 20);
    check_weights(&g, 4, false, 20);
    check_weights(&g, 1, true, 1);
    check_weights(&g, 8, true, 3);
    check_weights(&g, 3, true, 2);
    gpu_close(&g);
}

/* weights 0: one stream is copied. */
static void check_mix(gpu *g, int64_t n, int64_t n_in, int64_t n_out, int64_t weights, int64_t first,
                      int64_t add_first, bool adds)
{
    const int64_t n_y = TOKENS * n_out * n;
    float *x, *w = NULL, *add = NULL, *y = malloc((size_t)n_y * sizeof *y);
    tsr_op op = {.kind = TSR_OP_STREAM_MIX,
                 .stream_mix = {.x = gpu_random(g, TOKENS * n_in * n, -2, 2, 1, &x),
                                .weights = weights ? gpu_random(g, TOKENS * weights, -1, 1, 2, &w) : NULL,
                                .add = adds ? gpu_random(g, TOKENS * n, -2, 2, 3, &add) : NULL,
                                .y = gpu_alloc(g, (size_t)n_y * sizeof *y, false),
                                .n_tokens = TOKENS,
                                .n = n,
                                .n_in = n_in,
                                .n_out = n_out,
                                .n_weights = weights,
                                .first = first,
                                .add_first = add_first}};
    assert_int_equal(tsr_cuda_op_check(&op), TSR_OK);
    assert_false(gpu_run(g, &op));
    gpu_get(y, op.stream_mix.y, (size_t)n_y * sizeof *y);
    op.stream_mix.x = x, op.stream_mix.weights = w, op.stream_mix.add = add;
    op.stream_mix.y = y;
    stream_case_check_mix(&op.stream_mix);
    free(x), free(w), free(add), free(y);
    gpu_clear(g);
}

static void sums_are_close_to_their_formula(void **state)
{
    (void)state;
    gpu g = gpu_open();
    check_mix(&g, 64, 1, 4, 0, 0, 0, false);
    check_mix(&g, 130, 4, 1, 24, 0, 0, false);
    check_mix(&g, 33, 4, 4, 24, 8, 4, true);
    check_mix(&g, 5, 8, 8, 80, 16, 8, true);
    check_mix(&g, 65537, 1, 1, 1, 0, 0, false); /* more elements than a grid has blocks along a side */
    gpu_close(&g);
}

static void longer_streams_than_a_grid_has_room_for_are_refused(void **state)
{
    (void)state;
    tsr_op op = {.kind = TSR_OP_STREAM_MIX, .stream_mix = {.n = (int64_t)65535 * 128, .n_in = 1, .n_out = 1}};
    assert_int_equal(tsr_cuda_op_check(&op), TSR_OK);
    op.stream_mix.n++;
    assert_int_equal(tsr_cuda_op_check(&op), TSR_ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_close_to_their_formula),
        cmocka_unit_test(sums_are_close_to_their_formula),
        cmocka_unit_test(longer_streams_than_a_grid_has_room_for_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
