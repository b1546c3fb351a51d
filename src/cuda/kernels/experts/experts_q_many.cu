/* Ops over experts with quantized weights for prompts. experts_q.cuh has the order of sums.
 *
 * A block of eight warps computes 128 rows of one expert times up to 32 of its slots: half of the warps gate
 * and the others up, for the same 64 rows, or all of them one matrix. As in mul_mat (q_many.cu) weights stay
 * packed in shared memory, and the next chunk's weights and activations are copied during the products of the
 * current one. A warp has 16 rows and all slots of the tile, so that it unpacks each weight once: an expert
 * has few slots (32, if 512 tokens use 8 of 128 experts), and only as many products are made, in steps of
 * eight slots. With tiles of 64 slots there would be one block per SM and, on an H100, 0.6 instructions per
 * cycle and scheduler, as products wait for each other; with 32 there are registers for two.
 *
 * Blocks of one tile are neighbours and share its activations, which are gathered by the slots' indices.
 * Down's integers are added to y with atomics: with integers the order does not matter. */
#include "cuda/kernels/experts/experts_q.cuh"

enum {
    MANY_WARPS = 8,
    MANY_THREADS = MANY_WARPS * TSR_WARP,
    MANY_HALF = MANY_WARPS / 2 * Q_ROWS, /* rows */
    MANY_SLOTS = 32,
    MANY_BLOCKS = 2, /* of an SM */
    MANY_QUADS = MANY_SLOTS / Q_TOKENS,
    MANY_META_PIECES = sizeof(q_meta) / 16,
    MANY_EXCHANGE = MANY_HALF + 8 /* floats between slots: four slots' rows are in different banks */
};

/* The slots of a tile; those after the last repeat it with a weight of zero. */
struct many_tile {
    int32_t slot[MANY_SLOTS], token[MANY_SLOTS];
    int32_t x[MANY_SLOTS]; /* the portion's row of activations */
    float weight[MANY_SLOTS];
};

/* A block's tile, a warp's rows in it, and the first of two buffers of each kind. */
struct many_place {
    int expert;
    int n, n_read; /* slots; and in whole steps */
    int row[2];    /* of each half of the rows */
    int lane, half, in_half;
    unsigned char *weights, *codes;
    q_meta *meta;
};

template <tsr_type TYPE> using many_pieces = experts_q_pieces<TYPE, MANY_HALF, MANY_THREADS>;

TSR_DEVICE unsigned char *many_weights(const q_args &q, const many_place &p, int step)
{
    return p.weights + step % 2 * (2 * MANY_HALF * q.slot_stride);
}

template <int BYTES> TSR_DEVICE unsigned char *many_codes(const many_place &p, int chunk)
{
    return p.codes + chunk % 2 * (q_places<BYTES>(MANY_SLOTS) * Q_CODE_BYTES);
}

/* The slot of the lane's sums number `quad`: with 8 bits one product has two quads' slots. */
template <int BYTES> TSR_DEVICE int many_slot(int quad, int lane)
{
    return BYTES == 2 ? quad * Q_TOKENS + lane % 4 : quad / 2 * (2 * Q_TOKENS) + 2 * (lane % 4) + quad % 2;
}

/* Start copying the activations' codes of a chunk, 16 bytes at a time. */
template <int BYTES>
TSR_DEVICE void many_fetch_codes(const experts_q_args &a, const many_place &p, const many_tile &x, int chunk)
{
    constexpr int pieces = BYTES * Q_CHUNK / 16; /* of a slot */
    unsigned char *const to = many_codes<BYTES>(p, chunk);
    TSR_UNROLL_BY(1)
    for (int i = (int)threadIdx.x; i < p.n_read * pieces; i += MANY_THREADS) {
        const int slot = i / pieces, piece = i % pieces;
        /* A token's pieces of each pair of blocks are together, with 8 bits half a place apart. */
        const int at = BYTES == 2 ? 16 * piece : piece / 4 * (Q_CODE_BYTES / 2) + piece % 4 * 16;
        tsr_copy_async_16(to + q_code_at<BYTES>(MANY_SLOTS, slot, 0) + at,
                          a.q.codes + q_code_at<BYTES>(a.q.n_tokens, x.x[slot], chunk) + at);
    }
}

TSR_DEVICE q_meta *many_meta(const many_place &p, int chunk)
{
    return p.meta + chunk % 2 * MANY_SLOTS;
}

/* The product of a half's rows. */
TSR_DEVICE q_args many_q_of(const experts_q_args &a, const many_place &p, int half)
{
    q_args q = experts_q_of(a, a.m[0], p.expert);
    if (half == 1 && a.form == EXPERTS_Q_GLU) {
        const q_args up = experts_q_of(a, a.m[1], p.expert);
        q.w = up.w;
        q.w_end = up.w_end;
    }
    return q;
}

/* Start copying a chunk's activations and, if a step begins with the chunk, the step's weights. */
template <tsr_type TYPE, int BYTES>
TSR_DEVICE void many_fetch(const experts_q_args &a, const many_place &p, const many_pieces<TYPE> &pieces,
                           const many_tile &x, int chunk)
{
    const bool begins = chunk % q_type<TYPE>::step_chunks == 0;
    TSR_UNROLL_BY(1) /* there are not enough registers for both halves side by side */
    for (int h = 0; begins && h < 2; h++) {
        const q_args q = many_q_of(a, p, h);
        const int row = h == 0 ? p.row[0] : p.row[1];
        if (row < q.n_rows)
            experts_q_copy(q, pieces, (int)threadIdx.x, row, chunk, 0,
                           many_weights(q, p, chunk / q_type<TYPE>::step_chunks) +
                               h * MANY_HALF * q.slot_stride);
    }
    many_fetch_codes<BYTES>(a, p, x, chunk);
    const int i = (int)threadIdx.x;
    if (i < p.n_read * MANY_META_PIECES)
        tsr_copy_async_16(reinterpret_cast<unsigned char *>(many_meta(p, chunk)) + 16 * i,
                          reinterpret_cast<const unsigned char *>(
                              a.q.meta + q_place(a.q, x.x[i / MANY_META_PIECES], chunk)) +
                              16 * (i % MANY_META_PIECES));
    tsr_copy_async_commit();
}

/* A part (q_multiply_part) of a chunk's products. */
template <tsr_type TYPE, int BYTES, int PART, typename Total>
TSR_DEVICE void many_part(const q_args &q, const many_place &p, const unsigned char *const rows[2], int chunk,
                          q_sum<Total> (*sums)[2])
{
    constexpr int together = BYTES == 2 ? 1 : 2; /* quads of a product */
    q_weights<TYPE> w;
    q_rows_load<TYPE>(q, rows, chunk, p.lane, &w);
    TSR_UNROLL
    for (int quad = 0; quad < MANY_QUADS; quad += together) {
        if (quad * Q_TOKENS >= p.n)
            break;
        const int place = quad * Q_TOKENS * BYTES / 2 + p.lane / 8; /* and piece lane % 8 */
        q_tokens<BYTES, together> t;
        float *open[2 * together];
        TSR_UNROLL
        for (int i = 0; i < together; i++) {
            t.meta[i] = many_meta(p, chunk) + many_slot<BYTES>(quad + i, p.lane);
            open[2 * i] = &sums[quad + i][0].open;
            open[2 * i + 1] = &sums[quad + i][1].open;
        }
        q_tokens_load<BYTES, together>(many_codes<BYTES>(p, chunk) + place * Q_CODE_BYTES + p.lane % 8 * 16,
                                       &t);
        q_multiply_part<TYPE, 2, PART>(w, t, open);
    }
}

template <tsr_type TYPE, int BYTES, typename Total>
TSR_DEVICE void many_chunk(const q_args &q, const many_place &p, int row, int chunk, q_sum<Total> (*sums)[2])
{
    const int band = p.half * MANY_HALF + p.in_half * Q_ROWS;
    const unsigned char *rows[2];
    experts_q_rows<TYPE, MANY_HALF>(
        q, many_weights(q, p, chunk / q_type<TYPE>::step_chunks) + band * q.slot_stride, row,
        chunk - chunk % q_type<TYPE>::step_chunks, p.lane, rows);
    many_part<TYPE, BYTES, 0>(q, p, rows, chunk, sums);
    if (BYTES == 1) {
        Q_NEXT_PART();
        many_part<TYPE, BYTES, 1>(q, p, rows, chunk, sums);
    }
}

/* Close the sums of quads with slots, weighted. */
template <int BYTES>
TSR_DEVICE void many_close(const many_place &p, const many_tile &tile, float limit, q_sum<int64_t> (*sums)[2],
                           bool *bad)
{
    TSR_UNROLL
    for (int i = 0; i < MANY_QUADS && i * Q_TOKENS < p.n_read; i++) {
        const float weight = tile.weight[many_slot<BYTES>(i, p.lane)];
        TSR_UNROLL
        for (int r = 0; r < 2; r++) {
            sums[i][r].open = weight * sums[i][r].open;
            q_close(&sums[i][r], limit, bad);
        }
    }
}

template <int BYTES>
TSR_DEVICE void many_close(const many_place &, const many_tile &, float limit, q_sum<float> (*sums)[2],
                           bool *bad)
{
    TSR_UNROLL
    for (int i = 0; i < MANY_QUADS; i++)
        TSR_UNROLL
    for (int r = 0; r < 2; r++)
        q_close(&sums[i][r], limit, bad);
}

/* Exact: add to the tokens' sums. */
template <int BYTES>
TSR_DEVICE void many_store(const experts_q_args &a, const many_place &p, const many_tile &x, int row,
                           const q_sum<int64_t> (*sums)[2], bool *bad)
{
    TSR_UNROLL
    for (int i = 0; i < MANY_QUADS && i * Q_TOKENS < p.n_read; i++)
        TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const int at = many_slot<BYTES>(i, p.lane);
        const int64_t y_row = row + q_row_in(p.lane) + 8 * r;
        if (at >= p.n || y_row >= a.q.n_rows)
            continue;
        const int64_t sum = sums[i][r].closed + experts_q_bias(a, p.expert, x.slot[at], y_row, bad);
        atomicAdd(static_cast<unsigned long long *>(a.q.y) + x.token[at] * a.q.n_rows + y_row,
                  (unsigned long long)sum);
    }
}

/* All sums go through shared memory, [row / 64][slot][row % 64], where gate's and up's meet, and from where
 * neighbouring threads store neighbouring rows. */
template <int BYTES>
TSR_DEVICE void many_store(const experts_q_args &a, const many_place &p, const many_tile &x, int,
                           const q_sum<float> (*sums)[2], bool *)
{
    constexpr int half = MANY_SLOTS * MANY_EXCHANGE;
    const int width = a.form == EXPERTS_Q_GLU ? (int)MANY_HALF : 2 * MANY_HALF;
    float *const all = reinterpret_cast<float *>(p.weights);
    float *const mine = all + p.half * half + p.in_half * Q_ROWS + q_row_in(p.lane);
    __syncthreads(); /* the weights there are used no more */
    TSR_UNROLL
    for (int i = 0; i < MANY_QUADS; i++)
        TSR_UNROLL
    for (int r = 0; r < 2; r++)
        mine[many_slot<BYTES>(i, p.lane) * MANY_EXCHANGE + 8 * r] = sums[i][r].closed;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < p.n * width; i += MANY_THREADS) {
        const int slot = i / width, row = i % width;
        const float *const sum = all + row / MANY_HALF * half + slot * MANY_EXCHANGE + row % MANY_HALF;
        if (p.row[0] + row < a.q.n_rows)
            experts_q_store(a, p.expert, x.slot[slot], p.row[0] + row, *sum,
                            a.form == EXPERTS_Q_GLU ? sum[half] : 0.0f);
    }
}

template <int BYTES>
TSR_DEVICE many_place many_place_of(const experts_q_args &a, const expert_tile &tile, unsigned char *memory)
{
    const bool glu = a.form == EXPERTS_Q_GLU;
    const int warp = threadIdx.x / TSR_WARP;
    many_place p = {};
    p.expert = tile.expert;
    p.n = tile.n;
    constexpr int step = BYTES == 2 ? Q_TOKENS : 2 * Q_TOKENS; /* slots of a product */
    p.n_read = (tile.n + step - 1) / step * step;
    p.row[0] = (int)blockIdx.x * (glu ? MANY_HALF : 2 * MANY_HALF);
    p.row[1] = p.row[0] + (glu ? 0 : MANY_HALF);
    p.lane = threadIdx.x % TSR_WARP;
    p.half = warp / (MANY_WARPS / 2);
    p.in_half = warp % (MANY_WARPS / 2);
    p.weights = memory;
    p.codes = memory + 4 * MANY_HALF * a.q.slot_stride;
    p.meta = reinterpret_cast<q_meta *>(p.codes + 2 * q_places<BYTES>(MANY_SLOTS) * Q_CODE_BYTES);
    return p;
}

/* Q6_K's weights leave room for one block on most cards. */
template <tsr_type TYPE, typename Total, int BYTES>
static __global__ void __launch_bounds__(MANY_THREADS, TYPE == TSR_TYPE_Q6_K ? 1 : MANY_BLOCKS)
    experts_q_many_kernel(const experts_q_args a)
{
    TSR_DYNAMIC_SHARED(unsigned char, memory);
    const expert_tile tile = expert_tile_in(a.routing, a.held, a.first, a.end, blockIdx.y, MANY_SLOTS);
    if (tile.n == 0)
        return;
    const many_place p = many_place_of<BYTES>(a, tile, memory);
    many_tile &x = *reinterpret_cast<many_tile *>(p.meta + 2 * MANY_SLOTS);
    if (threadIdx.x < MANY_SLOTS) {
        const int i = (int)threadIdx.x;
        const int32_t slot = tile.slots[i < tile.n ? i : tile.n - 1];
        x.slot[i] = slot;
        x.token[i] = slot / (int)a.routing.n_used;
        x.x[i] = (slot - (int)a.first) / (int)a.x_slots;
        x.weight[i] = i < tile.n ? expert_weight(a.routing, slot) : 0.0f;
    }
    __syncthreads();

    const q_args q = many_q_of(a, p, p.half);
    const int row = (p.half == 0 ? p.row[0] : p.row[1]) + p.in_half * Q_ROWS;
    q_sum<Total> sums[MANY_QUADS][2] = {};
    const int run = a.q.exact ? a.q.unit_chunks : a.q.part_chunks; /* chunks before sums close */
    int in_run = 0;
    bool bad = false;
    many_pieces<TYPE> pieces;
    experts_q_deal(a.q, (int)threadIdx.x, &pieces);
    many_fetch<TYPE, BYTES>(a, p, pieces, x, 0);
    for (int chunk = 0; chunk < a.q.chunks; chunk++) {
        tsr_copy_async_wait<0>();
        __syncthreads(); /* the chunk is complete, and no thread uses the previous one any more */
        if (chunk + 1 < a.q.chunks)
            many_fetch<TYPE, BYTES>(a, p, pieces, x, chunk + 1);
        if (row < a.q.n_rows)
            many_chunk<TYPE, BYTES, Total>(q, p, row, chunk, sums);
        if (++in_run == run || chunk + 1 == a.q.chunks) {
            many_close<BYTES>(p, x, a.q.limit, sums, &bad);
            in_run = 0;
        }
    }
    many_store<BYTES>(a, p, x, row, sums, &bad);
    if (bad)
        tsr_fault_raise(a.q.fault);
}

template <tsr_type TYPE, typename Total, int BYTES>
static tsr_status launch(const experts_q_args &a, const tsr_cuda_stream *s)
{
    const int64_t rows = a.form == EXPERTS_Q_GLU ? MANY_HALF : 2 * MANY_HALF;
    const int64_t tiles = expert_tiles(a.end - a.first, &a.held, MANY_SLOTS);
    const size_t bytes = 4 * (size_t)MANY_HALF * (size_t)a.q.slot_stride +
                         2 * (q_places<BYTES>(MANY_SLOTS) * Q_CODE_BYTES + MANY_SLOTS * sizeof(q_meta)) +
                         sizeof(many_tile);
    if (tiles == 0) /* a device without experts; grids must not be empty */
        return TSR_OK;
    const tsr_status status = tsr_allow_shared(
        reinterpret_cast<const void *>(&experts_q_many_kernel<TYPE, Total, BYTES>), bytes, s);
    if (status != TSR_OK)
        return status;
    return tsr_cuda_result(TSR_LAUNCH((experts_q_many_kernel<TYPE, Total, BYTES>),
                                      dim3((unsigned)((a.q.n_rows + rows - 1) / rows), (unsigned)tiles),
                                      dim3(MANY_THREADS), bytes, s->stream, a),
                           "experts_q_many_kernel");
}

template <tsr_type TYPE, typename Total>
static tsr_status launch_bytes(const experts_q_args &a, const tsr_cuda_stream *s)
{
    return a.q.bytes ? launch<TYPE, Total, 1>(a, s) : launch<TYPE, Total, 2>(a, s);
}

tsr_status tsr_cuda_experts_q_many(tsr_type type, const experts_q_args &a, const tsr_cuda_stream *s)
{
    switch (type) {
#define MANY_CASE(constant) \
    case constant:          \
        return a.q.exact ? launch_bytes<constant, int64_t>(a, s) : launch_bytes<constant, float>(a, s);
        TSR_FOR_EACH_QUANTIZED_TYPE(MANY_CASE)
#undef MANY_CASE
    default:
        return tsr_cuda_result(cudaErrorNotSupported, "experts_q_many_kernel");
    }
}
