/* select: the blocks of positions with the largest scores, for each token (core/op.h).
 *
 * score_kernel computes the scores of a tile of 32 positions for one token: a thread per position and head,
 * each product one chain over the elements of the key, then a thread per position for the sum over heads, in
 * order. The scores of some tokens, a round, are stored in scratch memory.
 *
 * pick_kernel fills a list: it turns scores into keys, 32-bit integers of the same order, one per block of
 * positions, and finds the least key that is selected digit by digit, from counts of the digits (a radix
 * select). Then it goes through the blocks in order and stores the numbers of larger keys, and of as many
 * equal ones as are left. Counts are added with atomics, whose order does not matter. */
#include "cuda/kernels/kv.cuh"
#include "cuda/kernels/mul_mat/quant.cuh"

enum {
    SCORE_TILE = TSR_WARP, /* positions */
    SCORE_WARPS = 8,
    SCORE_THREADS = SCORE_WARPS * TSR_WARP,
    SCORE_HEADS = 4,                   /* heads whose products a thread computes together */
    SCORE_ROW = TSR_MAX_INDEX_DIM + 4, /* padded: rows begin in different banks */
    PICK_THREADS = 512,
    PICK_WARPS = PICK_THREADS / TSR_WARP,
    PICK_DIGITS = 256
};

struct select_args {
    tsr_op_select op;
    bool wide_k, wide_q;           /* rows may be loaded in wide pieces */
    int64_t first_token, n_tokens; /* of the round */
    int64_t n_positions;           /* of a row of scores: the longest sequence, in whole tiles */
    float *scores;                 /* [n_tokens][n_lists][n_positions] */
};

struct alignas(16) score_block {
    float key[SCORE_TILE][SCORE_ROW];
    float product[TSR_MAX_INDEX_HEADS][SCORE_TILE];
};

/* -- scores -- */

/* Load the keys of the tile as floats; zeros past the end of a key and behind the last position. */
template <tsr_type TYPE>
TSR_DEVICE void score_load(const select_args &a, int64_t t, int64_t first, int64_t end, score_block *b)
{
    const int64_t dim = a.op.kv.k_dim;
    const int octets = (int)((dim + TSR_OCTET - 1) / TSR_OCTET);
    for (int i = threadIdx.x; i < SCORE_TILE * octets; i += SCORE_THREADS) {
        const int slot = i / octets, at = i % octets * TSR_OCTET;
        tsr_octet o = {};
        if (first + slot < end) {
            const tsr_kv_place place =
                tsr_kv_find(a.op.kv, a.op.index, a.op.index.seq_row[t], first + slot, 0);
            tsr_octet_load<TYPE>(tsr_kv_key(a.op.kv, place), at, tsr_octet_length(dim - at), a.wide_k, &o);
        }
        TSR_UNROLL
        for (int e = 0; e < TSR_OCTET; e++)
            b->key[slot][at + e] = tsr_octet_value(o, e);
    }
}

/* Products of a thread's key with heads head .. head + 3; heads behind the last repeat it. */
TSR_DEVICE void score_heads(const select_args &a, int64_t t, int head, score_block *b)
{
    const int lane = threadIdx.x % TSR_WARP, n_heads = (int)a.op.n_heads, dim = (int)a.op.kv.k_dim;
    const float *q[SCORE_HEADS];
    float sum[SCORE_HEADS] = {};
    TSR_UNROLL
    for (int h = 0; h < SCORE_HEADS; h++)
        q[h] = a.op.q + (t * n_heads + (head + h < n_heads ? head + h : n_heads - 1)) * dim;
    for (int at = 0; at < dim; at += TSR_OCTET) {
        float key[TSR_OCTET];
        tsr_load_floats(&b->key[lane][at], TSR_OCTET, true, key);
        TSR_UNROLL
        for (int h = 0; h < SCORE_HEADS; h++) {
            float part[TSR_OCTET];
            tsr_load_floats(q[h] + at, tsr_octet_length(dim - at), a.wide_q, part);
            TSR_UNROLL
            for (int i = 0; i < TSR_OCTET; i++)
                sum[h] = fmaf(part[i], key[i], sum[h]);
        }
    }
    TSR_UNROLL
    for (int h = 0; h < SCORE_HEADS; h++)
        if (head + h < n_heads)
            b->product[head + h][lane] = sum[h];
}

/* Grid: tiles of positions, tokens of the round. */
static __global__ void __launch_bounds__(SCORE_THREADS) score_kernel(const select_args a)
{
    __shared__ score_block b;
    tsr_begin_early();
    const int64_t t = a.first_token + blockIdx.y, first = (int64_t)blockIdx.x * SCORE_TILE;
    const int64_t end = tsr_kv_n_seen(a.op.kv, a.op.index.position[t]);
    float *scores = a.scores + (int64_t)blockIdx.y * a.op.n_lists * a.n_positions + first;
    if (first >= end || (end - 1) / a.op.block < a.op.n_blocks) /* pick_kernel takes all blocks */
        return;
    switch (a.op.kv.type_k) {
#define LOAD_CASE(type)                         \
    case type:                                  \
        score_load<type>(a, t, first, end, &b); \
        break;
        TSR_FOR_EACH_CACHE_TYPE(LOAD_CASE)
#undef LOAD_CASE
    default:
        break;
    }
    __syncthreads();
    for (int head = threadIdx.x / TSR_WARP * SCORE_HEADS; head < a.op.n_heads;
         head += SCORE_WARPS * SCORE_HEADS)
        score_heads(a, t, head, &b);
    __syncthreads();
    if (a.op.weights && threadIdx.x < SCORE_TILE) {
        float sum = 0.0f;
        for (int h = 0; h < a.op.n_heads; h++)
            sum = fmaf(a.op.weights[t * a.op.n_heads + h], fmaxf(b.product[h][threadIdx.x], 0.0f), sum);
        scores[threadIdx.x] = sum;
    }
    if (a.op.weights)
        return;
    for (int i = threadIdx.x; i < a.op.n_heads * SCORE_TILE; i += SCORE_THREADS)
        scores[i / SCORE_TILE * a.n_positions + i % SCORE_TILE] = b.product[i / SCORE_TILE][i % SCORE_TILE];
}

/* -- lists -- */

struct pick_block {
    int count[PICK_DIGITS];
    int of_warp[2][PICK_WARPS];
    int larger, equal; /* blocks with larger keys than the prefix; of equal ones to take */
    uint32_t prefix;
};

/* A number with the order of the scores; 0: not a number. */
TSR_DEVICE uint32_t select_key(float score)
{
    uint32_t bits;
    score = score == 0.0f ? 0.0f : score; /* both zeros are equal */
    memcpy(&bits, &score, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* Turn the n_positions scores of a row into the keys of its n blocks, in place: keys of a piece are stored
 * when all threads have read its scores, and no later piece needs what they overwrite. */
TSR_DEVICE void pick_keys(const tsr_op_select &op, float *scores, int64_t n_positions, int n)
{
    uint32_t *keys = reinterpret_cast<uint32_t *>(scores);
    for (int first = 0; first < n; first += PICK_THREADS) {
        const int number = first + (int)threadIdx.x;
        uint32_t key = 0;
        if (number < n) {
            const int64_t begin = number * op.block;
            const int64_t end = begin + op.block < n_positions ? begin + op.block : n_positions;
            for (int64_t p = begin; p < end; p++) {
                const uint32_t one = select_key(scores[p]);
                key = one > key ? one : key;
            }
            key = number > n - 1 - op.n_local ? UINT32_MAX : key;
        }
        __syncthreads();
        if (number < n)
            keys[number] = key;
        __syncthreads();
    }
}

/* Find the least key of the k largest of keys[n]: b->prefix, and how many equal ones belong to them. */
TSR_DEVICE void pick_threshold(const uint32_t *keys, int n, int k, pick_block *b)
{
    if (threadIdx.x == 0) {
        b->prefix = 0;
        b->larger = 0;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < PICK_DIGITS)
            b->count[threadIdx.x] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += PICK_THREADS)
            if ((uint64_t)(keys[i] ^ b->prefix) >> (shift + 8) == 0)
                atomicAdd(&b->count[keys[i] >> shift & 255u], 1);
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = PICK_DIGITS - 1;
            while (b->larger + b->count[digit] < k)
                b->larger += b->count[digit--];
            b->prefix |= (uint32_t)digit << shift;
            b->equal = k - b->larger;
        }
        __syncthreads();
    }
}

/* How many of the block's threads before this one have `flag` set; *all_out: of all threads. */
TSR_DEVICE int pick_rank(bool flag, int *of_warp, int *all_out)
{
    const int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    const uint32_t votes = __ballot_sync(TSR_ALL_LANES, flag);
    if (lane == 0)
        of_warp[warp] = __popc(votes);
    __syncthreads();
    int before = __popc(votes & ((1u << lane) - 1)), all = 0;
    for (int w = 0; w < PICK_WARPS; w++) {
        before += w < warp ? of_warp[w] : 0;
        all += of_warp[w];
    }
    __syncthreads(); /* of_warp may be used again */
    *all_out = all;
    return before;
}

/* Grid: lists, tokens of the round. */
static __global__ void __launch_bounds__(PICK_THREADS) pick_kernel(const select_args a)
{
    __shared__ pick_block b;
    tsr_begin_early();
    const tsr_op_select &op = a.op;
    const int64_t t = a.first_token + blockIdx.y, row = (int64_t)blockIdx.y * op.n_lists + blockIdx.x;
    const int64_t n_positions = tsr_kv_n_seen(op.kv, op.index.position[t]);
    const int n = (int)((n_positions + op.block - 1) / op.block), k = (int)op.n_blocks;
    int32_t *y = op.y + (t * op.n_lists + blockIdx.x) * k;
    if (n <= k) {
        for (int i = threadIdx.x; i < k; i += PICK_THREADS)
            y[i] = i < n ? i : TSR_NO_BLOCK;
        return;
    }
    float *scores = a.scores + row * a.n_positions;
    const uint32_t *keys = reinterpret_cast<const uint32_t *>(scores);
    pick_keys(op, scores, n_positions, n);
    pick_threshold(keys, n, k, &b);
    int stored = 0, taken = 0; /* of the list; of keys equal to the least */
    for (int first = 0; first < n; first += PICK_THREADS) {
        const int number = first + (int)threadIdx.x;
        const uint32_t key = number < n ? keys[number] : 0;
        const bool equal = number < n && key == b.prefix;
        int n_equal, n_stored;
        const int nth = taken + pick_rank(equal, b.of_warp[0], &n_equal);
        const bool stores = number < n && (key > b.prefix || (equal && nth < b.equal));
        const int at = stored + pick_rank(stores, b.of_warp[1], &n_stored);
        if (stores)
            y[at] = number;
        taken += n_equal;
        stored += n_stored;
    }
}

/* -- launchers -- */

/* Positions of the longest sequence that the page table can describe, in whole tiles. */
static int64_t row_positions(const tsr_op_select *op)
{
    const int64_t n = op->index.table_stride * op->kv.page_tokens;
    return (n + SCORE_TILE - 1) / SCORE_TILE * SCORE_TILE;
}

extern "C" size_t tsr_cuda_select_scratch(const tsr_op_select *op, int64_t n_tokens)
{
    return (size_t)(n_tokens * op->n_lists * row_positions(op)) * sizeof(float);
}

/* A round has as many tokens as the scratch memory has room for (tsr_cuda_op_check(): at least one). */
extern "C" tsr_status tsr_cuda_select(const tsr_op_select *op, const tsr_cuda_stream *s)
{
    enum { MAX_TOKENS = 65535 }; /* of a grid's second side */
    tsr_status status = TSR_OK;
    select_args a = {};
    if (op->n_tokens == 0)
        return TSR_OK;
    a.op = *op;
    a.wide_k = tsr_wide_rows(op->kv.base, op->kv.page_bytes | op->kv.k_offset | op->kv.k_row_bytes);
    a.wide_q = tsr_wide_rows(op->q, (size_t)op->kv.k_dim * sizeof(float));
    a.n_positions = row_positions(op);
    a.scores = static_cast<float *>(s->scratch);
    const int64_t room = (int64_t)(s->scratch_bytes / tsr_cuda_select_scratch(op, 1));
    if (room < 1)
        return tsr_fail(TSR_ERR_INVALID, "select: %zu bytes of scratch memory; one token takes %zu",
                        s->scratch_bytes, tsr_cuda_select_scratch(op, 1));
    for (; a.first_token < op->n_tokens; a.first_token += a.n_tokens) {
        const int64_t left = op->n_tokens - a.first_token, most = room < MAX_TOKENS ? room : MAX_TOKENS;
        a.n_tokens = left < most ? left : most;
        TSR_TRY(tsr_cuda_result(
            TSR_LAUNCH_EARLY(score_kernel, dim3((unsigned)(a.n_positions / SCORE_TILE), (unsigned)a.n_tokens),
                             dim3(SCORE_THREADS), 0, s, a),
            "score_kernel"));
        TSR_TRY(
            tsr_cuda_result(TSR_LAUNCH_EARLY(pick_kernel, dim3((unsigned)op->n_lists, (unsigned)a.n_tokens),
                                             dim3(PICK_THREADS), 0, s, a),
                            "pick_kernel"));
    }
out:
    return status;
}
