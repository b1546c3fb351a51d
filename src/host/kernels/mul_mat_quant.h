/* mul_mat for quantized weights: activations as 16-bit integers, exact integer sums per block of 32, one f32
 * multiply-add per block (quants_generic.h has the formula). Every instruction set gives the same bits, and
 * so do one token and many.
 *
 * One token (quant_vector): the weights are read once, INT_LANES rows side by side. Lanes are elements while
 * a block is multiplied, and rows from then on.
 *
 * Many tokens (quant_tile_product): a panel of a few rows is expanded into scratch and multiplied with every
 * token. */
#ifndef TSR_HOST_KERNELS_MUL_MAT_QUANT_H
#define TSR_HOST_KERNELS_MUL_MAT_QUANT_H

#include "host/kernels/mul_mat_sums.h"
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
#include "host/kernels/quants_tile.h"
#else
#include "host/kernels/quants_generic.h"
#endif

enum {
    QUANT_SEGMENT = QUANT_BLOCKS * X_BLOCK, /* elements of K at once */
    QUANT_TILE_ROWS = 256,                  /* most rows of a chunk: how often encoded activations are used */
    QUANT_TILE_TOKENS = 192,                /* most tokens at once: how often expanded weights are used */
    QUANT_MAX_BLOCKS = QUANT_TILE_TOKENS * QUANT_BLOCKS /* of x in scratch */
};

typedef struct quant_scratch {
    quant_tile tile;
    x_block x[QUANT_MAX_BLOCKS]; /* one token's blocks, or a panel of each of many tokens */
    float sums[QUANT_TILE_TOKENS * QUANT_TILE_ROWS]; /* of the granule so far */
} quant_scratch;

/* Where block number `b` of a row begins; of a K type, where the super-block does that begins with it. */
ALWAYS_INLINE const unsigned char *product_blocks(const product *p, tsr_type type, int64_t row, int64_t k)
{
    return (const unsigned char *)p->op->w + (size_t)row * p->op->w_stride + elems_bytes(type, k);
}

/* ---- one token ---- */

#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)

enum { QUANT_PREFETCH_BYTES = 1024 }; /* ahead in each row */

/* The integer sums of vector u of a panel: sums[block], a lane per row. Asks for what lies `ahead` bytes
 * later. */
ALWAYS_INLINE void quant_vector_dots(tsr_type type, const unsigned char *const rows[INT_LANES], int u,
                                     int n_blocks, const x_block *x, size_t ahead,
                                     const quant_panel_scales *scales, vec_int sums[QUANT_BLOCKS])
{
    const int blocks[2] = {quant_block(type, u, 0), quant_block(type, u, INT_BLOCKS - 1)};
    const unsigned char *first = (const unsigned char *)x[blocks[0]].q;
    const unsigned char *second = blocks[1] < n_blocks ? (const unsigned char *)x[blocks[1]].q : first;
    const vec_int even = (vec_int)bits_load_32(first, second);
    const vec_int odd = (vec_int)bits_load_32(first + X_BLOCK, second + X_BLOCK);
    vec_int partial[INT_LANES];
    UNROLL for (int r = 0; r < INT_LANES; r++)
    {
        const quant_pair w = quant_words(type, rows[r], u, n_blocks);
        partial[r] = int_dot(int_dot((vec_int){0}, w.even, even), w.odd, odd);
        __builtin_prefetch(rows[r] + ahead);
    }
    vec_int halves[INT_BLOCKS][2];
    int_row_sums(partial, halves);
    UNROLL for (int place = 0; place < INT_BLOCKS; place++)
    {
        const int b = blocks[place];
        if (b >= n_blocks)
            break;
        if (quant_has_sub_scales(type))
            sums[b] = (halves[place][0] - quant_offset(type) * x[b].half[0]) * scales->sub[b][0] +
                      (halves[place][1] - quant_offset(type) * x[b].half[1]) * scales->sub[b][1];
        else
            sums[b] =
                halves[place][0] + halves[place][1] - quant_offset(type) * (x[b].half[0] + x[b].half[1]);
    }
}

/* Add the products of one panel to a lane per row. */
ALWAYS_INLINE vec quant_vector_panel(tsr_type type, const unsigned char *const rows[INT_LANES], int n_blocks,
                                     const x_block *x, size_t ahead, vec acc)
{
    quant_panel_scales scales;
    vec_int sums[QUANT_BLOCKS];
    quant_scales(type, rows, n_blocks, &scales);
    for (int u = 0; u * INT_BLOCKS < n_blocks; u++)
        quant_vector_dots(type, rows, u, n_blocks, x,
                          ahead + (size_t)u * elems_bytes(type, QUANT_SEGMENT) / (QUANT_BLOCKS / INT_BLOCKS),
                          &scales, sums);
    for (int b = 0; b < n_blocks; b++) {
        acc = vec_fma(int_to_float(sums[b]) * vec_set1(x[b].scale), scales.scale[b], acc);
        if (quant_has_min(type))
            acc = vec_fma(vec_set1(x[b].sum), -scales.min[b], acc);
    }
    return acc;
}

/* How far from byte `at` of a row lies what is read QUANT_PREFETCH_BYTES later: in the same row, or in the
 * one that takes its place. */
ALWAYS_INLINE size_t quant_ahead(const product *p, size_t at, size_t row_bytes)
{
    const size_t next = QUANT_PREFETCH_BYTES + at < row_bytes ? 0 : INT_LANES * p->op->w_stride - row_bytes;
    return QUANT_PREFETCH_BYTES + next;
}

ALWAYS_INLINE void quant_vector_rows(tsr_type type, const product *p, int64_t row, const x_block *x)
{
    const int n_rows = p->row_end - row < INT_LANES ? (int)(p->row_end - row) : INT_LANES;
    const size_t row_bytes = elems_bytes(type, p->op->k);
    k_segment segment = segment_first(p->op, QUANT_SEGMENT);
    vec acc = {0};
    do {
        const unsigned char *rows[INT_LANES];
        for (int r = 0; r < INT_LANES; r++)
            rows[r] = product_blocks(p, type, row + (r < n_rows ? r : n_rows - 1), segment.begin);
        const size_t ahead = quant_ahead(p, elems_bytes(type, segment.begin), row_bytes);
        if (segment.opens)
            acc = (vec){0};
        acc = quant_vector_panel(type, rows, (int)(segment.n / X_BLOCK), x + segment.begin / X_BLOCK, ahead,
                                 acc);
        if (segment.closes) {
            float sums[INT_LANES];
            vec_store(sums, acc);
            fold_granule(p, &segment, 0, row, n_rows, sums);
        }
    } while (segment_next(p->op, &segment));
}

ALWAYS_INLINE void quant_vector_type(tsr_type type, const product *p, const x_block *x)
{
    for (int64_t row = p->row; row < p->row_end; row += INT_LANES)
        quant_vector_rows(type, p, row, x);
}

/* One token whose blocks are x. */
static void quant_vector(const product *p, const x_block *x)
{
    switch (p->op->type) {
#define VECTOR_CASE(constant)              \
    case constant:                         \
        quant_vector_type(constant, p, x); \
        break;
        FOR_EACH_QUANT_TYPE(VECTOR_CASE)
#undef VECTOR_CASE
    default:
        break;
    }
}

#endif

/* ---- many tokens ---- */

/* One segment of the product's rows, for tokens [first, first + n_tokens). */
static void quant_tile_rows(const product *p, const k_segment *segment, int64_t first, int n_tokens,
                            quant_scratch *scratch)
{
    const tsr_type type = p->op->type;
    const int n_blocks = (int)(segment->n / X_BLOCK);
    float *sums = scratch->sums;
    for (int64_t row = p->row; row < p->row_end; row += QUANT_ROWS, sums += QUANT_ROWS) {
        const int n_rows = p->row_end - row < QUANT_ROWS ? (int)(p->row_end - row) : QUANT_ROWS;
        quant_tile_expand(type, product_blocks(p, type, row, segment->begin), p->op->w_stride, n_rows,
                          n_blocks, &scratch->tile);
        for (int t = 0; t < n_tokens; t += QUANT_TOKENS) {
            const int n = n_tokens - t < QUANT_TOKENS ? n_tokens - t : QUANT_TOKENS;
            float *tile_sums = sums + (size_t)t * QUANT_TILE_ROWS;
            if (segment->opens)
                for (int i = 0; i < n; i++)
                    memset(tile_sums + i * QUANT_TILE_ROWS, 0, QUANT_ROWS * sizeof(float));
            quant_tile_multiply(n, quant_has_min(type), &scratch->tile, n_blocks,
                                scratch->x + (size_t)t * QUANT_BLOCKS, QUANT_BLOCKS, tile_sums,
                                QUANT_TILE_ROWS);
            for (int i = 0; i < n && segment->closes; i++)
                fold_granule(p, segment, first + t + i, row, n_rows, tile_sums + i * QUANT_TILE_ROWS);
        }
    }
}

static void quant_tile_product(const product *p, quant_scratch *scratch)
{
    const int64_t total = p->op->n_tokens;
    const int limit = quant_x_limit(p->op->type);
    for (int64_t t = 0; t < total; t += QUANT_TILE_TOKENS) {
        const int n_tokens = (int)(total - t < QUANT_TILE_TOKENS ? total - t : QUANT_TILE_TOKENS);
        k_segment segment = segment_first(p->op, QUANT_SEGMENT);
        do {
            for (int i = 0; i < n_tokens; i++)
                x_encode(product_x(p, t + i) + segment.begin, segment.n, limit,
                         scratch->x + (size_t)i * QUANT_BLOCKS);
            quant_tile_rows(p, &segment, t, n_tokens, scratch);
        } while (segment_next(p->op, &segment));
    }
}

#endif
