/* mul_mat with F32 weights; see octets.cuh. */
#include "cuda/kernels/mul_mat/octets.cuh"

tsr_status tsr_cuda_mul_mat_f32(const tsr_op_mul_mat *op, const tsr_cuda_stream *s)
{
    return mul_mat_octets<TSR_TYPE_F32>(op, s);
}
