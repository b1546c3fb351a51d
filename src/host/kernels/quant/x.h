/* A token's activations as a product with quantized weights takes them: bytes where the op asks for 8 bits
 * and the processor multiplies such bytes with the type's quants, otherwise words. Words of 8-bit activations
 * give the same sums. */
#ifndef TSR_HOST_KERNELS_QUANT_X_H
#define TSR_HOST_KERNELS_QUANT_X_H

#include "core/op.h"
#include "host/kernels/quant/types.h"

/* Whether activations are multiplied as bytes. Where products of bytes are added up in 16 bits, quants of 8
 * bits are too large (tile_bytes.h). */
ALWAYS_INLINE bool quant_multiplies_bytes(const tsr_op_mul_mat *op)
{
#if defined(TSR_ISA_QUADS)
    return tsr_op_takes_bytes(op->x_bits);
#elif defined(TSR_ISA_BYTES)
    return tsr_op_takes_bytes(op->x_bits) && quant_byte_offset(op->type) < 128 &&
           !quant_traits_of(op->type)->above_32;
#else
    (void)op;
    return false;
#endif
}

/* Whether the activations of one token or a few that are not bytes are digits with weights of this type
 * (dots.h). */
ALWAYS_INLINE bool quant_takes_digits(tsr_type type)
{
#if defined(TSR_ISA_DIGITS)
    return !quant_traits_of(type)->is_signed && quant_offset(type) < 128;
#else
    (void)type;
    return false;
#endif
}

#if defined(TSR_ISA_BYTES)
enum { BYTE_STEPS = X_BLOCK / 4 }; /* quads of elements */

/* Quads of a block that are added up together: all, or half of them with sub-scales and where sums have 16
 * bits. */
ALWAYS_INLINE int byte_steps(bool sub_scales)
{
#if defined(TSR_ISA_QUADS)
    return sub_scales ? BYTE_STEPS / 2 : BYTE_STEPS;
#else
    (void)sub_scales;
    return BYTE_STEPS / 2;
#endif
}

/* -offset times the sum of half (0, 1) of a block, laid out like a byte_sum. */
ALWAYS_INLINE int32_t byte_begin(const x_block *x, int half, int offset)
{
#if defined(TSR_ISA_QUADS)
    return -offset * x->half[half];
#else
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(x->bytes + half * X_BLOCK / 2));
    const __m128i twos = _mm_maddubs_epi16(_mm_set1_epi8(1), bytes); /* sums of two, two per quad */
    const __m128i two_quads = _mm_add_epi16(twos, _mm_srli_si128(twos, 8));
    const __m128i all = _mm_add_epi16(two_quads, _mm_srli_si128(two_quads, 4));
    return _mm_cvtsi128_si32(_mm_mullo_epi16(all, _mm_set1_epi16((short)-offset)));
#endif
}

/* Set the start of the sums with n blocks. */
ALWAYS_INLINE void byte_x_begin(tsr_type type, x_block *x, int64_t n)
{
    const int offset = quant_byte_offset(type);
    const bool whole = byte_steps(quant_has_sub_scales(type)) == BYTE_STEPS;
    for (int64_t i = 0; i < n; i++) {
        const int32_t second = byte_begin(&x[i], 1, offset);
        x[i].begin[0] = byte_begin(&x[i], 0, offset) + (whole ? second : 0);
        x[i].begin[1] = second;
    }
}
#endif

/* The form in which a tile is multiplied: constants of the code. */
typedef struct quant_form {
    bool is_bytes, sub_scales;
    int minima;
} quant_form;

/* Encode n elements, a multiple of 32, as bytes or as words. */
static void quant_x_encode(const tsr_op_mul_mat *op, const float *x, int64_t n, bool bytes, x_block *blocks)
{
    x_encode(x, n, tsr_op_takes_bytes(op->x_bits) ? X_LIMIT_BYTE : quant_x_limit(op->type), blocks);
    if (bytes)
        x_pack_bytes(blocks, n / X_BLOCK);
}

#endif
