/* compress: groups of positions to one row each (core/op.h).
 *
 * Channels are independent of each other. A work item is 16 of them for one sequence, as in a convolution:
 * the state of the open group stays in registers while the item goes through the tokens of the sequence. */
#ifndef TSR_HOST_KERNELS_OPS_COMPRESS_H
#define TSR_HOST_KERNELS_OPS_COMPRESS_H

#include "host/kernels/ops/recurrent.h"

/* An online softmax: the largest gate, the sum of the weights, the weighted sum. */
typedef struct compress_sum {
    v16 top, sum, x;
} compress_sum;

ALWAYS_INLINE compress_sum compress_none(void)
{
    return (compress_sum){v16_set1(-__builtin_inff()), v16_zero(), v16_zero()};
}

ALWAYS_INLINE compress_sum compress_add(compress_sum s, v16 gate, v16 x)
{
    const v16 top = v16_max(gate, s.top);
    const v16 keep = v16_exp(v16_sub(s.top, top)), weight = v16_exp(v16_sub(gate, top));
    return (compress_sum){top, v16_fma(s.sum, keep, weight), v16_fma(s.x, keep, v16_mul(weight, x))};
}

ALWAYS_INLINE compress_sum compress_load(const float *state, int64_t stride, int64_t n)
{
    return (compress_sum){v16_load_n(state, n), v16_load_n(state + stride, n),
                          v16_load_n(state + 2 * stride, n)};
}

ALWAYS_INLINE void compress_store(float *state, int64_t stride, int64_t n, compress_sum s)
{
    v16_store_n(state, s.top, n);
    v16_store_n(state + stride, s.sum, n);
    v16_store_n(state + 2 * stride, s.x, n);
}

/* Channels [c, c + n), n at most 16, of one sequence. Between groups a state is not read: the position says
 * where a group begins. */
ALWAYS_INLINE void compress_tile(const tsr_op_compress *op, bool overlap, const tsr_state_row *row, int64_t c,
                                 int64_t n)
{
    const int64_t width = overlap ? 2 * op->n : op->n, second = overlap ? op->n : 0;
    compress_sum open = compress_none(), next = compress_none();
    if (row->read >= 0) {
        const float *before = state_slot(&op->state, row->read) + c;
        open = compress_load(before, op->n, n);
        if (overlap)
            next = compress_load(before + 3 * op->n, op->n, n);
    }
    for (int64_t t = row->first; t >= 0; t = op->index.next[t]) {
        const int64_t j = op->position[t] % op->ratio;
        const float *x = op->x + t * width + c, *gate = op->gate + t * width + c;
        const float *bias = op->bias + j * width + c;
        if (j == 0) {
            open = overlap && op->position[t] >= op->ratio ? next : compress_none();
            next = compress_none();
        }
        if (overlap)
            next = compress_add(next, v16_add(v16_load_n(gate, n), v16_load_n(bias, n)), v16_load_n(x, n));
        open = compress_add(open, v16_add(v16_load_n(gate + second, n), v16_load_n(bias + second, n)),
                            v16_load_n(x + second, n));
        v16_store_n(op->y + t * op->n + c, j + 1 == op->ratio ? v16_div(open.x, open.sum) : v16_zero(), n);
    }
    float *after = state_slot(&op->state, row->write) + c;
    compress_store(after, op->n, n, open);
    if (overlap)
        compress_store(after + 3 * op->n, op->n, n, next);
}

static void kernel_compress(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_compress *op = &record->compress;
    const int64_t tiles = (op->n + 15) / 16;
    for (int64_t i; (i = tsr_kernel_next(env)) < op->index.n_rows * tiles;) {
        const tsr_state_row *row = &op->index.rows[i / tiles];
        const int64_t c = i % tiles * 16, n = op->n - c < 16 ? op->n - c : 16;
        if (row->first >= 0 && op->overlap)
            compress_tile(op, true, row, c, n);
        else if (row->first >= 0)
            compress_tile(op, false, row, c, n);
    }
}

#endif
