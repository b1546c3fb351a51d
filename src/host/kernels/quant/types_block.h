/* The rules of the quantized types whose blocks are 32 elements with one scale: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.
 * types.h says what each function does. */
#ifndef TSR_HOST_KERNELS_QUANT_TYPES_BLOCK_H
#define TSR_HOST_KERNELS_QUANT_TYPES_BLOCK_H

#include "host/kernels/quant/panel.h"

static const quant_traits q8_0_traits = {
    .group_blocks = 1, .parts = 2, .x_limit = X_LIMIT, .is_signed = true};
static const quant_traits q4_0_traits = {
    .group_blocks = 1, .parts = 1, .pair_header = 2, .x_limit = X_LIMIT, .offset = 8, .below_16 = true};

static const quant_traits q4_1_traits = {
    .group_blocks = 1, .parts = 1, .pair_header = 4, .x_limit = X_LIMIT, .minima = 1, .below_16 = true};
static const quant_traits q5_0_traits = {.group_blocks = 1, .x_limit = X_LIMIT, .offset = 16};
static const quant_traits q5_1_traits = {.group_blocks = 1, .x_limit = X_LIMIT, .minima = 1};

/* -- one element at a time -- */

ALWAYS_INLINE int block_nibble(const uint8_t q[X_BLOCK / 2], int i)
{
    return q[i % 16] >> (i < 16 ? 0 : 4) & 15;
}

ALWAYS_INLINE int block_fifth_bit(const uint8_t high[4], int i)
{
    return (high[i / 8] >> i % 8 & 1) << 4;
}

ALWAYS_INLINE void q8_0_expand(tsr_type type, const unsigned char *p, int b, quant_block *out)
{
    (void)type;
    tsr_block_q8_0 block;
    memcpy(&block, p + (size_t)b * sizeof block, sizeof block);
    out->scale = tsr_f16_to_f32(block.d);
    for (int i = 0; i < X_BLOCK; i++)
        quant_put(out, i, block.q[i]);
}

ALWAYS_INLINE void q4_0_expand(tsr_type type, const unsigned char *p, int b, quant_block *out)
{
    (void)type;
    tsr_block_q4_0 block;
    memcpy(&block, p + (size_t)b * sizeof block, sizeof block);
    out->scale = tsr_f16_to_f32(block.d);
    for (int i = 0; i < X_BLOCK; i++)
        quant_put(out, i, block_nibble(block.q, i) - 8);
}

ALWAYS_INLINE void q4_1_expand(tsr_type type, const unsigned char *p, int b, quant_block *out)
{
    (void)type;
    tsr_block_q4_1 block;
    memcpy(&block, p + (size_t)b * sizeof block, sizeof block);
    out->scale = tsr_f16_to_f32(block.d);
    out->min[0] = -tsr_f16_to_f32(block.m);
    for (int i = 0; i < X_BLOCK; i++)
        quant_put(out, i, block_nibble(block.q, i));
}

ALWAYS_INLINE void q5_0_expand(tsr_type type, const unsigned char *p, int b, quant_block *out)
{
    (void)type;
    tsr_block_q5_0 block;
    memcpy(&block, p + (size_t)b * sizeof block, sizeof block);
    out->scale = tsr_f16_to_f32(block.d);
    for (int i = 0; i < X_BLOCK; i++)
        quant_put(out, i, (block_nibble(block.q, i) | block_fifth_bit(block.high, i)) - 16);
}

ALWAYS_INLINE void q5_1_expand(tsr_type type, const unsigned char *p, int b, quant_block *out)
{
    (void)type;
    tsr_block_q5_1 block;
    memcpy(&block, p + (size_t)b * sizeof block, sizeof block);
    out->scale = tsr_f16_to_f32(block.d);
    out->min[0] = -tsr_f16_to_f32(block.m);
    for (int i = 0; i < X_BLOCK; i++)
        quant_put(out, i, block_nibble(block.q, i) | block_fifth_bit(block.high, i));
}

/* -- lanes are rows -- */

#if defined(TSR_ISA_INT_VEC)

/* Elements 4 i .. 4 i + 3 of 32 nibbles, low nibbles first, in the group's vectors from `first` on. */
ALWAYS_INLINE vec_bits block_nibbles(const quant_group *group, int first, int i)
{
    return quant_bytes(group, first + i % 4) >> (i < 4 ? 0 : 4) & 0x0f0f0f0f;
}

/* block_nibbles() with their fifth bits, which are one number per row after the nibbles. Bits 4 i .. 4 i + 3
 * of that number go to bit 4 of a byte each: the product makes four copies, 7 bits apart and so without
 * carries, and the mask keeps one bit per byte. */
ALWAYS_INLINE vec_bits block_fives(const quant_group *group, int i)
{
    return block_nibbles(group, 0, i) | ((quant_bytes(group, 4) >> 4 * i & 15) * 0x02040810 & 0x10101010);
}

#if defined(TSR_ISA_AVX512)
/* Blocks b and b + 1, each 16 bytes of nibbles after `header` bytes (1: an exponent; 2: d; 4: d and m). Three
 * loads replace a load per block and a copy per header and row. */
ALWAYS_INLINE void block_pair_load(const int_rows *rows, int b, const int header, quant_panel *panel,
                                   quant_group pair[2])
{
    const size_t at = (size_t)b * (16 + (size_t)header);
    vec_int start[8]; /* 32 bytes: all of the first block, and the second's header */
    quant_load_parts(rows, at, 2, start);
    quant_load_parts(rows, at + 16 + 2 * (size_t)header, 1, pair[1].bytes);
    UNROLL for (int i = 0; i < 4; i++) pair[0].bytes[i] = int_join_parts(start[i], start[4 + i], header);
    const vec_bits first = (vec_bits)int_part_words(start, 0);
    const vec_bits second = (vec_bits)int_part_words(start + 4, header / 4);
    if (header == 1) {
        int_store(panel->word[b], (vec_int)(first & 0xff));
        int_store(panel->word[b + 1], (vec_int)(second >> 8 & 0xff));
        return;
    }
    int_store_halves(panel->half[b], (vec_int)first);
    int_store_halves(panel->half[b + 1], (vec_int)(header == 2 ? second >> 16 : second));
    if (header == 4) {
        int_store_halves(panel->half[QUANT_BLOCKS + b], (vec_int)(first >> 16));
        int_store_halves(panel->half[QUANT_BLOCKS + b + 1], (vec_int)(second >> 16));
    }
}
#endif

/* Q8_0 */

ALWAYS_INLINE void q8_0_header_load(const int_rows *rows, int b, quant_panel *panel)
{
    quant_copy_halves(rows, (size_t)b * sizeof(tsr_block_q8_0) + offsetof(tsr_block_q8_0, d), panel->half[b]);
}

ALWAYS_INLINE void q8_0_group_load(const int_rows *rows, const quant_panel *panel, int b, quant_group *group)
{
    /* 16 bytes at a time: wider loads read memory at a lower rate, though caches at a higher rate. */
    (void)panel;
    const size_t at = (size_t)b * sizeof(tsr_block_q8_0) + offsetof(tsr_block_q8_0, q);
    int_load_parts(rows, at, group->bytes);
    int_load_parts(rows, at + 16, group->bytes + 4);
}

ALWAYS_INLINE vec_bits q8_0_quads(const quant_group *group, int b, int i)
{
    (void)b;
    return quant_bytes(group, i);
}

ALWAYS_INLINE vec q8_0_scale(const quant_panel *panel, int b)
{
    return vec_from_halves(panel->half[b]);
}

/* Q4_0 */

ALWAYS_INLINE void q4_0_header_load(const int_rows *rows, int b, quant_panel *panel)
{
    quant_copy_halves(rows, (size_t)b * sizeof(tsr_block_q4_0) + offsetof(tsr_block_q4_0, d), panel->half[b]);
}

ALWAYS_INLINE void q4_0_group_load(const int_rows *rows, const quant_panel *panel, int b, quant_group *group)
{
    (void)panel;
    quant_load_parts(rows, (size_t)b * sizeof(tsr_block_q4_0) + offsetof(tsr_block_q4_0, q), 1, group->bytes);
}

ALWAYS_INLINE vec_bits q4_0_quads(const quant_group *group, int b, int i)
{
    (void)b;
    return block_nibbles(group, 0, i);
}

ALWAYS_INLINE vec q4_0_scale(const quant_panel *panel, int b)
{
    return vec_from_halves(panel->half[b]);
}

/* Q4_1 */

ALWAYS_INLINE void q4_1_header_load(const int_rows *rows, int b, quant_panel *panel)
{
    quant_copy_halves(rows, (size_t)b * sizeof(tsr_block_q4_1) + offsetof(tsr_block_q4_1, d), panel->half[b]);
    quant_copy_halves(rows, (size_t)b * sizeof(tsr_block_q4_1) + offsetof(tsr_block_q4_1, m),
                      panel->half[QUANT_BLOCKS + b]);
}

ALWAYS_INLINE void q4_1_group_load(const int_rows *rows, const quant_panel *panel, int b, quant_group *group)
{
    (void)panel;
    quant_load_parts(rows, (size_t)b * sizeof(tsr_block_q4_1) + offsetof(tsr_block_q4_1, q), 1, group->bytes);
}

ALWAYS_INLINE vec_bits q4_1_quads(const quant_group *group, int b, int i)
{
    (void)b;
    return block_nibbles(group, 0, i);
}

ALWAYS_INLINE vec q4_1_scale(const quant_panel *panel, int b)
{
    return vec_from_halves(panel->half[b]);
}

ALWAYS_INLINE vec q4_1_min(const quant_panel *panel, int b, int half)
{
    (void)half;
    return -vec_from_halves(panel->half[QUANT_BLOCKS + b]);
}

/* Q5_0 */

ALWAYS_INLINE void q5_0_header_load(const int_rows *rows, int b, quant_panel *panel)
{
    quant_copy_halves(rows, (size_t)b * sizeof(tsr_block_q5_0) + offsetof(tsr_block_q5_0, d), panel->half[b]);
    quant_copy_words(rows, (size_t)b * sizeof(tsr_block_q5_0) + offsetof(tsr_block_q5_0, high),
                     panel->word[b]);
}

ALWAYS_INLINE void q5_0_group_load(const int_rows *rows, const quant_panel *panel, int b, quant_group *group)
{
    quant_load(rows, (size_t)b * sizeof(tsr_block_q5_0) + offsetof(tsr_block_q5_0, q), 1, group->bytes);
    group->bytes[4] = int_load(panel->word[b]);
}

ALWAYS_INLINE vec_bits q5_0_quads(const quant_group *group, int b, int i)
{
    (void)b;
    return block_fives(group, i);
}

ALWAYS_INLINE vec q5_0_scale(const quant_panel *panel, int b)
{
    return vec_from_halves(panel->half[b]);
}

/* Q5_1 */

ALWAYS_INLINE void q5_1_header_load(const int_rows *rows, int b, quant_panel *panel)
{
    quant_copy_halves(rows, (size_t)b * sizeof(tsr_block_q5_1) + offsetof(tsr_block_q5_1, d), panel->half[b]);
    quant_copy_halves(rows, (size_t)b * sizeof(tsr_block_q5_1) + offsetof(tsr_block_q5_1, m),
                      panel->half[QUANT_BLOCKS + b]);
    quant_copy_words(rows, (size_t)b * sizeof(tsr_block_q5_1) + offsetof(tsr_block_q5_1, high),
                     panel->word[b]);
}

ALWAYS_INLINE void q5_1_group_load(const int_rows *rows, const quant_panel *panel, int b, quant_group *group)
{
    quant_load(rows, (size_t)b * sizeof(tsr_block_q5_1) + offsetof(tsr_block_q5_1, q), 1, group->bytes);
    group->bytes[4] = int_load(panel->word[b]);
}

ALWAYS_INLINE vec_bits q5_1_quads(const quant_group *group, int b, int i)
{
    (void)b;
    return block_fives(group, i);
}

ALWAYS_INLINE vec q5_1_scale(const quant_panel *panel, int b)
{
    return vec_from_halves(panel->half[b]);
}

ALWAYS_INLINE vec q5_1_min(const quant_panel *panel, int b, int half)
{
    (void)half;
    return -vec_from_halves(panel->half[QUANT_BLOCKS + b]);
}

#endif
#endif
