/* mul_mat: y[t][r] = sum_k w[r][k] x[t][k], as one sum or as granule sums in the reduction's format.
 *
 * K is cut at granule ends and, inside a granule, every DOT_SEGMENT elements; fold_sums() turns the segment
 * sums into the op's output format. Two ways to compute a segment sum, with the same bits (dot.h):
 *
 *   one token    the weights are read once, so memory sets the pace: several rows at once, hence several
 * streams, decoded in registers and multiplied at once (mul_mat_vector). many tokens  a tile of weights is
 * decoded once into scratch and multiplied with every token (mul_mat_tile), at the pace of the multiply-add
 * units.
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
    VECTOR_ROWS = 4, /* rows at once for one token: two accumulators each */
#else
    VECTOR_ROWS = 2,
#endif
    TILE_ROWS = 64,  /* decoded weights: 64 x 512 floats = 128 KiB */
    TILE_TOKENS = 64 /* packed activations: as many */
};

/* mul_mat_tile's scratch. */
typedef struct tile_scratch {
    float w[TILE_ROWS * DOT_SEGMENT];
    float x[TILE_TOKENS * DOT_SEGMENT];
    float carry[TILE_TOKENS * TILE_ROWS]; /* sum of the granule so far */
} tile_scratch;

/* One piece of K: elements [begin, begin + n), and what its sum is part of. */
typedef struct k_segment {
    int64_t begin, n;
    bool opens, closes; /* first, last of its granule */
} k_segment;

ALWAYS_INLINE k_segment next_segment(const tsr_op_mul_mat *op, int64_t begin)
{
    const int64_t granule = op->partial && op->granule < op->k ? op->granule : op->k;
    const int64_t granule_begin = begin - begin % granule;
    const int64_t granule_end = op->k - granule_begin < granule ? op->k : granule_begin + granule;
    const int64_t left = granule_end - begin;
    return (k_segment){begin, left < DOT_SEGMENT ? left : DOT_SEGMENT, begin == granule_begin,
                       left <= DOT_SEGMENT};
}

/* Add n granule sums to n totals in fixed point; the first granule's segment begins the totals. */
ALWAYS_INLINE void fold_exact(const float *sums, int n, bool first, float limit, int64_t *totals, bool *fault)
{
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
    const bool first = segment->begin + segment->n <= (op->partial ? op->granule : op->k);
    if (op->partial && op->reduce == TSR_REDUCE_EXACT) {
        fold_exact(sums, n, first, op->limit, (int64_t *)op->y + at, fault);
        return;
    }
    float *y = (float *)op->y + at;
    for (int i = 0; i < n; i++)
        y[i] = first ? sums[i] : y[i] + sums[i];
}

/* ---- one token ---- */

/* sums[r] of one segment for n_rows rows `stride` bytes apart. */
ALWAYS_INLINE void vector_segment(tsr_type type, const int n_rows, const unsigned char *w, size_t stride,
                                  const float *x, int64_t n, float *sums)
{
    const int groups = (int)(block_elems(type) / 32);
    dot_state state[VECTOR_ROWS];
    UNROLL for (int r = 0; r < n_rows; r++) state[r] = (dot_state){v16_zero(), v16_zero()};
    for (; n >= block_elems(type); n -= block_elems(type)) {
        block_scales scales[VECTOR_ROWS];
        UNROLL for (int r = 0; r < n_rows; r++) scales_of(type, w + (size_t)r * stride, &scales[r]);
        UNROLL for (int group = 0; group < groups; group++)
        {
            const v16 xa = v16_load(x), xb = v16_load(x + 16);
            UNROLL for (int r = 0; r < n_rows; r++)
                dot_step(&state[r], weights_of(type, w + (size_t)r * stride, &scales[r], group), xa, xb);
            x += 32;
        }
        w += block_bytes(type);
    }
    if (is_plain(type) && n > 0) {
        const v16 xa = v16_load_n(x, n < 16 ? n : 16), xb = v16_load_n(x + 16, n < 16 ? 0 : n - 16);
        UNROLL for (int r = 0; r < n_rows; r++)
            dot_step(&state[r], weights_tail(type, w + (size_t)r * stride, n), xa, xb);
    }
    UNROLL for (int r = 0; r < n_rows; r++) sums[r] = v16_sum(v16_add(state[r].a, state[r].b));
}

ALWAYS_INLINE void vector_rows(tsr_type type, const int n_rows, const tsr_op_mul_mat *op, int64_t row,
                               bool *fault)
{
    const unsigned char *w = (const unsigned char *)op->w + (size_t)row * op->w_stride;
    float sums[VECTOR_ROWS], carry[VECTOR_ROWS] = {0};
    for (int64_t k = 0; k < op->k;) {
        const k_segment segment = next_segment(op, k);
        vector_segment(type, n_rows, w + elems_bytes(type, k), op->w_stride, op->x + k, segment.n, sums);
        fold_sums(op, &segment, 0, row, n_rows, sums, carry, fault);
        k += segment.n;
    }
}

ALWAYS_INLINE void vector_chunk(tsr_type type, const tsr_op_mul_mat *op, int64_t row, int64_t row_end,
                                bool *fault)
{
    for (; row + VECTOR_ROWS <= row_end; row += VECTOR_ROWS)
        vector_rows(type, VECTOR_ROWS, op, row, fault);
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

/* Decode rows [row, row + n_rows) of a segment; rows of scratch are DOT_SEGMENT apart. */
static void tile_decode(const tsr_op_mul_mat *op, const k_segment *segment, int64_t row, int n_rows, float *w)
{
    for (int r = 0; r < n_rows; r++) {
        const unsigned char *src = (const unsigned char *)op->w + (size_t)(row + r) * op->w_stride;
        decode_row(op->type, src + elems_bytes(op->type, segment->begin), segment->n, w + r * DOT_SEGMENT);
    }
}

/* Copy the segment of tokens [t, t + n_tokens), filled up with zeros to a multiple of 32: contiguous rows
 * cannot fight for the same cache sets, as rows a power of two apart would. */
static void tile_pack(const tsr_op_mul_mat *op, const k_segment *segment, int64_t t, int n_tokens, float *x)
{
    const int64_t padded = (segment->n + 31) / 32 * 32;
    for (int i = 0; i < n_tokens; i++, x += DOT_SEGMENT) {
        memcpy(x, op->x + (t + i) * op->x_stride + segment->begin, (size_t)segment->n * sizeof(float));
        memset(x + segment->n, 0, (size_t)(padded - segment->n) * sizeof(float));
    }
}

/* Multiply the decoded tile with the packed tokens; rows in the outer loop, so that they stay in the
 * first-level cache while the tokens pass. A last group of fewer than DOT_ROWS rows computes rows of stale
 * scratch too and drops them. */
static void tile_multiply(const tsr_op_mul_mat *op, const k_segment *segment, int64_t row, int n_rows,
                          int64_t t, int n_tokens, tile_scratch *scratch, bool *fault)
{
    const int64_t n = (segment->n + 31) / 32 * 32;
    for (int r = 0; r < n_rows; r += DOT_ROWS) {
        const int rows = n_rows - r < DOT_ROWS ? n_rows - r : DOT_ROWS;
        for (int i = 0; i < n_tokens; i += DOT_TOKENS) {
            const int tokens = n_tokens - i < DOT_TOKENS ? n_tokens - i : DOT_TOKENS;
            float sums[DOT_TOKENS * DOT_ROWS];
            dot_tile(tokens, scratch->w + r * DOT_SEGMENT, scratch->x + i * DOT_SEGMENT, DOT_SEGMENT, n,
                     sums);
            for (int j = 0; j < tokens; j++) {
                float *carry = scratch->carry + (i + j) * TILE_ROWS + r;
                if (rows == DOT_ROWS)
                    fold_sums(op, segment, t + i + j, row + r, DOT_ROWS, sums + j * DOT_ROWS, carry, fault);
                else
                    fold_sums(op, segment, t + i + j, row + r, rows, sums + j * DOT_ROWS, carry, fault);
            }
        }
    }
}

static void mul_mat_tile(const tsr_op_mul_mat *op, int64_t row, int64_t row_end, tile_scratch *scratch,
                         bool *fault)
{
    const int n_rows = (int)(row_end - row);
    for (int64_t t = 0; t < op->n_tokens; t += TILE_TOKENS) {
        const int n_tokens = (int)(op->n_tokens - t < TILE_TOKENS ? op->n_tokens - t : TILE_TOKENS);
        for (int64_t k = 0; k < op->k;) {
            const k_segment segment = next_segment(op, k);
            tile_decode(op, &segment, row, n_rows, scratch->w);
            tile_pack(op, &segment, t, n_tokens, scratch->x);
            tile_multiply(op, &segment, row, n_rows, t, n_tokens, scratch, fault);
            k += segment.n;
        }
    }
}

/* ---- the op ---- */

/* An empty sum is zero: a device may hold rows of a matrix but none of its columns. */
static void mul_mat_clear(const tsr_op_mul_mat *op, int64_t row, int64_t row_end)
{
    const size_t elem = op->partial && op->reduce == TSR_REDUCE_EXACT ? sizeof(int64_t) : sizeof(float);
    for (int64_t t = 0; t < op->n_tokens; t++)
        memset((char *)op->y + (size_t)(t * op->y_stride + row) * elem, 0, (size_t)(row_end - row) * elem);
}

static void kernel_mul_mat(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_mul_mat *op = &record->mul_mat;
    /* About eight chunks per thread even out the threads' speeds; a chunk is a multiple of the register tile.
     */
    int64_t chunk = op->n_rows / ((int64_t)env->n_threads * 8) / DOT_ROWS * DOT_ROWS;
    chunk = chunk < DOT_ROWS ? DOT_ROWS : chunk > TILE_ROWS ? TILE_ROWS : chunk;
    bool fault = false;
    for (;;) {
        const int64_t row = tsr_kernel_next(env) * chunk;
        if (row >= op->n_rows)
            break;
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
