/* Keys and values [n_tokens][kv.n_heads][kv.head_dim] of a batch, converted, to their places in the paged
 * cache: one warp per 32 elements, keys and values in one launch. */
#include "cuda/kernels/encode.cuh"
#include "cuda/kernels/kv.cuh"

static __global__ void kv_write_kernel(const tsr_op_kv_write op)
{
    const tsr_kv_view &kv = op.kv;
    const int lane = threadIdx.x % TSR_WARP;
    const int64_t groups = (kv.head_dim + TSR_ENCODE_GROUP - 1) / TSR_ENCODE_GROUP;
    const int64_t total = op.n_tokens * kv.n_heads * groups * 2;
    for (int64_t i = tsr_flat_begin() / TSR_WARP; i < total; i += tsr_flat_step() / TSR_WARP) {
        const bool is_value = i % 2 != 0;
        const int64_t group = i / 2 % groups, row = i / 2 / groups; /* row: token and head */
        const int64_t t = row / kv.n_heads, left = kv.head_dim - group * TSR_ENCODE_GROUP;
        const tsr_kv_place place =
            tsr_kv_find(kv, op.index, op.index.seq_row[t], op.index.position[t], row % kv.n_heads);
        if (is_value)
            tsr_encode_group(kv.type_v, op.v + row * kv.head_dim, tsr_kv_value(kv, place), group, left, lane);
        else
            tsr_encode_group(kv.type_k, op.k + row * kv.head_dim, tsr_kv_key(kv, place), group, left, lane);
    }
}

extern "C" tsr_status tsr_cuda_kv_write(const tsr_op_kv_write *op, const tsr_cuda_stream *s)
{
    const int64_t groups = (op->kv.head_dim + TSR_ENCODE_GROUP - 1) / TSR_ENCODE_GROUP;
    const int64_t warps = op->n_tokens * op->kv.n_heads * groups * 2;
    if (warps == 0)
        return TSR_OK;
    return tsr_cuda_result(TSR_LAUNCH(kv_write_kernel, tsr_flat_grid(warps * TSR_WARP, s),
                                      dim3(TSR_FLAT_THREADS), 0, s->stream, *op),
                           "kv_write_kernel");
}
