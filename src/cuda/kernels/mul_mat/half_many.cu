/* mul_mat with F16 and BF16 weights for many tokens, bound by arithmetic; see half.cuh.
 *
 * A first kernel divides the activations into parts, in scratch memory, so that the second kernel only
 * multiplies. A block of the second computes 128 rows times 64 tokens of y, each of its eight warps 32 x 32.
 * It goes over K in stages of half a chunk: asynchronous copies bring weights and parts into a ring of
 * stages, one or two ahead of the products, which read pieces of 16 bytes from rows of 64 (the 8 lanes of a
 * shared-memory access touch all banks once, without padding).
 *
 * Per window a warp computes 32 products (48 with BF16) from 12 (16) loads from shared memory, which an SM
 * serves in 48 (64) cycles, less than the 64 (96) that the products take at the rate of mma.sync on sm_90.
 * Sums are in registers: 32 of the chunk, 32 of the granule, and with the exact reduction 32 of 64 bits. That
 * takes 128 registers and two blocks per SM for plain sums with F16, 163 with BF16 and 197 with the exact
 * reduction, hence one block; nothing is spilled (nvcc 13.0, sm_80 and sm_90). */
#include "cuda/kernels/mul_mat/half.cuh"

enum {
    TILE_ROWS = 128,
    TILE_TOKENS = HALF_TILE_TOKENS,
    WARP_TILE = 32,
    ROW_BLOCKS = WARP_TILE / HALF_ROWS,
    TOKEN_BLOCKS = WARP_TILE / HALF_TOKENS,
    MANY_WARPS = TILE_ROWS / WARP_TILE * (TILE_TOKENS / WARP_TILE),
    MANY_THREADS = MANY_WARPS * TSR_WARP,
    STAGE_WINDOWS = HALF_WINDOWS / 2 /* so two stages make a chunk */
};

/* Activations of one slab of tokens as stored by the first kernel. */
template <tsr_type TYPE> struct many_x {
    tsr_bytes_16 (*parts)[half_type<TYPE>::parts][HALF_WINDOWS][HALF_PIECES]; /* [token][chunk] */
    float *scale; /* [chunk][n_tokens]; only if scaled */
    int64_t first, n_tokens;
};

/* -- dividing -- */

/* One warp per token and chunk. */
template <tsr_type TYPE> static __global__ void divide_kernel(const half_args a, const many_x<TYPE> x)
{
    const int lane = threadIdx.x % TSR_WARP;
    for (int64_t i = tsr_flat_begin() / TSR_WARP; i < x.n_tokens * a.chunks;
         i += tsr_flat_step() / TSR_WARP) {
        const int64_t token = i / a.chunks;
        const int chunk = (int)(i % a.chunks);
        float values[4];
        tsr_bytes_8 parts[half_type<TYPE>::parts];
        half_load_x(a, a.x + (x.first + token) * a.x_stride, half_chunk_at(a, chunk), lane, values);
        const float scale = half_divide<TYPE>(values, parts);
        TSR_UNROLL
        for (int p = 0; p < half_type<TYPE>::parts; p++)
            tsr_store_8(&x.parts[i][p][lane / 8][lane % 8 / 2], lane % 2, parts[p]);
        if (half_type<TYPE>::scaled && lane == 0)
            x.scale[chunk * x.n_tokens + token] = scale;
    }
}

/* -- multiplying -- */

template <tsr_type TYPE> struct many_stage {
    tsr_bytes_16 w[STAGE_WINDOWS][TILE_ROWS][HALF_PIECES];
    tsr_bytes_16 x[half_type<TYPE>::parts][STAGE_WINDOWS][TILE_TOKENS][HALF_PIECES];
};

/* As many stages as leave room for one block on cards with 100 KiB per SM, or two blocks on cards with
 * more. */
template <tsr_type TYPE> struct many_ring {
    static constexpr int stages = TYPE == TSR_TYPE_F16 ? 3 : 2;
    static constexpr size_t bytes = stages * sizeof(many_stage<TYPE>);
};

struct many_tile {
    int64_t row, token; /* the first; the token in its slab */
};

/* Start filling a stage with its half chunk. The last row and token are repeated past the end. The loops are
 * not unrolled: their addresses, kept for the next stage, would take the registers of the sums. */
template <tsr_type TYPE>
TSR_DEVICE void many_fill(const half_args &a, const many_x<TYPE> &x, const many_tile &tile, int stage,
                          many_stage<TYPE> *to)
{
    const half_chunk c = half_chunk_at(a, stage / 2);
    const int half = stage % 2 * STAGE_WINDOWS;
    TSR_UNROLL_BY(1)
    for (int i = threadIdx.x; i < STAGE_WINDOWS * TILE_ROWS * HALF_PIECES; i += MANY_THREADS) {
        const int piece = i % HALF_PIECES, r = i / HALF_PIECES % TILE_ROWS,
                  window = i / HALF_PIECES / TILE_ROWS;
        const int at = (half + window) * HALF_WINDOW + piece * TSR_OCTET;
        const int64_t row = tile.row + r < a.n_rows ? tile.row + r : a.n_rows - 1;
        const unsigned char *from = a.w + (size_t)row * a.w_stride;
        tsr_bytes_16 *into = &to->w[window][r][piece];
        if (a.wide_w && c.left - at >= TSR_OCTET)
            tsr_copy_async_16(into, reinterpret_cast<const uint16_t *>(from) + c.at + at);
        else
            *into = half_load_piece(from, c.at + at, c.left - at, a.wide_w);
    }
    TSR_UNROLL_BY(1)
    for (int i = threadIdx.x; i < half_type<TYPE>::parts * STAGE_WINDOWS * TILE_TOKENS * HALF_PIECES;
         i += MANY_THREADS) {
        const int piece = i % HALF_PIECES, t = i / HALF_PIECES % TILE_TOKENS,
                  window = i / HALF_PIECES / TILE_TOKENS;
        const int part = window / STAGE_WINDOWS, w = window % STAGE_WINDOWS;
        const int64_t token = tile.token + t < x.n_tokens ? tile.token + t : x.n_tokens - 1;
        tsr_copy_async_16(&to->x[part][w][t][piece],
                          &x.parts[token * a.chunks + stage / 2][part][half + w][piece]);
    }
}

/* A warp's sums, [row block][token block][as in the fragment of a product]. */
typedef float many_sums[ROW_BLOCKS][TOKEN_BLOCKS][4];

template <tsr_type TYPE>
TSR_DEVICE void many_multiply(const many_stage<TYPE> &stage, int row, int token, int lane, many_sums sums)
{
    const int g = lane / 4, piece = lane % 4;
    TSR_UNROLL
    for (int window = 0; window < STAGE_WINDOWS; window++) {
        tsr_bytes_16 upper[ROW_BLOCKS], lower[ROW_BLOCKS];
        TSR_UNROLL
        for (int i = 0; i < ROW_BLOCKS; i++) {
            const int r = row + i * HALF_ROWS + g;
            upper[i] = stage.w[window][r][piece];
            lower[i] = stage.w[window][r + 8][piece];
        }
        TSR_UNROLL
        for (int j = 0; j < TOKEN_BLOCKS; j++) {
            tsr_bytes_16 x[half_type<TYPE>::parts];
            TSR_UNROLL
            for (int p = 0; p < half_type<TYPE>::parts; p++)
                x[p] = stage.x[p][window][token + j * HALF_TOKENS + g][piece];
            TSR_UNROLL
            for (int i = 0; i < ROW_BLOCKS; i++)
                half_multiply<TYPE>(sums[i][j], upper[i], lower[i], x);
        }
    }
}

/* Add the chunk's sums to the outputs', and start new ones. */
template <tsr_type TYPE>
TSR_DEVICE void many_add(const half_args &a, const many_x<TYPE> &x, int chunk, int64_t token, many_sums sums,
                         half_sum outputs[ROW_BLOCKS][TOKEN_BLOCKS][4], bool *bad)
{
    const half_chunk c = half_chunk_at(a, chunk);
    TSR_UNROLL
    for (int j = 0; j < TOKEN_BLOCKS; j++) {
        TSR_UNROLL
        for (int e = 0; e < 4; e++) {
            const int64_t t = token + j * HALF_TOKENS + e % 2;
            const float scale =
                half_type<TYPE>::scaled ? x.scale[chunk * x.n_tokens + (t < x.n_tokens ? t : 0)] : 1.0f;
            TSR_UNROLL
            for (int i = 0; i < ROW_BLOCKS; i++) {
                half_add_chunk(a, c.first, c.last, sums[i][j][e] * scale, &outputs[i][j][e], bad);
                sums[i][j][e] = 0.0f;
            }
        }
    }
}

template <tsr_type TYPE, bool EXACT>
static __global__ void __launch_bounds__(MANY_THREADS, EXACT || TYPE == TSR_TYPE_BF16 ? 1 : 2)
    many_kernel(half_args a, const many_x<TYPE> x)
{
    constexpr int STAGES = many_ring<TYPE>::stages;
    TSR_DYNAMIC_SHARED(many_stage<TYPE>, ring);
    const int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    /* neighbouring blocks share weights */
    const int64_t tiles = (x.n_tokens + TILE_TOKENS - 1) / TILE_TOKENS;
    const many_tile tile = {blockIdx.x / tiles * TILE_ROWS, blockIdx.x % tiles * TILE_TOKENS};
    const int row = warp / 2 * WARP_TILE, token = warp % 2 * WARP_TILE; /* of the warp in its tile */
    const int stages = 2 * a.chunks;
    many_sums sums = {};
    half_sum outputs[ROW_BLOCKS][TOKEN_BLOCKS][4] = {};
    bool bad = false;
    a.exact = EXACT; /* known to the compiler: no 64-bit sums without it */

    for (int stage = 0; stage < STAGES - 1; stage++) {
        if (stage < stages)
            many_fill<TYPE>(a, x, tile, stage, &ring[stage]);
        tsr_copy_async_commit();
    }
    for (int stage = 0; stage < stages; stage++) {
        tsr_copy_async_wait<STAGES - 2>();
        __syncthreads(); /* the stage is complete, and the previous one is no longer read */
        if (stage + STAGES - 1 < stages)
            many_fill<TYPE>(a, x, tile, stage + STAGES - 1, &ring[(stage + STAGES - 1) % STAGES]);
        tsr_copy_async_commit(); /* a group per stage, even if empty, so that they can be counted */
        many_multiply<TYPE>(ring[stage % STAGES], row, token, lane, sums);
        if (stage % 2 == 1)
            many_add<TYPE>(a, x, stage / 2, tile.token + token + 2 * (lane % 4), sums, outputs, &bad);
    }
    TSR_UNROLL
    for (int i = 0; i < ROW_BLOCKS * TOKEN_BLOCKS * 4; i++) {
        const int e = i % 4, j = i / 4 % TOKEN_BLOCKS, block = i / 4 / TOKEN_BLOCKS;
        const int64_t r = tile.row + row + block * HALF_ROWS + lane / 4 + e / 2 * 8;
        const int64_t t = tile.token + token + j * HALF_TOKENS + 2 * (lane % 4) + e % 2;
        if (r < a.n_rows && t < x.n_tokens)
            half_store(a, r, x.first + t, outputs[block][j][e]);
    }
    if (bad)
        tsr_fault_raise(a.fault);
}

/* -- launchers -- */

/* Bytes of one token's parts and scales. */
template <tsr_type TYPE> static size_t bytes_per_token(int chunks)
{
    return (size_t)chunks * (sizeof(uint16_t[half_type<TYPE>::parts][HALF_CHUNK]) + sizeof(float));
}

size_t tsr_cuda_mul_mat_half_many_scratch(tsr_type type, int chunks, int64_t n_tokens)
{
    return (size_t)n_tokens * (type == TSR_TYPE_F16 ? bytes_per_token<TSR_TYPE_F16>(chunks)
                                                    : bytes_per_token<TSR_TYPE_BF16>(chunks));
}

template <tsr_type TYPE, bool EXACT>
static tsr_status enqueue_slab(const half_args &a, const many_x<TYPE> &x, const tsr_cuda_stream *s)
{
    tsr_status status = TSR_OK;
    const int64_t tiles =
        (a.n_rows + TILE_ROWS - 1) / TILE_ROWS * ((x.n_tokens + TILE_TOKENS - 1) / TILE_TOKENS);
    TSR_TRY(
        tsr_cuda_result(TSR_LAUNCH((divide_kernel<TYPE>), tsr_flat_grid(x.n_tokens * a.chunks * TSR_WARP, s),
                                   dim3(TSR_FLAT_THREADS), 0, s->stream, a, x),
                        "mul_mat divide_kernel"));
    TSR_TRY(TSR_CUDA(cudaFuncSetAttribute(
        many_kernel<TYPE, EXACT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)many_ring<TYPE>::bytes)));
    TSR_TRY(tsr_cuda_result(TSR_LAUNCH((many_kernel<TYPE, EXACT>), dim3((unsigned)tiles), dim3(MANY_THREADS),
                                       many_ring<TYPE>::bytes, s->stream, a, x),
                            "mul_mat many_kernel"));
out:
    return status;
}

template <tsr_type TYPE> static tsr_status enqueue_type(const half_args &a, const tsr_cuda_stream *s)
{
    tsr_status status = TSR_OK;
    const int64_t room = (int64_t)(s->scratch_bytes / bytes_per_token<TYPE>(a.chunks));
    const int64_t slab = room < a.n_tokens ? room / TILE_TOKENS * TILE_TOKENS : a.n_tokens;
    for (int64_t first = 0; first < a.n_tokens; first += slab) {
        many_x<TYPE> x = {};
        x.first = first;
        x.n_tokens = slab < a.n_tokens - first ? slab : a.n_tokens - first;
        x.parts = static_cast<decltype(x.parts)>(s->scratch);
        x.scale = reinterpret_cast<float *>(x.parts + x.n_tokens * a.chunks);
        if (a.exact)
            TSR_TRY((enqueue_slab<TYPE, true>(a, x, s)));
        else
            TSR_TRY((enqueue_slab<TYPE, false>(a, x, s)));
    }
out:
    return status;
}

tsr_status tsr_cuda_mul_mat_half_many(tsr_type type, const half_args &a, const tsr_cuda_stream *s)
{
    return type == TSR_TYPE_F16 ? enqueue_type<TSR_TYPE_F16>(a, s) : enqueue_type<TSR_TYPE_BF16>(a, s);
}
