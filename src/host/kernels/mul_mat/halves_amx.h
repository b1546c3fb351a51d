/* Products with F16 and BF16 weights by AMX tiles of bfloat16.
 *
 * A bfloat16 has 8 bits, so numbers are divided into a high part, the nearest bfloat16, and a low part, the
 * bfloat16 nearest to the remainder. An activation is then off by at most 2^-17 of itself (and 2^-126:
 * smaller parts count as zero). An F16 weight equals the sum of its two parts, a BF16 weight equals its high
 * part. To a sum over a granule, 32 elements at a time, are added
 *
 *     BF16    high * high, high * low                 2 products: a weight times the whole activation
 *     F16     low * high, high * high, high * low     3: low * low, at most 2^-16 of a product, is left out
 *
 * (weight * activation). Where an op asks for activations of 8 bits the last product is left out: high parts
 * are 8-bit activations, off by at most 2^-8. Each product is made by one instruction, in the order that
 * amx.h defines, from zero at the granule's first element. The order is the same for one token and for many,
 * whichever operand a weight is.
 *
 * One tile of tokens (half_step): weights are operand A, 16 rows of the matrix, so BF16 weights are loaded in
 * place, and a tile is as wide as there are tokens. Memory limits the speed: 32 rows x 32 elements, 2 KiB,
 * are 4 instructions of 16 cycles (F16: 6), but two sums that wait for each other, 52 cycles a step: some 104
 * (156) cycles. Dividing an F16 chunk takes about 200 more cycles of vector units that are otherwise idle. 10
 * bytes a cycle are more than a core gets from memory.
 *
 * More tokens (half_multiply): activations are A, as packed, and weights B, transposed once per panel. For 32
 * rows, 32 tokens and 32 elements (in parentheses F16):
 *
 *     products       8 x 16 cycles (12 x 16)          one per row of A; four sums hide the latency
 *     tile loads     2 x 8 + 4 x 32 (4 x 8 + 4 x 32)  weights from the first cache, tokens from the second
 *     weights        2 x 70 / groups (4 x 70 / groups) transposing; groups of 32 tokens, usually 8
 *
 * These are estimates from Intel's figures (2 x 512 multiply-adds of bfloat16 per cycle and core, hence 16
 * cycles for 16 x 16 x 32; latency 52: Intel 64 and IA-32 Architectures Optimization Reference Manual) and
 * from assumed loads. */
#ifndef TSR_HOST_KERNELS_MUL_MAT_HALVES_AMX_H
#define TSR_HOST_KERNELS_MUL_MAT_HALVES_AMX_H

#include "host/kernels/vec/amx.h"
#include "host/kernels/quant/weights.h"

enum {
    HALF_CHUNK = 32,             /* elements that a product multiplies */
    HALF_PAIRS = HALF_CHUNK / 2, /* dwords of a row of a tile */
    HALF_TILE = 16,              /* rows or tokens of a tile */
    HALF_ROWS = 2 * HALF_TILE,   /* of a panel */
    HALF_TOKENS = 2 * HALF_TILE, /* multiplied together */
    HALF_SEGMENT = 256,          /* elements of a panel in the first-level cache */
    HALF_CHUNKS = HALF_SEGMENT / HALF_CHUNK
};

/* Tiles 0 .. 3 are sums. With one tile of tokens 0 and 1 are sums, 2 and 3 the low parts of weights. */
#define TILE_A0 4
#define TILE_A1 5
#define TILE_B0 6
#define TILE_B1 7

/* HALF_PAIRS pairs of each row, or HALF_TILE rows of each pair. */
typedef uint32_t half_tile[HALF_TILE][HALF_PAIRS];

/* A chunk of a row or token. */
typedef struct half_pairs {
    __m512i high, low;
} half_pairs;

ALWAYS_INLINE bool is_half(tsr_type type)
{
    return type == TSR_TYPE_F16 || type == TSR_TYPE_BF16;
}

/* -- dividing numbers -- */

/* The nearest bfloat16 in the upper half of each lane, ties away from zero. Not for NaNs: a NaN with all bits
 * set would become zero. */
ALWAYS_INLINE __m512 half_nearest(__m512 x)
{
    const __m512i bits = _mm512_add_epi32((__m512i)x, _mm512_set1_epi32(0x8000));
    return (__m512)_mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000));
}

/* Pairs of the upper halves of two vectors of 16 numbers. BF16 pairs are neighbours, as in memory. F16 pairs
 * are numbers 16 apart, which takes half the instructions. */
ALWAYS_INLINE __m512i half_join(tsr_type type, __m512 a, __m512 b)
{
    const __m512i low = _mm512_srli_epi32((__m512i)a, 16), high = _mm512_srli_epi32((__m512i)b, 16);
    if (type == TSR_TYPE_F16)
        return _mm512_mask_blend_epi16(0xaaaaaaaa, low, (__m512i)b);
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(low)), _mm512_cvtepi32_epi16(high),
                              1);
}

/* The first n of 16 lanes; any n. */
ALWAYS_INLINE __mmask16 half_lanes(int64_t n)
{
    return (__mmask16)(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
}

/* n activations, followed by zeros, for weights of this type. The low part of an infinity is NaN. */
ALWAYS_INLINE half_pairs half_divide_x(tsr_type type, const float *x, int64_t n)
{
    __m512 part[2], high[2], low[2];
    part[0] = _mm512_maskz_loadu_ps(half_lanes(n), x);
    part[1] = _mm512_maskz_loadu_ps(half_lanes(n - 16), x + 16);
    UNROLL for (int i = 0; i < 2; i++)
    {
        const __mmask16 is_nan = _mm512_cmp_ps_mask(part[i], part[i], _CMP_UNORD_Q);
        part[i] = _mm512_mask_mov_ps(part[i], is_nan, _mm512_set1_ps(__builtin_nanf("")));
        high[i] = half_nearest(part[i]);
        low[i] = half_nearest(_mm512_sub_ps(part[i], high[i]));
    }
    return (half_pairs){half_join(type, high[0], high[1]), half_join(type, low[0], low[1])};
}

/* n weights of a row, followed by zeros. F16: a NaN's low part is not rounded and stays a NaN. */
ALWAYS_INLINE half_pairs half_divide_w(tsr_type type, const unsigned char *p, int64_t n)
{
    if (type == TSR_TYPE_BF16) {
        const __mmask32 lanes = half_lanes(n) | (__mmask32)half_lanes(n - 16) << 16;
        return (half_pairs){_mm512_maskz_loadu_epi16(lanes, p), _mm512_setzero_si512()};
    }
    const __m512 a = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(half_lanes(n), p));
    const __m512 b = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(half_lanes(n - 16), p + 32));
    const __m512 high_a = half_nearest(a), high_b = half_nearest(b);
    return (half_pairs){half_join(type, high_a, high_b),
                        half_join(type, _mm512_sub_ps(a, high_a), _mm512_sub_ps(b, high_b))};
}

/* -- tiles in memory -- */

/* A chunk of 16 rows of weights, in parts. */
typedef struct half_weights {
    half_tile high, low; /* BF16 has no low part */
} half_weights;

/* Fill w with the chunk at p of n_rows rows, `stride` bytes apart, of which n elements are left. Other rows
 * are zero. */
ALWAYS_INLINE void half_fill(tsr_type type, const unsigned char *p, size_t stride, int n_rows, int64_t n,
                             half_weights *w)
{
    for (int r = 0; r < HALF_TILE; r++) {
        const unsigned char *row = p + (size_t)r * stride;
        const half_pairs pairs = r >= n_rows       ? (half_pairs){0}
                                 : n >= HALF_CHUNK ? half_divide_w(type, row, HALF_CHUNK)
                                                   : half_divide_w(type, row, n);
        _mm512_storeu_si512(w->high[r], pairs.high);
        if (type == TSR_TYPE_F16)
            _mm512_storeu_si512(w->low[r], pairs.low);
    }
}

/* Transpose a tile: 4 x 4 inside of 128-bit lanes, then the lanes. */
static void half_transpose(half_tile tile)
{
    __m512i a[16], b[16];
    UNROLL for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(tile[i]);
    UNROLL for (int i = 0; i < 16; i += 2)
    {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4)
    {
        UNROLL for (int j = 0; j < 2; j++)
        {
            a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + j + 2]);
            a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + j + 2]);
        }
    }
    UNROLL for (int c = 0; c < 4; c++) /* lane l of a[4 i + c] is column 4 l + c of rows 4 i .. 4 i + 3 */
    {
        const __m512i even_low = _mm512_shuffle_i32x4(a[c], a[c + 4], 0x88);
        const __m512i odd_low = _mm512_shuffle_i32x4(a[c], a[c + 4], 0xdd);
        const __m512i even_high = _mm512_shuffle_i32x4(a[c + 8], a[c + 12], 0x88);
        const __m512i odd_high = _mm512_shuffle_i32x4(a[c + 8], a[c + 12], 0xdd);
        _mm512_storeu_si512(tile[c], _mm512_shuffle_i32x4(even_low, even_high, 0x88));
        _mm512_storeu_si512(tile[c + 4], _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
        _mm512_storeu_si512(tile[c + 8], _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
        _mm512_storeu_si512(tile[c + 12], _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
}

/* -- products -- */

/* Before a thread's first product; half_end() after its last. n_tokens: tokens in B, at most HALF_TILE; 0:
 * tokens are in A. */
static void half_begin(amx_tiles *tiles, int n_tokens)
{
    const uint16_t width = (uint16_t)(n_tokens ? 4 * n_tokens : AMX_ROW_BYTES);
    amx_config *config = &tiles->config;
    *config = (amx_config){.palette = 1};
    for (int tile = 0; tile < AMX_TILES; tile++) {
        const bool wide = (tile == 2 || tile == 3 || tile == TILE_A0 || tile == TILE_A1);
        config->rows[tile] = AMX_ROWS, config->row_bytes[tile] = wide ? AMX_ROW_BYTES : width;
    }
    AMX_CONFIGURE(tiles);
}

static void half_end(amx_tiles *tiles)
{
    AMX_RELEASE(tiles);
}

/* The address of a chunk of 16 rows of weights, for A. */
typedef struct half_source {
    const void *high, *low;
    size_t stride; /* bytes from row to row */
} half_source;

/* Add the product of a chunk of two tiles of rows and the chunk of n_tokens <= HALF_TILE tokens at x:
 * HALF_PAIRS rows of n_tokens pairs, high parts and then low parts. `whole`: low parts are multiplied,
 * too. */
ALWAYS_INLINE void half_step(tsr_type type, const bool whole, amx_tiles *tiles, const half_source w[2],
                             const uint32_t *x, int n_tokens)
{
    const size_t x_stride = (size_t)n_tokens * sizeof *x;
    (void)tiles; /* real tiles have fixed names */
    AMX_LOAD(tiles, TILE_B0, x, x_stride);
    if (type == TSR_TYPE_F16) {
        AMX_LOAD(tiles, 2, w[0].low, w[0].stride);
        AMX_LOAD(tiles, 3, w[1].low, w[1].stride);
        AMX_DOT_BF16(tiles, 0, 2, TILE_B0);
        AMX_DOT_BF16(tiles, 1, 3, TILE_B0);
    }
    AMX_LOAD(tiles, TILE_A0, w[0].high, w[0].stride);
    AMX_LOAD(tiles, TILE_A1, w[1].high, w[1].stride);
    AMX_DOT_BF16(tiles, 0, TILE_A0, TILE_B0);
    AMX_DOT_BF16(tiles, 1, TILE_A1, TILE_B0);
    if (whole) {
        AMX_LOAD(tiles, TILE_B1, x + HALF_PAIRS * n_tokens, x_stride);
        AMX_DOT_BF16(tiles, 0, TILE_A0, TILE_B1);
        AMX_DOT_BF16(tiles, 1, TILE_A1, TILE_B1);
    }
}

/* A segment of 16 tokens. A row holds a token's pairs. */
typedef struct half_group {
    struct {
        half_tile high, low;
    } chunk[HALF_CHUNKS];
} half_group;

/* A segment of a panel's rows, transposed. A column holds a row's pairs. */
typedef struct half_panel {
    half_weights chunk[HALF_CHUNKS][2];
} half_panel;

static void half_panel_fill(tsr_type type, const unsigned char *p, size_t stride, int n_rows, int64_t n,
                            half_panel *panel)
{
    for (int64_t k = 0; k < n; k += HALF_CHUNK)
        for (int half = 0; half < 2; half++) {
            half_weights *w = &panel->chunk[k / HALF_CHUNK][half];
            const unsigned char *rows = p + (size_t)half * HALF_TILE * stride + elems_bytes(type, k);
            if (type == TSR_TYPE_F16) {
                half_fill(TSR_TYPE_F16, rows, stride, n_rows - half * HALF_TILE, n - k, w);
                half_transpose(w->low);
            } else {
                half_fill(TSR_TYPE_BF16, rows, stride, n_rows - half * HALF_TILE, n - k, w);
            }
            half_transpose(w->high);
        }
}

/* Add to the four sums, or to the two of the first group, the products of the tiles in A and B. */
#define HALF_DOT(groups)                              \
    do {                                              \
        AMX_DOT_BF16(tiles, 0, TILE_A0, TILE_B0);     \
        AMX_DOT_BF16(tiles, 1, TILE_A0, TILE_B1);     \
        if ((groups) == 2) {                          \
            AMX_DOT_BF16(tiles, 2, TILE_A1, TILE_B0); \
            AMX_DOT_BF16(tiles, 3, TILE_A1, TILE_B1); \
        }                                             \
    } while (0)
#define HALF_LOAD_X(part)                                                         \
    do {                                                                          \
        AMX_LOAD(tiles, TILE_A0, x[0].chunk[c].part, AMX_ROW_BYTES);              \
        if (groups == 2)                                                          \
            AMX_LOAD(tiles, TILE_A1, x[groups - 1].chunk[c].part, AMX_ROW_BYTES); \
    } while (0)
#define HALF_LOAD_W(part)                                                 \
    do {                                                                  \
        AMX_LOAD(tiles, TILE_B0, panel->chunk[c][0].part, AMX_ROW_BYTES); \
        AMX_LOAD(tiles, TILE_B1, panel->chunk[c][1].part, AMX_ROW_BYTES); \
    } while (0)

/* Add the products of a panel with one or two groups of tokens to sums[token * HALF_ROWS + row] or, if
 * `opens`, to zero. */
ALWAYS_INLINE void half_multiply_groups(const int groups, tsr_type type, const bool whole, amx_tiles *tiles,
                                        const half_panel *panel, const half_group *x, int n_chunks,
                                        bool opens, float *sums)
{
    enum { STRIDE = HALF_ROWS * sizeof(float), NEXT = HALF_TILE * HALF_ROWS };
    (void)tiles;
    if (opens) {
        AMX_ZERO(tiles, 0);
        AMX_ZERO(tiles, 1);
        AMX_ZERO(tiles, 2);
        AMX_ZERO(tiles, 3);
    } else {
        AMX_LOAD(tiles, 0, sums, STRIDE);
        AMX_LOAD(tiles, 1, sums + HALF_TILE, STRIDE);
        AMX_LOAD(tiles, 2, sums + (groups - 1) * NEXT, STRIDE);
        AMX_LOAD(tiles, 3, sums + (groups - 1) * NEXT + HALF_TILE, STRIDE);
    }
    for (int c = 0; c < n_chunks; c++) {
        HALF_LOAD_X(high);
        if (type == TSR_TYPE_F16) {
            HALF_LOAD_W(low);
            HALF_DOT(groups);
        }
        HALF_LOAD_W(high);
        HALF_DOT(groups);
        if (whole) {
            HALF_LOAD_X(low);
            HALF_DOT(groups);
        }
    }
    AMX_STORE(tiles, 0, sums, STRIDE);
    AMX_STORE(tiles, 1, sums + HALF_TILE, STRIDE);
    if (groups == 2) {
        AMX_STORE(tiles, 2, sums + NEXT, STRIDE);
        AMX_STORE(tiles, 3, sums + NEXT + HALF_TILE, STRIDE);
    }
}
#undef HALF_DOT
#undef HALF_LOAD_X
#undef HALF_LOAD_W

/* half_multiply_groups() for 1 <= n_tokens <= HALF_TOKENS. x and sums have room for whole groups, and sums
 * past n_tokens are overwritten. */
ALWAYS_INLINE void half_multiply_parts(tsr_type type, const bool whole, int n_tokens, amx_tiles *tiles,
                                       const half_panel *panel, const half_group *x, int n_chunks, bool opens,
                                       float *sums)
{
#define MULTIPLY(groups, type) \
    half_multiply_groups(groups, type, whole, tiles, panel, x, n_chunks, opens, sums)
    if (n_tokens > HALF_TILE && type == TSR_TYPE_F16)
        MULTIPLY(2, TSR_TYPE_F16);
    else if (n_tokens > HALF_TILE)
        MULTIPLY(2, TSR_TYPE_BF16);
    else if (type == TSR_TYPE_F16)
        MULTIPLY(1, TSR_TYPE_F16);
    else
        MULTIPLY(1, TSR_TYPE_BF16);
#undef MULTIPLY
}

static void half_multiply(tsr_type type, bool whole, int n_tokens, amx_tiles *tiles, const half_panel *panel,
                          const half_group *x, int n_chunks, bool opens, float *sums)
{
    if (whole)
        half_multiply_parts(type, true, n_tokens, tiles, panel, x, n_chunks, opens, sums);
    else
        half_multiply_parts(type, false, n_tokens, tiles, panel, x, n_chunks, opens, sums);
}

#endif
