/* Vectors of 16-bit integers that are multiplied into 32-bit sums, for the instruction sets that have them.
 *
 * In the final layout lanes are rows of a matrix. int_load_rows() transposes the bytes of as many rows into
 * that layout, after which a sum over elements needs nothing across lanes. int_load_parts() leaves a row's 16
 * bytes together, so that four lanes have sums of one row, and int_sum_parts() brings these sums into the
 * final layout: fewer moves, where weights are used once. All of it is exact, so the choice and the order of
 * the instructions change no bit. */
#ifndef TSR_HOST_KERNELS_VEC_INT_VEC_H
#define TSR_HOST_KERNELS_VEC_INT_VEC_H

#include "host/kernels/vec/vec.h"

#if defined(TSR_ISA_INT_VEC)

enum { INT_LANES = VEC_LANES }; /* 32-bit sums in a vector: rows that are computed together */

typedef int16_t vec_short __attribute__((vector_size(sizeof(vec))));
typedef uint16_t vec_word __attribute__((vector_size(sizeof(vec))));

/* As many rows of a matrix as a vector has lanes, `stride` bytes apart. Every fourth row's address is stored,
 * so that the addressing mode of an x86 load reaches each row. */
typedef struct int_rows {
    const unsigned char *fourth[INT_LANES / 4];
    size_t stride, stride_3; /* once, three times */
    int stored;              /* the rows' type */
} int_rows;

ALWAYS_INLINE int_rows int_rows_of(int stored, const unsigned char *w, size_t stride)
{
    int_rows rows = {.stride = stride, .stride_3 = 3 * stride, .stored = stored};
    UNROLL for (int i = 0; i < INT_LANES / 4; i++) rows.fourth[i] = w + 4 * (size_t)i * stride;
    return rows;
}

ALWAYS_INLINE const unsigned char *int_row(const int_rows *rows, const int r)
{
    return rows->fourth[r / 4] + (r % 4 == 3 ? rows->stride_3 : (size_t)(r % 4) * rows->stride);
}

/* A copy of `rows` that hides the pointers from the compiler. Otherwise it would hoist the addresses of all
 * rows out of the loop, more than there are registers, and spill. */
ALWAYS_INLINE int_rows int_rows_again(const int_rows *rows)
{
    int_rows again = *rows;
    __asm__("" : "+r"(again.stride), "+r"(again.stride_3));
    return again;
}

ALWAYS_INLINE vec_int int_load(const void *p)
{
    vec_int a;
    memcpy(&a, p, sizeof a);
    return a;
}

/* A load into a register, as vec_load_once(). */
ALWAYS_INLINE vec_int int_load_once(const void *p)
{
    vec_int a = int_load(p);
#if defined(TSR_ISA_AVX512)
    __asm__("" : "+v"(a));
#elif defined(TSR_ISA_NEON)
    __asm__("" : "+w"(a));
#else
    __asm__("" : "+x"(a));
#endif
    return a;
}

ALWAYS_INLINE void int_store(void *p, vec_int a)
{
    memcpy(p, &a, sizeof a);
}

/* The low 16 bits of every lane. */
ALWAYS_INLINE void int_store_halves(uint16_t out[INT_LANES], vec_int a)
{
    typedef uint16_t halves __attribute__((vector_size(sizeof(vec_int) / 2)));
    const halves low = __builtin_convertvector((vec_bits)a, halves);
    memcpy(out, &low, sizeof low);
}

/* Four bytes at p in every lane. */
ALWAYS_INLINE vec_int int_set1(const void *p)
{
    int32_t value;
    memcpy(&value, p, sizeof value);
#if defined(TSR_ISA_AVX512)
    return (vec_int)_mm512_set1_epi32(value);
#elif defined(TSR_ISA_NEON)
    return (vec_int)vdupq_n_s32(value);
#else
    return (vec_int)_mm256_set1_epi32(value);
#endif
}

/* 16 bytes at p in every quarter (half) of the vector. */
ALWAYS_INLINE vec_int int_set1_part(const void *p)
{
#if defined(TSR_ISA_AVX512)
    return (vec_int)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
#elif defined(TSR_ISA_NEON)
    return int_load(p);
#else
    return (vec_int)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
#endif
}

ALWAYS_INLINE vec int_to_float(vec_int a)
{
    return __builtin_convertvector(a, vec);
}

/* a[2 i] b[2 i] + a[2 i + 1] b[2 i + 1], no -32768 in b */
ALWAYS_INLINE vec_int int_product(vec_int a, vec_int b)
{
#if defined(TSR_ISA_AVX512)
    return (vec_int)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(TSR_ISA_NEON)
    const int32x4_t low = vmull_s16(vget_low_s16((int16x8_t)a), vget_low_s16((int16x8_t)b));
    return (vec_int)vpaddq_s32(low, vmull_high_s16((int16x8_t)a, (int16x8_t)b));
#else
    return (vec_int)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
}

/* sum[i] + a[2 i] b[2 i] + a[2 i + 1] b[2 i + 1] */
ALWAYS_INLINE vec_int int_dot(vec_int sum, vec_int a, vec_int b)
{
#if defined(TSR_ISA_VNNI) && defined(TSR_ISA_AVX512)
    return (vec_int)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(TSR_ISA_VNNI)
    return (vec_int)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#elif defined(TSR_ISA_NEON)
    return sum + int_product(a, b);
#else
    sum += int_product(a, b);
    __asm__("" : "+x"(sum)); /* accumulate now: compilers would otherwise keep many products in memory */
    return sum;
#endif
}

#if defined(TSR_ISA_BYTES)
/* Sums of products of bytes. x's bytes are signed, a's unsigned on x86 and signed on Arm
 * (quant_byte_quads()). Four products are added up in 32 bits, or without such an instruction two and two in
 * 16 bits, which may overflow neither in a step nor in the total. */
typedef struct byte_sum {
    vec_int v;
} byte_sum;

#if defined(TSR_ISA_QUADS)
ALWAYS_INLINE byte_sum byte_dot(byte_sum sum, vec_bits a, vec_int x)
{
#if defined(TSR_ISA_DOTPROD)
    return (byte_sum){(vec_int)vdotq_s32((int32x4_t)sum.v, (int8x16_t)a, (int8x16_t)x)};
#elif defined(TSR_ISA_AVX512)
    return (byte_sum){(vec_int)_mm512_dpbusd_epi32((__m512i)sum.v, (__m512i)a, (__m512i)x)};
#else
    return (byte_sum){(vec_int)_mm256_dpbusd_avx_epi32((__m256i)sum.v, (__m256i)a, (__m256i)x)};
#endif
}

/* The sum of the four, and `scale` times the sum. */
ALWAYS_INLINE vec_int byte_total(byte_sum sum)
{
    return sum.v;
}

ALWAYS_INLINE vec_int byte_scaled(byte_sum sum, vec_int scale)
{
    return sum.v * scale;
}
#else
ALWAYS_INLINE byte_sum byte_dot(byte_sum sum, vec_bits a, vec_int x)
{
#if defined(TSR_ISA_AVX512)
    sum.v = (vec_int)_mm512_add_epi16((__m512i)sum.v, _mm512_maddubs_epi16((__m512i)a, (__m512i)x));
    __asm__("" : "+v"(sum.v)); /* accumulate now, as in int_dot() */
#else
    sum.v = (vec_int)_mm256_add_epi16((__m256i)sum.v, _mm256_maddubs_epi16((__m256i)a, (__m256i)x));
    __asm__("" : "+x"(sum.v));
#endif
    return sum;
}

ALWAYS_INLINE vec_int byte_scaled(byte_sum sum, vec_int scale)
{
    const vec_bits words = (vec_bits)scale & 0xffff;
    return int_product(sum.v, (vec_int)(words | words << 16));
}

ALWAYS_INLINE vec_int byte_total(byte_sum sum)
{
    return int_product(sum.v, (vec_int)((vec_bits){0} + 0x00010001));
}
#endif

#if defined(TSR_ISA_DOTPROD)
/* A vector that contains bytes 4 i .. 4 i + 3 of x, and byte_dot() with these four bytes in every lane: the
 * instruction selects four bytes of 16. */
ALWAYS_INLINE vec_int byte_quad(const int8_t *x, const int i)
{
    return int_load(x + i / 4 * 16);
}

ALWAYS_INLINE byte_sum byte_dot_quad(byte_sum sum, vec_bits a, vec_int quads, const int i)
{
    const int32x4_t v = (int32x4_t)sum.v;
    const int8x16_t w = (int8x16_t)a, x = (int8x16_t)quads;
    switch (i % 4) { /* a constant of the instruction, as in int_join_parts() */
    case 0:
        return (byte_sum){(vec_int)vdotq_laneq_s32(v, w, x, 0)};
    case 1:
        return (byte_sum){(vec_int)vdotq_laneq_s32(v, w, x, 1)};
    case 2:
        return (byte_sum){(vec_int)vdotq_laneq_s32(v, w, x, 2)};
    default:
        return (byte_sum){(vec_int)vdotq_laneq_s32(v, w, x, 3)};
    }
}
#else
ALWAYS_INLINE vec_int byte_quad(const int8_t *x, const int i)
{
    return int_set1(x + 4 * i);
}

ALWAYS_INLINE byte_sum byte_dot_quad(byte_sum sum, vec_bits a, vec_int quad, const int i)
{
    (void)i;
    return byte_dot(sum, a, quad);
}
#endif
#endif

#if defined(TSR_ISA_AVX512)
#define INT_LOW_32(a, b)  ((vec_int)_mm512_unpacklo_epi32((__m512i)(a), (__m512i)(b)))
#define INT_HIGH_32(a, b) ((vec_int)_mm512_unpackhi_epi32((__m512i)(a), (__m512i)(b)))
#define INT_LOW_64(a, b)  ((vec_int)_mm512_unpacklo_epi64((__m512i)(a), (__m512i)(b)))
#define INT_HIGH_64(a, b) ((vec_int)_mm512_unpackhi_epi64((__m512i)(a), (__m512i)(b)))
#elif defined(TSR_ISA_NEON)
#define INT_LOW_32(a, b)  ((vec_int)vzip1q_s32((int32x4_t)(a), (int32x4_t)(b)))
#define INT_HIGH_32(a, b) ((vec_int)vzip2q_s32((int32x4_t)(a), (int32x4_t)(b)))
#define INT_LOW_64(a, b)  ((vec_int)vzip1q_s64((int64x2_t)(a), (int64x2_t)(b)))
#define INT_HIGH_64(a, b) ((vec_int)vzip2q_s64((int64x2_t)(a), (int64x2_t)(b)))
#else
#define INT_LOW_32(a, b)  ((vec_int)_mm256_unpacklo_epi32((__m256i)(a), (__m256i)(b)))
#define INT_HIGH_32(a, b) ((vec_int)_mm256_unpackhi_epi32((__m256i)(a), (__m256i)(b)))
#define INT_LOW_64(a, b)  ((vec_int)_mm256_unpacklo_epi64((__m256i)(a), (__m256i)(b)))
#define INT_HIGH_64(a, b) ((vec_int)_mm256_unpackhi_epi64((__m256i)(a), (__m256i)(b)))
#endif

/* 16 bytes of each row, `at` bytes after its address, not transposed: out[i] holds rows i, 4 + i, ... */
ALWAYS_INLINE void int_load_parts(const int_rows *rows, size_t at, vec_int out[4])
{
    const int_rows again = int_rows_again(rows);
#if defined(TSR_ISA_NEON)
    UNROLL for (int i = 0; i < 4; i++) out[i] = int_load(int_row(&again, i) + at);
#else
    UNROLL for (int i = 0; i < 4; i++)
    {
        const __m128i first = _mm_loadu_si128((const __m128i *)(const void *)(int_row(&again, i) + at));
        const __m128i second = _mm_loadu_si128((const __m128i *)(const void *)(int_row(&again, 4 + i) + at));
#if defined(TSR_ISA_AVX512)
        const __m128i third = _mm_loadu_si128((const __m128i *)(const void *)(int_row(&again, 8 + i) + at));
        const __m128i fourth = _mm_loadu_si128((const __m128i *)(const void *)(int_row(&again, 12 + i) + at));
        __m512i four = _mm512_inserti32x4(_mm512_castsi128_si512(first), second, 1);
        four = _mm512_inserti32x4(four, third, 2);
        out[i] = (vec_int)_mm512_inserti32x4(four, fourth, 3);
#else
        out[i] = (vec_int)_mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
#endif
    }
#endif
}

#if defined(TSR_ISA_AVX512)
/* 32 bytes at a, then 32 at b. */
ALWAYS_INLINE __m512i int_load_two(const unsigned char *a, const unsigned char *b)
{
    const __m256i first = _mm256_loadu_si256((const __m256i *)(const void *)a);
    const __m256i second = _mm256_loadu_si256((const __m256i *)(const void *)b);
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}
#endif

/* 32 bytes of each row, in fewer loads: out[0 .. 3] have the first 16, out[4 .. 7] the next 16. */
ALWAYS_INLINE void int_load_two_parts(const int_rows *rows, size_t at, vec_int out[8])
{
#if defined(TSR_ISA_AVX512)
    const int_rows again = int_rows_again(rows);
    UNROLL for (int i = 0; i < 4; i++)
    {
        const __m512i a = int_load_two(int_row(&again, i) + at, int_row(&again, 4 + i) + at);
        const __m512i b = int_load_two(int_row(&again, 8 + i) + at, int_row(&again, 12 + i) + at);
        out[i] = (vec_int)_mm512_shuffle_i32x4(a, b, 0x88);
        out[4 + i] = (vec_int)_mm512_shuffle_i32x4(a, b, 0xdd);
    }
#else
    int_load_parts(rows, at, out);
    int_load_parts(rows, at + 16, out + 4);
#endif
}

/* Parts transposed in place: lane r of a[i] becomes the i-th four bytes of row r. */
ALWAYS_INLINE void int_transpose(vec_int a[4])
{
    const vec_int low_a = INT_LOW_32(a[0], a[1]), high_a = INT_HIGH_32(a[0], a[1]);
    const vec_int low_b = INT_LOW_32(a[2], a[3]), high_b = INT_HIGH_32(a[2], a[3]);
    a[0] = INT_LOW_64(low_a, low_b);
    a[1] = INT_HIGH_64(low_a, low_b);
    a[2] = INT_LOW_64(high_a, high_b);
    a[3] = INT_HIGH_64(high_a, high_b);
}

#if defined(TSR_ISA_AVX512)
/* Lane r: word `which` (0, 1) of row r, of parts. */
ALWAYS_INLINE vec_int int_part_words(const vec_int a[4], const int which)
{
    const vec_int low_a = INT_LOW_32(a[0], a[1]), low_b = INT_LOW_32(a[2], a[3]);
    return which == 0 ? INT_LOW_64(low_a, low_b) : INT_HIGH_64(low_a, low_b);
}

/* The 16 bytes of each part that begin at byte `at` (1, 2, 4) of a and continue in b. */
ALWAYS_INLINE vec_int int_join_parts(vec_int a, vec_int b, const int at)
{
    switch (at) { /* the instruction takes a constant only, optimized or not */
    case 1:
        return (vec_int)_mm512_alignr_epi8((__m512i)b, (__m512i)a, 1);
    case 2:
        return (vec_int)_mm512_alignr_epi8((__m512i)b, (__m512i)a, 2);
    default:
        return (vec_int)_mm512_alignr_epi8((__m512i)b, (__m512i)a, 4);
    }
}
#endif

/* Lane r: the sum of the four lanes of row r, of sums laid out as parts. */
ALWAYS_INLINE vec_int int_sum_parts(const vec_int a[4])
{
#if defined(TSR_ISA_NEON)
    const int32x4_t pairs_a = vpaddq_s32((int32x4_t)a[0], (int32x4_t)a[1]);
    return (vec_int)vpaddq_s32(pairs_a, vpaddq_s32((int32x4_t)a[2], (int32x4_t)a[3]));
#else
    const vec_int pairs_a = INT_LOW_32(a[0], a[1]) + INT_HIGH_32(a[0], a[1]);
    const vec_int pairs_b = INT_LOW_32(a[2], a[3]) + INT_HIGH_32(a[2], a[3]);
    return INT_LOW_64(pairs_a, pairs_b) + INT_HIGH_64(pairs_a, pairs_b);
#endif
}

#if defined(TSR_ISA_BYTES)
/* int_sum_parts() of sums of products of bytes that are not yet 32 bits. */
ALWAYS_INLINE byte_sum byte_sum_parts(const byte_sum a[4])
{
#if defined(TSR_ISA_QUADS)
    return (byte_sum){int_sum_parts((const vec_int[4]){a[0].v, a[1].v, a[2].v, a[3].v})};
#else
    const vec_word low_a = (vec_word)INT_LOW_32(a[0].v, a[1].v),
                   high_a = (vec_word)INT_HIGH_32(a[0].v, a[1].v);
    const vec_word low_b = (vec_word)INT_LOW_32(a[2].v, a[3].v),
                   high_b = (vec_word)INT_HIGH_32(a[2].v, a[3].v);
    const vec_word pairs_a = low_a + high_a, pairs_b = low_b + high_b;
    return (byte_sum){
        (vec_int)((vec_word)INT_LOW_64(pairs_a, pairs_b) + (vec_word)INT_HIGH_64(pairs_a, pairs_b))};
#endif
}
#endif

/* 16 bytes of each row, transposed: lane r of out[i] is the i-th four bytes of row r. */
ALWAYS_INLINE void int_load_rows(const int_rows *rows, size_t at, vec_int out[4])
{
    int_load_parts(rows, at, out);
    int_transpose(out);
}

#endif
#endif
