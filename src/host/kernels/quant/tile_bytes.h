/* Products with quantized weights and activations of 8 bits, many tokens at a time: the bytes that
 * tile_words.h and tile_neon.h use instead of words on processors that multiply bytes.
 *
 * x86's instruction takes unsigned bytes on one side, so quants keep the offset of their bytes, or get one.
 * Sums begin with minus the offset's contribution (`begin` of a token's block). A sub-scale and its quant do
 * not fit into one byte, so sub-scales multiply the sums of half blocks. All of it is exact, like words: 16
 * bits hold the sum of 8 products of a half block, quants up to 32 with activations up to 127, which is
 * 32512. */
#ifndef TSR_HOST_KERNELS_QUANT_TILE_BYTES_H
#define TSR_HOST_KERNELS_QUANT_TILE_BYTES_H

#include "host/kernels/quant/dots.h"
#include "host/kernels/quant/tile_size.h"
#include "host/kernels/quant/x.h"

#if defined(TSR_ISA_BYTES) && !defined(TSR_ISA_AMX)

/* The bytes of a panel of QUANT_ROWS rows. */
typedef struct byte_quants {
    uint8_t q[QUANT_BLOCKS][BYTE_STEPS][QUANT_VECTORS][4 * INT_LANES];
    int32_t sub[QUANT_BLOCKS][2][QUANT_VECTORS][INT_LANES]; /* sub-scales, of types that have them */
} byte_quants;

/* Store the quants of block b of vector v. */
ALWAYS_INLINE void byte_quants_block(tsr_type type, const quant_panel *panel, const quant_group *group, int b,
                                     int v, byte_quants *quants)
{
    UNROLL for (int i = 0; i < BYTE_STEPS; i++)
        int_store(quants->q[b][i][v], (vec_int)quant_byte_quads(type, group, b, i));
    if (quant_has_sub_scales(type))
        UNROLL for (int half = 0; half < 2; half++)
            int_store(quants->sub[b][half][v], quant_sub_scale(type, panel, 2 * b + half));
}

/* The sums of `steps` steps from `first` on, of block b with n_tokens blocks: x, and then one every
 * QUANT_BLOCKS blocks. */
ALWAYS_INLINE void byte_part_dots(const int n_tokens, const byte_quants *quants, int b, const int first,
                                  const int steps, const x_block *x,
                                  byte_sum dots[QUANT_TOKENS][QUANT_VECTORS])
{
    UNROLL for (int t = 0; t < n_tokens; t++) UNROLL for (int v = 0; v < QUANT_VECTORS; v++) dots[t][v].v =
        int_set1(&x[t * QUANT_BLOCKS].begin[first / steps]);
    UNROLL for (int i = first; i < first + steps; i++)
    {
        vec_int xi[QUANT_TOKENS];
        UNROLL for (int t = 0; t < n_tokens; t++) xi[t] = byte_quad(x[t * QUANT_BLOCKS].bytes, i);
        UNROLL for (int v = 0; v < QUANT_VECTORS; v++)
        {
            const vec_bits w = (vec_bits)int_load_once(quants->q[b][i][v]);
            UNROLL for (int t = 0; t < n_tokens; t++) dots[t][v] = byte_dot_quad(dots[t][v], w, xi[t], i);
        }
    }
}

/* The integer sums of block b of the panel with n_tokens blocks: x, and then one every QUANT_BLOCKS
 * blocks. */
ALWAYS_INLINE void byte_dots(const int n_tokens, const bool sub_scales, const byte_quants *quants, int b,
                             const x_block *x, vec_int dots[QUANT_TOKENS][QUANT_VECTORS])
{
    const int steps = byte_steps(sub_scales);
    UNROLL for (int first = 0; first < BYTE_STEPS; first += steps)
    {
        byte_sum part[QUANT_TOKENS][QUANT_VECTORS];
        byte_part_dots(n_tokens, quants, b, first, steps, x, part);
        UNROLL for (int v = 0; v < QUANT_VECTORS; v++) UNROLL for (int t = 0; t < n_tokens; t++)
        {
            const vec_int sum = sub_scales
                                    ? byte_scaled(part[t][v], int_load(quants->sub[b][first / steps][v]))
                                    : byte_total(part[t][v]);
            dots[t][v] = first == 0 ? sum : dots[t][v] + sum;
        }
    }
}

#endif
#endif
