/* Decoding of weights and cached keys and values: eight consecutive elements of a row, an octet, at a time.
 *
 * An octet never crosses a block of 32, nor a sub-block of 16 or 32 with its own scale, so all its elements
 * are scale * q[i] - minimum with one scale and one minimum (core/quant/quant.h has the layouts). q[i] are
 * small integers for quantized types, and the values themselves (scale 1, minimum 0) for plain types. Scale
 * and minimum are exact products of halves and small integers, and so is scale * q[i].
 *
 * Blocks of 34, 18 and 210 bytes are aligned for 16-bit loads only. The other types are loaded in pieces of 8
 * or 16 bytes where `wide` says that the alignment of the row and of the octet's offset allows it. No byte
 * outside the octet and its block's header is loaded. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_QUANT_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_QUANT_CUH

#include <tsr/types.h>

#include "core/quant/quant.h"
#include "cuda/kernels/mul_mat/octet.cuh"
#include "cuda/kernels/mul_mat/quant_code.cuh"
#include "cuda/kernels/mul_mat/quant_rare.cuh"

#define TSR_FOR_EACH_PLAIN_TYPE(X) X(TSR_TYPE_F32) X(TSR_TYPE_F16) X(TSR_TYPE_BF16)
#define TSR_FOR_EACH_QUANTIZED_TYPE(X) \
    X(TSR_TYPE_Q8_0)                   \
    X(TSR_TYPE_Q4_0) X(TSR_TYPE_Q4_K) X(TSR_TYPE_Q5_K) X(TSR_TYPE_Q6_K) X(TSR_TYPE_IQ4_NL) X(TSR_TYPE_MXFP4)

/* The rare types, which are multiplied octet by octet like F32 and have no fast kernels. Those of
 * quant_code.cuh are one here: switches take tsr_kernel_type(). */
/* clang-format takes the types for casts, and its output is not stable. */
/* clang-format off */
#define TSR_FOR_EACH_OCTET_TYPE(X)                                        \
    X(TSR_TYPE_Q4_1) X(TSR_TYPE_Q5_0) X(TSR_TYPE_Q5_1) X(TSR_TYPE_Q2_K)   \
    X(TSR_TYPE_Q3_K) X(TSR_TYPE_IQ4_XS) X(TSR_TYPE_NVFP4) X(TSR_CODE_TYPE)
/* clang-format on */
#define TSR_FOR_EACH_WEIGHT_TYPE(X) \
    TSR_FOR_EACH_PLAIN_TYPE(X) TSR_FOR_EACH_QUANTIZED_TYPE(X) TSR_FOR_EACH_OCTET_TYPE(X)

/* The types that kv_write and copy store, and that attention reads. */
#define TSR_FOR_EACH_CACHE_TYPE(X) \
    X(TSR_TYPE_F32) X(TSR_TYPE_F16) X(TSR_TYPE_BF16) X(TSR_TYPE_Q8_0) X(TSR_TYPE_Q4_0)

template <tsr_type TYPE> struct tsr_weight {
    static constexpr bool plain = TYPE == TSR_TYPE_F32 || TYPE == TSR_TYPE_F16 || TYPE == TSR_TYPE_BF16;
    static constexpr bool minimum = TYPE == TSR_TYPE_Q4_K || TYPE == TSR_TYPE_Q5_K || TYPE == TSR_TYPE_Q4_1 ||
                                    TYPE == TSR_TYPE_Q5_1 || TYPE == TSR_TYPE_Q2_K;
    static constexpr bool never_wide =
        TYPE == TSR_TYPE_Q8_0 || TYPE == TSR_TYPE_Q4_0 || TYPE == TSR_TYPE_Q6_K;
};

/* -- plain types: elements [at, at + left), zeros after them -- */

TSR_DEVICE void tsr_load_floats(const float *from, int left, bool wide, float *q)
{
    if (wide && left == TSR_OCTET) {
        const tsr_floats_4 *four = reinterpret_cast<const tsr_floats_4 *>(from);
        const tsr_floats_4 low = four[0], high = four[1];
        TSR_UNROLL
        for (int i = 0; i < 4; i++) {
            q[i] = low.at[i];
            q[4 + i] = high.at[i];
        }
        return;
    }
    TSR_UNROLL
    for (int i = 0; i < TSR_OCTET; i++)
        q[i] = i < left ? from[i] : 0.0f;
}

template <tsr_type TYPE> TSR_DEVICE float tsr_from_16_bits(uint16_t bits)
{
    return TYPE == TSR_TYPE_F16 ? tsr_half_to_f32(bits) : tsr_bfloat_to_f32(bits);
}

template <tsr_type TYPE> TSR_DEVICE void tsr_load_halves(const uint16_t *from, int left, bool wide, float *q)
{
    if (wide && left == TSR_OCTET) {
        const tsr_bytes_16 all = *reinterpret_cast<const tsr_bytes_16 *>(from);
        TSR_UNROLL
        for (int i = 0; i < TSR_OCTET; i++)
            q[i] = tsr_from_16_bits<TYPE>((uint16_t)(all.word[i / 2] >> (16 * (i % 2))));
        return;
    }
    TSR_UNROLL
    for (int i = 0; i < TSR_OCTET; i++)
        q[i] = i < left ? tsr_from_16_bits<TYPE>(from[i]) : 0.0f;
}

/* -- quantized types: octet number `index` of the row -- */

TSR_DEVICE void tsr_octet_q8_0(const unsigned char *row, uint32_t index, tsr_octet *o)
{
    const unsigned char *block = row + (size_t)(index / 4) * sizeof(tsr_block_q8_0);
    tsr_bytes_8 bytes = tsr_load_8(block + 2 + index % 4 * 8, false);
    o->scale = tsr_load_half(block);
    TSR_UNROLL
    for (int i = 0; i < 2; i++)
        bytes.word[i] ^= 0x80808080u; /* two's complement plus 128 is the sign bit flipped */
    tsr_unpack(bytes.word, 128.0f, o->q);
}

TSR_DEVICE void tsr_octet_q4_0(const unsigned char *row, uint32_t index, tsr_octet *o)
{
    const unsigned char *block = row + (size_t)(index / 4) * sizeof(tsr_block_q4_0);
    const int part = (int)(index % 4); /* elements 0..7, 8..15: low nibbles; 16..23, 24..31: high nibbles */
    tsr_bytes_8 bytes = tsr_load_8(block + 2 + part % 2 * 8, false);
    o->scale = tsr_load_half(block);
    TSR_UNROLL
    for (int i = 0; i < 2; i++)
        bytes.word[i] = bytes.word[i] >> (part / 2 * 4) & 0x0f0f0f0fu;
    tsr_unpack(bytes.word, 8.0f, o->q);
}

/* The header of Q4_K and Q5_K, and the scale and minimum of sub-block s from it (tsr_quant_scale_min). */
TSR_DEVICE void tsr_load_scale_min(const unsigned char *block, int s, bool wide, tsr_octet *o)
{
    uint32_t word[4];
    if (wide)
        memcpy(word, reinterpret_cast<const tsr_bytes_16 *>(block)->word, sizeof word);
    else {
        const uint16_t *half = reinterpret_cast<const uint16_t *>(block);
        TSR_UNROLL
        for (int i = 0; i < 4; i++)
            word[i] = half[2 * i] | (uint32_t)half[2 * i + 1] << 16;
    }
    const int shift = s % 4 * 8;
    const uint32_t a = word[1] >> shift, b = word[2] >> shift, c = word[3] >> shift;
    const uint32_t scale = s < 4 ? a & 63 : (c & 15) | (a >> 6 & 3) << 4;
    const uint32_t minimum = s < 4 ? b & 63 : (c >> 4 & 15) | (b >> 6 & 3) << 4;
    o->scale = tsr_half_to_f32((uint16_t)word[0]) * (float)scale;
    o->minimum = tsr_half_to_f32((uint16_t)(word[0] >> 16)) * (float)minimum;
}

TSR_DEVICE void tsr_octet_q4_k(const unsigned char *row, uint32_t index, bool wide, tsr_octet *o)
{
    const unsigned char *block = row + (size_t)(index / 32) * sizeof(tsr_block_q4_k);
    const int s = (int)(index % 32) / 4, first = (int)(index % 4) * 8;
    tsr_bytes_8 bytes = tsr_load_8(block + 16 + s / 2 * 32 + first, wide);
    tsr_load_scale_min(block, s, wide, o);
    TSR_UNROLL
    for (int i = 0; i < 2; i++)
        bytes.word[i] = bytes.word[i] >> (s % 2 * 4) & 0x0f0f0f0fu;
    tsr_unpack(bytes.word, 0.0f, o->q);
}

TSR_DEVICE void tsr_octet_q5_k(const unsigned char *row, uint32_t index, bool wide, tsr_octet *o)
{
    const unsigned char *block = row + (size_t)(index / 32) * sizeof(tsr_block_q5_k);
    const int s = (int)(index % 32) / 4, first = (int)(index % 4) * 8;
    const tsr_bytes_8 high = tsr_load_8(block + 16 + first, wide);
    tsr_bytes_8 bytes = tsr_load_8(block + 48 + s / 2 * 32 + first, wide);
    tsr_load_scale_min(block, s, wide, o);
    TSR_UNROLL
    for (int i = 0; i < 2; i++)
        bytes.word[i] = (bytes.word[i] >> (s % 2 * 4) & 0x0f0f0f0fu) | (high.word[i] >> s & 0x01010101u) << 4;
    tsr_unpack(bytes.word, 0.0f, o->q);
}

TSR_DEVICE void tsr_octet_q6_k(const unsigned char *row, uint32_t index, tsr_octet *o)
{
    const unsigned char *block = row + (size_t)(index / 32) * sizeof(tsr_block_q6_k);
    const int element = (int)(index % 32) * 8, half = element / 128, k = element / 32 % 4, i0 = element % 32;
    tsr_bytes_8 bytes = tsr_load_8(block + 64 * half + 32 * (k % 2) + i0, false);
    const tsr_bytes_8 high = tsr_load_8(block + 128 + 32 * half + i0, false);
    const signed char scale = static_cast<signed char>(block[192 + element / 16]);
    o->scale = tsr_load_half(block + 208) * (float)scale;
    TSR_UNROLL
    for (int i = 0; i < 2; i++)
        bytes.word[i] = (bytes.word[i] >> (k / 2 * 4) & 0x0f0f0f0fu) | (high.word[i] >> (2 * k) & 0x03030303u)
                                                                           << 4;
    tsr_unpack(bytes.word, 32.0f, o->q);
}

/* -- any type -- */

/* Elements [at, at + left) of a row, left in 0..8; zeros after them. at is a multiple of 8 and left 0 or 8
 * for quantized types. `wide`: the octet is aligned for wide loads (tsr_wide_rows()). `stored`: the row's
 * type, one of those whose kernels are TYPE's. */
template <tsr_type TYPE>
TSR_DEVICE void tsr_octet_load(const unsigned char *row, int64_t at, int left, bool wide, tsr_octet *o,
                               tsr_type stored = TYPE)
{
    o->scale = 1.0f;
    o->minimum = 0.0f;
    if (TYPE == TSR_TYPE_F32) {
        tsr_load_floats(reinterpret_cast<const float *>(row) + at, left, wide, o->q);
        return;
    }
    if (tsr_weight<TYPE>::plain) {
        tsr_load_halves<TYPE>(reinterpret_cast<const uint16_t *>(row) + at, left, wide, o->q);
        return;
    }
    if (left <= 0) {
        TSR_UNROLL
        for (int i = 0; i < TSR_OCTET; i++)
            o->q[i] = 0.0f;
        return;
    }
    const uint32_t index = (uint32_t)at / TSR_OCTET; /* no row has 2^32 elements */
    if (TYPE == TSR_TYPE_Q8_0)
        tsr_octet_q8_0(row, index, o);
    else if (TYPE == TSR_TYPE_Q4_0)
        tsr_octet_q4_0(row, index, o);
    else if (TYPE == TSR_TYPE_Q4_K)
        tsr_octet_q4_k(row, index, wide, o);
    else if (TYPE == TSR_TYPE_Q5_K)
        tsr_octet_q5_k(row, index, wide, o);
    else if (TYPE == TSR_TYPE_Q6_K)
        tsr_octet_q6_k(row, index, o);
    else if (TYPE == TSR_CODE_TYPE)
        tsr_octet_code(row, index, stored, o);
    else
        tsr_octet_rare<TYPE>(row, index, o);
}

/* The octet's element i, equal to tsr_type_to_f32(). */
TSR_DEVICE float tsr_octet_value(const tsr_octet &o, int i)
{
    return o.scale * o.q[i] - o.minimum;
}

/* Sum of the octet's elements times x, a chain from the first to the last. x_sum is the sum of x, used only
 * for types with a minimum. */
template <tsr_type TYPE> TSR_DEVICE float tsr_octet_dot(const tsr_octet &o, const float *x, float x_sum)
{
    float sum = o.q[0] * x[0];
    TSR_UNROLL
    for (int i = 1; i < TSR_OCTET; i++)
        sum = fmaf(o.q[i], x[i], sum);
    if (tsr_weight<TYPE>::plain)
        return sum;
    sum = o.scale * sum;
    return tsr_weight<TYPE>::minimum ? fmaf(-o.minimum, x_sum, sum) : sum;
}

#endif
