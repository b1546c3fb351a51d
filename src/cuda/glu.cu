/* y[i] = act(gate[i]) * up[i], one thread per element. */
#include "cuda/glu.cuh"

template <tsr_glu_kind KIND>
__global__ void glu_kernel(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = tsr_flat_begin(); i < n; i += tsr_flat_step())
        y[i] = tsr_glu_activation(KIND, gate[i]) * up[i];
}

extern "C" tsr_status tsr_cuda_glu(const tsr_op_glu *op, const tsr_cuda_stream *s)
{
    if (op->n == 0)
        return TSR_OK;
    const dim3 grid = tsr_flat_grid(op->n, s), block(TSR_FLAT_THREADS);
    if (op->kind == TSR_GLU_SILU)
        return tsr_cuda_result(
            TSR_LAUNCH((glu_kernel<TSR_GLU_SILU>), grid, block, 0, s->stream, op->gate, op->up, op->y, op->n),
            "glu_kernel");
    return tsr_cuda_result(TSR_LAUNCH((glu_kernel<TSR_GLU_GELU_TANH>), grid, block, 0, s->stream, op->gate,
                                      op->up, op->y, op->n),
                           "glu_kernel");
}
