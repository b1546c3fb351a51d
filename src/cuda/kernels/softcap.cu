/* y[i] = cap * tanh(x[i] / cap), one thread per element. */
#include "cuda/kernels/common.cuh"

static __global__ void softcap_kernel(const float *x, float *y, int64_t n, float cap)
{
    tsr_begin_early();
    for (int64_t i = tsr_flat_begin(); i < n; i += tsr_flat_step())
        y[i] = cap * tanhf(x[i] / cap);
}

extern "C" tsr_status tsr_cuda_softcap(const tsr_op_softcap *op, const tsr_cuda_stream *s)
{
    if (op->n == 0)
        return TSR_OK;
    return tsr_cuda_result(TSR_LAUNCH_EARLY(softcap_kernel, tsr_flat_grid(op->n, s), dim3(TSR_FLAT_THREADS),
                                            0, s, op->x, op->y, op->n, op->cap),
                           "softcap_kernel");
}
