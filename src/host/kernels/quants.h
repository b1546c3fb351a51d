/* Quantized weights as integers with scales, for products with 16-bit activations (x_blocks.h).
 *
 * Every type is seen in blocks of 32 elements: w[i] = scale * q[i] - min, with q an integer that 16 bits hold
 * and scale and min one f32 each per block. In a K type several blocks share their bytes; where a block has
 * two sub-scales (Q6_K), they are part of q.
 *
 * A panel is up to QUANT_BLOCKS blocks of a row, one super-block of a K type. quant_words() gives its
 * integers, in vectors of INT_BLOCKS blocks that may come in an order of their own (quant_block()), because
 * blocks that share bytes are cheapest taken together; quant_scales() gives the scales of INT_LANES rows, a
 * lane each.
 *
 * To add a type: its case in each function of this file, and in quants_generic.h. All take the type as a
 * constant and are inlined, so the switches vanish. */
#ifndef TSR_HOST_KERNELS_QUANTS_H
#define TSR_HOST_KERNELS_QUANTS_H

#include "host/kernels/int_vec.h"
#include "host/kernels/weights.h"
#include "host/kernels/x_blocks.h"

enum { QUANT_BLOCKS = TSR_QUANT_SUPER_BLOCK / TSR_QUANT_BLOCK };

/* Call macro(type) for each type whose products are sums of integers. */
#define FOR_EACH_QUANT_TYPE(macro) \
    macro(TSR_TYPE_Q8_0) macro(TSR_TYPE_Q4_0) macro(TSR_TYPE_Q4_K) macro(TSR_TYPE_Q5_K) macro(TSR_TYPE_Q6_K)

ALWAYS_INLINE bool quant_has_min(tsr_type type)
{
    return type == TSR_TYPE_Q4_K || type == TSR_TYPE_Q5_K;
}

/* Two scales per block, each for a half of it. */
ALWAYS_INLINE bool quant_has_sub_scales(tsr_type type)
{
    return type == TSR_TYPE_Q6_K;
}

/* Largest magnitude of an activation's integer, such that 32 products stay below 2^31. */
ALWAYS_INLINE int quant_x_limit(tsr_type type)
{
    return quant_has_sub_scales(type) ? X_LIMIT_SUB : X_LIMIT;
}

/* What quant_words() leaves in its integers: q + offset. */
ALWAYS_INLINE int quant_offset(tsr_type type)
{
    return type == TSR_TYPE_Q4_0 ? 8 : type == TSR_TYPE_Q6_K ? 32 : 0;
}

#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)

/* Scales of a panel of INT_LANES rows. */
typedef struct quant_panel_scales {
    vec scale[QUANT_BLOCKS];
    vec min[QUANT_BLOCKS];        /* quant_has_min() */
    vec_int sub[QUANT_BLOCKS][2]; /* quant_has_sub_scales() */
} quant_panel_scales;

/* The block that lies in place `place` of vector u of a panel. */
ALWAYS_INLINE int quant_block(tsr_type type, int u, int place)
{
    if (type == TSR_TYPE_Q6_K && INT_BLOCKS == 2) /* 0 with 2, 1 with 3, ...: they share low bits' bytes */
        return u / 2 * 4 + u % 2 + 2 * place;
    return u * INT_BLOCKS + place;
}

typedef struct quant_pair {
    vec_int even, odd; /* 16-bit elements 0, 2, ... 30 and 1, 3, ... 31 of each block */
} quant_pair;

/* Bytes, whatever they hold, to words. */
ALWAYS_INLINE quant_pair quant_split_u8(vec_bits bytes)
{
    return (quant_pair){(vec_int)(bytes & 0x00ff00ff), (vec_int)(bytes >> 8 & 0x00ff00ff)};
}

ALWAYS_INLINE quant_pair quant_split_i8(vec_bits bytes)
{
    const vec_short words = (vec_short)bytes;
    return (quant_pair){(vec_int)((words << 8) >> 8), (vec_int)(words >> 8)};
}

/* Vector u of the panel at p, offset included. `n` blocks are there; a block past them repeats one before. */
ALWAYS_INLINE quant_pair quant_words(tsr_type type, const unsigned char *p, int u, int n)
{
    const int b = quant_block(type, u, 0), c = quant_block(type, u, INT_BLOCKS - 1);
    const unsigned char *second = p + (size_t)(c < n ? c : b) * block_bytes(type);
    const unsigned char *first = p + (size_t)b * block_bytes(type);
    switch (type) {
    case TSR_TYPE_Q8_0:
        return quant_split_i8(
            bits_load_32(first + offsetof(tsr_block_q8_0, q), second + offsetof(tsr_block_q8_0, q)));
    case TSR_TYPE_Q4_0: {
        const vec_bits q =
            bits_load_16_twice(first + offsetof(tsr_block_q4_0, q), second + offsetof(tsr_block_q4_0, q));
#if defined(TSR_ISA_AVX512)
        const vec_bits nibbles = q >> (vec_bits){0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4};
#else
        const vec_bits nibbles = q >> (vec_bits){0, 0, 0, 0, 4, 4, 4, 4};
#endif
        return quant_split_u8(nibbles & 0x0f0f0f0f);
    }
    case TSR_TYPE_Q4_K:
    case TSR_TYPE_Q5_K: {
        const bool five = type == TSR_TYPE_Q5_K;
        const size_t low_at = five ? offsetof(tsr_block_q5_k, q) : offsetof(tsr_block_q4_k, q);
        const unsigned char *low = p + low_at + 32 * (b / 2), *high = p + offsetof(tsr_block_q5_k, high);
        const vec_bits q = bits_load_32(low, low) >> bits_set2(b % 2 ? 4 : 0, 4) & 0x0f0f0f0f;
        if (!five)
            return quant_split_u8(q);
        const vec_bits fifth = bits_load_32(high, high) >> bits_set2((uint32_t)b, (uint32_t)c) & 0x01010101;
        return quant_split_u8(q | fifth << 4);
    }
    default: { /* Q6_K */
        const uint32_t k = (uint32_t)b % 4, l = (uint32_t)c % 4;
        const unsigned char *low = p + offsetof(tsr_block_q6_k, low) + 64 * (b / 4) + 32 * (k % 2);
        const unsigned char *high = p + offsetof(tsr_block_q6_k, high) + 32 * (b / 4);
        const vec_bits q = bits_load_32(low, low) >> bits_set2(k >= 2 ? 4 : 0, 4) & 0x0f0f0f0f;
        const vec_bits top = bits_load_32(high, high) >> bits_set2(2 * k, 2 * l) & 0x03030303;
        return quant_split_u8(q | top << 4);
    }
    }
}

/* The same without the offset, times the sub-scales where there are any. */
ALWAYS_INLINE quant_pair quant_values(tsr_type type, const unsigned char *p, int u, int n)
{
    const quant_pair words = quant_words(type, p, u, n);
    vec_short even = (vec_short)words.even - (short)quant_offset(type);
    vec_short odd = (vec_short)words.odd - (short)quant_offset(type);
    if (quant_has_sub_scales(type)) {
        const signed char *sub = (const signed char *)p + offsetof(tsr_block_q6_k, scales);
        const int b = quant_block(type, u, 0), c = quant_block(type, u, INT_BLOCKS - 1);
        const vec_short factor = short_set4(sub[2 * b], sub[2 * b + 1], sub[2 * c], sub[2 * c + 1]);
        even *= factor;
        odd *= factor;
    }
    return (quant_pair){(vec_int)even, (vec_int)odd};
}

/* INT_LANES halves as floats. */
ALWAYS_INLINE vec vec_from_halves(const uint16_t *half)
{
#if defined(TSR_ISA_AVX512)
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)half));
#else
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)half));
#endif
}

/* One half per row, `at` bytes after rows[r]. */
ALWAYS_INLINE vec quant_row_halves(const unsigned char *const rows[INT_LANES], size_t at)
{
    uint16_t half[INT_LANES];
    for (int r = 0; r < INT_LANES; r++)
        memcpy(&half[r], rows[r] + at, sizeof half[r]);
    return vec_from_halves(half);
}

/* Four bytes per row. */
ALWAYS_INLINE vec_bits quant_row_words(const unsigned char *const rows[INT_LANES], size_t at)
{
    uint32_t word[INT_LANES];
    for (int r = 0; r < INT_LANES; r++)
        memcpy(&word[r], rows[r] + at, sizeof word[r]);
    return (vec_bits)int_load(word);
}

/* Q4_K, Q5_K: see tsr_quant_scale_min(), here for four blocks at once in the bytes of a word. */
ALWAYS_INLINE void quant_scales_k(const unsigned char *const rows[INT_LANES], quant_panel_scales *out)
{
    const size_t at = offsetof(tsr_block_q4_k, scales);
    const vec d = quant_row_halves(rows, 0), dmin = quant_row_halves(rows, offsetof(tsr_block_q4_k, dmin));
    const vec_bits w0 = quant_row_words(rows, at), w1 = quant_row_words(rows, at + 4);
    const vec_bits w2 = quant_row_words(rows, at + 8);
    const vec_bits scales[2] = {w0 & 0x3f3f3f3f, (w2 & 0x0f0f0f0f) | (w0 >> 2 & 0x30303030)};
    const vec_bits mins[2] = {w1 & 0x3f3f3f3f, (w2 >> 4 & 0x0f0f0f0f) | (w1 >> 2 & 0x30303030)};
    UNROLL for (int b = 0; b < QUANT_BLOCKS; b++)
    {
        const uint32_t shift = 8 * ((uint32_t)b % 4);
        out->scale[b] = d * int_to_float((vec_int)(scales[b / 4] >> shift & 0xff));
        out->min[b] = dmin * int_to_float((vec_int)(mins[b / 4] >> shift & 0xff));
    }
}

ALWAYS_INLINE void quant_scales_q6_k(const unsigned char *const rows[INT_LANES], quant_panel_scales *out)
{
    const vec d = quant_row_halves(rows, offsetof(tsr_block_q6_k, d));
    UNROLL for (int b = 0; b < QUANT_BLOCKS; b += 2)
    {
        const vec_int four = (vec_int)quant_row_words(rows, offsetof(tsr_block_q6_k, scales) + 2 * (size_t)b);
        UNROLL for (int i = 0; i < 4; i++) out->sub[b + i / 2][i % 2] =
            (vec_int)((vec_bits)four << (24 - 8 * i)) >> 24;
        out->scale[b] = out->scale[b + 1] = d;
    }
}

/* Scales of n blocks of the panels at rows[0 .. INT_LANES). */
ALWAYS_INLINE void quant_scales(tsr_type type, const unsigned char *const rows[INT_LANES], int n,
                                quant_panel_scales *out)
{
    if (type == TSR_TYPE_Q4_K || type == TSR_TYPE_Q5_K)
        quant_scales_k(rows, out);
    else if (type == TSR_TYPE_Q6_K)
        quant_scales_q6_k(rows, out);
    else
        for (int b = 0; b < n; b++) /* d comes first in these blocks */
            out->scale[b] = quant_row_halves(rows, (size_t)b * block_bytes(type));
}

#endif
#endif
