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

/* The weights' factor: the sum of weights has it as well. */
template <tsr_type TYPE> TSR_DEVICE float halves_unit(void)
{
    return TYPE == TSR_TYPE_F16 ? (float)HALVES_UNIT_F16 : 1.0f;
}

/* Parts of two neighbours, in the fragment of a product: of rows g and g + 8. */
template <tsr_type TYPE> struct halves_parts {
    tsr_bytes_8 part[half_type<TYPE>::parts];
};

static inline __host__ __device__ int halves_windows(int64_t dim)
{
    return (int)((dim + HALF_WINDOW - 1) / HALF_WINDOW);
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

/* A warp divides a query into the fragments' row. NULL: zeros. *factor: what its products are multiplied by
 * to be scores. */
template <tsr_type TYPE>
TSR_DEVICE void halves_query(const attention_args &a, const float *query, int row, tsr_bytes_16 *fragments,
                             float *factor)
{
    enum { LOADS = HALVES_MAX_DIM / HALF_CHUNK };
    const int lane = threadIdx.x % TSR_WARP, k_dim = (int)a.op.kv.k_dim;
    float values[LOADS][4] = {}, top = 0.0f;
    TSR_UNROLL
    for (int i = 0; i < LOADS; i++) {
        const int at = i * HALF_CHUNK + 4 * lane;
        if (query && at < k_dim)
            halves_load_query(query + at, a.wide_q, values[i]);
        TSR_UNROLL
        for (int e = 0; e < 4; e++)
            top = fmaxf(top, fabsf(values[i][e]));
    }
    const float tops[4] = {top, 0.0f, 0.0f, 0.0f};
    const int n = half_type<TYPE>::scaled ? half_scale_of(tops) : 0;
    if (lane == 0)
        *factor = half_power_of_two(-n) * a.op.scale;
    TSR_UNROLL
    for (int i = 0; i < LOADS; i++) {
        const int at = i * HALF_CHUNK + 4 * lane;
        tsr_bytes_8 parts[half_type<TYPE>::parts];
        if (at >= halves_windows(k_dim) * HALF_WINDOW)
            break;
        half_split<TYPE>(values[i], half_power_of_two(n), parts);
        TSR_UNROLL
        for (int p = 0; p < half_type<TYPE>::parts; p++) {
            const int step = at / HALF_WINDOW * 2 + at / 4 % 2;
            tsr_bytes_16 *into = fragments + (step * half_type<TYPE>::parts + p) * TSR_WARP + row % 8 * 4 +
                                 at % HALF_WINDOW / TSR_OCTET;
            into->word[row / 8] = parts[p].word[0];
            into->word[row / 8 + 2] = parts[p].word[1];
        }
    }
}

/* -- copies of keys and values -- */

/* The positions start + [from, to) of one sequence are seen. [low, high), multiples of 16, are copied, with
 * zeros where nothing is seen. */
struct halves_slots {
    int64_t seq_row, kv_head, start;
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

/* Start to copy slots [first, first + n) to `into`. Every thread of the block calls it. */
TSR_DEVICE void halves_fill(const attention_args &a, const halves_slots &slots, const halves_row &part,
                            int first, int n, tsr_bytes_16 *into)
{
    enum { ROWS = 16, LANES = 16 };
    const int lane = threadIdx.x % TSR_WARP, warps = blockDim.x / TSR_WARP;
    const int pieces =
        (int)(part.values ? a.op.kv.v_dim : a.op.kv.k_dim) / TSR_OCTET - part.begin * HALF_PIECES;
    TSR_UNROLL_BY(1)
    for (int row = first + (int)threadIdx.x / TSR_WARP * ROWS; row < first + n; row += warps * ROWS) {
        if (row + ROWS <= slots.low || row >= slots.high)
            continue;
        const int mine = row + lane % ROWS;
        size_t offset = 0;
        if (mine >= slots.from && mine < slots.to) {
            const tsr_kv_place place =
                tsr_kv_find(a.op.kv, a.op.index, slots.seq_row, slots.start + mine, slots.kv_head);
            offset = (size_t)((part.values ? tsr_kv_value(a.op.kv, place) : tsr_kv_key(a.op.kv, place)) -
                              a.op.kv.base);
        }
        TSR_UNROLL_BY(2)
        for (int i = 0; i < ROWS; i += TSR_WARP / LANES) {
            const int slot = row + i + lane / LANES;
            const unsigned char *from = a.op.kv.base + __shfl_sync(TSR_ALL_LANES, offset, i + lane / LANES) +
                                        part.begin * HALF_PIECES * sizeof(tsr_bytes_16);
            const bool seen = slot >= slots.from && slot < slots.to;
            const int place = part.values ? slot - first : half_key_place(slot - first);
            TSR_UNROLL_BY(1)
            for (int p = lane % LANES; p < part.windows * HALF_PIECES; p += LANES) {
                const int piece = p % HALF_PIECES;
                tsr_bytes_16 *to = into + (p / HALF_PIECES * n + place) * HALF_PIECES +
                                   (part.values ? half_value_piece(slot, piece) : piece);
                if (seen && p < pieces)
                    tsr_copy_async_16(to, from + p * sizeof(tsr_bytes_16));
                else
                    *to = {{0u, 0u, 0u, 0u}};
            }
        }
    }
}

/* -- scores -- */

/* Add to c the products of 16 queries with the keys of COUNT tiles of 8 slots, `step` tiles apart, of n slots
 * in `keys`. */
template <tsr_type TYPE, int COUNT>
TSR_DEVICE void halves_products(const tsr_bytes_16 *fragments, const tsr_bytes_16 *keys, int n, int windows,
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
                const tsr_bytes_16 q = fragments[((window * 2 + s) * PARTS + p) * TSR_WARP + lane];
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

/* -- values -- */

/* What a step adds: the parts of the weights of two tiles of 8 slots, as fragments. */
template <tsr_type TYPE> struct halves_step {
    uint32_t weights[half_type<TYPE>::parts][4];
};

template <tsr_type TYPE>
TSR_DEVICE halves_step<TYPE> halves_step_of(const halves_parts<TYPE> &low, const halves_parts<TYPE> &high)
{
    halves_step<TYPE> step;
    TSR_UNROLL
    for (int p = 0; p < half_type<TYPE>::parts; p++) {
        step.weights[p][0] = low.part[p].word[0];
        step.weights[p][1] = low.part[p].word[1];
        step.weights[p][2] = high.part[p].word[0];
        step.weights[p][3] = high.part[p].word[1];
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

/* Bit i: whether slot `slot` + 4 i is in [from, to). */
TSR_DEVICE uint32_t halves_seen(int slot, int from, int to)
{
    uint32_t seen = 0;
    TSR_UNROLL
    for (int i = 0; i < 4; i++)
        seen |= (uint32_t)(slot + 4 * i >= from && slot + 4 * i < to) << i;
    return seen;
}

/* Add the weights themselves, of a lane's four slots. */
template <tsr_type TYPE>
TSR_DEVICE void halves_add_weights(const halves_step<TYPE> &step, uint32_t seen, float sums[4])
{
    const uint32_t one = TYPE == TSR_TYPE_F16 ? 0x3c003c00u : 0x3f803f80u;
    halves_add<TYPE>(step, one & halves_pair(halves_mask(seen, 0), halves_mask(seen, 1), false),
                     one & halves_pair(halves_mask(seen, 2), halves_mask(seen, 3), false), sums);
}

#endif
