/* Rotation of a pair of elements by an angle, for several kernels. */
#ifndef TSR_CUDA_KERNELS_ROPE_CUH
#define TSR_CUDA_KERNELS_ROPE_CUH

#include "cuda/kernels/common.cuh"

/* angle: cosine and sine. Every kernel rounds the products and sums one by one. */
TSR_DEVICE float tsr_rope_first(float a, float b, const float *angle)
{
    return a * angle[0] - b * angle[1];
}

TSR_DEVICE float tsr_rope_second(float a, float b, const float *angle)
{
    return a * angle[1] + b * angle[0];
}

/* Element `at` of a token's head, which is `value`, with `other`, the element that is paired with it. */
TSR_DEVICE float tsr_rope_element(const tsr_op_rope &op, int64_t token, int at, float value, float other)
{
    const int half = (int)op.n_rot / 2, pair = op.interleaved ? at / 2 : at < half ? at : at - half;
    const float *angle = op.table + token * op.n_rot + 2 * pair;
    if (at >= op.n_rot)
        return value;
    return (op.interleaved ? at % 2 == 0 : at < half) ? tsr_rope_first(value, other, angle)
                                                      : tsr_rope_second(other, value, angle);
}

/* Items of a head: its pairs, and the elements that are not rotated, which are copied. */
static inline __host__ __device__ int64_t tsr_rope_items(const tsr_op_rope *op)
{
    return op->head_dim - op->n_rot / 2;
}

/* Rotate item i of all heads. Both elements are read before either is written, since x may equal y. */
TSR_DEVICE void tsr_rope_item(const tsr_op_rope &op, int64_t i)
{
    const tsr_quotient item = tsr_divide(i, tsr_rope_items(&op));
    const int64_t half = op.n_rot / 2, head = item.of, j = item.rest;
    const float *x = op.x + head * op.head_dim;
    float *y = op.y + head * op.head_dim;
    const float *angle = op.table + tsr_divide(head, op.n_heads).of * op.n_rot + 2 * j;
    if (j >= half) {
        y[half + j] = x[half + j];
        return;
    }
    const int64_t first = op.interleaved ? 2 * j : j, second = op.interleaved ? 2 * j + 1 : j + half;
    const float a = x[first], b = x[second];
    y[first] = tsr_rope_first(a, b, angle);
    y[second] = tsr_rope_second(a, b, angle);
}

#endif
