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
typedef uint32_t code_words __attribute__((vector_size(32)));
typedef uint32_t code_words_4 __attribute__((vector_size(16)));
typedef uint16_t code_halves_8 __attribute__((vector_size(16)));
typedef uint64_t code_entries_2 __attribute__((vector_size(16)));

/* What the groups of a super-block need, computed for all of it: a vector of indices takes as many
 * instructions as one index. */
typedef struct code_super {
    uint16_t
        index[2 * TSR_QUANT_SUPER_BLOCK / 8];   /* of entries; unused where indices are bytes of the block */
    uint32_t signs[TSR_QUANT_SUPER_BLOCK / 32]; /* of a group's elements */
    uint8_t scale[TSR_QUANT_SUPER_BLOCK / 16];  /* numbers s of sub-scales 2 s + 1 */
} code_super;

/* p -> *out, as bytes. */
#define CODE_LOAD(out, p)    memcpy(&(out), p, sizeof(out))
#define CODE_STORE(p, value) memcpy(p, &(value), sizeof(value))

ALWAYS_INLINE word16 code_load_bytes(const unsigned char *p)
{
    return __builtin_convertvector(byte16_load(p), word16);
}

/* Copies of four 16-bit numbers, four each. */
ALWAYS_INLINE word16 code_copies(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    const uint64_t four = 0x0001000100010001u;
    return (word16)((code_entries){a * four, b * four, c * four, d * four});
}

/* Eight bytes, zeros after them. Vectors of 8 bytes are slow: compilers take them apart. */
ALWAYS_INLINE code_entries_2 code_load_8(const unsigned char *p)
{
    uint64_t bytes;
    CODE_LOAD(bytes, p);
    return (code_entries_2){bytes, 0};
}

/* Half `upper` of sixteen numbers. */
ALWAYS_INLINE code_halves_8 code_half_of(word16 numbers, const int upper)
{
    return (code_halves_8)byte32_half((byte32)numbers, upper);
}

/* Nibbles of eight bytes, the low one first. */
ALWAYS_INLINE void code_nibbles(const unsigned char *p, uint8_t scale[16])
{
    code_halves_8 pairs = code_half_of(__builtin_convertvector((byte16)code_load_8(p), word16), 0);
    pairs = (pairs & 15) | (pairs << 4 & 0x0f00);
    CODE_STORE(scale, pairs);
}

/* Words of four indices of signs, of 7 bits each, and a scale in the upper four bits:
 * tsr_quant_even_signs(). */
ALWAYS_INLINE void code_signs_words(code_words word, code_super *out)
{
    code_words index =
        (word & 0x7f) | (word << 1 & 0x7f00) | (word << 2 & 0x7f0000) | (word << 3 & 0x7f000000);
    code_words odd = index ^ index >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    index |= (odd & 0x01010101) << 7;
    CODE_STORE(out->signs, index);
    const code_halves_8 scales = __builtin_convertvector((word >> 28) * 0x0101, code_halves_8);
    CODE_STORE(out->scale, scales);
}

ALWAYS_INLINE void code_super_iq2_xxs(const unsigned char *p, code_super *out)
{
    code_entries first, second; /* the upper half of each 64 bits is a word */
    CODE_LOAD(first, p + offsetof(tsr_block_iq2_xxs, q));
    CODE_LOAD(second, p + offsetof(tsr_block_iq2_xxs, q) + sizeof first);
    const code_words_4 a = __builtin_convertvector(first >> 32, code_words_4);
    const code_words_4 b = __builtin_convertvector(second >> 32, code_words_4);
    code_signs_words((code_words)byte32_join((byte16)a, (byte16)b), out);
}

ALWAYS_INLINE void code_super_iq3_xxs(const unsigned char *p, code_super *out)
{
    code_words word;
    CODE_LOAD(word, p + offsetof(tsr_block_iq3_xxs, words));
    code_signs_words(word, out);
}

ALWAYS_INLINE void code_super_iq2_xs(const unsigned char *p, code_super *out)
{
    UNROLL for (int i = 0; i < 2; i++)
    {
        word16 q;
        CODE_LOAD(q, p + offsetof(tsr_block_iq2_xs, q) + (size_t)i * sizeof q);
        const word16 index = q & 511, seven = q >> 9;
        word16 odd = seven ^ seven >> 4;
        odd ^= odd >> 2;
        odd ^= odd >> 1;
        const byte16 signs = __builtin_convertvector(seven | (odd & 1) << 7, byte16);
        CODE_STORE(out->index + 16 * i, index);
        CODE_STORE(out->signs + 4 * i, signs);
    }
    code_nibbles(p + offsetof(tsr_block_iq2_xs, scales), out->scale);
}

ALWAYS_INLINE void code_super_iq2_s(const unsigned char *p, code_super *out)
{
    const word16 up = {256, 64, 16, 4, 256, 64, 16, 4, 256, 64, 16, 4, 256, 64, 16, 4};
    UNROLL for (int i = 0; i < 2; i++)
    {
        const unsigned char *high = p + offsetof(tsr_block_iq2_s, high) + 4 * i;
        const word16 bits = code_copies(high[0], high[1], high[2], high[3]) * up & 0x300;
        const word16 index = bits | code_load_bytes(p + offsetof(tsr_block_iq2_s, q) + 16 * i);
        CODE_STORE(out->index + 16 * i, index);
    }
    memcpy(out->signs, p + offsetof(tsr_block_iq2_s, signs), sizeof out->signs);
    code_nibbles(p + offsetof(tsr_block_iq2_s, scales), out->scale);
}

ALWAYS_INLINE void code_super_iq3_s(const unsigned char *p, code_super *out)
{
    const word16 up = {256, 128, 64, 32, 16, 8, 4, 2, 256, 128, 64, 32, 16, 8, 4, 2};
    const unsigned char *s = p + offsetof(tsr_block_iq3_s, scales);
    UNROLL for (int i = 0; i < 4; i++)
    {
        const unsigned char *high = p + offsetof(tsr_block_iq3_s, high) + 2 * i;
        const word16 bits = code_copies(high[0], high[0], high[1], high[1]) * up & 0x100;
        const word16 index = bits | code_load_bytes(p + offsetof(tsr_block_iq3_s, q) + 16 * i);
        CODE_STORE(out->index + 16 * i, index);
    }
    memcpy(out->signs, p + offsetof(tsr_block_iq3_s, signs), sizeof out->signs);
    const code_words_4 four = {s[0], s[1], s[2], s[3]};
    const code_words_4 scales = (four & 15) * 0x0101 | (four >> 4) * 0x01010000;
    CODE_STORE(out->scale, scales);
}

ALWAYS_INLINE void code_super_iq1_s(const unsigned char *p, code_super *out)
{
    const word16 up = {256, 32, 4, 0, 256, 32, 4, 0, 256, 32, 4, 0, 256, 32, 4, 0};
    const word16 last = {0, 0, 0, 0x700, 0, 0, 0, 0x700, 0, 0, 0, 0x700, 0, 0, 0, 0x700};
    code_halves_8 high;
    CODE_LOAD(high, p + offsetof(tsr_block_iq1_s, high));
    UNROLL for (int i = 0; i < 2; i++)
    {
        const word16 copies = code_copies(high[4 * i], high[4 * i + 1], high[4 * i + 2], high[4 * i + 3]);
        const word16 bits = (copies * up & 0x700) | (copies >> 1 & last);
        const word16 index = bits | code_load_bytes(p + offsetof(tsr_block_iq1_s, q) + 16 * i);
        CODE_STORE(out->index + 16 * i, index);
    }
    high = (high >> 12 & 7) * 0x0101;
    CODE_STORE(out->scale, high);
}

ALWAYS_INLINE void code_super_iq1_m(const unsigned char *p, code_super *out)
{
    const word16 high = code_load_bytes(p + offsetof(tsr_block_iq1_m, high));
    UNROLL for (int i = 0; i < 2; i++)
    {
        const code_words pairs = __builtin_convertvector(code_half_of(high, i), code_words);
        const word16 bits = (word16)((pairs << 8 & 0x700) | (pairs << 20 & 0x7000000));
        const word16 index = bits | code_load_bytes(p + 16 * i);
        CODE_STORE(out->index + 16 * i, index);
    }
    const code_halves_8 four = (code_halves_8)code_load_8(p + offsetof(tsr_block_iq1_m, scales));
    code_words scales = __builtin_convertvector(four, code_words);
    scales = (scales & 7) | (scales << 5 & 0x700) | (scales << 10 & 0x70000) | (scales << 15 & 0x7000000);
    const byte16 bytes = byte32_half((byte32)scales, 0);
    CODE_STORE(out->scale, bytes);
}

/* Fill *out from the super-block at p. */
ALWAYS_INLINE void code_super_of(tsr_type type, const unsigned char *p, code_super *out)
{
    switch (type) {
#define SUPER_CASE(constant, name) \
    case constant:                 \
        code_super_##name(p, out); \
        break;
        SUPER_CASE(TSR_TYPE_IQ2_XXS, iq2_xxs)
        SUPER_CASE(TSR_TYPE_IQ2_XS, iq2_xs)
        SUPER_CASE(TSR_TYPE_IQ2_S, iq2_s)
        SUPER_CASE(TSR_TYPE_IQ3_XXS, iq3_xxs)
        SUPER_CASE(TSR_TYPE_IQ3_S, iq3_s)
        SUPER_CASE(TSR_TYPE_IQ1_S, iq1_s)
        SUPER_CASE(TSR_TYPE_IQ1_M, iq1_m)
#undef SUPER_CASE
    default: /* TQ1_0, TQ2_0 */
        memset(out->scale, 0, sizeof out->scale);
        break;
    }
}

/* Entries with signs. */
ALWAYS_INLINE byte32 code_signed(code_entries entries, const uint32_t *signs)
{
#if defined(TSR_ISA_AVX512)
    return (byte32)_mm256_mask_sub_epi8((__m256i)entries, *signs, _mm256_setzero_si256(), (__m256i)entries);
#else
    const byte32 minus = spread_bits((const unsigned char *)signs, 0xff);
    return ((byte32)entries ^ minus) - minus;
#endif
}

/* Four entries of eight elements. */
#define CODE_EIGHTS(grid, q) ((code_entries){(grid)[(q)[0]], (grid)[(q)[1]], (grid)[(q)[2]], (grid)[(q)[3]]})

/* Eight entries of four elements. */
#define CODE_PAIR(grid, q) ((grid)[(q)[0]] | (uint64_t)(grid)[(q)[1]] << 32)
#define CODE_FOURS(grid, q)                                                             \
    ((code_entries){CODE_PAIR(grid, q), CODE_PAIR(grid, q + 2), CODE_PAIR(grid, q + 4), \
                    CODE_PAIR(grid, q + 6)})

ALWAYS_INLINE byte32 code_iq1_s(const unsigned char *p, const code_super *super, int s)
{
    const unsigned char top = p[offsetof(tsr_block_iq1_s, high) + 2 * s + 1];
    const byte32 entries = (byte32)CODE_EIGHTS(tsr_quant_grid_iq1, super->index + 4 * s);
    return entries + (uint8_t)(top >= 128 ? -1 : 1);
}

ALWAYS_INLINE byte32 code_iq1_m(const unsigned char *p, const code_super *super, int s)
{
    uint16_t high;
    CODE_LOAD(high, p + offsetof(tsr_block_iq1_m, high) + 2 * s);
    const code_entries bit = {0x8, 0x80, 0x800, 0x8000}, nibbles = (code_entries){0} + high;
    const code_entries deltas = (code_entries)((nibbles & bit) == bit) | 0x0101010101010101u; /* -1 or 1 */
    return (byte32)CODE_EIGHTS(tsr_quant_grid_iq1, super->index + 4 * s) + (byte32)deltas;
}

/* Digits of base three: the upper byte of three times each byte, minus 1. A comparison is -1 where it
 * holds. */
ALWAYS_INLINE byte32 code_digits(byte32 bytes)
{
    return (byte32){0} - 1 - (byte32)(bytes >= 86) - (byte32)(bytes >= 171);
}

/* Each byte times 3^n. */
ALWAYS_INLINE byte32 code_triple(byte32 bytes, const int n)
{
    UNROLL for (int i = 0; i < n; i++) bytes += bytes + bytes;
    return bytes;
}

ALWAYS_INLINE byte32 code_tq1_0(const unsigned char *p, int s)
{
    if (s < 5)
        return code_digits(code_triple(byte32_load(p), s));
    const byte16 q = byte16_load(p + 32);
    const byte32 both = byte32_join(q, q);
    byte32 first = code_triple(both, s < 7 ? 2 * (s - 5) : 4), second = code_triple(first, 1);
    if (s == 7) {
        uint32_t four;
        CODE_LOAD(four, p + offsetof(tsr_block_tq1_0, last));
        const byte32 x1 = (byte32)((code_words){0} + four), x3 = code_triple(x1, 1), x9 = code_triple(x1, 2);
        const word16 parts = {0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3};
        second = (x1 & (byte32)(parts == 0)) | (x3 & (byte32)(parts == 1)) | (x9 & (byte32)(parts == 2)) |
                 (code_triple(x1, 3) & (byte32)(parts == 3));
    }
    return code_digits(byte32_join(byte32_half(first, 0), byte32_half(second, 1)));
}

ALWAYS_INLINE byte32 code_tq2_0(const unsigned char *p, int s)
{
    const byte32 bytes = byte32_load(p + 32 * (s / 4));
    return byte32_bits(bytes, -2 * (s % 4), 0x03) - 1;
}

/* The quants of group s (0 .. 7) of the super-block at p. */
ALWAYS_INLINE byte32 code_quants(tsr_type type, const unsigned char *p, const code_super *super, int s)
{
    const unsigned char *q = p + offsetof(tsr_block_iq2_xxs, q) + 8 * s; /* IQ3_XXS, too */
    const uint32_t *signs = super->signs + s;
    switch (type) {
    case TSR_TYPE_IQ2_XXS:
        return code_signed(CODE_EIGHTS(tsr_quant_grid_iq2_xxs, q), signs);
    case TSR_TYPE_IQ2_XS:
        return code_signed(CODE_EIGHTS(tsr_quant_grid_iq2_xs, super->index + 4 * s), signs);
    case TSR_TYPE_IQ2_S:
        return code_signed(CODE_EIGHTS(tsr_quant_grid_iq2_s, super->index + 4 * s), signs);
    case TSR_TYPE_IQ3_XXS:
        return code_signed(CODE_FOURS(tsr_quant_grid_iq3_xxs, q), signs);
    case TSR_TYPE_IQ3_S:
        return code_signed(CODE_FOURS(tsr_quant_grid_iq3_s, super->index + 8 * s), signs);
    case TSR_TYPE_IQ1_S:
        return code_iq1_s(p, super, s);
    case TSR_TYPE_IQ1_M:
        return code_iq1_m(p, super, s);
    case TSR_TYPE_TQ1_0:
        return code_tq1_0(p, s);
    default:
        return code_tq2_0(p, s);
    }
}

ALWAYS_INLINE float code_half(const unsigned char *p)
{
    uint16_t half;
    CODE_LOAD(half, p);
    return tsr_f16_to_f32(half);
}

/* The scale of the super-block at p. */
ALWAYS_INLINE float code_scale_at(tsr_type type, const unsigned char *p)
{
    switch (type) {
    case TSR_TYPE_IQ3_XXS:
        return code_half(p) * 0.25f;
    case TSR_TYPE_IQ3_S:
        return code_half(p);
    case TSR_TYPE_IQ1_M: {
        tsr_block_iq1_m block;
        memcpy(&block, p, sizeof block);
        return tsr_f16_to_f32(tsr_quant_iq1_m_d(&block)) * 0.125f;
    }
    case TSR_TYPE_TQ1_0:
        return code_half(p + offsetof(tsr_block_tq1_0, d));
    case TSR_TYPE_TQ2_0:
        return code_half(p + offsetof(tsr_block_tq2_0, d));
    default: /* IQ2, IQ1_S */
        return code_half(p) * 0.125f;
    }
}

/* Unpack the super-block at p: its groups' halves, 16 bytes each, q_step bytes apart, and sub-scales. */
ALWAYS_INLINE void code_unpack(tsr_type type, const unsigned char *p, uint8_t *q, size_t q_step,
                               uint8_t sub[16])
{
    code_super super;
    code_super_of(type, p, &super);
    const byte16 scale = byte16_load(super.scale), odd = scale + scale + 1;
    CODE_STORE(sub, odd);
    UNROLL for (int s = 0; s < TSR_QUANT_SUPER_BLOCK / TSR_QUANT_BLOCK; s++)
    {
        const byte32 quants = code_quants(type, p, &super, s) + CODE_OFFSET;
        UNROLL for (int half = 0; half < 2; half++, q += q_step)
        {
            const byte16 bytes = byte32_half(quants, half);
            CODE_STORE(q, bytes);
        }
    }
}

/* Decode n elements, whole super-blocks, at p. */
static NOINLINE void code_decode(tsr_type type, const unsigned char *p, size_t bytes, int64_t n, float *dst)
{
    for (; n > 0; n -= TSR_QUANT_SUPER_BLOCK, p += bytes, dst += TSR_QUANT_SUPER_BLOCK) {
        uint8_t q[TSR_QUANT_SUPER_BLOCK], sub[16];
        float scale;
        switch (type) {
#define UNPACK_CASE(constant)                 \
    case constant:                            \
        scale = code_scale_at(constant, p);   \
        code_unpack(constant, p, q, 16, sub); \
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
