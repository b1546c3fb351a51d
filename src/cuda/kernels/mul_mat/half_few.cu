/* mul_mat with F16 and BF16 weights for few tokens, bound by memory; see half.cuh.
 *
 * A block computes 16 rows times up to eight tokens of y. It goes over K in rounds of one chunk per warp.
 * A warp has all 4 KiB of its chunk's weights in flight, straight to the registers from which the tensor
 * core reads them, while it divides the activations of its chunk into parts (in shared memory, for itself
 * alone). The warps' sums are collected in shared memory, where one thread per output adds them to its
 * granule, in order: the work is even however granules are cut, and no sum depends on the number of warps.
 * Meanwhile the next round's weights are in flight.
 *
 * At most 128 registers, none spilled (tests/cudasim/kernel_resources.txt), allow 16 warps per SM, so 64 KiB
 * of weights are in flight there; an H200 needs about 25 KiB (4.8 TB/s times 700 ns over 132 SMs). Dividing
 * and multiplying a chunk takes a warp about 100 instructions with one token and 400 with eight, of the
 * 800 that an SM issues while it receives the chunk's weights at that rate. (By count and arithmetic; not
 * measured.) */
#include "cuda/kernels/mul_mat/half.cuh"
#include "cuda/kernels/mul_mat/launch_heads.cuh"
#include "cuda/kernels/rms_norm.cuh"

/* A block's shared memory. No access of a warp comes to a bank twice: a warp stores a token's parts of all
 * windows together, so windows of several tokens have a token's room between them; it stores the sums of two
 * or four pairs of tokens, and loads those of tokens t and t + TOKENS / 2. */
template <tsr_type TYPE, int TOKENS, int WARPS> struct few_block {
    static constexpr int x_stride = TOKENS > 1 ? TOKENS + 1 : 1;
    static constexpr int chunk_stride = TOKENS > 2 ? HALF_ROWS + 32 / TOKENS : (int)HALF_ROWS;
    tsr_bytes_16 x[WARPS][half_type<TYPE>::parts][HALF_WINDOWS][x_stride][HALF_PIECES];
    float scale[WARPS][TOKENS];
    float chunk[2][WARPS][TOKENS][chunk_stride]; /* sums; two rounds' worth, so that one barrier is enough */
    float norm[TOKENS];                          /* scales of the tokens */
};

/* A lane's pieces of the weights of a chunk, rows g and g + 8. */
struct few_weights {
    tsr_bytes_16 upper[HALF_WINDOWS], lower[HALF_WINDOWS];
};

TSR_DEVICE void few_load(const half_args &a, const unsigned char *upper, const unsigned char *lower,
                         const half_chunk &c, int lane, few_weights *w)
{
    if (a.wide_w && c.left == HALF_CHUNK) { /* no branches: all loads in flight together */
        const size_t at = (size_t)(c.at + lane % 4 * TSR_OCTET) * sizeof(uint16_t);
        upper += at;
        lower += at;
        TSR_UNROLL
        for (int i = 0; i < HALF_WINDOWS; i++) {
            w->upper[i] = tsr_load_once_16(upper + i * HALF_WINDOW * sizeof(uint16_t));
            w->lower[i] = tsr_load_once_16(lower + i * HALF_WINDOW * sizeof(uint16_t));
        }
        return;
    }
    TSR_UNROLL
    for (int i = 0; i < HALF_WINDOWS; i++) {
        const int at = i * HALF_WINDOW + lane % 4 * TSR_OCTET;
        w->upper[i] = half_load_piece(upper, c.at + at, c.left - at, a.wide_w);
        w->lower[i] = half_load_piece(lower, c.at + at, c.left - at, a.wide_w);
    }
}

/* Normalise the chunk's activations of all tokens with the bits of tsr_norm_apply(). */
template <int TOKENS>
TSR_DEVICE void few_normalize(const half_args &a, const tsr_launch_norm &norm, const half_chunk &c, int lane,
                              const float *scales, float values[TOKENS][4])
{
    float weight[4];
    if (norm.weight)
        half_load_x(a, norm.weight, c, lane, weight);
    TSR_UNROLL
    for (int t = 0; t < TOKENS; t++)
        TSR_UNROLL
    for (int i = 0; i < 4; i++) {
        values[t][i] = values[t][i] * scales[t < a.n_tokens ? t : a.n_tokens - 1];
        if (norm.weight)
            values[t][i] = values[t][i] * weight[i];
        if (norm.y && blockIdx.x == 0 && t < a.n_tokens && 4 * lane + i < c.left)
            norm.y[t * a.x_stride + c.at + 4 * lane + i] = values[t][i];
    }
}

/* Divide the chunk's activations of all tokens, from `first` on, into the warp's parts. */
template <tsr_type TYPE, int TOKENS, int WARPS>
TSR_DEVICE void few_divide(const half_args &a, const tsr_launch_norm &norm, int64_t first,
                           const half_chunk &c, int warp, int lane, few_block<TYPE, TOKENS, WARPS> *b)
{
    float values[TOKENS][4];
    TSR_UNROLL
    for (int t = 0; t < TOKENS; t++) {
        const int64_t token = first + t < a.n_tokens ? first + t : a.n_tokens - 1;
        half_load_x(a, a.x + token * a.x_stride, c, lane, values[t]);
    }
    if (norm.x)
        few_normalize<TOKENS>(a, norm, c, lane, b->norm, values);
    TSR_UNROLL
    for (int t = 0; t < TOKENS; t++) {
        tsr_bytes_8 parts[half_type<TYPE>::parts];
        const float scale = half_divide<TYPE>(values[t], parts);
        if (lane == 0)
            b->scale[warp][t] = scale;
        TSR_UNROLL
        for (int p = 0; p < half_type<TYPE>::parts; p++)
            tsr_store_8(&b->x[warp][p][lane / 8][t][lane % 8 / 2], lane % 2, parts[p]);
    }
    __syncwarp();
}

/* Multiply a chunk and store its sums in b->chunk[round % 2][warp]. */
template <tsr_type TYPE, int TOKENS, int WARPS>
TSR_DEVICE void few_multiply(const few_weights &w, int round, int warp, int lane,
                             few_block<TYPE, TOKENS, WARPS> *b)
{
    const int g = lane / 4, t = lane % 4;
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const int column = g < TOKENS ? g : TOKENS - 1; /* sums of columns without a token are dropped */
    TSR_UNROLL
    for (int i = 0; i < HALF_WINDOWS; i++) {
        tsr_bytes_16 x[half_type<TYPE>::parts];
        TSR_UNROLL
        for (int p = 0; p < half_type<TYPE>::parts; p++)
            x[p] = b->x[warp][p][i][column][t];
        half_multiply<TYPE>(sums, w.upper[i], w.lower[i], x);
    }
    TSR_UNROLL
    for (int i = 0; i < 4; i++) {
        const int token = 2 * t + i % 2;
        if (token < TOKENS)
            b->chunk[round % 2][warp][token][g + i / 2 * 8] = sums[i] * b->scale[warp][token];
    }
}

/* The op with its first matrix, and all matrices. */
struct few_args {
    half_args half;
    tsr_launch_of of;
};

/* The rows from one set of a matrix to the next. */
static inline __host__ __device__ int few_rows(const few_args &f)
{
    return f.of.glu || f.of.half > 0 ? HALF_ROWS / 2 : HALF_ROWS;
}

/* The op with the matrix of this block. */
TSR_DEVICE half_args few_args_of(const few_args &f, const tsr_launch_matrix &m)
{
    half_args a = f.half;
    a.w = m.w;
    a.y = m.y;
    a.y_stride = m.y_stride;
    a.n_rows = m.n_rows;
    return a;
}

/* Store the sum of row `mine` of the set that begins at `row`, or what comes after it, if the thread has one
 * (`here`); `bad`: it was out of range. All lanes of a warp call it. */
TSR_DEVICE void few_store(const few_args &f, const half_args &a, int64_t row, int mine, int64_t t, bool here,
                          half_sum sum, bool bad)
{
    const int64_t r = row + mine;
    const float other =
        __shfl_xor_sync(TSR_ALL_LANES, sum.granule, f.of.heads && f.of.half == 0 ? 1 : HALF_ROWS / 2);
    if (f.of.heads) {
        const int64_t of = tsr_launch_row(f.of, (int)row, mine);
        if (here && of < a.n_rows && t < a.n_tokens)
            tsr_launch_store_head(f.of, (int)t, (int)of, true, sum.granule, other);
        return;
    }
    if (!here || mine >= few_rows(f) || r >= a.n_rows || t >= a.n_tokens)
        return;
    if (bad)
        tsr_fault_raise(a.fault);
    if (f.of.sum_y)
        tsr_launch_store_sum(f.of, t, r,
                             a.exact ? tsr_fixed_value(sum.fixed) : tsr_partial_value(sum.granule, a.bf16));
    else if (f.of.glu)
        tsr_launch_store_glu(f.of, t, r, sum.granule, other);
    else
        half_store(a, r, t, sum);
}

template <tsr_type TYPE, int TOKENS, int WARPS>
static __global__ void __launch_bounds__(WARPS *TSR_WARP, WARPS == 8 ? 2 : 4)
    few_kernel(const __grid_constant__ few_args f)
{
    __shared__ few_block<TYPE, TOKENS, WARPS> b;
    const tsr_launch_matrix &matrix = tsr_launch_matrix_of(f.of);
    const half_args a = few_args_of(f, matrix);
    const int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    const int block = (int)blockIdx.x - matrix.first_block;
    const int64_t tiles = (a.n_tokens + TOKENS - 1) / TOKENS; /* neighbouring blocks share weights */
    const int64_t first = block % tiles * TOKENS;
    int64_t row = block / tiles * few_rows(f);
    if (f.of.half > 0)
        row += tsr_divide(row, f.of.half).of * (int64_t)f.of.half; /* lower halves */
    const int64_t g = row + lane / 4, last = a.n_rows - 1;         /* rows past the last are dropped */
    const int64_t g_lower = f.of.glu ? g : f.of.half > 0 ? g + f.of.half : g + HALF_ROWS / 2;
    const unsigned char *upper = a.w + (size_t)(g < last ? g : last) * a.w_stride;
    const unsigned char *lower =
        (f.of.glu ? f.of.m[1].w : a.w) + (size_t)(g_lower < last ? g_lower : last) * a.w_stride;

    /* The output whose chunks the thread adds: a warp has two tokens' rows (few_block). */
    const int mine = threadIdx.x % HALF_ROWS;
    const int token = TOKENS == 1 ? 0 : warp + lane / HALF_ROWS * (TOKENS / 2);

    few_weights w;
    half_sum sum = {0.0f, 0};
    bool bad = false;
    int nth = 0; /* index of the next chunk in its granule */
    const int rounds = (a.chunks + WARPS - 1) / WARPS;
    half_chunk c = {};
    if (warp < a.chunks) {
        c = half_chunk_at(a, warp);
        few_load(a, upper, lower, c, lane, &w);
    }
    if (f.of.norm.weight)
        tsr_prefetch(f.of.norm.weight, a.k);
    tsr_wait_unless(a.sibling);
    tsr_start_next(); /* of siblings: they do not wait for the activations */
    if (f.of.norm.x)
        tsr_rms_scales(f.of.norm.x, a.k, (int)a.n_tokens, f.of.norm.eps, &b.chunk[0][0][0][0], b.norm);
    for (int round = 0; round < rounds; round++) {
        const int chunk = round * WARPS + warp;
        if (chunk < a.chunks) {
            few_divide<TYPE, TOKENS, WARPS>(a, f.of.norm, first, c, warp, lane, &b);
            few_multiply<TYPE, TOKENS, WARPS>(w, round, warp, lane, &b);
        }
        if (chunk + WARPS < a.chunks) {
            c = half_chunk_at(a, chunk + WARPS);
            few_load(a, upper, lower, c, lane, &w);
        }
        __syncthreads();
        if (threadIdx.x < HALF_ROWS * TOKENS)
            for (int i = 0; i < WARPS && round * WARPS + i < a.chunks; i++) {
                const bool last = nth == a.granule_chunks - 1;
                half_add_chunk(a, nth == 0, last || round * WARPS + i == a.chunks - 1,
                               b.chunk[round % 2][i][token][mine], &sum, &bad);
                nth = last ? 0 : nth + 1;
            }
    }
    if (a.sibling)
        tsr_wait_for_previous();
    few_store(f, a, row, mine, first + token, threadIdx.x < HALF_ROWS * TOKENS, sum, bad);
}

/* Four warps for eight tokens, whose parts would otherwise not fit into 48 KiB. */
template <tsr_type TYPE, int TOKENS>
static tsr_status enqueue(const half_args &a, const tsr_cuda_products *p, const tsr_cuda_stream *s)
{
    constexpr int WARPS = TOKENS == HALF_TOKENS ? 4 : 8;
    few_args f = {a, tsr_launch_of_products(p)};
    const unsigned tiles =
        (unsigned)((a.n_tokens + TOKENS - 1) / TOKENS); /* 1 where there are more matrices */
    const unsigned blocks = tsr_launch_deal(&f.of, p->n, few_rows(f), INT_MAX);
    return tsr_cuda_result(TSR_LAUNCH_EARLY((few_kernel<TYPE, TOKENS, WARPS>), dim3(blocks * tiles),
                                            dim3(WARPS * TSR_WARP), 0, s, f),
                           "mul_mat few_kernel");
}

template <tsr_type TYPE>
static tsr_status enqueue_type(const half_args &a, const tsr_cuda_products *p, const tsr_cuda_stream *s)
{
    if (a.n_tokens == 1)
        return enqueue<TYPE, 1>(a, p, s);
    if (a.n_tokens == 2)
        return enqueue<TYPE, 2>(a, p, s);
    return a.n_tokens <= 4 ? enqueue<TYPE, 4>(a, p, s) : enqueue<TYPE, HALF_TOKENS>(a, p, s);
}

tsr_status tsr_cuda_mul_mat_half_few(const tsr_cuda_products *p, const half_args &a, const tsr_cuda_stream *s)
{
    return p->of[0]->type == TSR_TYPE_F16 ? enqueue_type<TSR_TYPE_F16>(a, p, s)
                                          : enqueue_type<TSR_TYPE_BF16>(a, p, s);
}
