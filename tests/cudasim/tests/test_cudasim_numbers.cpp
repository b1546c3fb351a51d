/* Results whose last places NVIDIA leaves open: rounded, or others where a test asks for them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

extern "C" {
#include <cmocka.h>
}

#pragma GCC diagnostic ignored \
    "-Wshadow" /* as for all kernels: a parameter may be named like the type half */
#include "cuda/api/launch.h"
#include "cuda/kernels/mul_mat/mma.cuh"
#include "cudasim.h"

#define OK(call) assert_int_equal(call, cudaSuccess)

enum { N = 4096 };

static void machine(uint64_t last_places)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.last_places = last_places;
    cudasim_configure(&config);
}

__global__ void functions(float *out)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    const float x = -4.0f + (float)i * (8.0f / N);
    out[i] = expf(x);
    out[N + i] = tanhf(x);
    out[2 * N + i] = 1.0f / sqrtf(x + 5.0f);
}

static void run(uint64_t last_places, float *out)
{
    float *gpu;
    machine(last_places);
    OK(cudaMalloc((void **)&gpu, 3 * N * sizeof *gpu));
    OK(TSR_LAUNCH(functions, N / 256, 256, 0, 0, gpu));
    OK(cudaMemcpy(out, gpu, 3 * N * sizeof *gpu, cudaMemcpyDeviceToHost));
    OK(cudaFree(gpu));
}

static int ulps(float a, float b)
{
    return abs((int)cudasim_bits<int32_t>(a) - (int)cudasim_bits<int32_t>(b));
}

static void approximations_have_other_last_places(void **)
{
    static float rounded[3 * N], first[3 * N], again[3 * N], second[3 * N];
    int n_first = 0, n_second = 0;
    run(0, rounded);
    run(1, first);
    run(1, again);
    run(2, second);
    for (int i = 0; i < 2 * N; i++) {
        assert_true(ulps(rounded[i], first[i]) <= 3);
        n_first += first[i] != rounded[i];
        n_second += second[i] != first[i];
    }
    assert_in_range(n_first, N / 4, 2 * N);
    assert_in_range(n_second, N / 4, 2 * N);
    assert_memory_equal(first, again, sizeof first);
    assert_memory_equal(first + 2 * N, rounded + 2 * N, N * sizeof(float)); /* IEEE 754 has the last word */
    assert_true(first[N / 2] == 1.0f && first[N + N / 2] == 0.0f);          /* what is exact stays */
}

__global__ void add_products(float *out, float start, uint16_t factor)
{
    const uint32_t a = 0x3c00u | 0x3c00u << 16, b = factor | (uint32_t)factor << 16; /* ones */
    float c[4] = {start, start, start, start};
    const uint32_t row[4] = {a, a, a, a};
    tsr_mma_16x8x16<TSR_TYPE_F16>(c, row, b, b);
    for (int i = 0; i < 4; i++)
        out[4 * threadIdx.x + i] = c[i];
}

static void check_sums(uint64_t last_places, float start, uint16_t factor, float expected)
{
    float *gpu, out[4 * 32];
    machine(last_places);
    OK(cudaMalloc((void **)&gpu, sizeof out));
    OK(TSR_LAUNCH(add_products, 1, 32, 0, 0, gpu, start, factor));
    OK(cudaMemcpy(out, gpu, sizeof out, cudaMemcpyDeviceToHost));
    for (float sum : out)
        if (sum != expected)
            fail_msg("%a, not %a", (double)sum, (double)expected);
    OK(cudaFree(gpu));
}

/* start + 16 f with f = 2^-24 or -2^-24: 4 leaves no place for it, and 1 does. */
static void tensor_cores_cut_off_what_is_small(void **)
{
    check_sums(0, 4.0f, 0x0001, 4.0f + 0x1p-20f);
    check_sums(0, 4.0f, 0x8001, 4.0f - 0x1p-20f);
    check_sums(1, 4.0f, 0x0001, 4.0f);
    check_sums(1, 4.0f, 0x8001, 4.0f);
    check_sums(1, 1.0f, 0x0001, 1.0f + 0x1p-20f);
    check_sums(1, 1.0f, 0x8001, 1.0f - 0x1p-20f);
    check_sums(1, 1.0f, 0x3800, 9.0f);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(approximations_have_other_last_places),
        cmocka_unit_test(tensor_cores_cut_off_what_is_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
