/* Attention of prompts over keys and values of 16 bits (halves.cuh) or quantized ones (codes.cuh). A block
 * takes a tile of consecutive tokens of one sequence, times the query heads of one KV head, 16 queries
 * (slots) per warp. It goes over the positions piece by piece, 64 of them: keys arrive while the values of
 * the piece before are added, and values while scores are computed. A warp has the scores of a piece, then
 * its weights, in registers, and the outputs of a group; outputs of the previous groups are in shared memory.
 * Nothing passes from warp to warp.
 *
 * Queries of a tile see different ranges. In a step of 16 positions that all queries of the warp see, a
 * product is added for all of them. In others, a few at the end of a range, tokens are added one by one, with
 * the values that each sees (halves.cuh). The last tiles have the most work, so they come first. */
#include "cuda/kernels/attention/codes.cuh"

enum {
    TILE_WARPS = 4, /* 2 or 1 where shared memory is short */
    TILE_SLOTS = TILE_WARPS * HALVES_ROWS,
    MAX_WINDOWS = 4, /* of values in a block, as registers allow */
    PIECE_TILES = HALVES_PIECE / HALVES_COLUMNS,
    WINDOW_TILES = HALF_WINDOW / HALVES_COLUMNS
};

struct tile_block {
    attention_range range[TILE_SLOTS], all; /* of each token, and of all together */
    float factor[TILE_SLOTS];               /* of the queries' products */
};

struct tile_item {
    int first_token, n_slots, slot; /* the first slot of the warp */
    int kv_head, share, k_windows;
    int v_begin, v_windows;       /* windows of the values */
    int k_row_bytes, v_row_bytes; /* as stored */
    int token[2];                 /* of the tile: of the lane's queries g and g + 8 */
    const uint32_t *queries;      /* shared: fragments of the warp's queries */
    tsr_floats_4 *totals;         /* shared: [tile of 8 elements][lane] */
    tsr_bytes_16 *keys, *values;  /* shared: of a piece */
    const tile_block *b;
};

/* A lane's results of a group, of queries g and g + 8, in fragments. */
template <int WINDOWS> struct tile_sums {
    float out[WINDOWS][WINDOW_TILES][4], weights[4], top[2];
};

/* -- values -- */

/* Add a step of 16 positions. MASKED: only to queries with a bit in `mine`, and only values with a bit in
 * `seen`. */
template <tsr_type TYPE, int WINDOWS, bool MASKED>
TSR_DEVICE void tile_add_step(const tile_item &item, const halves_step<TYPE> &step, int slot, uint32_t seen,
                              uint32_t mine, tile_sums<WINDOWS> *sums)
{
    const int lane = threadIdx.x % TSR_WARP, t = lane % 4, g = lane / 4;
    const tsr_bytes_16 *rows = item.values + (slot + t) * HALF_PIECES + half_value_piece(t, g / 2);
    TSR_UNROLL
    for (int window = 0; window <= WINDOWS; window++) {
        uint32_t v[4][2];
        if (window < WINDOWS && window >= item.v_windows)
            continue;
        TSR_UNROLL
        for (int j = 0; j < 4 && window < WINDOWS; j++) {
            const tsr_bytes_16 *row = rows + (window * HALVES_PIECE + 4 * j) * HALF_PIECES;
            const tsr_bytes_8 two = *(reinterpret_cast<const tsr_bytes_8 *>(row) + g % 2);
            TSR_UNROLL
            for (int i = 0; i < 2; i++)
                v[j][i] = MASKED ? two.word[i] & halves_mask(seen, j) : two.word[i];
        }
        TSR_UNROLL
        for (int tile = 0; tile < (window < WINDOWS ? (int)WINDOW_TILES : 1); tile++) {
            float *into = window < WINDOWS ? sums->out[window][tile] : sums->weights, sum[4];
            TSR_UNROLL
            for (int e = 0; e < 4; e++)
                sum[e] = into[e];
            if (window < WINDOWS)
                halves_add<TYPE>(step, halves_pair(v[0][tile / 2], v[1][tile / 2], tile % 2 != 0),
                                 halves_pair(v[2][tile / 2], v[3][tile / 2], tile % 2 != 0), sum);
            else
                halves_add_weights<TYPE>(step, seen, sum);
            TSR_UNROLL
            for (int e = 0; e < 4; e++)
                into[e] = !MASKED || (mine >> e / 2 & 1u) ? sum[e] : into[e];
        }
    }
}

/* Add a step of 16 positions with these weights. MASKED: as above. */
template <tsr_type TYPE, int WINDOWS, bool MASKED>
TSR_DEVICE void tile_add(const tile_item &item, const float weights[2][4], int slot, uint32_t seen,
                         uint32_t mine, tile_sums<WINDOWS> *sums)
{
    if constexpr (halves_type<TYPE>::codes) {
        const unsigned char *rows = codes_row(item.values, item.v_row_bytes) + slot * item.v_row_bytes +
                                    item.v_begin * codes_block<TYPE>::bytes;
        codes_add_step<TYPE, WINDOWS, 1, 2, MASKED>(rows, item.v_row_bytes, item.v_windows, weights, seen,
                                                    mine, sums->out, sums->weights);
    } else {
        const halves_step<TYPE> step =
            halves_step_of<TYPE, 2>(halves_split<TYPE, 2>(weights[0]), halves_split<TYPE, 2>(weights[1]));
        tile_add_step<TYPE, WINDOWS, MASKED>(item, step, slot, seen, mine, sums);
    }
}

/* Add the step token by token. */
template <tsr_type TYPE, int WINDOWS>
TSR_DEVICE void tile_add_tokens(const tile_item &item, const float weights[2][4], int64_t start, int slot,
                                tile_sums<WINDOWS> *sums)
{
    const int first = item.slot / item.share;
    const int end = item.slot + HALVES_ROWS < item.n_slots ? item.slot + HALVES_ROWS : item.n_slots;
    TSR_UNROLL_BY(1)
    for (int token = first; token <= (end - 1) / item.share; token++) {
        const attention_range range = item.b->range[token];
        if (range.begin >= start + slot + HALVES_STEP || range.end <= start + slot)
            continue;
        const int from = (int)(range.begin > start ? range.begin - start : 0);
        const int to = (int)(range.end - start < HALVES_PIECE ? range.end - start : (int64_t)HALVES_PIECE);
        const uint32_t mine = (uint32_t)(item.token[0] == token) | (uint32_t)(item.token[1] == token) << 1;
        tile_add<TYPE, WINDOWS, true>(item, weights, slot, halves_seen<TYPE>(slot, from, to), mine, sums);
    }
}

/* -- a piece -- */

/* The slots of a piece that the lane's queries see: [from, to). */
struct tile_seen {
    int from[2], to[2];
    bool whole, any; /* all queries of the warp see all of it; one sees a part */
};

TSR_DEVICE tile_seen tile_seen_of(const tile_item &item, int64_t start)
{
    tile_seen seen;
    bool whole = true, any = false;
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const attention_range range = item.b->range[item.token[r]];
        const int64_t from = range.begin - start, to = range.end - start;
        seen.from[r] = (int)(from > 0 ? from < HALVES_PIECE ? from : (int64_t)HALVES_PIECE : 0);
        seen.to[r] = (int)(to > 0 ? to < HALVES_PIECE ? to : (int64_t)HALVES_PIECE : 0);
        whole = whole && seen.from[r] == 0 && seen.to[r] == HALVES_PIECE;
        any = any || seen.from[r] < seen.to[r];
    }
    seen.whole = __all_sync(TSR_ALL_LANES, whole) != 0;
    seen.any = __all_sync(TSR_ALL_LANES, !any) == 0;
    return seen;
}

/* Scores, then weights, of the piece whose keys are in shared memory. The group's sums so far are multiplied
 * by the factor to the new top score. */
template <tsr_type TYPE, int WINDOWS>
TSR_DEVICE void tile_weights(const attention_args &a, const tile_item &item, const tile_seen &seen,
                             float weights[PIECE_TILES][4], tile_sums<WINDOWS> *sums)
{
    const int lane = threadIdx.x % TSR_WARP;
    float top[2] = {-INFINITY, -INFINITY}, keep[2];
    TSR_UNROLL
    for (int i = 0; i < PIECE_TILES * 4; i++)
        weights[i / 4][i % 4] = 0.0f;
    if constexpr (halves_type<TYPE>::codes)
        codes_products<TYPE, PIECE_TILES / 2, 2>(
            item.queries, reinterpret_cast<const unsigned char *>(item.keys), item.k_row_bytes,
            HALVES_STEP * item.k_row_bytes, item.k_windows, weights);
    else
        halves_products<TYPE, PIECE_TILES, 2>(item.queries, item.keys, HALVES_PIECE, item.k_windows, 0, 1,
                                              weights);
    const float factor[2] = {item.b->factor[item.slot + lane / 4], item.b->factor[item.slot + lane / 4 + 8]};
    TSR_UNROLL
    for (int i = 0; i < PIECE_TILES * 4; i++) {
        const int r = i % 4 / 2, slot = halves_slot<TYPE>(i / 4, i);
        float *score = &weights[i / 4][i % 4];
        *score = slot >= seen.from[r] && slot < seen.to[r] ? *score * factor[r] : -INFINITY;
    }
    if (a.op.softcap > 0.0f)
        halves_cap<PIECE_TILES * 4>(a.op, weights[0]);
    TSR_UNROLL
    for (int i = 0; i < PIECE_TILES * 4; i++)
        top[i % 4 / 2] = fmaxf(top[i % 4 / 2], weights[i / 4][i % 4]);
    bool same = true;
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(TSR_ALL_LANES, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(TSR_ALL_LANES, top[r], 2));
        keep[r] = halves_raise(&sums->top[r], top[r]);
        same = same && keep[r] == 1.0f;
    }
    TSR_UNROLL
    for (int i = 0; i < PIECE_TILES * 4; i++)
        weights[i / 4][i % 4] = halves_weight<TYPE>(weights[i / 4][i % 4], sums->top[i % 4 / 2]);
    if (__all_sync(TSR_ALL_LANES, same))
        return;
    TSR_UNROLL
    for (int e = 0; e < 4; e++) {
        sums->weights[e] *= keep[e / 2];
        TSR_UNROLL
        for (int i = 0; i < WINDOWS * WINDOW_TILES; i++)
            sums->out[i / WINDOW_TILES][i % WINDOW_TILES][e] *= keep[e / 2];
    }
}

/* Add the values of the piece, which are in shared memory. */
template <tsr_type TYPE, int WINDOWS>
TSR_DEVICE void tile_values(const tile_item &item, const tile_seen &seen, int64_t start,
                            const float weights[PIECE_TILES][4], tile_sums<WINDOWS> *sums)
{
    TSR_UNROLL
    for (int i = 0; i < HALVES_PIECE / HALVES_STEP; i++) {
        if (seen.whole)
            tile_add<TYPE, WINDOWS, false>(item, weights + 2 * i, i * HALVES_STEP, 15u, 3u, sums);
        else
            tile_add_tokens<TYPE, WINDOWS>(item, weights + 2 * i, start, i * HALVES_STEP, sums);
    }
}

/* Merge a group into the totals, and start the next one. */
template <tsr_type TYPE, int WINDOWS>
TSR_DEVICE void tile_merge(const tile_item &item, attention_merge total[2], tile_sums<WINDOWS> *sums)
{
    if constexpr (halves_type<TYPE>::codes)
        codes_sum_weights<2>(sums->weights);
    TSR_UNROLL
    for (int r = 0; r < 2; r++)
        merge_piece(&total[r], sums->top[r], sums->weights[2 * r]);
    TSR_UNROLL
    for (int i = 0; i < WINDOWS * WINDOW_TILES; i++) {
        tsr_floats_4 *into = item.totals + i * TSR_WARP + threadIdx.x % TSR_WARP;
        if (i / WINDOW_TILES >= item.v_windows)
            break;
        tsr_floats_4 four = *into;
        TSR_UNROLL
        for (int e = 0; e < 4; e++)
            four.at[e] =
                merge_output(total[e / 2], four.at[e], sums->out[i / WINDOW_TILES][i % WINDOW_TILES][e]);
        *into = four;
    }
    *sums = {};
    sums->top[0] = sums->top[1] = -INFINITY;
}

/* -- the kernel -- */

/* Where the parts of a block's dynamic shared memory begin, and its size. */
struct tile_layout {
    size_t queries, totals, keys, values, bytes; /* queries, totals: of one warp */
};

template <tsr_type TYPE>
static inline __host__ __device__ tile_layout tile_layout_of(const tsr_op_attention &op, int warps)
{
    tile_layout l;
    l.queries = halves_query_bytes(op, halves_type<TYPE>::parts);
    const int64_t v_dim = op.kv.v_dim < MAX_WINDOWS * HALF_WINDOW ? op.kv.v_dim : MAX_WINDOWS * HALF_WINDOW;
    l.totals = (size_t)halves_windows(v_dim) * WINDOW_TILES * TSR_WARP * sizeof(tsr_floats_4);
    l.keys = (size_t)warps * (l.queries + l.totals);
    l.values = l.keys + halves_bytes<TYPE>(op.kv.k_dim, op.kv.k_row_bytes, HALVES_PIECE);
    l.bytes = l.values + halves_bytes<TYPE>(v_dim, op.kv.v_row_bytes, HALVES_PIECE);
    return l;
}

/* The ranges of the tile's tokens, and all of them together. */
TSR_DEVICE void tile_ranges(const attention_args &a, const tile_item &item, tile_block *b)
{
    const int n_tokens = item.n_slots / item.share;
    for (int i = threadIdx.x; i < n_tokens; i += blockDim.x)
        b->range[i] = range_of(a.op, item.first_token + i);
    __syncthreads();
    if (threadIdx.x == 0) {
        attention_range all = b->range[0];
        for (int i = 1; i < n_tokens; i++) {
            all.begin = b->range[i].begin < all.begin ? b->range[i].begin : all.begin;
            all.end = b->range[i].end > all.end ? b->range[i].end : all.end;
        }
        b->all = all;
    }
    __syncthreads();
}

/* Divide the warp's queries, and clear its totals. Slot i is head i % share of token i / share. */
template <tsr_type TYPE>
TSR_DEVICE void tile_queries(const attention_args &a, const tile_item &item, uint32_t *queries, tile_block *b)
{
    for (int row = 0; row < HALVES_ROWS; row++) {
        const int slot = item.slot + row;
        const int64_t token = item.first_token + slot / item.share;
        const int64_t head = token * a.op.n_heads + item.kv_head * item.share + slot % item.share;
        halves_query<TYPE, 2>(a, slot < item.n_slots ? a.op.q + head * a.op.kv.k_dim : NULL, row, queries,
                              &b->factor[slot]);
    }
    for (int i = 0; i < item.v_windows * WINDOW_TILES; i++)
        item.totals[i * TSR_WARP + threadIdx.x % TSR_WARP] = {{0.0f, 0.0f, 0.0f, 0.0f}};
    __syncwarp();
}

template <tsr_type TYPE>
TSR_DEVICE void tile_store(const attention_args &a, const tile_item &item, const attention_merge total[2])
{
    const int lane = threadIdx.x % TSR_WARP;
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const int slot = item.slot + lane / 4 + 8 * r;
        if (slot >= item.n_slots)
            continue;
        const int64_t token = item.first_token + slot / item.share;
        const int64_t head = item.kv_head * item.share + slot % item.share;
        float *y = a.op.y + (token * a.op.n_heads + head) * a.op.kv.v_dim;
        const float factor = attention_end(a, head, total[r]);
        for (int i = 0; i < item.v_windows * WINDOW_TILES; i++) {
            const float *four = item.totals[i * TSR_WARP + lane].at + 2 * r;
            TSR_UNROLL
            for (int e = 0; e < 2; e++) {
                const int element = halves_type<TYPE>::codes
                                        ? codes_element<TYPE>(i % WINDOW_TILES, lane % 4 * 2 + e)
                                        : lane % 4 * 8 + e * 4 + i % (int)WINDOW_TILES;
                const int dim = (item.v_begin + i / WINDOW_TILES) * HALF_WINDOW + element;
                if (dim < a.op.kv.v_dim)
                    y[dim] = four[e] * factor;
            }
        }
    }
}

/* Go to the next piece. */
TSR_DEVICE void tile_next(const tile_block &b, halves_slots *slots)
{
    const int64_t start = slots->start + HALVES_PIECE;
    slots->start = start;
    slots->from = (int)(b.all.begin > start ? b.all.begin - start : 0);
    slots->to = (int)(b.all.end - start < HALVES_PIECE ? b.all.end - start : (int64_t)HALVES_PIECE);
    slots->low = 0;
    slots->high = HALVES_PIECE;
}

/* Start to copy a piece's keys or values. */
template <tsr_type TYPE>
TSR_DEVICE void tile_fill(const attention_args &a, const tile_item &item, const halves_slots &slots,
                          bool values)
{
    tsr_bytes_16 *into = values ? item.values : item.keys;
    if constexpr (halves_type<TYPE>::codes)
        codes_fill(a, slots, values, 0, HALVES_PIECE, into);
    else
        halves_fill(a, slots, {values, values ? item.v_begin : 0, values ? item.v_windows : item.k_windows},
                    0, HALVES_PIECE, into);
    tsr_copy_async_commit();
}

/* Compute a piece, whose keys and values are on their way, and start to copy those of the next. */
template <tsr_type TYPE, int WINDOWS>
TSR_DEVICE void tile_piece(const attention_args &a, const tile_item &item, halves_slots slots,
                           tile_sums<WINDOWS> *sums)
{
    float weights[PIECE_TILES][4];
    const int64_t start = slots.start;
    const tile_seen seen = tile_seen_of(item, start);
    const bool more = start + HALVES_PIECE < item.b->all.end;
    tile_next(*item.b, &slots);
    tsr_copy_async_wait<1>();
    __syncthreads(); /* the keys are there */
    if (seen.any)
        tile_weights<TYPE, WINDOWS>(a, item, seen, weights, sums);
    if (more) {
        __syncthreads(); /* and no longer needed */
        tile_fill<TYPE>(a, item, slots, false);
    } else {
        tsr_copy_async_commit();
    }
    tsr_copy_async_wait<1>();
    __syncthreads(); /* the values are there */
    if (seen.any)
        tile_values<TYPE, WINDOWS>(item, seen, start, weights, sums);
    if (more) {
        __syncthreads(); /* and no longer needed */
        tile_fill<TYPE>(a, item, slots, true);
    }
}

/* Grid: x = tiles, the last first, times KV heads; y = parts of the values, each with all scores. */
template <tsr_type TYPE, int WINDOWS>
static __global__ void __launch_bounds__(TILE_WARPS *TSR_WARP, 2) halves_tile_kernel(const attention_args a)
{
    TSR_DYNAMIC_SHARED(unsigned char, shared);
    __shared__ tile_block b;
    const int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP, warps = blockDim.x / TSR_WARP;
    const tile_layout layout = tile_layout_of<TYPE>(a.op, warps);
    tile_item item;
    item.first_token = (int)((gridDim.x - 1 - blockIdx.x) / a.op.kv.n_heads * a.tile_tokens);
    if (!is_tile(a, item.first_token))
        return;
    const int64_t left = a.op.n_tokens - item.first_token;
    item.share = (int)a.share;
    item.n_slots = (int)(left < a.tile_tokens ? left : a.tile_tokens) * item.share;
    item.slot = warp * HALVES_ROWS;
    item.kv_head = (int)(blockIdx.x % a.op.kv.n_heads);
    item.k_windows = halves_windows(a.op.kv.k_dim);
    item.k_row_bytes = (int)a.op.kv.k_row_bytes;
    item.v_row_bytes = (int)a.op.kv.v_row_bytes;
    item.v_begin = blockIdx.y * MAX_WINDOWS;
    item.v_windows = halves_windows(a.op.kv.v_dim) - item.v_begin;
    if (item.v_windows > MAX_WINDOWS)
        item.v_windows = MAX_WINDOWS;
    for (int r = 0; r < 2; r++) { /* queries that do not exist are computed as if of the last token */
        const int slot = item.slot + lane / 4 + 8 * r;
        item.token[r] = (slot < item.n_slots ? slot : item.n_slots - 1) / item.share;
    }
    uint32_t *queries = reinterpret_cast<uint32_t *>(shared + warp * (layout.queries + layout.totals));
    item.queries = queries;
    item.totals =
        reinterpret_cast<tsr_floats_4 *>(shared + warp * (layout.queries + layout.totals) + layout.queries);
    item.keys = reinterpret_cast<tsr_bytes_16 *>(shared + layout.keys);
    item.values = reinterpret_cast<tsr_bytes_16 *>(shared + layout.values);
    item.b = &b;
    tile_ranges(a, item, &b);

    halves_slots slots = {a.op.index.seq_row[item.first_token], item.kv_head};
    slots.start = b.all.begin / HALVES_PIECE * HALVES_PIECE - HALVES_PIECE;
    tile_next(b, &slots);
    tile_fill<TYPE>(a, item, slots, false);
    tile_fill<TYPE>(a, item, slots, true);
    tile_queries<TYPE>(a, item, queries, &b);

    attention_merge total[2] = {merge_nothing(), merge_nothing()};
    tile_sums<WINDOWS> sums = {};
    sums.top[0] = sums.top[1] = -INFINITY;
    for (; slots.start < b.all.end; tile_next(b, &slots)) {
        tile_piece<TYPE, WINDOWS>(a, item, slots, &sums);
        if (slots.start % GROUP == GROUP - HALVES_PIECE || slots.start + HALVES_PIECE >= b.all.end)
            tile_merge<TYPE, WINDOWS>(item, total, &sums);
    }
    tile_store<TYPE>(a, item, total);
}

/* -- launchers -- */

static size_t bytes_of(const attention_args &a, int warps)
{
    switch (a.op.kv.type_k) {
#define BYTES_CASE(type) \
    case type:           \
        return tile_layout_of<type>(a.op, warps).bytes;
        TSR_FOR_EACH_HALVES_TYPE(BYTES_CASE)
#undef BYTES_CASE
    default:
        return 0; /* tsr_cuda_attention_halves_span() */
    }
}

/* Warps of a block; 0: the card has no room for one. */
static int warps_of(const attention_args &a, const tsr_cuda_stream *s)
{
    int warps = TILE_WARPS;
    while (warps > 0 && bytes_of(a, warps) + sizeof(tile_block) > s->props->shared_bytes)
        warps /= 2;
    return warps;
}

int64_t tsr_cuda_attention_halves_tile_tokens(const attention_args &a, const tsr_cuda_stream *s)
{
    const int64_t tokens = warps_of(a, s) * HALVES_ROWS / a.share;
    return tokens > 1 && a.op.n_tokens > 1 ? tokens : 0;
}

template <tsr_type TYPE, int WINDOWS>
static tsr_status enqueue(const attention_args &a, const tsr_cuda_stream *s)
{
    tsr_status status = TSR_OK;
    const int64_t tiles = (a.op.n_tokens + a.tile_tokens - 1) / a.tile_tokens;
    const int warps = warps_of(a, s);
    const size_t bytes = bytes_of(a, warps);
    TSR_TRY(tsr_allow_shared(reinterpret_cast<const void *>(&halves_tile_kernel<TYPE, WINDOWS>), bytes, s,
                             sizeof(tile_block)));
    TSR_TRY(tsr_cuda_result(
        TSR_LAUNCH((halves_tile_kernel<TYPE, WINDOWS>),
                   dim3((unsigned)(tiles * a.op.kv.n_heads),
                        (unsigned)((halves_windows(a.op.kv.v_dim) + MAX_WINDOWS - 1) / MAX_WINDOWS)),
                   dim3((unsigned)warps * TSR_WARP), bytes, s->stream, a),
        "attention halves_tile_kernel"));
out:
    return status;
}

template <tsr_type TYPE> static tsr_status enqueue_type(const attention_args &a, const tsr_cuda_stream *s)
{
    return halves_windows(a.op.kv.v_dim) <= MAX_WINDOWS / 2 ? enqueue<TYPE, MAX_WINDOWS / 2>(a, s)
                                                            : enqueue<TYPE, MAX_WINDOWS>(a, s);
}

tsr_status tsr_cuda_attention_halves_tiles(const attention_args &a, const tsr_cuda_stream *s)
{
    switch (a.op.kv.type_k) {
#define ENQUEUE_CASE(type) \
    case type:             \
        return enqueue_type<type>(a, s);
        TSR_FOR_EACH_HALVES_TYPE(ENQUEUE_CASE)
#undef ENQUEUE_CASE
    default:
        return TSR_OK; /* tsr_cuda_attention_halves_span() */
    }
}
