/* top_k: the largest elements of rows (core/op.h). The result is kept sorted while a row is read: an element
 * is compared with the last one first, which few pass. */
#ifndef TSR_HOST_KERNELS_OPS_TOP_K_H
#define TSR_HOST_KERNELS_OPS_TOP_K_H

#include "host/kernels/ops/elementwise.h"

/* Insert element `at`; returns the number of elements in y. Elements come in the order of their indices, so a
 * new one is behind its equals. */
static int top_insert(const tsr_op_top_k *op, const float *x, int64_t at, tsr_candidate *y, int n)
{
    const tsr_candidate next = {x[at], (int32_t)(op->first + at)};
    int i = n < op->k ? n : (int)op->k - 1;
    if (n == op->k && !tsr_candidate_is_before(next, y[i]))
        return n;
    for (; i > 0 && tsr_candidate_is_before(next, y[i - 1]); i--)
        y[i] = y[i - 1];
    y[i] = next;
    return n < op->k ? n + 1 : n;
}

static void top_row(const tsr_op_top_k *op, const float *x, tsr_candidate *y)
{
    enum { LANES = 16 };
    int n = 0;
    int64_t i = 0;
    for (; i < op->n && n < op->k; i++)
        n = top_insert(op, x, i, y, n);
    for (; i + LANES <= op->n; i += LANES) {
        const float least = y[op->k - 1].logit;
        int any = 0;
        for (int j = 0; j < LANES; j++) /* true for NaNs */
            any |= !(x[i + j] <= least);
        for (int j = 0; any && j < LANES; j++)
            (void)top_insert(op, x, i + j, y, n);
    }
    for (; i < op->n; i++)
        (void)top_insert(op, x, i, y, n);
    for (; n < op->k; n++)
        y[n] = (tsr_candidate){-__builtin_inff(), -1};
}

static void kernel_top_k(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_top_k *op = &record->top_k;
    const range rows = thread_part(env, op->n_rows, 1);
    for (int64_t r = rows.begin; r < rows.end; r++)
        top_row(op, op->x + r * op->n, op->y + r * op->k);
}

#endif
