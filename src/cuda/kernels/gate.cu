/* y[r][i] = x[r][i] / (1 + e^-gate[r]), one thread per element. */
#include "cuda/kernels/common.cuh"

static __global__ void gate_kernel(const tsr_op_gate op)
{
    tsr_begin_early();
    for (int64_t i = tsr_flat_begin(); i < op.n * op.n_rows; i += tsr_flat_step())
        op.y[i] = op.x[i] * (1.0f / (1.0f + expf(-op.gate[i / op.n])));
}

extern "C" tsr_status tsr_cuda_gate(const tsr_op_gate *op, const tsr_cuda_stream *s)
{
    const int64_t n = op->n * op->n_rows;
    if (n == 0)
        return TSR_OK;
    return tsr_cuda_result(
        TSR_LAUNCH_EARLY(gate_kernel, tsr_flat_grid(n, s), dim3(TSR_FLAT_THREADS), 0, s, *op), "gate_kernel");
}
