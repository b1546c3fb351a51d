/* mul_mat: y[t][r] = sum_k w[r][k] x[t][k], as one sum or as granule sums in the reduction's format.
 *
 * K is cut at granule ends and, inside a granule, every DOT_SEGMENT elements; fold_sums() turns the segment
 * sums into the op's output format. There are two ways to compute a segment sum, with the same bits (dot.h).
 *
 * One token (mul_mat_vector): the weights are read once, so memory sets the pace. Several rows at once, hence
 * several streams; weights are decoded in registers and multiplied at once.
 *
 * Many tokens (mul_mat_tile): a few rows' segment is decoded once into scratch, small enough to stay in the
 * first-level cache, and multiplied with every token, at the pace of the multiply-add units.
 *
 * Threads take chunks of rows from the team's counter, because cores do not run at equal speed for long. */
#ifndef TSR_HOST_KERNELS_MUL_MAT_H
#define TSR_HOST_KERNELS_MUL_MAT_H

#include "core/fixed.h"
#include "host/kernels.h"
#include "host/kernels/dot.h"
#include "host/kernels/weights.h"

enum {
#if defined(TSR_ISA_AVX512)
    VECTOR_ROWS = 8, /* most rows at once for one token: two accumulators each */
#else
    VECTOR_ROWS = 2,
#endif
    PREFETCH_BYTES = 1024, /* ahead */
    TILE_ROWS = 256,       /* most rows of a chunk: how often packed activations are used */
    TILE_TOKENS = 128,     /* most tokens at once: how often decoded weights are used */
    FEW_TOKENS = 8         /* up to here memory still sets the pace, and packing does not pay */
};

/* mul_mat_tile's scratch: the activations fill a good part of the second-level cache. */
typedef struct tile_scratch {
    float w[DOT_ROWS * DOT_SEGMENT];
    float x[TILE_TOKENS * DOT_SEGMENT];
    float carry[TILE_TOKENS * TILE_ROWS]; /* sums of the granule so far */
} tile_scratch;

/* One piece of K: elements [begin, begin + n), and what its sum is part of. */
typedef struct k_segment {
    int64_t begin, n;
    int64_t granule, granule_end;
    bool opens, closes; /* first, last of its granule */
} k_segment;

/* The segment at `begin` of a granule that ends at `granule_end`. */
ALWAYS_INLINE k_segment segment_at(int64_t begin, int64_t granule, int64_t granule_end, bool opens)
{
    const int64_t left = granule_end - begin;
    return (k_segment){
        begin, left < DOT_SEGMENT ? left : DOT_SEGMENT, granule, granule_end, opens, left <= DOT_SEGMENT};
}

/* A BF16 partial is one sum over K: between granules it would be rounded where it lies. */
ALWAYS_INLINE k_segment segment_first(const tsr_op_mul_mat *op)
{
    const bool in_granules = op->partial && op->reduce != TSR_REDUCE_BF16;
    const int64_t granule = in_granules && op->granule < op->k ? op->granule : op->k;
    return segment_at(0, granule, granule, true);
}

/* Step to the next segment; false after the last. */
ALWAYS_INLINE bool segment_next(const tsr_op_mul_mat *op, k_segment *segment)
{
    const int64_t begin = segment->begin + segment->n;
    if (begin == op->k)
        return false;
    const bool opens = begin == segment->granule_end;
    int64_t end = segment->granule_end;
    if (opens)
        end = op->k - end < segment->granule ? op->k : end + segment->granule;
    *segment = segment_at(begin, segment->granule, end, opens);
    return true;
}

/* Add n granule sums to n totals in fixed point; the first granule's segment begins the totals. */
ALWAYS_INLINE void fold_exact(const float *sums, int n, bool first, float limit, int64_t *totals, bool *fault)
{
#if defined(TSR_ISA_AVX512)
    if (n == 4 || n == 8) { /* the same at once; limit > 0, and the comparison is false for NaN */
        const __mmask8 lanes = (__mmask8)((1 << n) - 1);
        const __m256 sum = n == 8 ? _mm256_loadu_ps(sums) : _mm256_castps128_ps256(_mm_loadu_ps(sums));
        const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), sum);
        const __mmask8 ok = _mm256_cmp_ps_mask(size, _mm256_set1_ps(limit), _CMP_LT_OQ);
        const __m512d scaled = _mm512_mul_pd(_mm512_maskz_cvtps_pd(ok, sum), _mm512_set1_pd(TSR_FIXED_ONE));
        const __m512i fixed = _mm512_cvtpd_epi64(scaled);
        const __m512i before = _mm512_maskz_loadu_epi64(first ? 0 : lanes, totals);
        _mm512_mask_storeu_epi64(totals, lanes, _mm512_add_epi64(before, fixed));
        *fault |= (ok & lanes) != lanes;
        return;
    }
#endif
    for (int i = 0; i < n; i++) {
        const bool ok = tsr_fixed_in_range(sums[i], limit);
        const int64_t fixed = tsr_fixed_from_f32(ok ? sums[i] : 0.0f);
        *fault |= !ok;
        totals[i] = first ? fixed : totals[i] + fixed;
    }
}

/* Take the sums of one segment for outputs [row, row + n) of token t. `sums` and `carry` have n entries. */
ALWAYS_INLINE void fold_sums(const tsr_op_mul_mat *op, const k_segment *segment, int64_t t, int64_t row,
                             int n, float *sums, float *carry, bool *fault)
{
    if (!segment->opens)
        for (int i = 0; i < n; i++)
            sums[i] = carry[i] + sums[i];
    if (!segment->closes) {
        memcpy(carry, sums, (size_t)n * sizeof(float));
        return;
    }
    const int64_t at = t * op->y_stride + row;
    const bool first = segment->granule_end == segment->granule;
    if (op->partial && op->reduce == TSR_REDUCE_EXACT) {
        fold_exact(sums, n, first, op->limit, (int64_t *)op->y + at, fault);
        return;
    }
    if (op->partial && op->reduce == TSR_REDUCE_BF16) {
        for (int i = 0; i < n; i++)
            ((uint16_t *)op->y)[at + i] = tsr_f32_to_bf16(sums[i]);
        return;
    }
    float *y = (float *)op->y + at;
    for (int i = 0; i < n; i++)
        y[i] = first ? sums[i] : y[i] + sums[i];
}

/* ---- one token ---- */

/* Multiply one unit of n_rows rows `stride` bytes apart, and ask for what comes PREFETCH_BYTES later: the
 * processor looks ahead about as far as one unit, memory answers later than that. Asking past the matrix is
 * harmless. */
ALWAYS_INLINE void vector_unit(tsr_type type, const int n_rows, const int groups, const unsigned char *w,
                               size_t stride, const float *x, dot_state *state)
{
    unit_scales scales[VECTOR_ROWS];
    UNROLL for (int r = 0; r < n_rows; r++)
    {
        const unsigned char *row = w + (size_t)r * stride;
        UNROLL for (size_t line = 0; line < elems_bytes(type, groups * 32); line += 64)
            __builtin_prefetch(row + PREFETCH_BYTES + line);
        scales_of(type, row, groups, &scales[r]);
    }
    UNROLL for (int group = 0; group < groups; group++)
    {
        const v16 xa = v16_load(x + 32 * group), xb = v16_load(x + 32 * group + 16);
        UNROLL for (int r = 0; r < n_rows; r++)
            dot_step(&state[r], weights_of(type, w + (size_t)r * stride, &scales[r], group), xa, xb);
    }
}

/* sums[r] of one segment for n_rows rows `stride` bytes apart. */
ALWAYS_INLINE void vector_segment(tsr_type type, const int n_rows, const unsigned char *w, size_t stride,
                                  const float *x, int64_t n, float *sums)
{
    const int groups = unit_groups(type);
    dot_state state[VECTOR_ROWS];
    UNROLL for (int r = 0; r < n_rows; r++) state[r] = (dot_state){v16_zero(), v16_zero()};
    for (; n >= groups * 32; n -= groups * 32, x += groups * 32, w += elems_bytes(type, groups * 32))
        vector_unit(type, n_rows, groups, w, stride, x, state);
    for (; !is_super_block(type) && n >= 32; n -= 32, x += 32, w += elems_bytes(type, 32))
        vector_unit(type, n_rows, 1, w, stride, x, state);
    if (is_plain(type) && n > 0) {
        const v16 xa = v16_load_n(x, n < 16 ? n : 16), xb = v16_load_n(x + 16, n < 16 ? 0 : n - 16);
        UNROLL for (int r = 0; r < n_rows; r++)
            dot_step(&state[r], weights_tail(type, w + (size_t)r * stride, n), xa, xb);
    }
    v16 sum[VECTOR_ROWS];
    UNROLL for (int r = 0; r < n_rows; r++) sum[r] = v16_add(state[r].a, state[r].b);
    if (n_rows % 4 == 0)
        v16_sum_n(n_rows, sum, sums);
    else
        UNROLL for (int r = 0; r < n_rows; r++) sums[r] = v16_sum(sum[r]);
}

ALWAYS_INLINE void vector_rows(tsr_type type, const int n_rows, const tsr_op_mul_mat *op, int64_t row,
                               bool *fault)
{
    const unsigned char *w = (const unsigned char *)op->w + (size_t)row * op->w_stride;
    float sums[VECTOR_ROWS], carry[VECTOR_ROWS] = {0};
    k_segment segment = segment_first(op);
    do {
        const int64_t k = segment.begin;
        vector_segment(type, n_rows, w + elems_bytes(type, k), op->w_stride, op->x + k, segment.n, sums);
        fold_sums(op, &segment, 0, row, n_rows, sums, carry, fault);
    } while (segment_next(op, &segment));
}

ALWAYS_INLINE void vector_chunk(tsr_type type, const tsr_op_mul_mat *op, int64_t row, int64_t row_end,
                                bool *fault)
{
    /* The K types decode with so many registers that eight rows' accumulators would not stay in theirs. */
    const int rows = is_super_block(type) && VECTOR_ROWS > 4 ? 4 : VECTOR_ROWS;
    for (; row + rows <= row_end; row += rows)
        vector_rows(type, rows, op, row, fault);
    for (; row < row_end; row++)
        vector_rows(type, 1, op, row, fault);
}

static void mul_mat_vector(const tsr_op_mul_mat *op, int64_t row, int64_t row_end, bool *fault)
{
    switch (op->type) {
#define VECTOR_CASE(constant)                            \
    case constant:                                       \
        vector_chunk(constant, op, row, row_end, fault); \
        break;
        FOR_EACH_WEIGHT_TYPE(VECTOR_CASE)
#undef VECTOR_CASE
    default:
        break;
    }
}

/* ---- many tokens ---- */

/* Some tokens' activations in one segment, rows `stride` floats apart, n a multiple of 32. */
typedef struct tile_tokens {
    const float *x;
    size_t stride;
    int64_t n, first;
    int n_tokens;
} tile_tokens;

/* Few tokens are used where they lie. Many are copied: contiguous rows cannot fight for the same cache sets,
 * as rows a power of two apart would. A segment that is no multiple of 32 is filled up with zeros. */
static tile_tokens tile_pack(const tsr_op_mul_mat *op, const k_segment *segment, int64_t t, int n_tokens,
                             float *packed)
{
    const int64_t padded = (segment->n + 31) / 32 * 32;
    const float *x = op->x + t * op->x_stride + segment->begin;
    if (n_tokens <= FEW_TOKENS && padded == segment->n)
        return (tile_tokens){x, (size_t)op->x_stride, padded, t, n_tokens};
    for (int i = 0; i < n_tokens; i++) {
        float *row = packed + i * DOT_SEGMENT;
        memcpy(row, x + i * op->x_stride, (size_t)segment->n * sizeof(float));
        memset(row + segment->n, 0, (size_t)(padded - segment->n) * sizeof(float));
    }
    return (tile_tokens){packed, DOT_SEGMENT, padded, t, n_tokens};
}

/* Multiply the decoded rows [row, row + n_rows) with the tokens. Fewer than DOT_ROWS rows: the tile computes
 * rows of stale scratch too, and they are dropped. `carry` of a token's rows, tokens TILE_ROWS apart. */
ALWAYS_INLINE void tile_multiply(const tsr_op_mul_mat *op, const k_segment *segment, int64_t row,
                                 const int n_rows, const tile_tokens *tokens, const float *w, float *carry,
                                 bool *fault)
{
    for (int i = 0; i < tokens->n_tokens; i += DOT_TOKENS) {
        const int n = tokens->n_tokens - i < DOT_TOKENS ? tokens->n_tokens - i : DOT_TOKENS;
        float sums[DOT_TOKENS * DOT_ROWS];
        dot_tile(n, w, DOT_SEGMENT, tokens->x + (size_t)i * tokens->stride, tokens->stride, tokens->n, sums);
        for (int j = 0; j < n; j++)
            fold_sums(op, segment, tokens->first + i + j, row, n_rows, sums + j * DOT_ROWS,
                      carry + (i + j) * TILE_ROWS, fault);
    }
}

/* One segment of rows [row, row_end). */
static void tile_rows(const tsr_op_mul_mat *op, const k_segment *segment, int64_t row, int64_t row_end,
                      const tile_tokens *tokens, tile_scratch *scratch, bool *fault)
{
    float *carry = scratch->carry;
    for (; row < row_end; row += DOT_ROWS, carry += DOT_ROWS) {
        const int n_rows = row_end - row < DOT_ROWS ? (int)(row_end - row) : DOT_ROWS;
        const unsigned char *w = (const unsigned char *)op->w + elems_bytes(op->type, segment->begin);
        for (int r = 0; r < n_rows; r++)
            decode_row(op->type, w + (size_t)(row + r) * op->w_stride, segment->n,
                       scratch->w + r * DOT_SEGMENT);
        if (n_rows == DOT_ROWS) /* a constant for the compiler */
            tile_multiply(op, segment, row, DOT_ROWS, tokens, scratch->w, carry, fault);
        else
            tile_multiply(op, segment, row, n_rows, tokens, scratch->w, carry, fault);
    }
}

static void mul_mat_tile(const tsr_op_mul_mat *op, int64_t row, int64_t row_end, tile_scratch *scratch,
                         bool *fault)
{
    for (int64_t t = 0; t < op->n_tokens; t += TILE_TOKENS) {
        const int n_tokens = (int)(op->n_tokens - t < TILE_TOKENS ? op->n_tokens - t : TILE_TOKENS);
        k_segment segment = segment_first(op);
        do {
            const tile_tokens tokens = tile_pack(op, &segment, t, n_tokens, scratch->x);
            tile_rows(op, &segment, row, row_end, &tokens, scratch, fault);
        } while (segment_next(op, &segment));
    }
}

/* ---- the op ---- */

/* An empty sum is zero: a device may hold rows of a matrix but none of its columns. */
static void mul_mat_clear(const tsr_op_mul_mat *op, int64_t row, int64_t row_end)
{
    const size_t elem = op->partial ? tsr_reduce_bytes(op->reduce) : sizeof(float);
    for (int64_t t = 0; t < op->n_tokens; t++)
        memset((char *)op->y + (size_t)(t * op->y_stride + row) * elem, 0, (size_t)(row_end - row) * elem);
}

/* Rows that a thread takes at once, a multiple of the register tile. About four chunks per thread even out
 * the threads' speeds; few tokens take the least, to walk along a few rows rather than jump among many. */
static int64_t mul_mat_chunk(const tsr_op_mul_mat *op, int n_threads)
{
    const int64_t most = op->n_tokens == 1 ? 64 : op->n_tokens <= FEW_TOKENS ? DOT_ROWS : TILE_ROWS;
    const int64_t even = op->n_rows / ((int64_t)n_threads * 4) / DOT_ROWS * DOT_ROWS;
    return even < DOT_ROWS ? DOT_ROWS : even < most ? even : most;
}

static void kernel_mul_mat(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_mul_mat *op = &record->mul_mat;
    const int64_t chunk = mul_mat_chunk(op, env->n_threads);
    bool fault = false;
    for (int64_t row; (row = tsr_kernel_next(env) * chunk) < op->n_rows;) {
        const int64_t row_end = op->n_rows - row < chunk ? op->n_rows : row + chunk;
        if (op->k == 0)
            mul_mat_clear(op, row, row_end);
        else if (op->n_tokens == 1)
            mul_mat_vector(op, row, row_end, &fault);
        else
            mul_mat_tile(op, row, row_end, env->scratch, &fault);
    }
    if (fault)
        atomic_store_explicit(env->range_fault, 1, memory_order_relaxed);
}

#endif
