/* Vectors of floats, one source for every instruction set.
 *
 * `vec` is the machine's own vector: 16 lanes with AVX-512, 8 with AVX2, 4 otherwise. `v16` always has 16
 * lanes, made of as many machine vectors as necessary. Kernels are written with these two, so their order of
 * operations, hence every bit of their results, does not depend on the width.
 *
 * AVX2, AVX-512 and NEON agree bit for bit: all have a fused multiply-add. The generic build agrees with them
 * where the target has one (__FP_FAST_FMAF, for example AArch64). On baseline x86-64 it multiplies and adds
 * with two roundings, because an exact emulation would cost ten times as much, and its results differ in the
 * last bits.
 *
 * The including file defines TSR_ISA_AVX512, TSR_ISA_AVX2, TSR_ISA_NEON or none of them. With one of the
 * first two it may define TSR_ISA_VNNI, with the third TSR_ISA_DOTPROD: one instruction multiplies integers
 * and adds them up, words and bytes (VNNI) or bytes (DOTPROD). Compiled with contraction off: a multiply-add
 * is fused where the source says v16_fma, and nowhere else. */
#ifndef TSR_HOST_KERNELS_VEC_VEC_H
#define TSR_HOST_KERNELS_VEC_VEC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/quant/half.h"

#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
#include <immintrin.h>
#elif defined(TSR_ISA_NEON)
#include <arm_neon.h>
#endif
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2) || defined(TSR_ISA_NEON)
#define TSR_ISA_INT_VEC /* int_vec.h has vectors of integers */
#endif
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2) || defined(TSR_ISA_DOTPROD)
#define TSR_ISA_BYTES /* and products of bytes */
#endif
#if defined(TSR_ISA_VNNI) || defined(TSR_ISA_DOTPROD)
#define TSR_ISA_QUADS /* one instruction adds up four products of bytes in 32 bits */
#endif

#if defined(TSR_ISA_VNNI)
#define TSR_ISA_DIGITS /* unsigned bytes on one side, signed bytes on the other */
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))
/* For a loop that keeps its registers only when not inlined, or one of many cases: compilers take a multiple
 * of the time for one function that has all of them. */
#define NOINLINE __attribute__((noinline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#if defined(TSR_ISA_AVX512)
enum { VEC_LANES = 16 };
typedef __m512 vec;
#elif defined(TSR_ISA_AVX2)
enum { VEC_LANES = 8 };
typedef __m256 vec;
#elif defined(TSR_ISA_NEON)
enum { VEC_LANES = 4 };
typedef float32x4_t vec;
#else
enum { VEC_LANES = 4 };
typedef float vec __attribute__((vector_size(16)));
#endif
typedef int32_t vec_int __attribute__((vector_size(sizeof(vec))));
typedef uint32_t vec_bits __attribute__((vector_size(sizeof(vec))));
typedef uint8_t byte16 __attribute__((vector_size(16)));
typedef uint8_t byte32 __attribute__((vector_size(32)));
typedef uint16_t word16 __attribute__((vector_size(32)));

enum { V16_PARTS = 16 / VEC_LANES };

/* Named parts rather than an array: compilers keep the members of a struct in registers, but an array that is
 * indexed in a loop often goes through memory, even when the loop is unrolled. V16_EACHn(f) applies a
 * function of n vectors to the parts of a (and b, c). */
#if defined(TSR_ISA_AVX512)
typedef struct v16 {
    vec p0;
} v16;
#define V16_EACH0(f) ((v16){f(0)})
#define V16_EACH1(f) ((v16){f(a.p0)})
#define V16_EACH2(f) ((v16){f(a.p0, b.p0)})
#define V16_EACH3(f) ((v16){f(a.p0, b.p0, c.p0)})
#elif defined(TSR_ISA_AVX2)
typedef struct v16 {
    vec p0, p1;
} v16;
#define V16_EACH0(f) ((v16){f(0), f(1)})
#define V16_EACH1(f) ((v16){f(a.p0), f(a.p1)})
#define V16_EACH2(f) ((v16){f(a.p0, b.p0), f(a.p1, b.p1)})
#define V16_EACH3(f) ((v16){f(a.p0, b.p0, c.p0), f(a.p1, b.p1, c.p1)})
#else
typedef struct v16 {
    vec p0, p1, p2, p3;
} v16;
#define V16_EACH0(f) ((v16){f(0), f(1), f(2), f(3)})
#define V16_EACH1(f) ((v16){f(a.p0), f(a.p1), f(a.p2), f(a.p3)})
#define V16_EACH2(f) ((v16){f(a.p0, b.p0), f(a.p1, b.p1), f(a.p2, b.p2), f(a.p3, b.p3)})
#define V16_EACH3(f) \
    ((v16){f(a.p0, b.p0, c.p0), f(a.p1, b.p1, c.p1), f(a.p2, b.p2, c.p2), f(a.p3, b.p3, c.p3)})
#endif

/* -- the machine's vector -- */

ALWAYS_INLINE vec vec_set1(float value)
{
    return value - (vec){0}; /* keeps the sign of -0, unlike value + 0 */
}

ALWAYS_INLINE vec vec_load(const void *p)
{
    vec a;
    memcpy(&a, p, sizeof a);
    return a;
}

ALWAYS_INLINE void vec_store(float *p, vec a)
{
    memcpy(p, &a, sizeof a);
}

/* A load into a register. The compiler would repeat it in the memory operand of every use, and two loads per
 * cycle are as scarce as two multiply-adds. */
ALWAYS_INLINE vec vec_load_once(const float *p)
{
    vec a = vec_load(p);
#if defined(TSR_ISA_AVX512)
    __asm__("" : "+v"(a));
#elif defined(TSR_ISA_AVX2)
    __asm__("" : "+x"(a));
#elif defined(TSR_ISA_NEON)
    __asm__("" : "+w"(a));
#endif
    return a;
}

/* a * b + c */
ALWAYS_INLINE vec vec_fma(vec a, vec b, vec c)
{
#if defined(TSR_ISA_AVX512)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(TSR_ISA_AVX2)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(TSR_ISA_NEON)
    return vfmaq_f32(c, a, b);
#elif defined(__FP_FAST_FMAF)
    for (int i = 0; i < VEC_LANES; i++)
        c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c;
#endif
}

/* mask ? a : b, lane by lane; mask lanes are all ones or all zeros. */
ALWAYS_INLINE vec vec_select(vec_int mask, vec a, vec b)
{
    return (vec)((mask & (vec_int)a) | (~mask & (vec_int)b));
}

/* a > b ? a : b; b where either is not a number. */
ALWAYS_INLINE vec vec_max(vec a, vec b)
{
#if defined(TSR_ISA_AVX512)
    return _mm512_max_ps(a, b);
#elif defined(TSR_ISA_AVX2)
    return _mm256_max_ps(a, b);
#else
    return vec_select((vec_int)(a > b), a, b);
#endif
}

/* The larger of a and b, lane by lane. */
ALWAYS_INLINE vec_int vec_int_max(vec_int a, vec_int b)
{
#if defined(TSR_ISA_AVX512)
    return (vec_int)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(TSR_ISA_AVX2)
    return (vec_int)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    const vec_int greater = a > b;
    return (greater & a) | (~greater & b);
#endif
}

/* The nearest integers, ties to even; unspecified where they do not fit. */
ALWAYS_INLINE vec_int vec_round(vec a)
{
#if defined(TSR_ISA_AVX512)
    return (vec_int)_mm512_cvtps_epi32(a);
#elif defined(TSR_ISA_AVX2)
    return (vec_int)_mm256_cvtps_epi32(a);
#elif defined(TSR_ISA_NEON)
    return (vec_int)vcvtnq_s32_f32(a);
#else
    vec_int rounded;
    for (int i = 0; i < VEC_LANES; i++)
        rounded[i] = (int32_t)__builtin_lrintf(a[i]);
    return rounded;
#endif
}

/* -- sixteen lanes -- */

ALWAYS_INLINE v16 v16_set1(float value)
{
    const vec a = vec_set1(value);
#define PART(i) a
    return V16_EACH0(PART);
#undef PART
}

ALWAYS_INLINE v16 v16_zero(void)
{
    return v16_set1(0.0f);
}

ALWAYS_INLINE v16 v16_load(const void *p)
{
#define PART(i) vec_load((const char *)p + (size_t)(i) * sizeof(vec))
    return V16_EACH0(PART);
#undef PART
}

ALWAYS_INLINE void v16_store(float *p, v16 a)
{
    memcpy(p, &a, sizeof a);
}

/* The first n lanes (0 <= n <= 16) from memory, zero in the others; touches n floats only. */
static inline v16 v16_load_n(const float *p, int64_t n)
{
    float lanes[16] = {0};
    memcpy(lanes, p, (size_t)n * sizeof(float));
    return v16_load(lanes);
}

static inline void v16_store_n(float *p, v16 a, int64_t n)
{
    float lanes[16];
    v16_store(lanes, a);
    memcpy(p, lanes, (size_t)n * sizeof(float));
}

#define V16_BINARY(name, operation)            \
    ALWAYS_INLINE vec vec_##name(vec x, vec y) \
    {                                          \
        return x operation y;                  \
    }                                          \
    ALWAYS_INLINE v16 v16_##name(v16 a, v16 b) \
    {                                          \
        return V16_EACH2(vec_##name);          \
    }
V16_BINARY(add, +)
V16_BINARY(sub, -)
V16_BINARY(mul, *)
V16_BINARY(div, /)
#undef V16_BINARY

ALWAYS_INLINE v16 v16_max(v16 a, v16 b)
{
    return V16_EACH2(vec_max);
}

/* a * b + c */
ALWAYS_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return V16_EACH3(vec_fma);
}

/* -- eight lanes: half of sixteen -- */

#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
typedef __m256 v8;
#else
typedef struct v8 {
    vec p0, p1;
} v8;
#endif

ALWAYS_INLINE v8 v8_zero(void)
{
    return (v8){0};
}

ALWAYS_INLINE v8 v16_low(v16 a)
{
#if defined(TSR_ISA_AVX512)
    return _mm512_castps512_ps256(a.p0);
#elif defined(TSR_ISA_AVX2)
    return a.p0;
#else
    return (v8){a.p0, a.p1};
#endif
}

ALWAYS_INLINE v8 v16_high(v16 a)
{
#if defined(TSR_ISA_AVX512)
    return _mm512_extractf32x8_ps(a.p0, 1);
#elif defined(TSR_ISA_AVX2)
    return a.p1;
#else
    return (v8){a.p2, a.p3};
#endif
}

#if !defined(TSR_ISA_AVX512)
ALWAYS_INLINE v16 v16_join(v8 low, v8 high)
{
#if defined(TSR_ISA_AVX2)
    return (v16){low, high};
#else
    return (v16){low.p0, low.p1, high.p0, high.p1};
#endif
}
#endif

ALWAYS_INLINE v8 v8_load(const void *p)
{
    v8 a;
    memcpy(&a, p, sizeof a);
    return a;
}

ALWAYS_INLINE void v8_store(float *p, v8 a)
{
    memcpy(p, &a, sizeof a);
}

/* a * b + c */
ALWAYS_INLINE v8 v8_fma(v8 a, v8 b, v8 c)
{
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
    return _mm256_fmadd_ps(a, b, c);
#else
    return (v8){vec_fma(a.p0, b.p0, c.p0), vec_fma(a.p1, b.p1, c.p1)};
#endif
}

ALWAYS_INLINE v8 v8_add(v8 a, v8 b)
{
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
    return a + b;
#else
    return (v8){a.p0 + b.p0, a.p1 + b.p1};
#endif
}

/* -- across lanes: lane i + lane i + 8, then 4, 2, 1 apart; the one tree that every sum uses -- */

#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
ALWAYS_INLINE __m128 v8_sum_to_4(v8 a)
{
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}

ALWAYS_INLINE float v8_sum(v8 a)
{
    const __m128 four = v8_sum_to_4(a);
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* out[i] = v8_sum(a[i]), with the last two steps of all four in one vector. */
ALWAYS_INLINE void v8_sum4(const v8 a[4], float out[4])
{
    const __m128 s0 = v8_sum_to_4(a[0]), s1 = v8_sum_to_4(a[1]);
    const __m128 s2 = v8_sum_to_4(a[2]), s3 = v8_sum_to_4(a[3]);
    const __m128 t01 = _mm_add_ps(_mm_unpacklo_ps(s0, s1), _mm_unpackhi_ps(s0, s1));
    const __m128 t23 = _mm_add_ps(_mm_unpacklo_ps(s2, s3), _mm_unpackhi_ps(s2, s3));
    _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(t01, t23), _mm_movehl_ps(t23, t01)));
}
#else
ALWAYS_INLINE float v8_sum(v8 a)
{
    const vec four = a.p0 + a.p1;
    return (four[0] + four[2]) + (four[1] + four[3]);
}

ALWAYS_INLINE void v8_sum4(const v8 a[4], float out[4])
{
    for (int i = 0; i < 4; i++)
        out[i] = v8_sum(a[i]);
}
#endif

#if defined(TSR_ISA_AVX512)
/* The sums of each half of eight vectors: out[2 * i] of a[i]'s lower, out[2 * i + 1] of its upper half. */
ALWAYS_INLINE void vec_sum_halves8(const vec a[8], float out[16])
{
    __m512 four[4], two[2];
    UNROLL for (int i = 0; i < 4; i++)
    {
        const __m512 x = a[2 * i], y = a[2 * i + 1];
        four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
    }
    /* 128-bit lane l of four[i] belongs to sum 4 i + l */
    UNROLL for (int i = 0; i < 2; i++)
    {
        const __m512 x = four[2 * i], y = four[2 * i + 1];
        two[i] = _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xee));
    }
    const __m512 one =
        _mm512_add_ps(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xdd));
    /* element e of lane l is sum 4 e + l */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_ps(out, _mm512_permutexvar_ps(order, one));
}
#endif

ALWAYS_INLINE float v16_sum(v16 a)
{
    return v8_sum(v8_add(v16_low(a), v16_high(a)));
}

ALWAYS_INLINE float v16_max_lane(v16 a)
{
    float lanes[16];
    v16_store(lanes, a);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    return lanes[0];
}

/* -- conversions; all of them exact unless stated -- */

ALWAYS_INLINE byte16 byte16_load(const void *p)
{
    byte16 a;
    memcpy(&a, p, sizeof a);
    return a;
}

ALWAYS_INLINE byte32 byte32_load(const void *p)
{
    byte32 a;
    memcpy(&a, p, sizeof a);
    return a;
}

/* Every byte shifted left by `by` bits (right if negative), then masked. The mask must clear the bits that a
 * shift of 16-bit words carries over from the neighbour byte. `by` is a constant. */
ALWAYS_INLINE byte32 byte32_bits(byte32 a, int by, uint8_t mask)
{
    const word16 words = (word16)a;
    return (byte32)(by >= 0 ? words << by : words >> -by) & mask;
}

ALWAYS_INLINE byte16 byte32_half(byte32 a, int upper)
{
    byte16 halves[2];
    memcpy(halves, &a, sizeof a);
    return halves[upper];
}

/* Sixteen unsigned or signed bytes as floats. */
ALWAYS_INLINE v16 v16_from_u8(byte16 a)
{
#if defined(TSR_ISA_AVX512)
    return (v16){_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32((__m128i)a))};
#elif defined(TSR_ISA_AVX2)
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32((__m128i)a)),
                 _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128((__m128i)a, 8)))};
#elif defined(TSR_ISA_NEON)
    const uint16x8_t low = vmovl_u8(vget_low_u8((uint8x16_t)a)), high = vmovl_high_u8((uint8x16_t)a);
    return (v16){vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
                 vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high))};
#else
    float lanes[16];
    for (int i = 0; i < 16; i++)
        lanes[i] = (float)a[i];
    return v16_load(lanes);
#endif
}

ALWAYS_INLINE v16 v16_from_i8(byte16 a)
{
#if defined(TSR_ISA_AVX512)
    return (v16){_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)a))};
#elif defined(TSR_ISA_AVX2)
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32((__m128i)a)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128((__m128i)a, 8)))};
#elif defined(TSR_ISA_NEON)
    const int16x8_t low = vmovl_s8(vget_low_s8((int8x16_t)a)), high = vmovl_high_s8((int8x16_t)a);
    return (v16){vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))};
#else
    float lanes[16];
    for (int i = 0; i < 16; i++)
        lanes[i] = (float)(int8_t)a[i];
    return v16_load(lanes);
#endif
}

/* Eight or sixteen floats from halves. */
ALWAYS_INLINE v8 v8_load_f16(const void *p)
{
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
#elif defined(TSR_ISA_NEON)
    float16x8_t half;
    memcpy(&half, p, sizeof half);
    return (v8){vcvt_f32_f16(vget_low_f16(half)), vcvt_high_f32_f16(half)};
#else
    uint16_t half[8];
    float lanes[8];
    memcpy(half, p, sizeof half);
    for (int i = 0; i < 8; i++)
        lanes[i] = tsr_f16_to_f32(half[i]);
    return v8_load(lanes);
#endif
}

ALWAYS_INLINE v16 v16_load_f16(const void *p)
{
#if defined(TSR_ISA_AVX512)
    return (v16){_mm512_cvtph_ps(_mm256_loadu_si256(p))};
#else
    return v16_join(v8_load_f16(p), v8_load_f16((const char *)p + 16));
#endif
}

ALWAYS_INLINE v8 v8_load_bf16(const void *p)
{
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
    return (v8)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16);
#elif defined(TSR_ISA_NEON)
    uint16x8_t half;
    memcpy(&half, p, sizeof half);
    return (v8){(vec)vshll_n_u16(vget_low_u16(half), 16), (vec)vshll_high_n_u16(half, 16)};
#else
    uint16_t half[8];
    float lanes[8];
    memcpy(half, p, sizeof half);
    for (int i = 0; i < 8; i++)
        lanes[i] = tsr_bf16_to_f32(half[i]);
    return v8_load(lanes);
#endif
}

ALWAYS_INLINE v16 v16_load_bf16(const void *p)
{
#if defined(TSR_ISA_AVX512)
    return (v16){(vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16)};
#else
    return v16_join(v8_load_bf16(p), v8_load_bf16((const char *)p + 16));
#endif
}

/* Sixteen halves, rounded to nearest even as tsr_f32_to_f16 does. */
ALWAYS_INLINE void v16_store_f16(void *p, v16 a)
{
#if defined(TSR_ISA_AVX512)
    _mm256_storeu_si256(p, _mm512_cvtps_ph(a.p0, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(TSR_ISA_AVX2)
    __m128i *half = p;
    _mm_storeu_si128(half, _mm256_cvtps_ph(a.p0, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(half + 1, _mm256_cvtps_ph(a.p1, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(TSR_ISA_NEON)
    const float16x8_t low = vcvt_high_f16_f32(vcvt_f16_f32(a.p0), a.p1);
    const float16x8_t high = vcvt_high_f16_f32(vcvt_f16_f32(a.p2), a.p3);
    memcpy(p, &low, sizeof low);
    memcpy((char *)p + sizeof low, &high, sizeof high);
#else
    float lanes[16];
    uint16_t half[16];
    v16_store(lanes, a);
    for (int i = 0; i < 16; i++)
        half[i] = tsr_f32_to_f16(lanes[i]);
    memcpy(p, half, sizeof half);
#endif
}

#endif
