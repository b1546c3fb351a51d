/* A token's activations as a product with quantized weights takes them: words, or bytes where the op asks for
 * 8 bits and the processor multiplies such bytes as the weights are. Others multiply words of 8 bits, which
 * gives the same sums. */
#ifndef TSR_HOST_KERNELS_QUANT_X_H
#define TSR_HOST_KERNELS_QUANT_X_H

#include "core/op.h"
#include "host/kernels/quants.h"

/* Where products of bytes are added up in 16 bits, quanta of 8 bits are too large (quants_bytes.h). */
ALWAYS_INLINE bool quant_multiplies_bytes(const tsr_op_mul_mat *op)
{
#if defined(TSR_ISA_QUADS)
    return tsr_op_takes_bytes(op->x_bits);
#elif defined(TSR_ISA_BYTES)
    return tsr_op_takes_bytes(op->x_bits) && quant_byte_offset(op->type) < 128;
#else
    (void)op;
    return false;
#endif
}

/* How a tile is multiplied: constants of the code. */
typedef struct quant_form {
    bool is_bytes, sub_scales;
    int minima;
} quant_form;

/* n elements, a multiple of 32, as bytes or as words. */
static void quant_x_encode(const tsr_op_mul_mat *op, const float *x, int64_t n, bool bytes, x_block *blocks)
{
    x_encode(x, n, tsr_op_takes_bytes(op->x_bits) ? X_LIMIT_BYTE : quant_x_limit(op->type), blocks);
    if (bytes)
        x_pack_bytes(blocks, n / X_BLOCK);
}

#endif
