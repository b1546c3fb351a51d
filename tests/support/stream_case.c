/* See stream_case.h. */
#include "support/stream_case.h"

#include <math.h>

#include "support/kernel_exact.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* One token's matrix. */
static void exact_mixing(const tsr_op_stream_weights *op, const float *x,
                         double c[TSR_MAX_STREAMS][TSR_MAX_STREAMS])
{
    const int64_t n = op->n;
    const double eps = (double)op->eps;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++) {
            const int64_t at = 2 * n + i * n + j;
            c[i][j] = exp((double)op->scale[2] * (double)x[at] + (double)op->base[at]);
            sum += c[i][j];
        }
        for (int64_t j = 0; j < n; j++)
            c[i][j] = c[i][j] / sum + eps;
    }
    for (int64_t round = 0; round < 2 * op->iterations - 1; round++)
        for (int64_t i = 0; i < n; i++) {
            double sum = eps;
            for (int64_t j = 0; j < n; j++)
                sum += round % 2 == 0 ? c[j][i] : c[i][j];
            for (int64_t j = 0; j < n; j++)
                *(round % 2 == 0 ? &c[j][i] : &c[i][j]) /= sum;
        }
}

void stream_case_check_weights(const tsr_op_stream_weights *op)
{
    const int64_t n = op->n, width = op->mixes ? (2 + n) * n : n;
    double c[TSR_MAX_STREAMS][TSR_MAX_STREAMS];
    for (int64_t t = 0; t < op->n_tokens; t++) {
        const float *x = op->x + t * width, *y = op->y + t * width;
        for (int64_t i = 0; i < width && i < 2 * n; i++) {
            const int64_t part = i / n;
            const double s = sigmoid((double)op->scale[part] * (double)x[i] + (double)op->base[i]);
            check_near((double)y[i], part == 0 ? s + (double)op->eps : 2 * s, 1e-6, 0);
        }
        if (!op->mixes)
            continue;
        exact_mixing(op, x, c);
        for (int64_t i = 0; i < n * n; i++)
            check_near((double)y[2 * n + i], c[i / n][i % n], 1e-5, 0);
    }
}

void stream_case_check_mix(const tsr_op_stream_mix *op)
{
    for (int64_t at = 0; at < op->n_tokens * op->n_out * op->n; at++) {
        const int64_t t = at / op->n / op->n_out, k = at / op->n % op->n_out, i = at % op->n;
        const float *w = op->weights ? op->weights + t * op->n_weights : NULL;
        double y = w && op->add ? (double)w[op->add_first + k] * (double)op->add[t * op->n + i] : 0;
        for (int64_t j = 0; j < op->n_in; j++)
            y += (w ? (double)w[op->first + j * op->n_out + k] : 1) *
                 (double)op->x[(t * op->n_in + j) * op->n + i];
        check_near((double)op->y[at], y, 1e-6, 4e-6);
    }
}
