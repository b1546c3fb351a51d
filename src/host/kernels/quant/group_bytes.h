/* The quants of a group of 32 elements as bytes, for the types whose quants are spread over nibbles, bits and
 * tables. A quant is the number that core/quant/quant.h multiplies with the scale: offsets are subtracted
 * (Q5_0's 16, Q3_K's 4), tables looked up.
 *
 * As in weights.h the type is a constant. */
#ifndef TSR_HOST_KERNELS_QUANT_GROUP_BYTES_H
#define TSR_HOST_KERNELS_QUANT_GROUP_BYTES_H

#include <stddef.h>

#include <tsr/types.h>

#include "core/quant/quant.h"
#include "host/kernels/vec/vec.h"

ALWAYS_INLINE byte32 byte32_join(byte16 low, byte16 high)
{
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
    return (byte32)_mm256_set_m128i((__m128i)high, (__m128i)low);
#else
    byte32 joined;
    memcpy(&joined, &low, sizeof low);
    memcpy((char *)&joined + sizeof low, &high, sizeof high);
    return joined;
#endif
}

/* The 32 nibbles of 16 bytes, low nibbles first. */
ALWAYS_INLINE byte32 split_nibbles(const unsigned char *p)
{
    const byte16 bytes = byte16_load(p);
    return byte32_join(bytes & 0x0f, bytes >> 4);
}

/* Byte i is `value` where bit i is set, otherwise 0. */
ALWAYS_INLINE byte32 spread_bits(const unsigned char *p, uint8_t value)
{
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
    const __m256i bytes = _mm256_shuffle_epi8(
        _mm256_set1_epi32((int)bits),
        _mm256_setr_epi64x(0x0000000000000000, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    return (byte32)_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit) & value;
#else
    byte32 spread;
    for (int i = 0; i < 32; i++)
        spread[i] = bits >> i & 1 ? value : 0;
    return spread;
#endif
}

ALWAYS_INLINE byte32 look_up(byte32 nibbles, const int8_t values[16])
{
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
    const __m256i table = _mm256_broadcastsi128_si256((__m128i)byte16_load(values));
    return (byte32)_mm256_shuffle_epi8(table, (__m256i)nibbles);
#else
    byte32 found;
    for (int i = 0; i < 32; i++)
        found[i] = (uint8_t)values[nibbles[i]];
    return found;
#endif
}

/* Group `group` (0..7) of Q3_K: two low bits and a high bit, minus 4. */
ALWAYS_INLINE byte32 quants_q3_k(const unsigned char *unit, int group)
{
    const byte32 low = byte32_load(unit + offsetof(tsr_block_q3_k, q) + 32 * (group / 4));
    const byte32 high = byte32_load(unit + offsetof(tsr_block_q3_k, high));
    return (byte32_bits(low, -2 * (group % 4), 0x03) | byte32_bits(high, 2 - group, 0x04)) - 4;
}

/* The 32 nibbles of two sub-blocks of NVFP4, eight low nibbles and eight high nibbles each. */
ALWAYS_INLINE byte32 nv_nibbles(const unsigned char *p)
{
    typedef uint64_t eights __attribute__((vector_size(32)));
    uint64_t q[2];
    memcpy(q, p, sizeof q);
    return (byte32)((eights){q[0], q[0] >> 4, q[1], q[1] >> 4}) & 0x0f;
}

/* Group `group` of the block or super-block at p. */
ALWAYS_INLINE byte32 spread_quants(tsr_type type, const unsigned char *p, int group)
{
    static const int8_t iq4[16] = {TSR_QUANT_IQ4_VALUES}, fp4[16] = {TSR_QUANT_FP4_VALUES};
    switch (type) {
    case TSR_TYPE_Q4_1:
        return split_nibbles(p + offsetof(tsr_block_q4_1, q));
    case TSR_TYPE_Q5_0:
        return (split_nibbles(p + offsetof(tsr_block_q5_0, q)) |
                spread_bits(p + offsetof(tsr_block_q5_0, high), 16)) -
               16;
    case TSR_TYPE_Q5_1:
        return split_nibbles(p + offsetof(tsr_block_q5_1, q)) |
               spread_bits(p + offsetof(tsr_block_q5_1, high), 16);
    case TSR_TYPE_IQ4_NL:
        return look_up(split_nibbles(p + offsetof(tsr_block_iq4_nl, q)), iq4);
    case TSR_TYPE_IQ4_XS:
        return look_up(split_nibbles(p + offsetof(tsr_block_iq4_xs, q) + 16 * group), iq4);
    case TSR_TYPE_MXFP4:
        return look_up(split_nibbles(p + offsetof(tsr_block_mxfp4, q)), fp4);
    case TSR_TYPE_NVFP4:
        return look_up(nv_nibbles(p + offsetof(tsr_block_nvfp4, q) + 16 * group), fp4);
    case TSR_TYPE_Q2_K:
        return byte32_bits(byte32_load(p + offsetof(tsr_block_q2_k, q) + 32 * (group / 4)), -2 * (group % 4),
                           0x03);
    default: /* Q3_K */
        return quants_q3_k(p, group);
    }
}

#endif
