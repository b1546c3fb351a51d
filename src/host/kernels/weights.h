/* Weights of any stored type as floats, 32 at a time.
 *
 * A stored block is 32 elements, or the 256 of a K type's super-block; a plain type counts as blocks of 32.
 * Within a super-block the scales are unpacked once (scales_of), then its eight groups of 32 are read one by
 * one.
 *
 * Decoded values are the exact real value rounded once to f32, as core/quant.h says: d * scale * quantum fits
 * into 24 bits whatever the type, and only the subtraction of Q4_K and Q5_K's minimum rounds. A fused
 * multiply-subtract and a product followed by a subtraction therefore agree.
 *
 * Every function takes the type as a constant and is inlined, so the switches vanish. */
#ifndef TSR_HOST_KERNELS_WEIGHTS_H
#define TSR_HOST_KERNELS_WEIGHTS_H

#include <stddef.h>

#include <tsr/types.h>

#include "core/quant.h"
#include "host/kernels/vec.h"

/* Call macro(type) for each type that a matrix may have. */
#define FOR_EACH_WEIGHT_TYPE(macro)                                                                        \
    macro(TSR_TYPE_F32) macro(TSR_TYPE_F16) macro(TSR_TYPE_BF16) macro(TSR_TYPE_Q8_0) macro(TSR_TYPE_Q4_0) \
        macro(TSR_TYPE_Q4_K) macro(TSR_TYPE_Q5_K) macro(TSR_TYPE_Q6_K)

typedef struct w32 {
    v16 a, b; /* elements 0..15 and 16..31 */
} w32;

/* Scales of one super-block, each already multiplied by d (Q4_K, Q5_K: 8 scales, then 8 minima times dmin;
 * Q6_K: 16 scales). Unused by the other types. */
typedef struct block_scales {
    float value[16];
} block_scales;

ALWAYS_INLINE bool is_plain(tsr_type type)
{
    return type == TSR_TYPE_F32 || type == TSR_TYPE_F16 || type == TSR_TYPE_BF16;
}

ALWAYS_INLINE int64_t block_elems(tsr_type type)
{
    return type == TSR_TYPE_Q4_K || type == TSR_TYPE_Q5_K || type == TSR_TYPE_Q6_K ? TSR_QUANT_SUPER_BLOCK
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

/* The sixteen 6-bit numbers of Q4_K and Q5_K as bytes: scales 0..7, minima 0..7. Four at a time in a 32-bit
 * word, which is tsr_quant_scale_min() for four sub-blocks at once. */
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

ALWAYS_INLINE void scales_of(tsr_type type, const unsigned char *block, block_scales *scales)
{
    if (type == TSR_TYPE_Q4_K || type == TSR_TYPE_Q5_K) {
        const float d = load_half(block), dmin = load_half(block + offsetof(tsr_block_q4_k, dmin));
        const float factor[16] = {d, d, d, d, d, d, d, d, dmin, dmin, dmin, dmin, dmin, dmin, dmin, dmin};
        const v16 numbers = v16_from_u8(unpack_scales_mins(block + offsetof(tsr_block_q4_k, scales)));
        v16_store(scales->value, v16_mul(numbers, v16_load(factor)));
    } else if (type == TSR_TYPE_Q6_K) {
        const v16 numbers = v16_from_i8(byte16_load(block + offsetof(tsr_block_q6_k, scales)));
        const v16 d = v16_set1(load_half(block + offsetof(tsr_block_q6_k, d)));
        v16_store(scales->value, v16_mul(numbers, d));
    }
}

/* The quanta of one group of 32: bytes 0..15 and 16..31. */
typedef struct q32 {
    byte16 a, b;
} q32;

ALWAYS_INLINE q32 nibbles_of(const unsigned char *p, bool high)
{
    const byte16 a = byte16_load(p), b = byte16_load(p + 16);
    return high ? (q32){a >> 4, b >> 4} : (q32){a & 0x0f, b & 0x0f};
}

ALWAYS_INLINE q32 quanta_q5_k(const unsigned char *block, int group)
{
    const unsigned char *high = block + offsetof(tsr_block_q5_k, high);
    q32 q = nibbles_of(block + offsetof(tsr_block_q5_k, q) + 32 * (group / 2), group % 2 != 0);
    q.a |= (byte16_load(high) >> group & 1) << 4;
    q.b |= (byte16_load(high + 16) >> group & 1) << 4;
    return q;
}

/* Signed: the quantum minus 32. */
ALWAYS_INLINE q32 quanta_q6_k(const unsigned char *block, int group)
{
    const int k = group % 4;
    const unsigned char *low = block + offsetof(tsr_block_q6_k, low) + 64 * (group / 4) + 32 * (k % 2);
    const unsigned char *high = block + offsetof(tsr_block_q6_k, high) + 32 * (group / 4);
    q32 q = nibbles_of(low, k >= 2);
    q.a = (q.a | (byte16_load(high) >> 2 * k & 3) << 4) - 32;
    q.b = (q.b | (byte16_load(high + 16) >> 2 * k & 3) << 4) - 32;
    return q;
}

/* quantum * scale - minimum */
ALWAYS_INLINE w32 scaled_with_min(q32 q, float scale, float minimum)
{
    const v16 s = v16_set1(scale), m = v16_set1(-minimum);
    return (w32){v16_fma(v16_from_u8(q.a), s, m), v16_fma(v16_from_u8(q.b), s, m)};
}

/* Group `group` (0 for 32-element blocks, else 0..7, a constant after unrolling) of a block. */
ALWAYS_INLINE w32 weights_of(tsr_type type, const unsigned char *block, const block_scales *scales, int group)
{
    switch (type) {
    case TSR_TYPE_F32:
        return (w32){v16_load(block), v16_load(block + 16 * sizeof(float))};
    case TSR_TYPE_F16:
        return (w32){v16_load_f16(block), v16_load_f16(block + 32)};
    case TSR_TYPE_BF16:
        return (w32){v16_load_bf16(block), v16_load_bf16(block + 32)};
    case TSR_TYPE_Q8_0: {
        const v16 d = v16_set1(load_half(block));
        const unsigned char *q = block + offsetof(tsr_block_q8_0, q);
        return (w32){v16_mul(v16_from_i8(byte16_load(q)), d), v16_mul(v16_from_i8(byte16_load(q + 16)), d)};
    }
    case TSR_TYPE_Q4_0: {
        const v16 d = v16_set1(load_half(block));
        const byte16 q = byte16_load(block + offsetof(tsr_block_q4_0, q));
        return (w32){v16_mul(v16_from_i8((q & 0x0f) - 8), d), v16_mul(v16_from_i8((q >> 4) - 8), d)};
    }
    case TSR_TYPE_Q4_K: {
        const unsigned char *q = block + offsetof(tsr_block_q4_k, q) + 32 * (group / 2);
        return scaled_with_min(nibbles_of(q, group % 2 != 0), scales->value[group], scales->value[8 + group]);
    }
    case TSR_TYPE_Q5_K:
        return scaled_with_min(quanta_q5_k(block, group), scales->value[group], scales->value[8 + group]);
    default: { /* Q6_K */
        const q32 q = quanta_q6_k(block, group);
        return (w32){v16_mul(v16_from_i8(q.a), v16_set1(scales->value[2 * group])),
                     v16_mul(v16_from_i8(q.b), v16_set1(scales->value[2 * group + 1]))};
    }
    }
}

/* The last n (1..31) elements of a row of a plain type, zeros after them. */
ALWAYS_INLINE w32 weights_tail(tsr_type type, const unsigned char *p, int64_t n)
{
    unsigned char bytes[32 * sizeof(float)] = {0};
    memcpy(bytes, p, elems_bytes(type, n));
    return weights_of(type, bytes, NULL, 0);
}

/* Decode n elements (whole blocks, or any n for plain types) into dst[n rounded up to 32], zeros at its end.
 */
ALWAYS_INLINE void weights_decode(tsr_type type, const unsigned char *p, int64_t n, float *dst)
{
    const int groups = (int)(block_elems(type) / 32);
    while (n >= block_elems(type)) {
        block_scales scales;
        scales_of(type, p, &scales);
        UNROLL for (int group = 0; group < groups; group++)
        {
            const w32 w = weights_of(type, p, &scales, group);
            v16_store(dst, w.a);
            v16_store(dst + 16, w.b);
            dst += 32;
        }
        p += block_bytes(type);
        n -= block_elems(type);
    }
    if (is_plain(type) && n > 0) {
        const w32 w = weights_tail(type, p, n);
        v16_store(dst, w.a);
        v16_store(dst + 16, w.b);
    }
}

/* weights_decode for a type known only at run time. */
static void decode_row(tsr_type type, const unsigned char *p, int64_t n, float *dst)
{
    switch (type) {
#define DECODE_CASE(constant)                \
    case constant:                           \
        weights_decode(constant, p, n, dst); \
        break;
        FOR_EACH_WEIGHT_TYPE(DECODE_CASE)
#undef DECODE_CASE
    default:
        break;
    }
}

#endif
