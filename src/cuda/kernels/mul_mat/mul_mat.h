/* mul_mat by class of weights; called by mul_mat.cu with an op that has rows, columns and tokens. F16 and
 * BF16 are in half.h. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_MUL_MAT_H
#define TSR_CUDA_KERNELS_MUL_MAT_MUL_MAT_H

#include "cuda/kernels/kernels.h"

TSR_BEGIN_DECLS

/* F32 weights. */
tsr_status tsr_cuda_mul_mat_f32(const tsr_op_mul_mat *op, const tsr_cuda_stream *s);

/* Quantized weights of the rare types, which are multiplied as floats. */
bool tsr_cuda_mul_mat_is_rare(tsr_type type);
tsr_status tsr_cuda_mul_mat_rare(const tsr_op_mul_mat *op, const tsr_cuda_stream *s);

/* Other quantized weights. With less scratch memory than tsr_cuda_mul_mat_q_scratch() the tokens are taken in
 * portions; TSR_ERR_MEMORY where there is no room for one token. */
tsr_status tsr_cuda_mul_mat_q(const tsr_op_mul_mat *op, const tsr_cuda_stream *s);

/* Whether one launch can have all of the products, which share it as tsr_cuda_share_a_launch() says; and that
 * launch. */
bool tsr_cuda_can_mul_mats_q(const tsr_cuda_products *p, const tsr_cuda_stream *s);
tsr_status tsr_cuda_mul_mats_q(const tsr_cuda_products *p, const tsr_cuda_stream *s);
size_t tsr_cuda_mul_mat_q_scratch(const tsr_op_mul_mat *op);

TSR_END_DECLS

#endif
