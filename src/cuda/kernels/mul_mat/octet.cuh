/* An octet, eight consecutive elements of a row (quant.cuh), and loading and unpacking its bytes. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_OCTET_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_OCTET_CUH

#include "cuda/kernels/common.cuh"

enum { TSR_OCTET = 8 };

struct tsr_octet {
    float q[TSR_OCTET];
    float scale, minimum;
};

/* The length of an octet where `rest` elements are left. */
TSR_DEVICE int tsr_octet_length(int64_t rest)
{
    return rest <= 0 ? 0 : rest < 8 ? (int)rest : 8;
}

/* Whether every octet that starts at a multiple of 8 elements of rows at `base`, `stride` bytes apart, may be
 * loaded in wide pieces. */
static inline bool tsr_wide_rows(const void *base, size_t stride)
{
    return ((uintptr_t)base | stride) % 16 == 0;
}

/* Eight bytes, minus a bias, as floats without a conversion: a byte in the lowest mantissa bits of 2^23. The
 * permutation takes byte i of the word and three bytes of the constant. */
TSR_DEVICE void tsr_unpack(const uint32_t word[2], float bias, float *q)
{
    TSR_UNROLL
    for (int i = 0; i < TSR_OCTET; i++)
        q[i] = tsr_bits_to_f32(__byte_perm(word[i / 4], 0x4b000000u, 0x7440u | i % 4)) - (8388608.0f + bias);
}

/* One byte, as in tsr_unpack(). */
TSR_DEVICE float tsr_small_float(uint32_t number, float bias)
{
    return tsr_bits_to_f32(0x4b000000u | number) - (8388608.0f + bias);
}

/* Eight bytes at an even address. */
TSR_DEVICE tsr_bytes_8 tsr_load_8(const unsigned char *from, bool wide)
{
    if (wide)
        return *reinterpret_cast<const tsr_bytes_8 *>(from);
    const uint16_t *half = reinterpret_cast<const uint16_t *>(from);
    return {{half[0] | (uint32_t)half[1] << 16, half[2] | (uint32_t)half[3] << 16}};
}

TSR_DEVICE float tsr_load_half(const void *from)
{
    return tsr_half_to_f32(*static_cast<const uint16_t *>(from));
}

#endif
