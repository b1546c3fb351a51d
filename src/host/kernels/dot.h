/* The one order in which products are added up, and the tile that does it for many outputs at once.
 *
 * A dot product over n elements is cut into segments of DOT_SEGMENT. Inside a segment, element i goes to lane
 * i % 16 of one 16-lane accumulator, by one multiply-add per 16 elements, in order of i. The segment's sum is
 * the tree sum (v16_sum) of the lanes. Segment sums are added in order. A last piece shorter than 32 is
 * filled up with zeros.
 *
 * The order says nothing about rows, tokens or threads, so one token or many, one row or many give the same
 * bits. Short segments bound the state that a tile carries through a long row to one float per output, keep
 * tiles in the first-level cache, and make the rounding error grow with n / 512 instead of n. */
#ifndef TSR_HOST_KERNELS_DOT_H
#define TSR_HOST_KERNELS_DOT_H

#include "host/kernels/weights.h"

enum {
    DOT_SEGMENT = 512,
#if defined(TSR_ISA_AVX512)
    DOT_ROWS = 8, /* rows of a register tile: 8 x 3 accumulators of 32 registers */
    DOT_TOKENS = 3
#elif defined(TSR_ISA_AVX2)
    DOT_ROWS = 4, /* 4 x 3 of 16 */
    DOT_TOKENS = 3
#else
    DOT_ROWS = 4, /* 4 x 2 of 16: without a fused multiply-add each product needs a register too */
    DOT_TOKENS = 2
#endif
};

/* 32 elements more. */
ALWAYS_INLINE v16 dot_step(v16 sum, w32 w, v16 xa, v16 xb)
{
    return v16_fma(w.b, xb, v16_fma(w.a, xa, sum));
}

/* Segment sums of DOT_ROWS rows with n_tokens tokens. Rows lie w_stride and x_stride floats apart, n is a
 * multiple of 32, at most DOT_SEGMENT. out[t * DOT_ROWS + r].
 *
 * Each pass computes one machine vector of the 16 lanes, for all outputs: where it takes several, a stride
 * through memory that is in the first-level cache, in exchange for as large a register tile. Tokens come from
 * the second-level cache, so those of the next call are asked for. */
ALWAYS_INLINE void dot_tile_n(const int n_tokens, const float *w, size_t w_stride, const float *x,
                              size_t x_stride, int64_t n, float *out)
{
    float lanes[DOT_TOKENS][DOT_ROWS][16];
    UNROLL for (int pass = 0; pass < V16_PARTS; pass++)
    {
        vec acc[DOT_TOKENS][DOT_ROWS] = {0};
        for (int64_t i = (int64_t)pass * VEC_LANES; i < n; i += 16) {
            vec xi[DOT_TOKENS];
            UNROLL for (int t = 0; t < n_tokens; t++) xi[t] = vec_load(x + (size_t)t * x_stride + i);
            UNROLL for (int t = 0; t < n_tokens && pass == 0; t++)
                __builtin_prefetch(x + (size_t)(n_tokens + t) * x_stride + i);
            UNROLL for (int r = 0; r < DOT_ROWS; r++)
            {
                const vec wi = vec_load_once(w + (size_t)r * w_stride + i);
                UNROLL for (int t = 0; t < n_tokens; t++) acc[t][r] = vec_fma(wi, xi[t], acc[t][r]);
            }
        }
        UNROLL for (int t = 0; t < n_tokens; t++) UNROLL for (int r = 0; r < DOT_ROWS; r++)
            vec_store(lanes[t][r] + pass * VEC_LANES, acc[t][r]);
    }
    UNROLL for (int t = 0; t < n_tokens; t++)
    {
        v16 sum[DOT_ROWS];
        UNROLL for (int r = 0; r < DOT_ROWS; r++) sum[r] = v16_load(lanes[t][r]);
        v16_sum_n(DOT_ROWS, sum, out + t * DOT_ROWS);
    }
}

/* The same for 1 <= n_tokens <= DOT_TOKENS. */
static void dot_tile(int n_tokens, const float *w, size_t w_stride, const float *x, size_t x_stride,
                     int64_t n, float *out)
{
    if (n_tokens >= 3 && DOT_TOKENS >= 3)
        dot_tile_n(DOT_TOKENS >= 3 ? 3 : 1, w, w_stride, x, x_stride, n, out);
    else if (n_tokens == 2)
        dot_tile_n(2, w, w_stride, x, x_stride, n, out);
    else
        dot_tile_n(1, w, w_stride, x, x_stride, n, out);
}

/* Dot product of two f32 rows of any length, in the order above. */
static float dot_f32(const float *x, const float *y, int64_t n)
{
    float total = 0.0f;
    for (int64_t begin = 0; begin < n; begin += DOT_SEGMENT) {
        const int64_t end = n - begin < DOT_SEGMENT ? n : begin + DOT_SEGMENT;
        v16 lanes = v16_zero();
        int64_t i = begin;
        for (; i + 32 <= end; i += 32)
            lanes = dot_step(lanes, (w32){v16_load(x + i), v16_load(x + i + 16)}, v16_load(y + i),
                             v16_load(y + i + 16));
        if (i < end) {
            float tail_x[32] = {0}, tail_y[32] = {0};
            memcpy(tail_x, x + i, (size_t)(end - i) * sizeof(float));
            memcpy(tail_y, y + i, (size_t)(end - i) * sizeof(float));
            lanes = dot_step(lanes, (w32){v16_load(tail_x), v16_load(tail_x + 16)}, v16_load(tail_y),
                             v16_load(tail_y + 16));
        }
        const float sum = v16_sum(lanes);
        total = begin == 0 ? sum : total + sum;
    }
    return total;
}

#endif
