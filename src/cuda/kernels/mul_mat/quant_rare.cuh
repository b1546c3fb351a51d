/* Octets (quant.cuh) of the rare quantized types: Q4_1, Q5_0, Q5_1, IQ4_NL, IQ4_XS, MXFP4, NVFP4, Q2_K and
 * Q3_K. Their bytes are loaded two at a time, MXFP4's one by one: its blocks have 17. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_QUANT_RARE_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_QUANT_RARE_CUH

#include <tsr/types.h>

#include "core/quant/quant.h"
#include "cuda/kernels/mul_mat/octet.cuh"

TSR_DEVICE tsr_bytes_8 tsr_load_8_bytes(const unsigned char *from)
{
    tsr_bytes_8 bytes = {};
    TSR_UNROLL
    for (int i = 0; i < TSR_OCTET; i++)
        bytes.word[i / 4] |= (uint32_t)from[i] << (8 * (i % 4));
    return bytes;
}

/* Part 0..3 of 32 nibbles, 0..15 in low and 16..31 in high nibbles. `bytes`: the bytes of the part, replaced
 * by its nibbles. */
TSR_DEVICE void tsr_pick_nibbles(tsr_bytes_8 *bytes, int part)
{
    TSR_UNROLL
    for (int i = 0; i < 2; i++)
        bytes->word[i] = bytes->word[i] >> (part / 2 * 4) & 0x0f0f0f0fu;
}

/* Bit i of the byte becomes bit 4 of byte i; the product makes copies of four bits, seven apart. */
TSR_DEVICE void tsr_add_fifth_bits(tsr_bytes_8 *bytes, uint32_t high)
{
    bytes->word[0] |= ((high & 15) * 0x204081u & 0x01010101u) << 4;
    bytes->word[1] |= ((high >> 4) * 0x204081u & 0x01010101u) << 4;
}

/* Four codes, a nibble in each byte, choose bytes of a table of sixteen: each byte by three bits of its code
 * from either half of the table, and then by the fourth bit from one of the halves. */
TSR_DEVICE uint32_t tsr_choose_4(uint32_t codes, uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3)
{
    const uint32_t all = __byte_perm(codes | codes >> 4, 0, 0x4420); /* the four codes in 16 bits */
    const uint32_t low = __byte_perm(t0, t1, all & 0x7777u), high = __byte_perm(t2, t3, all & 0x7777u);
    return __byte_perm(low, high, 0x3210u + ((all & 0x8888u) >> 1));
}

/* Eight nibbles looked up in a table of sixteen signed bytes, four to a word. */
TSR_DEVICE void tsr_look_up(const tsr_bytes_8 &nibbles, uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3,
                            float *q)
{
    const uint32_t plus_128 = 0x80808080u;
    uint32_t word[2];
    TSR_UNROLL
    for (int i = 0; i < 2; i++)
        word[i] = tsr_choose_4(nibbles.word[i], t0 ^ plus_128, t1 ^ plus_128, t2 ^ plus_128, t3 ^ plus_128);
    tsr_unpack(word, 128.0f, q);
}

TSR_DEVICE void tsr_look_up_iq4(const tsr_bytes_8 &nibbles, float *q) /* TSR_QUANT_IQ4_VALUES */
{
    tsr_look_up(nibbles, 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u, q);
}

TSR_DEVICE void tsr_look_up_fp4(const tsr_bytes_8 &nibbles, float *q) /* TSR_QUANT_FP4_VALUES */
{
    tsr_look_up(nibbles, 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu, q);
}

/* tsr_quant_mx_scale() */
TSR_DEVICE float tsr_mx_scale(uint32_t e)
{
    return tsr_bits_to_f32(e == 255 ? 0x7fc00000u : e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

/* Types with blocks of 32: the bytes, and the offsets of nibbles and fifth bits in a block. */
template <tsr_type TYPE> struct tsr_rare_block {
    static constexpr int bytes = TYPE == TSR_TYPE_Q4_1     ? sizeof(tsr_block_q4_1)
                                 : TYPE == TSR_TYPE_Q5_0   ? sizeof(tsr_block_q5_0)
                                 : TYPE == TSR_TYPE_Q5_1   ? sizeof(tsr_block_q5_1)
                                 : TYPE == TSR_TYPE_IQ4_NL ? sizeof(tsr_block_iq4_nl)
                                                           : sizeof(tsr_block_mxfp4);
    static constexpr bool fifth = TYPE == TSR_TYPE_Q5_0 || TYPE == TSR_TYPE_Q5_1;
    static constexpr int q = bytes - TSR_QUANT_BLOCK / 2, high = q - 4;
};

template <tsr_type TYPE>
TSR_DEVICE void tsr_octet_rare_block(const unsigned char *row, uint32_t index, tsr_octet *o)
{
    const unsigned char *block = row + (size_t)(index / 4) * tsr_rare_block<TYPE>::bytes;
    const int part = (int)(index % 4);
    const unsigned char *from = block + tsr_rare_block<TYPE>::q + part % 2 * 8;
    tsr_bytes_8 bytes = TYPE == TSR_TYPE_MXFP4 ? tsr_load_8_bytes(from) : tsr_load_8(from, false);
    tsr_pick_nibbles(&bytes, part);
    if (tsr_rare_block<TYPE>::fifth)
        tsr_add_fifth_bits(&bytes, block[tsr_rare_block<TYPE>::high + part]);
    o->scale = TYPE == TSR_TYPE_MXFP4 ? tsr_mx_scale(block[0]) : tsr_load_half(block);
    if (TYPE == TSR_TYPE_Q4_1 || TYPE == TSR_TYPE_Q5_1)
        o->minimum = -tsr_load_half(block + 2);
    if (TYPE == TSR_TYPE_IQ4_NL)
        tsr_look_up_iq4(bytes, o->q);
    else if (TYPE == TSR_TYPE_MXFP4)
        tsr_look_up_fp4(bytes, o->q);
    else
        tsr_unpack(bytes.word, TYPE == TSR_TYPE_Q5_0 ? 16.0f : 0.0f, o->q);
}

TSR_DEVICE void tsr_octet_iq4_xs(const unsigned char *row, uint32_t index, tsr_octet *o)
{
    const unsigned char *block = row + (size_t)(index / 32) * sizeof(tsr_block_iq4_xs);
    const int s = (int)(index % 32) / 4, part = (int)(index % 4);
    tsr_bytes_8 bytes = tsr_load_8(block + 8 + 16 * s + part % 2 * 8, false);
    const uint32_t high = (block[2] | (uint32_t)block[3] << 8) >> (2 * s) & 3;
    const uint32_t scale = (block[4 + s / 2] >> (s % 2 * 4) & 15) | high << 4;
    o->scale = tsr_load_half(block) * tsr_small_float(scale, 32.0f);
    tsr_pick_nibbles(&bytes, part);
    tsr_look_up_iq4(bytes, o->q);
}

/* tsr_quant_nv_scale() */
TSR_DEVICE float tsr_nv_scale(uint32_t e)
{
    const uint32_t exponent = e >> 3 & 15, mantissa = e & 7;
    const float significand = tsr_small_float(exponent > 0 ? 8 + mantissa : mantissa, 0.0f);
    return e == 127 ? 0.0f : significand * tsr_bits_to_f32((116 + (exponent > 0 ? exponent : 1)) << 23);
}

TSR_DEVICE void tsr_octet_nvfp4(const unsigned char *row, uint32_t index, tsr_octet *o)
{
    const unsigned char *block = row + (size_t)(index / 8) * sizeof(tsr_block_nvfp4);
    const int s = (int)(index % 8) / 2;
    tsr_bytes_8 bytes = tsr_load_8(block + 4 + 8 * s, false);
    TSR_UNROLL
    for (int i = 0; i < 2; i++)
        bytes.word[i] = bytes.word[i] >> (index % 2 * 4) & 0x0f0f0f0fu;
    o->scale = tsr_nv_scale(block[s]);
    tsr_look_up_fp4(bytes, o->q);
}

/* The two low bits of Q2_K and Q3_K: eight elements from element `e` on; the bytes begin at q. */
TSR_DEVICE tsr_bytes_8 tsr_load_two_bits(const unsigned char *q, int e)
{
    tsr_bytes_8 bytes = tsr_load_8(q + 32 * (e / 128) + e % 32, false);
    TSR_UNROLL
    for (int i = 0; i < 2; i++)
        bytes.word[i] = bytes.word[i] >> (e % 128 / 32 * 2) & 0x03030303u;
    return bytes;
}

TSR_DEVICE void tsr_octet_q2_k(const unsigned char *row, uint32_t index, tsr_octet *o)
{
    const unsigned char *block = row + (size_t)(index / 32) * sizeof(tsr_block_q2_k);
    const int e = (int)(index % 32) * 8;
    const tsr_bytes_8 bytes = tsr_load_two_bits(block + 16, e);
    o->scale = tsr_load_half(block + 80) * tsr_small_float(block[e / 16] & 15, 0.0f);
    o->minimum = tsr_load_half(block + 82) * tsr_small_float(block[e / 16] >> 4, 0.0f);
    tsr_unpack(bytes.word, 0.0f, o->q);
}

TSR_DEVICE void tsr_octet_q3_k(const unsigned char *row, uint32_t index, tsr_octet *o)
{
    const unsigned char *block = row + (size_t)(index / 32) * sizeof(tsr_block_q3_k), *packed = block + 96;
    const int e = (int)(index % 32) * 8, s = e / 16;
    const tsr_bytes_8 high = tsr_load_8(block + e % 32, false);
    const uint32_t low = s < 8 ? packed[s] & 15u : packed[s - 8] >> 4; /* tsr_quant_q3_scale() */
    const uint32_t scale = low | (packed[8 + s % 4] >> (s / 4 * 2) & 3u) << 4;
    tsr_bytes_8 bytes = tsr_load_two_bits(block + 32, e);
    TSR_UNROLL
    for (int i = 0; i < 2; i++)
        bytes.word[i] |= (high.word[i] >> (e / 32) & 0x01010101u) << 2;
    o->scale = tsr_load_half(block + 108) * tsr_small_float(scale, 32.0f);
    tsr_unpack(bytes.word, 4.0f, o->q);
}

/* Load octet number `index` of the row; o->minimum is 0 before. */
template <tsr_type TYPE>
TSR_DEVICE void tsr_octet_rare(const unsigned char *row, uint32_t index, tsr_octet *o)
{
    if (TYPE == TSR_TYPE_NVFP4)
        tsr_octet_nvfp4(row, index, o);
    else if (TYPE == TSR_TYPE_IQ4_XS)
        tsr_octet_iq4_xs(row, index, o);
    else if (TYPE == TSR_TYPE_Q2_K)
        tsr_octet_q2_k(row, index, o);
    else if (TYPE == TSR_TYPE_Q3_K)
        tsr_octet_q3_k(row, index, o);
    else
        tsr_octet_rare_block<TYPE>(row, index, o);
}

#endif
