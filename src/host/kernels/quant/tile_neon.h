/* Products with quantized weights, many tokens at a time, with NEON: tile_words.h for vectors of four sums.
 * Formulas and bits are those of generic.h. With the dot product instructions tiles are bytes (tile_bytes.h).
 *
 * The instruction for words multiplies four 16-bit integers, one element of four rows, by one lane of a
 * token's vector and adds to four 32-bit sums. So a panel is expanded such that half a vector holds one
 * element of four rows, and a vector with eight elements of a token serves eight such halves. */
#ifndef TSR_HOST_KERNELS_QUANT_TILE_NEON_H
#define TSR_HOST_KERNELS_QUANT_TILE_NEON_H

#include "host/kernels/quant/tile_bytes.h"
#include "host/kernels/quant/tile_size.h"
#include "host/kernels/quant/x.h"

#if defined(TSR_ISA_BYTES)
#define QUANT_TILE_HAS_BYTES 1
#else
#define QUANT_TILE_HAS_BYTES 0
#endif

/* A panel of QUANT_ROWS rows. q[block][step][which][vector]: elements 4 * step .. + 3 of four rows; which =
 * 0: elements 0 and 1, 1: elements 2 and 3. */
typedef struct quant_tile {
    union {
        int16_t q[QUANT_BLOCKS][QUANT_STEPS][2][QUANT_VECTORS][2 * INT_LANES];
#if QUANT_TILE_HAS_BYTES
        byte_quants bytes;
#endif
    };
    float scale[QUANT_BLOCKS][QUANT_VECTORS][INT_LANES];
    float min[2][QUANT_BLOCKS][QUANT_VECTORS][INT_LANES]; /* the second half only with two minima */
    bool is_bytes, sub_scales;                            /* bytes, not words; the type has sub-scales */
} quant_tile;

/* The quants of block b of vector v of the tile. */
ALWAYS_INLINE void quant_tile_block(tsr_type type, const bool bytes, const quant_panel *panel,
                                    const quant_group *group, int b, int v, quant_tile *tile)
{
#if QUANT_TILE_HAS_BYTES
    if (bytes) {
        byte_quants_block(type, panel, group, b, v, &tile->bytes);
        return;
    }
#else
    (void)bytes;
#endif
    UNROLL for (int i = 0; i < QUANT_STEPS; i++)
    {
        const quant_pair q = quant_quants(type, panel, group, b, i);
        vst1q_s16(tile->q[b][i][0][v], vuzp1q_s16((int16x8_t)q.even, (int16x8_t)q.odd));
        vst1q_s16(tile->q[b][i][1][v], vuzp2q_s16((int16x8_t)q.even, (int16x8_t)q.odd));
    }
}

/* Multiply four elements of every row with n_tokens tokens. Lanes of the tokens' vectors are part of the
 * instructions, so a loop cannot choose them. Elements 0 and 2 are in x_even, 1 and 3 in x_odd, at lanes
 * `first` and `second`. */
#define NEON_STEP(step, first, second)                                                                    \
    UNROLL for (int v = 0; v < QUANT_VECTORS; v++)                                                        \
    {                                                                                                     \
        const int16x8_t w01 = vld1q_s16(tile->q[b][step][0][v]), w23 = vld1q_s16(tile->q[b][step][1][v]); \
        UNROLL for (int t = 0; t < n_tokens; t++)                                                         \
        {                                                                                                 \
            int32x4_t dot = (int32x4_t)dots[t][v];                                                        \
            dot = vmlal_laneq_s16(dot, vget_low_s16(w01), x_even[t], first);                              \
            dot = vmlal_high_laneq_s16(dot, w01, x_odd[t], first);                                        \
            dot = vmlal_laneq_s16(dot, vget_low_s16(w23), x_even[t], second);                             \
            dots[t][v] = (vec_int)vmlal_high_laneq_s16(dot, w23, x_odd[t], second);                       \
        }                                                                                                 \
    }

/* The integer sums of block b of the panel with the blocks of n_tokens tokens, of which x is the first. */
ALWAYS_INLINE void neon_block(const int n_tokens, const quant_tile *tile, int b, const x_block *x,
                              vec_int dots[QUANT_TOKENS][QUANT_VECTORS])
{
    UNROLL for (int t = 0; t < n_tokens; t++) UNROLL for (int v = 0; v < QUANT_VECTORS; v++) dots[t][v] =
        (vec_int){0};
    UNROLL for (int half = 0; half < 2; half++)
    {
        int16x8_t x_even[QUANT_TOKENS], x_odd[QUANT_TOKENS];
        UNROLL for (int t = 0; t < n_tokens; t++)
        {
            const x_block *xb = &x[t * QUANT_BLOCKS];
            x_even[t] = vld1q_s16(xb->q + 8 * half);
            x_odd[t] = vld1q_s16(xb->q + 16 + 8 * half);
        }
        NEON_STEP(4 * half, 0, 1)
        NEON_STEP(4 * half + 1, 2, 3)
        NEON_STEP(4 * half + 2, 4, 5)
        NEON_STEP(4 * half + 3, 6, 7)
    }
}
#undef NEON_STEP

/* neon_block() or byte_dots(), as `form` says. */
ALWAYS_INLINE void quant_tile_dots(const int n_tokens, const quant_form form, const quant_tile *tile, int b,
                                   const x_block *x, vec_int dots[QUANT_TOKENS][QUANT_VECTORS])
{
#if QUANT_TILE_HAS_BYTES
    if (form.is_bytes) {
        byte_dots(n_tokens, form.sub_scales, &tile->bytes, b, x, dots);
        return;
    }
#else
    (void)form;
#endif
    neon_block(n_tokens, tile, b, x, dots);
}

/* Add the products of n_blocks blocks from `block` on; arguments as in quant_tile_multiply(). */
ALWAYS_INLINE void quant_tile_n(const int n_tokens, const quant_form form, const quant_tile *tile, int block,
                                int n_blocks, const x_block *x, bool opens, float *sums)
{
    for (int b = block; b < block + n_blocks; b++, x++, opens = false) {
        vec_int dots[QUANT_TOKENS][QUANT_VECTORS];
        quant_tile_dots(n_tokens, form, tile, b, x, dots);
        UNROLL for (int t = 0; t < n_tokens; t++)
        {
            const x_block *xb = &x[t * QUANT_BLOCKS];
            UNROLL for (int v = 0; v < QUANT_VECTORS; v++)
            {
                float *sum = sums + t * QUANT_ROWS + v * INT_LANES;
                const vec dot = int_to_float(dots[t][v]) * vec_set1(xb->scale);
                vec acc = vec_fma(dot, vec_load(tile->scale[b][v]), opens ? (vec){0} : vec_load(sum));
                UNROLL for (int half = 0; half < form.minima; half++) acc = vec_fma(
                    vec_set1(quant_x_sum(xb, form.minima, half)), -vec_load(tile->min[half][b][v]), acc);
                vec_store(sum, acc);
            }
        }
    }
}

#endif
