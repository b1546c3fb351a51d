/* Activations as 16-bit integers, for products with quantized weights.
 *
 * A block is 32 elements of a token and one scale: x[i] = scale * q[i], |q[i]| <= X_LIMIT, so an element is
 * off by at most 2^-16 of the largest of its block (half a step). Sums of products with a block's quanta are
 * then exact in 32 bits, in any order. Values below 2^-100 in a block that has none above become zero; a NaN
 * or an infinity makes the block's scale NaN, and with it every sum that it is part of. */
#ifndef TSR_HOST_KERNELS_X_BLOCKS_H
#define TSR_HOST_KERNELS_X_BLOCKS_H

#include <math.h>
#include <stdbool.h>

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

/* The scale of a block whose largest magnitude has these bits, and what elements are multiplied by to become
 * integers. False where an element is an infinity or a NaN: the integers are then zero. */
ALWAYS_INLINE bool x_scale(uint32_t largest_bits, int limit, float *scale, float *inverse)
{
    const float largest = tsr_f32_from_bits(largest_bits);
    if (largest_bits >= 0x7f800000) {
        *scale = NAN;
        return false;
    }
    *scale = largest / (float)limit;
    *inverse = largest >= 0x1p-100f ? (float)limit / largest : 0.0f;
    return true;
}

#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)

/* The largest magnitude's bits: as integers they order like the values, infinity and NaN on top. */
ALWAYS_INLINE uint32_t x_largest_bits(const __m256 v[4])
{
    __m256i largest = _mm256_setzero_si256();
    UNROLL for (int i = 0; i < 4; i++) largest =
        _mm256_max_epu32(largest, _mm256_and_si256((__m256i)v[i], _mm256_set1_epi32(0x7fffffff)));
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1)));
}

/* The even (0x88) or odd (0xdd) ones of 32 integers, as 16 bits. */
#define X_PICK(q, which)                                                                       \
    _mm256_permutevar8x32_epi32(                                                               \
        _mm256_packs_epi32((__m256i)_mm256_shuffle_ps((__m256)(q)[0], (__m256)(q)[1], which),  \
                           (__m256i)_mm256_shuffle_ps((__m256)(q)[2], (__m256)(q)[3], which)), \
        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))

ALWAYS_INLINE void x_encode_block(const float *x, int limit, x_block *block)
{
    __m256 v[4];
    __m256i q[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                    _mm256_setzero_si256()};
    float inverse;
    UNROLL for (int i = 0; i < 4; i++) v[i] = _mm256_loadu_ps(x + 8 * i);
    if (x_scale(x_largest_bits(v), limit, &block->scale, &inverse))
        UNROLL for (int i = 0; i < 4; i++) q[i] =
            _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(inverse)));
    _mm256_storeu_si256((__m256i *)block->q, X_PICK(q, 0x88));
    _mm256_storeu_si256((__m256i *)(block->q + 16), X_PICK(q, 0xdd));
    const __m256i pairs = _mm256_hadd_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    const __m128i halves = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    block->half[0] = _mm_cvtsi128_si32(halves);
    block->half[1] = _mm_extract_epi32(halves, 2);
    block->sum = block->scale * (float)(block->half[0] + block->half[1]);
}
#undef X_PICK

#elif defined(TSR_ISA_NEON)

/* Products are rounded to the nearest integer, ties to even, like everywhere. */
ALWAYS_INLINE void x_encode_block(const float *x, int limit, x_block *block)
{
    float32x4_t v[8];
    int32x4_t q[8] = {0};
    uint32x4_t largest = vdupq_n_u32(0);
    float inverse;
    UNROLL for (int i = 0; i < 8; i++)
    {
        v[i] = vld1q_f32(x + 4 * i);
        largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(v[i])));
    }
    if (x_scale(vmaxvq_u32(largest), limit, &block->scale, &inverse))
        UNROLL for (int i = 0; i < 8; i++) q[i] = vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse));
    UNROLL for (int i = 0; i < 4; i++)
    {
        const int32x4_t even = vuzp1q_s32(q[2 * i], q[2 * i + 1]), odd = vuzp2q_s32(q[2 * i], q[2 * i + 1]);
        vst1_s16(block->q + 4 * i, vmovn_s32(even));
        vst1_s16(block->q + 16 + 4 * i, vmovn_s32(odd));
    }
    UNROLL for (int i = 0; i < 2; i++) block->half[i] =
        vaddvq_s32(vaddq_s32(vaddq_s32(q[4 * i], q[4 * i + 1]), vaddq_s32(q[4 * i + 2], q[4 * i + 3])));
    block->sum = block->scale * (float)(block->half[0] + block->half[1]);
}

#else

ALWAYS_INLINE void x_encode_block(const float *x, int limit, x_block *block)
{
    /* v + 1.5 * 2^23 has v, rounded to the nearest integer, in its low bits, for |v| <= 2^22 */
    const float shift = 12582912.0f;
    uint32_t largest_bits = 0;
    for (int i = 0; i < X_BLOCK; i++) {
        const uint32_t bits = tsr_f32_bits(x[i]) & 0x7fffffff;
        largest_bits = bits > largest_bits ? bits : largest_bits;
    }
    float inverse;
    const bool finite = x_scale(largest_bits, limit, &block->scale, &inverse);
    block->half[0] = block->half[1] = 0;
    for (int i = 0; i < X_BLOCK; i++) {
        const float shifted = finite ? x[i] * inverse + shift : shift;
        const int32_t q = (int32_t)(tsr_f32_bits(shifted) - tsr_f32_bits(shift));
        block->q[i % 2 * 16 + i / 2] = (int16_t)q;
        block->half[i / 16] += q;
    }
    block->sum = block->scale * (float)(block->half[0] + block->half[1]);
}

#endif

/* n elements, a multiple of 32. */
static void x_encode(const float *x, int64_t n, int limit, x_block *blocks)
{
    for (; n > 0; n -= X_BLOCK, x += X_BLOCK, blocks++)
        x_encode_block(x, limit, blocks);
}

#endif
