/* y[i] = act(gate[i]) * up[i], one thread per element. */
#include "cuda/kernels/glu.cuh"

template <tsr_glu_kind KIND>
static __global__ void glu_kernel(const float *gate, const float *up, float *y, int64_t n, float limit)
{
    tsr_begin_early();
    for (int64_t i = tsr_flat_begin(); i < n; i += tsr_flat_step())
        y[i] = tsr_glu_activation(KIND, gate[i], limit) * tsr_glu_factor(KIND, up[i], limit);
}

template <tsr_glu_kind KIND> static tsr_status launch(const tsr_op_glu *op, const tsr_cuda_stream *s)
{
    return tsr_cuda_result(TSR_LAUNCH_EARLY((glu_kernel<KIND>), tsr_flat_grid(op->n, s),
                                            dim3(TSR_FLAT_THREADS), 0, s, op->gate, op->up, op->y, op->n,
                                            op->limit),
                           "glu_kernel");
}

extern "C" tsr_status tsr_cuda_glu(const tsr_op_glu *op, const tsr_cuda_stream *s)
{
    if (op->n == 0)
        return TSR_OK;
    switch (op->kind) {
    case TSR_GLU_SILU:
        return launch<TSR_GLU_SILU>(op, s);
    case TSR_GLU_GELU_TANH:
        return launch<TSR_GLU_GELU_TANH>(op, s);
    case TSR_GLU_CLAMPED:
        return launch<TSR_GLU_CLAMPED>(op, s);
    case TSR_GLU_GELU_GATE:
        return launch<TSR_GLU_GELU_GATE>(op, s);
    case TSR_GLU_RELU:
        return launch<TSR_GLU_RELU>(op, s);
    case TSR_GLU_SIGMOID:
        return launch<TSR_GLU_SIGMOID>(op, s);
    case TSR_GLU_CAPPED:
        return launch<TSR_GLU_CAPPED>(op, s);
    case TSR_GLU_PLAIN:
        return launch<TSR_GLU_PLAIN>(op, s);
    case TSR_GLU_BOUNDED:
        return launch<TSR_GLU_BOUNDED>(op, s);
    }
    return tsr_cuda_result(cudaErrorNotSupported, "glu_kernel");
}
