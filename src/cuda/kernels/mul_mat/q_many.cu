/* mul_mat with quantized weights for prompts. q_chunk.cuh has the arithmetic.
 *
 * A block of eight warps computes 128 rows times 64 tokens, a warp 32 times 32. Weights stay packed in shared
 * memory: a lane unpacks only the words that its products need, for eight times as many products. Weights and
 * activations of the next chunk are copied during the products of the current one, two buffers each, 69 KB
 * (Q4_0) to 96 KB (Q6_K): every card since Ampere has 99.
 *
 * The bottleneck: a product of 16 x 4 x 128 takes 4 instructions of the tensor cores and about 40 of f32, to
 * scale sums and add them; on an H200 (2048 integer products and 128 f32 operations per SM and cycle) 8 and
 * 10 cycles, hence the many outputs per lane and few loads between them. Neighbouring blocks share weights:
 * per 128 elements of K a block fetches 30 to 37 KB, some 15 bytes per SM and cycle, from the second-level
 * cache. 32 outputs in three registers each, and the unpacked weights of 32 rows, take about 200 registers:
 * one block per SM. */
#include "cuda/kernels/mul_mat/q_block.cuh"

enum {
    MANY_THREADS = 256,
    MANY_ROWS = 128,
    MANY_TOKENS = Q_TILE_TOKENS,
    MANY_WARPS_DOWN = 4,                               /* of eight; two across */
    MANY_BANDS = MANY_ROWS / MANY_WARPS_DOWN / Q_ROWS, /* of 16 rows, per warp */
    MANY_QUADS = MANY_TOKENS / 2 / Q_TOKENS,           /* of four tokens, per warp */
    MANY_CODE_PIECES = Q_CODE_BYTES / 16,
    MANY_META_PIECES = sizeof(q_meta) / 16
};

/* The tile of a block and, in it, of a warp; the first of two buffers of each kind. */
struct many_place {
    int64_t row, token; /* the block's first */
    int lane, down, across;
    unsigned char *weights, *codes;
    q_meta *meta;
    q_deal deal;
};

TSR_DEVICE unsigned char *many_weights(const q_args &a, const many_place &p, int step)
{
    return p.weights + step % 2 * (MANY_ROWS * a.slot_stride);
}

TSR_DEVICE unsigned char *many_codes(const many_place &p, int chunk)
{
    return p.codes + chunk % 2 * (MANY_TOKENS * Q_CODE_BYTES);
}

TSR_DEVICE q_meta *many_meta(const many_place &p, int chunk)
{
    return p.meta + chunk % 2 * MANY_TOKENS;
}

/* Start copying a chunk's activations and, if a step begins with the chunk, the step's weights. */
template <tsr_type TYPE> TSR_DEVICE void many_fetch(const q_args &a, const many_place &p, int chunk)
{
    const int step = chunk / q_type<TYPE>::step_chunks;
    if (chunk % q_type<TYPE>::step_chunks == 0)
        q_copy_rows<TYPE>(a, p.deal, p.row, MANY_ROWS, q_step_at<TYPE>(a, chunk), many_weights(a, p, step));
    for (int i = (int)threadIdx.x; i < MANY_TOKENS * MANY_CODE_PIECES; i += MANY_THREADS) {
        const int64_t token = p.token + i / MANY_CODE_PIECES;
        const int64_t from = (token < a.n_tokens ? token : a.n_tokens - 1) * a.chunks + chunk;
        tsr_copy_async_16(many_codes(p, chunk) + 16 * i,
                          a.codes + (size_t)from * Q_CODE_BYTES + 16 * (i % MANY_CODE_PIECES));
    }
    for (int i = (int)threadIdx.x; i < MANY_TOKENS * MANY_META_PIECES; i += MANY_THREADS) {
        const int64_t token = p.token + i / MANY_META_PIECES;
        const int64_t from = (token < a.n_tokens ? token : a.n_tokens - 1) * a.chunks + chunk;
        tsr_copy_async_16(reinterpret_cast<unsigned char *>(many_meta(p, chunk)) + 16 * i,
                          reinterpret_cast<const unsigned char *>(a.meta + from) +
                              16 * (i % MANY_META_PIECES));
    }
    tsr_copy_async_commit();
}

template <tsr_type TYPE, typename Total>
TSR_DEVICE void many_chunk(const q_args &a, const many_place &p, int chunk,
                           q_sum<Total> (*sums)[MANY_QUADS][2])
{
    const int first = chunk - chunk % q_type<TYPE>::step_chunks;
    const unsigned char *const slots = many_weights(a, p, chunk / q_type<TYPE>::step_chunks);
    const size_t at = q_step_at<TYPE>(a, first);
    q_weights<TYPE> w[MANY_BANDS];
    TSR_UNROLL
    for (int band = 0; band < MANY_BANDS; band++) {
        const int row = (p.down * MANY_BANDS + band) * Q_ROWS;
        q_weights_load<TYPE>(a, slots + row * a.slot_stride, p.row + row, at, chunk, p.lane, &w[band]);
    }
    TSR_UNROLL
    for (int quad = 0; quad < MANY_QUADS; quad++) {
        const int token = (p.across * MANY_QUADS + quad) * Q_TOKENS;
        q_tokens t;
        q_tokens_load(many_codes(p, chunk) + (token + p.lane / 8) * Q_CODE_BYTES,
                      many_meta(p, chunk) + token + p.lane % 4, p.lane, &t);
        TSR_UNROLL
        for (int band = 0; band < MANY_BANDS; band++) {
            float values[2];
            q_multiply<TYPE>(w[band], t, values);
            TSR_UNROLL
            for (int r = 0; r < 2; r++)
                sums[band][quad][r].open = sums[band][quad][r].open + values[r];
        }
    }
}

/* Close all sums. */
template <typename Total>
TSR_DEVICE void many_close(const q_args &a, q_sum<Total> (*sums)[MANY_QUADS][2], bool *bad)
{
    TSR_UNROLL
    for (int band = 0; band < MANY_BANDS; band++)
        TSR_UNROLL
    for (int quad = 0; quad < MANY_QUADS; quad++)
        TSR_UNROLL
    for (int r = 0; r < 2; r++)
        q_close(&sums[band][quad][r], a.limit, bad);
}

TSR_DEVICE void many_put(const q_args &a, int64_t at, int64_t sum)
{
    static_cast<int64_t *>(a.y)[at] = sum;
}

TSR_DEVICE void many_put(const q_args &a, int64_t at, float sum)
{
    tsr_put_sum(a.y, at, sum, a.bf16);
}

template <typename Total>
TSR_DEVICE void many_store(const q_args &a, const many_place &p, const q_sum<Total> (*sums)[MANY_QUADS][2])
{
    TSR_UNROLL
    for (int band = 0; band < MANY_BANDS; band++)
        TSR_UNROLL
    for (int quad = 0; quad < MANY_QUADS; quad++)
        TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const int64_t row = p.row + (p.down * MANY_BANDS + band) * Q_ROWS + p.lane / 4 + 8 * r;
        const int64_t token = p.token + (p.across * MANY_QUADS + quad) * Q_TOKENS + p.lane % 4;
        if (row < a.n_rows && token < a.n_tokens)
            many_put(a, token * a.y_stride + row, sums[band][quad][r].closed);
    }
}

template <tsr_type TYPE, typename Total>
static __global__ void __launch_bounds__(MANY_THREADS) q_many_kernel(const q_args a)
{
    TSR_DYNAMIC_SHARED(unsigned char, memory);
    const int warp = threadIdx.x / TSR_WARP, weight_bytes = MANY_ROWS * a.slot_stride;
    const int64_t tiles = (a.n_tokens + MANY_TOKENS - 1) / MANY_TOKENS;
    many_place p = {blockIdx.x / tiles * MANY_ROWS, blockIdx.x % tiles * MANY_TOKENS,
                    (int)threadIdx.x % TSR_WARP, warp % MANY_WARPS_DOWN, warp / MANY_WARPS_DOWN};
    p.weights = memory;
    p.codes = memory + 2 * weight_bytes;
    p.meta = reinterpret_cast<q_meta *>(p.codes + 2 * MANY_TOKENS * Q_CODE_BYTES);
    p.deal = q_deal_of(a, (int)threadIdx.x, MANY_THREADS);

    q_sum<Total> sums[MANY_BANDS][MANY_QUADS][2] = {};
    const int run = a.exact ? a.unit_chunks : a.part_chunks; /* chunks that are added before sums close */
    const bool busy = p.row + p.down * (MANY_BANDS * Q_ROWS) < a.n_rows &&
                      p.token + p.across * (MANY_QUADS * Q_TOKENS) < a.n_tokens;
    int in_run = 0;
    bool bad = false;
    many_fetch<TYPE>(a, p, 0);
    for (int chunk = 0; chunk < a.chunks; chunk++) {
        tsr_copy_async_wait<0>();
        __syncthreads(); /* the chunk is complete, and no thread uses the previous one any more */
        if (chunk + 1 < a.chunks)
            many_fetch<TYPE>(a, p, chunk + 1);
        if (busy)
            many_chunk<TYPE, Total>(a, p, chunk, sums);
        if (++in_run == run || chunk + 1 == a.chunks) {
            many_close(a, sums, &bad);
            in_run = 0;
        }
    }
    if (bad)
        tsr_fault_raise(a.fault);
    many_store(a, p, sums);
}

template <tsr_type TYPE, typename Total> static tsr_status launch(const q_args &a, const tsr_cuda_stream *s)
{
    const int64_t tiles = (a.n_tokens + MANY_TOKENS - 1) / MANY_TOKENS;
    const int64_t blocks = (a.n_rows + MANY_ROWS - 1) / MANY_ROWS * tiles;
    const size_t bytes =
        2 * ((size_t)MANY_ROWS * (size_t)a.slot_stride + MANY_TOKENS * (Q_CODE_BYTES + sizeof(q_meta)));
    tsr_status status =
        tsr_allow_shared(reinterpret_cast<const void *>(&q_many_kernel<TYPE, Total>), bytes, s);
    if (status != TSR_OK)
        return status;
    return tsr_cuda_result(TSR_LAUNCH((q_many_kernel<TYPE, Total>), dim3((unsigned)blocks),
                                      dim3(MANY_THREADS), bytes, s->stream, a),
                           "q_many_kernel");
}

tsr_status tsr_cuda_mul_mat_q_many(tsr_type type, const q_args &a, const tsr_cuda_stream *s)
{
    switch (type) {
#define MANY_CASE(constant) \
    case constant:          \
        return a.exact ? launch<constant, int64_t>(a, s) : launch<constant, float>(a, s);
        TSR_FOR_EACH_QUANTIZED_TYPE(MANY_CASE)
#undef MANY_CASE
    default:
        return tsr_cuda_result(cudaErrorNotSupported, "q_many_kernel");
    }
}
