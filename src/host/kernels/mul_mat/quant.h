/* mul_mat for quantized weights: activations as integers of 16 or 8 bits, exact integer sums per block of 32,
 * one f32 multiply-add per block (quant/generic.h has the formula). Every instruction set gives the same
 * bits, and so do one token (vector.h) and many.
 *
 * Many tokens (quant_tile_product): a panel of a few rows is expanded into scratch and multiplied with every
 * token. */
#ifndef TSR_HOST_KERNELS_MUL_MAT_QUANT_H
#define TSR_HOST_KERNELS_MUL_MAT_QUANT_H

#include "host/kernels/quant/tile.h"
#include "host/kernels/quant/vector.h"

enum {
    QUANT_TILE_ROWS = 256,   /* most rows of a chunk: the sums of more rows would leave the caches */
    QUANT_TILE_TOKENS = 288, /* most tokens of a chunk: how often expanded weights are used */
    QUANT_X_AHEAD = 3,       /* tokens */
    QUANT_MAX_BLOCKS = QUANT_TILE_TOKENS * QUANT_BLOCKS /* of x in scratch */
};

typedef struct quant_scratch {
    quant_tile tile;
    x_block x[QUANT_MAX_BLOCKS]; /* one token's blocks, or a panel's blocks of many tokens */
    /* Sums of granules that are longer than a stage: QUANT_ROWS rows of every token, then the next rows, so
     * that a panel moves along memory. */
    float sums[QUANT_TILE_TOKENS * QUANT_TILE_ROWS];
} quant_scratch;
_Static_assert(QUANT_TILE_TOKENS *QUANT_TILE_ROWS <= TOTALS_MAX, "totals of a product");
_Static_assert(QUANT_TILE_TOKENS % QUANT_TOKENS == 0, "room for the last register tile");

/* The activations of some tokens in one stage, QUANT_BLOCKS blocks apart. */
typedef struct quant_tokens {
    const x_block *x;
    int64_t first;
    int n;
} quant_tokens;

/* Activations packed for all threads. */
static const pack_layout quant_layout = {QUANT_SEGMENT, QUANT_TOKENS, QUANT_BLOCKS * sizeof(x_block)};

/* Multiply a segment of the stage's panel that begins with `row` with the tokens, and prefetch that segment
 * of the next panel. `at`: the position of the panel's sums in scratch. */
static void quant_panel_multiply(const product *p, const k_stage *stage, const k_segment *segment,
                                 int64_t row, const quant_tokens *tokens, int64_t at, quant_scratch *scratch)
{
    const int n_tokens = tokens->n;
    const int block = (int)(segment->begin - stage->begin) / X_BLOCK, n_blocks = (int)segment->n / X_BLOCK;
    const int n_rows = p->row_end - row < QUANT_ROWS ? (int)(p->row_end - row) : QUANT_ROWS;
    const bool whole = segment->opens && segment->closes;
    const unsigned char *next = product_w(p, p->op->type, row + QUANT_ROWS, segment->begin);
    const x_block *x = tokens->x + block;
    rows_ahead ahead = rows_ahead_of(next, p->op->w_stride, QUANT_ROWS, elems_bytes(p->op->type, segment->n),
                                     (n_tokens + QUANT_TOKENS - 1) / QUANT_TOKENS);
    for (int t = 0; t < n_tokens; t += QUANT_TOKENS, at += QUANT_TOKENS * QUANT_ROWS) {
        const int n = n_tokens - t < QUANT_TOKENS ? n_tokens - t : QUANT_TOKENS;
        _Alignas(64) float granule[QUANT_TOKENS * QUANT_ROWS];
        float *sums = whole ? granule : scratch->sums + at;
        rows_ahead_step(&ahead, QUANT_ROWS);
        quant_tile_multiply(n, quant_minima(p->op->type), &scratch->tile, block, n_blocks,
                            x + (size_t)t * QUANT_BLOCKS, segment->opens, sums);
        if (segment->closes)
            fold_tile(p, segment, tokens->first + t, n, row, n_rows, QUANT_ROWS, sums, at);
    }
}

/* Multiply one stage of the product's rows. */
static void quant_tile_rows(const product *p, const k_stage *stage, const quant_tokens *tokens,
                            quant_scratch *scratch)
{
    int64_t at = 0;
    for (int64_t row = p->row; row < p->row_end; row += QUANT_ROWS, at += QUANT_ROWS * QUANT_TILE_TOKENS) {
        const int n_rows = p->row_end - row < QUANT_ROWS ? (int)(p->row_end - row) : QUANT_ROWS;
        quant_tile_expand(p->op->type, product_w(p, p->op->type, row, stage->begin), p->op->w_stride, n_rows,
                          (int)(stage->n / X_BLOCK), quant_multiplies_bytes(p->op), &scratch->tile);
        for (int i = 0; i < stage->n_segments; i++)
            quant_panel_multiply(p, stage, &stage->segments[i], row, tokens, at, scratch);
    }
}

/* Encode a stage of some tokens, and prefetch the tokens after it: their rows are far apart in memory. */
static void quant_encode_tokens(const product *p, const k_stage *stage, int64_t first, int n_tokens,
                                x_block *x)
{
    for (int i = 0; i < n_tokens; i++) {
        const int64_t later = i + QUANT_X_AHEAD < n_tokens ? first + i + QUANT_X_AHEAD : first + i;
        for (int64_t k = 0; k < stage->n; k += 64 / (int64_t)sizeof(float))
            __builtin_prefetch(product_x(p, later) + stage->begin + k);
        quant_x_encode(p->op, product_x(p, first + i) + stage->begin, stage->n, quant_multiplies_bytes(p->op),
                       x + (size_t)i * QUANT_BLOCKS);
        quant_tile_x(p->op, x + (size_t)i * QUANT_BLOCKS, stage->n / X_BLOCK);
    }
}

/* Copy a stage of packed tokens that are not contiguous. */
static void quant_gather(const product *p, const k_stage *stage, int64_t first, int n_tokens, x_block *x)
{
    for (int i = 0; i < n_tokens; i++, x += QUANT_BLOCKS)
        memcpy(x, product_packed(p, &quant_layout, stage->index, p->x_rows[first + i]),
               (size_t)(stage->n / X_BLOCK) * sizeof *x);
}

/* The activations of some tokens in a stage: packed, or encoded to x. */
static quant_tokens quant_tokens_of(const product *p, const k_stage *stage, int64_t first, int n_tokens,
                                    x_block *x)
{
    if (p->packed && !p->x_rows)
        return (quant_tokens){product_packed(p, &quant_layout, stage->index, first), first, n_tokens};
    if (p->packed)
        quant_gather(p, stage, first, n_tokens, x);
    else
        quant_encode_tokens(p, stage, first, n_tokens, x);
    return (quant_tokens){x, first, n_tokens};
}

static void quant_tile_product(const product *p, quant_scratch *scratch)
{
    quant_tile_begin(p->op, &scratch->tile);
    for (int64_t t = p->token; t < p->token_end; t += QUANT_TILE_TOKENS) {
        const int n_tokens =
            (int)(p->token_end - t < QUANT_TILE_TOKENS ? p->token_end - t : QUANT_TILE_TOKENS);
        k_segment next = segment_first(p->op, QUANT_SEGMENT);
        k_stage stage = {.index = -1};
        bool more;
        do {
            more = stage_next(p->op, &next, &stage);
            const quant_tokens tokens = quant_tokens_of(p, &stage, t, n_tokens, scratch->x);
            quant_tile_rows(p, &stage, &tokens, scratch);
        } while (more);
    }
    quant_tile_end(&scratch->tile);
}

#endif
