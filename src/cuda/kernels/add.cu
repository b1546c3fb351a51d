/* y[r][i] = a[r][i] + b[r or 0][i], one thread per element. */
#include "cuda/kernels/common.cuh"

static __global__ void add_kernel(const float *a, const float *b, float *y, int64_t n)
{
    tsr_begin_early();
    for (int64_t i = tsr_flat_begin(); i < n; i += tsr_flat_step())
        y[i] = a[i] + b[i];
}

/* b is one row of n elements. */
static __global__ void add_row_kernel(const float *a, const float *b, float *y, int64_t n, int64_t total)
{
    tsr_begin_early();
    for (int64_t i = tsr_flat_begin(); i < total; i += tsr_flat_step())
        y[i] = a[i] + b[i % n];
}

extern "C" tsr_status tsr_cuda_add(const tsr_op_add *op, const tsr_cuda_stream *s)
{
    const int64_t total = op->n * op->n_rows;
    if (total == 0)
        return TSR_OK;
    if (op->broadcast_b)
        return tsr_cuda_result(TSR_LAUNCH_EARLY(add_row_kernel, tsr_flat_grid(total, s),
                                                dim3(TSR_FLAT_THREADS), 0, s, op->a, op->b, op->y, op->n,
                                                total),
                               "add_row_kernel");
    return tsr_cuda_result(TSR_LAUNCH_EARLY(add_kernel, tsr_flat_grid(total, s), dim3(TSR_FLAT_THREADS), 0, s,
                                            op->a, op->b, op->y, total),
                           "add_kernel");
}
