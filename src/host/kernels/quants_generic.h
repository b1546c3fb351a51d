/* Products with quantized weights, one element at a time: what the vector kernels must agree with, bit for
 * bit.
 *
 * A row's sum over a granule starts from zero and takes block after block of 32 elements:
 *
 *     sum = fma((float)(integer sum of q[i] * x.q[i]) * x.scale, scale, sum)
 *     sum = fma(x.sum, -min, sum)                                            types with a minimum only
 *
 * fma() rounds once, in hardware or not. */
#ifndef TSR_HOST_KERNELS_QUANTS_GENERIC_H
#define TSR_HOST_KERNELS_QUANTS_GENERIC_H

#include "host/kernels/quants.h"

enum { QUANT_ROWS = 4, QUANT_TOKENS = 4 }; /* of a tile */

/* A panel of QUANT_ROWS rows. */
typedef struct quant_tile {
    int16_t q[QUANT_ROWS][QUANT_BLOCKS][X_BLOCK]; /* in the order of x_block */
    float scale[QUANT_ROWS][QUANT_BLOCKS], min[QUANT_ROWS][QUANT_BLOCKS];
} quant_tile;

/* Store element i of a block. */
ALWAYS_INLINE void quant_put(int16_t q[X_BLOCK], int i, int value)
{
    q[i % 2 * 16 + i / 2] = (int16_t)value;
}

static void quant_expand_block(tsr_type type, const unsigned char *p, int b, int16_t q[X_BLOCK], float *scale,
                               float *min)
{
    *min = 0.0f;
    if (type == TSR_TYPE_Q8_0) {
        tsr_block_q8_0 block;
        memcpy(&block, p + (size_t)b * sizeof block, sizeof block);
        *scale = tsr_f16_to_f32(block.d);
        for (int i = 0; i < X_BLOCK; i++)
            quant_put(q, i, block.q[i]);
    } else if (type == TSR_TYPE_Q4_0) {
        tsr_block_q4_0 block;
        memcpy(&block, p + (size_t)b * sizeof block, sizeof block);
        *scale = tsr_f16_to_f32(block.d);
        for (int i = 0; i < X_BLOCK; i++)
            quant_put(q, i, (block.q[i % 16] >> (i < 16 ? 0 : 4) & 15) - 8);
    } else if (type == TSR_TYPE_Q6_K) {
        tsr_block_q6_k block;
        memcpy(&block, p, sizeof block);
        const uint8_t *low = block.low + 64 * (b / 4) + 32 * (b % 2), *high = block.high + 32 * (b / 4);
        *scale = tsr_f16_to_f32(block.d);
        for (int i = 0; i < X_BLOCK; i++) {
            const int quantum = (low[i] >> (b % 4 < 2 ? 0 : 4) & 15) | (high[i] >> b % 4 * 2 & 3) << 4;
            quant_put(q, i, (quantum - 32) * block.scales[2 * b + i / 16]);
        }
    } else { /* Q4_K, Q5_K: they begin alike */
        tsr_block_q5_k block = {0};
        memcpy(&block, p, type == TSR_TYPE_Q5_K ? sizeof block : offsetof(tsr_block_q5_k, high));
        uint8_t step, offset;
        tsr_quant_scale_min(block.scales, b, &step, &offset);
        *scale = tsr_f16_to_f32(block.d) * (float)step;
        *min = tsr_f16_to_f32(block.dmin) * (float)offset;
        const unsigned char *low =
            p + (type == TSR_TYPE_Q5_K ? offsetof(tsr_block_q5_k, q) : offsetof(tsr_block_q4_k, q));
        for (int i = 0; i < X_BLOCK; i++)
            quant_put(q, i, (low[b / 2 * 32 + i] >> b % 2 * 4 & 15) | (block.high[i] >> b & 1) << 4);
    }
}

/* n_blocks blocks at w of n_rows rows, `stride` bytes apart. */
static void quant_tile_expand(tsr_type type, const unsigned char *w, size_t stride, int n_rows, int n_blocks,
                              quant_tile *tile)
{
    memset(tile, 0, sizeof *tile);
    for (int r = 0; r < n_rows; r++)
        for (int b = 0; b < n_blocks; b++)
            quant_expand_block(type, w + (size_t)r * stride, b, tile->q[r][b], &tile->scale[r][b],
                               &tile->min[r][b]);
}

/* Add the panel's products with n_tokens tokens to sums[token * sums_stride + row]; a token's blocks lie
 * x_stride blocks after the one's before. */
static void quant_tile_multiply(int n_tokens, bool has_min, const quant_tile *tile, int n_blocks,
                                const x_block *x, size_t x_stride, float *sums, size_t sums_stride)
{
    for (int t = 0; t < n_tokens; t++)
        for (int r = 0; r < QUANT_ROWS; r++) {
            float sum = sums[(size_t)t * sums_stride + (size_t)r];
            for (int b = 0; b < n_blocks; b++) {
                const x_block *xb = &x[(size_t)t * x_stride + (size_t)b];
                int32_t dot = 0;
                for (int i = 0; i < X_BLOCK; i++)
                    dot += (int32_t)tile->q[r][b][i] * (int32_t)xb->q[i];
                sum = fmaf((float)dot * xb->scale, tile->scale[r][b], sum);
                if (has_min)
                    sum = fmaf(xb->sum, -tile->min[r][b], sum);
            }
            sums[(size_t)t * sums_stride + (size_t)r] = sum;
        }
}

#endif
