/* Rotary embedding of [n_tokens][n_heads][head_dim] by a table of [n_tokens][n_rot] cosines and sines: thread
 * j of a head rotates pair j, and the threads after the pairs copy the elements that are not rotated. */
#include "cuda/kernels/rope.cuh"

static __global__ void rope_kernel(const tsr_op_rope op)
{
    tsr_begin_early();
    const int64_t total = op.n_tokens * op.n_heads * tsr_rope_items(&op);
    for (int64_t i = tsr_flat_begin(); i < total; i += tsr_flat_step())
        tsr_rope_item(op, i);
}

extern "C" tsr_status tsr_cuda_rope(const tsr_op_rope *op, const tsr_cuda_stream *s)
{
    const int64_t items = op->n_tokens * op->n_heads * tsr_rope_items(op);
    if (items == 0)
        return TSR_OK;
    return tsr_cuda_result(
        TSR_LAUNCH_EARLY(rope_kernel, tsr_flat_grid(items, s), dim3(TSR_FLAT_THREADS), 0, s, *op),
        "rope_kernel");
}
