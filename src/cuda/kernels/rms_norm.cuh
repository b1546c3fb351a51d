/* The norm of one row, for kernels of TSR_ROW_THREADS threads per row: by the root of the mean square or,
 * with the mean subtracted first, LayerNorm. A thread reads elements threadIdx.x, threadIdx.x +
 * TSR_ROW_THREADS, ... in this order and no others, so it may have written them itself just before. */
#ifndef TSR_CUDA_KERNELS_RMS_NORM_CUH
#define TSR_CUDA_KERNELS_RMS_NORM_CUH

#include "cuda/kernels/common.cuh"

/* A thread's sum in its first pass, from 0: of squares, or of elements for their mean. */
TSR_DEVICE float tsr_norm_add(const tsr_op_rms_norm &norm, float value, float sum)
{
    return norm.center ? sum + value : fmaf(value, value, sum);
}

/* 1 / sqrt(mean of squares + eps) of a row of n. `squares`: the thread's share. `shared`: TSR_ROW_WARPS
 * floats. */
TSR_DEVICE float tsr_rms_scale(float squares, int64_t n, float eps, float *shared)
{
    const float sum = tsr_block_sum(squares, shared);
    return 1.0f / sqrtf(sum / (float)n + eps);
}

/* weight may be NULL. */
TSR_DEVICE void tsr_rms_apply(const tsr_op_rms_norm &norm, const float *x, float scale, float *y)
{
    for (int64_t i = threadIdx.x; i < norm.n; i += TSR_ROW_THREADS) {
        const float value = norm.weight ? x[i] * scale * norm.weight[i] : x[i] * scale;
        y[i] = norm.bias ? value + norm.bias[i] : value;
    }
}

TSR_DEVICE void tsr_center_apply(const tsr_op_rms_norm &norm, const float *x, float mean, float scale,
                                 float *y)
{
    for (int64_t i = threadIdx.x; i < norm.n; i += TSR_ROW_THREADS) {
        const float value = (x[i] - mean) * scale, weighted = norm.weight ? value * norm.weight[i] : value;
        y[i] = norm.bias ? weighted + norm.bias[i] : weighted;
    }
}

/* Normalise the row x. `sum`: the thread's part of the row's sum by tsr_norm_add(). x may equal y. */
TSR_DEVICE void tsr_norm_row(const tsr_op_rms_norm &norm, const float *x, float sum, float *y, float *shared)
{
    if (!norm.center) {
        tsr_rms_apply(norm, x, tsr_rms_scale(sum, norm.n, norm.eps, shared), y);
        return;
    }
    const float mean = tsr_block_sum(sum, shared) / (float)norm.n;
    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < norm.n; i += TSR_ROW_THREADS)
        squares = fmaf(x[i] - mean, x[i] - mean, squares);
    tsr_center_apply(norm, x, mean, tsr_rms_scale(squares, norm.n, norm.eps, shared), y);
}

#endif
