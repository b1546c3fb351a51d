/* Quantized weights as integers with scales, for products with activations that are integers, too
 * (x_blocks.h).
 *
 * Every type is seen in blocks of 32 elements: w[i] = scale * q[i] - min, with q an integer that 16 bits
 * hold and scale and min one f32 each per block. Where a block has two sub-scales (Q6_K, Q3_K, Q2_K), they
 * are part of q. Where a block has two minima (Q2_K), each belongs to a half.
 *
 * A panel is up to QUANT_BLOCKS blocks of INT_LANES rows: one super-block of a K type. A group is the
 * blocks of a panel that share bytes. quant_group_load() brings a group's bytes into vectors whose lanes
 * are rows, and quant_words() extracts a block's integers from these vectors, four elements at a time.
 * quant_group_parts() leaves the bytes in parts (int_vec.h). A rule that treats all elements of a half
 * block alike works on parts, too: vectors 4 h .. 4 h + 3 of its result are half h, with four rows each.
 *
 * To add a type: its rules, functions that begin with its name and a quant_traits, in types_block.h (blocks
 * of 32), types_k.h (super-blocks), types_table.h (looked up) or types_code.h (unpacked), and its name in
 * the lists here. All functions take the type as a constant and are inlined, so the switches vanish. */
#ifndef TSR_HOST_KERNELS_QUANT_TYPES_H
#define TSR_HOST_KERNELS_QUANT_TYPES_H

#include "host/kernels/quant/types_block.h"
#include "host/kernels/quant/types_code.h"
#include "host/kernels/quant/types_k.h"
#include "host/kernels/quant/types_table.h"

/* Call rule(type, name), where the type's rules begin with the name, for every quantized type; for those with
 * sub-scales; for those with minima. */
#define FOR_EACH_QUANT_TYPE(rule)                                                                           \
    rule(TSR_TYPE_Q8_0, q8_0) rule(TSR_TYPE_Q4_0, q4_0) rule(TSR_TYPE_Q4_K, q4_k) rule(TSR_TYPE_Q5_K, q5_k) \
        rule(TSR_TYPE_Q6_K, q6_k) rule(TSR_TYPE_Q4_1, q4_1) rule(TSR_TYPE_Q5_0, q5_0)                       \
            rule(TSR_TYPE_Q5_1, q5_1) rule(TSR_TYPE_Q2_K, q2_k) rule(TSR_TYPE_Q3_K, q3_k)                   \
                rule(TSR_TYPE_IQ4_NL, iq4_nl) rule(TSR_TYPE_IQ4_XS, iq4_xs) rule(TSR_TYPE_MXFP4, mxfp4)     \
                    rule(QUANT_CODE, code)
#define FOR_EACH_QUANT_TYPE_SUB(rule) \
    rule(TSR_TYPE_Q6_K, q6_k) rule(TSR_TYPE_Q2_K, q2_k) rule(TSR_TYPE_Q3_K, q3_k) rule(QUANT_CODE, code)
#define FOR_EACH_QUANT_TYPE_MIN(rule)                                                                       \
    rule(TSR_TYPE_Q4_K, q4_k) rule(TSR_TYPE_Q5_K, q5_k) rule(TSR_TYPE_Q4_1, q4_1) rule(TSR_TYPE_Q5_1, q5_1) \
        rule(TSR_TYPE_Q2_K, q2_k)

ALWAYS_INLINE const quant_traits *quant_traits_of(tsr_type type)
{
    switch (quant_kernels(type)) {
#define RULE(type, name) \
    case type:           \
        return &name##_traits;
        FOR_EACH_QUANT_TYPE(RULE)
#undef RULE
    default:
        return &q8_0_traits; /* unreachable */
    }
}

ALWAYS_INLINE int quant_group_blocks(tsr_type type)
{
    return quant_traits_of(type)->group_blocks;
}

/* Minima per block: 0, 1, or 2 (one per half). */
ALWAYS_INLINE int quant_minima(tsr_type type)
{
    return quant_traits_of(type)->minima;
}

/* The factor of minimum number `half` of `minima`: the sum of the activations that the minimum applies to. */
ALWAYS_INLINE float quant_x_sum(const x_block *x, int minima, int half)
{
    return minima == 2 ? x->scale * (float)x->half[half] : x->sum;
}

/* Two scales per block, one per half. */
ALWAYS_INLINE bool quant_has_sub_scales(tsr_type type)
{
    return quant_traits_of(type)->sub_scales;
}

/* Largest magnitude of an activation's integer, such that 32 products stay below 2^31. */
ALWAYS_INLINE int quant_x_limit(tsr_type type)
{
    return quant_traits_of(type)->x_limit;
}

/* Added to q by quant_words(); subtracted from sums, which is cheaper. */
ALWAYS_INLINE int quant_offset(tsr_type type)
{
    return quant_traits_of(type)->offset;
}

/* Block b of the panel at p. */
ALWAYS_INLINE void quant_expand(tsr_type type, const unsigned char *p, int b, quant_block *out)
{
    out->min[0] = out->min[1] = 0.0f;
    switch (quant_kernels(type)) {
#define RULE(constant, name)            \
    case constant:                      \
        name##_expand(type, p, b, out); \
        break;
        FOR_EACH_QUANT_TYPE(RULE)
#undef RULE
    default:
        break;
    }
}

/* Whether quant_group_parts() can be used. */
ALWAYS_INLINE bool quant_has_parts(tsr_type type)
{
    return quant_traits_of(type)->parts > 0;
}

#if defined(TSR_ISA_INT_VEC)

/* Load the header of block b of the panel at `rows`: all but the quants. Of a super-block: of all its blocks
 * (b = 0). */
ALWAYS_INLINE void quant_header_load(tsr_type type, const int_rows *rows, int b, quant_panel *panel)
{
    switch (type) {
#define RULE(type, name)                    \
    case type:                              \
        name##_header_load(rows, b, panel); \
        break;
        FOR_EACH_QUANT_TYPE(RULE)
#undef RULE
    default:
        break;
    }
}

#if defined(TSR_ISA_AVX512)
/* Whether quant_pair_load() loads blocks b and b + 1 of a panel, headers included, in less time than two
 * single loads. Not with shorter vectors: joining the parts costs more than the pair saves. */
ALWAYS_INLINE bool quant_loads_pairs(tsr_type type)
{
    return quant_traits_of(type)->pair_header > 0;
}

ALWAYS_INLINE void quant_pair_load(tsr_type type, const int_rows *rows, int b, quant_panel *panel,
                                   quant_group pair[2])
{
    block_pair_load(rows, b, quant_traits_of(type)->pair_header, panel, pair);
}
#endif

/* Load the group that begins with block b of a panel, in parts where the type can use them. */
ALWAYS_INLINE void quant_group_parts(tsr_type type, const int_rows *rows, const quant_panel *panel, int b,
                                     quant_group *group)
{
    switch (type) {
#define RULE(type, name)                          \
    case type:                                    \
        name##_group_load(rows, panel, b, group); \
        break;
        FOR_EACH_QUANT_TYPE(RULE)
#undef RULE
    default:
        break;
    }
}

/* Load the group that begins with block b of a panel, with lanes that are rows. */
ALWAYS_INLINE void quant_group_load(tsr_type type, const int_rows *rows, const quant_panel *panel, int b,
                                    quant_group *group)
{
    quant_group_parts(type, rows, panel, b, group);
    UNROLL for (int i = 0; i < quant_traits_of(type)->parts; i++) int_transpose(group->bytes + 4 * i);
}

/* Elements 4 i .. 4 i + 3 (i < 8) of block b of a panel, from its group, as bytes; from parts, half i / 4 of
 * four rows. quant_offset() is included, sub-scales are not. */
ALWAYS_INLINE vec_bits quant_quads(tsr_type type, const quant_group *group, int b, int i)
{
    switch (type) {
#define RULE(type, name) \
    case type:           \
        return name##_quads(group, b, i);
        FOR_EACH_QUANT_TYPE(RULE)
#undef RULE
    default:
        return (vec_bits){0};
    }
}

/* quant_quads() as byte_dot() takes them, and quant_byte_offset(): their distance from q. */
#if defined(TSR_ISA_DOTPROD)
/* Signed bytes: an offset of 128 flips the sign bit, a smaller offset leaves it alone. */
ALWAYS_INLINE vec_bits quant_byte_quads(tsr_type type, const quant_group *group, int b, int i)
{
    return quant_quads(type, group, b, i) ^ (quant_offset(type) == 128 ? 0x80808080 : 0);
}

ALWAYS_INLINE int quant_byte_offset(tsr_type type)
{
    return quant_offset(type) % 128;
}
#else
/* Unsigned bytes. */
ALWAYS_INLINE vec_bits quant_byte_quads(tsr_type type, const quant_group *group, int b, int i)
{
    return quant_quads(type, group, b, i) ^ (quant_traits_of(type)->is_signed ? 0x80808080 : 0);
}

ALWAYS_INLINE int quant_byte_offset(tsr_type type)
{
    return quant_traits_of(type)->is_signed ? 128 : quant_offset(type);
}
#endif

/* quant_quads() as words: the even elements, the odd elements. */
ALWAYS_INLINE quant_pair quant_words(tsr_type type, const quant_group *group, int b, int i)
{
    const vec_bits bytes = quant_quads(type, group, b, i);
    return quant_traits_of(type)->is_signed ? quant_split_i8(bytes) : quant_split_u8(bytes);
}

/* The shift by which quant_dot_words() and the sums of their products are too large. The sums are below 2^31,
 * at most 32 * 15 * 16 * X_LIMIT. */
ALWAYS_INLINE int quant_dot_shift(tsr_type type, int b)
{
    return quant_traits_of(type)->by_nibbles ? b % 2 * 4 : 0;
}

/* quant_words() times 2^quant_dot_shift(), where only the sum is needed: one shift of the sum replaces a
 * shift of every vector. */
ALWAYS_INLINE quant_pair quant_dot_words(tsr_type type, const quant_group *group, int b, int i)
{
    if (!quant_traits_of(type)->by_nibbles)
        return quant_words(type, group, b, i);
    const vec_word bytes = (vec_word)quant_bytes(group, i);
    const vec_bits even = (vec_bits)bytes, odd = (vec_bits)(bytes >> 8);
    const uint32_t nibble = UINT32_C(0x000f000f) << quant_dot_shift(type, b);
    return (quant_pair){(vec_int)(even & nibble), (vec_int)(odd & nibble)};
}

/* Sub-scale `which` (0 .. 15) of each row. */
ALWAYS_INLINE vec_int quant_sub_scale(tsr_type type, const quant_panel *panel, int which)
{
    switch (type) {
#define RULE(type, name) \
    case type:           \
        return name##_sub_scale(panel, which);
        FOR_EACH_QUANT_TYPE_SUB(RULE)
#undef RULE
    default:
        return (vec_int){0};
    }
}

/* quant_words() as the formula needs them: with sub-scales, without the offset. Magnitudes are less than
 * 2^15. */
ALWAYS_INLINE quant_pair quant_quants(tsr_type type, const quant_panel *panel, const quant_group *group,
                                      int b, int i)
{
    const quant_pair words = quant_words(type, group, b, i);
    vec_short even = (vec_short)words.even - (short)quant_offset(type);
    vec_short odd = (vec_short)words.odd - (short)quant_offset(type);
    if (quant_has_sub_scales(type)) {
        const vec_bits sub = (vec_bits)quant_sub_scale(type, panel, 2 * b + i / 4) & 0xffff;
        even *= (vec_short)(sub | sub << 16);
        odd *= (vec_short)(sub | sub << 16);
    }
    return (quant_pair){(vec_int)even, (vec_int)odd};
}

/* The scale of block b of each row. */
ALWAYS_INLINE vec quant_scale(tsr_type type, const quant_panel *panel, int b)
{
    switch (type) {
#define RULE(type, name) \
    case type:           \
        return name##_scale(panel, b);
        FOR_EACH_QUANT_TYPE(RULE)
#undef RULE
    default:
        return (vec){0};
    }
}

/* Minimum number `half` of block b of each row. */
ALWAYS_INLINE vec quant_min(tsr_type type, const quant_panel *panel, int b, int half)
{
    switch (type) {
#define RULE(type, name) \
    case type:           \
        return name##_min(panel, b, half);
        FOR_EACH_QUANT_TYPE_MIN(RULE)
#undef RULE
    default:
        return (vec){0};
    }
}

#endif
#endif
