/* y[r] = softmax(scale * x[r]): one block per row of [n_rows][n]. A thread reads again only its own results,
 * so x may equal y. */
#include "cuda/kernels/common.cuh"

static __global__ void softmax_kernel(const tsr_op_softmax op)
{
    __shared__ float shared[TSR_ROW_WARPS];
    tsr_begin_early();
    for (int64_t r = blockIdx.x; r < op.n_rows; r += gridDim.x) {
        const float *x = op.x + r * op.n;
        float *y = op.y + r * op.n;
        /* of the scaled elements: with a negative scale the smallest element wins */
        float top = -INFINITY;
        for (int64_t i = threadIdx.x; i < op.n; i += TSR_ROW_THREADS) {
            const float scaled = op.scale * x[i];
            top = fmaxf(top, scaled);
            y[i] = scaled;
        }
        top = tsr_block_max(top, shared);
        float sum = 0.0f;
        for (int64_t i = threadIdx.x; i < op.n; i += TSR_ROW_THREADS) {
            const float e = expf(y[i] - top);
            sum = sum + e;
            y[i] = e;
        }
        const float inverse = 1.0f / tsr_block_sum(sum, shared);
        for (int64_t i = threadIdx.x; i < op.n; i += TSR_ROW_THREADS)
            y[i] = y[i] * inverse;
    }
}

extern "C" tsr_status tsr_cuda_softmax(const tsr_op_softmax *op, const tsr_cuda_stream *s)
{
    if (op->n_rows == 0 || op->n == 0)
        return TSR_OK;
    return tsr_cuda_result(
        TSR_LAUNCH_EARLY(softmax_kernel, tsr_row_grid(op->n_rows, s), dim3(TSR_ROW_THREADS), 0, s, *op),
        "softmax_kernel");
}
