/* Keys and values of a batch, converted, to their places in the paged cache: one warp per 32 elements, keys
 * and values in one launch. */
#include "cuda/kernels/encode.cuh"
#include "cuda/kernels/kv.cuh"

/* Groups of a key (or value). */
static inline __host__ __device__ int64_t kv_write_groups(int64_t dim)
{
    return (dim + TSR_ENCODE_GROUP - 1) / TSR_ENCODE_GROUP;
}

/* op.kv.k_dim and k_offset are those of the elements in op.k. */
static __global__ void kv_write_kernel(const tsr_op_kv_write op)
{
    tsr_begin_early();
    const tsr_kv_view &kv = op.kv;
    const int lane = threadIdx.x % TSR_WARP;
    const int64_t k_groups = kv_write_groups(kv.k_dim), per_row = k_groups + kv_write_groups(kv.v_dim);
    const int64_t total = op.n_tokens * kv.n_heads * per_row;
    for (int64_t i = tsr_flat_begin() / TSR_WARP; i < total; i += tsr_flat_step() / TSR_WARP) {
        const int64_t row = i / per_row, nth = i % per_row, group = nth - k_groups; /* row: token and head */
        const int64_t t = row / kv.n_heads;
        const int64_t position = op.index.position[t];
        if (kv.ratio > 1 && tsr_divide(position + 1, kv.ratio).rest != 0)
            continue;
        const tsr_kv_place place =
            tsr_kv_find(kv, op.index, op.index.seq_row[t], tsr_kv_n_seen(kv, position) - 1, row % kv.n_heads);
        if (group >= 0)
            tsr_encode_group(kv.type_v, op.v + row * kv.v_dim, tsr_kv_value(kv, place), group,
                             kv.v_dim - group * TSR_ENCODE_GROUP, lane);
        else
            tsr_encode_group(kv.type_k, op.k + row * kv.k_dim, tsr_kv_key(kv, place), nth,
                             kv.k_dim - nth * TSR_ENCODE_GROUP, lane);
    }
}

extern "C" tsr_status tsr_cuda_kv_write(const tsr_op_kv_write *given, const tsr_cuda_stream *s)
{
    tsr_op_kv_write op = *given;
    op.kv.k_dim = tsr_kv_write_dim(&given->kv);
    if (op.kv.v_in_k)
        op.kv.k_offset += tsr_type_row_bytes(op.kv.type_k, op.kv.v_dim);
    const int64_t groups = kv_write_groups(op.kv.k_dim) + kv_write_groups(op.kv.v_dim);
    const int64_t warps = op.n_tokens * op.kv.n_heads * groups;
    if (warps == 0)
        return TSR_OK;
    return tsr_cuda_result(TSR_LAUNCH_EARLY(kv_write_kernel, tsr_flat_grid(warps * TSR_WARP, s),
                                            dim3(TSR_FLAT_THREADS), 0, s, op),
                           "kv_write_kernel");
}
