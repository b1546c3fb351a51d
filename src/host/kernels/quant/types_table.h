/* The rules of the types whose nibbles are looked up in a table: IQ4_NL, MXFP4 and IQ4_XS. types.h says what
 * each function does. */
#ifndef TSR_HOST_KERNELS_QUANT_TYPES_TABLE_H
#define TSR_HOST_KERNELS_QUANT_TYPES_TABLE_H

#include "host/kernels/quant/types_block.h"

static const int8_t table_iq4[16] = {TSR_QUANT_IQ4_VALUES}, table_fp4[16] = {TSR_QUANT_FP4_VALUES};

/* These offsets make all values unsigned, so unpacking bytes to words takes one instruction less. */
enum { TABLE_IQ4_OFFSET = 128, TABLE_FP4_OFFSET = 12 };

static const quant_traits iq4_nl_traits = {
    .group_blocks = 1, .parts = 1, .pair_header = 2, .x_limit = X_LIMIT, .offset = TABLE_IQ4_OFFSET};
static const quant_traits mxfp4_traits = {
    .group_blocks = 1, .parts = 1, .pair_header = 1, .x_limit = X_LIMIT, .offset = TABLE_FP4_OFFSET};
static const quant_traits iq4_xs_traits = {
    .group_blocks = 2, .parts = 2, .x_limit = X_LIMIT, .offset = TABLE_IQ4_OFFSET};

/* -- one element at a time -- */

ALWAYS_INLINE void table_expand(const uint8_t q[X_BLOCK / 2], const int8_t values[16], quant_block *out)
{
    for (int i = 0; i < X_BLOCK; i++)
        quant_put(out, i, values[block_nibble(q, i)]);
}

ALWAYS_INLINE void iq4_nl_expand(tsr_type type, const unsigned char *p, int b, quant_block *out)
{
    (void)type;
    tsr_block_iq4_nl block;
    memcpy(&block, p + (size_t)b * sizeof block, sizeof block);
    out->scale = tsr_f16_to_f32(block.d);
    table_expand(block.q, table_iq4, out);
}

ALWAYS_INLINE void mxfp4_expand(tsr_type type, const unsigned char *p, int b, quant_block *out)
{
    (void)type;
    tsr_block_mxfp4 block;
    memcpy(&block, p + (size_t)b * sizeof block, sizeof block);
    out->scale = tsr_quant_mx_scale(block.e);
    table_expand(block.q, table_fp4, out);
}

ALWAYS_INLINE void iq4_xs_expand(tsr_type type, const unsigned char *p, int b, quant_block *out)
{
    (void)type;
    tsr_block_iq4_xs block;
    memcpy(&block, p, sizeof block);
    out->scale = tsr_f16_to_f32(block.d) * (float)(tsr_quant_iq4_scale(&block, b) - 32);
    table_expand(block.q + 16 * b, table_iq4, out);
}

/* -- lanes are rows -- */

#if defined(TSR_ISA_INT_VEC)

ALWAYS_INLINE vec_bits table_quads(const quant_group *group, int first, int i, const int8_t values[16],
                                   int offset)
{
    return quant_look_up(block_nibbles(group, first, i), values, offset);
}

/* IQ4_NL */

ALWAYS_INLINE void iq4_nl_header_load(const int_rows *rows, int b, quant_panel *panel)
{
    quant_copy_halves(rows, (size_t)b * sizeof(tsr_block_iq4_nl) + offsetof(tsr_block_iq4_nl, d),
                      panel->half[b]);
}

ALWAYS_INLINE void iq4_nl_group_load(const int_rows *rows, const quant_panel *panel, int b,
                                     quant_group *group)
{
    (void)panel;
    quant_load_parts(rows, (size_t)b * sizeof(tsr_block_iq4_nl) + offsetof(tsr_block_iq4_nl, q), 1,
                     group->bytes);
}

ALWAYS_INLINE vec_bits iq4_nl_quads(const quant_group *group, int b, int i)
{
    (void)b;
    return table_quads(group, 0, i, table_iq4, TABLE_IQ4_OFFSET);
}

ALWAYS_INLINE vec iq4_nl_scale(const quant_panel *panel, int b)
{
    return vec_from_halves(panel->half[b]);
}

/* MXFP4 */

/* A block's exponent is one byte. */
ALWAYS_INLINE void mxfp4_header_load(const int_rows *rows, int b, quant_panel *panel)
{
    const int_rows again = int_rows_again(rows);
    UNROLL for (int r = 0; r < INT_LANES; r++) panel->word[b][r] =
        int_row(&again, r)[(size_t)b * sizeof(tsr_block_mxfp4) + offsetof(tsr_block_mxfp4, e)];
}

ALWAYS_INLINE void mxfp4_group_load(const int_rows *rows, const quant_panel *panel, int b, quant_group *group)
{
    (void)panel;
    quant_load_parts(rows, (size_t)b * sizeof(tsr_block_mxfp4) + offsetof(tsr_block_mxfp4, q), 1,
                     group->bytes);
}

ALWAYS_INLINE vec_bits mxfp4_quads(const quant_group *group, int b, int i)
{
    (void)b;
    return table_quads(group, 0, i, table_fp4, TABLE_FP4_OFFSET);
}

/* tsr_quant_mx_scale() of each row: a comparison is all ones where it holds. */
ALWAYS_INLINE vec mxfp4_scale(const quant_panel *panel, int b)
{
    const vec_bits e = (vec_bits)int_load(panel->word[b]);
    const vec_bits tiny = (vec_bits)(e < 2), nan = (vec_bits)(e == 255);
    return (vec)((tiny & 0x00200000u << (e & 1)) | (~tiny & (e - 1) << 23) | (nan & 0x7fc00000u));
}

/* IQ4_XS */

ALWAYS_INLINE void iq4_xs_header_load(const int_rows *rows, int b, quant_panel *panel)
{
    (void)b;
    quant_load_words(rows, offsetof(tsr_block_iq4_xs, d), panel->word); /* scales_high, scales_low too */
    int_store_halves(panel->half[0], int_load(panel->word[0]));
}

ALWAYS_INLINE void iq4_xs_group_load(const int_rows *rows, const quant_panel *panel, int b,
                                     quant_group *group)
{
    (void)panel;
    quant_load_parts(rows, offsetof(tsr_block_iq4_xs, q) + 16 * (size_t)b, 2, group->bytes);
}

ALWAYS_INLINE vec_bits iq4_xs_quads(const quant_group *group, int b, int i)
{
    return table_quads(group, b % 2 * 4, i, table_iq4, TABLE_IQ4_OFFSET);
}

/* See tsr_quant_iq4_scale(). */
ALWAYS_INLINE vec iq4_xs_scale(const quant_panel *panel, int b)
{
    const vec_bits high = (vec_bits)int_load(panel->word[0]) >> (16 + 2 * b) & 3;
    const vec_bits low = (vec_bits)int_load(panel->word[1]) >> 4 * b & 15;
    return vec_from_halves(panel->half[0]) * int_to_float((vec_int)(low | high << 4) - 32);
}

#endif
#endif
