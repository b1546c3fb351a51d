/* Activations as 16-bit integers, for products with quantized weights.
 *
 * A block is 32 elements of a token and one scale: x[i] = scale * q[i], |q[i]| <= X_LIMIT, so an element is
 * off by at most 2^-16 of the largest of its block (half a step). Sums of products with a block's quanta are
 * then exact in 32 bits, in any order. Values below 2^-100 in a block that has none above become zero; a NaN
 * or an infinity makes the block's scale NaN, and with it every sum that it is part of. */
#ifndef TSR_HOST_KERNELS_X_BLOCKS_H
#define TSR_HOST_KERNELS_X_BLOCKS_H

#include <math.h>

#include "host/kernels/vec.h"

enum {
    X_BLOCK = 32,
    X_LIMIT = 32767,
    X_LIMIT_SUB = 16383 /* for types whose quanta take 13 bits with their sub-scales: Q6_K */
};

typedef struct x_block {
    int16_t q[X_BLOCK]; /* elements 0, 2, ... 30, then 1, 3, ... 31: how bytes fall apart into words */
    int32_t half[2];    /* sums of elements 0..15 and 16..31 */
    float scale;
    float sum; /* scale * (half[0] + half[1]) */
} x_block;

/* The largest magnitude's bits: as integers they order like the values, infinity and NaN on top. */
ALWAYS_INLINE uint32_t x_largest_bits(const float *x)
{
    uint32_t largest = 0;
    for (int i = 0; i < X_BLOCK; i++) {
        const uint32_t bits = tsr_f32_bits(x[i]) & 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

ALWAYS_INLINE void x_encode_block(const float *x, int limit, x_block *block)
{
    /* v + 1.5 * 2^23 has v, rounded to the nearest integer, in its low bits, for |v| <= 2^22 */
    const float shift = 12582912.0f;
    const uint32_t largest_bits = x_largest_bits(x);
    const float largest = tsr_f32_from_bits(largest_bits);
    const bool finite = largest_bits < 0x7f800000;
    const float inverse = finite && largest >= 0x1p-100f ? (float)limit / largest : 0.0f;
    int32_t q[X_BLOCK];
    for (int i = 0; i < X_BLOCK; i++) {
        const float shifted = finite ? x[i] * inverse + shift : shift;
        q[i] = (int32_t)(tsr_f32_bits(shifted) - tsr_f32_bits(shift));
    }
    for (int i = 0; i < X_BLOCK / 2; i++) {
        block->q[i] = (int16_t)q[2 * i];
        block->q[16 + i] = (int16_t)q[2 * i + 1];
    }
    for (int h = 0; h < 2; h++) {
        int32_t sum = 0;
        for (int i = 0; i < 16; i++)
            sum += q[16 * h + i];
        block->half[h] = sum;
    }
    block->scale = finite ? largest / (float)limit : NAN;
    block->sum = block->scale * (float)(block->half[0] + block->half[1]);
}

/* n elements, a multiple of 32. */
static void x_encode(const float *x, int64_t n, int limit, x_block *blocks)
{
    for (; n > 0; n -= X_BLOCK, x += X_BLOCK, blocks++)
        x_encode_block(x, limit, blocks);
}

#endif
