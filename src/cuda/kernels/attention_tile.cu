/* Attention of prompts: a block takes a tile of consecutive tokens of one sequence, times the query heads of
 * one KV head, 32 queries in all (slots), so that a key or value is loaded and converted once for 32. The
 * results are to the bit those of attention.cu, with the same divisions and orders of sums:
 *
 *   scores   a thread has 4 positions x 4 slots. Keys are copied to shared memory as floats, 32 elements of
 *            the head at a time; a thread adds up octets by attention.cu's binary tree over 16 lanes
 *   softmax  a warp per slot, as in attention.cu
 *   values   a thread has 4 slots x 4 elements of the head; values are loaded 32 positions at a time, and
 *            each output is one chain over the positions that its query sees
 *
 * Queries of a tile see different ranges. Products with positions that a query may not see are computed and
 * dropped by selection, never by a factor of zero, with which an infinity would give NaN. Segments that no
 * query sees are skipped. The last tiles have the most work, so they come first.
 *
 * Keys and values have the same length, at most 256; other heads take attention.cu's kernel for prompts, too.
 *
 * Per octet a thread reads 16 x 16 bytes of shared memory for 128 multiply-adds, and the lanes of a warp
 * together 4 keys and 8 queries, without bank conflicts: a quarter to half of the arithmetic's time. Heads of
 * up to 128 elements are limited to 128 registers, so that two blocks fit into an SM and one computes while
 * the other loads. None is spilled (scripts/make-kernel-resources), because the tile is described in shared
 * memory and the halves of an octet are not unrolled. Longer heads take more registers.
 * Tensor cores are faster: attention/halves_tile.cu, for F16 and BF16. */
#include "cuda/kernels/attention.cuh"

enum {
    TILE_SLOTS = 32,
    TILE_THREADS = 256,
    TILE_WARPS = TILE_THREADS / TSR_WARP,
    TILE_DIMS = 128,            /* elements of a head that its octets' 16 lanes cover */
    STAGE_DIMS = 32,            /* of a key, in shared memory per stage */
    STAGE_ROW = STAGE_DIMS + 4, /* padded: rows begin in different banks */
    STAGE_VALUES = 32,          /* positions of values, in shared memory per stage */
    SLOT_ROW = TILE_SLOTS + 4
};

/* The tile of a block. */
struct tile_item {
    int first_token, kv_head, head_dim, n_slots;
    int from, to; /* positions of the current segment that at least one slot sees */
    bool whole;   /* every slot sees all of from .. to */
};

/* PASSES x 128 elements cover a head. */
template <int PASSES> struct tile_block {
    union {
        float key[PASSES][SEGMENT][STAGE_ROW];
        float value[STAGE_VALUES][TILE_DIMS];
    };
    float key_scale[PASSES][SEGMENT];
    float weight[SEGMENT][SLOT_ROW]; /* scores, then weights */
    float q[TILE_SLOTS][PASSES * TILE_DIMS + 4];
    float group[TILE_SLOTS][PASSES * TILE_DIMS], total[TILE_SLOTS][PASSES * TILE_DIMS]; /* outputs */
    tsr_kv_place place[SEGMENT];
    attention_merge merge_group[TILE_SLOTS], merge_total[TILE_SLOTS];
    attention_range range[TILE_SLOTS], all; /* of each slot, and of all together */
    int from[TILE_SLOTS], to[TILE_SLOTS];   /* in the current segment; none where from >= to */
    tile_item item;                         /* here, because registers are scarce */
};

/* -- scores -- */

/* Load elements [32 stage, 32 stage + 32) of each 128 of the segment's keys, zeros past the head. */
template <int PASSES, tsr_type TYPE>
TSR_DEVICE void tile_keys(const attention_args &a, const tile_item &item, int stage, tile_block<PASSES> *b)
{
    constexpr int OCTETS = STAGE_DIMS / TSR_OCTET;
    TSR_UNROLL_BY(1)
    for (int i = threadIdx.x; i < PASSES * SEGMENT * OCTETS; i += TILE_THREADS) {
        const int octet = i % OCTETS, slot = i / OCTETS % SEGMENT, pass = i / OCTETS / SEGMENT;
        const int at = pass * TILE_DIMS + stage * STAGE_DIMS + octet * TSR_OCTET;
        tsr_octet o = {};
        if (slot >= item.from && slot < item.to && at < item.head_dim)
            tsr_octet_load<TYPE>(tsr_kv_key(a.op.kv, b->place[slot]), at,
                                 tsr_octet_length(item.head_dim - at), a.wide_k, &o);
        tsr_floats_4 *into = reinterpret_cast<tsr_floats_4 *>(&b->key[pass][slot][octet * TSR_OCTET]);
        into[0] = {{o.q[0], o.q[1], o.q[2], o.q[3]}};
        into[1] = {{o.q[4], o.q[5], o.q[6], o.q[7]}};
        if (octet == 0)
            b->key_scale[pass][slot] = o.scale;
    }
}

/* Add lane `lane`'s octets, of the four octets of the stage, for a thread's positions and slots:
 * tsr_octet_dot(). */
template <int PASSES>
TSR_DEVICE void tile_octet(const tile_block<PASSES> &b, int stage, int lane, int position, int slot,
                           float sums[4][4])
{
    TSR_UNROLL
    for (int pass = 0; pass < PASSES; pass++) {
        float dot[4][4];
        TSR_UNROLL
        for (int n = 0; n < 16; n++)
            dot[n / 4][n % 4] = -0.0f; /* the first fmaf() gives the product, also of a negative zero */
        TSR_UNROLL_BY(1)               /* the second half's loads must not take registers during the first */
        for (int half = 0; half < 2; half++) {
            const int at = lane * TSR_OCTET + 4 * half;
            tsr_floats_4 key[4];
            TSR_UNROLL
            for (int i = 0; i < 4; i++)
                key[i] = *reinterpret_cast<const tsr_floats_4 *>(&b.key[pass][position + 32 * i][at]);
            TSR_UNROLL
            for (int j = 0; j < 4; j++) {
                const tsr_floats_4 q = *reinterpret_cast<const tsr_floats_4 *>(
                    &b.q[slot + 8 * j][pass * TILE_DIMS + stage * STAGE_DIMS + at]);
                TSR_UNROLL
                for (int i = 0; i < 4; i++) {
                    TSR_UNROLL
                    for (int e = 0; e < 4; e++)
                        dot[i][j] = fmaf(key[i].at[e], q.at[e], dot[i][j]);
                }
            }
        }
        TSR_UNROLL
        for (int i = 0; i < 4; i++) {
            const float scale = b.key_scale[pass][position + 32 * i];
            TSR_UNROLL
            for (int j = 0; j < 4; j++)
                sums[i][j] = (pass == 0 ? 0.0f : sums[i][j]) + scale * dot[i][j];
        }
    }
}

TSR_DEVICE void add_all(float into[4][4], const float more[4][4])
{
    TSR_UNROLL
    for (int i = 0; i < 4; i++) {
        TSR_UNROLL
        for (int j = 0; j < 4; j++)
            into[i][j] = into[i][j] + more[i][j];
    }
}

/* Store the scores of the segment in b->weight. */
template <int PASSES>
TSR_DEVICE void tile_scores(const attention_args &a, const tile_item &item, tile_block<PASSES> *b)
{
    const int lane = threadIdx.x % TSR_WARP, slot = lane % 8;
    const int position = threadIdx.x / TSR_WARP * 4 + lane / 8;
    float quarter[4][4] = {}; /* of lanes 0..3, then 8..11; the sum of 0..7 is kept in b->weight */
    TSR_UNROLL_BY(1)
    for (int stage = 0; stage < TILE_DIMS / STAGE_DIMS; stage++) {
        __syncthreads(); /* the previous stage is finished */
        switch (a.op.kv.type_k) {
#define KEYS_CASE(type)                             \
    case type:                                      \
        tile_keys<PASSES, type>(a, item, stage, b); \
        break;
            TSR_FOR_EACH_CACHE_TYPE(KEYS_CASE)
#undef KEYS_CASE
        default:
            break;
        }
        __syncthreads();
        float low[4][4], high[4][4], odd[4][4];
        tile_octet<PASSES>(*b, stage, 0, position, slot, low);
        tile_octet<PASSES>(*b, stage, 1, position, slot, odd);
        add_all(low, odd);
        tile_octet<PASSES>(*b, stage, 2, position, slot, high);
        tile_octet<PASSES>(*b, stage, 3, position, slot, odd);
        add_all(high, odd);
        add_all(low, high);
        TSR_UNROLL
        for (int i = 0; i < 4; i++) {
            TSR_UNROLL
            for (int j = 0; j < 4; j++) {
                float *weight = &b->weight[position + 32 * i][slot + 8 * j];
                if (stage % 2 == 0)
                    quarter[i][j] = low[i][j];
                else if (stage == 1)
                    *weight = quarter[i][j] + low[i][j];
                else
                    *weight = attention_score(a.op, *weight + (quarter[i][j] + low[i][j]));
            }
        }
    }
}

/* -- softmax -- */

template <int PASSES> TSR_DEVICE void tile_softmax(const tile_item &item, tile_block<PASSES> *b)
{
    for (int s = threadIdx.x / TSR_WARP; s < item.n_slots; s += TILE_WARPS)
        if (b->from[s] < b->to[s])
            attention_weigh(&b->weight[0][s], SLOT_ROW, b->from[s], b->to[s], NULL, &b->merge_group[s]);
}

/* -- values -- */

/* Load elements [128 pass, 128 pass + 128) of the values at positions first .. first + 31 of the segment. */
template <int PASSES, tsr_type TYPE>
TSR_DEVICE void tile_values(const attention_args &a, const tile_item &item, int first, int pass,
                            tile_block<PASSES> *b)
{
    constexpr int OCTETS = TILE_DIMS / TSR_OCTET;
    TSR_UNROLL_BY(1)
    for (int i = threadIdx.x; i < STAGE_VALUES * OCTETS; i += TILE_THREADS) {
        const int octet = i % OCTETS, slot = first + i / OCTETS;
        const int at = pass * TILE_DIMS + octet * TSR_OCTET;
        tsr_octet o = {};
        if (slot >= item.from && slot < item.to && at < item.head_dim)
            tsr_octet_load<TYPE>(tsr_kv_value(a.op.kv, b->place[slot]), at,
                                 tsr_octet_length(item.head_dim - at), a.wide_v, &o);
        TSR_UNROLL
        for (int e = 0; e < TSR_OCTET; e++)
            b->value[i / OCTETS][octet * TSR_OCTET + e] = tsr_octet_value(o, e);
    }
}

/* A thread's outputs: slots slot .. slot + 3, elements dim .. dim + 3 of each 128. */
struct tile_place {
    int slot, dim;
};

TSR_DEVICE tile_place outputs_of_thread(void)
{
    const int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    return {(warp / 4 * 4 + lane / 8) * 4, (warp % 4 * 8 + lane % 8) * 4};
}

/* Add the loaded values, positions first .. first + 31 of the segment. */
template <int PASSES>
TSR_DEVICE void tile_weigh(const tile_item &item, const tile_block<PASSES> &b, int first, float out[4][4])
{
    const tile_place mine = outputs_of_thread();
    const int begin = item.from > first ? item.from : first;
    const int end = item.to < first + STAGE_VALUES ? item.to : first + STAGE_VALUES;
    int from[4], to[4];
    TSR_UNROLL
    for (int s = 0; s < 4; s++) {
        from[s] = b.from[mine.slot + s];
        to[s] = b.to[mine.slot + s];
    }
    for (int slot = begin; slot < end; slot++) {
        const tsr_floats_4 weight = *reinterpret_cast<const tsr_floats_4 *>(&b.weight[slot][mine.slot]);
        const tsr_floats_4 value = *reinterpret_cast<const tsr_floats_4 *>(&b.value[slot - first][mine.dim]);
        TSR_UNROLL
        for (int s = 0; s < 4; s++) {
            const bool seen = item.whole || (slot >= from[s] && slot < to[s]);
            TSR_UNROLL
            for (int e = 0; e < 4; e++) {
                const float more = fmaf(weight.at[s], value.at[e], out[s][e]);
                out[s][e] = seen ? more : out[s][e];
            }
        }
    }
}

/* Merge the segment's outputs into b->group. */
template <int PASSES>
TSR_DEVICE void tile_output(const attention_args &a, const tile_item &item, tile_block<PASSES> *b)
{
    const tile_place mine = outputs_of_thread();
    float out[PASSES][4][4] = {};
    for (int first = item.from / STAGE_VALUES * STAGE_VALUES; first < item.to; first += STAGE_VALUES) {
        TSR_UNROLL
        for (int pass = 0; pass < PASSES; pass++) {
            __syncthreads(); /* the previous values are no longer needed, and the weights are complete */
            switch (a.op.kv.type_v) {
#define VALUES_CASE(type)                                   \
    case type:                                              \
        tile_values<PASSES, type>(a, item, first, pass, b); \
        break;
                TSR_FOR_EACH_CACHE_TYPE(VALUES_CASE)
#undef VALUES_CASE
            default:
                break;
            }
            __syncthreads();
            tile_weigh<PASSES>(item, *b, first, out[pass]);
        }
    }
    TSR_UNROLL
    for (int i = 0; i < PASSES * 4; i++) {
        const int slot = mine.slot + i % 4, pass = i / 4;
        float *group = &b->group[slot][pass * TILE_DIMS + mine.dim];
        if (b->from[slot] >= b->to[slot])
            continue;
        TSR_UNROLL
        for (int e = 0; e < 4; e++)
            group[e] = merge_output(b->merge_group[slot], group[e], out[pass][i % 4][e]);
    }
}

/* -- the kernel -- */

/* The positions of a segment that the slots see, and the addresses of its keys and values. */
template <int PASSES>
TSR_DEVICE void tile_begin_segment(const attention_args &a, int64_t segment, tile_block<PASSES> *b)
{
    const int64_t start = segment * SEGMENT;
    const int i = threadIdx.x;
    const int first = (int)(b->all.begin > start ? b->all.begin - start : 0);
    const int last = (int)(b->all.end - start < SEGMENT ? b->all.end - start : (int64_t)SEGMENT);
    __syncthreads(); /* the previous segment is finished */
    if (i < TILE_SLOTS) {
        const int64_t from = b->range[i].begin - start, to = b->range[i].end - start;
        b->from[i] = (int)(from > 0 ? from < SEGMENT ? from : (int64_t)SEGMENT : 0);
        b->to[i] = (int)(to > 0 ? to < SEGMENT ? to : (int64_t)SEGMENT : 0);
    }
    if (i >= first && i < last)
        b->place[i] = tsr_kv_find(a.op.kv, a.op.index, a.op.index.seq_row[b->item.first_token], start + i,
                                  b->item.kv_head);
    const bool sees_all =
        i >= b->item.n_slots || (b->range[i].begin <= start + first && b->range[i].end >= start + last);
    const bool whole = __syncthreads_and(sees_all) != 0;
    if (i == 0) { /* read behind the next barrier */
        b->item.from = first;
        b->item.to = last;
        b->item.whole = whole;
    }
}

/* Start an empty group. */
template <int PASSES> TSR_DEVICE void tile_begin_group(tile_block<PASSES> *b)
{
    __syncthreads(); /* the previous group is finished */
    if (threadIdx.x < TILE_SLOTS)
        b->merge_group[threadIdx.x] = merge_nothing();
    for (int i = threadIdx.x; i < TILE_SLOTS * PASSES * TILE_DIMS; i += TILE_THREADS)
        b->group[i / (PASSES * TILE_DIMS)][i % (PASSES * TILE_DIMS)] = 0.0f;
}

/* Merge a group into the totals of the slots that see a part of it. */
template <int PASSES> TSR_DEVICE void tile_add_group(int64_t group, tile_block<PASSES> *b)
{
    const int i = threadIdx.x;
    __syncthreads();
    if (i < TILE_SLOTS && (group + 1) * GROUP > b->range[i].begin && group * GROUP < b->range[i].end)
        merge_piece(&b->merge_total[i], b->merge_group[i].top, b->merge_group[i].sum);
    __syncthreads();
    for (int n = threadIdx.x; n < TILE_SLOTS * PASSES * TILE_DIMS; n += TILE_THREADS) {
        const int slot = n / (PASSES * TILE_DIMS), at = n % (PASSES * TILE_DIMS);
        const attention_range range = b->range[slot];
        if ((group + 1) * GROUP > range.begin && group * GROUP < range.end)
            b->total[slot][at] = merge_output(b->merge_total[slot], b->total[slot][at], b->group[slot][at]);
    }
}

/* Load queries and ranges, and clear the totals. Slot i is head i % share of token i / share. */
template <int PASSES> TSR_DEVICE void tile_begin(const attention_args &a, tile_block<PASSES> *b)
{
    const tile_item &item = b->item;
    constexpr int DIMS = PASSES * TILE_DIMS;
    if (threadIdx.x < TILE_SLOTS) {
        b->range[threadIdx.x] = {0, 0};
        if ((int)threadIdx.x < item.n_slots)
            b->range[threadIdx.x] = range_of(a.op, item.first_token + threadIdx.x / a.share);
        b->merge_total[threadIdx.x] = merge_nothing();
    }
    for (int i = threadIdx.x; i < TILE_SLOTS * DIMS; i += TILE_THREADS) {
        const int slot = i / DIMS, at = i % DIMS;
        const int64_t token = item.first_token + slot / (int)a.share;
        const int64_t head = token * a.op.n_heads + item.kv_head * a.share + slot % (int)a.share;
        b->q[slot][at] = slot < item.n_slots && at < item.head_dim ? a.op.q[head * item.head_dim + at] : 0.0f;
        b->total[slot][at] = 0.0f;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        attention_range all = b->range[0];
        for (int i = 1; i < item.n_slots; i++) {
            all.begin = b->range[i].begin < all.begin ? b->range[i].begin : all.begin;
            all.end = b->range[i].end > all.end ? b->range[i].end : all.end;
        }
        b->all = all;
    }
    __syncthreads();
}

/* Grid: tiles, the last first, times KV heads. */
template <int PASSES>
static __global__ void __launch_bounds__(TILE_THREADS, PASSES == 1 ? 2 : 1)
    tile_kernel(const attention_args a)
{
    TSR_DYNAMIC_SHARED(tile_block<PASSES>, b);
    const int first_token = (int)((gridDim.x - 1 - blockIdx.x) / a.op.kv.n_heads * a.tile_tokens);
    if (!is_tile(a, first_token))
        return;
    if (threadIdx.x == 0) {
        const int64_t left = a.op.n_tokens - first_token;
        b->item.first_token = first_token;
        b->item.kv_head = (int)(blockIdx.x % a.op.kv.n_heads);
        b->item.head_dim = (int)a.op.kv.k_dim;
        b->item.n_slots = (int)((left < a.tile_tokens ? left : a.tile_tokens) * a.share);
    }
    __syncthreads();
    const tile_item &item = b->item;
    tile_begin<PASSES>(a, b);

    for (int group = (int)(b->all.begin / GROUP); group * (int64_t)GROUP < b->all.end; group++) {
        tile_begin_group<PASSES>(b);
        for (int segment = group * GROUP_SEGMENTS; segment < (group + 1) * GROUP_SEGMENTS; segment++) {
            const int64_t start = segment * (int64_t)SEGMENT;
            if (start + SEGMENT <= b->all.begin || start >= b->all.end)
                continue;
            tile_begin_segment<PASSES>(a, segment, b);
            tile_scores<PASSES>(a, item, b);
            __syncthreads();
            tile_softmax<PASSES>(item, b);
            __syncthreads();
            tile_output<PASSES>(a, item, b);
        }
        tile_add_group<PASSES>(group, b);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < item.n_slots * PASSES * TILE_DIMS; i += TILE_THREADS) {
        const int slot = i / (PASSES * TILE_DIMS), at = i % (PASSES * TILE_DIMS);
        const int64_t token = item.first_token + slot / a.share;
        const int64_t head = item.kv_head * a.share + slot % a.share;
        if (at < item.head_dim)
            a.op.y[(token * a.op.n_heads + head) * item.head_dim + at] =
                b->total[slot][at] * attention_end(a, head, b->merge_total[slot]);
    }
}

/* -- launchers -- */

/* Bytes of shared memory that a block may have (CUDA C++ Programming Guide, "Technical Specifications per
 * Compute Capability"). */
static size_t shared_limit(const tsr_cuda_stream *s)
{
    const int capability = s->props->compute_capability;
    if (capability == 80 || capability == 87)
        return (size_t)163 << 10;
    return capability >= 90 && capability < 120 ? (size_t)227 << 10 : (size_t)99 << 10;
}

int64_t tsr_cuda_attention_tile_tokens(const tsr_op_attention *op, const tsr_cuda_stream *s)
{
    const int64_t share = op->n_heads / op->kv.n_heads, tokens = TILE_SLOTS / share;
    const size_t bytes = op->kv.k_dim <= TILE_DIMS ? sizeof(tile_block<1>) : sizeof(tile_block<2>);
    const bool fits =
        op->kv.k_dim <= 2 * TILE_DIMS && op->kv.v_dim == op->kv.k_dim && bytes <= shared_limit(s);
    return fits && tokens > 1 && op->n_tokens > 1 ? tokens : 0;
}

template <int PASSES> static tsr_status enqueue(const attention_args &a, const tsr_cuda_stream *s)
{
    tsr_status status = TSR_OK;
    const int64_t tiles = (a.op.n_tokens + a.tile_tokens - 1) / a.tile_tokens;
    TSR_TRY(TSR_CUDA(cudaFuncSetAttribute(tile_kernel<PASSES>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (int)sizeof(tile_block<PASSES>))));
    TSR_TRY(tsr_cuda_result(TSR_LAUNCH((tile_kernel<PASSES>), dim3((unsigned)(tiles * a.op.kv.n_heads)),
                                       dim3(TILE_THREADS), sizeof(tile_block<PASSES>), s->stream, a),
                            "attention tile_kernel"));
out:
    return status;
}

tsr_status tsr_cuda_attention_tiles(const attention_args &a, const tsr_cuda_stream *s)
{
    return a.op.kv.k_dim <= TILE_DIMS ? enqueue<1>(a, s) : enqueue<2>(a, s);
}
