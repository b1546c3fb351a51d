/* The rules of the quantized types whose blocks are 32 elements with a scale of their own: Q8_0, Q4_0. What
 * each function means is in quants.h. */
#ifndef TSR_HOST_KERNELS_QUANTS_BLOCK_H
#define TSR_HOST_KERNELS_QUANTS_BLOCK_H

#include "host/kernels/quants_panel.h"

static const quant_traits q8_0_traits = {.group_blocks = 1, .parts = 2, .x_limit = X_LIMIT};
static const quant_traits q4_0_traits = {.group_blocks = 1, .parts = 1, .x_limit = X_LIMIT, .offset = 8};

/* ---- one element at a time ---- */

ALWAYS_INLINE void q8_0_expand(const unsigned char *p, int b, quant_block *out)
{
    tsr_block_q8_0 block;
    memcpy(&block, p + (size_t)b * sizeof block, sizeof block);
    out->scale = tsr_f16_to_f32(block.d);
    for (int i = 0; i < X_BLOCK; i++)
        quant_put(out, i, block.q[i]);
}

ALWAYS_INLINE void q4_0_expand(const unsigned char *p, int b, quant_block *out)
{
    tsr_block_q4_0 block;
    memcpy(&block, p + (size_t)b * sizeof block, sizeof block);
    out->scale = tsr_f16_to_f32(block.d);
    for (int i = 0; i < X_BLOCK; i++)
        quant_put(out, i, (block.q[i % 16] >> (i < 16 ? 0 : 4) & 15) - 8);
}

/* ---- lanes are rows ---- */

#if defined(TSR_ISA_INT_VEC)

/* The half at byte `at` of every block. */
ALWAYS_INLINE void block_halves(const unsigned char *const rows[INT_LANES], size_t stride, size_t at,
                                int n_blocks, uint16_t half[][INT_LANES])
{
    for (int b = 0; b < n_blocks; b++)
        quant_copy_halves(rows, (size_t)b * stride + at, half[b]);
}

/* Elements 4 i .. 4 i + 3 of 32 nibbles, the low ones first. */
ALWAYS_INLINE vec_bits block_nibbles(const quant_group *group, int i)
{
    return quant_bytes(group, i % 4) >> (i < 4 ? 0 : 4);
}

/* Q8_0 */

ALWAYS_INLINE void q8_0_panel_load(const unsigned char *const rows[INT_LANES], int n_blocks,
                                   quant_panel *panel)
{
    block_halves(rows, sizeof(tsr_block_q8_0), offsetof(tsr_block_q8_0, d), n_blocks, panel->half);
}

ALWAYS_INLINE void q8_0_group_load(const unsigned char *const rows[INT_LANES], const quant_panel *panel,
                                   int b, quant_group *group)
{
    (void)panel;
    quant_load_parts(rows, (size_t)b * sizeof(tsr_block_q8_0) + offsetof(tsr_block_q8_0, q), 2, group->bytes);
}

ALWAYS_INLINE quant_pair q8_0_words(const quant_group *group, int b, int i)
{
    (void)b;
    return quant_split_i8(quant_bytes(group, i));
}

ALWAYS_INLINE vec q8_0_scale(const quant_panel *panel, int b)
{
    return vec_from_halves(panel->half[b]);
}

/* Q4_0 */

ALWAYS_INLINE void q4_0_panel_load(const unsigned char *const rows[INT_LANES], int n_blocks,
                                   quant_panel *panel)
{
    block_halves(rows, sizeof(tsr_block_q4_0), offsetof(tsr_block_q4_0, d), n_blocks, panel->half);
}

ALWAYS_INLINE void q4_0_group_load(const unsigned char *const rows[INT_LANES], const quant_panel *panel,
                                   int b, quant_group *group)
{
    (void)panel;
    quant_load_parts(rows, (size_t)b * sizeof(tsr_block_q4_0) + offsetof(tsr_block_q4_0, q), 1, group->bytes);
}

ALWAYS_INLINE quant_pair q4_0_words(const quant_group *group, int b, int i)
{
    (void)b;
    return quant_split_u8(block_nibbles(group, i), 0x0f);
}

ALWAYS_INLINE vec q4_0_scale(const quant_panel *panel, int b)
{
    return vec_from_halves(panel->half[b]);
}

#endif
#endif
