/* Sums of partials whose result or residual is not aligned as wide accesses need it: the same values as with
 * aligned ones. Misaligned accesses themselves are found by the executor for PTX and by sanitizers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/quant/fixed.h"
#include "cuda/gpu_run.h"

enum { N = 64 }; /* as many as packs of every type divide */

static void results_need_no_alignment(void **state)
{
    (void)state;
    int64_t part[N];
    float residual[N + 1], y[N];
    gpu g = gpu_open();
    const tsr_cuda_stream s = gpu_stream(&g, NULL);
    for (int i = 0; i < N; i++)
        part[i] = (int64_t)(i - 9) * TSR_FIXED_ONE;
    for (int i = 0; i <= N; i++)
        residual[i] = (float)i;
    for (int shift = 0; shift < 4; shift++) { /* floats of y, of the residual */
        float *there = gpu_alloc(&g, sizeof residual, true);
        const float *added = gpu_put(&g, residual, sizeof residual, true);
        const tsr_cuda_reduction reduction = {.type = TSR_REDUCE_EXACT,
                                              .n_parts = 1,
                                              .parts = {gpu_put(&g, part, sizeof part, true)},
                                              .residual = added + shift / 2,
                                              .y = there + shift % 2,
                                              .n = N};
        assert_int_equal(tsr_cuda_reduce(&reduction, NULL, &s), TSR_OK);
        GPU_OK(cudaStreamSynchronize(g.stream));
        gpu_get(y, there + shift % 2, sizeof y);
        for (int i = 0; i < N; i++)
            assert_true(y[i] == (float)(i - 9) + residual[i + shift / 2]);
        gpu_clear(&g);
    }
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(results_need_no_alignment)};
    return cmocka_run_group_tests_name("alignment of sums", tests, NULL, NULL);
}
