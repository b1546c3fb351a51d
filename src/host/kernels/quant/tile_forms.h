/* The forms of a tile, words or bytes: which form a product takes, and how its tile and activations are
 * prepared. Included by the header that defines quant_tile and quant_tile_n(), which adds the products of
 * n_tokens tokens in a given form. */
#ifndef TSR_HOST_KERNELS_QUANT_TILE_FORMS_H
#define TSR_HOST_KERNELS_QUANT_TILE_FORMS_H

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

#endif
