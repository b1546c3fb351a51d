/* Running host kernels from tests: every instruction set that this machine has, teams of threads, buffers
 * that end at an inaccessible page, and random numbers that are the same everywhere. */
#ifndef TSR_TESTS_KERNEL_RUN_H
#define TSR_TESTS_KERNEL_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/op.h"
#include "host/kernels.h"

/* The i-th instruction set of this machine, NULL after the last. Set 0 is "generic", and AVX2 precedes those
 * that have more. */
const tsr_kernel_set *kernel_run_set(int i);

/* The same, then the AMX kernels on emulated tiles, whose matrix products are kernels of their own. */
const tsr_kernel_set *kernel_run_product_set(int i);

/* Whether the set multiplies weights of this type with activations that become one bfloat16 each
 * (host/kernels/mul_mat/pairs.h). */
bool kernel_run_is_pairs(const tsr_kernel_set *set, tsr_type type, int x_bits);

/* What a product with one weight of this type may be off by, relative to it, before anything is added up:
 * that of pairs, and AMX divides activations and F16 weights into two bfloat16
 * (host/kernels/mul_mat/halves_amx.h). Quantized types have a bound of their own, and plain ones are exact
 * otherwise. */
double kernel_run_product_error(const tsr_kernel_set *set, tsr_type type, int x_bits);

/* Run one op with a team of n_threads real threads, which read in one stream if they are an even number; with
 * more than one, activations are packed before where the set does that. Returns whether the range fault was
 * raised. */
bool kernel_run(const tsr_kernel_set *set, const tsr_op *op, int n_threads);

/* `bytes` bytes whose last one is the last accessible byte before an inaccessible page, filled with 0xff (NaN
 * as floats): reading past the end crashes, reading what was never written shows. */
void *guarded_alloc(size_t bytes);
void guarded_free(void *pointer, size_t bytes);

/* Uniform in [0, 2^32), in [low, high) and in [low, high]. */
uint32_t random_u32(uint64_t *state);
float random_float(uint64_t *state, float low, float high);
int64_t random_int(uint64_t *state, int64_t low, int64_t high);
void random_fill(uint64_t *state, float *x, int64_t n, float low, float high);

#endif
