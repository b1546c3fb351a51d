/* mul_mat with F16 and BF16 weights on tensor cores: the common part of its two kernels, which therefore give
 * the same bits. half_few.cu loads weights straight into registers, at the speed of memory, for up to eight
 * tokens; half_many.cu goes through shared memory and serves prompts.
 *
 * Why tensor cores for one token too: a prompt needs them, and the order in which they add 16 products is the
 * card's own, so only the same instruction gives the same bits. It costs nothing: seven of eight columns
 * idle, yet on an H200 the products take about a seventh of the time of reading the weights.
 *
 * Activations are f32, tensor cores take 16 bits. So each activation is divided into parts of the weights'
 * type whose sum it is, and the weights are multiplied with every part:
 *
 *   F16    two parts, 22 bits. F16's range is too small at both ends; hence the activations of one token and
 *          chunk are first scaled by the power of two that brings the largest to [2^14, 2^15), and the sum is
 *          scaled back. The loss is below 2^-39 of the chunk's largest activation.
 *   BF16   three parts, all 24 bits, and the range of f32.
 *
 * (TF32, which holds both types, would need no scale, and twice the time in prompts.) An activation that is
 * not finite makes the sum NaN.
 *
 * The order of sums. A granule is cut into chunks of 128 elements, counted from its first. A chunk is four
 * windows of 32, and a window two steps of 16: step s has elements 8 t + 4 s .. 8 t + 4 s + 3 for t = 0..3,
 * so that a lane loads 8 elements of a row as one piece of 16 bytes. Beginning with zeros, the tensor core
 * adds the products of step after step, and in a step the parts from the smallest on. Chunks are added in
 * f32, in order; the missing elements of a granule's last chunk count as zeros. So the sums do not depend on
 * which rows or tokens share a tile. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_HALF_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_HALF_CUH

#include "cuda/kernels/mul_mat/mma.cuh"
#include "cuda/kernels/mul_mat/half.h"
#include "cuda/kernels/mul_mat/quant.cuh"

enum {
    HALF_CHUNK = 128,
    HALF_WINDOW = 32,
    HALF_WINDOWS = HALF_CHUNK / HALF_WINDOW,
    HALF_PIECES = HALF_WINDOW / TSR_OCTET, /* of 16 bytes in a window's row */
    HALF_ROWS = 16,                        /* rows of one product: rows of weights and, in columns, tokens */
    HALF_TOKENS = 8
};

template <tsr_type TYPE> struct half_type {
    static constexpr bool scaled = TYPE == TSR_TYPE_F16;
    static constexpr int parts = TYPE == TSR_TYPE_F16 ? 2 : 3;
};

/* The op in the form that the kernels use. */
struct half_args {
    const unsigned char *w;
    size_t w_stride;
    const float *x;
    int64_t x_stride;
    void *y; /* int64 if exact, bfloat16 if bf16, otherwise float */
    int64_t y_stride;
    int64_t n_rows, k, n_tokens;
    int64_t granule;            /* all of k for a plain sum */
    int granule_chunks, chunks; /* per granule, and in all */
    float limit;
    bool exact, bf16;
    bool wide_w, wide_x; /* pieces of a chunk are aligned for wide loads: tsr_wide_rows() */
    tsr_fault_word fault;
    bool sibling; /* the op runs beside the one before it, and ends after it */
};

/* -- chunks -- */

/* Elements [at, at + left) of K; whether the chunk is the first and last of its granule. */
struct half_chunk {
    int64_t at;
    int left;
    bool first, last;
};

TSR_DEVICE half_chunk half_chunk_at(const half_args &a, int chunk)
{
    const int granule = chunk / a.granule_chunks, nth = chunk % a.granule_chunks;
    const int64_t begin = granule * a.granule, at = begin + nth * (int64_t)HALF_CHUNK;
    const int64_t end = begin + a.granule < a.k ? begin + a.granule : a.k;
    half_chunk c;
    c.at = at;
    c.left = (int)(end - at < HALF_CHUNK ? end - at : HALF_CHUNK);
    c.first = nth == 0;
    c.last = nth == a.granule_chunks - 1 || chunk == a.chunks - 1;
    return c;
}

/* Elements [at, at + 8) of a row's 16-bit weights, zeros from element `left` on. */
TSR_DEVICE tsr_bytes_16 half_load_piece(const unsigned char *row, int64_t at, int left, bool wide)
{
    const uint16_t *from = reinterpret_cast<const uint16_t *>(row) + at;
    if (wide && left >= TSR_OCTET)
        return tsr_load_once_16(from);
    tsr_bytes_16 piece;
    TSR_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t low = 2 * i < left ? from[2 * i] : 0u, high = 2 * i + 1 < left ? from[2 * i + 1] : 0u;
        piece.word[i] = low | high << 16;
    }
    return piece;
}

/* -- activations -- */

/* Lane l's elements 4 l .. 4 l + 3 of one token's chunk, zeros past its end. */
TSR_DEVICE void half_load_x(const half_args &a, const float *x, const half_chunk &c, int lane, float *values)
{
    const int left = c.left - 4 * lane;
    const float *from = x + c.at + 4 * lane;
    if (a.wide_x && left >= 4) {
        const tsr_floats_4 four = *reinterpret_cast<const tsr_floats_4 *>(from);
        memcpy(values, four.at, sizeof four.at);
        return;
    }
    TSR_UNROLL
    for (int i = 0; i < 4; i++)
        values[i] = i < left ? from[i] : 0.0f;
}

/* 2^n for n in -126..127. */
TSR_DEVICE float half_power_of_two(int n)
{
    return tsr_bits_to_f32((uint32_t)(n + 127) << 23);
}

/* n of the scale 2^n for a warp's values (above); the same in all lanes. The scale is limited to the range of
 * f32. For infinities and NaN, which stay, n is 0. */
TSR_DEVICE int half_scale_of(const float values[4])
{
    uint32_t top = 0;
    TSR_UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        bits &= 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    const int exponent = (int)(__reduce_max_sync(TSR_ALL_LANES, top) >> 23) - 127;
    return exponent == 128 ? 0 : 14 - exponent < 126 ? 14 - exponent : 126;
}

/* Two values, or with PAIRS 2 four, times `scale` in parts, largest first. */
template <tsr_type TYPE, int PAIRS = 2>
TSR_DEVICE void half_split(const float values[4], float scale, tsr_bytes_8 parts[half_type<TYPE>::parts])
{
    TSR_UNROLL
    for (int pair = 0; pair < PAIRS; pair++) {
        float low = values[2 * pair] * scale, high = values[2 * pair + 1] * scale;
        TSR_UNROLL
        for (int p = 0; p < half_type<TYPE>::parts; p++) {
            const uint32_t two = tsr_round_two<TYPE>(low, high);
            parts[p].word[pair] = two;
            low = low - tsr_from_16_bits<TYPE>((uint16_t)two);
            high = high - tsr_from_16_bits<TYPE>((uint16_t)(two >> 16));
        }
    }
}

/* A warp divides one token's chunk into parts; lane l gets the parts of its four values. Returns the factor
 * of sums over the chunk. */
template <tsr_type TYPE>
TSR_DEVICE float half_divide(const float values[4], tsr_bytes_8 parts[half_type<TYPE>::parts])
{
    const int n = half_type<TYPE>::scaled ? half_scale_of(values) : 0;
    half_split<TYPE>(values, half_power_of_two(n), parts);
    return half_power_of_two(-n);
}

/* -- products -- */

/* Add a window's products to the lane's four sums of a 16 x 8 tile. `upper` and `lower` are the lane's pieces
 * of rows g and g + 8 of the weights, `x` the pieces of token g's parts (mma.cuh defines g). */
template <tsr_type TYPE>
TSR_DEVICE void half_multiply(float sums[4], const tsr_bytes_16 &upper, const tsr_bytes_16 &lower,
                              const tsr_bytes_16 x[half_type<TYPE>::parts])
{
    TSR_UNROLL
    for (int s = 0; s < 2; s++) {
        const uint32_t w[4] = {upper.word[2 * s], lower.word[2 * s], upper.word[2 * s + 1],
                               lower.word[2 * s + 1]};
        TSR_UNROLL
        for (int p = half_type<TYPE>::parts - 1; p >= 0; p--)
            tsr_mma_16x8x16<TYPE>(sums, w, x[p].word[2 * s], x[p].word[2 * s + 1]);
    }
}

/* -- sums over chunks -- */

/* One output: the granule so far and, if exact, the previous granules. */
struct half_sum {
    float granule;
    int64_t fixed;
};

/* `first` and `last`: whether the chunk is the first or last of its granule. */
TSR_DEVICE void half_add_chunk(const half_args &a, bool first, bool last, float chunk, half_sum *sum,
                               bool *bad)
{
    sum->granule = first ? chunk : sum->granule + chunk;
    if (a.exact && last)
        sum->fixed += tsr_fixed_of(sum->granule, a.limit, bad);
}

TSR_DEVICE void half_store(const half_args &a, int64_t row, int64_t token, const half_sum &sum)
{
    if (a.exact)
        static_cast<int64_t *>(a.y)[token * a.y_stride + row] = sum.fixed;
    else
        tsr_put_sum(a.y, token * a.y_stride + row, sum.granule, a.bf16);
}

/* -- the kernels' launchers -- */

/* Any number of tokens; of several products, up to HALF_TOKENS. */
tsr_status tsr_cuda_mul_mat_half_few(const tsr_cuda_products *p, const half_args &a,
                                     const tsr_cuda_stream *s);

/* Works in the stream's scratch memory, as many tokens at a time as there is room for; only launches fail.
 * There must be room for one tile (tsr_cuda_mul_mat_half_many_scratch() of HALF_TILE_TOKENS). */
enum { HALF_TILE_TOKENS = 64 };
size_t tsr_cuda_mul_mat_half_many_scratch(tsr_type type, int chunks, int64_t n_tokens);
tsr_status tsr_cuda_mul_mat_half_many(tsr_type type, const half_args &a, const tsr_cuda_stream *s);

#endif
