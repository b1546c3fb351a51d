/* Quantizing activations, for q_chunk.cuh: eight lanes quantize one chunk of one token, so that a warp has
 * the loads of four chunks in flight together. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_Q_X_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_Q_X_CUH

#include "cuda/kernels/mul_mat/q_chunk.cuh"

enum { Q_X_LANES = 8, Q_X_CHUNKS = TSR_WARP / Q_X_LANES /* of a warp */ };

/* 127 * 256 + 127: the largest integer whose bytes, the upper one rounded, are signed bytes. */
#define Q_LARGEST 32639.0f

#define Q_LARGEST_BYTE 127.0f

/* Elements of one scale count as zeros if the largest is smaller: the scale's reciprocal would be out of
 * range. */
#define Q_SMALLEST 7.8886091e-31f /* 2^-100 */

/* Integers of less than 2^22 are added to the bits of this number, which rounds to them (q_join()). */
#define Q_ROUND_BITS  0x4b400000u
#define Q_ROUND_FLOAT 12582912.0f

/* Four elements, each a lane's; zeros where `here` is false. */
TSR_DEVICE tsr_floats_4 q_load_x(const float *x, bool here, bool wide)
{
    if (!here)
        return {{0.0f, 0.0f, 0.0f, 0.0f}};
    if (wide)
        return *reinterpret_cast<const tsr_floats_4 *>(x);
    return {{x[0], x[1], x[2], x[3]}};
}

/* The norm of a token's activations. */
struct q_norm {
    bool on; /* otherwise there is none */
    float scale;
    const float *weight; /* NULL: none */
    float *y;            /* the token's result; NULL: it is not stored */
};

/* Elements at .. at + 3 of a token with the bits of tsr_norm_apply(). */
TSR_DEVICE tsr_floats_4 q_normalize(const q_norm &norm, int64_t at, tsr_floats_4 x, bool here, bool wide)
{
    if (!here)
        return x;
    const tsr_floats_4 weight = q_load_x(norm.weight ? norm.weight + at : NULL, norm.weight != NULL, wide);
    TSR_UNROLL
    for (int i = 0; i < 4; i++) {
        x.at[i] = x.at[i] * norm.scale;
        if (norm.weight)
            x.at[i] = x.at[i] * weight.at[i];
    }
    if (!norm.y)
        return x;
    if (wide)
        *reinterpret_cast<tsr_floats_4 *>(norm.y + at) = x;
    TSR_UNROLL
    for (int i = 0; i < 4; i++)
        if (!wide)
            norm.y[at + i] = x.at[i];
    return x;
}

/* Where word number w of block b of a side is; the other side's are Q_SIDE_BYTES further. A lane's two words
 * of a block are neighbours or, where the weights' words are not aligned or have the quants of both, two of
 * which one is 16 elements after the other: sums of integers allow any order, the same for both operands. */
TSR_DEVICE uint32_t *q_word_at(const q_args &a, unsigned char *codes, int b, int w)
{
    const int piece = a.adjacent ? w / 2 : w % 4, second = a.adjacent ? w % 2 : w / 4;
    return reinterpret_cast<uint32_t *>(codes + 128 * (b / 2) + piece * 16 + b % 2 * 8) + second;
}

/* Words that two nibbles of a byte take their places in, as weights that are looked up do: elements 4 w, 16 +
 * 4 w, 4 w + 1, 17 + 4 w in that of lane w < 4, and the other four of them in that of lane w + 4. All lanes
 * of a warp call it. */
TSR_DEVICE uint32_t q_mix(uint32_t word, int w)
{
    const uint32_t other = __shfl_xor_sync(TSR_ALL_LANES, word, Q_X_LANES / 2);
    return __byte_perm(word, other, w < Q_X_LANES / 2 ? 0x5140 : 0x3726);
}

/* The codes of a word, of each side; the value is their sum. With 128 more the upper byte is rounded, and the
 * lower one has another first bit. */
template <int BYTES> TSR_DEVICE float q_encode(const tsr_floats_4 &x, float reciprocal, uint32_t codes[BYTES])
{
    constexpr uint32_t more = BYTES == 2 ? 128 : 0;
    uint32_t word[4], sum = 0;
    TSR_UNROLL
    for (int i = 0; i < 4; i++) { /* rounded twice: no fused operation */
        const float rounded = x.at[i] * reciprocal + (Q_ROUND_FLOAT + (float)more);
        memcpy(&word[i], &rounded, sizeof rounded);
        sum += word[i];
    }
    const uint32_t first = __byte_perm(word[0], word[1], 0x5140),
                   last = __byte_perm(word[2], word[3], 0x5140);
    codes[BYTES - 1] = __byte_perm(first, last, 0x5410);
    if (BYTES == 2) {
        codes[0] = __byte_perm(first, last, 0x7632);
        codes[1] ^= 0x80808080u;
    }
    return tsr_bits_to_f32(sum - 3 * Q_ROUND_BITS - 4 * more) - Q_ROUND_FLOAT;
}

/* The largest of eight lanes' integers. */
TSR_DEVICE uint32_t q_most(uint32_t most)
{
    TSR_UNROLL
    for (int mask = 1; mask < Q_X_LANES; mask *= 2) {
        const uint32_t other = __shfl_xor_sync(TSR_ALL_LANES, most, mask);
        most = most > other ? most : other;
    }
    return most;
}

/* Store what lane w of eight has of a chunk: the words, and one of the sums and scales. `sum`: that of the
 * block which tsr_tree_level() leaves there. */
template <int BYTES>
TSR_DEVICE void q_store_chunk(const q_args &a, int w, const uint32_t sides[Q_BLOCKS][BYTES], float sum,
                              const float *scale, unsigned char *codes, q_meta *meta)
{
    const int block = w % 2 * 2 + w / 2 % 2;
    TSR_UNROLL
    for (int b = 0; b < Q_BLOCKS; b++)
        TSR_UNROLL
    for (int side = 0; side < BYTES; side++)
        q_word_at(a, codes, b, w)[side * (Q_SIDE_BYTES / 4)] = sides[b][side];
    float value = scale[0];
    TSR_UNROLL
    for (int b = 1; BYTES == 1 && b < Q_BLOCKS; b++)
        value = block == b ? scale[b] : value;
    meta->at[w < Q_BLOCKS ? q_sum_at<BYTES>(block) : q_scale_at<BYTES>(block)] = w < Q_BLOCKS ? sum : value;
}

/* Load the lane's words of a chunk of `length` elements, of which the first is x[0]; zeros behind them. */
TSR_DEVICE void q_load_chunk(const float *x, int length, bool wide, tsr_floats_4 four[Q_BLOCKS])
{
    if (wide && length == Q_CHUNK) {
        TSR_UNROLL
        for (int b = 0; b < Q_BLOCKS; b++)
            four[b] = *reinterpret_cast<const tsr_floats_4 *>(x + TSR_QUANT_BLOCK * b);
        return;
    }
    TSR_UNROLL
    for (int b = 0; b < Q_BLOCKS; b++)
        four[b] = q_load_x(x + TSR_QUANT_BLOCK * b, TSR_QUANT_BLOCK * b < length, wide);
}

/* Eight lanes quantize chunk `chunk`, if they have one (`here`), of the token whose activations begin at x,
 * to codes (q_code_at()) and meta. All lanes of a warp call it, each eight with their own arguments. Lane l
 * of eight has word l of each block. If one element is not finite, its scale is NaN, and so are all results
 * of the chunk. MIXED: q_mix() of words. SUMS: sums of blocks are needed; otherwise they are zeros. `norm` is
 * applied first. */
template <int BYTES, bool MIXED, bool SUMS>
TSR_DEVICE void q_quantize(const q_args &a, const float *x, int chunk, int lane, bool here,
                           unsigned char *codes, q_meta *meta, const q_norm &norm = {})
{
    const int w = lane % Q_X_LANES;
    const q_span span = q_span_of(a, chunk);
    const int64_t begin = span.begin + 4 * w;
    const int length = here ? span.length : 0;
    const float largest_code = BYTES == 2 ? Q_LARGEST : Q_LARGEST_BYTE;
    tsr_floats_4 four[Q_BLOCKS];
    q_load_chunk(x + begin, length, a.wide_x, four);
    if (norm.on)
        TSR_UNROLL
    for (int b = 0; b < Q_BLOCKS; b++)
        four[b] =
            q_normalize(norm, begin + TSR_QUANT_BLOCK * b, four[b], TSR_QUANT_BLOCK * b < length, a.wide_x);
    constexpr int scales = BYTES == 2 ? 1 : Q_BLOCKS, blocks = Q_BLOCKS / scales; /* of a scale */
    uint32_t most[scales] = {}; /* as integers magnitudes have the same order, and a NaN is the largest */
    TSR_UNROLL
    for (int i = 0; i < 4 * Q_BLOCKS; i++) {
        uint32_t bits, *const so_far = &most[i / 4 / blocks];
        memcpy(&bits, &four[i / 4].at[i % 4], sizeof bits);
        *so_far = *so_far > (bits & 0x7fffffffu) ? *so_far : bits & 0x7fffffffu;
    }
    float sums[Q_BLOCKS], scale[scales];
    uint32_t sides[Q_BLOCKS][BYTES];
    TSR_UNROLL
    for (int s = 0; s < scales; s++) {
        most[s] = q_most(most[s]);
        const float largest = tsr_bits_to_f32(most[s]);
        const bool finite = most[s] < 0x7f800000u, some = finite && largest >= Q_SMALLEST;
        const float reciprocal = some ? largest_code / largest : 0.0f;
        scale[s] = finite ? (some ? largest / largest_code : 0.0f) : NAN;
        TSR_UNROLL
        for (int b = s * blocks; b < (s + 1) * blocks; b++) {
            const float sum = q_encode<BYTES>(four[b], reciprocal, sides[b]);
            sums[b] = SUMS && finite ? sum : 0.0f; /* of a NaN's bits */
            TSR_UNROLL
            for (int side = 0; MIXED && side < BYTES; side++)
                sides[b][side] = q_mix(sides[b][side], w);
        }
    }
    if (SUMS) {
        tsr_tree_level<4>(sums, lane, 1);
        tsr_tree_level<2>(sums, lane, 2);
        tsr_tree_level<1>(sums, lane, 4);
    }
    if (here)
        q_store_chunk<BYTES>(a, w, sides, sums[0], scale, codes, meta);
}

#endif
