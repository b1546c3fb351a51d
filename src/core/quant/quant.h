/* Blocks of the quantized types, byte for byte as GGUF files hold them (little-endian), and their codecs.
 *
 * A block covers 32 consecutive elements of a row, 64 (NVFP4) or 256 (the K types, TQ types, and IQ types but
 * IQ4_NL: "super-block"). Scales are
 * F16. The layouts are those of ggml, the library GGUF comes from (https://github.com/ggml-org/ggml,
 * MIT). In a super-block the elements are cut into sub-blocks with a small integer scale each, in units of
 * `d`. All block sizes but MXFP4's are even, so other blocks of a tensor that starts at an even address are
 * aligned for uint16_t.
 *
 * The codecs are the readable reference. Decoded values are the exact real value rounded once to f32:
 * products of a half, a 6-bit (or 8-bit) scale and a quantum fit into 24 bits, and only types with a minimum
 * add it. A kernel that decodes may therefore be compared bit for bit. */
#ifndef TSR_CORE_QUANT_QUANT_H
#define TSR_CORE_QUANT_QUANT_H

#include <assert.h> /* static_assert */
#include <stddef.h>
#include <stdint.h>

#include "core/quant/half.h"

enum {
    TSR_QUANT_BLOCK = 32,        /* elements in a block of the other types, but NVFP4 */
    TSR_QUANT_NV_BLOCK = 64,     /* of NVFP4 */
    TSR_QUANT_SUPER_BLOCK = 256, /* elements in a block of the K types, TQ types, and IQ types but IQ4_NL */
    TSR_QUANT_SCALES_BYTES = 12  /* sixteen 6-bit numbers */
};

/* x[i] = d * q[i] */
typedef struct tsr_block_q8_0 {
    uint16_t d; /* F16 */
    int8_t q[TSR_QUANT_BLOCK];
} tsr_block_q8_0;

/* x[i] = d * (nibble(i) - 8), where the low nibble of q[i] is element i and its high nibble element i +
 * 16. */
typedef struct tsr_block_q4_0 {
    uint16_t d; /* F16 */
    uint8_t q[TSR_QUANT_BLOCK / 2];
} tsr_block_q4_0;

/* Eight sub-blocks of 32, with a scale and a minimum of 6 bits each:
 *     x[32 s + i] = d * scale(s) * quantum - dmin * minimum(s)        (see tsr_quant_scale_min)
 * The quants are stored in four groups of 32 bytes: byte i of group g holds sub-block 2g in its low
 * nibbles and sub-block 2g + 1 in its high nibbles, both at element i. */
typedef struct tsr_block_q4_k {
    uint16_t d;    /* F16 */
    uint16_t dmin; /* F16 */
    uint8_t scales[TSR_QUANT_SCALES_BYTES];
    uint8_t q[TSR_QUANT_SUPER_BLOCK / 2];
} tsr_block_q4_k;

/* As Q4_K with a fifth bit: bit s of high[i] is bit 4 of the quantum at element i of sub-block s. */
typedef struct tsr_block_q5_k {
    uint16_t d;    /* F16 */
    uint16_t dmin; /* F16 */
    uint8_t scales[TSR_QUANT_SCALES_BYTES];
    uint8_t high[TSR_QUANT_SUPER_BLOCK / 8];
    uint8_t q[TSR_QUANT_SUPER_BLOCK / 2];
} tsr_block_q5_k;

/* Sixteen sub-blocks of 16 with a signed 8-bit scale:
 *     x[16 s + i] = d * scales[s] * (quantum - 32)
 * The 6-bit quants are stored in two halves of 128 elements; half h owns low[64 h ..] and high[32 h ..].
 * An element 32 k + i of a half (k = 0..3, i = 0..31) has its low four bits in low[32 (k % 2) + i], in the
 * low nibble for k < 2 and the high nibble otherwise, and its upper two bits at bit 2 k of high[i]. */
typedef struct tsr_block_q6_k {
    uint8_t low[TSR_QUANT_SUPER_BLOCK / 2];
    uint8_t high[TSR_QUANT_SUPER_BLOCK / 4];
    int8_t scales[TSR_QUANT_SUPER_BLOCK / 16];
    uint16_t d; /* F16 */
} tsr_block_q6_k;

/* x[i] = d * nibble(i) + m; nibbles as in Q4_0. */
typedef struct tsr_block_q4_1 {
    uint16_t d, m; /* F16 */
    uint8_t q[TSR_QUANT_BLOCK / 2];
} tsr_block_q4_1;

/* x[i] = d * (quantum(i) - 16): nibbles as in Q4_0, and bit i of `high`, a little-endian number, is bit 4. */
typedef struct tsr_block_q5_0 {
    uint16_t d; /* F16 */
    uint8_t high[4];
    uint8_t q[TSR_QUANT_BLOCK / 2];
} tsr_block_q5_0;

/* x[i] = d * quantum(i) + m; quants as in Q5_0. */
typedef struct tsr_block_q5_1 {
    uint16_t d, m; /* F16 */
    uint8_t high[4];
    uint8_t q[TSR_QUANT_BLOCK / 2];
} tsr_block_q5_1;

/* x[i] = d * TSR_QUANT_IQ4_VALUES[nibble(i)]; nibbles as in Q4_0. */
typedef struct tsr_block_iq4_nl {
    uint16_t d; /* F16 */
    uint8_t q[TSR_QUANT_BLOCK / 2];
} tsr_block_iq4_nl;

/* Eight sub-blocks of 32 with a 6-bit scale each, whose nibbles are stored in q[16 s ..] as in Q4_0:
 *     x[32 s + i] = d * (scale(s) - 32) * TSR_QUANT_IQ4_VALUES[nibble]
 * Nibble s of scales_low is the low four bits of scale(s), bits 2 s and 2 s + 1 of scales_high the upper. */
typedef struct tsr_block_iq4_xs {
    uint16_t d; /* F16 */
    uint16_t scales_high;
    uint8_t scales_low[TSR_QUANT_SUPER_BLOCK / 64];
    uint8_t q[TSR_QUANT_SUPER_BLOCK / 2];
} tsr_block_iq4_xs;

/* x[i] = 2^(e - 127) * element(i), a 4-bit float of 1 sign, 2 exponent and 1 mantissa bits; nibbles as in
 * Q4_0, e = 255 is NaN (Open Compute Project, Microscaling Formats (MX) Specification 1.0, section 5).
 * TSR_QUANT_FP4_VALUES has the elements twice over, to be integers. */
typedef struct tsr_block_mxfp4 {
    uint8_t e;
    uint8_t q[TSR_QUANT_BLOCK / 2];
} tsr_block_mxfp4;

/* Sixteen sub-blocks of 16, the low nibble of scales[s] their scale, the high one their minimum:
 *     x[16 s + i] = d * scale(s) * quantum - dmin * minimum(s)
 * The quants are stored in two halves of 128 elements: element 32 k + i of a half has its two bits at bit
 * 2 k of q[32 half + i]. */
typedef struct tsr_block_q2_k {
    uint8_t scales[TSR_QUANT_SUPER_BLOCK / 16];
    uint8_t q[TSR_QUANT_SUPER_BLOCK / 4];
    uint16_t d, dmin; /* F16 */
} tsr_block_q2_k;

/* Sixteen sub-blocks of 16 with 6-bit scales (see tsr_quant_q3_scale):
 *     x[16 s + i] = d * (scale(s) - 32) * (quantum - 4)
 * The low two bits of quants are stored as in Q2_K; bit 2 of element 32 k + i of half h is bit 4 h + k of
 * high[i]. */
typedef struct tsr_block_q3_k {
    uint8_t high[TSR_QUANT_SUPER_BLOCK / 8];
    uint8_t q[TSR_QUANT_SUPER_BLOCK / 4];
    uint8_t scales[TSR_QUANT_SCALES_BYTES];
    uint16_t d; /* F16 */
} tsr_block_q3_k;

/* The types with code books. A group of 8 elements (IQ3: 4) is an entry of the type's book
 * (tsr_quant_grid_...), with the signs of a byte, bit i set for a negative element i. Sub-blocks of 32
 * elements have a scale of 4 bits, or sub-blocks of 16. Where a byte of signs has the 7 bits of an index
 * only, bit 7 makes the number of negative elements even (tsr_quant_even_signs). */

/* x = d * (2 scale + 1) / 8 * entry. Sub-block s has four indices in q[8 s ..], then a little-endian word:
 * four times 7 bits of signs, and the scale in the upper four bits. */
typedef struct tsr_block_iq2_xxs {
    uint16_t d; /* F16 */
    uint8_t q[TSR_QUANT_SUPER_BLOCK / 4];
} tsr_block_iq2_xxs;

/* As IQ2_XXS. q[g] is group g: an index of 9 bits, then 7 bits of signs. Nibble s is the scale of sub-block
 * s of 16 elements. */
typedef struct tsr_block_iq2_xs {
    uint16_t d; /* F16 */
    uint16_t q[TSR_QUANT_SUPER_BLOCK / 8];
    uint8_t scales[TSR_QUANT_SUPER_BLOCK / 32];
} tsr_block_iq2_xs;

/* As IQ2_XS. The index of group g is q[g], and bits 2 (g % 4) and 2 (g % 4) + 1 of high[g / 4] above it; its
 * signs are signs[g]. */
typedef struct tsr_block_iq2_s {
    uint16_t d; /* F16 */
    uint8_t q[TSR_QUANT_SUPER_BLOCK / 8];
    uint8_t signs[TSR_QUANT_SUPER_BLOCK / 8];
    uint8_t high[TSR_QUANT_SUPER_BLOCK / 32];
    uint8_t scales[TSR_QUANT_SUPER_BLOCK / 32];
} tsr_block_iq2_s;

/* x = d * (2 scale + 1) / 4 * entry. q[g] is the index of group g of 4 elements; each sub-block of 32 has a
 * word of signs and scale, as IQ2_XXS. */
typedef struct tsr_block_iq3_xxs {
    uint16_t d; /* F16 */
    uint8_t q[TSR_QUANT_SUPER_BLOCK / 4];
    uint8_t words[TSR_QUANT_SUPER_BLOCK / 8];
} tsr_block_iq3_xxs;

/* x = d * (2 scale + 1) * entry. The index of group g of 4 elements is q[g], and bit g % 8 of high[g / 8]
 * above it; nibble s is the scale of sub-block s of 32 elements. */
typedef struct tsr_block_iq3_s {
    uint16_t d; /* F16 */
    uint8_t q[TSR_QUANT_SUPER_BLOCK / 4];
    uint8_t high[TSR_QUANT_SUPER_BLOCK / 32];
    uint8_t signs[TSR_QUANT_SUPER_BLOCK / 8];
    uint8_t scales[TSR_QUANT_SUPER_BLOCK / 64];
} tsr_block_iq3_s;

/* x = d * (2 scale + 1) / 8 * (entry + delta). Entries are -8, 0, 8. Of high[s], three bits each are the
 * upper bits of the indices of sub-block s of 32 elements, then three bits its scale; delta is -1 where bit
 * 15 is set, otherwise 1. */
typedef struct tsr_block_iq1_s {
    uint16_t d; /* F16 */
    uint8_t q[TSR_QUANT_SUPER_BLOCK / 8];
    uint16_t high[TSR_QUANT_SUPER_BLOCK / 32];
} tsr_block_iq1_s;

/* As IQ1_S. Nibble g of `high` has the upper three bits of the index of group g, then its delta. scales[j]
 * has four scales of three bits, of sub-blocks of 16 elements, then bits 4 j .. 4 j + 3 of d, an F16. */
typedef struct tsr_block_iq1_m {
    uint8_t q[TSR_QUANT_SUPER_BLOCK / 8];
    uint8_t high[TSR_QUANT_SUPER_BLOCK / 16];
    uint16_t scales[TSR_QUANT_SUPER_BLOCK / 64];
} tsr_block_iq1_m;

/* x = d * (quantum - 1), quanta 0, 1, 2. A byte b is five of them: number n is the product of 3 and the low
 * byte of b * 3^n, divided by 256. Byte i of 32 has elements 32 n + i, byte i of the next 16 elements 160 +
 * 16 n + i, and byte i of the last 4 elements 240 + 4 n + i, four per byte. */
typedef struct tsr_block_tq1_0 {
    uint8_t q[48], last[4];
    uint16_t d; /* F16 */
} tsr_block_tq1_0;

/* x = d * (quantum - 1), quanta 0 .. 3, stored as in Q2_K. */
typedef struct tsr_block_tq2_0 {
    uint8_t q[TSR_QUANT_SUPER_BLOCK / 4];
    uint16_t d; /* F16 */
} tsr_block_tq2_0;

/* Four sub-blocks of 16 elements of 64: x = tsr_quant_nv_scale(d[s]) * TSR_QUANT_FP4_VALUES[nibble]. The low
 * nibbles of q[8 s ..] are elements 0..7 of sub-block s, the high nibbles elements 8..15. */
typedef struct tsr_block_nvfp4 {
    uint8_t d[4];
    uint8_t q[32];
} tsr_block_nvfp4;

static_assert(sizeof(tsr_block_iq2_xxs) == 66, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_iq2_xs) == 74, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_iq2_s) == 82, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_iq3_xxs) == 98, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_iq3_s) == 110, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_iq1_s) == 50, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_iq1_m) == 56, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_tq1_0) == 54, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_tq2_0) == 66, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_nvfp4) == 36, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_q4_1) == 20, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_q5_0) == 22, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_q5_1) == 24, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_iq4_nl) == 18, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_iq4_xs) == 136, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_mxfp4) == 17, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_q2_k) == 84, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_q3_k) == 110, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_q8_0) == 34, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_q4_0) == 18, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_q4_k) == 144, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_q5_k) == 176, "the block is laid out as in the file");
static_assert(sizeof(tsr_block_q6_k) == 210, "the block is laid out as in the file");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are used in place; a big-endian CPU cannot");

/* Scale and minimum (0..63) of sub-block s (0..7) from the 12 packed bytes of Q4_K and Q5_K. Bytes 0..3 hold
 * scales 0..3 and bytes 4..7 minima 0..3 in their low six bits. Bytes 8..11 hold the low four bits of
 * scales 4..7 (low nibble) and minima 4..7 (high nibble), whose upper two bits are the top two bits of bytes
 * 0..3 and 4..7. */
static inline void tsr_quant_scale_min(const uint8_t packed[TSR_QUANT_SCALES_BYTES], int s,
                                       uint8_t *scale_out, uint8_t *min_out)
{
    if (s < 4) {
        *scale_out = packed[s] & 63;
        *min_out = packed[s + 4] & 63;
    } else {
        *scale_out = (uint8_t)((packed[s + 4] & 0x0f) | (packed[s - 4] >> 6) << 4);
        *min_out = (uint8_t)(packed[s + 4] >> 4 | (packed[s] >> 6) << 4);
    }
}

/* Scale (0..63) of sub-block s (0..15) from the 12 packed bytes of Q3_K: the nibbles of bytes 0..7, low ones
 * first, are the low four bits, and byte 8 + s % 4 has the upper two at bit s / 4 * 2. */
static inline int tsr_quant_q3_scale(const uint8_t packed[TSR_QUANT_SCALES_BYTES], int s)
{
    int low = s < 8 ? packed[s] & 0x0f : packed[s - 8] >> 4;
    return low | (packed[8 + s % 4] >> s / 4 * 2 & 3) << 4;
}

/* Scale (0..63) of sub-block s (0..7) of IQ4_XS. */
static inline int tsr_quant_iq4_scale(const tsr_block_iq4_xs *block, int s)
{
    int low = block->scales_low[s / 2] >> s % 2 * 4 & 0x0f;
    return low | (block->scales_high >> 2 * s & 3) << 4;
}

/* Half of 2^(e - 127), the factor of TSR_QUANT_FP4_VALUES. */
static inline float tsr_quant_mx_scale(uint8_t e)
{
    uint32_t bits = e < 2 ? 0x00200000u << e : (e - 1u) << 23;
    float scale;
    if (e == 255)
        bits = 0x7fc00000u;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* Half of an unsigned 8-bit float of 4 exponent and 3 mantissa bits (E4M3), the factor of
 * TSR_QUANT_FP4_VALUES. 127, its NaN, counts as 0; bit 7 does not count otherwise. */
static inline float tsr_quant_nv_scale(uint8_t e)
{
    const int exponent = e >> 3 & 15, mantissa = e & 7;
    const float significand = (float)(exponent > 0 ? 8 + mantissa : mantissa);
    const uint32_t power = (uint32_t)(127 - 11 + (exponent > 0 ? exponent : 1)) << 23;
    return e == 127 ? 0.0f : significand * tsr_f32_from_bits(power);
}

/* The signs of an index of 7 bits. */
static inline uint8_t tsr_quant_even_signs(unsigned index)
{
    return (uint8_t)(index | (unsigned)__builtin_parity(index) << 7);
}

/* The scale of all of an IQ1_M block. */
static inline uint16_t tsr_quant_iq1_m_d(const tsr_block_iq1_m *block)
{
    unsigned d = 0;
    for (int j = 0; j < 4; j++)
        d |= (unsigned)(block->scales[j] >> 12) << 4 * j;
    return (uint16_t)d;
}

/* The code books: an entry's elements are signed bytes, the first in the lowest. */
extern const uint64_t tsr_quant_grid_iq2_xxs[256], tsr_quant_grid_iq2_xs[512], tsr_quant_grid_iq2_s[1024],
    tsr_quant_grid_iq1[2048];
extern const uint32_t tsr_quant_grid_iq3_xxs[256], tsr_quant_grid_iq3_s[512];

/* Values of the nibbles of IQ4_NL and IQ4_XS (kvalues_iq4nl in ggml's ggml-common.h), and of MXFP4 and
 * NVFP4. */
#define TSR_QUANT_IQ4_VALUES -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
#define TSR_QUANT_FP4_VALUES 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

/* Decode n_blocks blocks at src (any alignment) into 32, 64 or 256 floats each. */
void tsr_quant_decode_q8_0(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_q4_0(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_q4_k(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_q5_k(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_q6_k(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_q4_1(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_q5_0(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_q5_1(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_iq4_nl(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_iq4_xs(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_mxfp4(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_q2_k(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_q3_k(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_iq2_xxs(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_iq2_xs(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_iq2_s(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_iq3_xxs(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_iq3_s(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_iq1_s(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_iq1_m(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_tq1_0(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_tq2_0(const void *src, float *dst, int64_t n_blocks);
void tsr_quant_decode_nvfp4(const void *src, float *dst, int64_t n_blocks);

/* Encode 32, 64 or 256 floats per block into n_blocks blocks at dst (any alignment). A block with an
 * infinity or a NaN among its elements, or too large for an F16 scale, decodes to NaN throughout, so the
 * error is not hidden; but NVFP4 has no NaN, and its largest magnitude is 2688: such blocks become zeros,
 * larger elements that. */
void tsr_quant_encode_q8_0(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_q4_0(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_q4_k(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_q5_k(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_q6_k(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_q4_1(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_q5_0(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_q5_1(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_iq4_nl(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_iq4_xs(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_mxfp4(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_q2_k(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_q3_k(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_iq2_xxs(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_iq2_xs(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_iq2_s(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_iq3_xxs(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_iq3_s(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_iq1_s(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_iq1_m(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_tq1_0(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_tq2_0(const float *src, void *dst, int64_t n_blocks);
void tsr_quant_encode_nvfp4(const float *src, void *dst, int64_t n_blocks);

/* The names of all types that the library computes with, separated by ", ", cut off at capacity; for
 * messages about an unknown type. */
void tsr_type_list(char *text, size_t capacity);

#endif
