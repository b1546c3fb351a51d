/* mul_mat of quantized types. See mul_mat_float.cuh. */
#include "cuda/mul_mat_float.cuh"

MUL_MAT_DEFINE_ENQUEUE(enqueue, TSR_FOR_EACH_QUANTIZED_TYPE)

tsr_status mul_mat_quantized(tsr_type type, const mul_mat_args &a, const tsr_cuda_stream *s)
{
    if (a.n_tokens == 1)
        return enqueue<1>(type, a, s);
    if (a.n_tokens == 2)
        return enqueue<2>(type, a, s);
    return a.n_tokens <= 4 ? enqueue<4>(type, a, s) : enqueue<MUL_MAT_TOKENS>(type, a, s);
}
