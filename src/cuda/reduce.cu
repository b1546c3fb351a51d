/* Sums of several ranks' partials, [n] each, one thread per element: to f32 with a residual, or in their own
 * type. The pointers travel in the kernel's parameters. */
#include "cuda/common.cuh"

template <typename Partial> TSR_DEVICE Partial sum_of_parts(const tsr_cuda_reduction &reduction, int64_t i)
{
    Partial sum = 0;
    for (int j = 0; j < reduction.n_parts; j++) {
        const Partial part = static_cast<const Partial *>(reduction.parts[j])[i];
        sum = j == 0 ? part : sum + part;
    }
    return sum;
}

TSR_DEVICE float to_f32(int64_t sum)
{
    return tsr_fixed_value(sum);
}

TSR_DEVICE float to_f32(float sum)
{
    return sum;
}

template <typename Partial> __global__ void reduce_kernel(const tsr_cuda_reduction reduction)
{
    for (int64_t i = tsr_flat_begin(); i < reduction.n; i += tsr_flat_step()) {
        const float value = to_f32(sum_of_parts<Partial>(reduction, i));
        reduction.y[i] = reduction.residual ? value + reduction.residual[i] : value;
    }
}

template <typename Partial>
__global__ void reduce_parts_kernel(const tsr_cuda_reduction reduction, Partial *sum)
{
    for (int64_t i = tsr_flat_begin(); i < reduction.n; i += tsr_flat_step())
        sum[i] = sum_of_parts<Partial>(reduction, i);
}

extern "C" tsr_status tsr_cuda_reduce(const tsr_cuda_reduction *reduction, const tsr_cuda_stream *s)
{
    if (reduction->n == 0)
        return TSR_OK;
    const dim3 grid = tsr_flat_grid(reduction->n, s), block(TSR_FLAT_THREADS);
    return tsr_cuda_result(reduction->type == TSR_REDUCE_EXACT
                               ? TSR_LAUNCH((reduce_kernel<int64_t>), grid, block, 0, s->stream, *reduction)
                               : TSR_LAUNCH((reduce_kernel<float>), grid, block, 0, s->stream, *reduction),
                           "reduce_kernel");
}

extern "C" tsr_status tsr_cuda_reduce_parts(const tsr_cuda_reduction *reduction, void *sum,
                                            const tsr_cuda_stream *s)
{
    if (reduction->n == 0)
        return TSR_OK;
    const dim3 grid = tsr_flat_grid(reduction->n, s), block(TSR_FLAT_THREADS);
    return tsr_cuda_result(reduction->type == TSR_REDUCE_EXACT
                               ? TSR_LAUNCH((reduce_parts_kernel<int64_t>), grid, block, 0, s->stream,
                                            *reduction, static_cast<int64_t *>(sum))
                               : TSR_LAUNCH((reduce_parts_kernel<float>), grid, block, 0, s->stream,
                                            *reduction, static_cast<float *>(sum)),
                           "reduce_parts_kernel");
}
