/* rms_norm, and LayerNorm (core/op.h): one block per row of [n_rows][n]. */
#include "cuda/kernels/rms_norm.cuh"

static __global__ void rms_norm_kernel(const tsr_op_rms_norm op)
{
    __shared__ float shared[TSR_ROW_WARPS];
    for (int64_t r = blockIdx.x; r < op.n_rows; r += gridDim.x) {
        const float *x = op.x + r * op.n;
        float sum = 0.0f;
        for (int64_t i = threadIdx.x; i < op.n; i += TSR_ROW_THREADS)
            sum = tsr_norm_add(op, x[i], sum);
        tsr_norm_row(op, x, sum, op.y + r * op.n, shared);
    }
}

extern "C" tsr_status tsr_cuda_rms_norm(const tsr_op_rms_norm *op, const tsr_cuda_stream *s)
{
    if (op->n_rows == 0 || op->n == 0)
        return TSR_OK;
    return tsr_cuda_result(
        TSR_LAUNCH(rms_norm_kernel, tsr_row_grid(op->n_rows), dim3(TSR_ROW_THREADS), 0, s->stream, *op),
        "rms_norm_kernel");
}
