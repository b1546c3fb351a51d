/* Ops over experts with the quantized types of mul_mat/q_chunk.cuh; called by experts_glu.cu and
 * experts_down.cu with ops that have rows, columns, tokens and held experts. */
#ifndef TSR_CUDA_KERNELS_EXPERTS_EXPERTS_Q_H
#define TSR_CUDA_KERNELS_EXPERTS_EXPERTS_Q_H

#include "cuda/kernels/kernels.h"

TSR_BEGIN_DECLS

/* Whether the functions below take matrices of this type. */
bool tsr_cuda_experts_q_takes(tsr_type type);

/* The matrices of a pass over gate and up: both, which are of one type; or gate first, then up, which
 * multiplies the first pass's results in y. */
typedef enum tsr_glu_pass { TSR_GLU_BOTH, TSR_GLU_GATE, TSR_GLU_UP } tsr_glu_pass;

/* With less scratch memory than tsr_cuda_experts_*_scratch() the tokens are taken in portions;
 * TSR_ERR_MEMORY where there is no room for one token. */
tsr_status tsr_cuda_experts_glu_q(const tsr_op_experts_glu *op, tsr_glu_pass pass, const tsr_cuda_stream *s);
tsr_status tsr_cuda_experts_down_q(const tsr_op_experts_down *op, const tsr_cuda_stream *s);

TSR_END_DECLS

#endif
