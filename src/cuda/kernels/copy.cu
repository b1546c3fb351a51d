/* n_rows rows of n f32 elements, x_stride apart, to rows of dst_type, y_stride bytes apart: one warp per 32
 * elements. */
#include "cuda/kernels/encode.cuh"

static __global__ void copy_kernel(const tsr_op_copy op)
{
    tsr_begin_early();
    const int lane = threadIdx.x % TSR_WARP;
    const int64_t groups = (op.n + TSR_ENCODE_GROUP - 1) / TSR_ENCODE_GROUP;
    for (int64_t i = tsr_flat_begin() / TSR_WARP; i < groups * op.n_rows; i += tsr_flat_step() / TSR_WARP) {
        const int64_t r = i / groups, group = i % groups;
        tsr_encode_group(op.dst_type, op.x + r * op.x_stride,
                         static_cast<unsigned char *>(op.y) + (size_t)r * op.y_stride, group,
                         op.n - group * TSR_ENCODE_GROUP, lane);
    }
}

extern "C" tsr_status tsr_cuda_copy(const tsr_op_copy *op, const tsr_cuda_stream *s)
{
    const int64_t groups = (op->n + TSR_ENCODE_GROUP - 1) / TSR_ENCODE_GROUP * op->n_rows;
    if (groups == 0)
        return TSR_OK;
    return tsr_cuda_result(
        TSR_LAUNCH_EARLY(copy_kernel, tsr_flat_grid(groups * TSR_WARP, s), dim3(TSR_FLAT_THREADS), 0, s, *op),
        "copy_kernel");
}
