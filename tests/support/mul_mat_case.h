/* Products of matrices for the tests of mul_mat on the host: random weights of every type with
 * activations, the product in double precision, and the checks that a result has to pass on every
 * instruction set. Weights, activations and results end where a mapping ends, so that one byte too far
 * crashes. */
#ifndef TSR_TESTS_MUL_MAT_CASE_H
#define TSR_TESTS_MUL_MAT_CASE_H

#include "support/kernel_run.h"

/* Weights, and bits of the activations beside them: every type, then all but F32 with 8 bits. */
typedef struct kind {
    tsr_type type;
    int x_bits;
} kind;
enum { N_KINDS = 2 * 26 - 1 };

/* 0 <= i < N_KINDS */
kind mul_mat_kind(int i);

/* Elements of a block of the type. */
int64_t mul_mat_block(tsr_type type);

/* A matrix, activations, and what the product should be. */
typedef struct problem {
    tsr_type type;
    int x_bits;
    int64_t n_rows, k, n_tokens;
    size_t row_bytes, w_bytes, x_bytes;
    unsigned char *w;  /* [n_rows] rows, dense */
    float *x;          /* [n_tokens][k] */
    float *decoded;    /* [n_rows][k] */
    double *exact;     /* [n_tokens][n_rows] */
    double *magnitude; /* [n_tokens][n_rows] sum of |w x| */
    double *rounding;  /* [n_tokens][n_rows] what rounding x to integers may change */
} problem;

problem problem_create(kind of, int64_t n_rows, int64_t k, int64_t n_tokens, uint64_t seed);
void problem_destroy(problem *p);

/* Compute `exact` and its bounds again after weights or activations were changed. */
void problem_exact(problem *p);

/* Of the result: whole sums, or partials as they are reduced. */
size_t problem_output_bytes(const problem *p, bool partial, tsr_reduce_type reduce);

/* granule 0: a whole sum, else partial. */
tsr_op problem_op(const problem *p, int64_t granule, tsr_reduce_type reduce, void *y);

/* Run on every set: close to exact, the same with any number of threads, and on every set that promises
 * it. */
void problem_check_sets(const problem *p, int64_t granule, tsr_reduce_type reduce);

/* On every set: one token at a time gives the bits of all tokens in one product. */
void problem_check_tokens(const problem *p, int64_t granule);

#endif
