/* mul_mat: weights [n_rows][k], activations [n_tokens][x_stride], y [n_tokens][y_stride].
 *
 * Each class of weights has kernels of its own, for few tokens and for many. They guarantee that the number
 * of tokens never changes the bits (kernels.h). A library's matrix product, whose order depends on the shape,
 * does not. */
#include "cuda/api/check.h"
#include "cuda/kernels/mul_mat/half.h"
#include "cuda/kernels/mul_mat/mul_mat.h"

/* An empty sum is zero: a device may hold rows of a matrix but none of its columns. */
static tsr_status clear(const tsr_op_mul_mat *op, const tsr_cuda_stream *s)
{
    const size_t elem = op->partial ? tsr_reduce_bytes(op->reduce) : sizeof(float);
    return TSR_CUDA(cudaMemset2DAsync(op->y, (size_t)op->y_stride * elem, 0, (size_t)op->n_rows * elem,
                                      (size_t)op->n_tokens, s->stream));
}

static bool is_half(tsr_type type)
{
    return type == TSR_TYPE_F16 || type == TSR_TYPE_BF16;
}

extern "C" tsr_status tsr_cuda_mul_mat(const tsr_op_mul_mat *op, const tsr_cuda_stream *s)
{
    if (op->n_rows == 0 || op->n_tokens == 0)
        return TSR_OK;
    if (op->k == 0)
        return clear(op, s);
    if (op->type == TSR_TYPE_F32)
        return tsr_cuda_mul_mat_f32(op, s);
    if (tsr_cuda_mul_mat_is_rare(op->type))
        return tsr_cuda_mul_mat_rare(op, s);
    return is_half(op->type) ? tsr_cuda_mul_mat_half(op, s) : tsr_cuda_mul_mat_q(op, s);
}

extern "C" tsr_status tsr_cuda_mul_mats(const tsr_cuda_products *p, const tsr_cuda_stream *s, bool *done_out)
{
    const tsr_type type = p->of[0]->type;
    *done_out = false;
    if (type == TSR_TYPE_F32 || tsr_cuda_mul_mat_is_rare(type))
        return TSR_OK;
    return is_half(type) ? tsr_cuda_mul_mats_half(p, s, done_out) : tsr_cuda_mul_mats_q(p, s, done_out);
}

extern "C" size_t tsr_cuda_mul_mat_scratch(const tsr_op_mul_mat *op)
{
    if (op->type == TSR_TYPE_F32 || tsr_cuda_mul_mat_is_rare(op->type))
        return 0;
    return is_half(op->type) ? tsr_cuda_mul_mat_half_scratch(op) : tsr_cuda_mul_mat_q_scratch(op);
}
