/* The one order in which products are added up, and the tile that computes many outputs in this order.
 *
 * A dot product over n elements is cut into segments of DOT_SEGMENT. Inside a segment, element i goes to lane
 * i % 8 of an accumulator, by one multiply-add per eight elements, in order of i. The segment's sum is the
 * tree sum (v8_sum) of the lanes. Segment sums are added in order. A last piece shorter than 32 is filled up
 * with zeros.
 *
 * The order does not depend on rows, tokens or threads, so one token or many, one row or many give the same
 * bits. Eight lanes are AVX2's vector; AVX-512 takes two rows per vector. More lanes would make the trees
 * larger, and a granule of 128 elements ends in a tree. Segments bound the state that a tile carries through
 * a long row to one float per output, keep tiles in the first-level cache, and make the rounding error grow
 * with n / 512 instead of n. Segments twice as long would not fit; with segments half as long the trees would
 * take 6 % of a tile's time instead of 3 %. */
#ifndef TSR_HOST_KERNELS_MUL_MAT_DOT_H
#define TSR_HOST_KERNELS_MUL_MAT_DOT_H

#include "host/kernels/quant/weights.h"

enum {
    DOT_SEGMENT = 512,
    DOT_LANES = 8,
#if defined(TSR_ISA_AVX512)
    DOT_GROUPS = 1,
    DOT_VECTORS = 4, /* of two rows; 4 x 6 accumulators of 32 registers */
    DOT_TOKENS = 6,
    DOT_SUMMED = 2, /* tokens whose sums are made together */
    DOT_UNROLL = 2, /* times eight elements per iteration */
#elif defined(TSR_ISA_AVX2)
    DOT_GROUPS = 2,
    DOT_VECTORS = 4, /* 4 x 3 of 16, and four for the factors: with more gcc would spill */
    DOT_TOKENS = 3,
    DOT_SUMMED = 1,
    DOT_UNROLL = 1,
#else
    DOT_GROUPS = 1,
    DOT_VECTORS = 4, /* 4 x 2 of 16: without a fused multiply-add each product needs a register too */
    DOT_TOKENS = 2,
    DOT_SUMMED = 1,
    DOT_UNROLL = 2,
#endif
    /* a row's eight lanes take this many vectors */
    DOT_PARTS = VEC_LANES < DOT_LANES ? DOT_LANES / VEC_LANES : 1,
    DOT_GROUP_ROWS = DOT_VECTORS * VEC_LANES * DOT_PARTS / DOT_LANES, /* rows multiplied together */
    DOT_ROWS = DOT_GROUPS * DOT_GROUP_ROWS,                           /* of a panel */
    DOT_STEP = DOT_ROWS * DOT_LANES /* floats of a panel per eight floats of a token */
};

/* Add the products of 32 elements. */
ALWAYS_INLINE v8 dot_step(v8 sum, w32 w, v16 xa, v16 xb)
{
    sum = v8_fma(v16_low(w.a), v16_low(xa), sum);
    sum = v8_fma(v16_high(w.a), v16_high(xa), sum);
    sum = v8_fma(v16_low(w.b), v16_low(xb), sum);
    return v8_fma(v16_high(w.b), v16_high(xb), sum);
}

/* Eight elements of a token, or as many as a pass multiplies, once for each row in a vector. */
ALWAYS_INLINE vec dot_token(const float *x)
{
#if defined(TSR_ISA_AVX512)
    return _mm512_broadcast_f32x8(_mm256_loadu_ps(x));
#else
    return vec_load_once(x);
#endif
}

/* The sums of a group of rows with DOT_SUMMED tokens. */
ALWAYS_INLINE void dot_sums(vec acc[DOT_SUMMED][DOT_PARTS][DOT_VECTORS], float *out)
{
#if defined(TSR_ISA_AVX512)
    vec_sum_halves8((const vec *)acc, out);
#elif defined(TSR_ISA_AVX2)
    v8_sum4(acc[0][0], out);
#else
    for (int r = 0; r < DOT_GROUP_ROWS; r++)
        out[r] = v8_sum((v8){acc[0][0][r], acc[0][1][r]});
#endif
}

/* Add one part of a group's lanes: w starts at the first eight elements, x at the first token. */
ALWAYS_INLINE void dot_part(const int n_tokens, const float *w, const float *x, size_t x_stride, int64_t n,
                            const int part, vec acc[DOT_TOKENS][DOT_PARTS][DOT_VECTORS])
{
    for (int64_t i = 0; i < n; i += DOT_UNROLL * DOT_LANES, w += DOT_UNROLL * DOT_STEP) {
        UNROLL for (int u = 0; u < DOT_UNROLL; u++)
        {
            vec xi[DOT_TOKENS];
            UNROLL for (int t = 0; t < n_tokens; t++) xi[t] =
                dot_token(x + (size_t)t * x_stride + i + u * DOT_LANES);
            UNROLL for (int v = 0; v < DOT_VECTORS; v++)
            {
                const vec wv = vec_load_once(w + u * DOT_STEP + v * VEC_LANES * DOT_PARTS);
                UNROLL for (int t = 0; t < n_tokens; t++) acc[t][part][v] =
                    vec_fma(wv, xi[t], acc[t][part][v]);
            }
        }
    }
}

/* Segment sums of a panel of DOT_ROWS rows with n_tokens tokens, x_stride floats apart. n is a multiple of
 * 32, at most DOT_SEGMENT. The panel holds eight elements of each row, then the next eight. out[t * DOT_ROWS
 * + r], with room for a multiple of DOT_SUMMED tokens.
 *
 * A group of rows, or a part of its lanes, at a time: as many accumulators as there are registers. */
ALWAYS_INLINE void dot_tile_n(const int n_tokens, const float *w, const float *x, size_t x_stride, int64_t n,
                              float *out)
{
    UNROLL for (int group = 0; group < DOT_GROUPS; group++)
    {
        vec acc[DOT_TOKENS][DOT_PARTS][DOT_VECTORS] = {0};
        const float *rows = w + group * DOT_GROUP_ROWS * DOT_LANES;
        UNROLL for (int part = 0; part < DOT_PARTS; part++)
            dot_part(n_tokens, rows + part * VEC_LANES, x + part * VEC_LANES, x_stride, n, part, acc);
        UNROLL for (int t = 0; t < n_tokens; t += DOT_SUMMED)
            dot_sums(acc + t, out + t * DOT_ROWS + group * DOT_GROUP_ROWS);
    }
}

/* dot_tile_n() for 1 <= n_tokens <= DOT_TOKENS. Not inlined: the caller would run out of registers. */
static NOINLINE void dot_tile(int n_tokens, const float *w, const float *x, size_t x_stride, int64_t n,
                              float *out)
{
    if (n_tokens == DOT_TOKENS) {
        dot_tile_n(DOT_TOKENS, w, x, x_stride, n, out);
        return;
    }
    for (; n_tokens >= 2; n_tokens -= 2, x += 2 * x_stride, out += 2 * DOT_ROWS)
        dot_tile_n(2, w, x, x_stride, n, out);
    if (n_tokens > 0)
        dot_tile_n(1, w, x, x_stride, n, out);
}

/* Dot product of two f32 rows of any length, in the order above. */
static float dot_f32(const float *x, const float *y, int64_t n)
{
    float total = 0.0f;
    for (int64_t begin = 0; begin < n; begin += DOT_SEGMENT) {
        const int64_t end = n - begin < DOT_SEGMENT ? n : begin + DOT_SEGMENT;
        v8 lanes = v8_zero();
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
        const float sum = v8_sum(lanes);
        total = begin == 0 ? sum : total + sum;
    }
    return total;
}

#endif
