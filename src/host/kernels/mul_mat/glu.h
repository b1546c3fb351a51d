/* The products of gate and up with one token, and the activation of both, piece by piece: a thread that has
 * multiplied some rows of both matrices has all inputs of their outputs. The bits are those of two mul_mats
 * and a glu. */
#ifndef TSR_HOST_KERNELS_MUL_MAT_GLU_H
#define TSR_HOST_KERNELS_MUL_MAT_GLU_H

#include "host/kernels/ops/elementwise.h"
#include "host/kernels/mul_mat/mul_mat.h"

/* The products a and b have the same shape and type and read the same activations. */
static void kernel_products_glu(const tsr_op *a, const tsr_op *b, const tsr_op *glu,
                                const tsr_kernel_env *env)
{
    const int64_t n_rows = a->mul_mat.n_rows;
    bool fault = false; /* stays false with f32 sums */
    product first = {.op = &a->mul_mat, .token_end = 1, .fault = &fault, .env = env};
    const mul_mat_pieces pieces = mul_mat_cut(&first);
    mul_mat_begin(&first, env->scratch);
    for (int64_t piece; (piece = tsr_kernel_next_piece(env, pieces.n)) >= 0;) {
        first.row = piece * pieces.rows;
        first.row_end = n_rows - first.row < pieces.rows ? n_rows : first.row + pieces.rows;
        product second = first;
        second.op = &b->mul_mat;
        mul_mat_product(&first, env->scratch);
        mul_mat_product(&second, env->scratch);
        glu_part(glu->glu.kind, &glu->glu, (range){first.row, first.row_end});
    }
}

#endif
