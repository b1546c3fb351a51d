/* mul_mat for BF16 weights with activations of 8 bits, on processors that multiply pairs of bfloat16. A
 * bfloat16 has 8 significant bits, and activations become the nearest bfloat16. An activation is then off by
 * at most 2^-8 of itself (and 2^-126: smaller activations count as zero, and so do smaller sums).
 *
 * The order: K is cut into segments of PAIR_SEGMENT. Inside a segment, pair i goes to lane i % 16, in order
 * of i, by one instruction per 16 pairs, which adds the second product of a pair and then the first, each
 * with one rounding (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VDPBF16PS). The
 * segment's sum is a tree (pairs_sums), segment sums are added in order, and a last piece shorter than 32 is
 * filled up with zeros. The order does not depend on rows, tokens or threads, so the bits do not either.
 *
 * One token (pairs_vector) reads the weights like plain_vector(). For many tokens (pairs_tile), a panel's
 * segment is copied to a buffer that stays in the first-level cache and multiplied with every token. */
#ifndef TSR_HOST_KERNELS_MUL_MAT_PAIRS_H
#define TSR_HOST_KERNELS_MUL_MAT_PAIRS_H

#include "host/kernels/mul_mat/plain.h"

enum {
    PAIR_SEGMENT = 512,
    PAIR_SIDE = 4,                                /* rows and tokens per step: 16 sums of 32 registers */
    PAIR_ROWS = 16,                               /* of a panel */
    PAIR_TILE_TOKENS = 288,                       /* most tokens: how often a copied panel is used */
    PAIR_MOST_K = PAIR_TILE_TOKENS * PAIR_SEGMENT /* of one token, in scratch */
};

#if defined(TSR_ISA_PAIRS)

typedef struct pairs_scratch {
    uint16_t w[PAIR_ROWS * PAIR_SEGMENT];
    uint16_t x[PAIR_TILE_TOKENS * PAIR_SEGMENT]; /* or all of one token */
    float carry[PAIR_TILE_TOKENS * TILE_ROWS];   /* as in plain_scratch */
} pairs_scratch;
_Static_assert(PAIR_TILE_TOKENS *TILE_ROWS <= TOTALS_MAX, "totals of a product");
_Static_assert(PAIR_TILE_TOKENS % PAIR_SIDE == 0, "room for the last register tile");

/* Whether the op is multiplied as pairs. */
ALWAYS_INLINE bool pairs_take(const product *p)
{
    return p->env->pairs && p->op->type == TSR_TYPE_BF16 && tsr_op_takes_bytes(p->op->x_bits);
}

/* The instructions that this file needs beyond the level's. They run only where `pairs` is set. */
#define PAIRS_CODE __attribute__((target("avx512bf16")))

/* 32 elements, or n elements and zeros. */
ALWAYS_INLINE __m512i pairs_load(const void *p, int64_t n)
{
    return _mm512_maskz_loadu_epi16(n < 32 ? (1u << n) - 1 : ~0u, p);
}

/* n elements as bfloat16, and zeros up to a multiple of 32. */
PAIRS_CODE static void pairs_round(const float *x, int64_t n, uint16_t *out)
{
    for (; n > 0; n -= 32, x += 32, out += 32) {
        const uint32_t lanes = n < 32 ? (1u << n) - 1 : ~0u;
        const __m512 low = _mm512_maskz_loadu_ps((__mmask16)lanes, x);
        const __m512 high = _mm512_maskz_loadu_ps((__mmask16)(lanes >> 16), x + 16);
        _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

PAIRS_CODE ALWAYS_INLINE __m512 pairs_dot(__m512 sum, __m512i w, __m512i x)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
}

/* In every quarter the four lanes of each row become their sum, (0 + 2) + (1 + 3): four row sums per
 * quarter. */
ALWAYS_INLINE __m512 pairs_sum_quarters(const __m512 rows[PAIR_SIDE])
{
    const __m512 a =
        _mm512_add_ps(_mm512_unpacklo_ps(rows[0], rows[1]), _mm512_unpackhi_ps(rows[0], rows[1]));
    const __m512 b =
        _mm512_add_ps(_mm512_unpacklo_ps(rows[2], rows[3]), _mm512_unpackhi_ps(rows[2], rows[3]));
    return _mm512_add_ps((__m512)_mm512_unpacklo_pd((__m512d)a, (__m512d)b),
                         (__m512)_mm512_unpackhi_pd((__m512d)a, (__m512d)b));
}

/* Quarters 0 + 1 and 2 + 3 of a, then of b. */
ALWAYS_INLINE __m512 pairs_add_quarters(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

/* The sums of the lanes of [token][row]: the row sums of a token, then of the next token. */
ALWAYS_INLINE __m512 pairs_sums(const __m512 acc[PAIR_SIDE][PAIR_SIDE])
{
    __m512 quarters[PAIR_SIDE];
    UNROLL for (int t = 0; t < PAIR_SIDE; t++) quarters[t] = pairs_sum_quarters(acc[t]);
    return pairs_add_quarters(pairs_add_quarters(quarters[0], quarters[1]),
                              pairs_add_quarters(quarters[2], quarters[3]));
}

/* -- one token -- */

/* Multiply one segment of four rows, and prefetch the following data. */
PAIRS_CODE ALWAYS_INLINE __m128 pairs_vector_segment(const tsr_cpu_reading reading,
                                                     const unsigned char *const rows[PAIR_SIDE],
                                                     size_t stride, plain_ahead *ahead, const uint16_t *x,
                                                     int64_t n)
{
    const __m512 zero = _mm512_setzero_ps();
    __m512 acc[PAIR_SIDE] = {zero, zero, zero, zero};
    for (int64_t k = 0; k < n; k += 32) {
        const __m512i xk = _mm512_loadu_si512(x + k);
        const unsigned char *next = plain_next(reading, PAIR_SIDE * 64, rows[0] + 2 * k, ahead);
        UNROLL for (int r = 0; r < PAIR_SIDE; r++)
        {
            plain_ask(reading, PAIR_SIDE, next, ahead, stride, (size_t)r);
            acc[r] = pairs_dot(acc[r], pairs_load(rows[r] + 2 * k, n - k), xk);
        }
    }
    const __m512 quarters = pairs_sum_quarters(acc);
    const __m512 halves = pairs_add_quarters(quarters, quarters);
    return _mm512_castps512_ps128(pairs_add_quarters(halves, halves));
}

PAIRS_CODE ALWAYS_INLINE void pairs_vector_rows(const tsr_cpu_reading reading, const product *p,
                                                const uint16_t *x, int64_t row)
{
    const tsr_op_mul_mat *op = p->op;
    const size_t row_bytes = elems_bytes(TSR_TYPE_BF16, op->k);
    const int n_rows = p->row_end - row < PAIR_SIDE ? (int)(p->row_end - row) : PAIR_SIDE;
    plain_ahead ahead = plain_ahead_of(p, TSR_TYPE_BF16, row);
    float sums[PAIR_SIDE], carry[PAIR_SIDE] = {0};
    k_segment segment = segment_first(op, PAIR_SEGMENT);
    do {
        const unsigned char *rows[PAIR_SIDE];
        const size_t at = elems_bytes(TSR_TYPE_BF16, segment.begin);
        for (int r = 0; r < PAIR_SIDE; r++)
            rows[r] = product_w(p, TSR_TYPE_BF16, row + (r < n_rows ? r : n_rows - 1), segment.begin);
        ahead.bytes = ahead_in_rows(p, PAIR_SIDE, at, row_bytes, STREAM_AHEAD);
        _mm_storeu_ps(sums, pairs_vector_segment(reading, rows, op->w_stride, &ahead, x, segment.n));
        x += plain_padded(segment.n);
        if (plain_carry(&segment, PAIR_SIDE, sums, carry))
            fold_granule(p, &segment, p->token, row, n_rows, sums);
    } while (segment_next(op, &segment));
}

/* Round the activations of an op with one token, before its products. */
PAIRS_CODE static void pairs_vector_round(const product *p, uint16_t *x)
{
    k_segment segment = segment_first(p->op, PAIR_SEGMENT);
    do {
        pairs_round(product_x(p, 0) + segment.begin, segment.n, x);
        x += plain_padded(segment.n);
    } while (segment_next(p->op, &segment));
}

/* Whether the op has one token that fits into scratch. A segment takes whole steps of 32. */
ALWAYS_INLINE bool pairs_walk(const product *p)
{
    const tsr_op_mul_mat *op = p->op;
    const int64_t granule = segment_first(op, op->k).granule;
    return pairs_take(p) && op->n_tokens == 1 && op->k > 0 &&
           (op->k / granule + 1) * plain_padded(granule) <= PAIR_MOST_K;
}

PAIRS_CODE static void pairs_vector(const product *p, const uint16_t *x)
{
    for (int64_t row = p->row; row < p->row_end; row += PAIR_SIDE)
        if (p->env->reading == TSR_CPU_STREAMS)
            pairs_vector_rows(TSR_CPU_STREAMS, p, x, row);
        else if (p->env->reading == TSR_CPU_ONE_STREAM)
            pairs_vector_rows(TSR_CPU_ONE_STREAM, p, x, row);
        else
            pairs_vector_rows(TSR_CPU_ONE_STREAM_L2, p, x, row);
}

/* -- many tokens -- */

/* Multiply a segment of four rows with n_tokens <= 4 tokens; rows and tokens are PAIR_SEGMENT elements
 * apart. */
PAIRS_CODE ALWAYS_INLINE __m512 pairs_block(const int n_tokens, const uint16_t *w, const uint16_t *x,
                                            int64_t n)
{
    __m512 acc[PAIR_SIDE][PAIR_SIDE];
    UNROLL for (int t = 0; t < PAIR_SIDE; t++) UNROLL for (int r = 0; r < PAIR_SIDE; r++) acc[t][r] =
        _mm512_setzero_ps();
    for (int64_t k = 0; k < n; k += 32) {
        __m512i wk[PAIR_SIDE];
        UNROLL for (int r = 0; r < PAIR_SIDE; r++) wk[r] = _mm512_loadu_si512(w + r * PAIR_SEGMENT + k);
        UNROLL for (int t = 0; t < n_tokens; t++)
        {
            const __m512i xk = _mm512_loadu_si512(x + t * PAIR_SEGMENT + k);
            UNROLL for (int r = 0; r < PAIR_SIDE; r++) acc[t][r] = pairs_dot(acc[t][r], wk[r], xk);
        }
    }
    return pairs_sums(acc);
}

/* sums[t * PAIR_ROWS + row] of a panel's segment. */
PAIRS_CODE ALWAYS_INLINE void pairs_panel_n(const int n_tokens, const uint16_t *w, const uint16_t *x,
                                            int64_t n, float *sums)
{
    for (int r = 0; r < PAIR_ROWS; r += PAIR_SIDE) {
        const __m512 block = pairs_block(n_tokens, w + r * PAIR_SEGMENT, x, n);
        UNROLL for (int t = 0; t < n_tokens; t++)
            memcpy(sums + t * PAIR_ROWS + r, (const float *)&block + t * PAIR_SIDE, PAIR_SIDE * sizeof *sums);
    }
}

PAIRS_CODE static void pairs_panel(int n_tokens, const uint16_t *w, const uint16_t *x, int64_t n, float *sums)
{
    if (n_tokens >= 4)
        pairs_panel_n(4, w, x, n, sums);
    else if (n_tokens == 3)
        pairs_panel_n(3, w, x, n, sums);
    else if (n_tokens == 2)
        pairs_panel_n(2, w, x, n, sums);
    else
        pairs_panel_n(1, w, x, n, sums);
}

/* The activations of some tokens in one stage, PAIR_SEGMENT apart. */
typedef struct pairs_tokens {
    const uint16_t *x;
    int64_t first;
    int n;
} pairs_tokens;

/* Activations packed for all threads. */
static const pack_layout pairs_layout = {PAIR_SEGMENT, PAIR_SIDE, PAIR_SEGMENT * sizeof(uint16_t)};

static void pairs_pack(const product *p, const k_stage *stage, int64_t first, int n_tokens, uint16_t *x)
{
    for (int i = 0; i < n_tokens; i++)
        pairs_round(product_x(p, first + i) + stage->begin, stage->n, x + i * PAIR_SEGMENT);
}

/* The activations of some tokens in a stage: packed, otherwise rounded to x. */
static pairs_tokens pairs_tokens_of(const product *p, const k_stage *stage, int64_t first, int n_tokens,
                                    uint16_t *x)
{
    if (p->packed)
        return (pairs_tokens){product_packed(p, &pairs_layout, stage->index, first), first, n_tokens};
    pairs_pack(p, stage, first, n_tokens, x);
    return (pairs_tokens){x, first, n_tokens};
}

/* Multiply a segment of the stage's panel that begins with `row` with the tokens, and prefetch that segment
 * of the next panel. `at`: the position of the panel's sums in scratch. */
static void pairs_multiply(const product *p, const k_stage *stage, const k_segment *segment, int64_t row,
                           const pairs_tokens *tokens, int64_t at, pairs_scratch *scratch)
{
    const int n_tokens = tokens->n;
    const tsr_op_mul_mat *op = p->op;
    const int64_t k = segment->begin - stage->begin;
    const int n_rows = p->row_end - row < PAIR_ROWS ? (int)(p->row_end - row) : PAIR_ROWS;
    const unsigned char *next = product_w(p, TSR_TYPE_BF16, row + PAIR_ROWS, segment->begin);
    rows_ahead ahead = rows_ahead_of(next, op->w_stride, PAIR_ROWS, elems_bytes(TSR_TYPE_BF16, segment->n),
                                     (n_tokens + PAIR_SIDE - 1) / PAIR_SIDE);
    for (int t = 0; t < n_tokens; t += PAIR_SIDE, at += PAIR_SIDE * PAIR_ROWS) {
        const int n = n_tokens - t < PAIR_SIDE ? n_tokens - t : PAIR_SIDE;
        _Alignas(64) float sums[PAIR_SIDE * PAIR_ROWS];
        rows_ahead_step(&ahead, PAIR_ROWS);
        pairs_panel(n, scratch->w + k, tokens->x + (size_t)t * PAIR_SEGMENT + k, segment->n, sums);
        if (plain_carry(segment, n * PAIR_ROWS, sums, scratch->carry + at))
            fold_tile(p, segment, tokens->first + t, n, row, n_rows, PAIR_ROWS, sums, at);
    }
}

/* Copy a stage of a panel's rows. Rows past the last repeat the last. */
static void pairs_copy(const product *p, const k_stage *stage, int64_t row, uint16_t *w)
{
    for (int64_t r = 0; r < PAIR_ROWS; r++, w += PAIR_SEGMENT) {
        const int64_t from = row + r < p->row_end ? row + r : p->row_end - 1;
        const unsigned char *source = product_w(p, TSR_TYPE_BF16, from, stage->begin);
        for (int64_t k = 0; k < stage->n; k += 32)
            _mm512_storeu_si512(w + k, pairs_load(source + 2 * k, stage->n - k));
    }
}

static void pairs_tile(const product *p, pairs_scratch *scratch)
{
    for (int64_t t = p->token; t < p->token_end; t += PAIR_TILE_TOKENS) {
        const int n = (int)(p->token_end - t < PAIR_TILE_TOKENS ? p->token_end - t : PAIR_TILE_TOKENS);
        k_segment next = segment_first(p->op, PAIR_SEGMENT);
        k_stage stage = {.index = -1};
        bool more;
        do {
            more = stage_next(p->op, &next, &stage);
            const pairs_tokens tokens = pairs_tokens_of(p, &stage, t, n, scratch->x);
            int64_t at = 0;
            for (int64_t row = p->row; row < p->row_end;
                 row += PAIR_ROWS, at += PAIR_ROWS * PAIR_TILE_TOKENS) {
                pairs_copy(p, &stage, row, scratch->w);
                for (int i = 0; i < stage.n_segments; i++)
                    pairs_multiply(p, &stage, &stage.segments[i], row, &tokens, at, scratch);
            }
        } while (more);
    }
}

#else

/* Other levels have no products of pairs. */
typedef struct pairs_scratch {
    uint16_t x[1];
} pairs_scratch;

ALWAYS_INLINE bool pairs_take(const product *p)
{
    (void)p;
    return false;
}

ALWAYS_INLINE bool pairs_walk(const product *p)
{
    return pairs_take(p);
}

ALWAYS_INLINE void pairs_vector_round(const product *p, uint16_t *x)
{
    (void)p, (void)x;
}

ALWAYS_INLINE void pairs_vector(const product *p, const uint16_t *x)
{
    (void)p, (void)x;
}

ALWAYS_INLINE void pairs_tile(const product *p, pairs_scratch *scratch)
{
    (void)p, (void)scratch;
}

#endif
#endif
