/* glu, add, scale, softcap, gate, rope, rms_norm, its halves, softmax, argmax: ops over rows of activations.
 *
 * Loops that do the same few operations on every element are plain C: contraction is off, so the compiler may
 * vectorise them but cannot change a bit. */
#ifndef TSR_HOST_KERNELS_OPS_ELEMENTWISE_H
#define TSR_HOST_KERNELS_OPS_ELEMENTWISE_H

#include "core/quant/fixed.h"
#include "core/quant/half.h"
#include "host/kernel_set.h"
#include "host/kernels/mul_mat/dot.h"
#include "host/kernels/vec/math.h"

typedef struct range {
    int64_t begin, end;
} range;

/* This thread's part of n items, in units of `unit` items. */
static range thread_part(const tsr_kernel_env *env, int64_t n, int64_t unit)
{
    const int64_t units = (n + unit - 1) / unit;
    const int64_t begin = units * env->thread / env->n_threads * unit;
    const int64_t end = units * (env->thread + 1) / env->n_threads * unit;
    return (range){begin < n ? begin : n, end < n ? end : n};
}

enum { LINE_FLOATS = 16 }; /* threads write whole cache lines */

/* -- glu -- */

ALWAYS_INLINE v16 glu_activation(tsr_glu_kind kind, v16 gate, float limit)
{
    return kind == TSR_GLU_SILU        ? v16_silu(gate)
           : kind == TSR_GLU_GELU_TANH ? v16_gelu_tanh(gate)
           : kind == TSR_GLU_CLAMPED   ? v16_clamped_silu(gate, TSR_GLU_LIMIT, TSR_GLU_ALPHA)
           : kind == TSR_GLU_GELU_GATE ? v16_gelu_gate(gate)
           : kind == TSR_GLU_SIGMOID   ? v16_sigmoid(gate)
           : kind == TSR_GLU_CAPPED    ? v16_min(v16_set1(limit), v16_silu(gate))
           : kind == TSR_GLU_PLAIN     ? gate
           : kind == TSR_GLU_BOUNDED   ? v16_silu(v16_min(v16_set1(limit), gate))
                                       : v16_max(v16_zero(), gate); /* v16_max() keeps a NaN */
}

ALWAYS_INLINE v16 v16_within(v16 x, float limit)
{
    return v16_max(v16_set1(-limit), v16_min(v16_set1(limit), x));
}

ALWAYS_INLINE v16 glu_product(tsr_glu_kind kind, v16 gate, v16 up, float limit)
{
    if (kind == TSR_GLU_CLAMPED)
        up = v16_add(v16_within(up, TSR_GLU_LIMIT), v16_set1(1.0f));
    if (kind == TSR_GLU_CAPPED || kind == TSR_GLU_BOUNDED)
        up = v16_within(up, limit);
    return v16_mul(glu_activation(kind, gate, limit), up);
}

ALWAYS_INLINE void glu_part_of(tsr_glu_kind kind, const tsr_op_glu *op, range part)
{
    int64_t i = part.begin;
    for (; i + 16 <= part.end; i += 16)
        v16_store(op->y + i, glu_product(kind, v16_load(op->gate + i), v16_load(op->up + i), op->limit));
    if (i < part.end) {
        const int64_t n = part.end - i;
        const v16 gate = v16_load_n(op->gate + i, n), up = v16_load_n(op->up + i, n);
        v16_store_n(op->y + i, glu_product(kind, gate, up, op->limit), n);
    }
}

static void glu_part(tsr_glu_kind kind, const tsr_op_glu *op, range part)
{
    if (kind == TSR_GLU_SILU)
        glu_part_of(TSR_GLU_SILU, op, part);
    else if (kind == TSR_GLU_GELU_TANH)
        glu_part_of(TSR_GLU_GELU_TANH, op, part);
    else if (kind == TSR_GLU_GELU_GATE)
        glu_part_of(TSR_GLU_GELU_GATE, op, part);
    else if (kind == TSR_GLU_RELU)
        glu_part_of(TSR_GLU_RELU, op, part);
    else if (kind == TSR_GLU_SIGMOID)
        glu_part_of(TSR_GLU_SIGMOID, op, part);
    else if (kind == TSR_GLU_CAPPED)
        glu_part_of(TSR_GLU_CAPPED, op, part);
    else if (kind == TSR_GLU_PLAIN)
        glu_part_of(TSR_GLU_PLAIN, op, part);
    else if (kind == TSR_GLU_BOUNDED)
        glu_part_of(TSR_GLU_BOUNDED, op, part);
    else
        glu_part_of(TSR_GLU_CLAMPED, op, part);
}

static void kernel_glu(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_glu *op = &record->glu;
    glu_part(op->kind, op, thread_part(env, op->n, LINE_FLOATS));
}

/* -- add, scale, softcap -- */

static void kernel_add(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_add *op = &record->add;
    if (!op->broadcast_b) {
        const range part = thread_part(env, op->n * op->n_rows, LINE_FLOATS);
        for (int64_t i = part.begin; i < part.end; i++)
            op->y[i] = op->a[i] + op->b[i];
        return;
    }
    const range columns = thread_part(env, op->n, LINE_FLOATS);
    for (int64_t r = 0; r < op->n_rows; r++)
        for (int64_t i = columns.begin; i < columns.end; i++)
            op->y[r * op->n + i] = op->a[r * op->n + i] + op->b[i];
}

static void kernel_scale(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_scale *op = &record->scale;
    const range part = thread_part(env, op->n, LINE_FLOATS);
    const float factor = op->by ? op->factor * op->by[0] : op->factor;
    for (int64_t i = part.begin; i < part.end; i++)
        op->y[i] = factor * op->x[i];
}

static void kernel_softcap(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_softcap *op = &record->softcap;
    const range part = thread_part(env, op->n, LINE_FLOATS);
    const v16 cap = v16_set1(op->cap);
    int64_t i = part.begin;
    for (; i + 16 <= part.end; i += 16)
        v16_store(op->y + i, v16_mul(cap, v16_tanh(v16_div(v16_load(op->x + i), cap))));
    if (i < part.end) {
        const int64_t n = part.end - i;
        v16_store_n(op->y + i, v16_mul(cap, v16_tanh(v16_div(v16_load_n(op->x + i, n), cap))), n);
    }
}

/* -- gate -- */

static void kernel_gate(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_gate *op = &record->gate;
    const range columns = thread_part(env, op->n, LINE_FLOATS);
    for (int64_t r = 0; r < op->n_rows; r++) {
        const float factor = 1.0f / (1.0f + f32_exp(-op->gate[r]));
        for (int64_t i = columns.begin; i < columns.end; i++)
            op->y[r * op->n + i] = factor * op->x[r * op->n + i];
    }
}

/* -- rope -- */

/* Both elements of a pair are read before either is written, since x may equal y. */
static void rope_pair(const float *x, float *y, int64_t first, int64_t second, float cosine, float sine)
{
    const float a = x[first], b = x[second];
    y[first] = a * cosine - b * sine;
    y[second] = a * sine + b * cosine;
}

static void rope_head(const tsr_op_rope *op, const float *x, float *y, const float *table)
{
    const int64_t half = op->n_rot / 2;
    if (op->interleaved)
        for (int64_t i = 0; i < half; i++)
            rope_pair(x, y, 2 * i, 2 * i + 1, table[2 * i], table[2 * i + 1]);
    else
        for (int64_t i = 0; i < half; i++)
            rope_pair(x, y, i, i + half, table[2 * i], table[2 * i + 1]);
    if (x != y)
        memcpy(y + op->n_rot, x + op->n_rot, (size_t)(op->head_dim - op->n_rot) * sizeof(float));
}

static void kernel_rope(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_rope *op = &record->rope;
    const range part = thread_part(env, op->n_tokens * op->n_heads, 1);
    for (int64_t i = part.begin; i < part.end; i++)
        rope_head(op, op->x + i * op->head_dim, op->y + i * op->head_dim,
                  op->table + i / op->n_heads * op->n_rot);
}

/* -- rms_norm -- */

/* Lanes as in a dot product, then the tree; missing lanes hold `beyond`. */
ALWAYS_INLINE v16 row_tail(const float *x, int64_t n, float beyond)
{
    float tail[16];
    for (int64_t j = 0; j < 16; j++)
        tail[j] = j < n ? x[j] : beyond;
    return v16_load(tail);
}

static float row_mean(const float *x, int64_t n)
{
    v16 lanes = v16_zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        lanes = v16_add(lanes, v16_load(x + i));
    if (i < n)
        lanes = v16_add(lanes, row_tail(x + i, n - i, 0.0f));
    return v16_sum(lanes) / (float)n;
}

/* Sum of squared differences from the mean. */
static float row_spread(const float *x, int64_t n, float mean)
{
    v16 lanes = v16_zero();
    const v16 center = v16_set1(mean);
    for (int64_t i = 0; i < n; i += 16) {
        const v16 d = v16_sub(i + 16 <= n ? v16_load(x + i) : row_tail(x + i, n - i, mean), center);
        lanes = v16_add(lanes, v16_mul(d, d));
    }
    return v16_sum(lanes);
}

static void kernel_rms_norm(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_rms_norm *op = &record->rms_norm;
    const range rows = thread_part(env, op->n_rows, 1);
    for (int64_t r = rows.begin; r < rows.end; r++) {
        const float *x = op->x + r * op->n;
        float *y = op->y + r * op->n;
        const float *weight = op->n_weights > 1 ? op->weight + r % op->n_weights * op->n : op->weight;
        const float mean = op->center ? row_mean(x, op->n) : 0.0f;
        const float squares = op->center ? row_spread(x, op->n, mean) : dot_f32(x, x, op->n);
        const float scale = 1.0f / __builtin_sqrtf(squares / (float)op->n + op->eps);
        if (weight && !op->center)
            for (int64_t i = 0; i < op->n; i++)
                y[i] = x[i] * scale * weight[i];
        else if (weight)
            for (int64_t i = 0; i < op->n; i++)
                y[i] = (x[i] - mean) * scale * weight[i];
        else
            for (int64_t i = 0; i < op->n; i++)
                y[i] = (x[i] - mean) * scale;
        for (int64_t i = 0; op->bias && i < op->n; i++)
            y[i] += op->bias[i];
    }
}

/* -- sum_squares, rms_scale: the halves of a norm of divided rows -- */

static void add_squares(const tsr_op_sum_squares *op, float sum, int64_t *y, bool *fault)
{
    const float coarse = __builtin_rintf(sum / op->limit), fine = sum - coarse * op->limit;
    const bool ok = tsr_fixed_in_range(coarse, op->limit);
    y[0] += tsr_fixed_from_f32(ok ? coarse : 0.0f);
    y[1] += tsr_fixed_from_f32(ok ? fine : 0.0f);
    *fault |= !ok;
}

static void sum_squares_row(const tsr_op_sum_squares *op, int64_t r, bool *fault)
{
    const float *x = op->x + r * op->n;
    int64_t exact[2] = {0, 0};
    float plain = 0.0f;
    for (int64_t i = 0; i < op->n; i += op->granule) {
        const int64_t n = op->n - i < op->granule ? op->n - i : op->granule;
        const float sum = dot_f32(x + i, x + i, n);
        if (op->reduce == TSR_REDUCE_EXACT)
            add_squares(op, sum, exact, fault);
        plain += sum;
    }
    if (op->reduce == TSR_REDUCE_EXACT)
        memcpy((int64_t *)op->y + 2 * r, exact, sizeof exact);
    else if (op->reduce == TSR_REDUCE_F32)
        memcpy((float *)op->y + 2 * r, (float[]){0.0f, plain}, 2 * sizeof(float));
    else
        memcpy((uint16_t *)op->y + 2 * r, (uint16_t[]){0, tsr_f32_to_bf16(plain)}, 2 * sizeof(uint16_t));
}

static void kernel_sum_squares(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_sum_squares *op = &record->sum_squares;
    const range rows = thread_part(env, op->n_rows, 1);
    bool fault = false;
    for (int64_t r = rows.begin; r < rows.end; r++)
        sum_squares_row(op, r, &fault);
    if (fault)
        atomic_store_explicit(env->range_fault, 1, memory_order_relaxed);
}

static void kernel_rms_scale(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_rms_scale *op = &record->rms_scale;
    const range columns = thread_part(env, op->n, LINE_FLOATS);
    for (int64_t r = 0; r < op->n_rows; r++) {
        const float squares = op->squares[2 * r] * op->unit + op->squares[2 * r + 1];
        const float scale = 1.0f / __builtin_sqrtf(squares / (float)op->n_all + op->eps);
        for (int64_t i = columns.begin; i < columns.end; i++)
            op->y[r * op->n + i] = op->x[r * op->n + i] * scale * op->weight[i];
    }
}

/* -- softmax, argmax -- */

/* Largest element; -infinity for an empty row; a NaN never wins. */
static float row_max(const float *x, int64_t n)
{
    v16 best = v16_set1(-__builtin_inff());
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        best = v16_max(v16_load(x + i), best);
    float result = v16_top(best);
    for (; i < n; i++)
        result = x[i] > result ? x[i] : result;
    return result;
}

/* The exponentials are summed like a dot product without its multiplication: 16 lanes, then the tree. Missing
 * lanes hold exp(-infinity) = 0. */
static void softmax_row(const float *x, float *y, int64_t n, float scale)
{
    /* With a negative scale the largest product comes from the smallest element, so scale first. */
    for (int64_t i = 0; i < n; i++)
        y[i] = scale * x[i];
    const v16 top = v16_set1(row_max(y, n));
    v16 lanes = v16_zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const v16 e = v16_exp(v16_sub(v16_load(y + i), top));
        v16_store(y + i, e);
        lanes = v16_add(lanes, e);
    }
    if (i < n) {
        float tail[16];
        for (int j = 0; j < 16; j++)
            tail[j] = i + j < n ? y[i + j] : -__builtin_inff();
        const v16 e = v16_exp(v16_sub(v16_load(tail), top));
        v16_store_n(y + i, e, n - i);
        lanes = v16_add(lanes, e);
    }
    const float inverse = 1.0f / v16_sum(lanes);
    for (i = 0; i < n; i++)
        y[i] *= inverse;
}

static void kernel_softmax(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_softmax *op = &record->softmax;
    const range rows = thread_part(env, op->n_rows, 1);
    for (int64_t r = rows.begin; r < rows.end; r++)
        softmax_row(op->x + r * op->n, op->y + r * op->n, op->n, op->scale);
}

/* A NaN never wins; a row of NaNs gives 0. */
static void kernel_argmax(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_argmax *op = &record->argmax;
    const range rows = thread_part(env, op->n_rows, 1);
    for (int64_t r = rows.begin; r < rows.end; r++) {
        const float *x = op->x + r * op->n;
        const float best = row_max(x, op->n);
        int64_t i = 0;
        while (i < op->n && x[i] != best)
            i++;
        op->y[r] = i < op->n ? (int32_t)i : 0;
    }
}

#endif
