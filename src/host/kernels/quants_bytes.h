/* Products with quantized weights and activations of 8 bits, many tokens at a time: what quants_tile.h takes
 * instead of words on processors that multiply bytes.
 *
 * The instruction wants bytes without a sign on one side, so quanta have an offset added, and sums begin with
 * what that would add, taken off (`begin` of a token's block). Sub-scales do not fit into a byte together
 * with what they scale, so they multiply the sums of half blocks. All of it is exact, like words. */
#ifndef TSR_HOST_KERNELS_QUANTS_BYTES_H
#define TSR_HOST_KERNELS_QUANTS_BYTES_H

enum { BYTE_STEPS = X_BLOCK / 4 }; /* quads of elements */

/* Of a panel of QUANT_ROWS rows. */
typedef struct byte_quanta {
    uint8_t q[QUANT_BLOCKS][BYTE_STEPS][QUANT_VECTORS][4 * INT_LANES];
    int32_t sub[QUANT_BLOCKS][2][QUANT_VECTORS][INT_LANES]; /* sub-scales, of types that have them */
} byte_quanta;

/* The quanta of block b of vector v. */
ALWAYS_INLINE void byte_quanta_block(tsr_type type, const quant_panel *panel, const quant_group *group, int b,
                                     int v, byte_quanta *quanta)
{
    UNROLL for (int i = 0; i < BYTE_STEPS; i++)
        int_store(quanta->q[b][i][v], (vec_int)quant_unsigned(type, group, b, i));
    if (quant_has_sub_scales(type))
        UNROLL for (int half = 0; half < 2; half++)
            int_store(quanta->sub[b][half][v], quant_sub_scale(type, panel, 2 * b + half));
}

/* What the sums of n blocks begin with: of a whole block or, with sub-scales, of each half. */
ALWAYS_INLINE void byte_x_begin(tsr_type type, x_block *x, int64_t n)
{
    const int offset = quant_unsigned_offset(type);
    for (int64_t i = 0; i < n; i++) {
        x[i].begin[0] = -offset * (x[i].half[0] + (quant_has_sub_scales(type) ? 0 : x[i].half[1]));
        x[i].begin[1] = -offset * x[i].half[1];
    }
}

/* The sums of steps [step, end) of block b with n_tokens blocks, x and those QUANT_BLOCKS blocks apart. */
ALWAYS_INLINE void byte_steps(const int n_tokens, const byte_quanta *quanta, int b, const int step,
                              const int end, const x_block *x, vec_int dots[QUANT_TOKENS][QUANT_VECTORS])
{
    UNROLL for (int t = 0; t < n_tokens; t++) UNROLL for (int v = 0; v < QUANT_VECTORS; v++) dots[t][v] =
        int_set1(&x[t * QUANT_BLOCKS].begin[step * 4 / (X_BLOCK / 2)]);
    UNROLL for (int i = step; i < end; i++)
    {
        vec_int xi[QUANT_TOKENS];
        UNROLL for (int t = 0; t < n_tokens; t++) xi[t] = int_set1(x[t * QUANT_BLOCKS].bytes + 4 * i);
        UNROLL for (int v = 0; v < QUANT_VECTORS; v++)
        {
            const vec_bits w = (vec_bits)int_load_once(quanta->q[b][i][v]);
            UNROLL for (int t = 0; t < n_tokens; t++) dots[t][v] = int_dot_bytes(dots[t][v], w, xi[t]);
        }
    }
}

/* The integer sums of block b of the panel with the same blocks. */
ALWAYS_INLINE void byte_dots(const int n_tokens, const bool sub_scales, const byte_quanta *quanta, int b,
                             const x_block *x, vec_int dots[QUANT_TOKENS][QUANT_VECTORS])
{
    vec_int second[QUANT_TOKENS][QUANT_VECTORS];
    byte_steps(n_tokens, quanta, b, 0, sub_scales ? BYTE_STEPS / 2 : BYTE_STEPS, x, dots);
    if (!sub_scales)
        return;
    UNROLL for (int v = 0; v < QUANT_VECTORS; v++) UNROLL for (int t = 0; t < n_tokens; t++) dots[t][v] *=
        int_load(quanta->sub[b][0][v]);
    byte_steps(n_tokens, quanta, b, BYTE_STEPS / 2, BYTE_STEPS, x, second);
    UNROLL for (int v = 0; v < QUANT_VECTORS; v++) UNROLL for (int t = 0; t < n_tokens; t++) dots[t][v] +=
        second[t][v] * int_load(quanta->sub[b][1][v]);
}

#endif
