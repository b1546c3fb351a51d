/* Products with quantized weights, many tokens at a time: a panel of a few rows is expanded once into a tile
 * and multiplied with every token.
 *
 * The layout of a tile, and the product of a tile with a few tokens, are those of the instruction set
 * (tile_words.h, tile_neon.h, tile_amx.h, generic.h). The rows' bytes are brought into vectors in the same
 * way for all sets. */
#ifndef TSR_HOST_KERNELS_QUANT_TILE_H
#define TSR_HOST_KERNELS_QUANT_TILE_H

#if defined(TSR_ISA_AMX)
#include "host/kernels/quant/tile_amx.h"
#elif defined(TSR_ISA_NEON)
#include "host/kernels/quant/tile_neon.h"
#elif defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
#include "host/kernels/quant/tile_words.h"
#else
#include "host/kernels/quant/generic.h"
#endif

#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2) || defined(TSR_ISA_NEON)
/* -- expanding panels -- */

/* Store the scale and minima of block b of vector v, which do not depend on the instructions. */
ALWAYS_INLINE void quant_tile_scales(tsr_type type, const quant_panel *panel, int b, int v, quant_tile *tile)
{
    vec_store(tile->scale[b][v], quant_scale(type, panel, b));
    UNROLL for (int half = 0; half < quant_minima(type); half++)
        vec_store(tile->min[half][b][v], quant_min(type, panel, b, half));
}

/* Fill vector v of the tile from the panels at `rows`. */
ALWAYS_INLINE void quant_tile_vector(tsr_type type, const int_rows *rows, int n_blocks, const bool bytes,
                                     int v, quant_tile *tile)
{
    quant_panel panel;
    for (int b = 0; b < n_blocks; b += quant_group_blocks(type)) {
        quant_group group;
        if (b == 0 || !is_super_block(type))
            quant_header_load(type, rows, b, &panel);
        quant_group_load(type, rows, &panel, b, &group);
        UNROLL for (int i = 0; i < quant_group_blocks(type); i++)
        {
            quant_tile_scales(type, &panel, b + i, v, tile);
            quant_tile_block(type, bytes, &panel, &group, b + i, v, tile);
        }
    }
}

/* Expand n_blocks blocks at w of n_rows rows, `stride` bytes apart. Rows past the last repeat the last. */
ALWAYS_INLINE void quant_tile_expand_type(tsr_type type, tsr_type stored, const unsigned char *w,
                                          size_t stride, int n_rows, int n_blocks, const bool bytes,
                                          quant_tile *tile)
{
    quant_edge edge;
    for (int v = 0; v < QUANT_VECTORS; v++) {
        const int first = v * INT_LANES < n_rows ? v * INT_LANES : n_rows - 1;
        const int_rows rows = quant_rows(stored, w + (size_t)first * stride, stride, n_rows - first,
                                         elems_bytes(stored, (int64_t)n_blocks * X_BLOCK), &edge);
        quant_tile_vector(type, &rows, n_blocks, bytes, v, tile);
    }
}

/* quant_tile_expand_type() by type. `bytes`: the product is one of bytes. */
static void quant_tile_expand(tsr_type type, const unsigned char *w, size_t stride, int n_rows, int n_blocks,
                              bool bytes, quant_tile *tile)
{
    switch (quant_kernels(type)) {
#define EXPAND_CASE(constant, rules)                                                                    \
    case constant:                                                                                      \
        if (bytes && QUANT_TILE_HAS_BYTES)                                                              \
            quant_tile_expand_type(constant, quant_stored(constant, type), w, stride, n_rows, n_blocks, \
                                   true, tile);                                                         \
        else                                                                                            \
            quant_tile_expand_type(constant, quant_stored(constant, type), w, stride, n_rows, n_blocks, \
                                   false, tile);                                                        \
        break;
        FOR_EACH_QUANT_TYPE(EXPAND_CASE)
#undef EXPAND_CASE
    default:
        break;
    }
}

#if !defined(TSR_ISA_AMX)
/* -- words or bytes: which form a product takes, and how its tile and activations are prepared -- */

/* Called before a product's first panel. */
ALWAYS_INLINE void quant_tile_begin(const tsr_op_mul_mat *op, quant_tile *tile)
{
    tile->is_bytes = quant_multiplies_bytes(op);
    tile->sub_scales = tile->is_bytes && quant_has_sub_scales(op->type);
}

ALWAYS_INLINE void quant_tile_end(quant_tile *tile)
{
    (void)tile;
}

/* Prepare n encoded blocks. Words are multiplied as they are. */
ALWAYS_INLINE void quant_tile_x(const tsr_op_mul_mat *op, x_block *x, int64_t n)
{
#if defined(TSR_ISA_BYTES)
    if (quant_multiplies_bytes(op))
        byte_x_begin(op->type, x, n);
#else
    (void)op, (void)x, (void)n;
#endif
}

/* quant_tile_n() in the tile's form. Only Q2_K has two minima, and it has sub-scales. */
ALWAYS_INLINE void quant_tile_some(const int n_tokens, int minima, const quant_tile *tile, int block,
                                   int n_blocks, const x_block *x, bool opens, float *sums)
{
#define MULTIPLY(...) quant_tile_n(n_tokens, (quant_form){__VA_ARGS__}, tile, block, n_blocks, x, opens, sums)
    if (QUANT_TILE_HAS_BYTES && tile->is_bytes && minima == 2)
        MULTIPLY(true, true, 2);
    else if (QUANT_TILE_HAS_BYTES && tile->sub_scales)
        MULTIPLY(true, true, 0);
    else if (QUANT_TILE_HAS_BYTES && tile->is_bytes && minima == 1)
        MULTIPLY(true, false, 1);
    else if (QUANT_TILE_HAS_BYTES && tile->is_bytes)
        MULTIPLY(true, false, 0);
    else if (minima == 2)
        MULTIPLY(false, false, 2);
    else if (minima == 1)
        MULTIPLY(false, false, 1);
    else
        MULTIPLY(false, false, 0);
#undef MULTIPLY
}

/* Multiply blocks [block, block + n_blocks) of the panel with the blocks of n_tokens tokens. The first
 * token's blocks are at x, the others QUANT_BLOCKS blocks apart. The products are added to sums[token *
 * QUANT_ROWS + row] or, if `opens`, to zero. 1 <= n_tokens <= QUANT_TOKENS */
static void quant_tile_multiply(int n_tokens, int minima, const quant_tile *tile, int block, int n_blocks,
                                const x_block *x, bool opens, float *sums)
{
#define MULTIPLY(n)                                                        \
    do {                                                                   \
        quant_tile_some(n, minima, tile, block, n_blocks, x, opens, sums); \
        n_tokens -= (n), x += (n)*QUANT_BLOCKS, sums += (n)*QUANT_ROWS;    \
    } while (0)
#if defined(TSR_ISA_NEON)
    const bool in_registers = !QUANT_TILE_HAS_BYTES || !tile->sub_scales;
    if (n_tokens == QUANT_TOKENS && in_registers)
        MULTIPLY(QUANT_TOKENS);
    if (n_tokens == 3 && in_registers)
        MULTIPLY(3);
    while (n_tokens >= 2) /* with sub-scales each token takes as many sums again */
        MULTIPLY(2);
    if (n_tokens == 1)
        MULTIPLY(1);
#else
    const bool in_registers = QUANT_TOKENS <= 3 || !tile->sub_scales;
    if (n_tokens == QUANT_TOKENS && in_registers)
        MULTIPLY(QUANT_TOKENS);
#if defined(TSR_ISA_AVX512)
    while (n_tokens >= 3) /* with sub-scales each token takes half as many sums again */
        MULTIPLY(3);
    if (n_tokens >= 2)
        MULTIPLY(2);
#endif
    if (n_tokens >= 1)
        MULTIPLY(1);
#endif
#undef MULTIPLY
}
#endif
#endif

#endif
