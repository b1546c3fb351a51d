/* Attention of one token over keys and values of 16 bits (halves.cuh), or quantized ones (codes.cuh): eight
 * or four warps take a token, up to 16 query heads that share a KV head, and group after group of 256
 * positions. Everything of a group is copied to shared memory immediately, as far as there is room, and the
 * next group's keys while the values are added.
 *
 *   scores   tile of 8 positions i of each piece to warp i (two tiles to each of four warps), so that few
 *            positions, too, are work for all
 *   weights  each warp those of its tiles, after one exchange of top scores
 *   values   16 elements of the head to each of eight warps, 32 of long heads; 32 to each of four, because
 *            the scales of 32 elements multiply the weights; every warp adds up the weights
 *
 * ROWS is 1 where there are at most 8 query heads: rows 8 to 15 of all products are zeros.
 *
 * As in attention.cu, groups are distributed over blocks and their results combined by the last of them. */
#include "cuda/kernels/attention/codes.cuh"

enum { TOKEN_PIECES = GROUP / HALVES_PIECE, PIECE_TILES = HALVES_PIECE / HALVES_COLUMNS };

/* How a block divides its work. */
template <tsr_type TYPE> struct token_type {
    static constexpr int warps = halves_type<TYPE>::codes ? 4 : 8;
    static constexpr int piece_tiles = PIECE_TILES / warps; /* of a warp */
    static constexpr int tiles =
        halves_type<TYPE>::codes ? 4 : 2; /* of 8 elements of values, a warp's task */
    static constexpr int tasks = HALVES_MAX_DIM / (tiles * HALVES_COLUMNS * warps);
};

/* A tile of 8 positions: scores, then weights, of a lane. */
template <tsr_type TYPE, int ROWS> union alignas(halves_type<TYPE>::parts == 2 ? 8 * ROWS : 4) token_tile {
    float score[2 * ROWS]; /* and weights, where these are not divided yet */
    halves_parts<TYPE, ROWS> weights;
};

template <int WARPS> struct token_block {
    alignas(16) float top[TOKEN_PIECES][HALVES_ROWS][WARPS]; /* read by fours */
    float keep[TOKEN_PIECES][HALVES_ROWS];                   /* the factor of what was added before a piece */
    float factor[HALVES_ROWS];                               /* of the queries' products */
};

/* A block's work, the same in all its threads. */
template <tsr_type TYPE, int ROWS> struct token_item {
    int t, first_head; /* of all heads held here */
    int n_heads, span, k_windows, v_windows, k_row_bytes, v_row_bytes;
    attention_range range;
    uint32_t *queries;             /* shared: fragments */
    tsr_bytes_16 *keys, *values;   /* shared: `span` slots each */
    token_tile<TYPE, ROWS> *tiles; /* shared: [tile of the group][lane] */
    token_block<token_type<TYPE>::warps> *b;
};

/* A lane's results, of queries g and g + 8: elements of its warp's tasks and tiles, in fragments. */
template <tsr_type TYPE, int ROWS> struct token_sums {
    float out[token_type<TYPE>::tasks][token_type<TYPE>::tiles][4], weights[4], top[2];
};

TSR_DEVICE halves_slots slots_of_group(const attention_args &a, int t, int kv_head,
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

/* Store a tile's scores. `tile`: of the group. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_put_scores(const token_item<TYPE, ROWS> &item, const halves_slots &slots, int tile,
                                 const float c[4])
{
    const int lane = threadIdx.x % TSR_WARP;
    TSR_UNROLL
    for (int e = 0; e < 2 * ROWS; e++) {
        const int slot = halves_slot<TYPE>(tile, e);
        const float score = c[e] * item.b->factor[lane / 4 + e / 2 * 8];
        item.tiles[tile * TSR_WARP + lane].score[e] =
            slot >= slots.from && slot < slots.to ? score : -INFINITY;
    }
}

template <tsr_type TYPE, int ROWS, int COUNT>
TSR_DEVICE void token_scores_of(const token_item<TYPE, ROWS> &item, const halves_slots &slots, int first,
                                int tile)
{
    constexpr int WARPS = token_type<TYPE>::warps;
    float c[COUNT][4] = {};
    halves_products<TYPE, COUNT, ROWS>(item.queries, item.keys, item.span, item.k_windows, tile, WARPS, c);
    TSR_UNROLL
    for (int i = 0; i < COUNT; i++)
        token_put_scores<TYPE, ROWS>(item, slots, (uint32_t)first / HALVES_COLUMNS + tile + i * WARPS, c[i]);
}

/* Scores of slots [first, first + span), whose keys are in shared memory. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_scores(const token_item<TYPE, ROWS> &item, const halves_slots &slots, int first)
{
    constexpr int WARPS = token_type<TYPE>::warps;
    TSR_UNROLL_BY(1)
    for (int tile = threadIdx.x / TSR_WARP; tile < item.span / HALVES_COLUMNS; tile += 2 * WARPS) {
        const int slot = first + tile * HALVES_COLUMNS, later = slot + HALVES_PIECE;
        const bool one = is_copied(slots, slot, HALVES_COLUMNS);
        const bool other = later < first + item.span && is_copied(slots, later, HALVES_COLUMNS);
        if (one && other)
            token_scores_of<TYPE, ROWS, 2>(item, slots, first, tile);
        else if (one || other)
            token_scores_of<TYPE, ROWS, 1>(item, slots, first, one ? tile : tile + WARPS);
    }
}

/* The same of quantized keys: a step of each piece. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_code_scores(const token_item<TYPE, ROWS> &item, const halves_slots &slots, int first)
{
    const int row_bytes = item.k_row_bytes;
    TSR_UNROLL_BY(1)
    for (int step = threadIdx.x / TSR_WARP * HALVES_STEP; step < item.span; step += HALVES_PIECE) {
        float c[2][4] = {};
        if (!is_copied(slots, first + step, HALVES_STEP))
            continue;
        codes_products<TYPE, 1, ROWS>(item.queries,
                                      reinterpret_cast<const unsigned char *>(item.keys) + step * row_bytes,
                                      row_bytes, 0, item.k_windows, c);
        TSR_UNROLL
        for (int i = 0; i < 2; i++)
            token_put_scores<TYPE, ROWS>(item, slots, (uint32_t)(first + step) / HALVES_COLUMNS + i, c[i]);
    }
}

/* -- weights -- */

/* Tile i of a warp's in a piece. */
template <tsr_type TYPE> TSR_DEVICE int token_tile_of(int piece, int i)
{
    return piece * PIECE_TILES + threadIdx.x / TSR_WARP * token_type<TYPE>::piece_tiles + i;
}

/* Cap the scores of the warp's tiles, and give the top ones to the other warps. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_tops(const attention_args &a, const token_item<TYPE, ROWS> &item,
                           const halves_slots &slots)
{
    const int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    TSR_UNROLL_BY(1)
    for (int piece = 0; piece < TOKEN_PIECES; piece++) {
        float top[2] = {-INFINITY, -INFINITY};
        TSR_UNROLL
        for (int i = 0; i < token_type<TYPE>::piece_tiles; i++) {
            const int tile = token_tile_of<TYPE>(piece, i);
            if (!is_copied(slots, tile * HALVES_COLUMNS, HALVES_COLUMNS))
                break;
            float *score = item.tiles[tile * TSR_WARP + lane].score;
            if (a.op.softcap > 0.0f)
                halves_cap<2 * ROWS>(a.op, score);
            TSR_UNROLL
            for (int r = 0; r < ROWS; r++)
                top[r] = fmaxf(top[r], fmaxf(score[2 * r], score[2 * r + 1]));
        }
        TSR_UNROLL
        for (int r = 0; r < ROWS; r++) {
            top[r] = fmaxf(top[r], __shfl_xor_sync(TSR_ALL_LANES, top[r], 1));
            top[r] = fmaxf(top[r], __shfl_xor_sync(TSR_ALL_LANES, top[r], 2));
            if (lane % 4 == 0)
                item.b->top[piece][lane / 4 + 8 * r][warp] = top[r];
        }
    }
}

/* Turn the scores of the warp's tiles into weights. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_weights(const token_item<TYPE, ROWS> &item, const halves_slots &slots,
                              token_sums<TYPE, ROWS> *sums)
{
    const int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    sums->top[0] = sums->top[1] = -INFINITY;
    TSR_UNROLL_BY(1)
    for (int piece = 0; piece < TOKEN_PIECES; piece++) {
        if (!is_copied(slots, piece * HALVES_PIECE, HALVES_PIECE))
            continue;
        TSR_UNROLL
        for (int r = 0; r < ROWS; r++) {
            const int row = lane / 4 + 8 * r;
            const tsr_floats_4 *tops = reinterpret_cast<const tsr_floats_4 *>(item.b->top[piece][row]);
            float top = -INFINITY;
            TSR_UNROLL
            for (int i = 0; i < token_type<TYPE>::warps; i++)
                top = fmaxf(top, tops[i / 4].at[i % 4]);
            const float keep = halves_raise(&sums->top[r], top);
            if (warp == 0 && lane % 4 == 0)
                item.b->keep[piece][row] = keep;
        }
        TSR_UNROLL
        for (int i = 0; i < token_type<TYPE>::piece_tiles; i++) {
            const int tile = token_tile_of<TYPE>(piece, i);
            if (!is_copied(slots, tile * HALVES_COLUMNS, HALVES_COLUMNS))
                break;
            token_tile<TYPE, ROWS> *mine = &item.tiles[tile * TSR_WARP + lane];
            float weight[4] = {};
            TSR_UNROLL
            for (int e = 0; e < 2 * ROWS; e++)
                weight[e] = halves_weight<TYPE>(mine->score[e], sums->top[e / 2]);
            if constexpr (halves_type<TYPE>::codes)
                memcpy(mine->score, weight, sizeof mine->score);
            else
                mine->weights = halves_split<TYPE, ROWS>(weight);
        }
    }
}

/* -- values -- */

/* What the warp's first task has of the lane's first row of the step at `slot` of the span. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE const unsigned char *token_row(const token_item<TYPE, ROWS> &item, int slot)
{
    const int warp = threadIdx.x / TSR_WARP, t = threadIdx.x % 4, g = threadIdx.x % TSR_WARP / 4;
    if constexpr (halves_type<TYPE>::codes)
        return codes_row(item.values, item.v_row_bytes) + slot * item.v_row_bytes +
               warp * codes_block<TYPE>::bytes;
    else
        return reinterpret_cast<const unsigned char *>(
            item.values + (warp / 2 * item.span + slot + t) * HALF_PIECES + half_value_piece(t, g / 2));
}

/* Add a step of 16 slots, from token_row() on. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_add_step(const token_item<TYPE, ROWS> &item, const halves_slots &slots, int slot,
                               const token_tile<TYPE, ROWS> *tiles, const unsigned char *row,
                               token_sums<TYPE, ROWS> *sums)
{
    constexpr int WARPS = token_type<TYPE>::warps;
    const int warp = threadIdx.x / TSR_WARP, g = threadIdx.x % TSR_WARP / 4;
    const halves_step<TYPE> step = halves_step_of<TYPE, ROWS>(tiles[0].weights, tiles[TSR_WARP].weights);
    uint32_t seen = 15u;
    if (slot < slots.from || slot + HALVES_STEP > slots.to)
        seen = halves_seen<TYPE>(slot, slots.from, slots.to);
    halves_add_weights<TYPE>(step, seen, sums->weights);
    TSR_UNROLL
    for (int i = 0; i < token_type<TYPE>::tasks; i++) {
        if (warp + i * WARPS >= item.v_windows * 2)
            break;
        const tsr_bytes_16 *of_task =
            reinterpret_cast<const tsr_bytes_16 *>(row) + i * WARPS / 2 * item.span * HALF_PIECES;
        uint32_t v[4];
        TSR_UNROLL
        for (int j = 0; j < 4; j++)
            v[j] = of_task[4 * j * HALF_PIECES].word[g % 2 * 2 + warp % 2];
        TSR_UNROLL
        for (int tile = 0; tile < 2; tile++)
            halves_add<TYPE>(step, halves_pair(v[0], v[1], tile != 0), halves_pair(v[2], v[3], tile != 0),
                             sums->out[i][tile]);
    }
}

/* The same of quantized values, from token_row() on. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_add_codes(const token_item<TYPE, ROWS> &item, const halves_slots &slots, int slot,
                                const token_tile<TYPE, ROWS> *tiles, const unsigned char *row,
                                token_sums<TYPE, ROWS> *sums)
{
    constexpr int TASKS = token_type<TYPE>::tasks, WARPS = token_type<TYPE>::warps;
    const int windows = item.v_windows - (int)threadIdx.x / TSR_WARP;
    float weights[2][4] = {};
    TSR_UNROLL
    for (int i = 0; i < 4 * ROWS; i++)
        weights[i / 2 / ROWS][i % (2 * ROWS)] = tiles[i / 2 / ROWS * TSR_WARP].score[i % (2 * ROWS)];
    if (slot >= slots.from && slot + HALVES_STEP <= slots.to)
        codes_add_step<TYPE, TASKS, WARPS, ROWS, false>(row, item.v_row_bytes, windows, weights, 15u, 3u,
                                                        sums->out, sums->weights);
    else
        codes_add_step<TYPE, TASKS, WARPS, ROWS, true>(row, item.v_row_bytes, windows, weights,
                                                       halves_seen<TYPE>(slot, slots.from, slots.to), 3u,
                                                       sums->out, sums->weights);
}

/* Multiply what was added before the piece of `slot`. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_keep(const token_item<TYPE, ROWS> &item, int slot, token_sums<TYPE, ROWS> *sums)
{
    constexpr int TILES = token_type<TYPE>::tiles;
    const float *keep = item.b->keep[(uint32_t)slot / HALVES_PIECE] + threadIdx.x % TSR_WARP / 4;
    TSR_UNROLL
    for (int e = 0; e < 2 * ROWS; e++) {
        const float factor = keep[e / 2 * 8];
        sums->weights[e] *= factor;
        TSR_UNROLL
        for (int i = 0; i < token_type<TYPE>::tasks * TILES; i++)
            sums->out[i / TILES][i % TILES][e] *= factor;
    }
}

/* Add the values of slots [first, first + span). */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_values(const token_item<TYPE, ROWS> &item, const halves_slots &slots, int first,
                             token_sums<TYPE, ROWS> *sums)
{
    const int lane = threadIdx.x % TSR_WARP;
    const int begin = first > slots.low ? first : slots.low;
    const int end = first + item.span < slots.high ? first + item.span : slots.high;
    const token_tile<TYPE, ROWS> *tiles = item.tiles + (uint32_t)begin / HALVES_COLUMNS * TSR_WARP + lane;
    const int row_bytes = halves_type<TYPE>::codes ? item.v_row_bytes : (int)HALF_WINDOW * 2;
    const unsigned char *row = token_row<TYPE, ROWS>(item, begin - first);
    TSR_UNROLL_BY(1)
    for (int slot = begin; slot < end; slot += HALVES_STEP) {
        if (slot == slots.low || slot % HALVES_PIECE == 0)
            token_keep<TYPE, ROWS>(item, slot, sums);
        if constexpr (halves_type<TYPE>::codes)
            token_add_codes<TYPE, ROWS>(item, slots, slot, tiles, row, sums);
        else
            token_add_step<TYPE, ROWS>(item, slots, slot, tiles, row, sums);
        tiles += HALVES_STEP / HALVES_COLUMNS * TSR_WARP;
        row += HALVES_STEP * row_bytes;
    }
}

/* -- groups -- */

/* Start to copy slots [first, first + span) of a group. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_fill(const attention_args &a, const token_item<TYPE, ROWS> &item,
                           const halves_slots &slots, bool values, int first)
{
    tsr_bytes_16 *into = values ? item.values : item.keys;
    if constexpr (halves_type<TYPE>::codes)
        codes_fill(a, slots, values, first, item.span, into);
    else
        halves_fill(a, slots, {values, 0, values ? item.v_windows : item.k_windows}, first, item.span, into);
}

/* Where the copies of keys or values continue after those from slot `first` of a group: there, or in the next
 * group. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_refill(const attention_args &a, const token_item<TYPE, ROWS> &item,
                             const halves_slots &slots, const halves_slots &next, bool values, int first)
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
        token_fill<TYPE, ROWS>(a, item, then, values, first);
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
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_group(const attention_args &a, const token_item<TYPE, ROWS> &item,
                            const halves_slots &slots, const halves_slots &next, token_sums<TYPE, ROWS> *sums)
{
    const int span = item.span, begin = slots.from / span * span;
    *sums = {};
    TSR_UNROLL_BY(1)
    for (int first = begin; first < slots.to; first += span) {
        await_copies(first == begin); /* the keys are there */
        if constexpr (halves_type<TYPE>::codes)
            token_code_scores<TYPE, ROWS>(item, slots, first);
        else
            token_scores<TYPE, ROWS>(item, slots, first);
        token_refill<TYPE, ROWS>(a, item, slots, next, false, first);
    }
    token_tops<TYPE, ROWS>(a, item, slots);
    __syncthreads();
    token_weights<TYPE, ROWS>(item, slots, sums);
    TSR_UNROLL_BY(1)
    for (int first = begin; first < slots.to; first += span) {
        await_copies(first == begin); /* values and weights are there */
        token_values<TYPE, ROWS>(item, slots, first, sums);
        token_refill<TYPE, ROWS>(a, item, slots, next, true, first);
    }
    if constexpr (halves_type<TYPE>::codes)
        codes_sum_weights<ROWS>(sums->weights);
}

/* Element of the values to which a lane's sums->out[i][tile][e] belongs; beyond the head: none. */
template <tsr_type TYPE> TSR_DEVICE int token_dim(int i, int tile, int e)
{
    const int task = threadIdx.x / TSR_WARP + i * token_type<TYPE>::warps, t = threadIdx.x % 4;
    if (halves_type<TYPE>::codes)
        return task * HALF_WINDOW + codes_element<TYPE>(tile, 2 * t + e % 2);
    return task / 2 * HALF_WINDOW + 8 * t + e % 2 * 4 + task % 2 * 2 + tile;
}

/* Store a group's result in scratch, as number `at` of the round. Tiles 2 i and 2 i + 1
 * are neighbours. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_leave(const attention_args &a, const token_item<TYPE, ROWS> &item, int at,
                            const token_sums<TYPE, ROWS> &sums)
{
    constexpr int PAIRS = token_type<TYPE>::tiles / 2;
    const int v_dim = (int)a.op.kv.v_dim, row = threadIdx.x % TSR_WARP / 4;
    TSR_UNROLL
    for (int r = 0; r < ROWS; r++) {
        if (row + 8 * r >= item.n_heads)
            continue;
        const int64_t head = item.t * a.op.n_heads + item.first_head + row + 8 * r;
        float *left = a.groups + (head * a.round_groups + at) * (v_dim + 2);
        if (threadIdx.x < TSR_WARP && threadIdx.x % 4 == 0) {
            left[0] = sums.top[r];
            left[1] = sums.weights[2 * r];
        }
        TSR_UNROLL
        for (int i = 0; i < token_type<TYPE>::tasks * PAIRS * 2; i++) {
            const int task = i / 2 / PAIRS, tile = i / 2 % PAIRS * 2, dim = token_dim<TYPE>(task, tile, i);
            tsr_bytes_8 two;
            TSR_UNROLL
            for (int k = 0; k < 2; k++)
                memcpy(&two.word[k], &sums.out[task][tile + k][2 * r + i % 2], sizeof two.word[k]);
            if (dim < v_dim)
                *reinterpret_cast<tsr_bytes_8 *>(left + 2 + dim) = two;
        }
    }
}

/* The groups so far. */
template <tsr_type TYPE, int ROWS> struct token_total {
    attention_merge merge[2];
    float out[token_type<TYPE>::tasks][token_type<TYPE>::tiles][4];
};

template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_merge(const token_sums<TYPE, ROWS> &sums, token_total<TYPE, ROWS> *total)
{
    constexpr int TILES = token_type<TYPE>::tiles;
    TSR_UNROLL
    for (int r = 0; r < ROWS; r++)
        merge_piece(&total->merge[r], sums.top[r], sums.weights[2 * r]);
    TSR_UNROLL
    for (int i = 0; i < token_type<TYPE>::tasks * TILES * 2 * ROWS; i++) {
        const int task = i / (2 * ROWS) / TILES, tile = i / (2 * ROWS) % TILES, e = i % (2 * ROWS);
        float *out = &total->out[task][tile][e];
        *out = merge_output(total->merge[e / 2], *out, sums.out[task][tile][e]);
    }
}

template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_store(const attention_args &a, const token_item<TYPE, ROWS> &item,
                            const token_total<TYPE, ROWS> &total)
{
    constexpr int TILES = token_type<TYPE>::tiles;
    const int row = threadIdx.x % TSR_WARP / 4;
    TSR_UNROLL
    for (int r = 0; r < ROWS; r++) {
        if (row + 8 * r >= item.n_heads)
            continue;
        const int64_t head = item.first_head + row + 8 * r;
        float *y = a.op.y + (item.t * a.op.n_heads + head) * a.op.kv.v_dim;
        const float factor = attention_end(a, head, total.merge[r]);
        TSR_UNROLL
        for (int i = 0; i < token_type<TYPE>::tasks * TILES * 2; i++) {
            const int dim = token_dim<TYPE>(i / 2 / TILES, i / 2 % TILES, i);
            if (dim < (int)a.op.kv.v_dim)
                y[dim] = total.out[i / 2 / TILES][i / 2 % TILES][2 * r + i % 2] * factor;
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
    token_layout l;
    l.tiles = halves_query_bytes(op, halves_type<TYPE>::parts);
    l.keys = l.tiles + GROUP / HALVES_COLUMNS * TSR_WARP * sizeof(token_tile<TYPE, 2>);
    l.values = l.keys + halves_bytes<TYPE>(op.kv.k_dim, op.kv.k_row_bytes, span);
    l.bytes = l.values + halves_bytes<TYPE>(op.kv.v_dim, op.kv.v_row_bytes, span);
    return l;
}

/* Item `at`: a token, KV head and part of its query heads. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void token_run(const attention_args &a, int at, unsigned char *shared,
                          token_block<token_type<TYPE>::warps> *b)
{
    const tsr_quotient row = tsr_divide(at, a.parts), token = tsr_divide(row.of, a.op.kv.n_heads);
    const int kv_head = token.rest, share = (int)a.share, rest = share - row.rest * HALVES_ROWS;
    const int warp = threadIdx.x / TSR_WARP;
    token_item<TYPE, ROWS> item;
    item.t = token.of;
    if (is_tile(a, item.t))
        return;
    item.first_head = kv_head * share + row.rest * HALVES_ROWS;
    item.n_heads = rest < HALVES_ROWS ? rest : (int)HALVES_ROWS;
    item.range = range_of(a.op, item.t);
    const int groups = (int)groups_of(item.range), round_end = (int)(a.first_group + a.round_groups);
    const bool leaves = a.groups && groups > 1;
    const int end = leaves && groups > round_end ? round_end : groups;
    int group = (int)(a.first_group + blockIdx.y);
    if (group >= end)
        return;
    const token_layout layout = token_layout_of<TYPE>(a.op, a.span);
    item.span = a.span;
    item.k_windows = halves_windows(a.op.kv.k_dim);
    item.v_windows = halves_windows(a.op.kv.v_dim);
    item.k_row_bytes = (int)a.op.kv.k_row_bytes;
    item.v_row_bytes = (int)a.op.kv.v_row_bytes;
    item.queries = reinterpret_cast<uint32_t *>(shared);
    item.tiles = reinterpret_cast<token_tile<TYPE, ROWS> *>(shared + layout.tiles);
    item.keys = reinterpret_cast<tsr_bytes_16 *>(shared + layout.keys);
    item.values = reinterpret_cast<tsr_bytes_16 *>(shared + layout.values);
    item.b = b;

    halves_slots slots = slots_of_group(a, item.t, kv_head, item.range, group);
    token_fill<TYPE, ROWS>(a, item, slots, false, slots.from / a.span * a.span);
    tsr_copy_async_commit();
    token_fill<TYPE, ROWS>(a, item, slots, true, slots.from / a.span * a.span);
    tsr_copy_async_commit();
    const float *q = a.op.q + (item.t * a.op.n_heads + item.first_head) * a.op.kv.k_dim;
    TSR_UNROLL_BY(1)
    for (int r = warp; r < 8 * ROWS; r += token_type<TYPE>::warps)
        halves_query<TYPE, ROWS>(a, r < item.n_heads ? q + r * a.op.kv.k_dim : NULL, r, item.queries,
                                 &b->factor[r]);

    token_sums<TYPE, ROWS> sums;
    token_total<TYPE, ROWS> total = {{merge_nothing(), merge_nothing()}};
    for (; group < end; group += (int)gridDim.y) {
        halves_slots next = slots_of_group(a, item.t, kv_head, item.range, group + gridDim.y);
        if (group + (int)gridDim.y >= end)
            next.to = 0; /* none */
        token_group<TYPE, ROWS>(a, item, slots, next, &sums);
        if (leaves)
            token_leave<TYPE, ROWS>(a, item, group - (int)a.first_group, sums);
        else
            token_merge<TYPE, ROWS>(sums, &total);
        slots = next;
    }
    if (!leaves)
        token_store<TYPE, ROWS>(a, item, total);
}

/* Grid: x = blocks that share the items; y = blocks that share the groups of the round. */
template <tsr_type TYPE, int ROWS>
static __global__ void __launch_bounds__(token_type<TYPE>::warps *TSR_WARP, 2)
    halves_token_kernel(const attention_args a)
{
    TSR_DYNAMIC_SHARED(unsigned char, shared);
    __shared__ token_block<token_type<TYPE>::warps> b;
    tsr_begin_early();
    TSR_UNROLL_BY(1)
    for (int at = blockIdx.x; at < (int)(a.op.n_tokens * a.op.kv.n_heads * a.parts); at += gridDim.x) {
        token_run<TYPE, ROWS>(a, at, shared, &b);
        __syncthreads(); /* of another item, shared memory is free */
    }
    if (a.counters)
        attention_combine_last(a, HALVES_ROWS, &b.keep[0][0]);
}

/* -- launchers -- */

template <tsr_type TYPE> static size_t block_bytes(const attention_args &a, int span)
{
    return token_layout_of<TYPE>(a.op, span).bytes + sizeof(token_block<token_type<TYPE>::warps>);
}

/* With static shared memory. */
static size_t block_bytes_of(const attention_args &a, int span)
{
    switch (a.op.kv.type_k) {
#define BYTES_CASE(type) \
    case type:           \
        return block_bytes<type>(a, span);
        TSR_FOR_EACH_HALVES_TYPE(BYTES_CASE)
#undef BYTES_CASE
    default:
        return 0; /* is_aligned() */
    }
}

/* Whether steps of keys and values are contiguous, and can be copied by 16 bytes: rows of 16 bits, and 16
 * rows of codes. */
static bool is_aligned(const attention_args &a)
{
    const tsr_kv_view &kv = a.op.kv;
    if (kv.page_tokens % HALVES_STEP != 0)
        return false;
    if (kv.type_k == TSR_TYPE_Q8_0 || kv.type_k == TSR_TYPE_Q4_0)
        return tsr_wide_rows(kv.base, kv.page_bytes | kv.k_offset | kv.v_offset);
    return (kv.type_k == TSR_TYPE_F16 || kv.type_k == TSR_TYPE_BF16) && a.wide_k && a.wide_v;
}

int tsr_cuda_attention_halves_span(const attention_args &a, const tsr_cuda_stream *s)
{
    const tsr_kv_view &kv = a.op.kv;
    if (kv.type_v != kv.type_k || (kv.k_dim | kv.v_dim) % TSR_OCTET != 0 || !is_aligned(a) ||
        kv.k_dim > HALVES_MAX_DIM || kv.v_dim > HALVES_MAX_DIM || a.op.selected.blocks || a.op.more.kv.base)
        return 0;
    for (size_t blocks = 2; blocks > 0; blocks--) /* two, so that one computes while the other waits */
        for (int span = GROUP; span >= HALVES_PIECE; span /= 2)
            if (tsr_has_room(blocks, block_bytes_of(a, span), s))
                return span;
    return 0;
}

template <tsr_type TYPE, int ROWS>
static tsr_status enqueue(const attention_args &a, dim3 grid, const tsr_cuda_stream *s)
{
    constexpr int WARPS = token_type<TYPE>::warps;
    tsr_status status = TSR_OK;
    const size_t bytes = token_layout_of<TYPE>(a.op, a.span).bytes;
    TSR_TRY(tsr_allow_shared(reinterpret_cast<const void *>(&halves_token_kernel<TYPE, ROWS>), bytes, s,
                             sizeof(token_block<WARPS>)));
    TSR_TRY(tsr_cuda_result(
        TSR_LAUNCH_EARLY((halves_token_kernel<TYPE, ROWS>), grid, dim3(WARPS * TSR_WARP), bytes, s, a),
        "attention halves_token_kernel"));
out:
    return status;
}

tsr_status tsr_cuda_attention_halves(const attention_args &a, dim3 grid, const tsr_cuda_stream *s)
{
    switch (a.op.kv.type_k) {
#define ENQUEUE_CASE(type) \
    case type:             \
        return a.share > 8 ? enqueue<type, 2>(a, grid, s) : enqueue<type, 1>(a, grid, s);
        TSR_FOR_EACH_HALVES_TYPE(ENQUEUE_CASE)
#undef ENQUEUE_CASE
    default:
        return TSR_OK; /* tsr_cuda_attention_halves_span() */
    }
}
