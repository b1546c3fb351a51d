/* y[i] = factor * by[0] * x[i], one thread per element. */
#include "cuda/kernels/common.cuh"

static __global__ void scale_kernel(const float *x, float *y, int64_t n, float factor, const float *by)
{
    tsr_begin_early();
    if (by)
        factor *= by[0];
    for (int64_t i = tsr_flat_begin(); i < n; i += tsr_flat_step())
        y[i] = factor * x[i];
}

extern "C" tsr_status tsr_cuda_scale(const tsr_op_scale *op, const tsr_cuda_stream *s)
{
    if (op->n == 0)
        return TSR_OK;
    return tsr_cuda_result(TSR_LAUNCH_EARLY(scale_kernel, tsr_flat_grid(op->n, s), dim3(TSR_FLAT_THREADS), 0,
                                            s, op->x, op->y, op->n, op->factor, op->by),
                           "scale_kernel");
}
