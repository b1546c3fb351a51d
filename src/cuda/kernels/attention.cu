/* y[t][h] = softmax(scale q[t][h] . k) v over the positions that token t sees, from the paged cache; q is
 * [n_tokens][n_heads][k_dim], y is [n_tokens][n_heads][v_dim].
 *
 * Positions are divided into segments of 128, and segments into groups of 2, counted from position 0 (the
 * cache's page size does not matter). A block of four warps takes one token and up to eight query heads that
 * share a KV head, so that each key and value is loaded and converted once for all of them. Per segment:
 *
 *   scores   half a warp per key, an octet of the key per lane; one tree sums over lanes for all heads
 *   softmax  a warp per head: top score, weights, their sum, and how to merge with the previous segments
 *   values   a thread per element of the head: weight times value, position after position
 *
 * Segments are merged into their group. In decoding there are few tokens and long sequences, so the groups
 * are distributed over many blocks, which store each group's (top, sum, output) in scratch memory, and the
 * last of them merges these. Where the scratch does not hold all groups of the longest sequence, there are
 * rounds of as many groups as it holds, each of which continues with the result of the previous ones. With
 * many tokens a block goes through all groups and merges immediately, and attention_tile.cu computes tiles of
 * tokens of one sequence, which share keys and values. With a selection (core/op.h) segments without a
 * selected position are skipped, and other positions have a weight of 0. More keys (tsr_attention_more) are
 * further groups, behind those of the op's own, and make no tiles. All variants merge in the same order with
 * the same function, so the result is the same.
 *
 * Keys and values of F16, BF16, Q8_0 or Q4_0, both of one type, are multiplied on tensor cores by other
 * kernels, attention/halves.cuh, in groups of the same length, which are distributed and combined here in the
 * same way. */
#include "cuda/kernels/attention.cuh"
#include "cuda/kernels/mul_mat/mma.cuh"

enum { ATTENTION_WARPS = 4, ATTENTION_THREADS = ATTENTION_WARPS * TSR_WARP, MAX_HEADS = 8 };

/* With at most this number of tokens, tiles are not worth it, and groups of each token are distributed. With
 * more, up to the second number, both: tokens of different sequences make no tiles. */
enum { MAX_UNTILED_TOKENS = 8, MAX_SPLIT_TOKENS = 32 };

/* With more tokens than MAX_UNTILED_TOKENS there are blocks enough for most of the card, and more rounds than
 * this, most of them beyond the end of short sequences, cost more than they gain (an estimate). */
enum { MAX_ROUNDS = 16 };

/* A position's key and value, in the cache or where they have been copied to. */
struct attention_rows {
    const unsigned char *key, *value;
};

/* One token's work in shared memory, for HEADS query heads; missing heads have zero queries. */
template <int HEADS> struct attention_block {
    float weight[SEGMENT][HEADS]; /* scores, then weights */
    attention_rows rows[SEGMENT];
    uint32_t selected[SEGMENT / TSR_WARP]; /* slots of the segment, a bit each */
    attention_merge group[HEADS], total[HEADS];
};

/* The part of the op that a block computes, the same in all its threads. */
struct attention_item {
    int64_t t, kv_head, first_head, k_dim, v_dim;
    int n_heads;
    bool more;                    /* the range is of the op's other keys */
    attention_range range;        /* of the keys that the group belongs to */
    float *q;                     /* shared, [HEADS][padded k_dim]: queries */
    float *out, *total;           /* shared, [HEADS][padded v_dim] each: outputs of a group and total */
    unsigned char *keys, *values; /* shared, [SEGMENT] rows each, where a.staged */
};

/* -- keys and values -- */

/* Start to copy the keys or values of slots in [from, to) to shared memory. */
TSR_DEVICE void stage_rows(const unsigned char *const *rows, int stride, int bytes, int from, int to,
                           unsigned char *staged)
{
    enum { PIECE = 16, LANES = 16 };
    for (int slot = from + (int)threadIdx.x / LANES; slot < to; slot += ATTENTION_THREADS / LANES)
        for (int at = (int)threadIdx.x % LANES * PIECE; at < bytes; at += LANES * PIECE)
            tsr_copy_async_16(staged + slot * bytes + at, rows[slot * stride] + at);
    tsr_copy_async_commit();
}

/* The key of a slot: a copy in shared memory, or in the cache. */
template <int HEADS>
TSR_DEVICE const unsigned char *key_of(const attention_args &a, const attention_item &item,
                                       const attention_block<HEADS> *b, int slot)
{
    return a.staged ? item.keys + slot * (int)a.op.kv.k_row_bytes : b->rows[slot].key;
}

template <int HEADS>
TSR_DEVICE const unsigned char *value_of(const attention_args &a, const attention_item &item,
                                         const attention_block<HEADS> *b, int slot)
{
    return a.staged ? item.values + slot * (int)a.op.kv.v_row_bytes : b->rows[slot].value;
}

/* -- scores -- */

/* Octet [at, at + 8) of a key. FULL: it is inside the head and may be loaded in wide pieces; then there is no
 * branch, and the loads of several keys are in flight together. */
template <tsr_type TYPE, bool FULL>
TSR_DEVICE void load_key(const attention_args &a, const unsigned char *key, int64_t at, tsr_octet *o)
{
    const int left = FULL ? (int)TSR_OCTET : tsr_octet_length(a.op.kv.k_dim - at);
    tsr_octet_load<TYPE>(key, at, left, FULL || a.wide_k, o);
}

/* weight[i][h] = score of slots i in [from, to) of the segment. A warp takes two keys at a time, KEYS such
 * pairs per step. Slots after the last repeat it, and their scores are dropped. */
template <int HEADS, tsr_type TYPE, bool FULL>
TSR_DEVICE void attention_scores(const attention_args &a, const attention_item &item, int from, int to,
                                 attention_block<HEADS> *b)
{
    constexpr int KEYS = 4;
    const int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    const int64_t stride = padded(item.k_dim);
    for (int first = from + 2 * warp; first < to; first += 2 * ATTENTION_WARPS * KEYS) {
        float sums[KEYS][HEADS] = {};
        for (int64_t at = lane % 16 * TSR_OCTET; at < item.k_dim; at += 16 * TSR_OCTET) {
            tsr_octet o[KEYS];
            TSR_UNROLL
            for (int i = 0; i < KEYS; i++) {
                const int slot = first + 2 * ATTENTION_WARPS * i + lane / 16;
                load_key<TYPE, FULL>(a, key_of(a, item, b, slot < to ? slot : to - 1), at, &o[i]);
            }
            TSR_UNROLL
            for (int h = 0; h < HEADS; h++) {
                float q[TSR_OCTET];
                tsr_load_floats(item.q + h * stride + at, TSR_OCTET, true, q);
                TSR_UNROLL
                for (int i = 0; i < KEYS; i++)
                    sums[i][h] = sums[i][h] + tsr_octet_dot<TYPE>(o[i], q, 0.0f);
            }
        }
        TSR_UNROLL
        for (int i = 0; i < KEYS; i++) {
            const int slot = first + 2 * ATTENTION_WARPS * i + lane / 16;
            tsr_tree_sum<HEADS>(sums[i], lane, true);
            TSR_UNROLL
            for (int h = 0; h < HEADS; h++)
                if (slot < to && lane % 16 == tsr_tree_lane<HEADS>(h, true))
                    b->weight[slot][h] = attention_score(a.op, sums[i][0]);
        }
    }
}

/* -- softmax -- */

template <int HEADS>
TSR_DEVICE void attention_softmax(const attention_item &item, int from, int to, bool selects,
                                  attention_block<HEADS> *b)
{
    for (int h = threadIdx.x / TSR_WARP; h < item.n_heads; h += ATTENTION_WARPS)
        attention_weigh(&b->weight[0][h], HEADS, from, to, selects ? b->selected : NULL, &b->group[h]);
}

/* -- values -- */

template <tsr_type TYPE> TSR_DEVICE float value_at(const unsigned char *row, int64_t i)
{
    if (TYPE == TSR_TYPE_F32)
        return reinterpret_cast<const float *>(row)[i];
    if (tsr_weight<TYPE>::plain)
        return tsr_from_16_bits<TYPE>(reinterpret_cast<const uint16_t *>(row)[i]);
    const int j = (int)(i % TSR_QUANT_BLOCK);
    if (TYPE == TSR_TYPE_Q8_0) {
        const unsigned char *block = row + i / TSR_QUANT_BLOCK * (int64_t)sizeof(tsr_block_q8_0);
        return tsr_load_half(block) * tsr_small_float(block[2 + j] ^ 0x80u, 128.0f);
    }
    const unsigned char *block = row + i / TSR_QUANT_BLOCK * (int64_t)sizeof(tsr_block_q4_0);
    return tsr_load_half(block) * tsr_small_float(block[2 + j % 16] >> (j / 16 * 4) & 15u, 8.0f);
}

/* Merge the segment's output into item.out. Thread j has elements j, j + threads, ... of every head, here and
 * below. */
template <int HEADS, tsr_type TYPE>
TSR_DEVICE void attention_values(const attention_args &a, const attention_item &item, int from, int to,
                                 const attention_block<HEADS> *b)
{
    constexpr int VALUES = 16;
    const int64_t stride = padded(item.v_dim);
    for (int64_t i = threadIdx.x; i < item.v_dim; i += ATTENTION_THREADS) {
        float out[HEADS];
        TSR_UNROLL
        for (int h = 0; h < HEADS; h++)
            out[h] = 0.0f;
        int slot = from;
        for (; slot + VALUES <= to; slot += VALUES) { /* VALUES loads in flight together */
            float value[VALUES];
            TSR_UNROLL
            for (int j = 0; j < VALUES; j++)
                value[j] = value_at<TYPE>(value_of(a, item, b, slot + j), i);
            TSR_UNROLL
            for (int j = 0; j < VALUES; j++) {
                TSR_UNROLL
                for (int h = 0; h < HEADS; h++)
                    out[h] = fmaf(b->weight[slot + j][h], value[j], out[h]);
            }
        }
        for (; slot < to; slot++) {
            const float value = value_at<TYPE>(value_of(a, item, b, slot), i);
            TSR_UNROLL
            for (int h = 0; h < HEADS; h++)
                out[h] = fmaf(b->weight[slot][h], value, out[h]);
        }
        TSR_UNROLL
        for (int h = 0; h < HEADS; h++)
            if (h < item.n_heads)
                item.out[h * stride + i] = merge_output(b->group[h], item.out[h * stride + i], out[h]);
    }
}

/* -- the kernel -- */

/* Set the bits of a segment's slots [from, to) that the token's selection has; false: none. Blocks of the
 * list are found by bisection, then read side by side. */
template <int HEADS>
TSR_DEVICE bool attention_select(const attention_args &a, const attention_item &item, int64_t start, int from,
                                 int to, attention_block<HEADS> *b)
{
    const tsr_selection s = item.more ? a.op.more.selected : a.op.selected;
    const int32_t *list = s.blocks + (item.t * s.n_lists + (s.n_lists > 1 ? item.kv_head : 0)) * s.n_blocks;
    int64_t low = 0, high = s.n_blocks;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (((int64_t)list[middle] + 1) * s.block <= start)
            low = middle + 1;
        else
            high = middle;
    }
    if (threadIdx.x < SEGMENT / TSR_WARP)
        b->selected[threadIdx.x] = 0;
    __syncthreads();
    const int64_t at = low + threadIdx.x, first = at < s.n_blocks ? list[at] * s.block - start : SEGMENT;
    bool none = true;
    for (int64_t slot = first > from ? first : from; slot < first + s.block && slot < to; slot++) {
        atomicAdd(&b->selected[slot / TSR_WARP], 1u << slot % TSR_WARP); /* a bit that nothing else adds */
        none = false;
    }
    return __syncthreads_and(none) == 0;
}

template <int HEADS>
TSR_DEVICE void attention_segment(const attention_args &a, const attention_item &item, int64_t segment,
                                  attention_block<HEADS> *b)
{
    const int64_t start = segment * SEGMENT;
    const int from = (int)(item.range.begin > start ? item.range.begin - start : 0);
    const int to = item.range.end - start < SEGMENT ? (int)(item.range.end - start) : (int)SEGMENT;
    const int slot = threadIdx.x;
    __syncthreads(); /* the previous segment is finished */
    const bool selects = (item.more ? a.op.more.selected.blocks : a.op.selected.blocks) != NULL;
    if (selects && !attention_select<HEADS>(a, item, start, from, to, b))
        return;
    if (slot >= from && slot < to) {
        const tsr_kv_view kv = item.more ? a.op.more.kv : a.op.kv;
        const tsr_kv_index index = item.more ? a.op.more.index : a.op.index;
        const tsr_kv_place place =
            tsr_kv_find(kv, index, a.op.index.seq_row[item.t], start + slot, item.kv_head);
        b->rows[slot] = {tsr_kv_key(kv, place), tsr_kv_value(kv, place)};
    }
    __syncthreads();
    if (a.staged) { /* values arrive while scores are computed */
        stage_rows(&b->rows[0].key, 2, (int)a.op.kv.k_row_bytes, from, to, item.keys);
        stage_rows(&b->rows[0].value, 2, (int)a.op.kv.v_row_bytes, from, to, item.values);
        tsr_copy_async_wait<1>();
        __syncthreads();
    }
    switch (a.op.kv.type_k) {
#define SCORES_CASE(type)                                               \
    case type:                                                          \
        if (a.full_k)                                                   \
            attention_scores<HEADS, type, true>(a, item, from, to, b);  \
        else                                                            \
            attention_scores<HEADS, type, false>(a, item, from, to, b); \
        break;
        TSR_FOR_EACH_CACHE_TYPE(SCORES_CASE)
#undef SCORES_CASE
    default:
        break;
    }
    __syncthreads();
    attention_softmax<HEADS>(item, from, to, selects, b);
    tsr_copy_async_wait<0>();
    __syncthreads();
    switch (a.op.kv.type_v) {
#define VALUES_CASE(type)                                    \
    case type:                                               \
        attention_values<HEADS, type>(a, item, from, to, b); \
        break;
        TSR_FOR_EACH_CACHE_TYPE(VALUES_CASE)
#undef VALUES_CASE
    default:
        break;
    }
}

/* Compute all segments of a group, into b->group and item.out. */
template <int HEADS>
TSR_DEVICE void attention_group(const attention_args &a, const attention_item &item, int64_t group,
                                attention_block<HEADS> *b)
{
    const int64_t stride = padded(item.v_dim);
    __syncthreads(); /* the previous group is finished */
    if (threadIdx.x < HEADS)
        b->group[threadIdx.x] = merge_nothing();
    for (int64_t i = threadIdx.x; i < item.v_dim; i += ATTENTION_THREADS)
        for (int h = 0; h < item.n_heads; h++)
            item.out[h * stride + i] = 0.0f;
    for (int64_t segment = group * GROUP_SEGMENTS; segment < (group + 1) * GROUP_SEGMENTS; segment++)
        if ((segment + 1) * SEGMENT > item.range.begin && segment * SEGMENT < item.range.end)
            attention_segment<HEADS>(a, item, segment, b);
}

/* Store a group's result in scratch, as number `at` of the round. */
template <int HEADS>
TSR_DEVICE void attention_leave(const attention_args &a, const attention_item &item, int64_t at,
                                const attention_block<HEADS> *b)
{
    const int64_t stride = padded(item.v_dim);
    for (int h = 0; h < item.n_heads; h++) {
        const int64_t head = item.t * a.op.n_heads + item.first_head + h;
        float *left = a.groups + (head * a.round_groups + at) * (item.v_dim + 2);
        if (threadIdx.x == 0) {
            left[0] = b->group[h].top;
            left[1] = b->group[h].sum;
        }
        for (int64_t i = threadIdx.x; i < item.v_dim; i += ATTENTION_THREADS)
            left[2 + i] = item.out[h * stride + i];
    }
}

/* Merge the group's result into b->total and item.total. */
template <int HEADS> TSR_DEVICE void attention_add(const attention_item &item, attention_block<HEADS> *b)
{
    const int64_t stride = padded(item.v_dim);
    if ((int)threadIdx.x < item.n_heads)
        merge_piece(&b->total[threadIdx.x], b->group[threadIdx.x].top, b->group[threadIdx.x].sum);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < item.v_dim; i += ATTENTION_THREADS)
        for (int h = 0; h < item.n_heads; h++)
            item.total[h * stride + i] =
                merge_output(b->total[h], item.total[h * stride + i], item.out[h * stride + i]);
}

/* The keys that a token's group `group` belongs to; returns its number among the groups of all keys. */
TSR_DEVICE int64_t attention_keys(const attention_args &a, int64_t group, attention_item *item)
{
    item->range = range_of(a.op, item->t);
    const int64_t n = groups_of(item->range);
    item->more = group >= n;
    if (!item->more)
        return item->range.begin / GROUP + group;
    item->range = more_of(a.op, item->t);
    return group - n;
}

/* Grid: x = token, KV head and part of its query heads; y = blocks that share the groups of the round. */
template <int HEADS>
static __global__ void __launch_bounds__(ATTENTION_THREADS, 3) attention_kernel(const attention_args a)
{
    TSR_DYNAMIC_SHARED(float, operands);
    __shared__ attention_block<HEADS> b;
    const tsr_quotient row = tsr_divide(blockIdx.x, a.parts), token = tsr_divide(row.of, a.op.kv.n_heads);
    const int64_t rest = a.share - row.rest * HEADS;
    const int64_t q_stride = padded(a.op.kv.k_dim), stride = padded(a.op.kv.v_dim);
    attention_item item;
    item.t = token.of;
    tsr_begin_early();
    if (is_tile(a, item.t))
        return;
    item.kv_head = token.rest;
    item.first_head = item.kv_head * a.share + row.rest * HEADS;
    item.k_dim = a.op.kv.k_dim;
    item.v_dim = a.op.kv.v_dim;
    item.n_heads = (int)(rest < HEADS ? rest : HEADS);
    const int first_group = (int)a.first_group, round_end = first_group + (int)a.round_groups;
    int end = (int)all_groups(a.op, item.t);
    if (first_group + (int)blockIdx.y >= end)
        return;
    if (a.groups && end > round_end)
        end = round_end;
    item.q = operands;
    item.out = operands + HEADS * q_stride;
    item.total = item.out + HEADS * stride;
    item.keys = reinterpret_cast<unsigned char *>(item.total + HEADS * stride);
    item.values = item.keys + SEGMENT * a.op.kv.k_row_bytes;

    const int64_t first = item.t * a.op.n_heads + item.first_head;
    TSR_UNROLL
    for (int h = 0; h < HEADS; h++)
        for (int64_t at = threadIdx.x; at < q_stride; at += ATTENTION_THREADS)
            item.q[h * q_stride + at] =
                h < item.n_heads && at < item.k_dim ? a.op.q[(first + h) * item.k_dim + at] : 0.0f;
    for (int64_t i = threadIdx.x; i < HEADS * stride; i += ATTENTION_THREADS)
        item.total[i] = 0.0f;
    if (threadIdx.x < HEADS)
        b.total[threadIdx.x] = merge_nothing();

    for (int group = first_group + (int)blockIdx.y; group < end; group += (int)gridDim.y) {
        attention_group<HEADS>(a, item, attention_keys(a, group, &item), &b);
        if (a.groups)
            attention_leave<HEADS>(a, item, group - first_group, &b);
        else
            attention_add<HEADS>(item, &b);
    }
    if (a.counters)
        attention_combine_last(a, HEADS, &b.weight[0][0]);
    if (a.groups)
        return;
    for (int64_t i = threadIdx.x; i < item.v_dim; i += ATTENTION_THREADS)
        for (int h = 0; h < item.n_heads; h++)
            a.op.y[(first + h) * item.v_dim + i] =
                item.total[h * stride + i] * attention_end(a, item.first_head + h, b.total[h]);
}

/* Merge the groups of this round where there are no counters: one block per token and head. */
static __global__ void __launch_bounds__(ATTENTION_THREADS) combine_kernel(const attention_args a)
{
    __shared__ float shared[2];
    tsr_begin_early();
    const tsr_quotient token = tsr_divide(blockIdx.x, a.op.n_heads);
    if (combine_groups(a, token.of) > 0)
        attention_combine(a, token.of, token.rest, 1, shared);
}

/* -- launchers -- */

/* Groups that a token of the longest sequence that the page table can describe sees. */
static int64_t max_groups(const tsr_op_attention *op)
{
    const int64_t all = (op->index.table_stride * op->kv.page_tokens + GROUP - 1) / GROUP;
    const int64_t of_window = (op->window + GROUP - 2) / GROUP + 1;
    const int64_t own = op->window > 0 && of_window < all ? of_window : all;
    if (!op->more.kv.base)
        return own;
    return own + (op->more.index.table_stride * op->more.kv.page_tokens + GROUP - 1) / GROUP;
}

/* Of one group of every token and head. */
static size_t scratch_of_group(const tsr_op_attention *op)
{
    return (size_t)(op->n_tokens * op->n_heads * (op->kv.v_dim + 2)) * sizeof(float);
}

/* Shared memory for the queries and outputs of a block's heads. */
static size_t operand_bytes(const tsr_op_attention *op, int heads)
{
    return (size_t)(heads * (padded(op->kv.k_dim) + 2 * padded(op->kv.v_dim))) * sizeof(float);
}

/* Shared memory for copies of a segment's keys and values. */
static size_t staged_bytes(const tsr_op_attention *op)
{
    return SEGMENT * (op->kv.k_row_bytes + op->kv.v_row_bytes);
}

/* Copies pay where a multiprocessor has room for those of two blocks. */
static bool is_staged(const attention_args &a, int heads, const tsr_cuda_stream *s)
{
    const size_t block =
        operand_bytes(&a.op, heads) + staged_bytes(&a.op) + sizeof(attention_block<MAX_HEADS>);
    return a.wide_k && a.wide_v && tsr_has_room(2, block, s);
}

/* Query heads of a block: all that share a KV head, while their queries and outputs (25 KiB) fit into the 48
 * KiB of shared memory that every kernel may have. */
static int heads_per_block(const tsr_op_attention *op, int64_t share)
{
    int heads = MAX_HEADS;
    while (heads > 1 && (heads / 2 >= share || operand_bytes(op, heads) > 25 * 1024))
        heads /= 2;
    return heads;
}

template <int HEADS>
static tsr_status enqueue_heads(const attention_args &a, dim3 grid, const tsr_cuda_stream *s)
{
    const size_t bytes = operand_bytes(&a.op, HEADS) + (a.staged ? staged_bytes(&a.op) : 0);
    tsr_status status = TSR_OK;
    if (a.staged)
        status = tsr_allow_shared(reinterpret_cast<const void *>(&attention_kernel<HEADS>), bytes, s,
                                  sizeof(attention_block<HEADS>));
    if (status != TSR_OK)
        return status;
    return tsr_cuda_result(
        TSR_LAUNCH_EARLY((attention_kernel<HEADS>), grid, dim3(ATTENTION_THREADS), bytes, s, a),
        "attention_kernel");
}

static tsr_status enqueue(const attention_args &a, int heads, dim3 grid, const tsr_cuda_stream *s)
{
    return a.span > 0   ? tsr_cuda_attention_halves(a, grid, s)
           : heads == 1 ? enqueue_heads<1>(a, grid, s)
           : heads == 2 ? enqueue_heads<2>(a, grid, s)
           : heads == 4 ? enqueue_heads<4>(a, grid, s)
                        : enqueue_heads<8>(a, grid, s);
}

/* Dividing groups over blocks pays where one block per token and head leaves the card idle. */
static bool worth_splitting(const tsr_op_attention *op)
{
    return op->n_tokens <= MAX_SPLIT_TOKENS && max_groups(op) > 1;
}

extern "C" size_t tsr_cuda_attention_scratch(const tsr_op_attention *op)
{
    return worth_splitting(op) ? scratch_of_group(op) * (size_t)(max_groups(op) + 1) : 0;
}

/* Groups in a round, beside the result of the previous rounds; 0: the scratch does not hold one, or there
 * would be too many rounds. */
static int64_t groups_in_round(const tsr_op_attention *op, size_t scratch_bytes)
{
    const int64_t fit = (int64_t)(scratch_bytes / scratch_of_group(op)) - 1, all = max_groups(op);
    if (fit <= 0 || (op->n_tokens > MAX_UNTILED_TOKENS && (all + fit - 1) / fit > MAX_ROUNDS))
        return 0;
    return fit < all ? fit : all;
}

/* Distribute groups over blocks, in rounds. Rounds beyond a token's last group return immediately. */
static tsr_status enqueue_rounds(attention_args a, int heads, dim3 grid, const tsr_cuda_stream *s)
{
    tsr_status status = TSR_OK;
    a.groups = static_cast<float *>(s->scratch);
    a.counters = grid.x <= TSR_CUDA_COUNTERS ? s->counters : NULL;
    a.so_far = a.groups + scratch_of_group(&a.op) / sizeof(float) * (size_t)a.round_groups;
    for (; a.first_group < max_groups(&a.op); a.first_group += a.round_groups) {
        TSR_TRY(enqueue(a, heads, grid, s));
        if (!a.counters)
            TSR_TRY(tsr_cuda_result(TSR_LAUNCH_EARLY(combine_kernel,
                                                     dim3((unsigned)(a.op.n_tokens * a.op.n_heads)),
                                                     dim3(ATTENTION_THREADS), 0, s, a),
                                    "combine_kernel"));
    }
out:
    return status;
}

/* The other keys and values must be aligned, too. */
static void narrow(const tsr_kv_view *kv, attention_args *a)
{
    a->wide_k = a->wide_k && tsr_wide_rows(kv->base, kv->page_bytes | kv->k_offset | kv->k_row_bytes);
    a->wide_v = a->wide_v && tsr_wide_rows(kv->base, kv->page_bytes | kv->v_offset | kv->v_row_bytes);
}

extern "C" tsr_status tsr_cuda_attention(const tsr_op_attention *op, const tsr_cuda_stream *s)
{
    tsr_status status = TSR_OK;
    if (op->n_heads == 0 || op->n_tokens == 0)
        return TSR_OK;
    attention_args a = {};
    a.op = *op;
    a.share = op->n_heads / op->kv.n_heads;
    a.wide_q = tsr_wide_rows(op->q, (size_t)op->kv.k_dim * sizeof(float));
    a.wide_k = tsr_wide_rows(op->kv.base, op->kv.page_bytes | op->kv.k_offset | op->kv.k_row_bytes);
    a.wide_v = tsr_wide_rows(op->kv.base, op->kv.page_bytes | op->kv.v_offset | op->kv.v_row_bytes);
    if (op->more.kv.base)
        narrow(&op->more.kv, &a);
    a.full_k = op->kv.k_dim % TSR_OCTET == 0 &&
               (a.wide_k || op->kv.type_k == TSR_TYPE_Q8_0 || op->kv.type_k == TSR_TYPE_Q4_0);
    a.span = tsr_cuda_attention_halves_span(a, s);
    a.unit = a.span > 0 && op->kv.type_k == TSR_TYPE_F16 ? (float)HALVES_UNIT_F16 : 1.0f;
    const int heads = a.span > 0 ? HALVES_ROWS : heads_per_block(op, a.share);
    a.parts = (a.share + heads - 1) / heads;
    if (!op->selected.blocks && !op->more.kv.base &&
        (!worth_splitting(op) || op->n_tokens > MAX_UNTILED_TOKENS))
        a.tile_tokens =
            a.span > 0 ? tsr_cuda_attention_halves_tile_tokens(a, s) : tsr_cuda_attention_tile_tokens(op, s);
    a.staged = a.span == 0 && is_staged(a, heads, s);
    const int64_t items = op->n_tokens * op->kv.n_heads * a.parts;
    /* Blocks for a full card: of those with keys and values in shared memory two fit on a multiprocessor, and
     * more would wait for the first ones only to find that short sequences left them no group. */
    const int64_t resident = a.span > 0 ? 2 : 8;
    const int64_t wanted = s->props->n_sms * resident / items + 1;
    a.round_groups = worth_splitting(op) ? groups_in_round(op, s->scratch_bytes) : 0;
    const int64_t splits = wanted < a.round_groups ? wanted : a.round_groups;
    /* Of a prompt, most tokens are in tiles, and nothing is left to do for blocks of single ones. */
    const int64_t full = s->props->n_sms * resident;
    const int64_t blocks = a.span > 0 && a.tile_tokens > 0 && items > full ? full : items;
    if (a.tile_tokens > 0)
        TSR_TRY(a.span > 0 ? tsr_cuda_attention_halves_tiles(a, s) : tsr_cuda_attention_tiles(a, s));
    if (splits > 1)
        return enqueue_rounds(a, heads, dim3((unsigned)items, (unsigned)splits), s);
    TSR_TRY(enqueue(a, heads, dim3((unsigned)blocks), s));
out:
    return status;
}
