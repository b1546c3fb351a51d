/* Attention over keys and values of 16 bits on tensor cores: the common part of its two kernels, which
 * therefore give the same bits. halves_token.cu takes one token and up to 16 query heads of a KV head,
 * halves_tile.cu 16 queries per warp of a prompt's tokens. Both see a product of tensor cores as 16 queries
 * times 8 positions, or 16 queries times 8 elements of values; rows of a product do not depend on each other.
 *
 * Precision. Queries are f32, and so are weights; they are divided into parts of the cache's type, as
 * mul_mat/half.cuh does with activations: two parts for F16, of a query scaled by the power of two that
 * brings its largest element to [2^14, 2^15), and of a weight times 2^14; three for BF16, unscaled.
 *
 * The order of sums, for each query. Positions are cut into groups of 256 and pieces of 64, counted from
 * position 0. A score is one chain of products: windows of 32 elements, in a window two steps of 16 (as in
 * mul_mat/half.cuh), in a step the parts from the smallest on. Piece after piece, a group's outputs so far
 * are multiplied by the factor to the new top score, then the tensor core adds weights times values: steps of
 * 16 positions, in a step the parts of the weights from the smallest on. The sum of weights is one more
 * element of the values, which is 1. Groups are merged as attention.cuh says.
 *
 * What a query does not see. A step without a position that the query sees changes nothing. In the other
 * steps the values of positions that it does not see are replaced by zeros, not only their weights: so
 * neither their infinities nor their exponents, to which a tensor core may align what it adds, can matter. A
 * token's result is therefore the same whether the positions after it have been written or not.
 *
 * Shared memory. Keys and values are copied by windows of 32 elements: [window][position][4 pieces of 16
 * bytes]. Positions of keys are exchanged in their eight so that column c of a product is position
 * c / 2 + c % 2 * 4 (half_key_place), and pieces of values so that the lanes of a load touch all banks
 * (half_value_piece). A lane of a product is 4 g + t (mul_mat/mma.cuh): it has columns 2 t and 2 t + 1,
 * positions t and t + 4 of the eight, which are also the rows of values that it loads. */
#ifndef TSR_CUDA_KERNELS_ATTENTION_HALVES_CUH
#define TSR_CUDA_KERNELS_ATTENTION_HALVES_CUH

#include "cuda/kernels/attention.cuh"
#include "cuda/kernels/mul_mat/half.cuh"

enum {
    HALVES_COLUMNS = 8,  /* positions of a product */
    HALVES_STEP = 16,    /* positions of a step of values */
    HALVES_PIECE = 64,   /* positions with the same top score */
    HALVES_MAX_DIM = 256 /* of keys and values */
};

#define TSR_FOR_EACH_HALVES_TYPE(X) X(TSR_TYPE_F16) X(TSR_TYPE_BF16) X(TSR_TYPE_Q8_0) X(TSR_TYPE_Q4_0)

template <tsr_type TYPE> struct halves_type {
    static constexpr bool codes = TYPE == TSR_TYPE_Q8_0 || TYPE == TSR_TYPE_Q4_0; /* codes.cuh */
    static constexpr tsr_type query = codes ? TSR_TYPE_F16 : TYPE;                /* of a query's parts */
    static constexpr int parts = half_type<query>::parts;
};

/* The weights' factor: the sum of weights has it as well. */
template <tsr_type TYPE> TSR_DEVICE float halves_unit(void)
{
    return TYPE == TSR_TYPE_F16 ? (float)HALVES_UNIT_F16 : 1.0f;
}

/* Parts of two neighbours, in the fragment of a product: of rows g and g + 8. ROWS: 2, or 1 where queries 8
 * to 15 do not exist. */
template <tsr_type TYPE, int ROWS> struct halves_parts {
    uint32_t part[halves_type<TYPE>::parts][ROWS];
};

static inline __host__ __device__ int halves_windows(int64_t dim)
{
    return (int)((dim + HALF_WINDOW - 1) / HALF_WINDOW);
}

/* Shared memory of n keys or values. */
template <tsr_type TYPE>
static inline __host__ __device__ size_t halves_bytes(int64_t dim, size_t row_bytes, int n)
{
    return (size_t)n * (halves_type<TYPE>::codes
                            ? row_bytes
                            : (size_t)halves_windows(dim) * HALF_PIECES * sizeof(tsr_bytes_16));
}

/* -- queries -- */

/* Bytes of the fragments of 16 queries: [window][step][part][lane]. */
static inline __host__ __device__ size_t halves_query_bytes(const tsr_op_attention &op, int parts)
{
    return (size_t)(halves_windows(op.kv.k_dim) * 2 * parts) * TSR_WARP * sizeof(tsr_bytes_16);
}

TSR_DEVICE void halves_load_query(const float *from, bool wide, float values[4])
{
    if (wide) {
        const tsr_floats_4 four = *reinterpret_cast<const tsr_floats_4 *>(from);
        memcpy(values, four.at, sizeof four.at);
        return;
    }
    TSR_UNROLL
    for (int e = 0; e < 4; e++)
        values[e] = from[e];
}

/* A fragment of a step's part: [lane][2 ROWS] words. Lane `of_row` of a row's four has four elements of a
 * step. */
template <int ROWS>
TSR_DEVICE void halves_put_query(uint32_t *fragments, int fragment, int row, int of_row, uint32_t low,
                                 uint32_t high)
{
    uint32_t *into = fragments + (fragment * TSR_WARP + row % 8 * 4 + of_row) * 2 * ROWS;
    into[row / 8] = low;
    into[row / 8 + ROWS] = high;
}

template <int ROWS> TSR_DEVICE tsr_bytes_16 halves_get_query(const uint32_t *fragments, int fragment)
{
    const uint32_t *from = fragments + (fragment * TSR_WARP + threadIdx.x % TSR_WARP) * 2 * ROWS;
    if constexpr (ROWS == 2) {
        const tsr_bytes_16 all = *reinterpret_cast<const tsr_bytes_16 *>(from);
        return {{all.word[0], all.word[1], all.word[2], all.word[3]}};
    } else {
        const tsr_bytes_8 two = *reinterpret_cast<const tsr_bytes_8 *>(from);
        return {{two.word[0], 0u, two.word[1], 0u}};
    }
}

/* A warp divides a query into the fragments' row. NULL: zeros. *factor: what its products are multiplied by
 * to be scores. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void halves_query(const attention_args &a, const float *query, int row, uint32_t *fragments,
                             float *factor)
{
    constexpr tsr_type QUERY = halves_type<TYPE>::query;
    constexpr int PARTS = halves_type<TYPE>::parts;
    enum { LOADS = HALVES_MAX_DIM / HALF_CHUNK };
    const int lane = threadIdx.x % TSR_WARP, k_dim = (int)a.op.kv.k_dim;
    float values[LOADS][4] = {}, top = 0.0f;
    if (!query) {
        for (int i = lane; i < halves_windows(k_dim) * 2 * PARTS * 4; i += TSR_WARP)
            halves_put_query<ROWS>(fragments, i / 4, row, i % 4, 0u, 0u);
        *factor = 0.0f;
        return;
    }
    TSR_UNROLL
    for (int i = 0; i < LOADS; i++) {
        const int at = i * HALF_CHUNK + 4 * lane;
        if (at < k_dim)
            halves_load_query(query + at, a.wide_q, values[i]);
        TSR_UNROLL
        for (int e = 0; e < 4; e++)
            top = fmaxf(top, fabsf(values[i][e]));
    }
    const float tops[4] = {top, 0.0f, 0.0f, 0.0f};
    const int n = half_type<QUERY>::scaled ? half_scale_of(tops) : 0;
    if (lane == 0)
        *factor = half_power_of_two(-n) * a.op.scale;
    TSR_UNROLL
    for (int i = 0; i < LOADS; i++) {
        const int at = i * HALF_CHUNK + 4 * lane;
        tsr_bytes_8 parts[PARTS];
        if (at >= halves_windows(k_dim) * HALF_WINDOW)
            break;
        half_split<QUERY>(values[i], half_power_of_two(n), parts);
        const int step = at / HALF_WINDOW * 2 + (halves_type<TYPE>::codes ? at / 16 : at / 4) % 2;
        const int of_row = halves_type<TYPE>::codes ? at / 4 % 4 : at % HALF_WINDOW / TSR_OCTET;
        TSR_UNROLL
        for (int p = 0; p < PARTS; p++)
            halves_put_query<ROWS>(fragments, step * PARTS + p, row, of_row, parts[p].word[0],
                                   parts[p].word[1]);
    }
}

/* -- copies of keys and values -- */

/* The positions start + [from, to) of one sequence are seen. [low, high), multiples of 16, are copied, with
 * zeros where nothing is seen. */
struct halves_slots {
    int seq_row, kv_head;
    int64_t start;
    int from, to, low, high;
};

/* Pieces of 16 bytes of a row: keys, or windows [begin, begin + windows) of values. */
struct halves_row {
    bool values;
    int begin, windows;
};

TSR_DEVICE int half_key_place(int slot)
{
    return (slot & ~7) | (slot & 3) << 1 | (slot >> 2 & 1);
}

TSR_DEVICE int half_value_piece(int slot, int piece)
{
    return piece ^ (slot & 2);
}

/* The first row of the step at `slot`. Pages are whole steps. */
TSR_DEVICE const unsigned char *halves_rows(const attention_args &a, const halves_slots &slots, bool values,
                                            int slot)
{
    const tsr_kv_place place =
        tsr_kv_find(a.op.kv, a.op.index, slots.seq_row, slots.start + slot, slots.kv_head);
    return values ? tsr_kv_value(a.op.kv, place) : tsr_kv_key(a.op.kv, place);
}

/* Whether a slot of the step at `slot` is seen, or all are. */
TSR_DEVICE bool halves_any_seen(const halves_slots &slots, int slot)
{
    return slot + HALVES_STEP > slots.from && slot < slots.to;
}

/* Start to copy a step of which all is seen. LANES lanes copy a row, each the same piece of every row that it
 * takes. `from`: the lane's piece of its first row; `to`: place 0 of the step. */
template <int LANES>
TSR_DEVICE void halves_fill_step(const unsigned char *from, int row_bytes, bool values, int piece,
                                 tsr_bytes_16 *to)
{
    constexpr int ROWS = TSR_WARP / LANES;
    const int row = threadIdx.x % TSR_WARP / LANES;
    TSR_UNROLL_BY(1)
    for (int eight = 0; eight < HALVES_STEP; eight += 8) {
        TSR_UNROLL
        for (int i = 0; i < 8; i += ROWS) { /* places of row + i, from constants and the lane's */
            const int place = values ? i + row : half_key_place(i) + 2 * row;
            const int of_row = values ? half_value_piece(i, half_value_piece(row, piece)) : piece;
            tsr_copy_async_16(to + place * HALF_PIECES + of_row, from + i * row_bytes);
        }
        from += 8 * row_bytes;
        to += 8 * HALF_PIECES;
    }
}

/* Start to copy slots [first, first + n) to `into`. Every thread of the block calls it. A warp takes a step,
 * and 8, 16 or 32 lanes a row. */
TSR_DEVICE void halves_fill(const attention_args &a, const halves_slots &slots, const halves_row &part,
                            int first, int n, tsr_bytes_16 *into)
{
    const int lane = tsr_not_kept(threadIdx.x % TSR_WARP), warps = blockDim.x / TSR_WARP;
    const int row_bytes = (int)(part.values ? a.op.kv.v_row_bytes : a.op.kv.k_row_bytes);
    const int pieces =
        (int)(part.values ? a.op.kv.v_dim : a.op.kv.k_dim) / TSR_OCTET - part.begin * HALF_PIECES;
    const int filled = part.windows * HALF_PIECES, lanes = filled > 16 ? 32 : filled > 8 ? 16 : 8;
    const int p = lane % lanes, piece = p % HALF_PIECES;
    tsr_bytes_16 *const window = into + p / HALF_PIECES * n * HALF_PIECES;
    TSR_UNROLL_BY(1)
    for (int step = first + (int)threadIdx.x / TSR_WARP * HALVES_STEP; step < first + n;
         step += warps * HALVES_STEP) {
        if (step + HALVES_STEP <= slots.low || step >= slots.high || p >= filled)
            continue;
        const unsigned char *from = NULL;
        tsr_bytes_16 *const to = window + (step - first) * HALF_PIECES;
        if (halves_any_seen(slots, step))
            from = halves_rows(a, slots, part.values, step) + lane / lanes * row_bytes +
                   (part.begin * HALF_PIECES + p) * sizeof(tsr_bytes_16);
        if (step >= slots.from && step + HALVES_STEP <= slots.to && p < pieces) {
            if (lanes == 32)
                halves_fill_step<32>(from, row_bytes, part.values, piece, to);
            else if (lanes == 16)
                halves_fill_step<16>(from, row_bytes, part.values, piece, to);
            else
                halves_fill_step<8>(from, row_bytes, part.values, piece, to);
            continue;
        }
        TSR_UNROLL_BY(1)
        for (int row = lane / lanes; row < HALVES_STEP; row += TSR_WARP / lanes) {
            const int slot = step + row, place = part.values ? row : half_key_place(row);
            tsr_bytes_16 *at =
                to + place * HALF_PIECES + (part.values ? half_value_piece(row, piece) : piece);
            if (slot >= slots.from && slot < slots.to && p < pieces)
                tsr_copy_async_16(at, from + (row - lane / lanes) * row_bytes);
            else
                *at = {{0u, 0u, 0u, 0u}};
        }
    }
}

/* -- scores -- */

/* Add to c the products of 16 queries with the keys of COUNT tiles of 8 slots, `step` tiles apart, of n slots
 * in `keys`. */
template <tsr_type TYPE, int COUNT, int ROWS>
TSR_DEVICE void halves_products(const uint32_t *fragments, const tsr_bytes_16 *keys, int n, int windows,
                                int tile, int step, float c[COUNT][4])
{
    constexpr int PARTS = half_type<TYPE>::parts;
    const int lane = threadIdx.x % TSR_WARP;
    const tsr_bytes_16 *key = keys + (tile * HALVES_COLUMNS + lane / 4) * HALF_PIECES + lane % 4;
    TSR_UNROLL_BY(1)
    for (int window = 0; window < windows; window++) {
        tsr_bytes_16 k[COUNT];
        TSR_UNROLL
        for (int i = 0; i < COUNT; i++)
            k[i] = key[(window * n + i * step * HALVES_COLUMNS) * HALF_PIECES];
        TSR_UNROLL
        for (int s = 0; s < 2; s++) {
            TSR_UNROLL
            for (int p = PARTS - 1; p >= 0; p--) {
                const tsr_bytes_16 q = halves_get_query<ROWS>(fragments, (window * 2 + s) * PARTS + p);
                TSR_UNROLL
                for (int i = 0; i < COUNT; i++)
                    tsr_mma_16x8x16<TYPE>(c[i], q.word, k[i].word[2 * s], k[i].word[2 * s + 1]);
            }
        }
    }
}

/* Cap scores softly; -inf stands for a position that is not seen. */
template <int N> TSR_DEVICE void halves_cap(const tsr_op_attention &op, float scores[N])
{
    TSR_UNROLL
    for (int i = 0; i < N; i++)
        scores[i] = scores[i] == -INFINITY ? scores[i] : op.softcap * tanhf(scores[i] / op.softcap);
}

/* -- weights -- */

/* The top score so far, and the factor of what was added before. */
TSR_DEVICE float halves_raise(float *top, float piece)
{
    const float before = *top;
    *top = fmaxf(before, piece);
    return before == *top ? 1.0f : expf(before - *top);
}

/* Scores of positions that are not seen are -inf. */
template <tsr_type TYPE> TSR_DEVICE float halves_weight(float score, float top)
{
    return score == -INFINITY ? 0.0f : expf(score - top) * halves_unit<TYPE>();
}

template <tsr_type TYPE, int ROWS> TSR_DEVICE halves_parts<TYPE, ROWS> halves_split(const float weights[4])
{
    tsr_bytes_8 split[halves_type<TYPE>::parts];
    halves_parts<TYPE, ROWS> parts;
    half_split<TYPE, ROWS>(weights, 1.0f, split);
    TSR_UNROLL
    for (int i = 0; i < halves_type<TYPE>::parts * ROWS; i++)
        parts.part[i / ROWS][i % ROWS] = split[i / ROWS].word[i % ROWS];
    return parts;
}

/* -- values -- */

/* What a step adds: the parts of the weights of two tiles of 8 slots, as fragments. */
template <tsr_type TYPE> struct halves_step {
    uint32_t weights[half_type<TYPE>::parts][4];
};

template <tsr_type TYPE, int ROWS>
TSR_DEVICE halves_step<TYPE> halves_step_of(const halves_parts<TYPE, ROWS> &low,
                                            const halves_parts<TYPE, ROWS> &high)
{
    halves_step<TYPE> step = {};
    TSR_UNROLL
    for (int i = 0; i < halves_type<TYPE>::parts * ROWS; i++) {
        step.weights[i / ROWS][i % ROWS] = low.part[i / ROWS][i % ROWS];
        step.weights[i / ROWS][2 + i % ROWS] = high.part[i / ROWS][i % ROWS];
    }
    return step;
}

template <tsr_type TYPE>
TSR_DEVICE void halves_add(const halves_step<TYPE> &step, uint32_t b0, uint32_t b1, float sums[4])
{
    TSR_UNROLL
    for (int p = half_type<TYPE>::parts - 1; p >= 0; p--)
        tsr_mma_16x8x16<TYPE>(sums, step.weights[p], b0, b1);
}

/* The lower or upper elements of two positions' pairs. */
TSR_DEVICE uint32_t halves_pair(uint32_t first, uint32_t second, bool upper)
{
    return __byte_perm(first, second, upper ? 0x7632u : 0x5410u);
}

/* All ones where bit i of `seen` is set. */
TSR_DEVICE uint32_t halves_mask(uint32_t seen, int i)
{
    return 0u - (seen >> i & 1u);
}

/* The slot of element e of a lane's part of tile `tile`. */
template <tsr_type TYPE> TSR_DEVICE int halves_slot(int tile, int e)
{
    const int t = threadIdx.x % 4, odd = tile & 1; /* never negative, which a quotient would have to know */
    return halves_type<TYPE>::codes ? (tile - odd) * HALVES_COLUMNS + 4 * t + odd * 2 + e % 2
                                    : tile * HALVES_COLUMNS + t + e % 2 * 4;
}

/* Bit i: whether slot i of the lane's four of the step at `slot` is in [from, to). */
template <tsr_type TYPE> TSR_DEVICE uint32_t halves_seen(int slot, int from, int to)
{
    const int t = threadIdx.x % 4;
    uint32_t seen = 0;
    TSR_UNROLL
    for (int i = 0; i < 4; i++) {
        const int mine = slot + (halves_type<TYPE>::codes ? 4 * t + i : t + 4 * i);
        seen |= (uint32_t)(mine >= from && mine < to) << i;
    }
    return seen;
}

/* Add the weights themselves, of a lane's four slots. */
template <tsr_type TYPE>
TSR_DEVICE void halves_add_weights(const halves_step<TYPE> &step, uint32_t seen, float sums[4])
{
    const uint32_t one = TYPE == TSR_TYPE_F16 ? 0x3c003c00u : 0x3f803f80u;
    uint32_t ones[2] = {one, one};
    if (seen != 15u) {
        TSR_UNROLL
        for (int i = 0; i < 2; i++)
            ones[i] &= halves_pair(halves_mask(seen, 2 * i), halves_mask(seen, 2 * i + 1), false);
    }
    halves_add<TYPE>(step, ones[0], ones[1], sums);
}

#endif
