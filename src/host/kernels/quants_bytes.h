/* Products with quantized weights and activations of 8 bits, many tokens at a time: what quants_tile.h and
 * quants_neon.h take instead of words on processors that multiply bytes.
 *
 * Quanta keep the offset that their bytes have, or get one, since x86's instruction wants bytes without a
 * sign on one side; sums begin with what that would add, taken off (`begin` of a token's block). Sub-scales
 * do not fit into a byte together with what they scale, so they multiply the sums of half blocks. All of it
 * is exact, like words: of a half block 16 bits hold the sum of 8 products, of quanta up to 32 with
 * activations up to 127, which is 32512. */
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
        int_store(quanta->q[b][i][v], (vec_int)quant_byte_quads(type, group, b, i));
    if (quant_has_sub_scales(type))
        UNROLL for (int half = 0; half < 2; half++)
            int_store(quanta->sub[b][half][v], quant_sub_scale(type, panel, 2 * b + half));
}

/* A block's quads are added up at once or, with sub-scales and where sums have 16 bits, half of them. */
ALWAYS_INLINE int byte_steps(bool sub_scales)
{
#if defined(TSR_ISA_QUADS)
    return sub_scales ? BYTE_STEPS / 2 : BYTE_STEPS;
#else
    (void)sub_scales;
    return BYTE_STEPS / 2;
#endif
}

/* -offset times what half (0, 1) of a block adds up to, laid out like a byte_sum. */
ALWAYS_INLINE int32_t byte_begin(const x_block *x, int half, int offset)
{
#if defined(TSR_ISA_QUADS)
    return -offset * x->half[half];
#else
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(x->bytes + half * X_BLOCK / 2));
    const __m128i twos = _mm_maddubs_epi16(_mm_set1_epi8(1), bytes); /* of each quad, first and second two */
    const __m128i two_quads = _mm_add_epi16(twos, _mm_srli_si128(twos, 8));
    const __m128i all = _mm_add_epi16(two_quads, _mm_srli_si128(two_quads, 4));
    return _mm_cvtsi128_si32(_mm_mullo_epi16(all, _mm_set1_epi16((short)-offset)));
#endif
}

/* What the sums of n blocks begin with. */
ALWAYS_INLINE void byte_x_begin(tsr_type type, x_block *x, int64_t n)
{
    const int offset = quant_byte_offset(type);
    const bool whole = byte_steps(quant_has_sub_scales(type)) == BYTE_STEPS;
    for (int64_t i = 0; i < n; i++) {
        const int32_t second = byte_begin(&x[i], 1, offset);
        x[i].begin[0] = byte_begin(&x[i], 0, offset) + (whole ? second : 0);
        x[i].begin[1] = second;
    }
}

/* The sums of `steps` steps from the first one on, of block b with n_tokens blocks, x and those QUANT_BLOCKS
 * blocks apart. */
ALWAYS_INLINE void byte_part_dots(const int n_tokens, const byte_quanta *quanta, int b, const int first,
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
            const vec_bits w = (vec_bits)int_load_once(quanta->q[b][i][v]);
            UNROLL for (int t = 0; t < n_tokens; t++) dots[t][v] = byte_dot_quad(dots[t][v], w, xi[t], i);
        }
    }
}

/* The integer sums of block b of the panel with the same blocks. */
ALWAYS_INLINE void byte_dots(const int n_tokens, const bool sub_scales, const byte_quanta *quanta, int b,
                             const x_block *x, vec_int dots[QUANT_TOKENS][QUANT_VECTORS])
{
    const int steps = byte_steps(sub_scales);
    UNROLL for (int first = 0; first < BYTE_STEPS; first += steps)
    {
        byte_sum part[QUANT_TOKENS][QUANT_VECTORS];
        byte_part_dots(n_tokens, quanta, b, first, steps, x, part);
        UNROLL for (int v = 0; v < QUANT_VECTORS; v++) UNROLL for (int t = 0; t < n_tokens; t++)
        {
            const vec_int sum = sub_scales
                                    ? byte_scaled(part[t][v], int_load(quanta->sub[b][first / steps][v]))
                                    : byte_total(part[t][v]);
            dots[t][v] = first == 0 ? sum : dots[t][v] + sum;
        }
    }
}

#endif
