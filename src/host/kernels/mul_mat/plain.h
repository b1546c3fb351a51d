/* mul_mat for F32, F16 and BF16 weights: f32 products, in the order of dot.h. With AMX, F16 and BF16 are
 * multiplied by half.h; BF16 pairs by pairs.h. There are two ways to compute a segment sum, with the same
 * bits.
 *
 * One token or a few (plain_vector): the weights are read once, so memory limits the speed. Several rows are
 * read together, hence several streams; weights are widened in registers and multiplied immediately.
 *
 * Many tokens (plain_tile): a segment of a few rows is widened once into scratch, small enough to stay in the
 * first-level cache, and multiplied with every token. The multiply-add units limit the speed. */
#ifndef TSR_HOST_KERNELS_MUL_MAT_PLAIN_H
#define TSR_HOST_KERNELS_MUL_MAT_PLAIN_H

#include "host/kernels/mul_mat/dot.h"
#include "host/kernels/mul_mat/sums.h"
#include "host/kernels/quant/weights.h"

enum {
    VECTOR_ROWS = 4, /* most rows per step with few tokens */
#if defined(TSR_ISA_AVX512)
    VECTOR_TOKENS = 4, /* most tokens per step: 4 x 4 accumulators of 32 registers */
#elif defined(TSR_ISA_AVX2) || defined(TSR_ISA_NEON)
    VECTOR_TOKENS = 2,
#else
    VECTOR_TOKENS = 1,
#endif
    VECTOR_UNIT = 128,             /* elements multiplied per step */
    STREAM_AHEAD = 2048,           /* bytes */
    TILE_ROWS = 512,               /* most rows of a chunk: the sums of more rows would leave the caches */
    TILE_TOKENS = 264,             /* most tokens, whole register tiles: how often decoded weights are used */
    BATCH_TOKENS = 2 * DOT_TOKENS, /* tokens whose sums are made together */
    X_AHEAD = 3,                   /* tokens */
    FEW_TOKENS = 8                 /* up to here memory still limits the speed, and packing does not pay */
};

/* plain_tile's scratch: the activations fill a good part of the second-level cache. */
typedef struct plain_scratch {
    float w[DOT_ROWS * DOT_SEGMENT];
    float x[TILE_TOKENS * DOT_SEGMENT];
    /* Sums of granules that are longer than a stage: DOT_ROWS rows of every token, then the next rows, so
     * that a tile moves along memory. */
    float carry[TILE_TOKENS * TILE_ROWS];
} plain_scratch;
_Static_assert(TILE_TOKENS *TILE_ROWS <= TOTALS_MAX, "totals of a product");

/* n elements rounded up to whole blocks of 32, which a tile multiplies. */
ALWAYS_INLINE int64_t plain_padded(int64_t n)
{
    return (n + 31) / 32 * 32;
}

/* Add to n sums of one segment the sums of the granule before it, kept in `carry`. True where the granule is
 * complete. */
ALWAYS_INLINE bool plain_carry(const k_segment *segment, int n, float *sums, float *carry)
{
    int i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES) { /* not memcpy: a call takes longer than a few vectors */
        vec sum = vec_load(sums + i);
        if (!segment->opens)
            vec_store(sums + i, sum = vec_load(carry + i) + sum);
        if (!segment->closes)
            vec_store(carry + i, sum);
    }
    for (; i < n; i++) {
        sums[i] = segment->opens ? sums[i] : carry[i] + sums[i];
        carry[i] = sums[i];
    }
    return segment->closes;
}

/* -- few tokens -- */

/* The addresses of some tokens' activations. */
typedef struct plain_x {
    const float *row[VECTOR_TOKENS];
} plain_x;

/* The prefetch while rows are multiplied: of every row the data `bytes` bytes later or, as one stream, the
 * next rows. */
typedef struct plain_ahead {
    size_t bytes;
    panel_ahead next;
} plain_ahead;

ALWAYS_INLINE plain_ahead plain_ahead_of(const product *p, tsr_type type, int64_t row)
{
    return (plain_ahead){0, panel_ahead_of(p, type, VECTOR_ROWS, row)};
}

/* The data to prefetch while n_rows rows from w on are multiplied, `bytes` bytes in all. */
ALWAYS_INLINE const unsigned char *plain_next(const tsr_cpu_reading reading, size_t bytes,
                                              const unsigned char *w, plain_ahead *ahead)
{
    return reading == TSR_CPU_STREAMS ? w + ahead->bytes : panel_ahead_step(&ahead->next, bytes);
}

ALWAYS_INLINE void plain_ask(const tsr_cpu_reading reading, const int n_rows, const unsigned char *next,
                             const plain_ahead *ahead, size_t stride, size_t line)
{
    if (reading == TSR_CPU_STREAMS) {
        __builtin_prefetch(next + line % (size_t)n_rows * stride + line / (size_t)n_rows * 64);
        return;
    }
    panel_ask(reading, next + 64 * line);
    panel_ask(reading, next + 64 * line - ahead->next.again);
}

/* Multiply one unit of n_rows rows `stride` bytes apart, elements from k on, with n_tokens tokens, and
 * prefetch as much, spread over the unit: lines prefetched in a burst wait for each other. Prefetching past
 * the matrix is harmless. */
ALWAYS_INLINE void plain_unit(tsr_type type, const int n_rows, const int n_tokens,
                              const tsr_cpu_reading reading, const int groups, const unsigned char *w,
                              size_t stride, plain_ahead *ahead, const plain_x *x, int64_t k,
                              v8 state[VECTOR_TOKENS][VECTOR_ROWS])
{
    const int steps = groups * 32 / DOT_LANES;
    const size_t bytes = elems_bytes(type, groups * 32), lines = (size_t)n_rows * bytes / 64;
    const unsigned char *next = plain_next(reading, (size_t)n_rows * bytes, w, ahead);
    UNROLL for (int i = 0; i < steps; i++)
    {
        v8 xi[VECTOR_TOKENS];
        UNROLL for (int t = 0; t < n_tokens; t++) xi[t] = v8_load(x->row[t] + k + i * DOT_LANES);
        UNROLL for (size_t line = (size_t)i * lines / (size_t)steps;
                    line < (size_t)(i + 1) * lines / (size_t)steps; line++)
            plain_ask(reading, n_rows, next, ahead, stride, line);
        UNROLL for (int r = 0; r < n_rows; r++)
        {
            const v8 wr = plain_eight(type, w + (size_t)r * stride, i);
            UNROLL for (int t = 0; t < n_tokens; t++) state[t][r] = v8_fma(wr, xi[t], state[t][r]);
        }
    }
}

ALWAYS_INLINE void plain_sums(const int n_rows, const v8 state[VECTOR_ROWS], float sums[VECTOR_ROWS])
{
    if (n_rows == 4)
        v8_sum4(state, sums);
    else
        UNROLL for (int r = 0; r < n_rows; r++) sums[r] = v8_sum(state[r]);
}

/* sums[t][r] of the segment at k, of n elements, for n_rows rows `stride` bytes apart. */
ALWAYS_INLINE void plain_vector_segment(tsr_type type, const int n_rows, const int n_tokens,
                                        const tsr_cpu_reading reading, const unsigned char *w, size_t stride,
                                        plain_ahead *ahead, const plain_x *x, int64_t k, int64_t n,
                                        float sums[VECTOR_TOKENS][VECTOR_ROWS])
{
    v8 state[VECTOR_TOKENS][VECTOR_ROWS];
    UNROLL for (int t = 0; t < n_tokens; t++) UNROLL for (int r = 0; r < n_rows; r++) state[t][r] = v8_zero();
    for (; n >= VECTOR_UNIT; n -= VECTOR_UNIT, k += VECTOR_UNIT, w += elems_bytes(type, VECTOR_UNIT))
        plain_unit(type, n_rows, n_tokens, reading, VECTOR_UNIT / 32, w, stride, ahead, x, k, state);
    for (; n >= 32; n -= 32, k += 32, w += elems_bytes(type, 32))
        plain_unit(type, n_rows, n_tokens, reading, 1, w, stride, ahead, x, k, state);
    if (n > 0)
        UNROLL for (int t = 0; t < n_tokens; t++)
        {
            const float *xt = x->row[t] + k;
            const v16 xa = v16_load_n(xt, n < 16 ? n : 16), xb = v16_load_n(xt + 16, n < 16 ? 0 : n - 16);
            UNROLL for (int r = 0; r < n_rows; r++) state[t][r] =
                dot_step(state[t][r], weights_tail(type, w + (size_t)r * stride, n), xa, xb);
        }
    UNROLL for (int t = 0; t < n_tokens; t++) plain_sums(n_rows, state[t], sums[t]);
}

/* Multiply rows [row, row + n_rows) with tokens [token, token + n_tokens). */
ALWAYS_INLINE void plain_vector_rows(tsr_type type, const int n_rows, const int n_tokens,
                                     const tsr_cpu_reading reading, const product *p, int64_t row,
                                     int64_t token)
{
    const tsr_op_mul_mat *op = p->op;
    const unsigned char *w = product_w(p, type, row, 0);
    const size_t row_bytes = elems_bytes(type, op->k);
    plain_ahead ahead = plain_ahead_of(p, type, row);
    float sums[VECTOR_TOKENS][VECTOR_ROWS], carry[VECTOR_TOKENS][VECTOR_ROWS] = {0};
    plain_x x;
    UNROLL for (int t = 0; t < n_tokens; t++) x.row[t] = product_x(p, token + t);
    k_segment segment = segment_first(op, DOT_SEGMENT);
    do {
        const int64_t k = segment.begin;
        ahead.bytes = ahead_in_rows(p, VECTOR_ROWS, elems_bytes(type, k), row_bytes, STREAM_AHEAD);
        plain_vector_segment(type, n_rows, n_tokens, reading, w + elems_bytes(type, k), op->w_stride, &ahead,
                             &x, k, segment.n, sums);
        for (int t = 0; t < n_tokens; t++)
            if (plain_carry(&segment, n_rows, sums[t], carry[t]))
                fold_granule(p, &segment, token + t, row, n_rows, sums[t]);
    } while (segment_next(op, &segment));
}

/* Multiply a panel with all the product's tokens. Weights that the first tokens have read are in the caches
 * for the others. */
ALWAYS_INLINE void plain_vector_panel(tsr_type type, const int n_rows, const tsr_cpu_reading reading,
                                      const product *p, int64_t row)
{
    int64_t token = p->token;
    for (; p->token_end - token >= 4 && VECTOR_TOKENS >= 4; token += 4)
        plain_vector_rows(type, n_rows, VECTOR_TOKENS >= 4 ? 4 : 1, reading, p, row, token);
    for (; p->token_end - token >= 2 && VECTOR_TOKENS >= 2; token += 2)
        plain_vector_rows(type, n_rows, VECTOR_TOKENS >= 2 ? 2 : 1, reading, p, row, token);
    for (; token < p->token_end; token++)
        plain_vector_rows(type, n_rows, 1, reading, p, row, token);
}

ALWAYS_INLINE void plain_vector_type(tsr_type type, const tsr_cpu_reading reading, const product *p)
{
    int64_t row = p->row;
    for (; row + VECTOR_ROWS <= p->row_end; row += VECTOR_ROWS)
        plain_vector_panel(type, VECTOR_ROWS, reading, p, row);
    for (; row < p->row_end; row++)
        plain_vector_panel(type, 1, reading, p, row);
}

ALWAYS_INLINE void plain_vector_streams(tsr_type type, const product *p)
{
    if (p->env->reading == TSR_CPU_STREAMS)
        plain_vector_type(type, TSR_CPU_STREAMS, p);
    else if (p->env->reading == TSR_CPU_ONE_STREAM)
        plain_vector_type(type, TSR_CPU_ONE_STREAM, p);
    else
        plain_vector_type(type, TSR_CPU_ONE_STREAM_L2, p);
}

static NOINLINE void plain_vector_f32(const product *p)
{
    plain_vector_streams(TSR_TYPE_F32, p);
}

static NOINLINE void plain_vector_f16(const product *p)
{
    plain_vector_streams(TSR_TYPE_F16, p);
}

static NOINLINE void plain_vector_bf16(const product *p)
{
    plain_vector_streams(TSR_TYPE_BF16, p);
}

/* Multiply rows [row, row + n_rows) of NVFP4, decoded a segment at a time, with tokens [token, token +
 * n_tokens). */
ALWAYS_INLINE void decoded_vector_rows(const int n_rows, const int n_tokens, const product *p, int64_t row,
                                       int64_t token)
{
    const tsr_op_mul_mat *op = p->op;
    plain_ahead ahead = {0};
    float w[VECTOR_ROWS][DOT_SEGMENT];
    float sums[VECTOR_TOKENS][VECTOR_ROWS], carry[VECTOR_TOKENS][VECTOR_ROWS] = {0};
    plain_x x;
    UNROLL for (int t = 0; t < n_tokens; t++) x.row[t] = product_x(p, token + t);
    k_segment segment = segment_first(op, DOT_SEGMENT);
    do {
        for (int r = 0; r < n_rows; r++)
            weights_decode(TSR_TYPE_NVFP4, product_w(p, TSR_TYPE_NVFP4, row + r, segment.begin), segment.n,
                           w[r], 8);
        plain_vector_segment(TSR_TYPE_F32, n_rows, n_tokens, TSR_CPU_STREAMS, (const unsigned char *)w,
                             sizeof w[0], &ahead, &x, segment.begin, segment.n, sums);
        for (int t = 0; t < n_tokens; t++)
            if (plain_carry(&segment, n_rows, sums[t], carry[t]))
                fold_granule(p, &segment, token + t, row, n_rows, sums[t]);
    } while (segment_next(op, &segment));
}

static NOINLINE void decoded_vector(const product *p)
{
    for (int64_t row = p->row; row < p->row_end;) {
        const bool four = p->row_end - row >= VECTOR_ROWS;
        for (int64_t token = p->token; token < p->token_end;) {
            const bool many = p->token_end - token >= VECTOR_TOKENS;
            if (four && many)
                decoded_vector_rows(VECTOR_ROWS, VECTOR_TOKENS, p, row, token);
            else if (four)
                decoded_vector_rows(VECTOR_ROWS, 1, p, row, token);
            else if (many)
                decoded_vector_rows(1, VECTOR_TOKENS, p, row, token);
            else
                decoded_vector_rows(1, 1, p, row, token);
            token += many ? VECTOR_TOKENS : 1;
        }
        row += four ? VECTOR_ROWS : 1;
    }
}

static void plain_vector(const product *p)
{
    if (p->op->type == TSR_TYPE_NVFP4)
        decoded_vector(p);
    else if (p->op->type == TSR_TYPE_F32)
        plain_vector_f32(p);
    else if (p->op->type == TSR_TYPE_F16)
        plain_vector_f16(p);
    else
        plain_vector_bf16(p);
}

/* -- many tokens -- */

/* The activations of some tokens in one stage, rows `stride` floats apart. */
typedef struct plain_tokens {
    const float *x;
    size_t stride;
    int64_t first;
    int n_tokens;
} plain_tokens;

/* Activations packed for all threads. */
static const pack_layout plain_layout = {DOT_SEGMENT, DOT_TOKENS, DOT_SEGMENT * sizeof(float)};

/* Pack a stage. A stage that is no multiple of 32 is filled up with zeros. */
static void plain_pack(const product *p, const k_stage *stage, int64_t first, int n_tokens, float *packed)
{
    const int64_t padded = plain_padded(stage->n);
    for (int i = 0; i < n_tokens; i++) {
        float *row = packed + i * DOT_SEGMENT;
        const float *later = product_x(p, first + (i + X_AHEAD < n_tokens ? i + X_AHEAD : i));
        for (int64_t k = 0; k < stage->n; k += 64 / (int64_t)sizeof(float))
            __builtin_prefetch(later + stage->begin + k);
        memcpy(row, product_x(p, first + i) + stage->begin, (size_t)stage->n * sizeof(float));
        memset(row + stage->n, 0, (size_t)(padded - stage->n) * sizeof(float));
    }
}

/* The activations of some tokens in a stage. Few tokens are read in place. Many are copied: contiguous rows
 * do not compete for the same cache sets, as rows a power of two apart would. */
static plain_tokens plain_tokens_of(const product *p, const k_stage *stage, int64_t first, int n_tokens,
                                    float *packed)
{
    if (n_tokens <= FEW_TOKENS && plain_padded(stage->n) == stage->n && !p->x_rows) {
        const float *x = product_x(p, first) + stage->begin;
        return (plain_tokens){x, (size_t)p->op->x_stride, first, n_tokens};
    }
    if (p->packed)
        return (plain_tokens){product_packed(p, &plain_layout, stage->index, first), DOT_SEGMENT, first,
                              n_tokens};
    plain_pack(p, stage, first, n_tokens, packed);
    return (plain_tokens){packed, DOT_SEGMENT, first, n_tokens};
}

/* Multiply a segment of the stage's panel that begins with `row` with the tokens, and prefetch that segment
 * of the next panel. `at`: the position of the panel's sums in scratch. */
static void plain_multiply(const product *p, const k_stage *stage, const k_segment *segment, int64_t row,
                           int64_t at, const plain_tokens *tokens, plain_scratch *scratch)
{
    const tsr_op_mul_mat *op = p->op;
    const int64_t k = segment->begin - stage->begin, padded = plain_padded(segment->n);
    const float *w = scratch->w + k / DOT_LANES * DOT_STEP, *x = tokens->x + k;
    const int n_rows = p->row_end - row < DOT_ROWS ? (int)(p->row_end - row) : DOT_ROWS;
    const unsigned char *next = product_w(p, op->type, row + DOT_ROWS, segment->begin);
    rows_ahead ahead = rows_ahead_of(next, op->w_stride, DOT_ROWS, elems_bytes(op->type, segment->n),
                                     (tokens->n_tokens + DOT_TOKENS - 1) / DOT_TOKENS);
    for (int i = 0; i < tokens->n_tokens; i += BATCH_TOKENS, at += BATCH_TOKENS * DOT_ROWS) {
        const int n = tokens->n_tokens - i < BATCH_TOKENS ? tokens->n_tokens - i : BATCH_TOKENS;
        _Alignas(64) float sums[BATCH_TOKENS * DOT_ROWS];
        for (int t = 0; t < n; t += DOT_TOKENS) {
            rows_ahead_step(&ahead, DOT_ROWS);
            dot_tile(n - t < DOT_TOKENS ? n - t : DOT_TOKENS, w, x + (size_t)(i + t) * tokens->stride,
                     tokens->stride, padded, sums + t * DOT_ROWS);
        }
        if (plain_carry(segment, n * DOT_ROWS, sums, scratch->carry + at))
            fold_tile(p, segment, tokens->first + i, n, row, n_rows, DOT_ROWS, sums, at);
    }
}

/* Decode a row of the panel that dot_tile() multiplies. */
static void panel_decode(tsr_type type, const unsigned char *p, int64_t n, float *dst)
{
    switch (type) {
#define DECODE_CASE(constant)                              \
    case constant:                                         \
        if (is_float(constant))                            \
            weights_decode(constant, p, n, dst, DOT_STEP); \
        break;
        FOR_EACH_WEIGHT_TYPE(DECODE_CASE)
#undef DECODE_CASE
    default:
        break;
    }
}

/* Multiply one stage of the product's rows. A panel's rows past the last repeat the last. */
static void plain_tile_rows(const product *p, const k_stage *stage, const plain_tokens *tokens,
                            plain_scratch *scratch)
{
    const tsr_op_mul_mat *op = p->op;
    const unsigned char *w = (const unsigned char *)op->w + elems_bytes(op->type, stage->begin);
    int64_t at = 0;
    for (int64_t row = p->row; row < p->row_end; row += DOT_ROWS, at += DOT_ROWS * TILE_TOKENS) {
        for (int64_t r = 0; r < DOT_ROWS; r++)
            panel_decode(op->type,
                         w + (size_t)(row + r < p->row_end ? row + r : p->row_end - 1) * op->w_stride,
                         stage->n, scratch->w + r * DOT_LANES);
        for (int i = 0; i < stage->n_segments; i++)
            plain_multiply(p, stage, &stage->segments[i], row, at, tokens, scratch);
    }
}

static void plain_tile(const product *p, plain_scratch *scratch)
{
    for (int64_t t = p->token; t < p->token_end; t += TILE_TOKENS) {
        const int n_tokens = (int)(p->token_end - t < TILE_TOKENS ? p->token_end - t : TILE_TOKENS);
        k_segment next = segment_first(p->op, DOT_SEGMENT);
        k_stage stage = {.index = -1};
        bool more;
        do {
            more = stage_next(p->op, &next, &stage);
            const plain_tokens tokens = plain_tokens_of(p, &stage, t, n_tokens, scratch->x);
            plain_tile_rows(p, &stage, &tokens, scratch);
        } while (more);
    }
}

#endif
