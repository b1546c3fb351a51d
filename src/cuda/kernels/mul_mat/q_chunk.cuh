/* mul_mat with quantized weights on integer tensor cores: the product of one chunk, which its two kernels
 * share and which therefore has the same bits in both. q_few.cu streams weights past a few warps, for up to
 * eight tokens; q_many.cu works on tiles, for prompts. q_block.cuh unpacks the blocks, q_x.cuh quantizes
 * activations.
 *
 * Activations become integers of 16 or 8 bits.
 *
 * 16 bits: one scale per chunk (128 elements, below), each integer as two bytes, x = scale * (256 * high +
 * low). A product has four tokens times both bytes as its eight columns. The second byte is almost free in
 * decoding, where waiting for weights takes longer; the error is that of all other operations (about 7e-5,
 * relative, of the logits of trained models).
 *
 * 8 bits: one scale per block (32 elements), x = scale * byte, as in other engines; the integers and scales
 * are those of host devices (host/kernels/quant/x_blocks.h). A product has eight tokens as its columns, so
 * prompts take half as many. Logits of trained models are off by 4e-3 to 6e-3.
 *
 * Sums of bytes are exact, so only the f32 steps need an order. K is cut into units (exact reduction:
 * granules; otherwise the unit is all of K) and a unit into chunks of 128 elements, counted from its first;
 * missing elements of the last chunk count as zeros. A block is 32 elements.
 *
 *     f_b     = f32(256 * sum(q high) + sum(q low))     over a block b of the chunk; Q6_K: over its halves
 *     chunk   = a chain over the blocks, in order, from 0:
 *               fma(d, f_b, chunk)                                        Q8_0, Q4_0, IQ4_NL, MXFP4
 *               fma(-m, sum(x), fma(d, f_b, chunk))                       Q4_K, Q5_K (d, m: scale, minimum)
 *               fma(d', f_b', fma(d, f_b, chunk))                         Q6_K (halves with scales d and d')
 *     sum     = fma(scale, chunk, sum)
 *
 * With 8 bits there is no sum of the chunk: with the scale of block b, sum(x) and f_b of its bytes,
 *
 *     value   = d * f_b                     Q8_0, Q4_0, IQ4_NL, MXFP4
 *               fma(-m, sum(x), d * f_b)    Q4_K, Q5_K
 *               fma(d', f_b', d * f_b)      Q6_K
 *     sum     = fma(scale, value, sum)      over the blocks, in order
 *
 * Exact: the chunks of a unit are added in order, then rounded to fixed point. Otherwise: K is cut into eight
 * parts, of chunks; a part's chunks are added in order, and then the parts in order. The sums do not depend
 * on which rows or tokens share a tile. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_Q_CHUNK_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_Q_CHUNK_CUH

#include <tsr/types.h>

#include "cuda/kernels/mul_mat/quant.cuh"
#include "cuda/kernels/mul_mat/mma_int.cuh"

enum {
    Q_CHUNK = 128,
    Q_BLOCKS = Q_CHUNK / TSR_QUANT_BLOCK, /* of a chunk */
    Q_PARTS = 8,                          /* of K */
    Q_ROWS = 16,                          /* of one product */
    Q_TOKENS = 4,                         /* of one product with two bytes each */
    Q_CODE_BYTES = 2 * Q_CHUNK,           /* of a place: a chunk of one token with 16 bits, of two with 8 */
    Q_SIDE_BYTES = Q_CODE_BYTES / 4       /* from a side of a place to the other */
};

/* The scales of a chunk of one token, and the sums of each block's integers (zeros, where the type has no
 * minimum). 16 bits: four sums, then the
 * chunk's scale. 8 bits: of two blocks both sums, then both scales; then of the other two. */
struct alignas(16) q_meta {
    float at[2 * Q_BLOCKS];
};

template <int BYTES> TSR_DEVICE int q_sum_at(int block)
{
    return BYTES == 2 ? block : block / 2 * 4 + block % 2;
}

template <int BYTES> TSR_DEVICE int q_scale_at(int block)
{
    return BYTES == 2 ? (int)Q_BLOCKS : q_sum_at<1>(block) + 2;
}

/* The op in the form that the kernels use. */
struct q_args {
    const unsigned char *w, *w_end; /* no byte outside [w, w_end) is read */
    size_t w_stride;
    const float *x;
    int64_t x_stride;
    void *y; /* int64 if exact, bfloat16 if bf16, otherwise float */
    int64_t y_stride;
    int64_t n_rows, k, unit;
    int n_tokens;
    int chunks, unit_chunks, part_chunks; /* of k, of a whole unit, of a part (the last: fewer) */
    float limit;
    bool exact, bf16;
    bool bytes;                 /* activations have 8 bits */
    bool units_cut_chunks;      /* units, apart from the last, end inside a chunk */
    bool bytewise;              /* weights are at no multiple of 16 bytes where words are needed */
    bool adjacent;              /* which words of activations are neighbours: q_word_at() */
    bool mixed;                 /* what words of activations have: q_mix() */
    bool sums;                  /* of activations are needed */
    bool sibling;               /* the op runs beside the one before it, and ends after it */
    bool even;                  /* rows begin at multiples of 16 bytes; a step spans q_type::pieces pieces */
    bool wide_x;                /* activations may be loaded 16 bytes at a time */
    int slot_pieces;            /* of 16 bytes that contain a row's step, wherever it begins */
    int slot_stride;            /* bytes between rows in shared memory: at least slot_pieces pieces */
    const unsigned char *codes; /* [chunks][places][Q_CODE_BYTES], or NULL: the kernel makes its own */
    const q_meta *meta;         /* [chunks][n_tokens] */
    tsr_fault_word fault;
    /* q_few.cu computes sets of sixteen rows: of w, or eight of w and the same eight of another matrix, or of
     * the other half of a head. */
    int set_rows;     /* of w */
    int reach;        /* rows of w from the first of a set to the end of its last */
    int64_t other_at; /* bytes from w to the other matrix; 0: there is none */
    int64_t lower_at; /* bytes from row g < 8 of a set to row g + 8 */
};

/* The layout of a type in memory, and the chunks that are fetched together. */
template <tsr_type TYPE> struct q_type {
    static constexpr bool super = TYPE == TSR_TYPE_Q4_K || TYPE == TSR_TYPE_Q5_K || TYPE == TSR_TYPE_Q6_K;
    static constexpr int block_elems = super ? TSR_QUANT_SUPER_BLOCK : TSR_QUANT_BLOCK;
    static constexpr int block_bytes = TYPE == TSR_TYPE_Q8_0     ? sizeof(tsr_block_q8_0)
                                       : TYPE == TSR_TYPE_Q4_0   ? sizeof(tsr_block_q4_0)
                                       : TYPE == TSR_TYPE_Q4_K   ? sizeof(tsr_block_q4_k)
                                       : TYPE == TSR_TYPE_Q5_K   ? sizeof(tsr_block_q5_k)
                                       : TYPE == TSR_TYPE_Q6_K   ? sizeof(tsr_block_q6_k)
                                       : TYPE == TSR_TYPE_IQ4_NL ? sizeof(tsr_block_iq4_nl)
                                                                 : sizeof(tsr_block_mxfp4);
    static constexpr bool words = block_bytes % 16 == 0; /* aligned for loads of any size */
    static constexpr int step_chunks = super ? 2 : 1;    /* fetched together: a super-block, or */
    static constexpr int step_bytes = super ? block_bytes : Q_BLOCKS * block_bytes; /* a chunk's blocks */
    static constexpr int
        pieces = /* of 16 bytes that contain a step of a row that begins at a multiple of 16 */
        (step_bytes + 16 - (step_bytes & -step_bytes) + 15) / 16;
    static constexpr bool minimum = TYPE == TSR_TYPE_Q4_K || TYPE == TSR_TYPE_Q5_K;
    static constexpr bool table =
        TYPE == TSR_TYPE_IQ4_NL || TYPE == TSR_TYPE_MXFP4; /* nibbles choose values */
    static constexpr bool halves = TYPE == TSR_TYPE_Q6_K;  /* two scales per 32 elements */
    /* Words for mma_int.cuh have the quants times this power of two, which saves shifts or makes them
     * integers; minimum: those of blocks have multiples of their own, for which the blocks' scales make up.
     * The sums' last bit counts 1 / times: q_join(). */
    static constexpr int times_log2 = TYPE == TSR_TYPE_Q4_0    ? 4
                                      : TYPE == TSR_TYPE_Q6_K  ? 2
                                      : TYPE == TSR_TYPE_MXFP4 ? 1
                                                               : 0;
    using element = std::conditional_t<minimum, uint8_t, int8_t>; /* of these words */
};

/* Bytes between rows in shared memory: an odd number of pieces puts eight rows' words in different banks. */
static __host__ __device__ constexpr int q_slot_stride(int pieces)
{
    return 16 * (pieces | 1);
}

/* -- the position of a chunk -- */

struct q_span {
    int64_t begin; /* element of K */
    int length;    /* elements: a multiple of 32, at most 128 */
};

TSR_DEVICE q_span q_span_of(const q_args &a, int chunk)
{
    q_span span = {(int64_t)chunk * Q_CHUNK, Q_CHUNK};
    int64_t end = a.k;
    if (a.units_cut_chunks) {
        const int unit = chunk / a.unit_chunks;
        span.begin = unit * a.unit + (int64_t)(chunk - unit * a.unit_chunks) * Q_CHUNK;
        end = (unit + 1) * a.unit < a.k ? (unit + 1) * a.unit : a.k;
    }
    if (end - span.begin < Q_CHUNK)
        span.length = (int)(end - span.begin);
    return span;
}

/* The index of a token's chunk among the metas. */
TSR_DEVICE size_t q_place(const q_args &a, int token, int chunk)
{
    return (size_t)chunk * (size_t)a.n_tokens + (size_t)token;
}

/* -- the codes of activations -- */

/* A place has two sides: the high and the low bytes of one token, or with 8 bits (BYTES 1) the bytes of a
 * token of even number and of the next one. It is 16 pieces of 16 bytes, [pair of blocks][side][j], and a
 * piece has two words of each of its two blocks (q_word_at()). So eight lanes load 128 consecutive bytes at a
 * time, which shared memory serves in one access. */

/* Places of a chunk. */
template <int BYTES> __host__ TSR_DEVICE constexpr int q_places(int n_tokens)
{
    return BYTES == 2 ? n_tokens : (n_tokens + 1) / 2;
}

/* The codes of a token's chunk: of its high bytes, the first side; with 8 bits of its own side. */
template <int BYTES> TSR_DEVICE size_t q_code_at(int n_tokens, int token, int chunk)
{
    const int place = BYTES == 2 ? token : token / 2, side = BYTES == 2 ? 0 : token % 2;
    return ((size_t)chunk * (size_t)q_places<BYTES>(n_tokens) + (size_t)place) * Q_CODE_BYTES +
           (size_t)side * Q_SIDE_BYTES;
}

/* The first of the lane's pieces there. */
template <int BYTES> TSR_DEVICE int q_piece_of(int lane)
{
    return lane % (BYTES == 2 ? 8 : 4) * 16;
}

/* -- sums -- */

/* A running output: the open sum of chunks, and the closed sums (exact: int64, otherwise float). */
template <typename Total> struct q_sum {
    float open;
    Total closed;
};

TSR_DEVICE void q_close(q_sum<int64_t> *sum, float limit, bool *bad)
{
    sum->closed += tsr_fixed_of(sum->open, limit, bad);
    sum->open = 0.0f;
}

TSR_DEVICE void q_close(q_sum<float> *sum, float, bool *)
{
    sum->closed = sum->closed + sum->open;
    sum->open = 0.0f;
}

/* -- one chunk: 16 rows times four tokens -- */

/* The row of eight that is row lane / 4 of products. Half a warp has every other row, so that it loads eight
 * bytes per lane from different banks of shared memory. */
TSR_DEVICE int q_row_in(int lane)
{
    return lane / 4 % 4 * 2 + lane / 16;
}

/* A lane's part of 16 rows: words of four quants for mma_int.cuh, and for its two rows each block's scale
 * and, if the type has one, its minimum, negative, or the scale of its second half. */
template <tsr_type TYPE> struct q_weights {
    uint32_t a[Q_BLOCKS][4];
    float scale[Q_BLOCKS][2], second[Q_BLOCKS][2];
};

/* A lane's part of a product's tokens: of column lane / 4 the words, and of its own N tokens the rest. Two
 * bytes: columns 2 t and 2 t + 1 are the high and the low bytes of token t, and the own token is number lane
 * % 4. One byte: N is 2, columns are tokens, and 2 (lane % 4) and the next are its own; or N is 1, of columns
 * 2 t and 2 t + 1 the first is token t, and the other does not count. */
template <int BYTES, int N> struct q_tokens {
    uint32_t b[Q_BLOCKS][2];
    const q_meta *meta[N];
};

/* Load from the lane's first piece of the codes of a column. */
TSR_DEVICE void q_codes_load(const unsigned char *codes, uint32_t b[Q_BLOCKS][2])
{
    TSR_UNROLL
    for (int pair = 0; pair < 2; pair++) {
        const tsr_bytes_16 piece = *reinterpret_cast<const tsr_bytes_16 *>(codes + Q_CODE_BYTES / 2 * pair);
        b[2 * pair][0] = piece.word[0];
        b[2 * pair][1] = piece.word[1];
        b[2 * pair + 1][0] = piece.word[2];
        b[2 * pair + 1][1] = piece.word[3];
    }
}

/* The same of column lane / 4; t->meta is set. */
template <int BYTES, int N> TSR_DEVICE void q_tokens_load(const unsigned char *codes, q_tokens<BYTES, N> *t)
{
    q_codes_load(codes, t->b);
}

/* Integers of less than 2^22 become floats without a conversion (four times slower than an addition): they
 * are added up on the bits of 1.5 * 2^31 (high), whose last bit counts as 256, or 1.5 * 2^23 (low), each
 * divided by 2^times_log2. Both numbers, and their sum, are multiples of what the last bit of high counts. */
template <tsr_type TYPE> struct q_start {
    static constexpr int high_bits = 0x4f400000 - (q_type<TYPE>::times_log2 << 23);
    static constexpr int low_bits = 0x4b400000 - (q_type<TYPE>::times_log2 << 23);
    static constexpr float high = 3221225472.0f / (1 << q_type<TYPE>::times_log2);
    static constexpr float low = 12582912.0f / (1 << q_type<TYPE>::times_log2);
};

/* f32(256 * high + low), rounded once: the first difference is a multiple of 256, and exact. */
template <tsr_type TYPE> TSR_DEVICE float q_join(int high, int low)
{
    constexpr float both = q_start<TYPE>::high + q_start<TYPE>::low;
    return (tsr_bits_to_f32((uint32_t)high) - both) + tsr_bits_to_f32((uint32_t)low);
}

/* With 8 bits there are but low bytes. */
template <tsr_type TYPE> TSR_DEVICE float q_join(int low)
{
    constexpr float start = q_start<TYPE>::low;
    return tsr_bits_to_f32((uint32_t)low) - start;
}

/* The product of a block of weights with all columns, plus `first`; of types with two scales that of the
 * first half, and that of the second half plus `second`. */
template <tsr_type TYPE>
TSR_DEVICE void q_block_product(const uint32_t a[4], const uint32_t b[2], const int first[4],
                                const int second[4], int first_out[4], int second_out[4])
{
    if (q_type<TYPE>::halves) {
        tsr_mma_int_16x8x16(first_out, a, b, first);
        tsr_mma_int_16x8x16(second_out, a + 2, b + 1, second);
    } else {
        tsr_mma_int_16x8x32<typename q_type<TYPE>::element>(first_out, a, b, first);
    }
}

/* Add the chunk's values for the lane's rows and token lane % 4 to open sums. */
template <tsr_type TYPE>
TSR_DEVICE void q_multiply(const q_weights<TYPE> &w, const q_tokens<2, 1> &t, float *const open[2])
{
    const tsr_floats_4 sums = *reinterpret_cast<const tsr_floats_4 *>(t.meta[0]->at);
    constexpr int high = q_start<TYPE>::high_bits, low = q_start<TYPE>::low_bits;
    const int zero[4] = {high, low, high, low};
    float values[2] = {0.0f, 0.0f};
    TSR_UNROLL
    for (int b = 0; b < Q_BLOCKS; b++) {
        int c[4], second[4];
        q_block_product<TYPE>(w.a[b], t.b[b], zero, zero, c, second);
        TSR_UNROLL
        for (int r = 0; r < 2; r++) {
            values[r] = fmaf(w.scale[b][r], q_join<TYPE>(c[2 * r], c[2 * r + 1]), values[r]);
            if (q_type<TYPE>::halves)
                values[r] = fmaf(w.second[b][r], q_join<TYPE>(second[2 * r], second[2 * r + 1]), values[r]);
            else if (q_type<TYPE>::minimum)
                values[r] = fmaf(w.second[b][r], sums.at[b], values[r]);
        }
    }
    TSR_UNROLL
    for (int r = 0; r < 2; r++)
        *open[r] = fmaf(t.meta[0]->at[q_scale_at<2>(0)], values[r], *open[r]);
}

/* d * f_b with 8 bits, rounded once. A scale that was a half has at most 19 bits, so that its product with
 * the start of sums, two bits, is exact, and is the same for all tokens. Powers of two may be too large for
 * it, and Q6_K has no registers for it. */
template <tsr_type TYPE> TSR_DEVICE float q_scaled_sum(float d, int sum)
{
    constexpr float start = q_start<TYPE>::low;
    return TYPE == TSR_TYPE_MXFP4 || q_type<TYPE>::halves
               ? d * q_join<TYPE>(sum)
               : fmaf(d, tsr_bits_to_f32((uint32_t)sum), -start * d);
}

/* The same with 8 bits and blocks [BEGIN, BEGIN + 2) of the chunk: of the lane's token i, row r is
 * added to open[2 i + r]. */
template <tsr_type TYPE, int BEGIN, int N>
TSR_DEVICE void q_multiply_blocks(const q_weights<TYPE> &w, const q_tokens<1, N> &t, float *const open[2 * N])
{
    constexpr int low = q_start<TYPE>::low_bits;
    const int zero[4] = {low, low, low, low};
    tsr_floats_4 meta[N]; /* both blocks' sums and scales */
    TSR_UNROLL
    for (int i = 0; i < N; i++)
        meta[i] = *reinterpret_cast<const tsr_floats_4 *>(t.meta[i]->at + q_sum_at<1>(BEGIN));
    TSR_UNROLL
    for (int b = BEGIN; b < BEGIN + 2; b++) {
        int c[4], second[4];
        q_block_product<TYPE>(w.a[b], t.b[b], zero, zero, c, second);
        TSR_UNROLL
        for (int i = 0; i < N; i++)
            TSR_UNROLL
        for (int r = 0; r < 2; r++) {
            const float d = w.scale[b][r];
            float value = q_scaled_sum<TYPE>(d, c[2 * r + i]);
            if (q_type<TYPE>::halves)
                value = fmaf(w.second[b][r], q_join<TYPE>(second[2 * r + i]), value);
            else if (q_type<TYPE>::minimum)
                value = fmaf(w.second[b][r], meta[i].at[b - BEGIN], value);
            *open[2 * i + r] = fmaf(meta[i].at[2 + b - BEGIN], value, *open[2 * i + r]);
        }
    }
}

template <tsr_type TYPE, int N>
TSR_DEVICE void q_multiply(const q_weights<TYPE> &w, const q_tokens<1, N> &t, float *const open[2 * N])
{
    q_multiply_blocks<TYPE, 0, N>(w, t, open);
    q_multiply_blocks<TYPE, 2, N>(w, t, open);
}

/* A kernel with many outputs per lane may have no registers for all of a chunk's unpacked weights together
 * with two tokens per product: with 8 bits it takes the chunk in two PARTS, and unpacks one's weights after
 * the other's. */
template <tsr_type TYPE, int PARTS, int PART>
TSR_DEVICE void q_multiply_part(const q_weights<TYPE> &w, const q_tokens<2, 1> &t, float *const open[2])
{
    q_multiply<TYPE>(w, t, open);
}

template <tsr_type TYPE, int PARTS, int PART>
TSR_DEVICE void q_multiply_part(const q_weights<TYPE> &w, const q_tokens<1, 2> &t, float *const open[4])
{
    if (PARTS == 1)
        q_multiply<TYPE>(w, t, open);
    else
        q_multiply_blocks<TYPE, 2 * PART, 2>(w, t, open);
}

/* The compiler must not load the second part's weights with the first part's. */
#define Q_NEXT_PART() asm volatile("" ::: "memory")

/* -- launchers -- */

/* The op with all tokens and without codes. `apart`: bytes between matrices that replace w, or any number
 * with no lower bit set than the lowest of all of them; 0: there is only w. */
q_args tsr_cuda_q_args(const tsr_op_mul_mat *op, size_t apart, const tsr_cuda_stream *s);

/* Bytes of a token's codes and q_meta. */
size_t tsr_cuda_q_token_bytes(const q_args &a);

/* Quantize a.n_tokens tokens from a.x on into the first bytes of scratch memory: a.codes and a.meta. */
tsr_status tsr_cuda_q_quantize(q_args *a, const tsr_cuda_stream *s);

/* Up to eight tokens, from a.x on into the first product's a.y. Several products have only these tokens, and
 * fields of `a` other than the matrix in common. Without a.codes the activations must fit into shared memory
 * (tsr_cuda_mul_mat_q_few_fits()), those of `both` groups of warps where a cache is quantized. */
tsr_status tsr_cuda_mul_mat_q_few(const tsr_cuda_products *p, const q_args &a, const tsr_cuda_stream *s);
bool tsr_cuda_mul_mat_q_few_fits(const q_args &a, bool both, const tsr_cuda_props *props);

/* Any number of tokens, best a multiple of Q_TILE_TOKENS, from a.codes. */
enum { Q_TILE_TOKENS = 64 };
tsr_status tsr_cuda_mul_mat_q_many(tsr_type type, const q_args &a, const tsr_cuda_stream *s);

#endif
