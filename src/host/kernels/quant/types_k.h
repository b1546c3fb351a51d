/* The rules of the K types, super-blocks of 256 elements with packed scales: Q4_K, Q5_K, Q6_K, Q2_K, Q3_K.
 * types.h says what each function does. */
#ifndef TSR_HOST_KERNELS_QUANT_TYPES_K_H
#define TSR_HOST_KERNELS_QUANT_TYPES_K_H

#include "host/kernels/quant/panel.h"

static const quant_traits q4_k_traits = {
    .group_blocks = 2, .parts = 2, .x_limit = X_LIMIT, .minima = 1, .below_16 = true, .by_nibbles = true};
static const quant_traits q5_k_traits = {.group_blocks = 2, .parts = 4, .x_limit = X_LIMIT, .minima = 1};
static const quant_traits q6_k_traits = {
    .group_blocks = 4, .parts = 6, .x_limit = X_LIMIT_SUB, .offset = 32, .sub_scales = true};
static const quant_traits q2_k_traits = {
    .group_blocks = 4, .parts = 2, .x_limit = X_LIMIT, .minima = 2, .sub_scales = true};
static const quant_traits q3_k_traits = {
    .group_blocks = 4, .parts = 4, .x_limit = X_LIMIT, .offset = 4, .sub_scales = true};

/* -- one element at a time -- */

/* Q4_K and Q5_K have the same header. */
ALWAYS_INLINE void k_expand_header(const unsigned char *p, int b, quant_block *out)
{
    tsr_block_q4_k header;
    memcpy(&header, p, offsetof(tsr_block_q4_k, q));
    uint8_t step, offset;
    tsr_quant_scale_min(header.scales, b, &step, &offset);
    out->scale = tsr_f16_to_f32(header.d) * (float)step;
    out->min[0] = tsr_f16_to_f32(header.dmin) * (float)offset;
}

ALWAYS_INLINE void q4_k_expand(tsr_type type, const unsigned char *p, int b, quant_block *out)
{
    (void)type;
    const unsigned char *q = p + offsetof(tsr_block_q4_k, q) + b / 2 * 32;
    k_expand_header(p, b, out);
    for (int i = 0; i < X_BLOCK; i++)
        quant_put(out, i, q[i] >> b % 2 * 4 & 15);
}

ALWAYS_INLINE void q5_k_expand(tsr_type type, const unsigned char *p, int b, quant_block *out)
{
    (void)type;
    const unsigned char *q = p + offsetof(tsr_block_q5_k, q) + b / 2 * 32;
    const unsigned char *high = p + offsetof(tsr_block_q5_k, high);
    k_expand_header(p, b, out);
    for (int i = 0; i < X_BLOCK; i++)
        quant_put(out, i, (q[i] >> b % 2 * 4 & 15) | (high[i] >> b & 1) << 4);
}

ALWAYS_INLINE void q6_k_expand(tsr_type type, const unsigned char *p, int b, quant_block *out)
{
    (void)type;
    tsr_block_q6_k block;
    memcpy(&block, p, sizeof block);
    const uint8_t *low = block.low + 64 * (b / 4) + 32 * (b % 2), *high = block.high + 32 * (b / 4);
    out->scale = tsr_f16_to_f32(block.d);
    for (int i = 0; i < X_BLOCK; i++) {
        const int quantum = (low[i] >> (b % 4 < 2 ? 0 : 4) & 15) | (high[i] >> b % 4 * 2 & 3) << 4;
        quant_put(out, i, (quantum - 32) * block.scales[2 * b + i / 16]);
    }
}

ALWAYS_INLINE void q2_k_expand(tsr_type type, const unsigned char *p, int b, quant_block *out)
{
    (void)type;
    tsr_block_q2_k block;
    memcpy(&block, p, sizeof block);
    out->scale = tsr_f16_to_f32(block.d);
    for (int half = 0; half < 2; half++)
        out->min[half] = tsr_f16_to_f32(block.dmin) * (float)(block.scales[2 * b + half] >> 4);
    for (int i = 0; i < X_BLOCK; i++) {
        const int quantum = block.q[32 * (b / 4) + i] >> b % 4 * 2 & 3;
        quant_put(out, i, quantum * (block.scales[2 * b + i / 16] & 15));
    }
}

ALWAYS_INLINE void q3_k_expand(tsr_type type, const unsigned char *p, int b, quant_block *out)
{
    (void)type;
    tsr_block_q3_k block;
    memcpy(&block, p, sizeof block);
    out->scale = tsr_f16_to_f32(block.d);
    for (int i = 0; i < X_BLOCK; i++) {
        const int quantum = (block.q[32 * (b / 4) + i] >> b % 4 * 2 & 3) | (block.high[i] >> b & 1) << 2;
        quant_put(out, i, (quantum - 4) * (tsr_quant_q3_scale(block.scales, 2 * b + i / 16) - 32));
    }
}

/* -- lanes are rows -- */

#if defined(TSR_ISA_INT_VEC)

/* Q4_K, and the functions that it shares with Q5_K */

/* d, dmin and the packed scales are the first 16 bytes. */
ALWAYS_INLINE void q4_k_header_load(const int_rows *rows, int b, quant_panel *panel)
{
    (void)b;
    vec_int header[4];
    int_load_rows(rows, offsetof(tsr_block_q4_k, d), header);
    int_store_halves(panel->half[0], header[0]);
    int_store_halves(panel->half[1], (vec_int)((vec_bits)header[0] >> 16));
    UNROLL for (int i = 0; i < 3; i++) int_store(panel->word[i], header[1 + i]);
}

ALWAYS_INLINE void q4_k_group_load(const int_rows *rows, const quant_panel *panel, int b, quant_group *group)
{
    (void)panel;
    quant_load_parts(rows, offsetof(tsr_block_q4_k, q) + 16 * (size_t)b, 2, group->bytes);
}

ALWAYS_INLINE vec_bits q4_k_quads(const quant_group *group, int b, int i)
{
    return quant_bytes(group, i) >> b % 2 * 4 & 0x0f0f0f0f;
}

/* Number `which` (scales 0 .. 7, minima 8 .. 15): see tsr_quant_scale_min(). */
ALWAYS_INLINE vec q4_k_number(const quant_panel *panel, int which)
{
    const vec_bits word = (vec_bits)int_load(panel->word[which / 8]);
    const vec_bits rest = (vec_bits)int_load(panel->word[2]);
    const int b = which % 8, shift = 8 * (b % 4);
    const vec_bits low = which < 8 ? rest >> shift : rest >> (shift + 4);
    const vec_bits number = b < 4 ? word >> shift & 63 : (low & 15) | (word >> (shift + 6) & 3) << 4;
    return int_to_float((vec_int)number);
}

ALWAYS_INLINE vec q4_k_scale(const quant_panel *panel, int b)
{
    return vec_from_halves(panel->half[0]) * q4_k_number(panel, b);
}

ALWAYS_INLINE vec q4_k_min(const quant_panel *panel, int b, int half)
{
    (void)half;
    return vec_from_halves(panel->half[1]) * q4_k_number(panel, 8 + b);
}

/* Q5_K */

ALWAYS_INLINE void q5_k_header_load(const int_rows *rows, int b, quant_panel *panel)
{
    q4_k_header_load(rows, b, panel);
    quant_load_parts(rows, offsetof(tsr_block_q5_k, high), 2, panel->high);
}

ALWAYS_INLINE void q5_k_group_load(const int_rows *rows, const quant_panel *panel, int b, quant_group *group)
{
    quant_load_parts(rows, offsetof(tsr_block_q5_k, q) + 16 * (size_t)b, 2, group->bytes);
    UNROLL for (int i = 0; i < 8; i++) group->bytes[8 + i] = panel->high[i];
}

ALWAYS_INLINE vec_bits q5_k_quads(const quant_group *group, int b, int i)
{
    const vec_bits low = quant_bytes(group, i) >> b % 2 * 4 & 0x0f0f0f0f;
    const vec_bits high = quant_shift(quant_bytes(group, 8 + i), 4 - b) & 0x10101010;
    return low | high;
}

ALWAYS_INLINE vec q5_k_scale(const quant_panel *panel, int b)
{
    return q4_k_scale(panel, b);
}

ALWAYS_INLINE vec q5_k_min(const quant_panel *panel, int b, int half)
{
    return q4_k_min(panel, b, half);
}

/* Q6_K */

ALWAYS_INLINE void q6_k_header_load(const int_rows *rows, int b, quant_panel *panel)
{
    (void)b;
    quant_copy_halves(rows, offsetof(tsr_block_q6_k, d), panel->half[0]);
    quant_load_words(rows, offsetof(tsr_block_q6_k, scales), panel->word);
}

ALWAYS_INLINE void q6_k_group_load(const int_rows *rows, const quant_panel *panel, int b, quant_group *group)
{
    (void)panel;
    quant_load_parts(rows, offsetof(tsr_block_q6_k, high) + 8 * (size_t)b, 2, group->bytes + 16);
    quant_load_parts(rows, offsetof(tsr_block_q6_k, low) + 16 * (size_t)b, 4, group->bytes);
}

ALWAYS_INLINE vec_bits q6_k_quads(const quant_group *group, int b, int i)
{
    const int k = b % 4;
    const vec_bits low = quant_bytes(group, k % 2 * 8 + i) >> k / 2 * 4 & 0x0f0f0f0f;
    const vec_bits high = quant_shift(quant_bytes(group, 16 + i), 4 - 2 * k) & 0x30303030;
    return low | high;
}

ALWAYS_INLINE vec q6_k_scale(const quant_panel *panel, int b)
{
    (void)b;
    return vec_from_halves(panel->half[0]);
}

ALWAYS_INLINE vec_int q6_k_sub_scale(const quant_panel *panel, int which)
{
    const vec_bits four = (vec_bits)int_load(panel->word[which / 4]);
    return (vec_int)(four << (24 - 8 * (which % 4))) >> 24;
}

/* Q2_K */

ALWAYS_INLINE void q2_k_header_load(const int_rows *rows, int b, quant_panel *panel)
{
    (void)b;
    quant_copy_halves(rows, offsetof(tsr_block_q2_k, d), panel->half[0]);
    quant_copy_halves(rows, offsetof(tsr_block_q2_k, dmin), panel->half[1]);
    quant_load_words(rows, offsetof(tsr_block_q2_k, scales), panel->word);
}

ALWAYS_INLINE void q2_k_group_load(const int_rows *rows, const quant_panel *panel, int b, quant_group *group)
{
    (void)panel;
    quant_load_parts(rows, offsetof(tsr_block_q2_k, q) + 8 * (size_t)b, 2, group->bytes);
}

ALWAYS_INLINE vec_bits q2_k_quads(const quant_group *group, int b, int i)
{
    return quant_bytes(group, i) >> b % 4 * 2 & 0x03030303;
}

/* Nibble `high` of scale byte `which`. */
ALWAYS_INLINE vec_int q2_k_number(const quant_panel *panel, int which, int high)
{
    const vec_bits four = (vec_bits)int_load(panel->word[which / 4]);
    return (vec_int)(four >> (8 * (which % 4) + 4 * high) & 15);
}

ALWAYS_INLINE vec q2_k_scale(const quant_panel *panel, int b)
{
    (void)b;
    return vec_from_halves(panel->half[0]);
}

ALWAYS_INLINE vec_int q2_k_sub_scale(const quant_panel *panel, int which)
{
    return q2_k_number(panel, which, 0);
}

ALWAYS_INLINE vec q2_k_min(const quant_panel *panel, int b, int half)
{
    return vec_from_halves(panel->half[1]) * int_to_float(q2_k_number(panel, 2 * b + half, 1));
}

/* Q3_K */

ALWAYS_INLINE void q3_k_header_load(const int_rows *rows, int b, quant_panel *panel)
{
    (void)b;
    vec_int last[4]; /* two bytes, then the scales, which begin in the middle of a word, then d */
    int_load_rows(rows, offsetof(tsr_block_q3_k, scales) - 2, last);
    UNROLL for (int i = 0; i < 3; i++)
        int_store(panel->word[i], (vec_int)((vec_bits)last[i] >> 16 | (vec_bits)last[i + 1] << 16));
    int_store_halves(panel->half[0], (vec_int)((vec_bits)last[3] >> 16));
    quant_load_parts(rows, offsetof(tsr_block_q3_k, high), 2, panel->high);
}

ALWAYS_INLINE void q3_k_group_load(const int_rows *rows, const quant_panel *panel, int b, quant_group *group)
{
    quant_load_parts(rows, offsetof(tsr_block_q3_k, q) + 8 * (size_t)b, 2, group->bytes);
    UNROLL for (int i = 0; i < 8; i++) group->bytes[8 + i] = panel->high[i];
}

ALWAYS_INLINE vec_bits q3_k_quads(const quant_group *group, int b, int i)
{
    const vec_bits low = quant_bytes(group, i) >> b % 4 * 2 & 0x03030303;
    const vec_bits high = quant_shift(quant_bytes(group, 8 + i), 2 - b) & 0x04040404;
    return low | high;
}

ALWAYS_INLINE vec q3_k_scale(const quant_panel *panel, int b)
{
    (void)b;
    return vec_from_halves(panel->half[0]);
}

/* See tsr_quant_q3_scale(). */
ALWAYS_INLINE vec_int q3_k_sub_scale(const quant_panel *panel, int which)
{
    const vec_bits word = (vec_bits)int_load(panel->word[which / 4 % 2]);
    const vec_bits rest = (vec_bits)int_load(panel->word[2]);
    const vec_bits low = word >> (8 * (which % 4) + which / 8 * 4) & 15;
    const vec_bits high = rest >> (8 * (which % 4) + which / 4 * 2) & 3;
    return (vec_int)(low | high << 4) - 32;
}

#endif
#endif
