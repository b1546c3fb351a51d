/* The types whose super-blocks are unpacked to bytes before they are multiplied: those with code books
 * (IQ1, IQ2, IQ3) and of three values (TQ1_0, TQ2_0). Looking up an entry takes more time than multiplying
 * it, so unpacked super-blocks share kernels (types_code.h), whatever their type.
 *
 * An unpacked weight is scale * sub * q: one f32 scale per super-block, an integer sub-scale per 16
 * elements, at most 31, and q in -62 .. 62. */
#ifndef TSR_HOST_KERNELS_QUANT_CODES_H
#define TSR_HOST_KERNELS_QUANT_CODES_H

#include <stddef.h>

#include <tsr/types.h>

#include "core/quant/quant.h"
#include "host/kernels/quant/group_bytes.h"
#include "host/kernels/vec/vec.h"

#define FOR_EACH_CODE_TYPE(macro)                                                                \
    macro(TSR_TYPE_IQ2_XXS) macro(TSR_TYPE_IQ2_XS) macro(TSR_TYPE_IQ2_S) macro(TSR_TYPE_IQ3_XXS) \
        macro(TSR_TYPE_IQ3_S) macro(TSR_TYPE_IQ1_S) macro(TSR_TYPE_IQ1_M) macro(TSR_TYPE_TQ1_0)  \
            macro(TSR_TYPE_TQ2_0)

ALWAYS_INLINE bool is_code(tsr_type type)
{
    switch (type) {
#define CODE_CASE(constant) case constant:
        FOR_EACH_CODE_TYPE(CODE_CASE)
#undef CODE_CASE
        return true;
    default:
        return false;
    }
}

enum { CODE_OFFSET = 64 }; /* added to q in unpacked bytes */

typedef uint64_t code_entries __attribute__((vector_size(32)));

/* The quants of 32 elements, and the numbers s of the sub-scales 2 s + 1 of their halves. */
typedef struct code_group {
    byte32 q;
    unsigned scale[2];
} code_group;

ALWAYS_INLINE uint16_t code_load_16(const unsigned char *p)
{
    uint16_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

ALWAYS_INLINE uint32_t code_load_32(const unsigned char *p)
{
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* Four bytes of signs from four indices of 7 bits: tsr_quant_even_signs(). */
ALWAYS_INLINE uint32_t code_even_signs(uint32_t index)
{
    uint32_t odd = index ^ index >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return index | (odd & 0x01010101) << 7;
}

/* Entries with signs. */
ALWAYS_INLINE byte32 code_signed(code_entries entries, uint32_t signs)
{
    const byte32 minus = spread_bits((const unsigned char *)&signs, 0xff);
    return ((byte32)entries ^ minus) - minus;
}

/* Four numbers of 7 bits, next to each other in the low bits, as bytes. */
ALWAYS_INLINE uint32_t code_sevens(uint32_t word)
{
    return (word & 0x7f) | (word << 1 & 0x7f00) | (word << 2 & 0x7f0000) | (word << 3 & 0x7f000000);
}

ALWAYS_INLINE code_group code_iq2_xxs(const unsigned char *p, int s)
{
    const unsigned char *q = p + offsetof(tsr_block_iq2_xxs, q) + 8 * s;
    const uint64_t *grid = tsr_quant_grid_iq2_xxs;
    const uint32_t word = code_load_32(q + 4);
    const code_entries entries = {grid[q[0]], grid[q[1]], grid[q[2]], grid[q[3]]};
    return (code_group){code_signed(entries, code_even_signs(code_sevens(word))), {word >> 28, word >> 28}};
}

ALWAYS_INLINE code_group code_iq2_xs(const unsigned char *p, int s)
{
    const unsigned scales = p[offsetof(tsr_block_iq2_xs, scales) + s];
    const uint64_t *grid = tsr_quant_grid_iq2_xs;
    uint64_t four;
    memcpy(&four, p + offsetof(tsr_block_iq2_xs, q) + 8 * s, sizeof four);
    const code_entries entries = {grid[four & 511], grid[four >> 16 & 511], grid[four >> 32 & 511],
                                  grid[four >> 48 & 511]};
    const uint64_t signs =
        (four >> 9 & 0x7f) | (four >> 17 & 0x7f00) | (four >> 25 & 0x7f0000) | (four >> 33 & 0x7f000000);
    return (code_group){code_signed(entries, code_even_signs((uint32_t)signs)), {scales & 15, scales >> 4}};
}

ALWAYS_INLINE code_group code_iq2_s(const unsigned char *p, int s)
{
    const unsigned char *q = p + offsetof(tsr_block_iq2_s, q) + 4 * s;
    const unsigned high = p[offsetof(tsr_block_iq2_s, high) + s];
    const unsigned scales = p[offsetof(tsr_block_iq2_s, scales) + s];
    const uint64_t *grid = tsr_quant_grid_iq2_s;
    const code_entries entries = {grid[q[0] | (high << 8 & 0x300)], grid[q[1] | (high << 6 & 0x300)],
                                  grid[q[2] | (high << 4 & 0x300)], grid[q[3] | (high << 2 & 0x300)]};
    const uint32_t signs = code_load_32(p + offsetof(tsr_block_iq2_s, signs) + 4 * s);
    return (code_group){code_signed(entries, signs), {scales & 15, scales >> 4}};
}

/* Eight entries of four elements, of which `high` has bit 8 of the indices. */
ALWAYS_INLINE code_entries code_fours(const uint32_t *grid, const unsigned char *q, unsigned high)
{
    uint64_t pair[4];
    UNROLL for (unsigned i = 0; i < 4; i++)
    {
        const unsigned first = q[2 * i] | (high << (8 - 2 * i) & 0x100);
        const unsigned second = q[2 * i + 1] | (high << (7 - 2 * i) & 0x100);
        pair[i] = grid[first] | (uint64_t)grid[second] << 32;
    }
    return (code_entries){pair[0], pair[1], pair[2], pair[3]};
}

ALWAYS_INLINE code_group code_iq3_xxs(const unsigned char *p, int s)
{
    const uint32_t word = code_load_32(p + offsetof(tsr_block_iq3_xxs, words) + 4 * s);
    const unsigned char *q = p + offsetof(tsr_block_iq3_xxs, q) + 8 * s;
    const code_entries entries = code_fours(tsr_quant_grid_iq3_xxs, q, 0);
    return (code_group){code_signed(entries, code_even_signs(code_sevens(word))), {word >> 28, word >> 28}};
}

ALWAYS_INLINE code_group code_iq3_s(const unsigned char *p, int s)
{
    const unsigned char *q = p + offsetof(tsr_block_iq3_s, q) + 8 * s;
    const unsigned scale = p[offsetof(tsr_block_iq3_s, scales) + s / 2] >> s % 2 * 4 & 15;
    const uint32_t signs = code_load_32(p + offsetof(tsr_block_iq3_s, signs) + 4 * s);
    const code_entries entries = code_fours(tsr_quant_grid_iq3_s, q, p[offsetof(tsr_block_iq3_s, high) + s]);
    return (code_group){code_signed(entries, signs), {scale, scale}};
}

/* Four entries of IQ1; bits 0 .. 2, 4 .. 6, 8 .. 10 and 12 .. 14 of `high` are the upper bits of their
 * indices. */
ALWAYS_INLINE code_entries code_iq1(const unsigned char *q, unsigned high)
{
    const uint64_t *grid = tsr_quant_grid_iq1;
    return (code_entries){grid[q[0] | (high << 8 & 0x700)], grid[q[1] | (high << 4 & 0x700)],
                          grid[q[2] | (high & 0x700)], grid[q[3] | (high >> 4 & 0x700)]};
}

ALWAYS_INLINE code_group code_iq1_s(const unsigned char *p, int s)
{
    const unsigned high = code_load_16(p + offsetof(tsr_block_iq1_s, high) + 2 * s), scale = high >> 12 & 7;
    const unsigned apart = (high & 7) | (high << 1 & 0x70) | (high << 2 & 0x700) | (high << 3 & 0x7000);
    const byte32 entries = (byte32)code_iq1(p + offsetof(tsr_block_iq1_s, q) + 4 * s, apart);
    return (code_group){entries + (uint8_t)(high >> 15 ? -1 : 1), {scale, scale}};
}

ALWAYS_INLINE code_group code_iq1_m(const unsigned char *p, int s)
{
    const unsigned high = code_load_16(p + offsetof(tsr_block_iq1_m, high) + 2 * s);
    const unsigned scales =
        (unsigned)code_load_16(p + offsetof(tsr_block_iq1_m, scales) + s / 2 * 2) >> s % 2 * 6;
    const byte32 entries = (byte32)code_iq1(p + offsetof(tsr_block_iq1_m, q) + 4 * s, high);
    code_entries deltas; /* 1, or -1 where the nibble's highest bit is set */
    UNROLL for (int g = 0; g < 4; g++) deltas[g] =
        high >> (4 * g + 3) & 1 ? 0xffffffffffffffffu : 0x0101010101010101u;
    return (code_group){entries + (byte32)deltas, {scales & 7, scales >> 3 & 7}};
}

/* Digits of base three: the upper byte of three times each byte, minus 1. A comparison is -1 where it
 * holds. */
ALWAYS_INLINE byte32 code_digits(byte32 bytes)
{
    return (byte32){0} - 1 - (byte32)(bytes >= 86) - (byte32)(bytes >= 171);
}

ALWAYS_INLINE code_group code_tq1_0(const unsigned char *p, int s)
{
    const uint8_t power[5] = {1, 3, 9, 27, 81};
    byte32 bytes;
    if (s < 5) {
        bytes = byte32_load(p) * power[s];
    } else if (s < 7) {
        const byte16 q = byte16_load(p + 32);
        bytes = byte32_join(q * power[2 * (s - 5)], q * power[2 * (s - 5) + 1]);
    } else {
        const uint32_t four = code_load_32(p + offsetof(tsr_block_tq1_0, last));
        const uint32_t copies[4] = {four, four, four, four};
        const byte16 powers = {1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27};
        bytes = byte32_join(byte16_load(p + 32) * power[4], byte16_load(copies) * powers);
    }
    return (code_group){code_digits(bytes), {0, 0}};
}

ALWAYS_INLINE code_group code_tq2_0(const unsigned char *p, int s)
{
    const byte32 bytes = byte32_load(p + 32 * (s / 4));
    return (code_group){byte32_bits(bytes, -2 * (s % 4), 0x03) - 1, {0, 0}};
}

/* Group s (0 .. 7) of the super-block at p. */
ALWAYS_INLINE code_group code_group_of(tsr_type type, const unsigned char *p, int s)
{
    switch (type) {
    case TSR_TYPE_IQ2_XXS:
        return code_iq2_xxs(p, s);
    case TSR_TYPE_IQ2_XS:
        return code_iq2_xs(p, s);
    case TSR_TYPE_IQ2_S:
        return code_iq2_s(p, s);
    case TSR_TYPE_IQ3_XXS:
        return code_iq3_xxs(p, s);
    case TSR_TYPE_IQ3_S:
        return code_iq3_s(p, s);
    case TSR_TYPE_IQ1_S:
        return code_iq1_s(p, s);
    case TSR_TYPE_IQ1_M:
        return code_iq1_m(p, s);
    case TSR_TYPE_TQ1_0:
        return code_tq1_0(p, s);
    default:
        return code_tq2_0(p, s);
    }
}

/* The scale of the super-block at p. */
ALWAYS_INLINE float code_scale_at(tsr_type type, const unsigned char *p)
{
    switch (type) {
    case TSR_TYPE_IQ3_XXS:
        return tsr_f16_to_f32(code_load_16(p)) * 0.25f;
    case TSR_TYPE_IQ3_S:
        return tsr_f16_to_f32(code_load_16(p));
    case TSR_TYPE_IQ1_M: {
        tsr_block_iq1_m block;
        memcpy(&block, p, sizeof block);
        return tsr_f16_to_f32(tsr_quant_iq1_m_d(&block)) * 0.125f;
    }
    case TSR_TYPE_TQ1_0:
        return tsr_f16_to_f32(code_load_16(p + offsetof(tsr_block_tq1_0, d)));
    case TSR_TYPE_TQ2_0:
        return tsr_f16_to_f32(code_load_16(p + offsetof(tsr_block_tq2_0, d)));
    default: /* IQ2, IQ1_S */
        return tsr_f16_to_f32(code_load_16(p)) * 0.125f;
    }
}

/* Where the halves of a super-block's groups go: 16 bytes each, and a sub-scale. */
typedef struct code_place {
    uint8_t *q;
    int32_t *sub;
    size_t q_step, sub_step;
} code_place;

/* Unpack the super-block at p. */
ALWAYS_INLINE void code_unpack(tsr_type type, const unsigned char *p, code_place place)
{
    UNROLL for (int s = 0; s < TSR_QUANT_SUPER_BLOCK / TSR_QUANT_BLOCK; s++)
    {
        const code_group group = code_group_of(type, p, s);
        const byte32 q = group.q + CODE_OFFSET;
        UNROLL for (int half = 0; half < 2; half++, place.q += place.q_step, place.sub += place.sub_step)
        {
            const byte16 bytes = byte32_half(q, half);
            memcpy(place.q, &bytes, sizeof bytes);
            *place.sub = (int32_t)(2 * group.scale[half] + 1);
        }
    }
}

/* Decode n elements, whole super-blocks, at p. */
static NOINLINE void code_decode(tsr_type type, const unsigned char *p, size_t bytes, int64_t n, float *dst)
{
    for (; n > 0; n -= TSR_QUANT_SUPER_BLOCK, p += bytes, dst += TSR_QUANT_SUPER_BLOCK) {
        uint8_t q[TSR_QUANT_SUPER_BLOCK];
        int32_t sub[16];
        float scale;
        switch (type) {
#define UNPACK_CASE(constant)                                  \
    case constant:                                             \
        scale = code_scale_at(constant, p);                    \
        code_unpack(constant, p, (code_place){q, sub, 16, 1}); \
        break;
            FOR_EACH_CODE_TYPE(UNPACK_CASE)
#undef UNPACK_CASE
        default:
            return;
        }
        for (int s = 0; s < 16; s++) {
            const v16 weights = v16_from_i8(byte16_load(q + 16 * s) - CODE_OFFSET);
            v16_store(dst + 16 * s, v16_mul(weights, v16_set1(scale * (float)sub[s])));
        }
    }
}

#endif
