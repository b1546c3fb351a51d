/* mul_mat with the quantized types that have no kernels on tensor cores; see octets.cuh. */
#include "cuda/api/check.h"
#include "cuda/kernels/mul_mat/octets.cuh"

bool tsr_cuda_mul_mat_is_rare(tsr_type type)
{
    switch (tsr_kernel_type(type)) {
#define RARE_CASE(type) case type:
        TSR_FOR_EACH_OCTET_TYPE(RARE_CASE)
#undef RARE_CASE
        return true;
    default:
        return false;
    }
}

tsr_status tsr_cuda_mul_mat_rare(const tsr_op_mul_mat *op, const tsr_cuda_stream *s)
{
    switch (tsr_kernel_type(op->type)) {
#define RARE_CASE(type) \
    case type:          \
        return mul_mat_octets<type>(op, s);
        TSR_FOR_EACH_OCTET_TYPE(RARE_CASE)
#undef RARE_CASE
    default:
        return tsr_cuda_result(cudaErrorNotSupported, "octets_kernel");
    }
}
