/* Weights of any stored type as floats, 32 at a time.
 *
 * Rows are read in units, and a unit's scales are unpacked together: a super-block (eight groups of 32
 * elements), four blocks of 32 (a group each), or 128 elements of a plain type.
 *
 * Decoded values are the exact real value rounded once to f32, as core/quant/quant.h says: d * scale * quant
 * fits into 24 bits for every type, and only adding an offset (the minimum of Q4_K and others) rounds. A
 * fused multiply-add and a product followed by an addition therefore agree, and so does a lookup of a nibble
 * in a table of its sixteen values (one instruction with AVX-512).
 *
 * Every function takes the type as a constant and is inlined, so the switches vanish. */
#ifndef TSR_HOST_KERNELS_QUANT_WEIGHTS_H
#define TSR_HOST_KERNELS_QUANT_WEIGHTS_H

#include <stddef.h>

#include <tsr/types.h>

#include "core/quant/quant.h"
#include "host/kernels/quant/codes.h"
#include "host/kernels/quant/group_bytes.h"
#include "host/kernels/vec/vec.h"

/* Call macro(type) for each type that a matrix may have, but those of codes.h. */
#define FOR_EACH_WEIGHT_TYPE(macro)                                                                        \
    macro(TSR_TYPE_F32) macro(TSR_TYPE_F16) macro(TSR_TYPE_BF16) macro(TSR_TYPE_Q8_0) macro(TSR_TYPE_Q4_0) \
        macro(TSR_TYPE_Q4_K) macro(TSR_TYPE_Q5_K) macro(TSR_TYPE_Q6_K) macro(TSR_TYPE_Q4_1)                \
            macro(TSR_TYPE_Q5_0) macro(TSR_TYPE_Q5_1) macro(TSR_TYPE_Q2_K) macro(TSR_TYPE_Q3_K)            \
                macro(TSR_TYPE_IQ4_NL) macro(TSR_TYPE_IQ4_XS) macro(TSR_TYPE_MXFP4) macro(TSR_TYPE_NVFP4)

typedef struct w32 {
    v16 a, b; /* elements 0..15 and 16..31 */
} w32;

/* A unit's scales as floats. Q8_0, Q4_0: d of each block. Q4_K, Q5_K: eight scales times d, then eight minima
 * times dmin. Q6_K: sixteen scales times d. The other types: a scale per group, or two where sub-blocks have
 * 16 elements, and the offsets in the upper half. Unused by the plain types. */
typedef struct unit_scales {
    float value[32];
} unit_scales;

ALWAYS_INLINE bool is_plain(tsr_type type)
{
    return type == TSR_TYPE_F32 || type == TSR_TYPE_F16 || type == TSR_TYPE_BF16;
}

/* Whether the type is multiplied as floats: NVFP4 has a float scale per 16 elements, and no sum of integers
 * could have two. */
ALWAYS_INLINE bool is_float(tsr_type type)
{
    return is_plain(type) || type == TSR_TYPE_NVFP4;
}

ALWAYS_INLINE bool is_super_block(tsr_type type)
{
    return is_code(type) || type == TSR_TYPE_Q4_K || type == TSR_TYPE_Q5_K || type == TSR_TYPE_Q6_K ||
           type == TSR_TYPE_Q2_K || type == TSR_TYPE_Q3_K || type == TSR_TYPE_IQ4_XS;
}

/* Whether group_bytes.h unpacks the type. */
ALWAYS_INLINE bool is_spread(tsr_type type)
{
    return type == TSR_TYPE_Q4_1 || type == TSR_TYPE_Q5_0 || type == TSR_TYPE_Q5_1 || type == TSR_TYPE_Q2_K ||
           type == TSR_TYPE_Q3_K || type == TSR_TYPE_IQ4_NL || type == TSR_TYPE_IQ4_XS ||
           type == TSR_TYPE_MXFP4 || type == TSR_TYPE_NVFP4;
}

/* Whether a group has two scales. */
ALWAYS_INLINE bool has_halves(tsr_type type)
{
    return type == TSR_TYPE_Q6_K || type == TSR_TYPE_Q2_K || type == TSR_TYPE_Q3_K || type == TSR_TYPE_NVFP4;
}

/* Whether a type that group_bytes.h unpacks adds an offset. */
ALWAYS_INLINE bool has_offset(tsr_type type)
{
    return type == TSR_TYPE_Q4_1 || type == TSR_TYPE_Q5_1 || type == TSR_TYPE_Q2_K;
}

/* Elements of a block; plain types count as blocks of 32. */
ALWAYS_INLINE int64_t block_elems(tsr_type type)
{
    return is_super_block(type)     ? TSR_QUANT_SUPER_BLOCK
           : type == TSR_TYPE_NVFP4 ? TSR_QUANT_NV_BLOCK
                                    : TSR_QUANT_BLOCK;
}

ALWAYS_INLINE size_t block_bytes(tsr_type type)
{
    switch (type) {
    case TSR_TYPE_F32:
        return 32 * sizeof(float);
    case TSR_TYPE_Q8_0:
        return sizeof(tsr_block_q8_0);
    case TSR_TYPE_Q4_0:
        return sizeof(tsr_block_q4_0);
    case TSR_TYPE_Q4_K:
        return sizeof(tsr_block_q4_k);
    case TSR_TYPE_Q5_K:
        return sizeof(tsr_block_q5_k);
    case TSR_TYPE_Q6_K:
        return sizeof(tsr_block_q6_k);
    case TSR_TYPE_Q4_1:
        return sizeof(tsr_block_q4_1);
    case TSR_TYPE_Q5_0:
        return sizeof(tsr_block_q5_0);
    case TSR_TYPE_Q5_1:
        return sizeof(tsr_block_q5_1);
    case TSR_TYPE_Q2_K:
        return sizeof(tsr_block_q2_k);
    case TSR_TYPE_Q3_K:
        return sizeof(tsr_block_q3_k);
    case TSR_TYPE_IQ4_NL:
        return sizeof(tsr_block_iq4_nl);
    case TSR_TYPE_IQ4_XS:
        return sizeof(tsr_block_iq4_xs);
    case TSR_TYPE_MXFP4:
        return sizeof(tsr_block_mxfp4);
    case TSR_TYPE_NVFP4:
        return sizeof(tsr_block_nvfp4);
    case TSR_TYPE_IQ2_XXS:
        return sizeof(tsr_block_iq2_xxs);
    case TSR_TYPE_IQ2_XS:
        return sizeof(tsr_block_iq2_xs);
    case TSR_TYPE_IQ2_S:
        return sizeof(tsr_block_iq2_s);
    case TSR_TYPE_IQ3_XXS:
        return sizeof(tsr_block_iq3_xxs);
    case TSR_TYPE_IQ3_S:
        return sizeof(tsr_block_iq3_s);
    case TSR_TYPE_IQ1_S:
        return sizeof(tsr_block_iq1_s);
    case TSR_TYPE_IQ1_M:
        return sizeof(tsr_block_iq1_m);
    case TSR_TYPE_TQ1_0:
        return sizeof(tsr_block_tq1_0);
    case TSR_TYPE_TQ2_0:
        return sizeof(tsr_block_tq2_0);
    default: /* F16, BF16 */
        return 32 * sizeof(uint16_t);
    }
}

/* Bytes of the first n elements of a row; n is a multiple of the block for quantized types. */
ALWAYS_INLINE size_t elems_bytes(tsr_type type, int64_t n)
{
    if (type == TSR_TYPE_F32)
        return (size_t)n * sizeof(float);
    if (type == TSR_TYPE_F16 || type == TSR_TYPE_BF16)
        return (size_t)n * sizeof(uint16_t);
    return (size_t)(n / block_elems(type)) * block_bytes(type);
}

/* Groups of 32 in a whole unit. Where fewer groups are left (never in a K type), units are single groups. */
ALWAYS_INLINE int unit_groups(tsr_type type)
{
    return is_super_block(type) ? 8 : type == TSR_TYPE_NVFP4 ? 2 : 4;
}

ALWAYS_INLINE float load_half(const unsigned char *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
    return _cvtsh_ss(half);
#else
    return tsr_f16_to_f32(half);
#endif
}

/* The scales of four blocks, or of one, each at the start of its block of `bytes` bytes. Not by a gather
 * instruction, which some processors run slowly to close a leak. */
ALWAYS_INLINE void block_scales(const unsigned char *p, int groups, size_t bytes, float *scales)
{
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
    if (groups == 4) {
        short half[4];
        UNROLL for (int i = 0; i < 4; i++) memcpy(&half[i], p + (size_t)i * bytes, sizeof half[i]);
        _mm_storeu_ps(scales, _mm_cvtph_ps(_mm_setr_epi16(half[0], half[1], half[2], half[3], 0, 0, 0, 0)));
        return;
    }
#endif
    for (int i = 0; i < groups; i++)
        scales[i] = load_half(p + (size_t)i * bytes);
}

/* The sixteen 6-bit numbers of Q4_K and Q5_K as bytes: scales 0..7, minima 0..7. Four at a time in a 32-bit
 * word: tsr_quant_scale_min() for four sub-blocks together. */
ALWAYS_INLINE byte16 unpack_scales_mins(const unsigned char *packed)
{
    uint32_t word[3];
    memcpy(word, packed, sizeof word);
    const uint32_t bytes[4] = {
        word[0] & 0x3f3f3f3f,
        (word[2] & 0x0f0f0f0f) | (word[0] >> 2 & 0x30303030),
        word[1] & 0x3f3f3f3f,
        (word[2] >> 4 & 0x0f0f0f0f) | (word[1] >> 2 & 0x30303030),
    };
    return byte16_load(bytes);
}

/* The scales, and offsets from value[16] on, of the types that group_bytes.h unpacks. */
ALWAYS_INLINE void spread_scales(tsr_type type, const unsigned char *unit, int groups, float value[32])
{
    if (type == TSR_TYPE_MXFP4) {
        UNROLL for (int g = 0; g < groups; g++) value[g] =
            tsr_quant_mx_scale(unit[(size_t)g * sizeof(tsr_block_mxfp4)]);
    } else if (type == TSR_TYPE_NVFP4) {
        UNROLL for (int s = 0; s < 4; s++) value[s] = tsr_quant_nv_scale(unit[s]);
    } else if (type == TSR_TYPE_IQ4_XS) {
        tsr_block_iq4_xs header;
        memcpy(&header, unit, offsetof(tsr_block_iq4_xs, q));
        const float d = load_half(unit);
        UNROLL for (int s = 0; s < 8; s++) value[s] = d * (float)(tsr_quant_iq4_scale(&header, s) - 32);
    } else if (type == TSR_TYPE_Q3_K) {
        const float d = load_half(unit + offsetof(tsr_block_q3_k, d));
        const unsigned char *packed = unit + offsetof(tsr_block_q3_k, scales);
        UNROLL for (int s = 0; s < 16; s++) value[s] = d * (float)(tsr_quant_q3_scale(packed, s) - 32);
    } else if (type == TSR_TYPE_Q2_K) {
        const byte16 packed = byte16_load(unit + offsetof(tsr_block_q2_k, scales));
        const v16 d = v16_set1(load_half(unit + offsetof(tsr_block_q2_k, d)));
        const v16 minus_dmin = v16_set1(-load_half(unit + offsetof(tsr_block_q2_k, dmin)));
        v16_store(value, v16_mul(v16_from_u8(packed & 0x0f), d));
        v16_store(value + 16, v16_mul(v16_from_u8(packed >> 4), minus_dmin));
    } else {
        block_scales(unit, groups, block_bytes(type), value);
        if (has_offset(type))
            block_scales(unit + sizeof(uint16_t), groups, block_bytes(type), value + 16);
    }
}

ALWAYS_INLINE void scales_of(tsr_type type, const unsigned char *unit, int groups, unit_scales *scales)
{
    if (type == TSR_TYPE_Q8_0 || type == TSR_TYPE_Q4_0) {
        block_scales(unit, groups, block_bytes(type), scales->value);
    } else if (type == TSR_TYPE_Q4_K || type == TSR_TYPE_Q5_K) {
        const float d = load_half(unit), dmin = load_half(unit + offsetof(tsr_block_q4_k, dmin));
        const float factor[16] = {d, d, d, d, d, d, d, d, dmin, dmin, dmin, dmin, dmin, dmin, dmin, dmin};
        const v16 numbers = v16_from_u8(unpack_scales_mins(unit + offsetof(tsr_block_q4_k, scales)));
        v16_store(scales->value, v16_mul(numbers, v16_load(factor)));
    } else if (type == TSR_TYPE_Q6_K) {
        const v16 numbers = v16_from_i8(byte16_load(unit + offsetof(tsr_block_q6_k, scales)));
        const v16 d = v16_set1(load_half(unit + offsetof(tsr_block_q6_k, d)));
        v16_store(scales->value, v16_mul(numbers, d));
    } else if (is_spread(type)) {
        spread_scales(type, unit, groups, scales->value);
    }
    /* Make the compiler fetch each scale from memory: a load fills a vector at no cost, whereas a move from a
     * register occupies the unit that also widens the quants. */
    if (!is_plain(type))
        __asm__("" : "+m"(*scales));
}

/* The quants of one group: 32 unsigned bytes (Q6_K: signed, 32 subtracted). */
ALWAYS_INLINE byte32 quants_of(tsr_type type, const unsigned char *unit, int group)
{
    if (type == TSR_TYPE_Q4_K) {
        const byte32 q = byte32_load(unit + offsetof(tsr_block_q4_k, q) + 32 * (group / 2));
        return byte32_bits(q, group % 2 ? -4 : 0, 0x0f);
    }
    if (type == TSR_TYPE_Q5_K) {
        const byte32 q = byte32_load(unit + offsetof(tsr_block_q5_k, q) + 32 * (group / 2));
        const byte32 high = byte32_load(unit + offsetof(tsr_block_q5_k, high));
        return byte32_bits(q, group % 2 ? -4 : 0, 0x0f) | byte32_bits(high, 4 - group, 0x10);
    }
    const int k = group % 4;
    const byte32 q = byte32_load(unit + offsetof(tsr_block_q6_k, low) + 64 * (group / 4) + 32 * (k % 2));
    const byte32 high = byte32_load(unit + offsetof(tsr_block_q6_k, high) + 32 * (group / 4));
    return (byte32_bits(q, k >= 2 ? -4 : 0, 0x0f) | byte32_bits(high, 4 - 2 * k, 0x30)) - 32;
}

#if defined(TSR_ISA_AVX512)
/* The low or high nibbles of sixteen bytes looked up in a table. The instruction ignores the upper bits of an
 * index. */
ALWAYS_INLINE v16 look_up_nibbles(const unsigned char *p, bool high, __m512 table)
{
    const __m512i bytes = _mm512_cvtepu8_epi32((__m128i)byte16_load(p));
    return (v16){_mm512_permutexvar_ps(high ? _mm512_srli_epi32(bytes, 4) : bytes, table)};
}

/* 0, 1, ... 15 */
ALWAYS_INLINE __m512 nibble_values(void)
{
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
#endif

ALWAYS_INLINE w32 weights_of_q4_0(const unsigned char *block, float d)
{
    const unsigned char *q = block + offsetof(tsr_block_q4_0, q);
#if defined(TSR_ISA_AVX512)
    const __m512 table =
        _mm512_mul_ps(_mm512_sub_ps(nibble_values(), _mm512_set1_ps(8.0f)), _mm512_set1_ps(d));
    return (w32){look_up_nibbles(q, false, table), look_up_nibbles(q, true, table)};
#else
    const byte16 bytes = byte16_load(q);
    return (w32){v16_mul(v16_from_i8((bytes & 0x0f) - 8), v16_set1(d)),
                 v16_mul(v16_from_i8((bytes >> 4) - 8), v16_set1(d))};
#endif
}

/* Q4_K and Q5_K: quant * scale - minimum */
ALWAYS_INLINE w32 weights_of_min(tsr_type type, const unsigned char *unit, const unit_scales *scales,
                                 int group)
{
    const v16 scale = v16_set1(scales->value[group]), minus_min = v16_set1(-scales->value[8 + group]);
#if defined(TSR_ISA_AVX512)
    if (type == TSR_TYPE_Q4_K) {
        const __m512 table = vec_fma(nibble_values(), scale.p0, minus_min.p0);
        const unsigned char *q = unit + offsetof(tsr_block_q4_k, q) + 32 * (group / 2);
        return (w32){look_up_nibbles(q, group % 2, table), look_up_nibbles(q + 16, group % 2, table)};
    }
#endif
    const byte32 q = quants_of(type, unit, group);
    return (w32){v16_fma(v16_from_u8(byte32_half(q, 0)), scale, minus_min),
                 v16_fma(v16_from_u8(byte32_half(q, 1)), scale, minus_min)};
}

/* The types that group_bytes.h unpacks: quant * scale + offset */
ALWAYS_INLINE w32 weights_of_spread(tsr_type type, const unsigned char *unit, const unit_scales *scales,
                                    int group)
{
    const bool shared = is_super_block(type) || type == TSR_TYPE_NVFP4; /* groups share a block */
    const byte32 q = spread_quants(type, shared ? unit : unit + (size_t)group * block_bytes(type), group);
    const v16 a = v16_from_i8(byte32_half(q, 0)), b = v16_from_i8(byte32_half(q, 1));
    const int first = has_halves(type) ? 2 * group : group, second = has_halves(type) ? first + 1 : first;
    const v16 scale_a = v16_set1(scales->value[first]), scale_b = v16_set1(scales->value[second]);
    if (!has_offset(type))
        return (w32){v16_mul(a, scale_a), v16_mul(b, scale_b)};
    return (w32){v16_fma(a, scale_a, v16_set1(scales->value[16 + first])),
                 v16_fma(b, scale_b, v16_set1(scales->value[16 + second]))};
}

/* The 32 weights of one group of a unit; the group is a constant after unrolling for the K types. */
ALWAYS_INLINE w32 weights_of(tsr_type type, const unsigned char *unit, const unit_scales *scales, int group)
{
    switch (type) {
    case TSR_TYPE_F32:
        unit += (size_t)group * 128;
        return (w32){v16_load(unit), v16_load(unit + 64)};
    case TSR_TYPE_F16:
        unit += (size_t)group * 64;
        return (w32){v16_load_f16(unit), v16_load_f16(unit + 32)};
    case TSR_TYPE_BF16:
        unit += (size_t)group * 64;
        return (w32){v16_load_bf16(unit), v16_load_bf16(unit + 32)};
    case TSR_TYPE_Q8_0: {
        const unsigned char *q = unit + (size_t)group * sizeof(tsr_block_q8_0) + offsetof(tsr_block_q8_0, q);
        const v16 d = v16_set1(scales->value[group]);
        return (w32){v16_mul(v16_from_i8(byte16_load(q)), d), v16_mul(v16_from_i8(byte16_load(q + 16)), d)};
    }
    case TSR_TYPE_Q4_0:
        return weights_of_q4_0(unit + (size_t)group * sizeof(tsr_block_q4_0), scales->value[group]);
    case TSR_TYPE_Q4_K:
    case TSR_TYPE_Q5_K:
        return weights_of_min(type, unit, scales, group);
    case TSR_TYPE_Q4_1:
    case TSR_TYPE_Q5_0:
    case TSR_TYPE_Q5_1:
    case TSR_TYPE_Q2_K:
    case TSR_TYPE_Q3_K:
    case TSR_TYPE_IQ4_NL:
    case TSR_TYPE_IQ4_XS:
    case TSR_TYPE_MXFP4:
    case TSR_TYPE_NVFP4:
        return weights_of_spread(type, unit, scales, group);
    default: { /* Q6_K */
        const byte32 q = quants_of(type, unit, group);
        return (w32){v16_mul(v16_from_i8(byte32_half(q, 0)), v16_set1(scales->value[2 * group])),
                     v16_mul(v16_from_i8(byte32_half(q, 1)), v16_set1(scales->value[2 * group + 1]))};
    }
    }
}

/* Elements 8 i .. 8 i + 7 after p of a plain type. */
ALWAYS_INLINE v8 plain_eight(tsr_type type, const unsigned char *p, int i)
{
    p += elems_bytes(type, 8 * (int64_t)i);
    return type == TSR_TYPE_F32 ? v8_load(p) : type == TSR_TYPE_F16 ? v8_load_f16(p) : v8_load_bf16(p);
}

/* The last n (1..31) elements of a row of a plain type, zeros after them. */
ALWAYS_INLINE w32 weights_tail(tsr_type type, const unsigned char *p, int64_t n)
{
    unsigned char bytes[32 * sizeof(float)] = {0};
    memcpy(bytes, p, elems_bytes(type, n));
    return weights_of(type, bytes, NULL, 0);
}

/* Store eight floats at dst, and each following eight `step` floats further on. */
ALWAYS_INLINE void w32_store(float *dst, const size_t step, w32 w)
{
    if (step == 8) {
        v16_store(dst, w.a);
        v16_store(dst + 16, w.b);
    } else {
        v8_store(dst, v16_low(w.a));
        v8_store(dst + step, v16_high(w.a));
        v8_store(dst + 2 * step, v16_low(w.b));
        v8_store(dst + 3 * step, v16_high(w.b));
    }
}

/* Decode `groups` groups, a constant, to dst. */
ALWAYS_INLINE void unit_decode(tsr_type type, const int groups, const unsigned char *p, float *dst,
                               const size_t step)
{
    unit_scales scales;
    scales_of(type, p, groups, &scales);
    UNROLL for (int group = 0; group < groups; group++)
    {
        w32_store(dst + 4 * step * (size_t)group, step, weights_of(type, p, &scales, group));
    }
}

/* Decode n elements (whole blocks, or any n for plain types), filled up with zeros to a multiple of 32. The
 * first eight go to dst, each following eight `step` floats further on. */
ALWAYS_INLINE void weights_decode(tsr_type type, const unsigned char *p, int64_t n, float *dst,
                                  const size_t step)
{
    const int groups = unit_groups(type);
    for (; n >= groups * 32; n -= groups * 32, dst += 4 * step * (size_t)groups) {
        unit_decode(type, groups, p, dst, step);
        p += elems_bytes(type, groups * 32);
    }
    if (is_super_block(type) || type == TSR_TYPE_NVFP4)
        return;
    for (; n >= 32; n -= 32, dst += 4 * step, p += elems_bytes(type, 32))
        unit_decode(type, 1, p, dst, step);
    if (is_plain(type) && n > 0)
        w32_store(dst, step, weights_tail(type, p, n));
}

/* weights_decode(), without gaps, for a type known only at run time. */
static void decode_row(tsr_type type, const unsigned char *p, int64_t n, float *dst)
{
    switch (type) {
#define DECODE_CASE(constant)                   \
    case constant:                              \
        weights_decode(constant, p, n, dst, 8); \
        break;
        FOR_EACH_WEIGHT_TYPE(DECODE_CASE)
#undef DECODE_CASE
    default:
        code_decode(type, p, block_bytes(type), n, dst);
        break;
    }
}

#endif
