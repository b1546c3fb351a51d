/* mul_mat for one to four tokens, as in decoding: bound by memory, so every weight is loaded once. See
 * mul_mat.cuh. */
#include "cuda/mul_mat.cuh"

tsr_status mul_mat_few_tokens(tsr_type type, const mul_mat_args &a, const tsr_cuda_stream *s)
{
    if (a.n_tokens == 1)
        return mul_mat_enqueue_type<1>(type, a, s);
    if (a.n_tokens == 2)
        return mul_mat_enqueue_type<2>(type, a, s);
    return mul_mat_enqueue_type<4>(type, a, s);
}
