/* Ops that a host device does together; see fuse.h. */
#include "host/fuse.h"

#include "core/comm.h"

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y + b_bytes && y < x + a_bytes;
}

/* n floats of each. */
static bool floats_overlap(const float *a, const float *b, int64_t n)
{
    return overlap(a, (size_t)n * sizeof *a, b, (size_t)n * sizeof *b);
}

/* The activations that a product reads. */
static bool reads(const tsr_op_mul_mat *op, const float *y, int64_t n)
{
    const int64_t n_x = (op->n_tokens - 1) * op->x_stride + op->k;
    return overlap(op->x, (size_t)n_x * sizeof *op->x, y, (size_t)n * sizeof *y);
}

/* A product, and the sum of its partial alone: over anything but the activations that other threads still
 * multiply. */
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

/* Two products of one token and their activation, which may lie over them. Of many tokens a matrix is better
 * multiplied by itself: larger pieces of it, for which activations are encoded fewer times. */
static bool is_glu(const tsr_op *ops, int n)
{
    if (n < 3 || ops[0].kind != TSR_OP_MUL_MAT || ops[1].kind != TSR_OP_MUL_MAT || ops[2].kind != TSR_OP_GLU)
        return false;
    const tsr_op_mul_mat *a = &ops[0].mul_mat, *b = &ops[1].mul_mat;
    const tsr_op_glu *glu = &ops[2].glu;
    const bool alike = a->type == b->type && a->n_rows == b->n_rows && a->k == b->k && a->x == b->x &&
                       a->n_tokens == 1 && b->n_tokens == 1 && !a->partial && !b->partial;
    const bool of_them = (glu->gate == a->y && glu->up == b->y) || (glu->gate == b->y && glu->up == a->y);
    if (!alike || !of_them || glu->n != a->n_rows)
        return false;
    return (glu->y == a->y || !floats_overlap(glu->y, a->y, glu->n)) &&
           (glu->y == b->y || !floats_overlap(glu->y, b->y, glu->n)) && !reads(a, glu->y, glu->n) &&
           !reads(a, b->y, glu->n) && !floats_overlap(a->y, b->y, glu->n);
}

tsr_host_fusion tsr_host_fuse(const tsr_host_device *host, const tsr_op *ops, int n, int *n_ops_out)
{
    const bool sum = host->kernels->heeds_then && is_sum(ops, n, host->base.index);
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
    const tsr_kernel_then then = {finish_piece, ops};
    tsr_kernel_env with_then = *env;
    with_then.then = &then;
    host->kernels->run[TSR_OP_MUL_MAT](ops, &with_then);
}
