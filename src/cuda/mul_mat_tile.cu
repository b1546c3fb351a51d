/* mul_mat of plain types for more than eight tokens: tiles of eight. See mul_mat_float.cuh. */
#include "cuda/mul_mat_float.cuh"

MUL_MAT_DEFINE_ENQUEUE(enqueue, TSR_FOR_EACH_PLAIN_TYPE)

tsr_status mul_mat_plain_many(tsr_type type, const mul_mat_args &a, const tsr_cuda_stream *s)
{
    return enqueue<MUL_MAT_TOKENS>(type, a, s);
}
