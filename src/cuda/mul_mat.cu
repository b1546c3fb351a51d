/* mul_mat: the launcher. Weights [n_rows][k], activations [n_tokens][x_stride], y [n_tokens][y_stride].
 *
 * Which kernel works depends on the class of the weights' type and on the number of tokens; that the latter
 * never shows in the bits is the kernels' promise (kernels.h), so a library's matrix product, which has an
 * order of its own, could not serve here. */
#include "cuda/mul_mat.cuh"
#include "cuda/mul_mat_half.h"

/* An empty sum is zero: a device may hold rows of a matrix but none of its columns. */
static tsr_status clear(const tsr_op_mul_mat *op, const tsr_cuda_stream *s)
{
    const size_t elem = op->partial && op->reduce == TSR_REDUCE_EXACT ? sizeof(int64_t) : sizeof(float);
    return TSR_CUDA(cudaMemset2DAsync(op->y, (size_t)op->y_stride * elem, 0, (size_t)op->n_rows * elem,
                                      (size_t)op->n_tokens, s->stream));
}

static mul_mat_args args_of(const tsr_op_mul_mat *op, const tsr_cuda_stream *s)
{
    mul_mat_args a = {};
    a.w = static_cast<const unsigned char *>(op->w);
    a.w_stride = op->w_stride;
    a.x = op->x;
    a.x_stride = op->x_stride;
    a.y = op->y;
    a.y_stride = op->y_stride;
    a.n_rows = op->n_rows;
    a.k = op->k;
    a.n_tokens = op->n_tokens;
    a.exact = op->partial && op->reduce == TSR_REDUCE_EXACT;
    a.granule = a.exact ? op->granule : (int64_t)MUL_MAT_CHUNK;
    a.narrow = a.exact && op->granule <= MUL_MAT_CHUNK / 2;
    a.limit = op->limit;
    const bool octets_aligned = a.granule % TSR_OCTET == 0;
    a.wide_w = octets_aligned && tsr_wide_rows(op->w, op->w_stride);
    a.wide_x = octets_aligned && tsr_wide_rows(op->x, (size_t)op->x_stride * sizeof(float));
    a.fault = tsr_fault_of(s);
    return a;
}

static bool is_plain(tsr_type type)
{
    return type == TSR_TYPE_F32 || type == TSR_TYPE_F16 || type == TSR_TYPE_BF16;
}

extern "C" tsr_status tsr_cuda_mul_mat(const tsr_op_mul_mat *op, const tsr_cuda_stream *s)
{
    if (op->n_rows == 0 || op->n_tokens == 0)
        return TSR_OK;
    if (op->k == 0)
        return clear(op, s);
    if (op->type == TSR_TYPE_F16 || op->type == TSR_TYPE_BF16)
        return tsr_cuda_mul_mat_half(op, s);
    const mul_mat_args a = args_of(op, s);
    if (!is_plain(op->type))
        return mul_mat_quantized(op->type, a, s);
    return op->n_tokens <= MUL_MAT_FEW_TOKENS ? mul_mat_plain_few(op->type, a, s)
                                              : mul_mat_plain_many(op->type, a, s);
}
