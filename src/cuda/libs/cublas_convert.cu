/* Conversions around a product by cuBLASLt (cublas.h): activations to the weights' type, and sums scaled back
 * or rounded. One block per token. */
#include "cuda/kernels/common.cuh"
#include "cuda/libs/cublas_convert.h"

/* 2^n for n in -126..127. */
TSR_DEVICE float power_of_two(int n)
{
    return tsr_bits_to_f32((uint32_t)(n + 127) << 23);
}

/* n of the factor 2^n that brings a token into the range of F16, whose normal numbers end at 2^-14 and 2^16.
 * 0 if 2^-11 of the largest activation is still a normal number, and for infinities and NaN, which stay. */
TSR_DEVICE int range_shift(float largest)
{
    if ((largest >= 0x1p-4f && largest < 0x1p15f) || !(largest < INFINITY) || largest == 0.0f)
        return 0;
    uint32_t bits;
    memcpy(&bits, &largest, sizeof bits);
    const int exponent = (int)(bits >> 23) - 127;
    return 14 - exponent < 126 ? 14 - exponent : 126;
}

template <bool F16>
static __global__ void cublas_convert_kernel(const float *x, int64_t x_stride, int64_t k, int64_t n_tokens,
                                             uint16_t *to, int64_t stride, float *scale)
{
    __shared__ float shared[TSR_ROW_WARPS];
    for (int64_t t = blockIdx.x; t < n_tokens; t += gridDim.x) {
        const float *from = x + t * x_stride;
        float factor = 1.0f;
        if (F16) {
            float largest = 0.0f;
            for (int64_t i = threadIdx.x; i < k; i += TSR_ROW_THREADS)
                largest = fmaxf(largest, fabsf(from[i]));
            const int shift = range_shift(tsr_block_max(largest, shared));
            factor = power_of_two(shift);
            if (threadIdx.x == 0)
                scale[t] = power_of_two(-shift);
        }
        for (int64_t i = threadIdx.x; i < stride; i += TSR_ROW_THREADS) {
            const float value = i < k ? from[i] * factor : 0.0f;
            to[t * stride + i] = F16 ? tsr_half_from_f32(value) : tsr_bfloat_from_f32(value);
        }
    }
}

static __global__ void cublas_finish_kernel(const float *sums, int64_t sums_stride, const float *scale,
                                            int64_t n_rows, int64_t n_tokens, void *y, int64_t y_stride,
                                            bool bf16)
{
    for (int64_t t = blockIdx.x; t < n_tokens; t += gridDim.x) {
        const float factor = scale ? scale[t] : 1.0f;
        if (factor == 1.0f && y == sums)
            continue;
        for (int64_t r = threadIdx.x; r < n_rows; r += TSR_ROW_THREADS)
            tsr_put_sum(y, t * y_stride + r, sums[t * sums_stride + r] * factor, bf16);
    }
}

extern "C" tsr_status tsr_cublas_convert(tsr_type type, const float *x, int64_t x_stride, int64_t k,
                                         int64_t n_tokens, uint16_t *to, int64_t stride, float *scale,
                                         const tsr_cuda_stream *s)
{
    const dim3 grid = tsr_row_grid(n_tokens, s), block(TSR_ROW_THREADS);
    return tsr_cuda_result(type == TSR_TYPE_F16
                               ? TSR_LAUNCH((cublas_convert_kernel<true>), grid, block, 0, s->stream, x,
                                            x_stride, k, n_tokens, to, stride, scale)
                               : TSR_LAUNCH((cublas_convert_kernel<false>), grid, block, 0, s->stream, x,
                                            x_stride, k, n_tokens, to, stride, scale),
                           "cublas_convert_kernel");
}

extern "C" tsr_status tsr_cublas_finish(const float *sums, int64_t sums_stride, const float *scale,
                                        int64_t n_rows, int64_t n_tokens, void *y, int64_t y_stride,
                                        bool bf16, const tsr_cuda_stream *s)
{
    return tsr_cuda_result(TSR_LAUNCH(cublas_finish_kernel, tsr_row_grid(n_tokens, s), dim3(TSR_ROW_THREADS),
                                      0, s->stream, sums, sums_stride, scale, n_rows, n_tokens, y, y_stride,
                                      bf16),
                           "cublas_finish_kernel");
}
