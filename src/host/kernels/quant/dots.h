/* The integer sums of a block of INT_LANES rows with a token group: a lane per row, for up to
 * QUANT_GROUP_TOKENS tokens. All sums are exact, so the variants differ in time only.
 *
 * Weights are unpacked in parts (int_vec.h), whose sums are added up across lanes, or as columns, transposed
 * before they are multiplied. A transposition takes as long as two sums of parts, so columns pay where there
 * are more than two. Activations are words, bytes (tile_bytes.h) or digits. With words the weights must be
 * unpacked to words, two instructions per four elements. Digits avoid these two: x = 256 * high + low, and
 * both are multiplied with the packed bytes: high as signed bytes, low as unsigned bytes with weights that
 * have no byte above 127. */
#ifndef TSR_HOST_KERNELS_QUANT_DOTS_H
#define TSR_HOST_KERNELS_QUANT_DOTS_H

#include "host/kernels/quant/x.h"

/* Most tokens of a token group, limited by registers, and rule(n, ...) for each supported n. */
#if defined(TSR_ISA_AMX)
enum { QUANT_GROUP_TOKENS = 1 }; /* few tokens take tiles */
#define FOR_EACH_WALKERS(rule, ...) rule(1, __VA_ARGS__)
#elif defined(TSR_ISA_AVX512)
enum { QUANT_GROUP_TOKENS = 4 };
#define FOR_EACH_WALKERS(rule, ...) rule(1, __VA_ARGS__) rule(2, __VA_ARGS__) rule(4, __VA_ARGS__)
#else
enum { QUANT_GROUP_TOKENS = 2 };
#define FOR_EACH_WALKERS(rule, ...) rule(1, __VA_ARGS__) rule(2, __VA_ARGS__)
#endif

#if defined(TSR_ISA_INT_VEC)

enum { QUANT_GROUP_MAX = 4 }; /* most blocks of a group */

/* The blocks of n tokens that share the reading of weights: the first token's at x, the others `stride`
 * blocks apart. */
typedef struct quant_token_group {
    const x_block *x;
    size_t stride;
    int n; /* a constant of the code */
} quant_token_group;

/* The token group's blocks n_blocks further on. */
ALWAYS_INLINE quant_token_group quant_token_group_at(quant_token_group token_group, int64_t n_blocks)
{
    token_group.x += n_blocks;
    return token_group;
}

/* The block of token t of the group. */
ALWAYS_INLINE const x_block *quant_token_x(quant_token_group token_group, int t)
{
    return token_group.x + (size_t)t * token_group.stride;
}

/* Whether weights are multiplied as columns although their type has parts. */
ALWAYS_INLINE bool quant_by_columns(tsr_type type, const bool bytes)
{
#if defined(TSR_ISA_NEON)
    (void)type, (void)bytes;
    return false; /* adds across lanes in half the instructions */
#else
    return bytes ? quant_has_sub_scales(type) : quant_takes_digits(type);
#endif
}

/* Sums of elements 0 .. 15 and 16 .. 31 of a block. Where the halves need no distinction, `first` may be the
 * sum of all. */
typedef struct quant_halves {
    vec_int first, second;
} quant_halves;

/* The sums of products of both halves of block b with every token's block, a lane per row, times
 * 2^quant_dot_shift(); from parts. */
ALWAYS_INLINE void quant_part_dots(tsr_type type, const quant_group *group, int b,
                                   quant_token_group token_group, quant_halves out[QUANT_GROUP_TOKENS])
{
    vec_int sums[QUANT_GROUP_TOKENS][2][4];
    UNROLL for (int half = 0; half < 2; half++)
    {
        const bool goes_on = half == 1 && !quant_has_sub_scales(type);
        vec_int x_even[QUANT_GROUP_TOKENS], x_odd[QUANT_GROUP_TOKENS];
        UNROLL for (int t = 0; t < token_group.n; t++)
        {
            const int16_t *q = quant_token_x(token_group, t)->q + 8 * half;
            x_even[t] = int_set1_part(q), x_odd[t] = int_set1_part(q + 16);
        }
        UNROLL for (int i = 0; i < 4; i++)
        {
            const quant_pair w = quant_dot_words(type, group, b, 4 * half + i);
            UNROLL for (int t = 0; t < token_group.n; t++)
            {
                vec_int *sum = &sums[t][half][i];
                *sum = goes_on ? int_dot(sums[t][0][i], w.even, x_even[t]) : int_product(w.even, x_even[t]);
                *sum = int_dot(*sum, w.odd, x_odd[t]);
            }
        }
    }
    UNROLL for (int t = 0; t < token_group.n; t++) out[t] =
        quant_has_sub_scales(type) ? (quant_halves){int_sum_parts(sums[t][0]), int_sum_parts(sums[t][1])}
                                   : (quant_halves){int_sum_parts(sums[t][1]), {0}};
}

/* quant_part_dots() from vectors whose lanes are rows. */
ALWAYS_INLINE void quant_column_dots(tsr_type type, const quant_group *group, int b,
                                     quant_token_group token_group, quant_halves out[QUANT_GROUP_TOKENS])
{
    vec_int even[QUANT_GROUP_TOKENS][2], odd[QUANT_GROUP_TOKENS][2]; /* apart, since each sum is a chain */
    UNROLL for (int i = 0; i < 8; i++)
    {
        const quant_pair w = quant_dot_words(type, group, b, i);
        UNROLL for (int t = 0; t < token_group.n; t++)
        {
            const int16_t *q = quant_token_x(token_group, t)->q + 2 * i;
            const vec_int x_even = int_set1(q), x_odd = int_set1(q + 16);
            vec_int *e = &even[t][i / 4], *o = &odd[t][i / 4];
            *e = i % 4 == 0 ? int_product(w.even, x_even) : int_dot(*e, w.even, x_even);
            *o = i % 4 == 0 ? int_product(w.odd, x_odd) : int_dot(*o, w.odd, x_odd);
        }
    }
    UNROLL for (int t = 0; t < token_group.n; t++) out[t] =
        (quant_halves){even[t][0] + odd[t][0], even[t][1] + odd[t][1]};
}

ALWAYS_INLINE void quant_word_dots(tsr_type type, const quant_group *group, int b,
                                   quant_token_group token_group, quant_halves out[QUANT_GROUP_TOKENS])
{
    if (quant_has_parts(type))
        quant_part_dots(type, group, b, token_group, out);
    else
        quant_column_dots(type, group, b, token_group, out);
}

#if defined(TSR_ISA_BYTES)
/* quant_word_dots() where the token group's blocks are bytes. At most two steps go into a sum, so 16 bits
 * hold it; they also hold the sum of 16 products of bytes below 16, at most 30480. */
ALWAYS_INLINE void quant_byte_dots(tsr_type type, const quant_group *group, int b,
                                   quant_token_group token_group, quant_halves out[QUANT_GROUP_TOKENS])
{
    const bool parts = quant_has_parts(type), apart = quant_has_sub_scales(type);
    byte_sum sums[QUANT_GROUP_TOKENS][2][4] = {0};
    UNROLL for (int i = 0; i < 8; i++)
    {
        const vec_bits w = quant_byte_quads(type, group, b, i);
        UNROLL for (int t = 0; t < token_group.n; t++)
        {
            const int8_t *bytes = quant_token_x(token_group, t)->bytes;
            const vec_int xs = parts ? int_set1_part(bytes + i / 4 * 16) : int_set1(bytes + 4 * i);
            byte_sum *sum = &sums[t][apart ? i / 4 : 0][i % 4];
            *sum = byte_dot(*sum, w, xs);
        }
    }
    UNROLL for (int t = 0; t < token_group.n; t++)
    {
        vec_int half_sums[2] = {0};
        if (parts && quant_traits_of(type)->below_16) {
            out[t] = (quant_halves){byte_total(byte_sum_parts(sums[t][0])), {0}};
            continue;
        }
        UNROLL for (int half = 0; half < 1 + apart; half++)
        {
            vec_int totals[4];
            UNROLL for (int i = 0; i < 4; i++) totals[i] = byte_total(sums[t][half][i]);
            half_sums[half] =
                parts ? int_sum_parts(totals) : (totals[0] + totals[1]) + (totals[2] + totals[3]);
        }
        out[t] = (quant_halves){half_sums[0], half_sums[1]};
    }
}
#endif

/* The integer sum of block b of a panel with a token's block x, from the sums of the halves. */
ALWAYS_INLINE vec_int quant_block_dot(tsr_type type, const bool bytes, const quant_panel *panel, int b,
                                      const x_block *x, quant_halves dots)
{
    const int offset = bytes ? quant_byte_offset(type) : quant_offset(type);
    const int shift = bytes ? 0 : quant_dot_shift(type, b);
    if (quant_has_sub_scales(type))
        return (dots.first - offset * x->half[0]) * quant_sub_scale(type, panel, 2 * b) +
               (dots.second - offset * x->half[1]) * quant_sub_scale(type, panel, 2 * b + 1);
    return ((dots.first + dots.second) >> shift) - offset * (x->half[0] + x->half[1]);
}

#if defined(TSR_ISA_BYTES)
/* The sum of a half block, from a column's bytes. With byte activations in `low` alone. */
typedef struct quant_sum {
    byte_sum high, low;
} quant_sum;

/* An empty sum, which starts with minus the contribution of the bytes' offset. */
ALWAYS_INLINE quant_sum quant_sum_begin(tsr_type type, const bool bytes, const x_block *x, int half)
{
    quant_sum sum = {0};
    if (bytes)
        sum.low.v = int_set1(&x->begin[half]);
    else if (quant_offset(type) > 0)
        sum.low.v = int_set1(&x->more[half]);
    return sum;
}

/* Add quad i of a block. */
ALWAYS_INLINE quant_sum quant_sum_add(quant_sum sum, const bool bytes, vec_bits w, const x_block *x, int i)
{
    if (bytes)
        return (quant_sum){sum.high, byte_dot(sum.low, w, int_set1(x->bytes + 4 * i))};
#if defined(TSR_ISA_DIGITS)
    sum.high = byte_dot(sum.high, w, int_set1(x->high + 4 * i));
    sum.low = byte_dot(sum.low, (vec_bits)int_set1(x->low + 4 * i), (vec_int)w);
#endif
    return sum;
}

/* The sum times its sub-scale. */
ALWAYS_INLINE vec_int quant_sum_end(tsr_type type, const bool bytes, const quant_panel *panel, int which,
                                    quant_sum sum)
{
    if (!bytes)
        sum.low.v += (vec_int)((vec_bits)sum.high.v << 8);
    return quant_has_sub_scales(type) ? byte_scaled(sum.low, quant_sub_scale(type, panel, which))
                                      : byte_total(sum.low);
}

/* The integer sums of n blocks from b on of a group of columns. */
ALWAYS_INLINE void quant_column_sums(tsr_type type, const bool bytes, const quant_panel *panel,
                                     const quant_group *group, int b, const int n,
                                     quant_token_group token_group,
                                     vec_int out[QUANT_GROUP_MAX][QUANT_GROUP_TOKENS])
{
    UNROLL for (int half = 0; half < 2; half++)
    {
        quant_sum sums[QUANT_GROUP_MAX][QUANT_GROUP_TOKENS];
        UNROLL for (int k = 0; k < n; k++) UNROLL for (int t = 0; t < token_group.n; t++) sums[k][t] =
            quant_sum_begin(type, bytes, quant_token_x(token_group, t) + k, half);
        UNROLL for (int i = 4 * half; i < 4 * half + 4; i++) UNROLL for (int k = 0; k < n; k++)
        {
            const vec_bits w = quant_byte_quads(type, group, b + k, i);
            UNROLL for (int t = 0; t < token_group.n; t++) sums[k][t] =
                quant_sum_add(sums[k][t], bytes, w, quant_token_x(token_group, t) + k, i);
        }
        UNROLL for (int k = 0; k < n; k++) UNROLL for (int t = 0; t < token_group.n; t++)
        {
            const vec_int sum = quant_sum_end(type, bytes, panel, 2 * (b + k) + half, sums[k][t]);
            out[k][t] = half == 0 ? sum : out[k][t] + sum;
        }
    }
}
#endif

/* Blocks of a group that are multiplied together: the blocks of columns that share bytes, while there are
 * registers for their sums. */
ALWAYS_INLINE int quant_blocks_at_once(tsr_type type, const bool bytes, const int n_walkers)
{
    return quant_by_columns(type, bytes) && n_walkers == 1 ? quant_group_blocks(type) : 1;
}

/* The integer sums of n blocks from b on, quant_blocks_at_once() or one, with each token's blocks; the token
 * group is at block b. `bytes`: its blocks are bytes. */
ALWAYS_INLINE void quant_dots(tsr_type type, const bool bytes, const quant_panel *panel,
                              const quant_group *group, int b, const int n, quant_token_group token_group,
                              vec_int out[QUANT_GROUP_MAX][QUANT_GROUP_TOKENS])
{
    quant_halves halves[QUANT_GROUP_TOKENS];
#if defined(TSR_ISA_BYTES)
    if (quant_by_columns(type, bytes)) {
        quant_column_sums(type, bytes, panel, group, b, n, token_group, out);
        return;
    }
    if (bytes)
        quant_byte_dots(type, group, b, token_group, halves);
    else
        quant_word_dots(type, group, b, token_group, halves);
#else
    (void)n; /* one */
    quant_word_dots(type, group, b, token_group, halves);
#endif
    UNROLL for (int t = 0; t < token_group.n; t++) out[0][t] =
        quant_block_dot(type, bytes, panel, b, quant_token_x(token_group, t), halves[t]);
}

#endif
#endif
