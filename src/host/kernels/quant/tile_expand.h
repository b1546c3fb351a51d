/* Expanding panels of a few rows of a quantized matrix. The rows' bytes are brought into vectors in the same
 * way for every instruction set. Included by the header that defines quant_tile (a panel in the layout of its
 * instructions), QUANT_VECTORS, QUANT_ROWS and quant_tile_block(), which stores a block's quants; as bytes
 * where the product is one of bytes and QUANT_TILE_HAS_BYTES is 1. */
#ifndef TSR_HOST_KERNELS_QUANT_TILE_EXPAND_H
#define TSR_HOST_KERNELS_QUANT_TILE_EXPAND_H

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
ALWAYS_INLINE void quant_tile_expand_type(tsr_type type, const unsigned char *w, size_t stride, int n_rows,
                                          int n_blocks, const bool bytes, quant_tile *tile)
{
    quant_edge edge;
    for (int v = 0; v < QUANT_VECTORS; v++) {
        const int first = v * INT_LANES < n_rows ? v * INT_LANES : n_rows - 1;
        const int_rows rows = quant_rows(w + (size_t)first * stride, stride, n_rows - first,
                                         elems_bytes(type, (int64_t)n_blocks * X_BLOCK), &edge);
        quant_tile_vector(type, &rows, n_blocks, bytes, v, tile);
    }
}

/* quant_tile_expand_type() by type. `bytes`: the product is one of bytes. */
static void quant_tile_expand(tsr_type type, const unsigned char *w, size_t stride, int n_rows, int n_blocks,
                              bool bytes, quant_tile *tile)
{
    switch (type) {
#define EXPAND_CASE(constant, rules)                                                    \
    case constant:                                                                      \
        if (bytes && QUANT_TILE_HAS_BYTES)                                              \
            quant_tile_expand_type(constant, w, stride, n_rows, n_blocks, true, tile);  \
        else                                                                            \
            quant_tile_expand_type(constant, w, stride, n_rows, n_blocks, false, tile); \
        break;
        FOR_EACH_QUANT_TYPE(EXPAND_CASE)
#undef EXPAND_CASE
    default:
        break;
    }
}

#endif
