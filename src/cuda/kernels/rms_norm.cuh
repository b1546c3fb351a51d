/* The norm of one row, for kernels of TSR_ROW_THREADS threads per row: by the root of the mean square or,
 * with the mean subtracted first, LayerNorm. A thread reads elements threadIdx.x, threadIdx.x +
 * TSR_ROW_THREADS, ... in this order and no others, so it may have written them itself just before.
 *
 * A row is one block's work and takes as long as its loads take one after another, so a thread loads
 * TSR_ROW_BATCH elements before it stores one: the compiler may not move a load before a store. */
#ifndef TSR_CUDA_KERNELS_RMS_NORM_CUH
#define TSR_CUDA_KERNELS_RMS_NORM_CUH

#include "cuda/kernels/common.cuh"

enum { TSR_ROW_BATCH = 8, TSR_ROW_STEP = TSR_ROW_BATCH * TSR_ROW_THREADS };

/* A thread's elements of a row from its element `first` on; zeros behind the row's end. */
struct tsr_row_batch {
    float at[TSR_ROW_BATCH];
};

TSR_DEVICE tsr_row_batch tsr_row_load(const float *x, int64_t first, int64_t n)
{
    tsr_row_batch batch;
    TSR_UNROLL
    for (int j = 0; j < TSR_ROW_BATCH; j++)
        batch.at[j] = first + j * TSR_ROW_THREADS < n ? x[first + j * TSR_ROW_THREADS] : 0.0f;
    return batch;
}

/* A thread's sum in its first pass, from 0: of squares, or of elements for their mean. */
TSR_DEVICE float tsr_norm_add(const tsr_op_rms_norm &norm, float value, float sum)
{
    return norm.center ? sum + value : fmaf(value, value, sum);
}

/* 1 / sqrt(mean of squares + eps) of a row of n with this sum of squares. */
TSR_DEVICE float tsr_rms_scale_of(float sum, int64_t n, float eps)
{
    return 1.0f / sqrtf(sum / (float)n + eps);
}

/* The same; `squares`: the thread's share. `shared`: TSR_ROW_WARPS floats. */
TSR_DEVICE float tsr_rms_scale(float squares, int64_t n, float eps, float *shared)
{
    return tsr_rms_scale_of(tsr_block_sum(squares, shared), n, eps);
}

/* The scales of the rows of x, [n_rows][n], by a block of any number of warps, with the same bits: a warp
 * adds the strands of several of TSR_ROW_WARPS. `shared`: TSR_ROW_WARPS floats for each row. */
TSR_DEVICE void tsr_rms_scales(const float *x, int64_t n, int n_rows, float eps, float *shared, float *scales)
{
    const int warps = blockDim.x / TSR_WARP, warp = threadIdx.x / TSR_WARP, lane = threadIdx.x % TSR_WARP;
    for (int i = warp; i < n_rows * TSR_ROW_WARPS; i += warps) {
        const float *row = x + i / TSR_ROW_WARPS * n;
        float sum = 0.0f;
        TSR_UNROLL_BY(8)
        for (int64_t at = i % TSR_ROW_WARPS * TSR_WARP + lane; at < n; at += TSR_ROW_THREADS)
            sum = fmaf(row[at], row[at], sum);
        sum = tsr_warp_sum(sum);
        if (lane == 0)
            shared[i] = sum;
    }
    __syncthreads();
    for (int r = warp; r < n_rows; r += warps) {
        float sum = shared[r * TSR_ROW_WARPS + lane % TSR_ROW_WARPS];
        TSR_UNROLL
        for (int mask = 1; mask < TSR_ROW_WARPS; mask *= 2)
            sum = sum + __shfl_xor_sync(TSR_ALL_LANES, sum, mask);
        if (lane == 0)
            scales[r] = tsr_rms_scale_of(sum, n, eps);
    }
    __syncthreads();
}

/* (x - mean) * scale, times the weight and plus the bias if the norm has them; x - 0 is x. */
TSR_DEVICE void tsr_norm_apply(const tsr_op_rms_norm &norm, const float *x, float mean, float scale, float *y)
{
    for (int64_t first = threadIdx.x; first < norm.n; first += TSR_ROW_STEP) {
        tsr_row_batch value = tsr_row_load(x, first, norm.n), weight = {}, bias = {};
        if (norm.weight)
            weight = tsr_row_load(norm.weight, first, norm.n);
        if (norm.bias)
            bias = tsr_row_load(norm.bias, first, norm.n);
        TSR_UNROLL
        for (int j = 0; j < TSR_ROW_BATCH; j++) {
            float result = (value.at[j] - mean) * scale;
            if (norm.weight)
                result = result * weight.at[j];
            if (norm.bias)
                result = result + bias.at[j];
            if (first + j * TSR_ROW_THREADS < norm.n)
                y[first + j * TSR_ROW_THREADS] = result;
        }
    }
}

/* Normalise the row x. `sum`: the thread's part of the row's sum by tsr_norm_add(). x may equal y. */
TSR_DEVICE void tsr_norm_row(const tsr_op_rms_norm &norm, const float *x, float sum, float *y, float *shared)
{
    if (!norm.center) {
        tsr_norm_apply(norm, x, 0.0f, tsr_rms_scale(sum, norm.n, norm.eps, shared), y);
        return;
    }
    const float mean = tsr_block_sum(sum, shared) / (float)norm.n;
    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < norm.n; i += TSR_ROW_THREADS)
        squares = fmaf(x[i] - mean, x[i] - mean, squares);
    tsr_norm_apply(norm, x, mean, tsr_rms_scale(squares, norm.n, norm.eps, shared), y);
}

#endif
