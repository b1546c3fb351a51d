/* mul_mat with F16 and BF16 weights; half.cuh explains it. Called by mul_mat.cu. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_HALF_H
#define TSR_CUDA_KERNELS_MUL_MAT_HALF_H

#include "cuda/kernels/kernels.h"

TSR_BEGIN_DECLS

/* The op has rows, columns and tokens. */
tsr_status tsr_cuda_mul_mat_half(const tsr_op_mul_mat *op, const tsr_cuda_stream *s);

/* As tsr_cuda_can_mul_mats_q() and tsr_cuda_mul_mats_q() (mul_mat.h). */
bool tsr_cuda_can_mul_mats_half(const tsr_cuda_products *p, const tsr_cuda_stream *s);
tsr_status tsr_cuda_mul_mats_half(const tsr_cuda_products *p, const tsr_cuda_stream *s);

/* Scratch memory with which the op is fastest: parts of the activations, for many tokens. */
size_t tsr_cuda_mul_mat_half_scratch(const tsr_op_mul_mat *op);

TSR_END_DECLS

#endif
