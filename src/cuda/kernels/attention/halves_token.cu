/* Attention of one token over keys and values of 16 bits (halves.cuh): eight warps take a token, up to 16
 * query heads that share a KV head, and group after group of 256 positions. Everything of a group is copied
 * to shared memory immediately, as far as there is room, and the next group's keys while the values are
 * added.
 *
 *   scores   tile of 8 positions i of each piece to warp i, so that few positions, too, are work for all
 *   weights  each warp those of its tiles, after one exchange of top scores
 *   values   16 elements of the head to each warp, 32 of long heads; every warp adds up the weights
 *
 * As in attention.cu, groups are distributed over blocks and their results combined by combine_kernel. */
#include "cuda/kernels/attention/halves.cuh"

enum {
    TOKEN_WARPS = 8,
    TOKEN_THREADS = TOKEN_WARPS * TSR_WARP,
    TOKEN_PIECES = GROUP / HALVES_PIECE,
    TOKEN_TILES = GROUP / HALVES_COLUMNS,
    TOKEN_DIMS = HALF_WINDOW / 2, /* elements of values of a warp: two tiles */
    TOKEN_TASKS = HALVES_MAX_DIM / TOKEN_DIMS / TOKEN_WARPS
};

/* A tile of 8 positions: scores, then weights, of a lane. */
template <tsr_type TYPE> union token_tile {
    float score[4];
    halves_parts<TYPE> weights;
};

struct token_block {
    alignas(16) float top[TOKEN_PIECES][HALVES_ROWS][TOKEN_WARPS]; /* of eight warps, read by fours */
    float keep[TOKEN_PIECES][HALVES_ROWS]; /* the factor of what was added before a piece */
    float factor[HALVES_ROWS];             /* of the queries' products */
};

/* A block's work, the same in all its threads. */
template <tsr_type TYPE> struct token_item {
    int64_t t, first_head; /* of all heads held here */
    int n_heads, span, k_windows, v_windows;
    attention_range range;
    tsr_bytes_16 *queries, *keys, *values; /* shared: fragments; `span` slots each */
    token_tile<TYPE> *tiles;               /* shared: [TOKEN_TILES][lane] */
    token_block *b;
};

/* A lane's results, of queries g and g + 8: elements of its warp's tasks and tiles, in fragments. */
struct token_sums {
    float out[TOKEN_TASKS][2][4], weights[4], top[2];
};

TSR_DEVICE halves_slots slots_of_group(const attention_args &a, int64_t t, int64_t kv_head,
                                       const attention_range &range, int64_t group)
{
    const int64_t start = (range.begin / GROUP + group) * GROUP;
    halves_slots slots = {a.op.index.seq_row[t], kv_head, start};
    slots.from = (int)(range.begin > start ? range.begin - start : 0);
    slots.to = (int)(range.end - start < GROUP ? range.end - start : (int64_t)GROUP);
    slots.low = slots.from / HALVES_STEP * HALVES_STEP;
    slots.high = (slots.to + HALVES_STEP - 1) / HALVES_STEP * HALVES_STEP;
    return slots;
}

/* Whether slots [slot, slot + n) have been copied. */
TSR_DEVICE bool is_copied(const halves_slots &slots, int slot, int n)
{
    return slot + n > slots.low && slot < slots.high;
}

/* -- scores -- */

template <tsr_type TYPE, int COUNT>
TSR_DEVICE void token_scores_of(const token_item<TYPE> &item, const halves_slots &slots, int first, int tile)
{
    const int lane = threadIdx.x % TSR_WARP;
    float c[COUNT][4] = {};
    halves_products<TYPE, COUNT>(item.queries, item.keys, item.span, item.k_windows, tile, TOKEN_WARPS, c);
    TSR_UNROLL
    for (int i = 0; i < COUNT; i++) {
        const int at = first / HALVES_COLUMNS + tile + i * TOKEN_WARPS;
        TSR_UNROLL
        for (int e = 0; e < 4; e++) {
            const int slot = at * HALVES_COLUMNS + lane % 4 + e % 2 * 4;
            const float score = c[i][e] * item.b->factor[lane / 4 + e / 2 * 8];
            item.tiles[at * TSR_WARP + lane].score[e] =
                slot >= slots.from && slot < slots.to ? score : -INFINITY;
        }
    }
}

/* Scores of slots [first, first + span), whose keys are in shared memory. */
template <tsr_type TYPE>
TSR_DEVICE void token_scores(const token_item<TYPE> &item, const halves_slots &slots, int first)
{
    TSR_UNROLL_BY(1)
    for (int tile = threadIdx.x / TSR_WARP; tile < item.span / HALVES_COLUMNS; tile += 2 * TOKEN_WARPS) {
        const int slot = first + tile * HALVES_COLUMNS, later = slot + HALVES_PIECE;
        const bool one = is_copied(slots, slot, HALVES_COLUMNS);
        const bool other = later < first + item.span && is_copied(slots, later, HALVES_COLUMNS);
        if (one && other)
            token_scores_of<TYPE, 2>(item, slots, first, tile);
        else if (one || other)
            token_scores_of<TYPE, 1>(item, slots, first, one ? tile : tile + TOKEN_WARPS);
    }
}

/* -- weights -- */

/* Cap the scores of the warp's tiles, and give the top ones to the other warps. */
template <tsr_type TYPE>
TSR_DEVICE void token_tops(const attention_args &a, const token_item<TYPE> &item, const halves_slots &slots)
{
    const int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    TSR_UNROLL_BY(1)
    for (int piece = 0; piece < TOKEN_PIECES; piece++) {
        float top[2] = {-INFINITY, -INFINITY};
        const int tile = piece * TOKEN_WARPS + warp;
        if (is_copied(slots, tile * HALVES_COLUMNS, HALVES_COLUMNS)) {
            float *score = item.tiles[tile * TSR_WARP + lane].score;
            if (a.op.softcap > 0.0f)
                halves_cap<4>(a.op, score);
            top[0] = fmaxf(score[0], score[1]);
            top[1] = fmaxf(score[2], score[3]);
        }
        TSR_UNROLL
        for (int r = 0; r < 2; r++) {
            top[r] = fmaxf(top[r], __shfl_xor_sync(TSR_ALL_LANES, top[r], 1));
            top[r] = fmaxf(top[r], __shfl_xor_sync(TSR_ALL_LANES, top[r], 2));
            if (lane % 4 == 0)
                item.b->top[piece][lane / 4 + 8 * r][warp] = top[r];
        }
    }
}

/* Turn the scores of the warp's tiles into parts of weights. */
template <tsr_type TYPE>
TSR_DEVICE void token_weights(const token_item<TYPE> &item, const halves_slots &slots, token_sums *sums)
{
    const int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    sums->top[0] = sums->top[1] = -INFINITY;
    TSR_UNROLL_BY(1)
    for (int piece = 0; piece < TOKEN_PIECES; piece++) {
        if (!is_copied(slots, piece * HALVES_PIECE, HALVES_PIECE))
            continue;
        TSR_UNROLL
        for (int r = 0; r < 2; r++) {
            const int row = lane / 4 + 8 * r;
            const tsr_floats_4 *tops = reinterpret_cast<const tsr_floats_4 *>(item.b->top[piece][row]);
            const tsr_floats_4 low = tops[0], high = tops[1];
            float top = -INFINITY;
            TSR_UNROLL
            for (int i = 0; i < 4; i++)
                top = fmaxf(top, fmaxf(low.at[i], high.at[i]));
            const float keep = halves_raise(&sums->top[r], top);
            if (warp == 0 && lane % 4 == 0)
                item.b->keep[piece][row] = keep;
        }
        const int tile = piece * TOKEN_WARPS + warp;
        if (!is_copied(slots, tile * HALVES_COLUMNS, HALVES_COLUMNS))
            continue;
        token_tile<TYPE> *mine = &item.tiles[tile * TSR_WARP + lane];
        float weight[4];
        TSR_UNROLL
        for (int e = 0; e < 4; e++)
            weight[e] = halves_weight<TYPE>(mine->score[e], sums->top[e / 2]);
        half_split<TYPE>(weight, 1.0f, mine->weights.part);
    }
}

/* -- values -- */

/* Add a step of 16 slots, whose values are in shared memory from slot `first` on. */
template <tsr_type TYPE>
TSR_DEVICE void token_add_step(const token_item<TYPE> &item, const halves_slots &slots, int first, int slot,
                               token_sums *sums)
{
    const int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP, t = lane % 4, g = lane / 4;
    const token_tile<TYPE> *tiles = item.tiles + slot / HALVES_COLUMNS * TSR_WARP + lane;
    const halves_step<TYPE> step = halves_step_of<TYPE>(tiles[0].weights, tiles[TSR_WARP].weights);
    halves_add_weights<TYPE>(step, halves_seen(slot + t, slots.from, slots.to), sums->weights);
    TSR_UNROLL
    for (int i = 0; i < TOKEN_TASKS; i++) {
        const int task = warp + i * TOKEN_WARPS;
        if (task >= item.v_windows * 2)
            break;
        const tsr_bytes_16 *rows = item.values + (task / 2 * item.span + slot - first + t) * HALF_PIECES +
                                   half_value_piece(t, g / 2);
        uint32_t v[4];
        TSR_UNROLL
        for (int j = 0; j < 4; j++)
            v[j] = rows[4 * j * HALF_PIECES].word[g % 2 * 2 + task % 2];
        TSR_UNROLL
        for (int tile = 0; tile < 2; tile++)
            halves_add<TYPE>(step, halves_pair(v[0], v[1], tile != 0), halves_pair(v[2], v[3], tile != 0),
                             sums->out[i][tile]);
    }
}

/* Add the values of slots [first, first + span). */
template <tsr_type TYPE>
TSR_DEVICE void token_values(const token_item<TYPE> &item, const halves_slots &slots, int first,
                             token_sums *sums)
{
    const int g = threadIdx.x % TSR_WARP / 4;
    TSR_UNROLL_BY(1)
    for (int slot = first; slot < first + item.span; slot += HALVES_STEP) {
        if (!is_copied(slots, slot, HALVES_STEP))
            continue;
        if (slot == slots.low || slot % HALVES_PIECE == 0) {
            const float *keep = item.b->keep[slot / HALVES_PIECE];
            TSR_UNROLL
            for (int e = 0; e < 4; e++) {
                const float factor = keep[g + e / 2 * 8];
                sums->weights[e] *= factor;
                TSR_UNROLL
                for (int i = 0; i < TOKEN_TASKS * 2; i++)
                    sums->out[i / 2][i % 2][e] *= factor;
            }
        }
        token_add_step<TYPE>(item, slots, first, slot, sums);
    }
}

/* -- groups -- */

/* Where the copies of keys or values continue after those from slot `first` of a group: there, or in the next
 * group. */
template <tsr_type TYPE>
TSR_DEVICE void token_refill(const attention_args &a, const token_item<TYPE> &item, const halves_slots &slots,
                             const halves_slots &next, bool values, int first)
{
    const bool is_next = first + item.span >= slots.to;
    const halves_slots then = {slots.seq_row,
                               slots.kv_head,
                               is_next ? next.start : slots.start,
                               is_next ? next.from : slots.from,
                               is_next ? next.to : slots.to,
                               is_next ? next.low : slots.low,
                               is_next ? next.high : slots.high};
    first = is_next ? then.from / item.span * item.span : first + item.span;
    if (first < then.to) {
        __syncthreads(); /* the previous ones are no longer needed */
        halves_fill(a, then, {values, 0, values ? item.v_windows : item.k_windows}, first, item.span,
                    values ? item.values : item.keys);
    }
    tsr_copy_async_commit();
}

/* Of a group's first span, values are still on their way behind keys, or the next keys behind values. */
TSR_DEVICE void await_copies(bool of_first)
{
    if (of_first)
        tsr_copy_async_wait<1>();
    else
        tsr_copy_async_wait<0>();
    __syncthreads();
}

/* Compute a group, whose first keys and values are on their way, and start to copy those of the next. */
template <tsr_type TYPE>
TSR_DEVICE void token_group(const attention_args &a, const token_item<TYPE> &item, const halves_slots &slots,
                            const halves_slots &next, token_sums *sums)
{
    const int span = item.span, begin = slots.from / span * span;
    *sums = {};
    TSR_UNROLL_BY(1)
    for (int first = begin; first < slots.to; first += span) {
        await_copies(first == begin); /* the keys are there */
        token_scores<TYPE>(item, slots, first);
        token_refill<TYPE>(a, item, slots, next, false, first);
    }
    token_tops<TYPE>(a, item, slots);
    __syncthreads();
    token_weights<TYPE>(item, slots, sums);
    TSR_UNROLL_BY(1)
    for (int first = begin; first < slots.to; first += span) {
        await_copies(first == begin); /* values and weights are there */
        token_values<TYPE>(item, slots, first, sums);
        token_refill<TYPE>(a, item, slots, next, true, first);
    }
}

/* Element of the values to which a lane's sums->out[i][tile][e] belongs; beyond the head: none. */
TSR_DEVICE int64_t token_dim(int i, int tile, int e)
{
    const int task = threadIdx.x / TSR_WARP + i * TOKEN_WARPS, t = threadIdx.x % 4;
    return task / 2 * HALF_WINDOW + 8 * t + e % 2 * 4 + task % 2 * 2 + tile;
}

/* Store a group's result in scratch for combine_kernel, as number `at` of the round. */
template <tsr_type TYPE>
TSR_DEVICE void token_leave(const attention_args &a, const token_item<TYPE> &item, int64_t at,
                            const token_sums &sums)
{
    const int64_t v_dim = a.op.kv.v_dim;
    const int row = threadIdx.x % TSR_WARP / 4;
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        if (row + 8 * r >= item.n_heads)
            continue;
        const int64_t head = item.t * a.op.n_heads + item.first_head + row + 8 * r;
        float *left = a.groups + (head * a.round_groups + at) * (v_dim + 2);
        if (threadIdx.x < TSR_WARP && threadIdx.x % 4 == 0) {
            left[0] = sums.top[r];
            left[1] = sums.weights[2 * r];
        }
        TSR_UNROLL
        for (int i = 0; i < TOKEN_TASKS * 4; i++) {
            const int64_t dim = token_dim(i / 4, i / 2 % 2, i);
            if (dim < v_dim)
                left[2 + dim] = sums.out[i / 4][i / 2 % 2][2 * r + i % 2];
        }
    }
}

/* The groups so far. */
struct token_total {
    attention_merge merge[2];
    float out[TOKEN_TASKS][2][4];
};

TSR_DEVICE void token_merge(const token_sums &sums, token_total *total)
{
    TSR_UNROLL
    for (int r = 0; r < 2; r++)
        merge_piece(&total->merge[r], sums.top[r], sums.weights[2 * r]);
    TSR_UNROLL
    for (int i = 0; i < TOKEN_TASKS * 8; i++) {
        float *out = &total->out[i / 8][i / 4 % 2][i % 4];
        *out = merge_output(total->merge[i % 4 / 2], *out, sums.out[i / 8][i / 4 % 2][i % 4]);
    }
}

template <tsr_type TYPE>
TSR_DEVICE void token_store(const attention_args &a, const token_item<TYPE> &item, const token_total &total)
{
    const int row = threadIdx.x % TSR_WARP / 4;
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        if (row + 8 * r >= item.n_heads)
            continue;
        const int64_t head = item.first_head + row + 8 * r;
        float *y = a.op.y + (item.t * a.op.n_heads + head) * a.op.kv.v_dim;
        const float factor = attention_end(a, head, total.merge[r]);
        TSR_UNROLL
        for (int i = 0; i < TOKEN_TASKS * 4; i++) {
            const int64_t dim = token_dim(i / 4, i / 2 % 2, i);
            if (dim < a.op.kv.v_dim)
                y[dim] = total.out[i / 4][i / 2 % 2][2 * r + i % 2] * factor;
        }
    }
}

/* -- the kernel -- */

/* Where the parts of a block's dynamic shared memory begin, and its size. */
struct token_layout {
    size_t tiles, keys, values, bytes;
};

template <tsr_type TYPE>
static inline __host__ __device__ token_layout token_layout_of(const tsr_op_attention &op, int span)
{
    const size_t window = (size_t)span * HALF_PIECES * sizeof(tsr_bytes_16);
    token_layout l;
    l.tiles = halves_query_bytes(op, half_type<TYPE>::parts);
    l.keys = l.tiles + TOKEN_TILES * TSR_WARP * sizeof(token_tile<TYPE>);
    l.values = l.keys + (size_t)halves_windows(op.kv.k_dim) * window;
    l.bytes = l.values + (size_t)halves_windows(op.kv.v_dim) * window;
    return l;
}

/* Grid: x = token, KV head and part of its query heads; y = blocks that share the groups of the round. */
template <tsr_type TYPE>
static __global__ void __launch_bounds__(TOKEN_THREADS, 2) halves_token_kernel(const attention_args a)
{
    TSR_DYNAMIC_SHARED(unsigned char, shared);
    __shared__ token_block b;
    const tsr_quotient row = tsr_divide(blockIdx.x, a.parts), token = tsr_divide(row.of, a.op.kv.n_heads);
    const int64_t kv_head = token.rest, rest = a.share - row.rest * HALVES_ROWS;
    const int warp = threadIdx.x / TSR_WARP;
    token_item<TYPE> item;
    item.t = token.of;
    tsr_begin_early();
    if (is_tile(a, item.t))
        return;
    item.first_head = kv_head * a.share + row.rest * HALVES_ROWS;
    item.n_heads = (int)(rest < HALVES_ROWS ? rest : (int64_t)HALVES_ROWS);
    item.range = range_of(a.op, item.t);
    const int64_t groups = groups_of(item.range);
    const bool leaves = a.groups && groups > 1;
    const int64_t end =
        leaves && groups > a.first_group + a.round_groups ? a.first_group + a.round_groups : groups;
    int64_t group = a.first_group + blockIdx.y;
    if (group >= end)
        return;
    const token_layout layout = token_layout_of<TYPE>(a.op, a.span);
    item.span = a.span;
    item.k_windows = halves_windows(a.op.kv.k_dim);
    item.v_windows = halves_windows(a.op.kv.v_dim);
    item.queries = reinterpret_cast<tsr_bytes_16 *>(shared);
    item.tiles = reinterpret_cast<token_tile<TYPE> *>(shared + layout.tiles);
    item.keys = reinterpret_cast<tsr_bytes_16 *>(shared + layout.keys);
    item.values = reinterpret_cast<tsr_bytes_16 *>(shared + layout.values);
    item.b = &b;

    halves_slots slots = slots_of_group(a, item.t, kv_head, item.range, group);
    halves_fill(a, slots, {false, 0, item.k_windows}, slots.from / a.span * a.span, a.span, item.keys);
    tsr_copy_async_commit();
    halves_fill(a, slots, {true, 0, item.v_windows}, slots.from / a.span * a.span, a.span, item.values);
    tsr_copy_async_commit();
    const float *q = a.op.q + (item.t * a.op.n_heads + item.first_head) * a.op.kv.k_dim;
    TSR_UNROLL_BY(1)
    for (int r = warp; r < HALVES_ROWS; r += TOKEN_WARPS)
        halves_query<TYPE>(a, r < item.n_heads ? q + r * a.op.kv.k_dim : NULL, r, item.queries, &b.factor[r]);

    token_sums sums;
    token_total total = {{merge_nothing(), merge_nothing()}};
    for (; group < end; group += gridDim.y) {
        halves_slots next = slots_of_group(a, item.t, kv_head, item.range, group + gridDim.y);
        if (group + gridDim.y >= end)
            next.to = 0; /* none */
        token_group<TYPE>(a, item, slots, next, &sums);
        if (leaves)
            token_leave<TYPE>(a, item, group - a.first_group, sums);
        else
            token_merge(sums, &total);
        slots = next;
    }
    if (!leaves)
        token_store<TYPE>(a, item, total);
}

/* -- launchers -- */

static token_layout layout_of(const attention_args &a, int span)
{
    return a.op.kv.type_k == TSR_TYPE_F16 ? token_layout_of<TSR_TYPE_F16>(a.op, span)
                                          : token_layout_of<TSR_TYPE_BF16>(a.op, span);
}

int tsr_cuda_attention_halves_span(const attention_args &a, const tsr_cuda_stream *s)
{
    const tsr_kv_view &kv = a.op.kv;
    const bool halves = kv.type_k == TSR_TYPE_F16 || kv.type_k == TSR_TYPE_BF16;
    if (!halves || kv.type_v != kv.type_k || (kv.k_dim | kv.v_dim) % TSR_OCTET != 0 || !a.wide_k ||
        !a.wide_v || kv.k_dim > HALVES_MAX_DIM || kv.v_dim > HALVES_MAX_DIM || a.op.selected.blocks ||
        a.op.more.kv.base)
        return 0;
    for (size_t blocks = 2; blocks > 0; blocks--) /* two, so that one computes while the other waits */
        for (int span = GROUP; span >= HALVES_PIECE; span /= 2)
            if (tsr_has_room(blocks, layout_of(a, span).bytes + sizeof(token_block), s))
                return span;
    return 0;
}

template <tsr_type TYPE>
static tsr_status enqueue(const attention_args &a, dim3 grid, const tsr_cuda_stream *s)
{
    tsr_status status = TSR_OK;
    const size_t bytes = layout_of(a, a.span).bytes;
    TSR_TRY(tsr_allow_shared(reinterpret_cast<const void *>(&halves_token_kernel<TYPE>), bytes, s,
                             sizeof(token_block)));
    TSR_TRY(
        tsr_cuda_result(TSR_LAUNCH_EARLY((halves_token_kernel<TYPE>), grid, dim3(TOKEN_THREADS), bytes, s, a),
                        "attention halves_token_kernel"));
out:
    return status;
}

tsr_status tsr_cuda_attention_halves(const attention_args &a, dim3 grid, const tsr_cuda_stream *s)
{
    return a.op.kv.type_k == TSR_TYPE_F16 ? enqueue<TSR_TYPE_F16>(a, grid, s)
                                          : enqueue<TSR_TYPE_BF16>(a, grid, s);
}
