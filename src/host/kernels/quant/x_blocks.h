/* Activations as integers, for products with quantized weights.
 *
 * A block is 32 elements of a token and one scale: x[i] = scale * q[i], |q[i]| <= X_LIMIT. An element is off
 * by at most 2^-16 of the largest of its block (half a step), with X_LIMIT_BYTE by 2^-8. Sums of products
 * with a block's quants are then exact in 32 bits, in any order. A block whose values are all below 2^-100
 * becomes zero. A NaN or an infinity makes the block's scale NaN, and with it every sum that contains the
 * block. */
#ifndef TSR_HOST_KERNELS_QUANT_X_BLOCKS_H
#define TSR_HOST_KERNELS_QUANT_X_BLOCKS_H

#include <math.h>
#include <stdbool.h>

#include "host/kernels/vec/vec.h"

enum {
    X_BLOCK = 32,
    X_LIMIT = 32767,
    X_LIMIT_SUB = 16383, /* for types whose quants take 13 bits with their sub-scales: Q6_K */
    X_LIMIT_BYTE = 127   /* activations of 8 bits */
};

typedef struct x_block {
    union {
        int16_t q[X_BLOCK];        /* elements 0, 2, ... 30, then 1, 3, ... 31: the order of unpacked bytes */
        struct {                   /* after x_pack_bytes() */
            int8_t bytes[X_BLOCK]; /* in order */
            int32_t begin[2];      /* for the kernel's use: see x.h */
        };
        struct { /* after x_pack_digits(), in order: x = 256 * high + low */
            int8_t high[X_BLOCK];
            uint8_t low[X_BLOCK];
        };
    };
    union {
        int32_t half[2]; /* sums of elements 0..15 and 16..31 */
        int32_t more[2]; /* after x_pack_digits(), where bytes have an offset: the offset times `half` */
    };
    float scale;
    float sum; /* scale * (half[0] + half[1]) */
} x_block;

/* The scale of a block whose largest magnitude has these bits, and the factor that makes its elements
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

/* The bits of the largest magnitude. Compared as integers, bits have the order of the values, with infinity
 * and NaN on top. */
ALWAYS_INLINE uint32_t x_largest_bits(const __m256 v[4])
{
    __m256i largest = _mm256_setzero_si256();
    UNROLL for (int i = 0; i < 4; i++) largest =
        _mm256_max_epu32(largest, _mm256_and_si256((__m256i)v[i], _mm256_set1_epi32(0x7fffffff)));
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1)));
}

/* The even (0x88) or odd (0xdd) elements of 32 integers, as 16 bits. */
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

/* Products are rounded to the nearest integer, ties to even, as in all kernels. */
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

#if defined(TSR_ISA_AVX512)

/* The largest element of each vector, as unsigned integers. */
ALWAYS_INLINE __m128i x_largest4(const __m512i v[4])
{
    __m512i two[2], all;
    UNROLL for (int i = 0; i < 2; i++) two[i] =
        _mm512_max_epu32(_mm512_shuffle_i64x2(v[2 * i], v[2 * i + 1], 0x88),
                         _mm512_shuffle_i64x2(v[2 * i], v[2 * i + 1], 0xdd));
    all = _mm512_max_epu32(_mm512_shuffle_i64x2(two[0], two[1], 0x88),
                           _mm512_shuffle_i64x2(two[0], two[1], 0xdd));
    all = _mm512_max_epu32(all, _mm512_shuffle_epi32(all, 0x4e));
    all = _mm512_max_epu32(all, _mm512_shuffle_epi32(all, 0xb1));
    return _mm512_castsi512_si128(
        _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), all));
}

/* The sums of the first and of the second half of each of four vectors, two vectors in a result. The groups
 * of four lanes of a vector are partial sums of its first, second, first and second half. */
ALWAYS_INLINE void x_sum_halves4(const __m512i v[4], __m128i sums[2])
{
    __m512i two[2], all;
    UNROLL for (int i = 0; i < 2; i++) two[i] = _mm512_add_epi32(
        _mm512_unpacklo_epi64(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_epi64(v[2 * i], v[2 * i + 1]));
    all = _mm512_add_epi32(_mm512_shuffle_i64x2(two[0], two[1], 0x88),
                           _mm512_shuffle_i64x2(two[0], two[1], 0xdd));
    all = _mm512_add_epi32(all, _mm512_shuffle_i64x2(all, all, 0xb1));
    sums[0] = _mm512_castsi512_si128(all);
    sums[1] = _mm512_extracti32x4_epi32(all, 2);
}

/* x_encode_block() of four blocks, with one reduction for the largest elements and the sums of all four. */
ALWAYS_INLINE void x_encode_blocks4(const float *x, int limit, x_block *blocks)
{
    __m512 v[4][2];
    __m512i largest[4], pairs[4];
    __m128i halves[2];
    UNROLL for (int b = 0; b < 4; b++)
    {
        UNROLL for (int i = 0; i < 2; i++) v[b][i] = _mm512_loadu_ps(x + 32 * b + 16 * i);
        largest[b] = _mm512_max_epu32(_mm512_and_si512((__m512i)v[b][0], _mm512_set1_epi32(0x7fffffff)),
                                      _mm512_and_si512((__m512i)v[b][1], _mm512_set1_epi32(0x7fffffff)));
    }
    const __m128 size = (__m128)x_largest4(largest);
    const __m128 most = _mm_set1_ps((float)limit);
    if (_mm_cmp_ps_mask(size, _mm_set1_ps(INFINITY), _CMP_LT_OQ) != 0xf) {
        for (int b = 0; b < 4; b++)
            x_encode_block(x + b * X_BLOCK, limit, blocks + b);
        return;
    }
    const __mmask8 large = _mm_cmp_ps_mask(size, _mm_set1_ps(0x1p-100f), _CMP_GE_OQ);
    const __m128 scale = _mm_div_ps(size, most);
    const __m512 inverse = _mm512_castps128_ps512(_mm_maskz_div_ps(large, most, size));
    UNROLL for (int b = 0; b < 4; b++)
    {
        const __m512 factor = _mm512_permutexvar_ps(_mm512_set1_epi32(b), inverse);
        const __m512 low = (__m512)_mm512_cvtps_epi32(_mm512_mul_ps(v[b][0], factor));
        const __m512 high = (__m512)_mm512_cvtps_epi32(_mm512_mul_ps(v[b][1], factor));
        const __m512i q = _mm512_packs_epi32((__m512i)_mm512_shuffle_ps(low, high, 0x88),
                                             (__m512i)_mm512_shuffle_ps(low, high, 0xdd));
        pairs[b] = _mm512_madd_epi16(q, _mm512_set1_epi16(1));
        _mm512_storeu_si512(blocks[b].q,
                            _mm512_permutexvar_epi32(
                                _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), q));
    }
    x_sum_halves4(pairs, halves);
    const __m128 sum = _mm_mul_ps(scale, _mm_cvtepi32_ps(_mm_hadd_epi32(halves[0], halves[1])));
    const __m128i low = (__m128i)_mm_unpacklo_ps(scale, sum), high = (__m128i)_mm_unpackhi_ps(scale, sum);
    _mm_storeu_si128((__m128i *)(void *)blocks[0].half, _mm_unpacklo_epi64(halves[0], low));
    _mm_storeu_si128((__m128i *)(void *)blocks[1].half, _mm_unpackhi_epi64(halves[0], low));
    _mm_storeu_si128((__m128i *)(void *)blocks[2].half, _mm_unpacklo_epi64(halves[1], high));
    _mm_storeu_si128((__m128i *)(void *)blocks[3].half, _mm_unpackhi_epi64(halves[1], high));
}

#endif

/* Encode n elements, a multiple of 32. */
static void x_encode(const float *x, int64_t n, int limit, x_block *blocks)
{
#if defined(TSR_ISA_AVX512)
    for (; n >= 4 * X_BLOCK; n -= 4 * X_BLOCK, x += 4 * X_BLOCK, blocks += 4)
        x_encode_blocks4(x, limit, blocks);
#endif
    for (; n > 0; n -= X_BLOCK, x += X_BLOCK, blocks++)
        x_encode_block(x, limit, blocks);
}

/* Store the integers of n blocks, encoded with X_LIMIT_BYTE, as bytes. */
ALWAYS_INLINE void x_pack_bytes(x_block *x, int64_t n)
{
    for (int64_t b = 0; b < n; b++) {
        word16 even, odd;
        memcpy(&even, x[b].q, sizeof even);
        memcpy(&odd, x[b].q + X_BLOCK / 2, sizeof odd);
        even = (even & 0xff) | (odd << 8);
        memcpy(x[b].bytes, &even, sizeof even);
    }
}

/* Store the integers of n blocks as digits. */
ALWAYS_INLINE void x_pack_digits(x_block *x, int64_t n, int offset)
{
    for (int64_t b = 0; b < n; b++) {
        word16 even, odd;
        memcpy(&even, x[b].q, sizeof even);
        memcpy(&odd, x[b].q + X_BLOCK / 2, sizeof odd);
        const word16 high = even >> 8 | (odd & 0xff00), low = (even & 0xff) | odd << 8;
        memcpy(x[b].high, &high, sizeof high);
        memcpy(x[b].low, &low, sizeof low);
        for (int half = 0; half < 2 && offset > 0; half++)
            x[b].more[half] = -offset * x[b].half[half];
    }
}

#endif
