/* Products with quantized weights, one element at a time: what the vector kernels must agree with, bit for
 * bit.
 *
 * A row's sum over a granule starts from zero and takes block after block of 32 elements:
 *
 *     sum = fma((float)(integer sum of q[i] * x.q[i]) * x.scale, scale, sum)
 *     sum = fma(x.sum, -min, sum)                                types with a minimum
 *     sum = fma(x.scale * (float)x.half[h], -min[h], sum)        for h = 0, 1: types with one per half
 *
 * fma() rounds once, in hardware or not. */
#ifndef TSR_HOST_KERNELS_QUANTS_GENERIC_H
#define TSR_HOST_KERNELS_QUANTS_GENERIC_H

#include "host/kernels/quants.h"

enum { QUANT_ROWS = 4, QUANT_TOKENS = 4 }; /* of a tile */

/* A panel of QUANT_ROWS rows; those that do not exist are zeros. */
typedef struct quant_tile {
    quant_block block[QUANT_ROWS][QUANT_BLOCKS];
} quant_tile;

/* n_blocks blocks at w of n_rows rows, `stride` bytes apart. */
static void quant_tile_expand(tsr_type type, const unsigned char *w, size_t stride, int n_rows, int n_blocks,
                              quant_tile *tile)
{
    memset(tile, 0, sizeof *tile);
    for (int r = 0; r < n_rows; r++)
        for (int b = 0; b < n_blocks; b++)
            quant_expand(type, w + (size_t)r * stride, b, &tile->block[r][b]);
}

/* Add the panel's products with n_tokens tokens to sums[token * sums_stride + row]; a token's blocks lie
 * x_stride blocks after the one's before. */
static void quant_tile_multiply(int n_tokens, int minima, const quant_tile *tile, int n_blocks,
                                const x_block *x, size_t x_stride, float *sums, size_t sums_stride)
{
    for (int t = 0; t < n_tokens; t++)
        for (int r = 0; r < QUANT_ROWS; r++) {
            float sum = sums[(size_t)t * sums_stride + (size_t)r];
            for (int b = 0; b < n_blocks; b++) {
                const x_block *xb = &x[(size_t)t * x_stride + (size_t)b];
                const quant_block *w = &tile->block[r][b];
                int32_t dot = 0;
                for (int i = 0; i < X_BLOCK; i++)
                    dot += (int32_t)w->q[i] * (int32_t)xb->q[i];
                sum = fmaf((float)dot * xb->scale, w->scale, sum);
                for (int half = 0; half < minima; half++)
                    sum = fmaf(quant_x_sum(xb, minima, half), -w->min[half], sum);
            }
            sums[(size_t)t * sums_stride + (size_t)r] = sum;
        }
}

#endif
