/* The two 16-bit float formats against f32: IEEE 754 binary16 (F16: 1 sign, 5 exponent, 10 mantissa bits) and
 * bfloat16 (BF16: the upper half of an f32).
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even, from subnormals up to infinity, and does not
 * depend on the CPU's rounding mode. A NaN stays a NaN: its quiet bit is set and the payload bits that fit
 * are kept, as x86's and Arm's conversion instructions do, so a vector kernel agrees with these bit for
 * bit. */
#ifndef TSR_CORE_QUANT_HALF_H
#define TSR_CORE_QUANT_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t tsr_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float tsr_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float tsr_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = (half >> 10) & 0x1f;
    uint32_t mantissa = half & 0x3ff;
    if (exponent == 0) { /* zero and subnormals: multiples of 2^-24, which f32 holds as normal numbers */
        float magnitude = (float)mantissa * 0x1p-24f;
        return tsr_f32_from_bits(sign | tsr_f32_bits(magnitude));
    }
    if (exponent == 0x1f)
        return tsr_f32_from_bits(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    return tsr_f32_from_bits(sign | (exponent + (127 - 15)) << 23 | mantissa << 13);
}

static inline uint16_t tsr_f32_to_f16(float value)
{
    uint32_t bits = tsr_f32_bits(value);
    uint32_t sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) /* 65520 and above: nearer to 2^16 than to 65504, the largest half */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude >= 0x38800000) { /* 2^-14, the smallest normal half; a carry moves into the exponent */
        uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
        return (uint16_t)(sign | ((rounded >> 13) - ((127 - 15) << 10)));
    }
    /* Subnormal half: count in units of 2^-24. The value is significand * 2^(exponent - 150). */
    uint32_t shift = 126 - (magnitude >> 23);
    if (shift > 24) /* below half a unit */
        return (uint16_t)sign;
    uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
    uint32_t units = significand >> shift;
    uint32_t rest = significand & ((1u << shift) - 1);
    uint32_t half_unit = 1u << (shift - 1);
    units += rest > half_unit || (rest == half_unit && (units & 1));
    return (uint16_t)(sign | units);
}

static inline float tsr_bf16_to_f32(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    if ((bits & 0x7fffffff) > 0x7f800000)
        bits |= 0x400000;
    return tsr_f32_from_bits(bits);
}

static inline uint16_t tsr_f32_to_bf16(float value)
{
    uint32_t bits = tsr_f32_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
