/* Quantizing activations, for q_chunk.cuh: a warp quantizes one chunk of one token. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_Q_X_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_Q_X_CUH

#include "cuda/kernels/mul_mat/q_chunk.cuh"

/* 127 * 256 + 127: the largest integer whose bytes, the upper one rounded, are signed bytes. */
#define Q_LARGEST 32639.0f

/* Chunks whose largest element is smaller count as zeros: the reciprocal of their scale would be out of
 * range. */
#define Q_SMALLEST 7.8886091e-31f /* 2^-100 */

/* Four elements of the lane, zeros from element `left` on. */
TSR_DEVICE tsr_floats_4 q_load_x(const float *x, int left, bool wide)
{
    if (left < 4)
        return {{0.0f, 0.0f, 0.0f, 0.0f}};
    if (wide)
        return *reinterpret_cast<const tsr_floats_4 *>(x);
    return {{x[0], x[1], x[2], x[3]}};
}

/* Quantize chunk `chunk` of the token whose activations begin at x. All lanes of a warp call it; lane l has
 * elements 4 l .. 4 l + 3, which are word l % 8 of block l / 8 (q_tokens_load() has the layout). If one
 * element is not finite, the scale is NaN, and so are all results of the chunk. */
TSR_DEVICE void q_quantize(const q_args &a, const float *x, int chunk, int lane, unsigned char *codes,
                           q_meta *meta)
{
    const q_span span = q_span_of(a, chunk);
    const tsr_floats_4 four = q_load_x(x + span.begin + 4 * lane, span.length - 4 * lane, a.wide_x);
    float largest = 0.0f;
    bool finite = true;
    TSR_UNROLL
    for (int i = 0; i < 4; i++) {
        largest = fmaxf(largest, fabsf(four.at[i]));
        finite = finite && fabsf(four.at[i]) <= 3.40282347e38f;
    }
    finite = __all_sync(TSR_ALL_LANES, finite);
    largest = tsr_warp_max(largest);
    const bool some = finite && largest >= Q_SMALLEST;
    const float reciprocal = some ? Q_LARGEST / largest : 0.0f;
    uint32_t high = 0, low = 0;
    int sum = 0;
    TSR_UNROLL
    for (int i = 0; i < 4; i++) {
        const int code = some ? (int)rintf(four.at[i] * reciprocal) : 0;
        const int upper = (code + 128) >> 8;
        high |= (uint32_t)(upper & 255) << (8 * i);
        low |= (uint32_t)((code - 256 * upper) & 255) << (8 * i);
        sum += code;
    }
    TSR_UNROLL
    for (int mask = 1; mask < 8; mask *= 2)
        sum += __shfl_xor_sync(TSR_ALL_LANES, sum, mask);
    const int block = lane / 8, j = lane % 4, side = lane / 4 % 2;
    uint32_t *const piece = reinterpret_cast<uint32_t *>(codes + 128 * (block / 2) + 16 * j);
    piece[2 * (block % 2) + side] = high;
    piece[16 + 2 * (block % 2) + side] = low;
    if (lane % 8 == 0)
        meta->sums[block] = (float)sum;
    if (lane == 0)
        meta->scale = finite ? (some ? largest / Q_LARGEST : 0.0f) : NAN;
}

#endif
