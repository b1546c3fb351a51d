/* Fusing of ops on a host device; see fuse.h. */
#include "host/fuse.h"

#include "core/comm.h"

/* Whether a product reads activations in [y, y + n). */
static bool reads(const tsr_op_mul_mat *op, const float *y, int64_t n)
{
    return tsr_op_floats_overlap(op->x, (op->n_tokens - 1) * op->x_stride + op->k, y, n);
}

/* A product, and the sum of its partial alone. The sum must not overwrite the activations that other threads
 * still multiply. */
static bool is_sum(const tsr_op *ops, int n, int device)
{
    if (n < 2 || ops[0].kind != TSR_OP_MUL_MAT || ops[1].kind != TSR_OP_ALL_REDUCE)
        return false;
    const tsr_op_mul_mat *product = &ops[0].mul_mat;
    const tsr_op_all_reduce *sum = &ops[1].all_reduce;
    return sum->collective->comm->ops->finish && tsr_collective_is_alone(sum->collective) &&
           product->partial && sum->collective->desc->partial[device] == product->y &&
           product->y_stride == product->n_rows && sum->n == product->n_rows * product->n_tokens &&
           !reads(product, sum->y, sum->n);
}

/* Two products of one token and their activation, which may overwrite them. With many tokens each matrix is
 * better multiplied alone: pieces are larger, and activations are encoded fewer times. */
static bool is_glu(const tsr_op *ops, int n)
{
    if (n < 3 || ops[0].kind != TSR_OP_MUL_MAT || ops[1].kind != TSR_OP_MUL_MAT || ops[2].kind != TSR_OP_GLU)
        return false;
    const tsr_op_mul_mat *a = &ops[0].mul_mat, *b = &ops[1].mul_mat;
    const tsr_op_glu *glu = &ops[2].glu;
    const bool alike = a->type == b->type && a->x_bits == b->x_bits && a->n_rows == b->n_rows &&
                       a->k == b->k && a->x == b->x && a->n_tokens == 1 && b->n_tokens == 1 && !a->partial &&
                       !b->partial;
    const bool of_them = (glu->gate == a->y && glu->up == b->y) || (glu->gate == b->y && glu->up == a->y);
    if (!alike || !of_them || glu->n != a->n_rows)
        return false;
    return (glu->y == a->y || !tsr_op_floats_overlap(glu->y, glu->n, a->y, glu->n)) &&
           (glu->y == b->y || !tsr_op_floats_overlap(glu->y, glu->n, b->y, glu->n)) &&
           !reads(a, glu->y, glu->n) && !reads(a, b->y, glu->n) &&
           !tsr_op_floats_overlap(a->y, glu->n, b->y, glu->n);
}

tsr_host_fusion tsr_host_fuse(const tsr_host_device *host, const tsr_op *ops, int n, int *n_ops_out)
{
    const bool sum = host->kernels->has_epilogue && is_sum(ops, n, host->base.index);
    const bool glu = host->kernels->products_glu && is_glu(ops, n);
    *n_ops_out = glu ? 3 : sum ? 2 : 1;
    return glu ? TSR_HOST_FUSION_GLU : sum ? TSR_HOST_FUSION_SUM : TSR_HOST_FUSION_NONE;
}

static void finish_piece(const void *what, int64_t row, int64_t row_end, int64_t token, int64_t token_end)
{
    const tsr_op *product = what, *sum = product + 1;
    tsr_comm *comm = sum->all_reduce.collective->comm;
    for (int64_t t = token; t < token_end; t++) {
        const int64_t at = t * product->mul_mat.n_rows;
        comm->ops->finish(comm, sum, at + row, at + row_end);
    }
}

void tsr_host_run_fused(const tsr_host_device *host, tsr_host_fusion fusion, const tsr_op *ops,
                        const tsr_kernel_env *env)
{
    if (fusion == TSR_HOST_FUSION_GLU) {
        host->kernels->products_glu(&ops[0], &ops[1], &ops[2], env);
        return;
    }
    const tsr_kernel_epilogue epilogue = {finish_piece, ops};
    tsr_kernel_env with_epilogue = *env;
    with_epilogue.epilogue = &epilogue;
    host->kernels->run[TSR_OP_MUL_MAT](ops, &with_epilogue);
}
