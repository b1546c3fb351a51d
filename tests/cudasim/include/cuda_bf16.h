/* The simulated <cuda_bf16.h>: bfloat16, the upper half of a binary32. */
#ifndef CUDASIM_CUDA_BF16_H
#define CUDASIM_CUDA_BF16_H

#include "cuda_runtime.h"

typedef struct {
    unsigned short x;
} __nv_bfloat16_raw;

#ifdef __cplusplus

struct __nv_bfloat16 {
    unsigned short bits_;
    __nv_bfloat16() = default;
    __nv_bfloat16(float v)
    {
        uint32_t bits = cudasim_bits<uint32_t>(v);
        bits_ = (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff /* CUDA's NaN */
                                                 : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    __nv_bfloat16(__nv_bfloat16_raw r) : bits_(r.x)
    {
    }
    operator float() const
    {
        return cudasim_bits<float>((uint32_t)bits_ << 16);
    }
    operator __nv_bfloat16_raw() const
    {
        return {bits_};
    }
};

struct __attribute__((aligned(4))) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b)
    {
    }
};

static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v)
{
    return __nv_bfloat16(__nv_bfloat16_raw{v});
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v)
{
    return v.bits_;
}
static inline __nv_bfloat16 __float2bfloat16(float v)
{
    return __nv_bfloat16(v);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float v)
{
    return __nv_bfloat16(v);
}
static inline float __bfloat162float(__nv_bfloat16 v)
{
    return (float)v;
}
static inline float2 __bfloat1622float2(__nv_bfloat162 v)
{
    return make_float2((float)v.x, (float)v.y);
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return {__nv_bfloat16(a), __nv_bfloat16(b)};
}
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v)
{
    return {__nv_bfloat16(v.x), __nv_bfloat16(v.y)};
}
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return {a, b};
}
static inline float __low2float(__nv_bfloat162 v)
{
    return (float)v.x;
}
static inline float __high2float(__nv_bfloat162 v)
{
    return (float)v.y;
}

#endif

#endif
