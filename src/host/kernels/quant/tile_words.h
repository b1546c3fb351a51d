/* Tiles of words, or of bytes, for AVX2 and AVX-512: lanes are rows. tile.h has the products.
 *
 * A panel of a few rows is expanded once to 16-bit integers, transposed so that one vector holds two elements
 * of INT_LANES rows, and multiplied with the same two elements of every token. With 8-bit activations a panel
 * is expanded to bytes (tile_bytes.h). Formulas and bits are those of generic.h. */
#ifndef TSR_HOST_KERNELS_QUANT_TILE_WORDS_H
#define TSR_HOST_KERNELS_QUANT_TILE_WORDS_H

#include "host/kernels/quant/tile_bytes.h"
#include "host/kernels/quant/tile_size.h"
#include "host/kernels/quant/x.h"

#define QUANT_TILE_HAS_BYTES 1

/* A panel of QUANT_ROWS rows. */
typedef struct quant_tile {
    union {
        _Alignas(64) int16_t q[QUANT_BLOCKS][QUANT_STEPS][QUANT_VECTORS][2 * INT_LANES];
        byte_quants bytes;
    };
    float scale[QUANT_BLOCKS][QUANT_VECTORS][INT_LANES];
    float min[2][QUANT_BLOCKS][QUANT_VECTORS][INT_LANES]; /* the second half only with two minima */
    bool is_bytes, sub_scales;                            /* bytes, not words; the type has sub-scales */
} quant_tile;

/* The quants of block b of vector v of the tile. */
ALWAYS_INLINE void quant_tile_block(tsr_type type, const bool bytes, const quant_panel *panel,
                                    const quant_group *group, int b, int v, quant_tile *tile)
{
    if (bytes) {
        byte_quants_block(type, panel, group, b, v, &tile->bytes);
        return;
    }
    UNROLL for (int i = 0; i < 8; i++)
    {
        const quant_pair q = quant_quants(type, panel, group, b, i);
        int_store(tile->q[b][i][v], q.even);
        int_store(tile->q[b][8 + i][v], q.odd);
    }
}

/* The integer sums of block b of the panel with n_tokens blocks: x, and then one every QUANT_BLOCKS
 * blocks. */
ALWAYS_INLINE void quant_tile_dots(const int n_tokens, const quant_form form, const quant_tile *tile, int b,
                                   const x_block *x, vec_int dots[QUANT_TOKENS][QUANT_VECTORS])
{
    if (form.is_bytes) {
        byte_dots(n_tokens, form.sub_scales, &tile->bytes, b, x, dots);
        return;
    }
    UNROLL for (int t = 0; t < n_tokens; t++) UNROLL for (int v = 0; v < QUANT_VECTORS; v++) dots[t][v] =
        (vec_int){0};
    UNROLL for (int i = 0; i < QUANT_STEPS; i++)
    {
        vec_int xi[QUANT_TOKENS];
        UNROLL for (int t = 0; t < n_tokens; t++) xi[t] = int_set1(x[t * QUANT_BLOCKS].q + 2 * i);
        UNROLL for (int v = 0; v < QUANT_VECTORS; v++)
        {
            const vec_int w = int_load_once(tile->q[b][i][v]);
            UNROLL for (int t = 0; t < n_tokens; t++) dots[t][v] = int_dot(dots[t][v], w, xi[t]);
        }
    }
}

/* Add the products of n_blocks blocks from `block` on; arguments as in quant_tile_multiply(). */
ALWAYS_INLINE void quant_tile_n(const int n_tokens, const quant_form form, const quant_tile *tile, int block,
                                int n_blocks, const x_block *x, bool opens, float *sums)
{
    vec acc[QUANT_TOKENS][QUANT_VECTORS] = {0};
    if (!opens)
        UNROLL for (int t = 0; t < n_tokens; t++) UNROLL for (int v = 0; v < QUANT_VECTORS; v++) acc[t][v] =
            vec_load(sums + t * QUANT_ROWS + v * INT_LANES);
    for (int b = block; b < block + n_blocks; b++, x++) {
        vec_int dots[QUANT_TOKENS][QUANT_VECTORS];
        quant_tile_dots(n_tokens, form, tile, b, x, dots);
        UNROLL for (int t = 0; t < n_tokens; t++)
        {
            const x_block *xb = &x[t * QUANT_BLOCKS];
            UNROLL for (int v = 0; v < QUANT_VECTORS; v++)
            {
                const vec dot = int_to_float(dots[t][v]) * vec_set1(xb->scale);
                acc[t][v] = vec_fma(dot, vec_load(tile->scale[b][v]), acc[t][v]);
                UNROLL for (int half = 0; half < form.minima; half++) acc[t][v] =
                    vec_fma(vec_set1(quant_x_sum(xb, form.minima, half)), -vec_load(tile->min[half][b][v]),
                            acc[t][v]);
            }
        }
    }
    UNROLL for (int t = 0; t < n_tokens; t++) UNROLL for (int v = 0; v < QUANT_VECTORS; v++)
        vec_store(sums + t * QUANT_ROWS + v * INT_LANES, acc[t][v]);
}

#endif
