/* Matrix products of many tokens by cuBLASLt, for F16 and BF16 weights.
 *
 * A library picks its kernel by the shape of the product, so one token's bits depend on how many tokens share
 * the call and on how rows and columns are divided. The exact reduction excludes this. So cuBLASLt computes
 * products only in programs with another reduction (op->mul_mat.reduce), from a number of tokens on
 * (tsr_cuda_device.library_tokens).
 *
 * Everything is decided when a program is created: which ops cuBLASLt computes, in how many slabs of tokens,
 * by which algorithm. Running a product only enqueues, so it may be captured. All device memory is the
 * device's scratch block: cuBLASLt's workspace, the activations in the weights' type, and sums that are to be
 * rounded. Activations have 11 (F16) or 8 (BF16) bits, where our own kernels keep 22 or 24. Activations
 * beyond the range of F16 are scaled by a power of two, token by token. */
#ifndef TSR_CUDA_LIBS_CUBLAS_H
#define TSR_CUDA_LIBS_CUBLAS_H

#include "cuda/kernels/kernels.h"

/* The default of library_tokens. Not measured: our kernels read weights at the speed of memory up to 16
 * tokens, and beyond compute two (F16) or three (BF16) times the library's products. */
enum { TSR_CUBLAS_TOKENS = 32 };

struct tsr_cuda_device;

/* The library and a handle of one device, created for the first program that uses it. */
typedef struct tsr_cublas tsr_cublas;
void tsr_cublas_destroy(tsr_cublas *cublas); /* NULL is fine; the device is current */

/* A program's products. */
typedef struct tsr_cublas_products tsr_cublas_products;

/* NULL if cuBLASLt computes no op: by the rule above; because there is no library, which is a warning the
 * first time; or because the library has no algorithm for the shape, which is logged. Any other failed call
 * is a failure of this function. The device is current and holds its scratch. */
tsr_status tsr_cublas_products_create(struct tsr_cuda_device *cuda, const tsr_op *ops, int n_ops,
                                      tsr_cublas_products **products_out);
void tsr_cublas_products_destroy(tsr_cublas_products *products); /* NULL is fine */

/* Whether cuBLASLt computes op `index`. `products` may be NULL. */
bool tsr_cublas_serves(const tsr_cublas_products *products, int index);

/* Enqueue op `index`. */
tsr_status tsr_cublas_launch(const tsr_cublas_products *products, int index, const tsr_op_mul_mat *op,
                             const tsr_cuda_stream *s);

#endif
