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

extern "C" bool tsr_cuda_share_a_launch(const tsr_op_mul_mat *one, const tsr_op_mul_mat *other)
{
    return one->type == other->type && one->w_stride == other->w_stride && one->x_bits == other->x_bits &&
           !one->partial && !other->partial;
}

/* The products of p from number `first` on that share a launch. */
static tsr_cuda_products run_from(const tsr_cuda_products *p, int first)
{
    tsr_cuda_products run = *p;
    run.first = first;
    run.n = 0;
    while (first + run.n < p->n &&
           (run.n == 0 || tsr_cuda_share_a_launch(p->of[first], p->of[first + run.n]))) {
        run.of[run.n] = p->of[first + run.n];
        run.n++;
    }
    return run;
}

static bool can(const tsr_cuda_products *run, const tsr_cuda_stream *s)
{
    const tsr_type type = run->of[0]->type;
    if (type == TSR_TYPE_F32 || tsr_cuda_mul_mat_is_rare(type))
        return false;
    return is_half(type) ? tsr_cuda_can_mul_mats_half(run, s) : tsr_cuda_can_mul_mats_q(run, s);
}

extern "C" tsr_status tsr_cuda_mul_mats(const tsr_cuda_products *p, const tsr_cuda_stream *s, int *n_out)
{
    tsr_status status = TSR_OK;
    tsr_cuda_stream of_run = *s;
    tsr_cuda_products run;
    int n = 0;
    *n_out = 0;
    for (; n < p->n; n += run.n) {
        run = run_from(p, n);
        if (!can(&run, s))
            break;
    }
    if (n < p->n && p->heads.n_ops > 0)
        return TSR_OK;
    for (; *n_out < n && status == TSR_OK; *n_out += run.n) {
        run = run_from(p, *n_out);
        of_run.sibling = s->sibling || run.first > 0;
        of_run.op_index = s->op_index + run.first;
        status = is_half(run.of[0]->type) ? tsr_cuda_mul_mats_half(&run, &of_run)
                                          : tsr_cuda_mul_mats_q(&run, &of_run);
    }
    return status;
}

extern "C" size_t tsr_cuda_mul_mat_scratch(const tsr_op_mul_mat *op)
{
    if (op->type == TSR_TYPE_F32 || tsr_cuda_mul_mat_is_rare(op->type))
        return 0;
    return is_half(op->type) ? tsr_cuda_mul_mat_half_scratch(op) : tsr_cuda_mul_mat_q_scratch(op);
}
