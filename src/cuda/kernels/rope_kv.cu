/* The rotary embedding of a batch's queries and keys, and the write of keys and values to the cache, in one
 * launch: a decode step consists of launches that each take longer to start than to run.
 *
 * A warp takes 32 items of the queries, or 32 elements of a value, or as many elements of a key as contain
 * both elements of 32 pairs: of interleaved pairs those are 32 elements, otherwise two groups of 32
 * (tsr_cuda_fuse_rope_kv). So it reads everything that it overwrites where keys are rotated in place. Same
 * bits as the three separate ops. */
#include "cuda/kernels/encode.cuh"
#include "cuda/kernels/kv.cuh"
#include "cuda/kernels/rope.cuh"

struct rope_kv_args {
    tsr_op_rope q, k;
    tsr_op_kv_write write;
    int64_t q_items, q_warps; /* 0: no queries */
    int64_t k_warps, v_warps; /* per token and KV head */
};

/* Elements j and j + half of a head, 32 of each. */
TSR_DEVICE void write_two_groups(const rope_kv_args &a, const float *x, float *y, const float *table,
                                 unsigned char *key, int64_t group, int lane)
{
    const int64_t half = a.k.n_rot / 2, j = group * TSR_ENCODE_GROUP + lane;
    const float first = x[j], second = x[j + half];
    const float turned = tsr_rope_first(first, second, table + 2 * j);
    const float turned_too = tsr_rope_second(first, second, table + 2 * j);
    y[j] = turned;
    y[j + half] = turned_too;
    tsr_encode_value(a.write.kv.type_k, turned, true, key, group, lane);
    tsr_encode_value(a.write.kv.type_k, turned_too, true, key, group + half / TSR_ENCODE_GROUP, lane);
}

/* 32 elements, of which the first n_rot of a head are interleaved pairs and the rest is copied. */
TSR_DEVICE void write_group(const rope_kv_args &a, const float *x, float *y, const float *table,
                            int64_t n_rot, unsigned char *key, int64_t group, int lane)
{
    const int64_t at = group * TSR_ENCODE_GROUP + lane;
    const bool here = at < a.k.head_dim;
    float value = here ? x[at] : 0.0f;
    const float other = __shfl_xor_sync(TSR_ALL_LANES, value, 1);
    if (at < n_rot)
        value = at % 2 == 0 ? tsr_rope_first(value, other, table + at)
                            : tsr_rope_second(other, value, table + at - 1);
    if (here)
        y[at] = value;
    tsr_encode_value(a.write.kv.type_k, value, here, key, group, lane);
}

TSR_DEVICE void write_key(const rope_kv_args &a, int64_t row, int64_t warp, unsigned char *key, int lane)
{
    const int64_t pairs = a.k.interleaved ? 0 : a.k.n_rot / 2 / TSR_ENCODE_GROUP; /* of groups */
    const float *x = a.k.x + row * a.k.head_dim,
                *table = a.k.table + tsr_divide(row, a.k.n_heads).of * a.k.n_rot;
    float *y = a.k.y + row * a.k.head_dim;
    if (warp < pairs)
        write_two_groups(a, x, y, table, key, warp, lane);
    else
        write_group(a, x, y, table, a.k.interleaved ? a.k.n_rot : 0, key, warp + pairs, lane);
}

static __global__ void rope_kv_kernel(const rope_kv_args a)
{
    const tsr_kv_view &kv = a.write.kv;
    const tsr_kv_index &index = a.write.index;
    const int lane = threadIdx.x % TSR_WARP;
    const int64_t per_row = a.k_warps + a.v_warps;
    const int64_t total = a.q_warps + a.write.n_tokens * kv.n_heads * per_row;
    tsr_begin_early();
    for (int64_t i = tsr_flat_begin() / TSR_WARP; i < total; i += tsr_flat_step() / TSR_WARP) {
        if (i < a.q_warps) {
            if (i * TSR_WARP + lane < a.q_items)
                tsr_rope_item(a.q, i * TSR_WARP + lane);
            continue;
        }
        const tsr_quotient at = tsr_divide(i - a.q_warps, per_row), token = tsr_divide(at.of, kv.n_heads);
        const int64_t row = at.of, warp = at.rest, group = warp - a.k_warps; /* row: token and head */
        const tsr_kv_place place =
            tsr_kv_find(kv, index, index.seq_row[token.of], index.position[token.of], token.rest);
        if (warp < a.k_warps)
            write_key(a, row, warp, tsr_kv_key(kv, place), lane);
        else
            tsr_encode_group(kv.type_v, a.write.v + row * kv.v_dim, tsr_kv_value(kv, place), group,
                             kv.v_dim - group * TSR_ENCODE_GROUP, lane);
    }
}

extern "C" tsr_status tsr_cuda_rope_kv(const tsr_op_rope *q, const tsr_op_rope *k,
                                       const tsr_op_kv_write *write, const tsr_cuda_stream *s)
{
    rope_kv_args a = {};
    const int64_t groups = (k->head_dim + TSR_ENCODE_GROUP - 1) / TSR_ENCODE_GROUP;
    a.k = *k;
    a.write = *write;
    a.k_warps = groups - (k->interleaved ? 0 : k->n_rot / 2 / TSR_ENCODE_GROUP);
    a.v_warps = (write->kv.v_dim + TSR_ENCODE_GROUP - 1) / TSR_ENCODE_GROUP;
    if (q) {
        a.q = *q;
        a.q_items = q->n_tokens * q->n_heads * tsr_rope_items(q);
        a.q_warps = (a.q_items + TSR_WARP - 1) / TSR_WARP;
    }
    const int64_t warps = a.q_warps + write->n_tokens * write->kv.n_heads * (a.k_warps + a.v_warps);
    if (warps == 0)
        return TSR_OK;
    return tsr_cuda_result(
        TSR_LAUNCH_EARLY(rope_kv_kernel, tsr_flat_grid(warps * TSR_WARP, s), dim3(TSR_FLAT_THREADS), 0, s, a),
        "rope_kv_kernel");
}
