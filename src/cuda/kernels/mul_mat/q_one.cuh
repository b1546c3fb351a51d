/* The product of one token, for q_few.cu: the same bits as q_multiply()'s (q_chunk.cuh), with fewer
 * instructions.
 *
 * A product of tensor cores has as its columns both bytes of four tokens, or eight tokens. One token would
 * leave most of them unused, and all lanes of four with the same sums to scale. Here the pairs of columns are
 * four consecutive chunks: a chunk's product has activations in its own columns and zeros in the others,
 * whose sums stay as they are. After four chunks lane 4 g + j has the sums of all blocks of chunk j, for two
 * rows, and scales them with the scales of that chunk, which it has copied from the slot while they were
 * there. What remains is the chain over the chunks: it goes from lane to lane.
 *
 * With 8 bits the second column of each pair has zeros. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_Q_ONE_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_Q_ONE_CUH

#include "cuda/kernels/mul_mat/q_block.cuh"

enum { Q_ONE_CHUNKS = 4 };

/* The token, for a lane: where its column's pieces are of chunk lane / 8, and zeros (of all chunks, if the
 * column has no others); and the metas. */
struct q_one_token {
    const unsigned char *codes, *zeros;
    bool column;
    const q_meta *meta;
};

/* A lane's part of 16 rows times up to four chunks. The scales are those of chunk lane % 4 as they are
 * stored: headers (Q4_K, Q5_K), eight bytes and a scale (Q6_K), or the blocks' scales. */
template <tsr_type TYPE> struct q_one {
    int sums[Q_BLOCKS][q_type<TYPE>::halves ? 8 : 4];
    uint32_t scales[2][4];
};

template <tsr_type TYPE, int BYTES> TSR_DEVICE void q_one_begin(q_one<TYPE> *one)
{
    TSR_UNROLL
    for (int b = 0; b < Q_BLOCKS; b++)
        TSR_UNROLL
    for (int i = 0; i < (q_type<TYPE>::halves ? 8 : 4); i++)
        one->sums[b][i] = BYTES == 2 && i % 2 == 0 ? Q_HIGH_BITS : Q_LOW_BITS;
}

/* Copy the scales of chunk number `half` of a step for the lane's rows. */
template <tsr_type TYPE>
TSR_DEVICE void q_one_scales(const unsigned char *const rows[2], int half, q_one<TYPE> *one)
{
    TSR_UNROLL
    for (int r = 0; r < 2; r++)
        if (q_type<TYPE>::minimum) {
            const tsr_bytes_16 words = *reinterpret_cast<const tsr_bytes_16 *>(rows[r]);
            TSR_UNROLL
            for (int i = 0; i < 4; i++)
                one->scales[r][i] = words.word[i];
        } else if (q_type<TYPE>::halves) {
            one->scales[r][0] = q_word<false>(rows[r] + 192 + 8 * half);
            one->scales[r][1] = q_word<false>(rows[r] + 196 + 8 * half);
            one->scales[r][2] = *reinterpret_cast<const uint16_t *>(rows[r] + 208);
        } else {
            TSR_UNROLL
            for (int b = 0; b < Q_BLOCKS; b++)
                one->scales[r][b] =
                    *reinterpret_cast<const uint16_t *>(rows[r] + b * q_type<TYPE>::block_bytes);
        }
}

/* The words of chunk number `half` of a step; `whole`: the step begins at a multiple of four bytes. */
template <tsr_type TYPE>
TSR_DEVICE void q_one_words(const unsigned char *const rows[2], int half, bool whole, int lane,
                            uint32_t a[Q_BLOCKS][4])
{
    if constexpr (q_type<TYPE>::minimum)
        q_words_minimum<TYPE>(rows, half, lane, a);
    else if constexpr (!q_type<TYPE>::halves)
        q_words_plain<TYPE, true>(rows, lane, a);
    else if (whole)
        q_words_q6_k<true>(rows, half, lane, a);
    else
        q_words_q6_k<false>(rows, half, lane, a);
}

/* With 8 bits the second column's sums are forgotten: they would take registers until the next product. */
template <int BYTES> TSR_DEVICE void q_one_forget(int sums[4])
{
    if (BYTES == 1)
        sums[1] = sums[3] = Q_LOW_BITS;
}

/* Add the products of chunk number `half` of a step. `codes`: the lane's pieces of the chunk, or of zeros. */
template <tsr_type TYPE, int BYTES>
TSR_DEVICE void q_one_multiply(const unsigned char *const rows[2], int half, const unsigned char *codes,
                               bool whole, int lane, q_one<TYPE> *one)
{
    uint32_t a[Q_BLOCKS][4], b[Q_BLOCKS][2];
    q_codes_load(codes, b);
    q_one_words<TYPE>(rows, half, whole, lane, a);
    TSR_UNROLL
    for (int i = 0; i < Q_BLOCKS; i++) {
        int *const sums = one->sums[i];
        q_block_product<TYPE>(a[i], b[i], sums, sums + 4, sums, sums + 4);
        q_one_forget<BYTES>(sums);
        if (q_type<TYPE>::halves)
            q_one_forget<BYTES>(sums + 4);
    }
}

/* The lane's row r of chunk lane % 4: the scale of block b, and its minimum or the scale of its second half.
 * */
template <tsr_type TYPE>
TSR_DEVICE void q_one_decode(const q_one<TYPE> &one, int r, int lane, float scale[Q_BLOCKS],
                             float second[Q_BLOCKS])
{
    const uint32_t *const stored = one.scales[r];
    const q_header header = q_header_of(stored, lane % 2 != 0);
    TSR_UNROLL
    for (int b = 0; b < Q_BLOCKS; b++)
        if (q_type<TYPE>::minimum) {
            const float d = header.d * q_share<TYPE>(b);
            scale[b] = q_scaled(header.scales, b, d, -Q_SCALE_MORE * d);
            second[b] = q_scaled(header.minima, b, -header.m, Q_SCALE_MORE * header.m);
        } else if (q_type<TYPE>::halves) {
            const float d = tsr_half_to_f32((uint16_t)stored[2]);
            scale[b] = q_scaled_signed(stored[b / 2], b % 2 * 2, d);
            second[b] = q_scaled_signed(stored[b / 2], b % 2 * 2 + 1, d);
        } else {
            scale[b] = tsr_half_to_f32((uint16_t)stored[b]);
            second[b] = 0.0f;
        }
}

/* The sum of block b's bytes; `second`: of its second half. */
template <tsr_type TYPE, int BYTES>
TSR_DEVICE float q_one_sum(const q_one<TYPE> &one, int b, int r, bool second)
{
    const int *const sums = one.sums[b] + (second ? 4 : 0) + 2 * r;
    return BYTES == 2 ? q_join(sums[0], sums[1]) : q_join(sums[0]);
}

/* What q_multiply() multiplies by the activations' scales and adds up: the value of chunk lane % 4, or with 8
 * bits those of its blocks. */
template <tsr_type TYPE, int BYTES>
TSR_DEVICE void q_one_values(const q_one<TYPE> &one, const q_meta *meta, int lane,
                             float values[2][BYTES == 2 ? 1 : Q_BLOCKS])
{
    const tsr_floats_4 *const four = reinterpret_cast<const tsr_floats_4 *>(meta->at);
    const tsr_floats_4 loaded[2] = {four[0], four[BYTES == 2 ? 0 : 1]};
    float sums[Q_BLOCKS];
    TSR_UNROLL
    for (int b = 0; b < Q_BLOCKS; b++)
        sums[b] = loaded[q_sum_at<BYTES>(b) / 4].at[q_sum_at<BYTES>(b) % 4];
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        float scale[Q_BLOCKS], second[Q_BLOCKS];
        q_one_decode<TYPE>(one, r, lane, scale, second);
        TSR_UNROLL
        for (int b = 0; b < Q_BLOCKS; b++) {
            float *const value = &values[r][BYTES == 2 ? 0 : b];
            const float sum = q_one_sum<TYPE, BYTES>(one, b, r, false);
            *value = BYTES == 2 ? fmaf(scale[b], sum, b == 0 ? 0.0f : *value) : scale[b] * sum;
            if (q_type<TYPE>::minimum)
                *value = fmaf(second[b], sums[b], *value);
            else if (q_type<TYPE>::halves)
                *value = fmaf(second[b], q_one_sum<TYPE, BYTES>(one, b, r, true), *value);
        }
    }
}

#endif
