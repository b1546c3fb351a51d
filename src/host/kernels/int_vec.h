/* Vectors of 16-bit integers that are multiplied into 32-bit sums, for the instruction sets that have them.
 *
 * A vector holds the sixteen even or the sixteen odd elements of INT_BLOCKS blocks of 32, one block in every
 * 32 bytes: two with AVX-512, one with AVX2. Multiplied and added in pairs, a block leaves eight partial
 * sums; int_row_sums() adds them up and turns lanes from elements into rows. All of it is exact, so which
 * instruction does it, and in which order, changes no bit. */
#ifndef TSR_HOST_KERNELS_INT_VEC_H
#define TSR_HOST_KERNELS_INT_VEC_H

#include "host/kernels/vec.h"

#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)

enum {
    INT_LANES = VEC_LANES,      /* 32-bit sums in a vector: rows that are computed at once */
    INT_BLOCKS = VEC_LANES / 8, /* blocks side by side in a vector */
};

typedef int16_t vec_short __attribute__((vector_size(sizeof(vec))));
#if defined(TSR_ISA_AVX512)
typedef __m512i vec_any;
#else
typedef __m256i vec_any;
#endif

ALWAYS_INLINE vec_int int_load(const void *p)
{
    vec_int a;
    memcpy(&a, p, sizeof a);
    return a;
}

/* As vec_load_once(). */
ALWAYS_INLINE vec_int int_load_once(const void *p)
{
    vec_int a = int_load(p);
#if defined(TSR_ISA_AVX512)
    __asm__("" : "+v"(a));
#else
    __asm__("" : "+x"(a));
#endif
    return a;
}

ALWAYS_INLINE void int_store(void *p, vec_int a)
{
    memcpy(p, &a, sizeof a);
}

/* Four bytes at p in every lane. */
ALWAYS_INLINE vec_int int_set1(const void *p)
{
    int32_t value;
    memcpy(&value, p, sizeof value);
#if defined(TSR_ISA_AVX512)
    return (vec_int)_mm512_set1_epi32(value);
#else
    return (vec_int)_mm256_set1_epi32(value);
#endif
}

ALWAYS_INLINE vec int_to_float(vec_int a)
{
    return __builtin_convertvector(a, vec);
}

/* sum[i] + a[2 i] b[2 i] + a[2 i + 1] b[2 i + 1], no -32768 in b */
ALWAYS_INLINE vec_int int_dot(vec_int sum, vec_int a, vec_int b)
{
#if defined(TSR_ISA_VNNI)
    return (vec_int)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(TSR_ISA_AVX512)
    return sum + (vec_int)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
    return sum + (vec_int)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
}

/* 32 bytes of each block of a vector: those at p, and with two blocks those at q. */
ALWAYS_INLINE vec_bits bits_load_32(const unsigned char *p, const unsigned char *q)
{
#if defined(TSR_ISA_AVX512)
    const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)p));
    return (vec_bits)_mm512_inserti64x4(low, _mm256_loadu_si256((const __m256i *)q), 1);
#else
    (void)q;
    return (vec_bits)_mm256_loadu_si256((const __m256i *)p);
#endif
}

/* The same with 16 bytes, twice. */
ALWAYS_INLINE vec_bits bits_load_16_twice(const unsigned char *p, const unsigned char *q)
{
#if defined(TSR_ISA_AVX512)
    const __m512i low = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
    return (vec_bits)_mm512_mask_broadcast_i32x4(low, 0xff00, _mm_loadu_si128((const __m128i *)q));
#else
    (void)q;
    return (vec_bits)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
#endif
}

/* 16-bit lanes: `a` in the first eight of the first block and b in its last eight, c and d in a second block.
 */
ALWAYS_INLINE vec_short short_set4(int a, int b, int c, int d)
{
    const __m256i first = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi16((short)a)),
                                                  _mm_set1_epi16((short)b), 1);
#if defined(TSR_ISA_AVX512)
    const __m256i second = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi16((short)c)),
                                                   _mm_set1_epi16((short)d), 1);
    return (vec_short)_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
#else
    (void)c, (void)d;
    return (vec_short)first;
#endif
}

/* 32-bit lanes: `a` in the first block, b in the second. */
ALWAYS_INLINE vec_bits bits_set2(uint32_t a, uint32_t b)
{
#if defined(TSR_ISA_AVX512)
    return (vec_bits){a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b};
#else
    (void)b;
    return (vec_bits){a, a, a, a, a, a, a, a};
#endif
}

#if defined(TSR_ISA_AVX512)
#define INT_LOW_32(a, b)          ((vec_int)_mm512_unpacklo_epi32((__m512i)(a), (__m512i)(b)))
#define INT_HIGH_32(a, b)         ((vec_int)_mm512_unpackhi_epi32((__m512i)(a), (__m512i)(b)))
#define INT_LOW_64(a, b)          ((vec_int)_mm512_unpacklo_epi64((__m512i)(a), (__m512i)(b)))
#define INT_HIGH_64(a, b)         ((vec_int)_mm512_unpackhi_epi64((__m512i)(a), (__m512i)(b)))
#define INT_QUARTERS(a, b, order) ((vec_int)_mm512_shuffle_i32x4((__m512i)(a), (__m512i)(b), order))
#else
#define INT_LOW_32(a, b)        ((vec_int)_mm256_unpacklo_epi32((__m256i)(a), (__m256i)(b)))
#define INT_HIGH_32(a, b)       ((vec_int)_mm256_unpackhi_epi32((__m256i)(a), (__m256i)(b)))
#define INT_LOW_64(a, b)        ((vec_int)_mm256_unpacklo_epi64((__m256i)(a), (__m256i)(b)))
#define INT_HIGH_64(a, b)       ((vec_int)_mm256_unpackhi_epi64((__m256i)(a), (__m256i)(b)))
#define INT_HALVES(a, b, order) ((vec_int)_mm256_permute2x128_si256((__m256i)(a), (__m256i)(b), order))
#endif

/* Lane i of the result: the sum of four neighbouring lanes of row i % 4, in every 16 bytes. */
ALWAYS_INLINE vec_int int_sum_4_rows(vec_int r0, vec_int r1, vec_int r2, vec_int r3)
{
    const vec_int a = INT_LOW_32(r0, r1) + INT_HIGH_32(r0, r1);
    const vec_int b = INT_LOW_32(r2, r3) + INT_HIGH_32(r2, r3);
    return INT_LOW_64(a, b) + INT_HIGH_64(a, b);
}

/* sums[b][h], a lane per row: what partial[row] has for half h of block b. */
ALWAYS_INLINE void int_row_sums(const vec_int partial[INT_LANES], vec_int sums[INT_BLOCKS][2])
{
    vec_int four[INT_LANES / 4];
    UNROLL for (int i = 0; i < INT_LANES / 4; i++) four[i] =
        int_sum_4_rows(partial[4 * i], partial[4 * i + 1], partial[4 * i + 2], partial[4 * i + 3]);
#if defined(TSR_ISA_AVX512)
    const vec_int first_a = INT_QUARTERS(four[0], four[1], 0x44),
                  second_a = INT_QUARTERS(four[0], four[1], 0xee);
    const vec_int first_b = INT_QUARTERS(four[2], four[3], 0x44),
                  second_b = INT_QUARTERS(four[2], four[3], 0xee);
    sums[0][0] = INT_QUARTERS(first_a, first_b, 0x88);
    sums[0][1] = INT_QUARTERS(first_a, first_b, 0xdd);
    sums[1][0] = INT_QUARTERS(second_a, second_b, 0x88);
    sums[1][1] = INT_QUARTERS(second_a, second_b, 0xdd);
#else
    sums[0][0] = INT_HALVES(four[0], four[1], 0x20);
    sums[0][1] = INT_HALVES(four[0], four[1], 0x31);
#endif
}

/* Exchange rows and lanes: lane j of a[i] and lane i of a[j]. */
ALWAYS_INLINE void int_transpose(vec_int a[INT_LANES])
{
    vec_int b[INT_LANES];
    UNROLL for (int i = 0; i < INT_LANES; i += 4) /* 4 x 4 inside every 16 bytes */
    {
        const vec_int low_a = INT_LOW_32(a[i], a[i + 1]), high_a = INT_HIGH_32(a[i], a[i + 1]);
        const vec_int low_b = INT_LOW_32(a[i + 2], a[i + 3]), high_b = INT_HIGH_32(a[i + 2], a[i + 3]);
        b[i] = INT_LOW_64(low_a, low_b);
        b[i + 1] = INT_HIGH_64(low_a, low_b);
        b[i + 2] = INT_LOW_64(high_a, high_b);
        b[i + 3] = INT_HIGH_64(high_a, high_b);
    }
    UNROLL for (int i = 0; i < 4; i++) /* then the 16 bytes themselves */
    {
#if defined(TSR_ISA_AVX512)
        const vec_int even_a = INT_QUARTERS(b[i], b[i + 4], 0x88), odd_a = INT_QUARTERS(b[i], b[i + 4], 0xdd);
        const vec_int even_b = INT_QUARTERS(b[i + 8], b[i + 12], 0x88),
                      odd_b = INT_QUARTERS(b[i + 8], b[i + 12], 0xdd);
        a[i] = INT_QUARTERS(even_a, even_b, 0x88);
        a[i + 4] = INT_QUARTERS(odd_a, odd_b, 0x88);
        a[i + 8] = INT_QUARTERS(even_a, even_b, 0xdd);
        a[i + 12] = INT_QUARTERS(odd_a, odd_b, 0xdd);
#else
        a[i] = INT_HALVES(b[i], b[i + 4], 0x20);
        a[i + 4] = INT_HALVES(b[i], b[i + 4], 0x31);
#endif
    }
}

#endif
#endif
