#include "support/kernel_exact.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

void check_near(double got, double exact, double relative, double absolute)
{
    if (!(fabs(got - exact) <= relative * fabs(exact) + absolute))
        fail_msg("%.9g, exact %.9g", got, exact);
}

double glu_exact(tsr_glu_kind kind, float limit, double x, double up)
{
    if (kind == TSR_GLU_CLAMPED) {
        const double g = fmin(x, 7);
        return g / (1 + exp(-1.702 * g)) * (fmax(-7, fmin(7, up)) + 1);
    }
    if (kind == TSR_GLU_CAPPED)
        return fmin(x / (1 + exp(-x)), (double)limit) * fmax(-(double)limit, fmin((double)limit, up));
    if (kind == TSR_GLU_BOUNDED) {
        const double g = fmin(x, (double)limit);
        return g / (1 + exp(-g)) * fmax(-(double)limit, fmin((double)limit, up));
    }
    const double gate = 0.5 * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    return up * (kind == TSR_GLU_SILU        ? x / (1 + exp(-x))
                 : kind == TSR_GLU_GELU_TANH ? x * gate
                 : kind == TSR_GLU_GELU_GATE ? gate
                 : kind == TSR_GLU_SIGMOID   ? 1 / (1 + exp(-x))
                 : kind == TSR_GLU_PLAIN     ? x
                                             : fmax(x, 0));
}

void check_rotated(const tsr_op_rope *op)
{
    for (int64_t head = 0; head < op->n_tokens * op->n_heads; head++) {
        const float *in = op->x + head * op->head_dim, *out = op->y + head * op->head_dim;
        const float *angles = op->table + head / op->n_heads * op->n_rot;
        for (int64_t i = 0; i < op->n_rot / 2; i++) {
            const int64_t a = op->interleaved ? 2 * i : i,
                          b = op->interleaved ? 2 * i + 1 : i + op->n_rot / 2;
            const double c = (double)angles[2 * i], d = (double)angles[2 * i + 1];
            check_near((double)out[a], (double)in[a] * c - (double)in[b] * d, 0, 6 * ulp);
            check_near((double)out[b], (double)in[a] * d + (double)in[b] * c, 0, 6 * ulp);
        }
        for (int64_t i = op->n_rot; i < op->head_dim; i++)
            assert_true(out[i] == in[i]);
    }
}

void check_softmax_rows(const tsr_op_softmax *op, double relative)
{
    const double scale = (double)op->scale;
    for (int64_t r = 0; r < op->n_rows; r++) {
        const float *x = op->x + r * op->n, *y = op->y + r * op->n;
        double top = -INFINITY, sum = 0;
        for (int64_t i = 0; i < op->n; i++)
            top = fmax(top, scale * (double)x[i]);
        for (int64_t i = 0; i < op->n; i++)
            sum += exp(scale * (double)x[i] - top);
        for (int64_t i = 0; i < op->n; i++)
            check_near((double)y[i], exp(scale * (double)x[i] - top) / sum, relative, 1e-37);
    }
}
