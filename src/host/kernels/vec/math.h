/* exp for vectors, and functions made of it. */
#ifndef TSR_HOST_KERNELS_VEC_MATH_H
#define TSR_HOST_KERNELS_VEC_MATH_H

#include "host/kernels/vec/vec.h"

/* a < b ? a : b; b where either is not a number. */
ALWAYS_INLINE vec vec_min(vec a, vec b)
{
#if defined(TSR_ISA_AVX512)
    return _mm512_min_ps(a, b);
#elif defined(TSR_ISA_AVX2)
    return _mm256_min_ps(a, b);
#else
    return vec_select((vec_int)(a < b), a, b);
#endif
}

/* The largest lane, by the tree of the sums: lanes 8, 4, 2 and 1 apart. */
ALWAYS_INLINE float v16_top(v16 a)
{
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
#if defined(TSR_ISA_AVX512)
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.p0), _mm512_extractf32x8_ps(a.p0, 1));
#else
    const __m256 eight = _mm256_max_ps(a.p0, a.p1);
#endif
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
    const vec four = vec_max(vec_max(a.p0, a.p2), vec_max(a.p1, a.p3));
    const float first = four[0] > four[2] ? four[0] : four[2], second = four[1] > four[3] ? four[1] : four[3];
    return first > second ? first : second;
#endif
}

/* e^x within 2 units in the last place (tests measure it); exp(0) is exactly 1. 0 below -87.33 (the smallest
 * normal float; -infinity included), +infinity above 88.37 (half a binade before f32 ends), NaN for NaN.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor polynomial of degree 7, whose remainder there is
 * below r^8 / 8! = 5e-9; then n is added to the exponent. ln 2 is used in two pieces, the first short enough
 * that its product with n is exact (Cody and Waite, Software Manual for the Elementary Functions, 1980). n
 * comes from adding 1.5 * 2^23, which leaves it in the low bits of the sum. */
ALWAYS_INLINE vec vec_exp(vec x)
{
    const float lowest = -87.336544f, highest = 88.376259f, round = 0x1.8p23f;
    const vec clamped = vec_min(vec_set1(highest + 0.25f), vec_max(vec_set1(lowest), x));
    const vec shifted = vec_fma(clamped, vec_set1(1.44269504f), vec_set1(round));
    const vec n = shifted - vec_set1(round);
    const vec r = vec_fma(n, vec_set1(2.12194440e-4f), vec_fma(n, vec_set1(-0.693359375f), clamped));
    vec p = vec_set1(1.0f / 5040);
    p = vec_fma(p, r, vec_set1(1.0f / 720));
    p = vec_fma(p, r, vec_set1(1.0f / 120));
    p = vec_fma(p, r, vec_set1(1.0f / 24));
    p = vec_fma(p, r, vec_set1(1.0f / 6));
    p = vec_fma(p, r, vec_set1(0.5f));
    p = vec_fma(p, r, vec_set1(1.0f));
    p = vec_fma(p, r, vec_set1(1.0f));
    const vec power = (vec)(((vec_bits)shifted << 23) + 0x3f800000); /* 2^n; infinity for n = 128 */
    return vec_select((vec_int)(x < vec_set1(lowest)), vec_set1(0.0f), p * power);
}

ALWAYS_INLINE v16 v16_exp(v16 a)
{
    return V16_EACH1(vec_exp);
}

ALWAYS_INLINE v16 v16_min(v16 a, v16 b)
{
    return V16_EACH2(vec_min);
}

ALWAYS_INLINE float f32_exp(float x)
{
    return vec_exp(vec_set1(x))[0];
}

/* x / (1 + e^-x) */
ALWAYS_INLINE v16 v16_silu(v16 x)
{
    const v16 one = v16_set1(1.0f);
    return v16_div(x, v16_add(one, v16_exp(v16_sub(v16_zero(), x))));
}

/* ln(1 + e^x) = max(x, 0) + ln(1 + u) with u = e^-|x| <= 1, and ln(1 + u) = 2 artanh s with s = u / (2 + u)
 * <= 1/3: its series ends at s^15, whose remainder is below 2 s^17 / 17 / (1 - s^2) = 1e-9 s. */
ALWAYS_INLINE v16 v16_softplus(v16 x)
{
    const v16 zero = v16_zero(), minus_x = v16_sub(zero, x);
    const v16 u = v16_exp(v16_min(x, minus_x));
    const v16 s = v16_div(u, v16_add(v16_set1(2.0f), u)), square = v16_mul(s, s);
    v16 p = v16_set1(2.0f / 15);
    p = v16_fma(p, square, v16_set1(2.0f / 13));
    p = v16_fma(p, square, v16_set1(2.0f / 11));
    p = v16_fma(p, square, v16_set1(2.0f / 9));
    p = v16_fma(p, square, v16_set1(2.0f / 7));
    p = v16_fma(p, square, v16_set1(2.0f / 5));
    p = v16_fma(p, square, v16_set1(2.0f / 3));
    p = v16_fma(p, square, v16_set1(2.0f));
    return v16_add(v16_mul(p, s), v16_max(zero, x)); /* v16_max() keeps a NaN */
}

ALWAYS_INLINE float f32_softplus(float x)
{
    float all[16];
    v16_store(all, v16_softplus(v16_set1(x)));
    return all[0];
}

/* x / 2 (1 + tanh u) with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + e^-2u): no cancellation. */
ALWAYS_INLINE v16 v16_gelu_tanh(v16 x)
{
    const v16 cubic = v16_fma(v16_mul(v16_mul(x, x), v16_set1(0.044715f)), x, x);
    const v16 minus_2u = v16_mul(cubic, v16_set1(-2.0f * 0.797884561f));
    return v16_div(x, v16_add(v16_set1(1.0f), v16_exp(minus_2u)));
}

/* min(x, limit) / (1 + e^(-alpha min(x, limit))) */
ALWAYS_INLINE v16 v16_clamped_silu(v16 x, float limit, float alpha)
{
    const v16 g = v16_min(v16_set1(limit), x); /* keeps the second operand where x is not a number */
    return v16_div(g, v16_add(v16_set1(1.0f), v16_exp(v16_mul(v16_set1(-alpha), g))));
}

ALWAYS_INLINE v16 v16_sigmoid(v16 x)
{
    const v16 one = v16_set1(1.0f);
    return v16_div(one, v16_add(one, v16_exp(v16_sub(v16_zero(), x))));
}

/* The factor of x in GELU. */
ALWAYS_INLINE v16 v16_gelu_gate(v16 x)
{
    const v16 cubic = v16_fma(v16_mul(v16_mul(x, x), v16_set1(0.044715f)), x, x);
    const v16 minus_2u = v16_mul(cubic, v16_set1(-2.0f * 0.797884561f));
    return v16_div(v16_set1(1.0f), v16_add(v16_set1(1.0f), v16_exp(minus_2u)));
}

/* tanh x = 1 - 2 / (e^2x + 1), within 1.5e-7 absolute: enough for scores, which lose as much in rounding. */
ALWAYS_INLINE v16 v16_tanh(v16 x)
{
    const v16 one = v16_set1(1.0f);
    return v16_sub(one, v16_div(v16_set1(2.0f), v16_add(v16_exp(v16_add(x, x)), one)));
}

#endif
