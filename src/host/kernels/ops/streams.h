/* stream_weights, stream_mix: residual streams (core/op.h). The weights of a token are a few dozen numbers,
 * computed one after another. */
#ifndef TSR_HOST_KERNELS_OPS_STREAMS_H
#define TSR_HOST_KERNELS_OPS_STREAMS_H

#include "host/kernels/ops/elementwise.h"

static float stream_sigmoid(float x)
{
    return 1.0f / (1.0f + f32_exp(-x));
}

/* Divide rows (step 1, apart n) or columns (step n, apart 1) of an n x n matrix by their sums. */
static void stream_divide(float *c, int64_t n, int64_t step, int64_t apart, float eps)
{
    for (int64_t i = 0; i < n; i++) {
        float sum = 0.0f;
        for (int64_t j = 0; j < n; j++)
            sum += c[i * apart + j * step];
        for (int64_t j = 0; j < n; j++)
            c[i * apart + j * step] /= sum + eps;
    }
}

static void stream_softmax(float *row, int64_t n, float eps)
{
    float top = row[0], sum = 0.0f;
    for (int64_t i = 1; i < n; i++)
        top = row[i] > top ? row[i] : top;
    for (int64_t i = 0; i < n; i++)
        sum += row[i] = f32_exp(row[i] - top);
    for (int64_t i = 0; i < n; i++)
        row[i] = row[i] / sum + eps;
}

static void stream_token(const tsr_op_stream_weights *op, const float *x, float *y)
{
    const int64_t n = op->n;
    float c[TSR_MAX_STREAMS * TSR_MAX_STREAMS];
    for (int64_t i = 0; op->mixes && i < n * n; i++)
        c[i] = op->scale[2] * x[2 * n + i] + op->base[2 * n + i];
    for (int64_t i = 0; i < n; i++)
        y[i] = stream_sigmoid(op->scale[0] * x[i] + op->base[i]) + op->eps;
    if (!op->mixes)
        return;
    for (int64_t i = n; i < 2 * n; i++)
        y[i] = 2.0f * stream_sigmoid(op->scale[1] * x[i] + op->base[i]);
    for (int64_t i = 0; i < n; i++)
        stream_softmax(c + i * n, n, op->eps);
    stream_divide(c, n, n, 1, op->eps);
    for (int64_t i = 1; i < op->iterations; i++) {
        stream_divide(c, n, 1, n, op->eps);
        stream_divide(c, n, n, 1, op->eps);
    }
    memcpy(y + 2 * n, c, (size_t)(n * n) * sizeof *c);
}

static void kernel_stream_weights(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_stream_weights *op = &record->stream_weights;
    const range part = thread_part(env, op->n_tokens, 1);
    const int64_t width = op->mixes ? (2 + op->n) * op->n : op->n;
    for (int64_t t = part.begin; t < part.end; t++)
        stream_token(op, op->x + t * width, op->y + t * width);
}

static void kernel_stream_mix(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_stream_mix *op = &record->stream_mix;
    const range columns = thread_part(env, op->n, LINE_FLOATS);
    for (int64_t i = 0; i < op->n_tokens * op->n_out; i++) {
        const int64_t t = i / op->n_out, k = i % op->n_out;
        const float *x = op->x + t * op->n_in * op->n;
        const float *weights = op->weights ? op->weights + t * op->n_weights : NULL;
        float *y = op->y + i * op->n;
        for (int64_t c = columns.begin; c < columns.end; c++)
            y[c] = weights ? weights[op->first + k] * x[c] : x[c];
        for (int64_t j = 1; j < op->n_in; j++) {
            const float w = weights[op->first + j * op->n_out + k];
            for (int64_t c = columns.begin; c < columns.end; c++)
                y[c] += w * x[j * op->n + c];
        }
        for (int64_t c = columns.begin; op->add && c < columns.end; c++)
            y[c] += weights[op->add_first + k] * op->add[t * op->n + c];
    }
}

#endif
