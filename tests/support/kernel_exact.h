/* What the smaller kernels of any device should compute, in double precision. Records hold pointers to host
 * memory: where a device's data come from is its test's business. */
#ifndef TSR_TESTS_KERNEL_EXACT_H
#define TSR_TESTS_KERNEL_EXACT_H

#include "core/op.h"

/* Of 1; two roundings. Functions of a GPU are not those of the host: "CUDA C++ Programming Guide",
 * mathematical functions, states at most 2 ulp for expf(), tanhf() and rsqrtf(), and correct rounding for
 * division and sqrtf(). Bounds of these tests are sums of such errors. */
static const double ulp = 0x1p-23;

/* |got - exact| <= relative * |exact| + absolute, or the test fails. */
void check_near(double got, double exact, double relative, double absolute);

/* act(x) * up, with the two constants of TSR_GLU_CLAMPED. */
double glu_exact(tsr_glu_kind kind, float limit, double x, double up);

/* op->y is op->x with its pairs turned by the table's angles, and the rest of every head untouched. */
void check_rotated(const tsr_op_rope *op);

/* op->y is softmax(op->scale * op->x), row by row. */
void check_softmax_rows(const tsr_op_softmax *op, double relative);

#endif
