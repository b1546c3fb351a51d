/* Octets (quant.cuh) of the types with code books and of three values: IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS,
 * IQ2_S, IQ3_XXS, IQ3_S, TQ1_0 and TQ2_0. An octet of theirs is an entry of a book, or two.
 *
 * They share kernels, which are compiled once, for TSR_CODE_TYPE, and branch by the type that rows are
 * stored in: all threads alike. Nine kernels in place of each would be alike but for a few instructions of
 * an octet. Books are in global memory, two bytes per entry, since threads read different entries; the
 * first-level cache holds them. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_QUANT_CODE_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_QUANT_CODE_CUH

#include <tsr/types.h>

#include "core/quant/quant.h"
#include "core/quant/quant_grids.h"
#include "cuda/kernels/mul_mat/octet.cuh"

#define TSR_CODE_TYPE TSR_TYPE_IQ2_XXS /* stands for all of them */

/* The type whose kernels take rows of `type`. */
static inline tsr_type tsr_kernel_type(tsr_type type)
{
    switch (type) {
    case TSR_TYPE_IQ1_S:
    case TSR_TYPE_IQ1_M:
    case TSR_TYPE_IQ2_XS:
    case TSR_TYPE_IQ2_S:
    case TSR_TYPE_IQ3_XXS:
    case TSR_TYPE_IQ3_S:
    case TSR_TYPE_TQ1_0:
    case TSR_TYPE_TQ2_0:
        return TSR_CODE_TYPE;
    default:
        return type;
    }
}

#define TSR_ENTRY(entry) entry,
static __device__ const uint16_t tsr_book_iq2_xxs[] = {TSR_QUANT_GRID_IQ2_XXS(TSR_ENTRY)};
static __device__ const uint16_t tsr_book_iq2_xs[] = {TSR_QUANT_GRID_IQ2_XS(TSR_ENTRY)};
static __device__ const uint16_t tsr_book_iq2_s[] = {TSR_QUANT_GRID_IQ2_S(TSR_ENTRY)};
static __device__ const uint16_t tsr_book_iq3_xxs[] = {TSR_QUANT_GRID_IQ3_XXS(TSR_ENTRY)};
static __device__ const uint16_t tsr_book_iq3_s[] = {TSR_QUANT_GRID_IQ3_S(TSR_ENTRY)};
static __device__ const uint16_t tsr_book_iq1[] = {TSR_QUANT_GRID_IQ1_S(TSR_ENTRY)};
#undef TSR_ENTRY

/* Four bytes at an even address. */
TSR_DEVICE uint32_t tsr_load_4(const unsigned char *from)
{
    const uint16_t *half = reinterpret_cast<const uint16_t *>(from);
    return half[0] | (uint32_t)half[1] << 16;
}

/* Four codes of two bits choose bytes of the table. */
TSR_DEVICE uint32_t tsr_choose_2(uint32_t codes, uint32_t table)
{
    const uint32_t pairs = (codes | codes << 4) & 0x0f0fu;
    return __byte_perm(table, 0, (pairs | pairs << 2) & 0x3333u);
}

/* Four codes of three bits choose bytes of two words. */
TSR_DEVICE uint32_t tsr_choose_3(uint32_t codes, uint32_t low, uint32_t high)
{
    return __byte_perm(low, high,
                       (codes & 7) | (codes & 070) << 1 | (codes & 0700) << 2 | (codes & 07000) << 3);
}

/* Bytes that are not 0, negative where one of the low four bits of `signs` is set, plus 128. */
TSR_DEVICE uint32_t tsr_sign_bytes(uint32_t bytes, uint32_t signs)
{
    const uint32_t ones = (signs & 15) * 0x204081u & 0x01010101u;
    return ((bytes ^ ones * 255) + ones) ^ 0x80808080u;
}

/* tsr_quant_even_signs() */
TSR_DEVICE uint32_t tsr_even_signs(uint32_t index)
{
    return index | (uint32_t)(__popc(index) & 1) << 7;
}

/* An octet's bytes, plus 128, and scale. */
struct tsr_code_octet {
    uint32_t word[2];
    float scale;
};

TSR_DEVICE float tsr_odd_scale(const unsigned char *d, uint32_t scale, float unit)
{
    return tsr_load_half(d) * tsr_small_float(2 * scale + 1, 0.0f) * unit;
}

TSR_DEVICE void tsr_put_iq2(uint32_t entry, uint32_t signs, tsr_code_octet *o)
{
    const uint32_t table = 0x2b1908u; /* TSR_QUANT_GRID_VALUES_IQ2_XXS */
    o->word[0] = tsr_sign_bytes(tsr_choose_2(entry & 255, table), signs);
    o->word[1] = tsr_sign_bytes(tsr_choose_2(entry >> 8, table), signs >> 4);
}

/* `low` and `high`: the book's values. */
TSR_DEVICE void tsr_put_iq3(uint32_t first, uint32_t second, uint32_t low, uint32_t high, uint32_t signs,
                            tsr_code_octet *o)
{
    o->word[0] = tsr_sign_bytes(tsr_choose_3(first, low, high), signs);
    o->word[1] = tsr_sign_bytes(tsr_choose_3(second, low, high), signs >> 4);
}

/* Values -1, 0, 1 times 8, plus or minus 1. */
TSR_DEVICE void tsr_put_iq1(uint32_t index, bool negative, tsr_code_octet *o)
{
    const uint32_t entry = tsr_book_iq1[index], table = negative ? 0x877f77u : 0x898179u;
    o->word[0] = tsr_choose_2(entry & 255, table);
    o->word[1] = tsr_choose_2(entry >> 8, table);
}

/* Group g (0..31) of a super-block. */
TSR_DEVICE void tsr_code_iq2_xxs(const unsigned char *block, int g, tsr_code_octet *o)
{
    const unsigned char *q = block + 2 + g / 4 * 8;
    const uint32_t word = tsr_load_4(q + 4);
    o->scale = tsr_odd_scale(block, word >> 28, 0.125f);
    tsr_put_iq2(tsr_book_iq2_xxs[q[g % 4]], tsr_even_signs(word >> (g % 4 * 7) & 127), o);
}

TSR_DEVICE void tsr_code_iq2_xs(const unsigned char *block, int g, tsr_code_octet *o)
{
    const uint32_t q = reinterpret_cast<const uint16_t *>(block)[1 + g];
    o->scale = tsr_odd_scale(block, block[66 + g / 4] >> (g / 2 % 2 * 4) & 15, 0.125f);
    tsr_put_iq2(tsr_book_iq2_xs[q & 511], tsr_even_signs(q >> 9), o);
}

TSR_DEVICE void tsr_code_iq2_s(const unsigned char *block, int g, tsr_code_octet *o)
{
    const uint32_t index = block[2 + g] | (block[66 + g / 4] >> (g % 4 * 2) & 3u) << 8;
    o->scale = tsr_odd_scale(block, block[74 + g / 4] >> (g / 2 % 2 * 4) & 15, 0.125f);
    tsr_put_iq2(tsr_book_iq2_s[index], block[34 + g], o);
}

TSR_DEVICE void tsr_code_iq3_xxs(const unsigned char *block, int g, tsr_code_octet *o)
{
    const uint32_t word = tsr_load_4(block + 66 + g / 4 * 4);
    o->scale = tsr_odd_scale(block, word >> 28, 0.25f);
    tsr_put_iq3(tsr_book_iq3_xxs[block[2 + 2 * g]], tsr_book_iq3_xxs[block[3 + 2 * g]], 0x1c140c04u,
                0x3e342c24u, tsr_even_signs(word >> (g % 4 * 7) & 127), o);
}

TSR_DEVICE void tsr_code_iq3_s(const unsigned char *block, int g, tsr_code_octet *o)
{
    const uint32_t high = block[66 + g / 4] >> (g % 4 * 2);
    o->scale = tsr_odd_scale(block, block[106 + g / 8] >> (g / 4 % 2 * 4) & 15, 1.0f);
    tsr_put_iq3(tsr_book_iq3_s[block[2 + 2 * g] | (high & 1) << 8],
                tsr_book_iq3_s[block[3 + 2 * g] | (high & 2) << 7], 0x07050301u, 0x0f0d0b09u, block[74 + g],
                o);
}

TSR_DEVICE void tsr_code_iq1_s(const unsigned char *block, int g, tsr_code_octet *o)
{
    const uint32_t high = reinterpret_cast<const uint16_t *>(block)[17 + g / 4];
    o->scale = tsr_odd_scale(block, high >> 12 & 7, 0.125f);
    tsr_put_iq1(block[2 + g] | (high >> (g % 4 * 3) & 7) << 8, high >> 15 != 0, o);
}

TSR_DEVICE void tsr_code_iq1_m(const unsigned char *block, int g, tsr_code_octet *o)
{
    const uint16_t *scales = reinterpret_cast<const uint16_t *>(block) + 24;
    const uint32_t high = block[32 + g / 2] >> (g % 2 * 4), scale = scales[g / 8] >> (g / 2 % 4 * 3) & 7;
    const uint32_t d = (scales[0] & 0xf000u) >> 12 | (scales[1] & 0xf000u) >> 8 | (scales[2] & 0xf000u) >> 4 |
                       (scales[3] & 0xf000u);
    o->scale = tsr_half_to_f32((uint16_t)d) * tsr_small_float(2 * scale + 1, 0.0f) * 0.125f;
    tsr_put_iq1(block[g] | (high & 7) << 8, (high & 8) != 0, o);
}

TSR_DEVICE void tsr_code_tq1_0(const unsigned char *block, int g, tsr_code_octet *o)
{
    const int e = 8 * g, begin = e < 160 ? 0 : e < 240 ? 160 : 240, shift = e < 160 ? 5 : e < 240 ? 4 : 2;
    const unsigned char *bytes = block + (e < 160 ? 0 : e < 240 ? 32 : 48);
    o->scale = tsr_load_half(block + 52);
    o->word[0] = o->word[1] = 0;
    TSR_UNROLL
    for (int i = 0; i < TSR_OCTET; i++) {
        const int at = e + i - begin;
        const uint32_t power = 0x1b090301u >> (at >> shift & 3) * 8 & 255; /* of three; the fifth is 81 */
        const uint32_t moved = bytes[at & ((1 << shift) - 1)] * (at >> shift == 4 ? 81 : power) & 255;
        o->word[i / 4] |= ((moved * 3 >> 8) + 127) << (8 * (i % 4));
    }
}

TSR_DEVICE void tsr_code_tq2_0(const unsigned char *block, int g, tsr_code_octet *o)
{
    const tsr_bytes_8 bytes = tsr_load_8(block + 32 * (g / 16) + g % 4 * 8, false);
    o->scale = tsr_load_half(block + 64);
    TSR_UNROLL
    for (int i = 0; i < 2; i++)
        o->word[i] = (bytes.word[i] >> (g % 16 / 4 * 2) & 0x03030303u) + 0x7f7f7f7fu;
}

/* Octet number `index` of a row. */
TSR_DEVICE void tsr_octet_code(const unsigned char *row, uint32_t index, tsr_type stored, tsr_octet *o)
{
    const size_t block = index / 32;
    const int g = (int)(index % 32);
    tsr_code_octet code;
    switch (stored) {
#define CODE_CASE(type, name)                                              \
    case type:                                                             \
        tsr_code_##name(row + block * sizeof(tsr_block_##name), g, &code); \
        break;
        CODE_CASE(TSR_TYPE_IQ1_S, iq1_s)
        CODE_CASE(TSR_TYPE_IQ1_M, iq1_m)
        CODE_CASE(TSR_TYPE_IQ2_XXS, iq2_xxs)
        CODE_CASE(TSR_TYPE_IQ2_XS, iq2_xs)
        CODE_CASE(TSR_TYPE_IQ2_S, iq2_s)
        CODE_CASE(TSR_TYPE_IQ3_XXS, iq3_xxs)
        CODE_CASE(TSR_TYPE_IQ3_S, iq3_s)
        CODE_CASE(TSR_TYPE_TQ1_0, tq1_0)
#undef CODE_CASE
    default:
        tsr_code_tq2_0(row + block * sizeof(tsr_block_tq2_0), g, &code);
        break;
    }
    o->scale = code.scale;
    tsr_unpack(code.word, 128.0f, o->q);
}

#endif
