/* Conversion of activations for cuBLASLt, and of its sums to outputs. Both enqueue on the stream of `s`. */
#ifndef TSR_CUDA_LIBS_CUBLAS_CONVERT_H
#define TSR_CUDA_LIBS_CUBLAS_CONVERT_H

#include "cuda/kernels/kernels.h"

TSR_BEGIN_DECLS

/* to[t][i] = x[t * x_stride + i] in `type` (F16 or BF16), i < k, zeros up to `stride`. F16: first divided by
 * scale[t], a power of two that is 1 unless the token's largest activation is outside [2^-4, 2^15). */
tsr_status tsr_cublas_convert(tsr_type type, const float *x, int64_t x_stride, int64_t k, int64_t n_tokens,
                              uint16_t *to, int64_t stride, float *scale, const tsr_cuda_stream *s);

/* y[t][r] = sums[t][r] * scale[t], as f32 or rounded to bfloat16. scale NULL: ones. y may be sums, with the
 * same stride. */
tsr_status tsr_cublas_finish(const float *sums, int64_t sums_stride, const float *scale, int64_t n_rows,
                             int64_t n_tokens, void *y, int64_t y_stride, bool bf16,
                             const tsr_cuda_stream *s);

TSR_END_DECLS

#endif
