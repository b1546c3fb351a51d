/* Products with quantized weights, many tokens at a time: lanes are rows.
 *
 * A panel of a few rows is expanded once to 16-bit integers, transposed so that one vector holds two elements
 * of INT_LANES rows, and multiplied with the same two elements of every token. Meanings and bits as in
 * quants_generic.h. */
#ifndef TSR_HOST_KERNELS_QUANTS_TILE_H
#define TSR_HOST_KERNELS_QUANTS_TILE_H

#include "host/kernels/quants.h"

enum {
#if defined(TSR_ISA_AVX512)
    QUANT_VECTORS = 2, /* of INT_LANES rows in a tile */
    QUANT_TOKENS = 6,  /* 2 x 6 integer and as many float sums of 32 registers */
#else
    QUANT_VECTORS = 2,
    QUANT_TOKENS = 3, /* 2 x 3 integer sums of 16 registers */
#endif
    QUANT_ROWS = QUANT_VECTORS * INT_LANES,
    QUANT_STEPS = X_BLOCK / 2 /* pairs of elements */
};

/* A panel of QUANT_ROWS rows. */
typedef struct quant_tile {
    int16_t q[QUANT_BLOCKS][QUANT_STEPS][QUANT_VECTORS][2 * INT_LANES];
    float scale[QUANT_BLOCKS][QUANT_VECTORS][INT_LANES];
    float min[2][QUANT_BLOCKS][QUANT_VECTORS][INT_LANES]; /* of halves: the second only where there are two */
} quant_tile;

/* The quanta of block b of vector v of the tile. */
ALWAYS_INLINE void quant_tile_block(tsr_type type, const quant_panel *panel, const quant_group *group, int b,
                                    int v, quant_tile *tile)
{
    UNROLL for (int i = 0; i < 8; i++)
    {
        const quant_pair q = quant_quanta(type, panel, group, b, i);
        int_store(tile->q[b][i][v], q.even);
        int_store(tile->q[b][8 + i][v], q.odd);
    }
}

#include "host/kernels/quants_expand.h"

ALWAYS_INLINE void quant_tile_n(const int n_tokens, const int minima, const quant_tile *tile, int n_blocks,
                                const x_block *x, size_t x_stride, float *sums, size_t sums_stride)
{
    vec acc[QUANT_TOKENS][QUANT_VECTORS];
    UNROLL for (int t = 0; t < n_tokens; t++) UNROLL for (int v = 0; v < QUANT_VECTORS; v++) acc[t][v] =
        vec_load(sums + (size_t)t * sums_stride + v * INT_LANES);
    for (int b = 0; b < n_blocks; b++) {
        vec_int dots[QUANT_TOKENS][QUANT_VECTORS] = {0};
        UNROLL for (int i = 0; i < QUANT_STEPS; i++)
        {
            vec_int w[QUANT_VECTORS];
            UNROLL for (int v = 0; v < QUANT_VECTORS; v++) w[v] = int_load_once(tile->q[b][i][v]);
            UNROLL for (int t = 0; t < n_tokens; t++)
            {
                const vec_int xi = int_set1(x[(size_t)t * x_stride + (size_t)b].q + 2 * i);
                dots[t][0] = int_dot(dots[t][0], w[0], xi);
                UNROLL for (int v = 1; v < QUANT_VECTORS; v++) dots[t][v] =
                    int_dot_at(dots[t][v], w[v], tile->q[b][i][v], xi);
            }
        }
        UNROLL for (int t = 0; t < n_tokens; t++)
        {
            const x_block *xb = &x[(size_t)t * x_stride + (size_t)b];
            UNROLL for (int v = 0; v < QUANT_VECTORS; v++)
            {
                const vec dot = int_to_float(dots[t][v]) * vec_set1(xb->scale);
                acc[t][v] = vec_fma(dot, vec_load(tile->scale[b][v]), acc[t][v]);
                UNROLL for (int half = 0; half < minima; half++) acc[t][v] = vec_fma(
                    vec_set1(quant_x_sum(xb, minima, half)), -vec_load(tile->min[half][b][v]), acc[t][v]);
            }
        }
    }
    UNROLL for (int t = 0; t < n_tokens; t++) UNROLL for (int v = 0; v < QUANT_VECTORS; v++)
        vec_store(sums + (size_t)t * sums_stride + v * INT_LANES, acc[t][v]);
}

/* Add the panel's products with n_tokens tokens to sums[token * sums_stride + row]; a token's blocks lie
 * x_stride blocks after the one's before. 1 <= n_tokens <= QUANT_TOKENS */
static void quant_tile_multiply(int n_tokens, int minima, const quant_tile *tile, int n_blocks,
                                const x_block *x, size_t x_stride, float *sums, size_t sums_stride)
{
#define MULTIPLY(n)                                                             \
    do {                                                                        \
        if (minima == 0)                                                        \
            quant_tile_n(n, 0, tile, n_blocks, x, x_stride, sums, sums_stride); \
        else if (minima == 1)                                                   \
            quant_tile_n(n, 1, tile, n_blocks, x, x_stride, sums, sums_stride); \
        else                                                                    \
            quant_tile_n(n, 2, tile, n_blocks, x, x_stride, sums, sums_stride); \
        n_tokens -= (n), x += (n)*x_stride, sums += (n)*sums_stride;            \
    } while (0)
    if (n_tokens == QUANT_TOKENS)
        MULTIPLY(QUANT_TOKENS);
#if defined(TSR_ISA_AVX512)
    if (n_tokens >= 3)
        MULTIPLY(3);
#endif
    if (n_tokens >= 2)
        MULTIPLY(2);
    if (n_tokens >= 1)
        MULTIPLY(1);
#undef MULTIPLY
}

#endif
