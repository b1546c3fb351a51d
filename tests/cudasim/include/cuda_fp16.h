/* The simulated <cuda_fp16.h>: IEEE binary16 and the conversions and arithmetic on it that kernels of this
 * project may use. Arithmetic rounds once, as the GPU's does: binary32 holds products and sums of two halves
 * exactly enough that rounding twice changes nothing (binary32 has more than 2 * 11 + 2 bits). */
#ifndef CUDASIM_CUDA_FP16_H
#define CUDASIM_CUDA_FP16_H

#include "cuda_runtime.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

typedef struct {
    unsigned short x;
} __half_raw;

#ifdef __cplusplus

static inline float cudasim_half_to_float(uint16_t half)
{
#ifdef __F16C__
    return _cvtsh_ss(half); /* the same, NaN included */
#else
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    float value;
    if (magnitude >= 0x7c00) /* infinity or NaN */
        return cudasim_bits<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13 |
                                   (magnitude > 0x7c00 ? 0x400000u : 0u));
    if (magnitude < 0x400) /* subnormal */
        value = (float)magnitude * 0x1p-24f;
    else
        value = cudasim_bits<float>((magnitude << 13) + ((127u - 15u) << 23));
    return cudasim_bits<float>(cudasim_bits<uint32_t>(value) | sign);
#endif
}

static inline uint16_t cudasim_float_to_half(float value)
{
    uint32_t bits = cudasim_bits<uint32_t>(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return 0x7fff; /* CUDA's NaN */
    if (magnitude >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* subnormal: let the addition round in units of 2^-24 */
        float shifted = cudasim_bits<float>(magnitude) + 0.5f; /* ulp of [0.5, 1) is 2^-24 */
        return (uint16_t)(sign | (cudasim_bits<uint32_t>(shifted) - 0x3f000000));
    }
    uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((rounded >> 13) - ((127 - 15) << 10)));
}

struct __half {
    unsigned short bits_;
    __half() = default;
    __half(float v) : bits_(cudasim_float_to_half(v))
    {
    }
    __half(__half_raw r) : bits_(r.x)
    {
    }
    operator float() const
    {
        return cudasim_half_to_float(bits_);
    }
    operator __half_raw() const
    {
        return {bits_};
    }
};
typedef __half half;

struct __attribute__((aligned(4))) __half2 {
    __half x, y;
    __half2() = default;
    __half2(__half a, __half b) : x(a), y(b)
    {
    }
};
typedef __half2 half2;

static inline __half __ushort_as_half(unsigned short v)
{
    return __half(__half_raw{v});
}
static inline unsigned short __half_as_ushort(__half v)
{
    return v.bits_;
}
static inline __half __short_as_half(short v)
{
    return __ushort_as_half((unsigned short)v);
}
static inline __half __float2half(float v)
{
    return __half(v);
}
static inline __half __float2half_rn(float v)
{
    return __half(v);
}
static inline float __half2float(__half v)
{
    return (float)v;
}
static inline __half2 __floats2half2_rn(float a, float b)
{
    return {__half(a), __half(b)};
}
static inline __half2 __float22half2_rn(float2 v)
{
    return {__half(v.x), __half(v.y)};
}
static inline float2 __half22float2(__half2 v)
{
    return make_float2((float)v.x, (float)v.y);
}
static inline __half2 __halves2half2(__half a, __half b)
{
    return {a, b};
}
static inline __half2 __half2half2(__half a)
{
    return {a, a};
}
static inline __half2 __float2half2_rn(float a)
{
    return {__half(a), __half(a)};
}
static inline __half __low2half(__half2 v)
{
    return v.x;
}
static inline __half __high2half(__half2 v)
{
    return v.y;
}
static inline float __low2float(__half2 v)
{
    return (float)v.x;
}
static inline float __high2float(__half2 v)
{
    return (float)v.y;
}
static inline half2 make_half2(__half a, __half b)
{
    return {a, b};
}
static inline __half __hadd(__half a, __half b)
{
    return __half((float)a + (float)b);
}
static inline __half __hsub(__half a, __half b)
{
    return __half((float)a - (float)b);
}
static inline __half __hmul(__half a, __half b)
{
    return __half((float)a * (float)b);
}
static inline __half __hfma(__half a, __half b, __half c)
{
    return __half((float)((double)(float)a * (double)(float)b + (double)(float)c));
}
static inline __half2 __hadd2(__half2 a, __half2 b)
{
    return {__hadd(a.x, b.x), __hadd(a.y, b.y)};
}
static inline __half2 __hsub2(__half2 a, __half2 b)
{
    return {__hsub(a.x, b.x), __hsub(a.y, b.y)};
}
static inline __half2 __hmul2(__half2 a, __half2 b)
{
    return {__hmul(a.x, b.x), __hmul(a.y, b.y)};
}
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c)
{
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}

#endif

#endif
