/* Neighbouring ops of a program that one kernel computes. Other kinds of devices run them as separate ops,
 * and every buffer holds the same values as without fusion, but for partial sums (tsr_cuda_fuse_sum()). */
#ifndef TSR_CUDA_DEVICE_FUSE_H
#define TSR_CUDA_DEVICE_FUSE_H

#include "core/op.h"
#include "cuda/kernels/kernels.h"

/* The RMS_NORM op right after the all-reduce ops[0] of n ops that normalises its sum and does not overwrite
 * rows of the sum that are still to be read; otherwise NULL. */
const tsr_op *tsr_cuda_fuse_norm(const tsr_op *ops, int n);

/* ops[0, n) begin with the rope of queries (optional), the rope of keys, and the write of these keys to the
 * KV cache, and none overwrites what another reads. */
tsr_cuda_rope_kv_ops tsr_cuda_fuse_rope_kv(const tsr_op *ops, int n);

/* Whether ops[i] multiplies the activations that all of ops[first, i) multiply, and neither writes what
 * another of them reads or writes: then it need not wait for them. ops[first] is the last that waited for
 * what was before it, so the others may still run. */
bool tsr_cuda_is_sibling(const tsr_op *ops, int first, int i);

/* Products from ops[i] on, of ops[0, end), for tsr_cuda_mul_mats(): all siblings of each other and, where
 * first < i, of ops[first, i). Of several, all have whole sums. A GLU after gate and up that share a launch
 * is taken as well, if it overwrites no result of ops[first, i), and so are ropes and the write to the
 * cache after queries, keys and values. *n_out: the number of all these ops; 1 for any other op. */
tsr_cuda_products tsr_cuda_fuse_products(const tsr_op *ops, int first, int i, int end, int *n_out);

/* Whether kernels that compute `products` may normalise their activations themselves: what they make
 * overwrites nothing that the norm reads. */
bool tsr_cuda_fuse_norm_before(const tsr_op_rms_norm *norm, const tsr_cuda_products *products);

/* The all-reduce ops[1] of n ops that only adds up the partial sums of the product ops[0], since `device` has
 * all of them, and does not overwrite what the product reads; otherwise NULL. The product's kernel may do
 * that, and then nothing reads the partial sums. */
const tsr_op_all_reduce *tsr_cuda_fuse_sum(const tsr_op *ops, int n, int device);

#endif
