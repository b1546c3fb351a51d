/* mul_mat with quantized weights for prompts. q_chunk.cuh has the arithmetic.
 *
 * A block of sixteen warps computes 128 rows times 64 tokens, a warp 16 times 32. Weights stay packed in
 * shared memory: a lane unpacks only the words that its products need, for eight products. Weights and
 * activations of the next chunk are copied during the products of the current one, two buffers each, 70 KB
 * (Q4_0) to 97 KB (Q6_K): every card since Ampere has 99.
 *
 * The bottleneck: a product of 16 x 4 x 128 takes 4 instructions of the tensor cores and 26 to 34 of f32,
 * to scale sums and add them. Each waits for the one before, and a scheduler hides that only with several
 * warps: with two, each of twice as many outputs, an H100 issued 0.6 instructions per cycle. Hence four, of
 * 128 registers: 16 outputs per lane in two or three registers each, unpacked weights of 16 rows in 32.
 * Neighbouring blocks share weights: per 128 elements of K a block fetches 23 to 33 KB, from the second-
 * level cache. */
#include "cuda/kernels/mul_mat/q_block.cuh"

enum {
    MANY_THREADS = 512,
    MANY_ROWS = 128,
    MANY_TOKENS = Q_TILE_TOKENS,
    MANY_WARPS_DOWN = 8,                         /* of 16; two across */
    MANY_QUADS = MANY_TOKENS / 2 / Q_TOKENS,     /* of four tokens, per warp */
    MANY_ROW_THREADS = MANY_THREADS / MANY_ROWS, /* that copy a row */
    MANY_META_BYTES = MANY_TOKENS * sizeof(q_meta)
};

/* What would take registers from the products, in shared memory: the tile of a block, and where its rows of
 * weights are. */
struct alignas(16) many_tile {
    int row, token; /* the first */
    int n_rows, tokens;
    const unsigned char *rows[MANY_ROWS];
};

/* The place of a warp in the tile; the first of two buffers of each kind. */
struct many_place {
    int lane, down, across;
    const many_tile *tile;
    unsigned char *weights, *codes, *meta;
    bool inside; /* all pieces that the thread copies of its row are inside the matrix */
};

TSR_DEVICE unsigned char *many_weights(const q_args &a, const many_place &p, int step)
{
    return p.weights + step % 2 * (MANY_ROWS * a.slot_stride);
}

template <int BYTES> TSR_DEVICE unsigned char *many_codes(const many_place &p, int chunk)
{
    return p.codes + chunk % 2 * (q_places<BYTES>(MANY_TOKENS) * Q_CODE_BYTES);
}

TSR_DEVICE unsigned char *many_meta(const many_place &p, int chunk)
{
    return p.meta + chunk % 2 * MANY_META_BYTES;
}

/* The row of the tile whose weights a thread copies, together with its neighbours. */
TSR_DEVICE int many_own_row(void)
{
    return (int)threadIdx.x / MANY_ROW_THREADS;
}

/* Whether all pieces that are copied of a row are inside the matrix, also those of its last step. */
template <tsr_type TYPE> TSR_DEVICE bool many_is_inside(const q_args &a, const unsigned char *row)
{
    const unsigned char *const end = row + q_step_at<TYPE>(a, a.chunks - 1) + 16 * (size_t)a.slot_pieces;
    return row - reinterpret_cast<uintptr_t>(row) % 16 >= a.w && end <= a.w_end &&
           !(q_type<TYPE>::words && a.bytewise);
}

/* The same address, computed once: otherwise each of the row's pieces takes a computation in 64 bits. */
TSR_DEVICE const unsigned char *many_computed(const unsigned char *address)
{
#ifdef __CUDA_ARCH__
    asm volatile("" : "+l"(address));
#endif
    return address;
}

/* Start copying the step of weights at byte `at` of the rows: several threads per row, piece by piece. */
template <tsr_type TYPE>
TSR_DEVICE void many_fetch_weights(const q_args &a, const many_place &p, size_t at, unsigned char *slots)
{
    constexpr int least = (q_type<TYPE>::step_bytes + 15) / 16; /* pieces */
    constexpr int most = (q_type<TYPE>::step_bytes + 14 + 15) / 16;
    const int row = many_own_row(), piece = (int)threadIdx.x % MANY_ROW_THREADS;
    const unsigned char *from = p.tile->rows[row] + at;
    from = many_computed(from + 16 * piece - q_offset<TYPE>(a, from));
    unsigned char *const to = slots + row * a.slot_stride + 16 * piece;
    if (p.inside) {
        TSR_UNROLL
        for (int i = 0; i < most; i += MANY_ROW_THREADS)
            if (i + MANY_ROW_THREADS <= least || piece + i < a.slot_pieces)
                tsr_copy_async_16(to + 16 * i, from + 16 * i);
    } else {
        TSR_UNROLL_BY(1)
        for (int i = 0; piece + i < a.slot_pieces; i += MANY_ROW_THREADS)
            q_copy_piece<TYPE>(a, to + 16 * i, from + 16 * i);
    }
}

/* Start copying the first n of MOST pieces of 16 bytes, `at` pieces from `base`: scratch memory has fewer
 * than 2^32. */
template <int MOST>
TSR_DEVICE void many_fetch_pieces(int n, const unsigned char *base, uint32_t at, unsigned char *to)
{
    const unsigned char *const from = base + 16 * (uint64_t)(at + threadIdx.x);
    TSR_UNROLL
    for (int first = 0; first < MOST; first += MANY_THREADS)
        if (first + (int)threadIdx.x < n)
            tsr_copy_async_16(to + 16 * ((int)threadIdx.x + first), from + 16 * first);
}

enum { MANY_PLACE_PIECES = Q_CODE_BYTES / 16, MANY_META_PIECES = sizeof(q_meta) / 16 };

/* Start copying a chunk's activations and, if a step begins with the chunk, the step's weights. */
template <tsr_type TYPE, int BYTES>
TSR_DEVICE void many_fetch(const q_args &a, const many_place &p, int chunk)
{
    if (chunk % q_type<TYPE>::step_chunks == 0)
        many_fetch_weights<TYPE>(a, p, q_step_at<TYPE>(a, chunk),
                                 many_weights(a, p, chunk / q_type<TYPE>::step_chunks));
    const int token = p.tile->token, tokens = p.tile->tokens;
    const uint32_t place = (uint32_t)(chunk * q_places<BYTES>(a.n_tokens) + token * BYTES / 2);
    many_fetch_pieces<q_places<BYTES>(MANY_TOKENS) * MANY_PLACE_PIECES>(
        q_places<BYTES>(tokens) * MANY_PLACE_PIECES, a.codes, place * MANY_PLACE_PIECES,
        many_codes<BYTES>(p, chunk));
    many_fetch_pieces<MANY_TOKENS * MANY_META_PIECES>(
        tokens * MANY_META_PIECES, reinterpret_cast<const unsigned char *>(a.meta),
        (uint32_t)(chunk * a.n_tokens + token) * MANY_META_PIECES, many_meta(p, chunk));
    tsr_copy_async_commit();
}

/* The token of the lane's sums number `quad`, in the warp's half of the tile: with 8 bits one product has two
 * quads' tokens. */
template <int BYTES> TSR_DEVICE int many_token(int quad, int lane)
{
    return BYTES == 2 ? quad * Q_TOKENS + lane % 4 : quad / 2 * (2 * Q_TOKENS) + 2 * (lane % 4) + quad % 2;
}

/* A part (q_multiply_part) of a chunk's products. */
template <tsr_type TYPE, int BYTES, int PARTS, int PART, typename Total>
TSR_DEVICE void many_part(const q_args &a, const many_place &p, const unsigned char *const rows[2], int chunk,
                          q_sum<Total> (*sums)[2])
{
    constexpr int together = BYTES == 2 ? 1 : 2; /* quads of a product */
    const int first = p.across * (MANY_QUADS * Q_TOKENS);
    const unsigned char *const codes =
        many_codes<BYTES>(p, chunk) + (first * BYTES / 2 + p.lane / 8) * Q_CODE_BYTES + p.lane % 8 * 16;
    const q_meta *const meta = reinterpret_cast<const q_meta *>(many_meta(p, chunk)) + first;
    const int n = p.tile->tokens - first;
    q_weights<TYPE> w;
    q_rows_load<TYPE>(a, rows, chunk, p.lane, &w);
    TSR_UNROLL
    for (int quad = 0; quad < MANY_QUADS; quad += together) {
        if (BYTES == 1 && quad * Q_TOKENS >= n) /* and no product is begun before it: for want of registers */
            break;
        q_tokens<BYTES, together> t;
        float *open[2 * together];
        TSR_UNROLL
        for (int i = 0; i < together; i++) {
            t.meta[i] = meta + many_token<BYTES>(quad + i, p.lane);
            open[2 * i] = &sums[quad + i][0].open;
            open[2 * i + 1] = &sums[quad + i][1].open;
        }
        q_tokens_load<BYTES, together>(codes + quad * (Q_TOKENS * BYTES / 2) * Q_CODE_BYTES, &t);
        q_multiply_part<TYPE, PARTS, PART>(w, t, open);
    }
}

template <tsr_type TYPE, int BYTES, typename Total>
TSR_DEVICE void many_chunk(const q_args &a, const many_place &p, int chunk, q_sum<Total> (*sums)[2])
{
    const int step = chunk / q_type<TYPE>::step_chunks;
    const size_t at = q_step_at<TYPE>(a, step * q_type<TYPE>::step_chunks);
    const unsigned char *rows[2];
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const int row = p.down * Q_ROWS + q_row_in(p.lane) + 8 * r;
        rows[r] = many_weights(a, p, step) + row * a.slot_stride + q_offset<TYPE>(a, p.tile->rows[row] + at);
    }
    constexpr int parts = BYTES == 1 && (sizeof(Total) > sizeof(float) || TYPE == TSR_TYPE_Q6_K) ? 2 : 1;
    many_part<TYPE, BYTES, parts, 0>(a, p, rows, chunk, sums);
    if (parts > 1) {
        Q_NEXT_PART();
        many_part<TYPE, BYTES, parts, parts - 1>(a, p, rows, chunk, sums);
    }
}

/* Close all sums. */
template <typename Total> TSR_DEVICE void many_close(const q_args &a, q_sum<Total> (*sums)[2], bool *bad)
{
    TSR_UNROLL
    for (int quad = 0; quad < MANY_QUADS; quad++)
        TSR_UNROLL
    for (int r = 0; r < 2; r++)
        q_close(&sums[quad][r], a.limit, bad);
}

TSR_DEVICE void many_put(const q_args &a, int64_t at, int64_t sum)
{
    static_cast<int64_t *>(a.y)[at] = sum;
}

TSR_DEVICE void many_put(const q_args &a, int64_t at, float sum)
{
    tsr_put_sum(a.y, at, sum, a.bf16);
}

template <int BYTES, typename Total>
TSR_DEVICE void many_store(const q_args &a, const many_place &p, const q_sum<Total> (*sums)[2])
{
    TSR_UNROLL
    for (int quad = 0; quad < MANY_QUADS; quad++)
        TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const int row = p.tile->row + p.down * Q_ROWS + q_row_in(p.lane) + 8 * r;
        const int token =
            p.tile->token + p.across * (MANY_QUADS * Q_TOKENS) + many_token<BYTES>(quad, p.lane);
        if (row < a.n_rows && token < a.n_tokens)
            many_put(a, token * a.y_stride + row, sums[quad][r].closed);
    }
}

/* Neighbouring blocks share weights. */
TSR_DEVICE void many_choose(const q_args &a, many_tile *tile)
{
    const int across = (a.n_tokens + MANY_TOKENS - 1) / MANY_TOKENS, down = (int)blockIdx.x / across;
    const int token = ((int)blockIdx.x - down * across) * MANY_TOKENS;
    if (threadIdx.x == 0) {
        const int64_t left = a.n_rows - (int64_t)down * MANY_ROWS;
        tile->row = down * MANY_ROWS;
        tile->n_rows = left < MANY_ROWS ? (int)left : (int)MANY_ROWS;
        tile->token = token;
        tile->tokens = a.n_tokens - token < MANY_TOKENS ? a.n_tokens - token : (int)MANY_TOKENS;
    }
    if (threadIdx.x < MANY_ROWS)
        tile->rows[threadIdx.x] = q_row_of(a, down * MANY_ROWS + (int)threadIdx.x);
}

/* Zeros for the tokens that a tile lacks: they are never copied. */
template <int BYTES> TSR_DEVICE void many_clear(const many_place &p)
{
    const tsr_bytes_16 zeros = {};
    const int tokens = p.tile->tokens;
    for (int b = 0; b < 2; b++) {
        for (int i = q_places<BYTES>(tokens) * MANY_PLACE_PIECES + (int)threadIdx.x;
             i < q_places<BYTES>(MANY_TOKENS) * MANY_PLACE_PIECES; i += MANY_THREADS)
            reinterpret_cast<tsr_bytes_16 *>(many_codes<BYTES>(p, b))[i] = zeros;
        for (int i = tokens * MANY_META_PIECES + (int)threadIdx.x; i < MANY_TOKENS * MANY_META_PIECES;
             i += MANY_THREADS)
            reinterpret_cast<tsr_bytes_16 *>(many_meta(p, b))[i] = zeros;
    }
}

template <tsr_type TYPE, typename Total, int BYTES>
static __global__ void __launch_bounds__(MANY_THREADS) q_many_kernel(const q_args a)
{
    TSR_DYNAMIC_SHARED(unsigned char, memory);
    const int warp = threadIdx.x / TSR_WARP;
    many_tile *const tile = reinterpret_cast<many_tile *>(memory);
    many_place p = {(int)threadIdx.x % TSR_WARP, warp % MANY_WARPS_DOWN, warp / MANY_WARPS_DOWN, tile};
    p.codes = memory + sizeof(many_tile);
    p.meta = p.codes + 2 * q_places<BYTES>(MANY_TOKENS) * Q_CODE_BYTES;
    p.weights = p.meta + 2 * MANY_META_BYTES;
    many_choose(a, tile);
    __syncthreads();
    many_clear<BYTES>(p);
    p.inside = many_is_inside<TYPE>(a, tile->rows[many_own_row()]);

    q_sum<Total> sums[MANY_QUADS][2] = {};
    const int run = a.exact ? a.unit_chunks : a.part_chunks; /* chunks that are added before sums close */
    int in_run = 0;
    bool bad = false;
    many_fetch<TYPE, BYTES>(a, p, 0);
    /* By steps, so that a chunk's place in its step is known when this is compiled. */
    for (int first = 0; first < a.chunks; first += q_type<TYPE>::step_chunks) {
        TSR_UNROLL
        for (int i = 0; i < q_type<TYPE>::step_chunks; i++) {
            const int chunk = first + i;
            if (chunk >= a.chunks)
                break;
            tsr_copy_async_wait<0>();
            __syncthreads(); /* the chunk is complete, and no thread uses the previous one any more */
            if (chunk + 1 < a.chunks)
                many_fetch<TYPE, BYTES>(a, p, chunk + 1);
            if (p.down * Q_ROWS < tile->n_rows && p.across * (MANY_QUADS * Q_TOKENS) < tile->tokens)
                many_chunk<TYPE, BYTES, Total>(a, p, chunk, sums);
            if (++in_run == run || chunk + 1 == a.chunks) {
                many_close(a, sums, &bad);
                in_run = 0;
            }
        }
    }
    if (bad)
        tsr_fault_raise(a.fault);
    many_store<BYTES>(a, p, sums);
}

template <tsr_type TYPE, typename Total, int BYTES>
static tsr_status launch(const q_args &a, const tsr_cuda_stream *s)
{
    const int64_t tiles = (a.n_tokens + MANY_TOKENS - 1) / MANY_TOKENS;
    const int64_t blocks = (a.n_rows + MANY_ROWS - 1) / MANY_ROWS * tiles;
    const size_t bytes =
        sizeof(many_tile) + 2 * ((size_t)MANY_ROWS * (size_t)a.slot_stride +
                                 (size_t)q_places<BYTES>(MANY_TOKENS) * Q_CODE_BYTES + MANY_META_BYTES);
    tsr_status status =
        tsr_allow_shared(reinterpret_cast<const void *>(&q_many_kernel<TYPE, Total, BYTES>), bytes, s);
    if (status != TSR_OK)
        return status;
    return tsr_cuda_result(TSR_LAUNCH((q_many_kernel<TYPE, Total, BYTES>), dim3((unsigned)blocks),
                                      dim3(MANY_THREADS), bytes, s->stream, a),
                           "q_many_kernel");
}

template <tsr_type TYPE, typename Total>
static tsr_status launch_bytes(const q_args &a, const tsr_cuda_stream *s)
{
    return a.bytes ? launch<TYPE, Total, 1>(a, s) : launch<TYPE, Total, 2>(a, s);
}

tsr_status tsr_cuda_mul_mat_q_many(tsr_type type, const q_args &a, const tsr_cuda_stream *s)
{
    switch (type) {
#define MANY_CASE(constant) \
    case constant:          \
        return a.exact ? launch_bytes<constant, int64_t>(a, s) : launch_bytes<constant, float>(a, s);
        TSR_FOR_EACH_QUANTIZED_TYPE(MANY_CASE)
#undef MANY_CASE
    default:
        return tsr_cuda_result(cudaErrorNotSupported, "q_many_kernel");
    }
}
