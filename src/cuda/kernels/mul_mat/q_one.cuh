/* The product of one token, for q_few.cu and experts: the same bits as q_multiply()'s (q_chunk.cuh), with
 * fewer instructions.
 *
 * A product of tensor cores has as its columns both bytes of four tokens, or eight tokens. One token would
 * leave most of them unused, and all lanes of four with the same sums to scale. Here the pairs of columns are
 * four chunks, consecutive ones or two of each of two matrices: a chunk's product has activations in its own
 * columns and zeros in the others, whose sums stay as they are. After four chunks lane 4 g + j has the sums
 * of all blocks of chunk j, for two rows, and scales them with the scales of that chunk, which it has copied
 * from the slot while they were there. What remains is the chain over the chunks: it goes from lane to lane.
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

/* A lane's two rows of a step in shared memory, in bytes from `base`; both begin `past` after a multiple of
 * four bytes. `aligned`: all lanes' rows begin at multiples of four. */
struct q_one_rows {
    const unsigned char *base;
    int row[2], past;
    bool aligned;
};

/* A lane's part of 16 rows times up to four chunks. The scales are those of chunk lane % 4 as they are
 * stored: headers (Q4_K, Q5_K), eight bytes and a scale (Q6_K), or the blocks' scales (a byte of MXFP4). */
template <tsr_type TYPE> struct q_one {
    int sums[Q_BLOCKS][q_type<TYPE>::halves ? 8 : 4];
    uint32_t scales[2][4];
};

/* With 8 bits the second column's sums are forgotten: they would take registers until the next product. */
template <tsr_type TYPE, int BYTES> TSR_DEVICE void q_one_forget(int sums[4])
{
    if (BYTES == 1)
        sums[1] = sums[3] = q_start<TYPE>::low_bits;
}

/* `codes`: the lane's pieces of its column's chunk, or of zeros. Weights of MXFP4 are 12 more
 * (q_look_up_plus_12()), so its sums begin with -12 times the codes. */
template <tsr_type TYPE, int BYTES> TSR_DEVICE void q_one_begin(const unsigned char *codes, q_one<TYPE> *one)
{
    TSR_UNROLL
    for (int b = 0; b < Q_BLOCKS; b++)
        TSR_UNROLL
    for (int i = 0; i < (q_type<TYPE>::halves ? 8 : 4); i++)
        one->sums[b][i] = BYTES == 2 && i % 2 == 0 ? q_start<TYPE>::high_bits : q_start<TYPE>::low_bits;
    if constexpr (TYPE == TSR_TYPE_MXFP4) {
        const uint32_t less[4] = {0xf4f4f4f4u, 0xf4f4f4f4u, 0xf4f4f4f4u, 0xf4f4f4f4u};
        uint32_t b[Q_BLOCKS][2];
        q_codes_load(codes, b);
        TSR_UNROLL
        for (int i = 0; i < Q_BLOCKS; i++) {
            tsr_mma_int_16x8x32<int8_t>(one->sums[i], less, b[i], one->sums[i]);
            q_one_forget<TYPE, BYTES>(one->sums[i]);
        }
    }
}

/* Copy the scales of chunk number `half` of a step for the lane's rows. */
template <tsr_type TYPE> TSR_DEVICE void q_one_scales(const q_one_rows &step, int half, q_one<TYPE> *one)
{
    const unsigned char *const rows[2] = {step.base + step.row[0], step.base + step.row[1]};
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
            for (int b = 0; b < Q_BLOCKS; b++) {
                const unsigned char *const block = rows[r] + b * q_type<TYPE>::block_bytes;
                one->scales[r][b] =
                    TYPE == TSR_TYPE_MXFP4 ? *block : *reinterpret_cast<const uint16_t *>(block);
            }
        }
}

/* The words of chunk number `half` of a step; those of MXFP4 are 12 more. */
template <tsr_type TYPE>
TSR_DEVICE void q_one_words(const q_one_rows &step, int half, int lane, uint32_t a[Q_BLOCKS][4])
{
    const unsigned char *const rows[2] = {step.base + step.row[0], step.base + step.row[1]};
    if constexpr (q_type<TYPE>::minimum)
        q_words_minimum<TYPE>(rows, half, lane, a);
    else if constexpr (TYPE == TSR_TYPE_MXFP4) {
        TSR_UNROLL
        for (int r = 0; r < 2; r++) {
            const unsigned char *const words = rows[r] - step.past + lane % 4 * 4;
            TSR_UNROLL
            for (int b = 0; b < Q_BLOCKS; b++)
                q_look_up_plus_12(q_word_mxfp4(words, step.past, b), &a[b][r], &a[b][2 + r]);
        }
    } else if constexpr (q_type<TYPE>::halves) {
        if (step.aligned)
            q_words_q6_k<true>(rows, half, lane, a);
        else
            q_words_q6_k<false>(rows, half, lane, a);
    } else if (step.aligned)
        q_words_plain<TYPE, true>(rows, lane, a);
    else
        q_words_plain<TYPE, false>(rows, lane, a);
}

/* Add the products of chunk number `half` of a step. `codes`: the lane's pieces of the chunk, or of zeros. */
template <tsr_type TYPE, int BYTES>
TSR_DEVICE void q_one_multiply(const q_one_rows &step, int half, const unsigned char *codes, int lane,
                               q_one<TYPE> *one)
{
    uint32_t a[Q_BLOCKS][4], b[Q_BLOCKS][2];
    q_codes_load(codes, b);
    q_one_words<TYPE>(step, half, lane, a);
    TSR_UNROLL
    for (int i = 0; i < Q_BLOCKS; i++) {
        int *const sums = one->sums[i];
        if constexpr (TYPE == TSR_TYPE_MXFP4)
            tsr_mma_int_16x8x32<uint8_t>(sums, a[i], b[i], sums);
        else
            q_block_product<TYPE>(a[i], b[i], sums, sums + 4, sums, sums + 4);
        q_one_forget<TYPE, BYTES>(sums);
        if (q_type<TYPE>::halves)
            q_one_forget<TYPE, BYTES>(sums + 4);
    }
}

/* The lane's row r of chunk lane % 4, which has `blocks` blocks: the scale of block b, and its minimum or the
 * scale of its second half. */
template <tsr_type TYPE>
TSR_DEVICE void q_one_decode(const q_one<TYPE> &one, int r, int blocks, int lane, float scale[Q_BLOCKS],
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
            const float stored_scale =
                TYPE == TSR_TYPE_MXFP4 ? q_power(stored[b]) : tsr_half_to_f32((uint16_t)stored[b]);
            scale[b] = b < blocks ? stored_scale : 0.0f;
            second[b] = 0.0f;
        }
}

/* The sum of block b's bytes; `second`: of its second half. */
template <tsr_type TYPE, int BYTES>
TSR_DEVICE float q_one_sum(const q_one<TYPE> &one, int b, int r, bool second)
{
    const int *const sums = one.sums[b] + (second ? 4 : 0) + 2 * r;
    return BYTES == 2 ? q_join<TYPE>(sums[0], sums[1]) : q_join<TYPE>(sums[0]);
}

/* What q_multiply() multiplies by the activations' scales and adds up: the value of chunk lane % 4, or with 8
 * bits those of its blocks. */
template <tsr_type TYPE, int BYTES>
TSR_DEVICE void q_one_values(const q_one<TYPE> &one, const q_meta *meta, int blocks, int lane,
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
        q_one_decode<TYPE>(one, r, blocks, lane, scale, second);
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

/* Add the values of n of WIDTH chunks, one lane after another, to the open sums, which are then in the lane
 * of the last chunk; the first lane has them from the last one of WIDTH. `begins`: sums begin with the lane's
 * chunk. `own`: the sums after the lane's chunk. */
template <int BYTES, int WIDTH>
TSR_DEVICE void q_one_add(const float values[2][BYTES == 2 ? 1 : Q_BLOCKS], const q_meta *meta, int n,
                          bool begins, int lane, float open[2], float own[2])
{
    constexpr int terms = BYTES == 2 ? 1 : Q_BLOCKS;
    float scales[terms];
    TSR_UNROLL
    for (int b = 0; b < terms; b++)
        scales[b] = meta->at[q_scale_at<BYTES>(b)];
    TSR_UNROLL
    for (int i = 0; i < WIDTH; i++) {
        if (i >= n)
            break;
        TSR_UNROLL
        for (int r = 0; r < 2; r++) {
            const float before = __shfl_sync(TSR_ALL_LANES, open[r], (i + WIDTH - 1) % WIDTH, WIDTH);
            open[r] = begins ? 0.0f : before;
            TSR_UNROLL
            for (int b = 0; b < terms; b++)
                open[r] = fmaf(scales[b], values[r][b], open[r]);
            own[r] = lane % WIDTH == i ? open[r] : own[r];
        }
    }
}

#endif
