/* y[i] = act(gate[i]) * up[i], one thread per element. */
#include "cuda/common.cuh"

/* x / (1 + e^-x) */
TSR_DEVICE float silu(float x)
{
    return x / (1.0f + expf(-x));
}

/* x / 2 (1 + tanh u) with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + e^-2u): no cancellation. */
TSR_DEVICE float gelu_tanh(float x)
{
    const float cubic = fmaf(x * x * 0.044715f, x, x);
    return x / (1.0f + expf(cubic * (-2.0f * 0.797884561f)));
}

template <tsr_glu_kind KIND>
__global__ void glu_kernel(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = tsr_flat_begin(); i < n; i += tsr_flat_step())
        y[i] = (KIND == TSR_GLU_SILU ? silu(gate[i]) : gelu_tanh(gate[i])) * up[i];
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
