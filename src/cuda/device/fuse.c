/* Fusing of neighbouring ops; see fuse.h. */
#include "cuda/device/fuse.h"

#include <stddef.h>

#include "core/comm.h"

const tsr_op *tsr_cuda_fuse_norm(const tsr_op *ops, int n)
{
    if (n < 2 || ops[0].kind != TSR_OP_ALL_REDUCE || ops[1].kind != TSR_OP_RMS_NORM)
        return NULL;
    const tsr_op_all_reduce *sum = &ops[0].all_reduce;
    const tsr_op_rms_norm *norm = &ops[1].rms_norm;
    int64_t n_elems = norm->n * norm->n_rows;
    bool apart = norm->y == sum->y || !tsr_op_floats_overlap(norm->y, n_elems, sum->y, n_elems);
    if (sum->residual)
        apart = apart && (norm->y == sum->residual ||
                          !tsr_op_floats_overlap(norm->y, n_elems, sum->residual, n_elems));
    return norm->n_weights <= 1 && norm->x == sum->y && n_elems == sum->n && n_elems > 0 && apart ? &ops[1]
                                                                                                  : NULL;
}

static int64_t elements(const tsr_op_rope *rope)
{
    return rope->n_tokens * rope->n_heads * rope->head_dim;
}

/* Whether input and output are the same or do not overlap. */
static bool is_plain(const tsr_op_rope *rope)
{
    return rope->x == rope->y || !tsr_op_floats_overlap(rope->x, elements(rope), rope->y, elements(rope));
}

static int64_t value_elements(const tsr_op_kv_write *write)
{
    return write->n_tokens * write->kv.n_heads * write->kv.v_dim;
}

static bool writes_keys_of(const tsr_op_kv_write *write, const tsr_op_rope *k)
{
    enum { GROUP = 32 }; /* a warp rotates pairs inside one group, or in two groups of the same lanes */
    return write->k == k->y && write->n_tokens == k->n_tokens && write->kv.n_heads == k->n_heads &&
           write->kv.k_dim == k->head_dim && !write->kv.v_in_k && write->kv.ratio <= 1 &&
           (k->interleaved || k->n_rot / 2 % GROUP == 0) && is_plain(k) &&
           !tsr_op_floats_overlap(k->y, elements(k), write->v, value_elements(write));
}

static bool goes_along(const tsr_op_rope *q, const tsr_op_rope *k, const tsr_op_kv_write *write)
{
    int64_t n_q = elements(q), n_k = elements(k);
    return is_plain(q) && !tsr_op_floats_overlap(q->y, n_q, k->x, n_k) &&
           !tsr_op_floats_overlap(q->y, n_q, k->y, n_k) && !tsr_op_floats_overlap(q->x, n_q, k->y, n_k) &&
           !tsr_op_floats_overlap(q->y, n_q, write->v, value_elements(write));
}

tsr_cuda_rope_kv_ops tsr_cuda_fuse_rope_kv(const tsr_op *ops, int n)
{
    tsr_cuda_rope_kv_ops found = {0};
    bool with_q = n > 2 && ops[0].kind == TSR_OP_ROPE && ops[1].kind == TSR_OP_ROPE;
    const tsr_op *k = &ops[with_q ? 1 : 0];
    if (n < 2 || k->kind != TSR_OP_ROPE || k[1].kind != TSR_OP_KV_WRITE ||
        !writes_keys_of(&k[1].kv_write, &k->rope) ||
        (with_q && !goes_along(&ops[0].rope, &k->rope, &k[1].kv_write)))
        return found; /* the rope of queries alone; the rope of keys is checked next */
    found.q = with_q ? &ops[0].rope : NULL;
    found.k = &k->rope;
    found.write = &k[1].kv_write;
    found.n_ops = with_q ? 3 : 2;
    return found;
}

/* Floats that a product reads, from op->x on. */
static int64_t floats_read(const tsr_op_mul_mat *op)
{
    return (op->n_tokens - 1) * op->x_stride + op->k;
}

/* The bytes from the first to the last that a product writes. */
static size_t bytes_written(const tsr_op_mul_mat *op)
{
    size_t elem = op->partial ? tsr_reduce_bytes(op->reduce) : sizeof(float);
    return (size_t)((op->n_tokens - 1) * op->y_stride + op->n_rows) * elem;
}

static bool writes_into(const tsr_op_mul_mat *op, const void *begin, size_t bytes)
{
    uintptr_t from = (uintptr_t)op->y, to = from + bytes_written(op), other = (uintptr_t)begin;
    return from < other + bytes && other < to;
}

/* Whether two products multiply the same activations, and neither writes what the other reads or writes. */
static bool are_siblings(const tsr_op *one, const tsr_op *other)
{
    if (one->kind != TSR_OP_MUL_MAT || other->kind != TSR_OP_MUL_MAT)
        return false;
    const tsr_op_mul_mat *first = &one->mul_mat, *second = &other->mul_mat;
    size_t bytes = (size_t)floats_read(second) * sizeof(float);
    return first->n_rows > 0 && second->n_rows > 0 && first->k == second->k && second->k > 0 &&
           first->x == second->x && first->x_stride == second->x_stride &&
           first->n_tokens == second->n_tokens && second->n_tokens > 0 &&
           !writes_into(first, second->x, bytes) && !writes_into(second, first->x, bytes) &&
           !writes_into(first, second->y, bytes_written(second));
}

bool tsr_cuda_is_sibling(const tsr_op *ops, int first, int i)
{
    for (int j = first; j < i; j++)
        if (!are_siblings(&ops[j], &ops[i]))
            return false;
    return first < i;
}

/* Whether ops[0] and ops[1] are products of which ops[2] makes the hidden values of an FFN, one kernel may
 * compute all of them, and ops[2] overwrites nothing that rows of the products still read. */
static bool are_gate_and_up(const tsr_op *ops, int n)
{
    if (n < 3 || ops[2].kind != TSR_OP_GLU || !are_siblings(&ops[0], &ops[1]))
        return false;
    const tsr_op_mul_mat *one = &ops[0].mul_mat, *other = &ops[1].mul_mat;
    const tsr_op_glu *glu = &ops[2].glu;
    const int64_t rows = one->n_rows, n_x = floats_read(one);
    const bool dense = one->n_tokens == 1 || (one->y_stride == rows && other->y_stride == rows);
    const bool of_both =
        (glu->gate == one->y && glu->up == other->y) || (glu->gate == other->y && glu->up == one->y);
    return of_both && dense && tsr_cuda_share_a_launch(one, other) && other->n_rows == rows &&
           glu->n == rows * one->n_tokens && !tsr_op_floats_overlap(glu->y, glu->n, one->x, n_x) &&
           (glu->y == glu->gate || !tsr_op_floats_overlap(glu->y, glu->n, glu->gate, glu->n)) &&
           (glu->y == glu->up || !tsr_op_floats_overlap(glu->y, glu->n, glu->up, glu->n));
}

/* Whether n_y floats overwrite no result of ops[0, n), which are products. */
static bool is_apart_from(const float *y, int64_t n_y, const tsr_op *ops, int n)
{
    for (int i = 0; i < n; i++)
        if (writes_into(&ops[i].mul_mat, y, (size_t)n_y * sizeof(float)))
            return false;
    return true;
}

/* Whether the results of a product are n_heads heads of `dim` elements for each token, dense. */
static bool makes_heads(const tsr_op_mul_mat *op, const float *y, int64_t n_tokens, int64_t n_heads,
                        int64_t dim)
{
    return op->y == y && op->n_tokens == n_tokens && op->n_rows == n_heads * dim &&
           (op->n_tokens == 1 || op->y_stride == op->n_rows);
}

static bool is_quantized(tsr_type type)
{
    return type == TSR_TYPE_Q8_0 || type == TSR_TYPE_Q4_0;
}

/* Whether kernels that compute queries, keys and values, in of[0] to of[2], can do what comes after them:
 * a block has neighbouring rows, or the rows of two halves of a head, and both elements of each pair among
 * them. Only of neighbouring rows it has those of whole blocks of 32 that are quantized together. */
static bool end_in_heads(const tsr_cuda_products *p, const tsr_cuda_rope_kv_ops *heads)
{
    enum { HALVES = 32, GROUP = 32 };
    const tsr_op_rope *q = heads->q, *k = heads->k;
    const tsr_kv_view *kv = &heads->write->kv;
    const tsr_op_mul_mat *x = p->of[0];
    const bool whole = q->n_rot == q->head_dim && k->n_rot == q->head_dim && k->head_dim == q->head_dim &&
                       kv->v_dim == q->head_dim && q->head_dim % HALVES == 0;
    const bool pairs = q->interleaved ? q->head_dim % 2 == 0 && k->head_dim % 2 == 0 : whole;
    const bool k_blocks = !is_quantized(kv->type_k) || (q->interleaved && k->head_dim % GROUP == 0);
    const bool v_blocks = !is_quantized(kv->type_v) || (q->interleaved && kv->v_dim % GROUP == 0);
    return q->interleaved == k->interleaved && pairs && k_blocks && v_blocks &&
           makes_heads(p->of[0], q->x, q->n_tokens, q->n_heads, q->head_dim) &&
           makes_heads(p->of[1], k->x, k->n_tokens, k->n_heads, k->head_dim) &&
           makes_heads(p->of[2], heads->write->v, k->n_tokens, kv->n_heads, kv->v_dim) &&
           !tsr_op_floats_overlap(q->y, elements(q), x->x, floats_read(x)) &&
           !tsr_op_floats_overlap(k->y, elements(k), x->x, floats_read(x));
}

/* Add the ropes and the write at ops[0], of n ops, to the products before them if their kernels can do that;
 * `before` siblings in front of the products may still run. The value is the number of ops added. */
static int add_heads(tsr_cuda_products *p, const tsr_op *ops, int n, int before)
{
    const tsr_cuda_rope_kv_ops heads = tsr_cuda_fuse_rope_kv(ops, n);
    const tsr_op *const siblings = ops - p->n - before;
    if (p->n != TSR_CUDA_PRODUCTS || !heads.q || !end_in_heads(p, &heads) ||
        !is_apart_from(heads.q->y, elements(heads.q), siblings, before) ||
        !is_apart_from(heads.k->y, elements(heads.k), siblings, before))
        return 0;
    p->heads = heads;
    return heads.n_ops;
}

tsr_cuda_products tsr_cuda_fuse_products(const tsr_op *ops, int first, int i, int end, int *n_out)
{
    tsr_cuda_products found = {0};
    const bool waits = first == i;
    *n_out = 1;
    if (ops[i].kind != TSR_OP_MUL_MAT)
        return found;
    if (are_gate_and_up(ops + i, end - i) && (waits || tsr_cuda_is_sibling(ops, first, i + 1)) &&
        is_apart_from(ops[i + 2].glu.y, ops[i + 2].glu.n, ops + first, i - first)) {
        const tsr_op_glu *glu = &ops[i + 2].glu;
        const int gate = ops[i].mul_mat.y == glu->gate ? i : i + 1, up = i + (gate == i);
        *n_out = 3;
        return (tsr_cuda_products){.n = 2, .of = {&ops[gate].mul_mat, &ops[up].mul_mat}, .glu = glu};
    }
    found.of[found.n++] = &ops[i].mul_mat;
    while (found.n < TSR_CUDA_PRODUCTS && i + found.n < end &&
           !are_gate_and_up(ops + i + found.n, end - i - found.n) &&
           tsr_cuda_is_sibling(ops, first, i + found.n) && !found.of[0]->partial &&
           !ops[i + found.n].mul_mat.partial) {
        found.of[found.n] = &ops[i + found.n].mul_mat;
        found.n++;
    }
    *n_out = found.n + add_heads(&found, ops + i + found.n, end - i - found.n, i - first);
    return found;
}

bool tsr_cuda_fuse_norm_before(const tsr_op_rms_norm *norm, const tsr_cuda_products *p)
{
    const int64_t n = norm->n * norm->n_rows;
    const tsr_op_mul_mat *x = p->n > 0 ? p->of[0] : NULL;
    const tsr_op_rope *const ropes[] = {p->heads.q, p->heads.k};
    if (!x || x->x != norm->y || x->k != norm->n || x->x_stride != norm->n || x->n_tokens != norm->n_rows ||
        norm->n_weights > 1 || norm->center || norm->bias || tsr_op_floats_overlap(norm->x, n, norm->y, n))
        return false;
    for (int i = 0; i < p->n; i++)
        if (writes_into(p->of[i], norm->x, (size_t)n * sizeof(float)))
            return false;
    for (int i = 0; i < 2; i++)
        if (ropes[i] && tsr_op_floats_overlap(ropes[i]->y, elements(ropes[i]), norm->x, n))
            return false;
    if (p->sum && p->sum->residual && tsr_op_floats_overlap(p->sum->residual, p->sum->n, norm->y, n))
        return false;
    return (!p->glu || !tsr_op_floats_overlap(p->glu->y, p->glu->n, norm->x, n)) &&
           (!p->sum || !tsr_op_floats_overlap(p->sum->y, p->sum->n, norm->x, n));
}

const tsr_op_all_reduce *tsr_cuda_fuse_sum(const tsr_op *ops, int n, int device)
{
    if (n < 2 || ops[0].kind != TSR_OP_MUL_MAT || ops[1].kind != TSR_OP_ALL_REDUCE)
        return NULL;
    const tsr_op_mul_mat *op = &ops[0].mul_mat;
    const tsr_op_all_reduce *sum = &ops[1].all_reduce;
    const float *residual = sum->residual;
    const bool of_it = op->partial && op->k > 0 && tsr_collective_is_alone(sum->collective) &&
                       sum->collective->desc->partial[device] == op->y &&
                       sum->collective->desc->reduce == op->reduce && sum->n == op->n_rows * op->n_tokens &&
                       (op->n_tokens == 1 || op->y_stride == op->n_rows);
    return of_it && !tsr_op_floats_overlap(sum->y, sum->n, op->x, floats_read(op)) &&
                   (!residual || residual == sum->y ||
                    !tsr_op_floats_overlap(sum->y, sum->n, residual, sum->n))
               ? sum
               : NULL;
}
