/* conv and recurrence: ops with a state per sequence, token after token.
 *
 * Channels, or columns of a head's state, are independent of each other. A work item is 16 of them for one
 * sequence: its state stays in scratch while the item goes through the tokens of the sequence, and is read
 * from one slot and written to another. */
#ifndef TSR_HOST_KERNELS_OPS_RECURRENT_H
#define TSR_HOST_KERNELS_OPS_RECURRENT_H

#include "host/kernels/ops/elementwise.h"

enum { STATE_COLUMNS = 16 };

typedef struct recurrent_scratch {
    float state[TSR_MAX_STATE_ROWS][STATE_COLUMNS];
    float q[TSR_MAX_STATE_ROWS], k[TSR_MAX_STATE_ROWS], decay[TSR_MAX_STATE_ROWS]; /* of one token */
} recurrent_scratch;

static float *state_slot(const tsr_state_view *state, int32_t slot)
{
    return state->base + (int64_t)slot * state->slot_elems;
}

/* -- conv -- */

/* Channels [c, c + n), n at most 16, of one sequence. */
static void conv_tile(const tsr_op_conv *op, const tsr_state_row *row, int64_t c, int64_t n)
{
    const int64_t kernel = op->kernel, kept = kernel - 1;
    float w[TSR_MAX_CONV_KERNEL][16] = {{0}}, inputs[TSR_MAX_CONV_KERNEL][16] = {{0}};
    const float *before = row->read >= 0 ? state_slot(&op->state, row->read) + c * kept : NULL;
    for (int64_t j = 0; j < n; j++) {
        for (int64_t k = 0; k < kernel; k++)
            w[k][j] = op->w[(c + j) * kernel + k];
        for (int64_t k = 0; before && k < kept; k++)
            inputs[k][j] = before[j * kept + k];
    }
    const v16 bias = op->bias ? v16_load_n(op->bias + c, n) : v16_zero();
    for (int64_t t = row->first; t >= 0; t = op->index.next[t]) {
        v16 sum = bias;
        v16_store(inputs[kept], v16_load_n(op->x + t * op->stride + c, n));
        for (int64_t k = 0; k < kernel; k++)
            sum = v16_fma(v16_load(w[k]), v16_load(inputs[k]), sum);
        v16_store_n(op->y + t * op->stride + c, op->silu ? v16_silu(sum) : sum, n);
        memmove(inputs[0], inputs[1], (size_t)kept * sizeof inputs[0]);
    }
    float *after = state_slot(&op->state, row->write) + c * kept;
    for (int64_t j = 0; j < n; j++)
        for (int64_t k = 0; k < kept; k++)
            after[j * kept + k] = inputs[k][j];
}

static void kernel_conv(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_conv *op = &record->conv;
    const int64_t tiles = (op->n + 15) / 16;
    for (int64_t i; (i = tsr_kernel_next(env)) < op->index.n_rows * tiles;) {
        const tsr_state_row *row = &op->index.rows[i / tiles];
        const int64_t c = i % tiles * 16;
        if (row->first >= 0)
            conv_tile(op, row, c, op->n - c < 16 ? op->n - c : 16);
    }
}

/* -- recurrence -- */

/* The first element of the token's query or key of a head. */
ALWAYS_INLINE int64_t key_at(const tsr_op_recurrence *op, int64_t t, int64_t head)
{
    return (t * op->n_key_heads + (op->first_head + head) / op->group) * op->dk;
}

/* The token's queries and keys at unit length, and the factors on the rows of the state; zeros behind dk. */
static void recurrence_load(const tsr_op_recurrence *op, int64_t t, int64_t head, recurrent_scratch *s)
{
    const int64_t dk = op->dk;
    const float *q = op->q + key_at(op, t, head), *k = op->k + key_at(op, t, head);
    const float *alpha = op->alpha + (t * op->heads_stride + head) * op->n_decay;
    const float *dt_bias = op->dt_bias + head * op->n_decay;
    const float of_q = op->scale / __builtin_sqrtf(dot_f32(q, q, dk) + op->eps);
    const float of_k = 1.0f / __builtin_sqrtf(dot_f32(k, k, dk) + op->eps);
    for (int64_t i = 0; i < dk; i++) {
        s->q[i] = of_q * q[i];
        s->k[i] = of_k * k[i];
    }
    for (int64_t i = 0; i < op->n_decay; i += 16) {
        const int64_t n = op->n_decay - i < 16 ? op->n_decay - i : 16;
        const v16 dt = v16_softplus(v16_add(v16_load_n(alpha + i, n), v16_load_n(dt_bias + i, n)));
        v16_store_n(s->decay + i, v16_exp(v16_mul(v16_set1(op->a[head]), dt)), n);
    }
    for (int64_t i = op->n_decay; i < dk; i++)
        s->decay[i] = s->decay[0];
}

/* Row i of the state goes to sum i % 4; the four sums are added as pairs. Named sums, because compilers often
 * keep an array of them in memory (vec.h). */
typedef struct four_sums {
    v16 a, b, c, d;
} four_sums;

ALWAYS_INLINE v16 add_four(four_sums s)
{
    return v16_add(v16_add(s.a, s.b), v16_add(s.c, s.d));
}

/* Let row i of the state decay, and add its part of the product with the key. */
ALWAYS_INLINE v16 decay_row(recurrent_scratch *s, int64_t i, v16 sum)
{
    const v16 row = v16_mul(v16_set1(s->decay[i]), v16_load(s->state[i]));
    v16_store(s->state[i], row);
    return v16_fma(v16_set1(s->k[i]), row, sum);
}

/* Add to row i of the state, and add the row's part of the product with the query. */
ALWAYS_INLINE v16 write_row(recurrent_scratch *s, int64_t i, v16 u, v16 sum)
{
    const v16 row = v16_fma(v16_set1(s->k[i]), u, v16_load(s->state[i]));
    v16_store(s->state[i], row);
    return v16_fma(v16_set1(s->q[i]), row, sum);
}

/* Columns [c, c + n), n at most 16, of a head's state and output. */
static void recurrence_token(const tsr_op_recurrence *op, int64_t t, int64_t head, int64_t c, int64_t n,
                             recurrent_scratch *s)
{
    const int64_t at = t * op->heads_stride + head;
    four_sums sums = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
    recurrence_load(op, t, head, s);
    for (int64_t i = 0; i < op->dk; i += 4) {
        sums.a = decay_row(s, i, sums.a);
        sums.b = decay_row(s, i + 1, sums.b);
        sums.c = decay_row(s, i + 2, sums.c);
        sums.d = decay_row(s, i + 3, sums.d);
    }
    const v16 v = v16_load_n(op->v + at * op->dv + c, n);
    const v16 u = v16_mul(v16_sigmoid(v16_set1(op->beta[at])), v16_sub(v, add_four(sums)));
    sums = (four_sums){v16_zero(), v16_zero(), v16_zero(), v16_zero()};
    for (int64_t i = 0; i < op->dk; i += 4) {
        sums.a = write_row(s, i, u, sums.a);
        sums.b = write_row(s, i + 1, u, sums.b);
        sums.c = write_row(s, i + 2, u, sums.c);
        sums.d = write_row(s, i + 3, u, sums.d);
    }
    v16_store_n(op->y + at * op->dv + c, add_four(sums), n);
}

/* The token's keys times dt; all decays are the one that is returned. Zeros behind dk. */
static v16 mamba_load(const tsr_op_recurrence *op, int64_t t, int64_t head, recurrent_scratch *s)
{
    const float *q = op->q + key_at(op, t, head), *k = op->k + key_at(op, t, head);
    const float alpha = op->alpha[t * op->heads_stride + head];
    const v16 dt = v16_softplus(v16_set1(alpha + op->dt_bias[head]));
    for (int64_t i = 0; i < op->dk; i += 16) {
        const int64_t n = op->dk - i < 16 ? op->dk - i : 16;
        v16_store_n(s->q + i, v16_load_n(q + i, n), n);
        v16_store_n(s->k + i, v16_mul(dt, v16_load_n(k + i, n)), n);
    }
    return v16_exp(v16_mul(v16_set1(op->a[head]), dt));
}

/* Row i of the state after the token, and its part of the product with the query. */
ALWAYS_INLINE v16 mamba_row(recurrent_scratch *s, int64_t i, v16 decay, v16 v, v16 sum)
{
    const v16 row = v16_fma(v16_set1(s->k[i]), v, v16_mul(decay, v16_load(s->state[i])));
    v16_store(s->state[i], row);
    return v16_fma(v16_set1(s->q[i]), row, sum);
}

/* recurrence_token() of Mamba-2. */
static void mamba_token(const tsr_op_recurrence *op, int64_t t, int64_t head, int64_t c, int64_t n,
                        recurrent_scratch *s)
{
    const int64_t at = (t * op->heads_stride + head) * op->dv + c;
    const v16 decay = mamba_load(op, t, head, s), v = v16_load_n(op->v + at, n);
    four_sums sums = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
    for (int64_t i = 0; i < op->dk; i += 4) {
        sums.a = mamba_row(s, i, decay, v, sums.a);
        sums.b = mamba_row(s, i + 1, decay, v, sums.b);
        sums.c = mamba_row(s, i + 2, decay, v, sums.c);
        sums.d = mamba_row(s, i + 3, decay, v, sums.d);
    }
    v16_store_n(op->y + at, v16_fma(v16_set1(op->skip[head]), v, add_four(sums)), n);
}

static void recurrence_tile(const tsr_op_recurrence *op, const tsr_state_row *row, int64_t head, int64_t c,
                            int64_t n, recurrent_scratch *s)
{
    const int64_t offset = head * op->dk * op->dv + c;
    memset(s, 0, sizeof *s);
    for (int64_t i = 0; row->read >= 0 && i < op->dk; i++)
        memcpy(s->state[i], state_slot(&op->state, row->read) + offset + i * op->dv,
               (size_t)n * sizeof(float));
    for (int64_t t = row->first; t >= 0; t = op->index.next[t]) {
        if (op->rule == TSR_RECURRENCE_MAMBA)
            mamba_token(op, t, head, c, n, s);
        else
            recurrence_token(op, t, head, c, n, s);
    }
    for (int64_t i = 0; i < op->dk; i++)
        memcpy(state_slot(&op->state, row->write) + offset + i * op->dv, s->state[i],
               (size_t)n * sizeof(float));
}

static void kernel_recurrence(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_recurrence *op = &record->recurrence;
    const int64_t tiles = (op->dv + STATE_COLUMNS - 1) / STATE_COLUMNS, items = op->n_heads * tiles;
    for (int64_t i; (i = tsr_kernel_next(env)) < op->index.n_rows * items;) {
        const tsr_state_row *row = &op->index.rows[i / items];
        const int64_t c = i % tiles * STATE_COLUMNS;
        const int64_t n = op->dv - c < STATE_COLUMNS ? op->dv - c : STATE_COLUMNS;
        if (row->first >= 0)
            recurrence_tile(op, row, i % items / tiles, c, n, env->scratch);
    }
}

#endif
