/* Quantized weights as integers with scales, for products with 16-bit activations (x_blocks.h).
 *
 * Every type is seen in blocks of 32 elements: w[i] = scale * q[i] - min, with q an integer that 16 bits hold
 * and scale and min one f32 each per block. Where a block has two sub-scales (Q6_K), they are part of q.
 *
 * A panel is up to QUANT_BLOCKS blocks of INT_LANES rows, one super-block of a K type; a group is as many
 * blocks of it as share their bytes. quant_group_load() brings a group's bytes into vectors whose lanes are
 * rows, and quant_words() picks a block's integers out of them, four elements at a time.
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

/* What quant_words() adds to q; taken off from sums, which is cheaper. */
ALWAYS_INLINE int quant_offset(tsr_type type)
{
    return type == TSR_TYPE_Q4_0 ? 8 : type == TSR_TYPE_Q6_K ? 32 : 0;
}

#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)

/* What of a panel is needed beside the quanta. */
typedef struct quant_panel {
    uint16_t half[QUANT_BLOCKS][INT_LANES]; /* Q8_0, Q4_0: d of each block; else [0] d, [1] dmin */
    uint32_t word[4][INT_LANES];            /* packed scales of the K types */
    vec_int high[8];                        /* Q5_K: the fifth bits of all its blocks */
} quant_panel;

/* Vectors of four bytes of each row: low bits first, then high ones. */
typedef struct quant_group {
    vec_int bytes[24];
} quant_group;

ALWAYS_INLINE int quant_group_blocks(tsr_type type)
{
    return type == TSR_TYPE_Q6_K ? 4 : is_super_block(type) ? 2 : 1;
}

/* Two halves of four elements of every row: 0 and 2, 1 and 3. */
typedef struct quant_pair {
    vec_int even, odd;
} quant_pair;

/* Bytes to words; of each the bits of `mask`. */
ALWAYS_INLINE quant_pair quant_split_u8(vec_bits bytes, uint32_t mask)
{
    mask |= mask << 16;
    return (quant_pair){(vec_int)(bytes & mask), (vec_int)(bytes >> 8 & mask)};
}

ALWAYS_INLINE quant_pair quant_split_i8(vec_bits bytes)
{
    const vec_short words = (vec_short)bytes;
    return (quant_pair){(vec_int)((words << 8) >> 8), (vec_int)(words >> 8)};
}

/* One half per row. Stored one by one: a vector would be put together in the unit that also transposes. */
ALWAYS_INLINE void quant_copy_halves(const unsigned char *const rows[INT_LANES], size_t at,
                                     uint16_t out[INT_LANES])
{
    UNROLL for (int r = 0; r < INT_LANES; r++)
    {
        memcpy(&out[r], rows[r] + at, sizeof out[r]);
        __asm__("" : "+m"(out[r]));
    }
}

ALWAYS_INLINE void quant_copy_words(const unsigned char *const rows[INT_LANES], size_t at, int n,
                                    uint32_t out[][INT_LANES])
{
    for (int i = 0; i < n; i++)
        UNROLL for (int r = 0; r < INT_LANES; r++)
        {
            memcpy(&out[i][r], rows[r] + at + 4 * (size_t)i, sizeof out[i][r]);
            __asm__("" : "+m"(out[i][r]));
        }
}

/* What else of the panel of n_blocks blocks at each of rows[]. */
ALWAYS_INLINE void quant_panel_load(tsr_type type, const unsigned char *const rows[INT_LANES], int n_blocks,
                                    quant_panel *panel)
{
    if (type == TSR_TYPE_Q4_K || type == TSR_TYPE_Q5_K) {
        quant_copy_halves(rows, 0, panel->half[0]);
        quant_copy_halves(rows, offsetof(tsr_block_q4_k, dmin), panel->half[1]);
        quant_copy_words(rows, offsetof(tsr_block_q4_k, scales), 3, panel->word);
        for (int i = 0; i < 2 && type == TSR_TYPE_Q5_K; i++)
            int_load_rows(rows, offsetof(tsr_block_q5_k, high) + 16 * (size_t)i, &panel->high[4 * i]);
    } else if (type == TSR_TYPE_Q6_K) {
        quant_copy_halves(rows, offsetof(tsr_block_q6_k, d), panel->half[0]);
        quant_copy_words(rows, offsetof(tsr_block_q6_k, scales), 4, panel->word);
    } else {
        for (int b = 0; b < n_blocks; b++) /* d comes first in a block */
            quant_copy_halves(rows, (size_t)b * block_bytes(type), panel->half[b]);
    }
}

/* n times 16 bytes of each row. */
ALWAYS_INLINE void quant_load(const unsigned char *const rows[INT_LANES], size_t at, const int n,
                              vec_int *out)
{
    UNROLL for (int i = 0; i < n; i++) int_load_rows(rows, at + 16 * (size_t)i, out + 4 * i);
}

/* The group that begins with block b of a panel. */
ALWAYS_INLINE void quant_group_load(tsr_type type, const unsigned char *const rows[INT_LANES],
                                    const quant_panel *panel, int b, quant_group *group)
{
    const size_t block = (size_t)b;
    switch (type) {
    case TSR_TYPE_Q8_0:
        quant_load(rows, block * sizeof(tsr_block_q8_0) + offsetof(tsr_block_q8_0, q), 2, group->bytes);
        break;
    case TSR_TYPE_Q4_0:
        quant_load(rows, block * sizeof(tsr_block_q4_0) + offsetof(tsr_block_q4_0, q), 1, group->bytes);
        break;
    case TSR_TYPE_Q4_K:
        quant_load(rows, offsetof(tsr_block_q4_k, q) + 16 * block, 2, group->bytes);
        break;
    case TSR_TYPE_Q5_K:
        quant_load(rows, offsetof(tsr_block_q5_k, q) + 16 * block, 2, group->bytes);
        UNROLL for (int i = 0; i < 8; i++) group->bytes[8 + i] = panel->high[i];
        break;
    default: /* Q6_K */
        quant_load(rows, offsetof(tsr_block_q6_k, high) + 8 * block, 2, group->bytes + 16);
        quant_load(rows, offsetof(tsr_block_q6_k, low) + 16 * block, 4, group->bytes);
        break;
    }
}

/* Elements 4 i .. 4 i + 3 (i < 8) of block b of a panel, from its group; quant_offset() included, sub-scales
 * not. */
ALWAYS_INLINE quant_pair quant_words(tsr_type type, const quant_group *group, int b, int i)
{
    const vec_bits *bytes = (const vec_bits *)group->bytes;
    switch (type) {
    case TSR_TYPE_Q8_0:
        return quant_split_i8(bytes[i]);
    case TSR_TYPE_Q4_0:
        return quant_split_u8(bytes[i % 4] >> (i < 4 ? 0 : 4), 0x0f);
    case TSR_TYPE_Q4_K:
        return quant_split_u8(bytes[i] >> b % 2 * 4, 0x0f);
    case TSR_TYPE_Q5_K: {
        const vec_bits low = bytes[i] >> b % 2 * 4 & 0x0f0f0f0f;
        const vec_bits high = b < 4 ? bytes[8 + i] << (4 - b) : bytes[8 + i] >> (b - 4);
        return quant_split_u8(low | (high & 0x10101010), 0xff);
    }
    default: { /* Q6_K */
        const int k = b % 4;
        const vec_bits low = bytes[k % 2 * 8 + i] >> k / 2 * 4 & 0x0f0f0f0f;
        const vec_bits high = k < 2 ? bytes[16 + i] << (4 - 2 * k) : bytes[16 + i] >> (2 * k - 4);
        return quant_split_u8(low | (high & 0x30303030), 0xff);
    }
    }
}

/* Sub-scale `which` (0 .. 15) of each row. */
ALWAYS_INLINE vec_int quant_sub_scale(const quant_panel *panel, int which)
{
    const vec_bits four = (vec_bits)int_load(panel->word[which / 4]);
    return (vec_int)(four << (24 - 8 * (which % 4))) >> 24;
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

/* Number `which` (scales 0 .. 7, minima 8 .. 15) of Q4_K and Q5_K: see tsr_quant_scale_min(). */
ALWAYS_INLINE vec quant_scale_min(const quant_panel *panel, int which)
{
    const vec_bits word = (vec_bits)int_load(panel->word[which / 8]);
    const vec_bits rest = (vec_bits)int_load(panel->word[2]);
    const int b = which % 8, shift = 8 * (b % 4);
    const vec_bits low = which < 8 ? rest >> shift : rest >> (shift + 4);
    const vec_bits number = b < 4 ? word >> shift & 63 : (low & 15) | (word >> (shift + 6) & 3) << 4;
    return int_to_float((vec_int)number);
}

ALWAYS_INLINE vec quant_scale(tsr_type type, const quant_panel *panel, int b)
{
    if (quant_has_min(type))
        return vec_from_halves(panel->half[0]) * quant_scale_min(panel, b);
    return vec_from_halves(panel->half[quant_has_sub_scales(type) ? 0 : b]);
}

ALWAYS_INLINE vec quant_min(const quant_panel *panel, int b)
{
    return vec_from_halves(panel->half[1]) * quant_scale_min(panel, 8 + b);
}

#endif
#endif
