/* The tests of test_cuda_mul_mat_q.c with activations of 8 bits. */
#define X_BITS 8
#include "test_cuda_mul_mat_q.c"
