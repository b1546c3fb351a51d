/* Products with quantized weights, one element at a time: the reference that the vector kernels must equal,
 * bit for bit.
 *
 * A row's sum over a granule starts from zero and takes block after block of 32 elements:
 *
 *     sum = fma((float)(integer sum of q[i] * x.q[i]) * x.scale, scale, sum)
 *     sum = fma(x.sum, -min, sum)                                types with a minimum
 *     sum = fma(x.scale * (float)x.half[h], -min[h], sum)        for h = 0, 1: types with one per half
 *
 * fma() rounds once, in hardware or not. */
#ifndef TSR_HOST_KERNELS_QUANT_GENERIC_H
#define TSR_HOST_KERNELS_QUANT_GENERIC_H

#include "host/kernels/quant/tile_size.h"
#include "core/op.h"
#include "host/kernels/quant/types.h"

/* A panel of QUANT_ROWS rows; missing rows are zeros. */
typedef struct quant_tile {
    quant_block block[QUANT_ROWS][QUANT_BLOCKS];
} quant_tile;

/* Expand n_blocks blocks at w of n_rows rows, `stride` bytes apart. */
static void quant_tile_expand(tsr_type type, const unsigned char *w, size_t stride, int n_rows, int n_blocks,
                              bool bytes, quant_tile *tile)
{
    (void)bytes;
    memset(tile, 0, sizeof *tile);
    for (int r = 0; r < n_rows; r++)
        for (int b = 0; b < n_blocks; b++)
            quant_expand(type, w + (size_t)r * stride, b, &tile->block[r][b]);
}

/* Multiply blocks [block, block + n_blocks) of the panel with the blocks of n_tokens tokens. The first
 * token's blocks are at x, the others QUANT_BLOCKS blocks apart. The products are added to sums[token *
 * QUANT_ROWS + row] or, if `opens`, to zero. 1 <= n_tokens <= QUANT_TOKENS */
static void quant_tile_multiply(int n_tokens, int minima, const quant_tile *tile, int block, int n_blocks,
                                const x_block *x, bool opens, float *sums)
{
    for (int t = 0; t < n_tokens; t++)
        for (int r = 0; r < QUANT_ROWS; r++) {
            float sum = opens ? 0.0f : sums[t * QUANT_ROWS + r];
            for (int b = 0; b < n_blocks; b++) {
                const x_block *xb = &x[t * QUANT_BLOCKS + b];
                const quant_block *w = &tile->block[r][block + b];
                int32_t dot = 0;
                for (int i = 0; i < X_BLOCK; i++)
                    dot += (int32_t)w->q[i] * (int32_t)xb->q[i];
                sum = fmaf((float)dot * xb->scale, w->scale, sum);
                for (int half = 0; half < minima; half++)
                    sum = fmaf(quant_x_sum(xb, minima, half), -w->min[half], sum);
            }
            sums[t * QUANT_ROWS + r] = sum;
        }
}

/* These tiles need no preparation, and multiply activations as encoded. */
ALWAYS_INLINE void quant_tile_begin(const tsr_op_mul_mat *op, quant_tile *tile)
{
    (void)op, (void)tile;
}

ALWAYS_INLINE void quant_tile_end(quant_tile *tile)
{
    (void)tile;
}

ALWAYS_INLINE void quant_tile_x(const tsr_op_mul_mat *op, x_block *x, int64_t n)
{
    (void)op, (void)x, (void)n;
}

#endif
