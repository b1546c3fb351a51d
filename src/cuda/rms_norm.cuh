/* The root-mean-square norm of one row, for kernels of TSR_ROW_THREADS threads per row. */
#ifndef TSR_CUDA_RMS_NORM_CUH
#define TSR_CUDA_RMS_NORM_CUH

#include "cuda/common.cuh"

/* 1 / sqrt(mean of squares + eps) of a row of n. `squares`: the thread's share, elements threadIdx.x,
 * threadIdx.x + TSR_ROW_THREADS, ... fused in this order. `shared`: TSR_ROW_WARPS floats. */
TSR_DEVICE float tsr_rms_scale(float squares, int64_t n, float eps, float *shared)
{
    const float sum = tsr_block_sum(squares, shared);
    return 1.0f / sqrtf(sum / (float)n + eps);
}

/* weight may be NULL. */
TSR_DEVICE void tsr_rms_apply(const float *x, const float *weight, float scale, float *y, int64_t n)
{
    for (int64_t i = threadIdx.x; i < n; i += TSR_ROW_THREADS)
        y[i] = weight ? x[i] * scale * weight[i] : x[i] * scale;
}

#endif
