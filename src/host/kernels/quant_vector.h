/* One token of mul_mat with quantized weights: the weights are read once, INT_LANES rows side by side, so
 * memory sets the pace. Lanes are rows. */
#ifndef TSR_HOST_KERNELS_QUANT_VECTOR_H
#define TSR_HOST_KERNELS_QUANT_VECTOR_H

#include "host/kernels/mul_mat_sums.h"
#include "host/kernels/quant_x.h"

enum { QUANT_SEGMENT = QUANT_BLOCKS * X_BLOCK }; /* elements of K at once, of one token and of many */

#if defined(TSR_ISA_INT_VEC)

/* Sums of elements 0 .. 15 and 16 .. 31 of a block; where nothing tells the halves apart, `first` may be that
 * of all. */
typedef struct quant_halves {
    vec_int first, second;
} quant_halves;

/* The sums of products of both halves of block b with a token's block x, a lane per row, times
 * 2^quant_dot_shift(); from parts. */
ALWAYS_INLINE quant_halves quant_part_dots(tsr_type type, const quant_group *group, int b, const x_block *x)
{
    vec_int sums[2][4];
    UNROLL for (int half = 0; half < 2; half++)
    {
        const vec_int x_even = int_set1_part(x->q + 8 * half), x_odd = int_set1_part(x->q + 16 + 8 * half);
        const bool goes_on = half == 1 && !quant_has_sub_scales(type);
        UNROLL for (int i = 0; i < 4; i++)
        {
            const quant_pair w = quant_dot_words(type, group, b, 4 * half + i);
            sums[half][i] = goes_on ? int_dot(sums[0][i], w.even, x_even) : int_product(w.even, x_even);
            sums[half][i] = int_dot(sums[half][i], w.odd, x_odd);
        }
    }
    if (quant_has_sub_scales(type))
        return (quant_halves){int_sum_parts(sums[0]), int_sum_parts(sums[1])};
    return (quant_halves){int_sum_parts(sums[1]), {0}};
}

/* The same from vectors whose lanes are rows. */
ALWAYS_INLINE quant_halves quant_column_dots(tsr_type type, const quant_group *group, int b, const x_block *x)
{
    vec_int even[2], odd[2]; /* apart, since each sum is a chain */
    UNROLL for (int i = 0; i < 8; i++)
    {
        const quant_pair w = quant_dot_words(type, group, b, i);
        const vec_int x_even = int_set1(x->q + 2 * i), x_odd = int_set1(x->q + 16 + 2 * i);
        even[i / 4] = i % 4 == 0 ? int_product(w.even, x_even) : int_dot(even[i / 4], w.even, x_even);
        odd[i / 4] = i % 4 == 0 ? int_product(w.odd, x_odd) : int_dot(odd[i / 4], w.odd, x_odd);
    }
    return (quant_halves){even[0] + odd[0], even[1] + odd[1]};
}

#if defined(TSR_ISA_BYTES)
/* Both, where the token's block is bytes. At most two steps go into a sum, so 16 bits hold it. */
ALWAYS_INLINE quant_halves quant_byte_dots(tsr_type type, const quant_group *group, int b, const x_block *x)
{
    const bool parts = quant_has_parts(type), apart = quant_has_sub_scales(type);
    byte_sum sums[2][4] = {0};
    vec_int half_sums[2] = {0};
    UNROLL for (int i = 0; i < 8; i++)
    {
        const vec_int xs = parts ? int_set1_part(x->bytes + i / 4 * 16) : int_set1(x->bytes + 4 * i);
        byte_sum *sum = &sums[apart ? i / 4 : 0][i % 4];
        *sum = byte_dot(*sum, quant_unsigned(type, group, b, i), xs);
    }
    UNROLL for (int half = 0; half < 1 + apart; half++)
    {
        vec_int totals[4];
        UNROLL for (int i = 0; i < 4; i++) totals[i] = byte_total(sums[half][i]);
        half_sums[half] = parts ? int_sum_parts(totals) : (totals[0] + totals[1]) + (totals[2] + totals[3]);
    }
    return (quant_halves){half_sums[0], half_sums[1]};
}
#endif

ALWAYS_INLINE quant_halves quant_half_dots(tsr_type type, const bool bytes, const quant_group *group, int b,
                                           const x_block *x)
{
#if defined(TSR_ISA_BYTES)
    if (bytes)
        return quant_byte_dots(type, group, b, x);
#else
    (void)bytes;
#endif
    return quant_has_parts(type) ? quant_part_dots(type, group, b, x) : quant_column_dots(type, group, b, x);
}

/* The integer sums of block b of a panel with a token's block x, a lane per row. `bytes`: which x has. */
ALWAYS_INLINE vec_int quant_block_dots(tsr_type type, const bool bytes, const quant_panel *panel,
                                       const quant_group *group, int b, const x_block *x)
{
    const int offset = bytes ? quant_unsigned_offset(type) : quant_offset(type);
    const int shift = bytes ? 0 : quant_dot_shift(type, b);
    const quant_halves dots = quant_half_dots(type, bytes, group, b, x);
    if (quant_has_sub_scales(type))
        return (dots.first - offset * x->half[0]) * quant_sub_scale(type, panel, 2 * b) +
               (dots.second - offset * x->half[1]) * quant_sub_scale(type, panel, 2 * b + 1);
    return ((dots.first + dots.second) >> shift) - offset * (x->half[0] + x->half[1]);
}

/* Add the products of block b to a lane per row. */
ALWAYS_INLINE vec quant_vector_block(tsr_type type, const bool bytes, const quant_panel *panel,
                                     const quant_group *group, int b, const x_block *x, vec acc)
{
    const vec dots = int_to_float(quant_block_dots(type, bytes, panel, group, b, x)) * vec_set1(x->scale);
    acc = vec_fma(dots, quant_scale(type, panel, b), acc);
    UNROLL for (int half = 0; half < quant_minima(type); half++) acc =
        vec_fma(vec_set1(quant_x_sum(x, quant_minima(type), half)), -quant_min(type, panel, b, half), acc);
    return acc;
}

/* Whether asking again (panel_again()) pays, as measured: not with blocks that stand alone, whose kernels
 * then lose as much as they gain, nor with vectors that are no faster than memory. */
ALWAYS_INLINE bool quant_asks_again(tsr_type type)
{
#if defined(TSR_ISA_AVX512)
    return is_super_block(type);
#else
    (void)type;
    return false;
#endif
}

ALWAYS_INLINE void quant_ask_as(const tsr_cpu_reading reading, const unsigned char *at, const size_t bytes)
{
    __asm__("" : "+r"(at)); /* one register: gcc would compute every line's address before the branch */
    UNROLL for (size_t line = 0; line < bytes; line += 64) panel_ask(reading, at + line);
}

/* One branch for all of them. */
ALWAYS_INLINE void quant_ask_lines(tsr_cpu_reading reading, const unsigned char *at, const size_t bytes)
{
    if (reading == TSR_CPU_ONE_STREAM_L2)
        quant_ask_as(TSR_CPU_ONE_STREAM_L2, at, bytes);
    else
        quant_ask_as(TSR_CPU_ONE_STREAM, at, bytes);
}

/* Ask for as much as a block of this panel has. The rows of a panel, side by side, would be too many streams
 * in too few pages for a processor to see where they go. */
ALWAYS_INLINE void quant_ask(tsr_type type, panel_ahead *ahead)
{
    const size_t bytes = INT_LANES * elems_bytes(type, QUANT_SEGMENT) / QUANT_BLOCKS;
    const unsigned char *at = panel_ahead_step(ahead, bytes);
    quant_ask_lines(ahead->reading, at, bytes);
    if (quant_asks_again(type) && ahead->again > 0)
        quant_ask_lines(ahead->reading, at - ahead->again, bytes);
}

/* Add the products of the group that begins with block b. */
ALWAYS_INLINE vec quant_vector_group(tsr_type type, const bool bytes, const int_rows *rows,
                                     const quant_panel *panel, int b, const x_block *x, panel_ahead *ahead,
                                     vec acc)
{
    quant_group group;
    quant_group_parts(type, rows, panel, b, &group);
    UNROLL for (int i = 0; i < quant_group_blocks(type); i++)
    {
        quant_ask(type, ahead);
        acc = quant_vector_block(type, bytes, panel, &group, b + i, x + b + i, acc);
    }
    return acc;
}

#if defined(TSR_ISA_AVX512)
/* Add the products of blocks b and b + 1. */
ALWAYS_INLINE vec quant_vector_pair(tsr_type type, const bool bytes, const int_rows *rows, quant_panel *panel,
                                    int b, const x_block *x, panel_ahead *ahead, vec acc)
{
    quant_group pair[2];
    quant_pair_load(type, rows, b, panel, pair);
    UNROLL for (int i = 0; i < 2; i++)
    {
        quant_ask(type, ahead);
        acc = quant_vector_block(type, bytes, panel, &pair[i], b + i, x + b + i, acc);
    }
    return acc;
}
#endif

/* Add the products of one panel: a super-block, unrolled so that its shifts are by constants. */
ALWAYS_INLINE vec quant_vector_super(tsr_type type, const bool bytes, const int_rows *rows, const x_block *x,
                                     panel_ahead *ahead, vec acc)
{
    quant_panel panel;
    quant_header_load(type, rows, 0, &panel);
    UNROLL for (int b = 0; b < QUANT_BLOCKS; b += quant_group_blocks(type)) acc =
        quant_vector_group(type, bytes, rows, &panel, b, x, ahead, acc);
    return acc;
}

/* The same for blocks that stand alone. */
ALWAYS_INLINE vec quant_vector_blocks(tsr_type type, const bool bytes, const int_rows *rows, int n_blocks,
                                      const x_block *x, panel_ahead *ahead, vec acc)
{
    quant_panel panel;
    int b = 0;
#if defined(TSR_ISA_AVX512)
    if (quant_loads_pairs(type))
        for (; b + 1 < n_blocks; b += 2)
            acc = quant_vector_pair(type, bytes, rows, &panel, b, x, ahead, acc);
#endif
    if (b < n_blocks)
        quant_header_load(type, rows, b, &panel);
    for (; b < n_blocks; b++) {
        if (b + 1 < n_blocks)
            quant_header_load(type, rows, b + 1, &panel);
        acc = quant_vector_group(type, bytes, rows, &panel, b, x, ahead, acc);
    }
    return acc;
}

ALWAYS_INLINE vec quant_vector_panel(tsr_type type, const bool bytes, const int_rows *rows, int n_blocks,
                                     const x_block *x, panel_ahead *ahead, vec acc)
{
    if (is_super_block(type))
        return quant_vector_super(type, bytes, rows, x, ahead, acc);
    return quant_vector_blocks(type, bytes, rows, n_blocks, x, ahead, acc);
}

ALWAYS_INLINE void quant_vector_rows(tsr_type type, const bool bytes, const product *p, int64_t row,
                                     const x_block *x)
{
    const int n_rows = p->row_end - row < INT_LANES ? (int)(p->row_end - row) : INT_LANES;
    panel_ahead ahead = panel_ahead_of(p, type, INT_LANES, row);
    k_segment segment = segment_first(p->op, QUANT_SEGMENT);
    quant_edge edge;
    vec acc = {0};
    do {
        const int_rows rows = quant_rows(product_w(p, type, row, segment.begin), p->op->w_stride, n_rows,
                                         elems_bytes(type, segment.n), &edge);
        if (segment.opens)
            acc = (vec){0};
        acc = quant_vector_panel(type, bytes, &rows, (int)(segment.n / X_BLOCK), x + segment.begin / X_BLOCK,
                                 &ahead, acc);
        if (segment.closes) {
            float sums[INT_LANES];
            vec_store(sums, acc);
            fold_granule(p, &segment, p->token, row, n_rows, sums);
        }
    } while (segment_next(p->op, &segment));
}

ALWAYS_INLINE void quant_vector_type(tsr_type type, const bool bytes, const product *p, const x_block *x)
{
    for (int64_t row = p->row; row < p->row_end; row += INT_LANES)
        quant_vector_rows(type, bytes, p, row, x);
}

/* Whether the eight rows of AVX2's vectors multiply sooner than sixteen, with the same bits. Q8_0 needs
 * memory more than arithmetic, and Zen 5 reads eight a tenth faster than sixteen; not so Zen 4, which asks
 * for them in its second-level cache. Other types take so many instructions that longer vectors win. */
ALWAYS_INLINE bool quant_vector_is_short(const product *p)
{
#if defined(TSR_ISA_AVX512)
    return p->env->reading == TSR_CPU_ONE_STREAM && p->op->type == TSR_TYPE_Q8_0;
#else
    (void)p;
    return false;
#endif
}

/* What AVX2's kernels do for it: one token whose blocks, of words, are x. */
void tsr_kernel_avx2_q8_0_vector(const product *p, const x_block *x);
#if defined(TSR_ISA_AVX2) && !defined(TSR_ISA_VNNI)
void tsr_kernel_avx2_q8_0_vector(const product *p, const x_block *x)
{
    quant_vector_type(TSR_TYPE_Q8_0, false, p, x);
}
#endif

/* Encode the op's tokens for quant_vector(), one after the other. */
static void quant_vector_encode(const product *p, x_block *x)
{
    const bool bytes = quant_multiplies_bytes(p->op) && !quant_vector_is_short(p);
    for (int64_t t = 0; t < p->op->n_tokens; t++)
        quant_x_encode(p->op, product_x(p, t), p->op->k, bytes, x + t * (p->op->k / X_BLOCK));
}

/* The product's one token, whose blocks are x. */
static void quant_vector(const product *p, const x_block *x)
{
#if defined(TSR_ISA_AVX512)
    if (quant_vector_is_short(p)) {
        tsr_kernel_avx2_q8_0_vector(p, x);
        return;
    }
#endif
    switch (p->op->type) {
#define VECTOR_CASE(constant, rules)                  \
    case constant:                                    \
        if (quant_multiplies_bytes(p->op))            \
            quant_vector_type(constant, true, p, x);  \
        else                                          \
            quant_vector_type(constant, false, p, x); \
        break;
        FOR_EACH_QUANT_TYPE(VECTOR_CASE)
#undef VECTOR_CASE
    default:
        break;
    }
}

#endif
#endif
