/* mul_mat with weights that are multiplied octet by octet (quant.cuh), for any number of tokens: F32, the
 * type of small and special matrices (f32.cu), and rare quantized types (rare.cu).
 *
 * A block of four warps computes OCTETS_ROWS rows times TOKENS tokens of y. The K granules are distributed
 * over the warps. Inside a warp, lane l multiplies octet l of each chunk (kernels.h has the order of sums),
 * and a chunk's sums over lanes are formed for all rows and tokens together (tsr_tree_sum), after which each
 * of up to 32 outputs is in a lane of its own. With one token memory limits the speed: every warp has one
 * load per row in flight, and all four warps read a row's chunks. No shared memory is used for the operands:
 * a chunk of weights is used by one warp only, and activations come from the first-level cache.
 *
 * Granules of at most 128 elements are taken two at a time, one by each half of the warp ("narrow"). */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_OCTETS_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_OCTETS_CUH

#include "cuda/kernels/mul_mat/mul_mat.h"
#include "cuda/kernels/mul_mat/quant.cuh"

enum {
    OCTETS_ROWS = 4,
    OCTETS_TOKENS = 8, /* most tokens of a block */
    OCTETS_WARPS = 4,
    OCTETS_CHUNK = 256 /* elements of K in one sum before chunks are added in order (kernels.h) */
};

/* The op in the form that the kernel uses. */
struct octets_args {
    const unsigned char *w;
    size_t w_stride;
    const float *x;
    int64_t x_stride;
    void *y; /* int64 if exact, bfloat16 if bf16, otherwise float */
    int64_t y_stride;
    int64_t n_rows, k, n_tokens;
    int64_t granule; /* of an f32 sum: a chunk */
    float limit;
    bool exact, bf16, narrow, wide_w, wide_x;
    tsr_type stored;
    tsr_fault_word fault;
};

/* One lane's part of one chunk: elements [at, at + left) of K. */
struct octets_part {
    int64_t at;
    int left;
};

/* Sums of the lane's octet for every (row, token) pair, tokens fastest. FULL: all lanes have eight elements
 * that may be loaded in wide pieces; then there is no branch, and the loads of all rows are in flight
 * together. */
template <tsr_type TYPE, int TOKENS, bool FULL>
TSR_DEVICE void octets_sums(const octets_args &a, const unsigned char *const *w, const float *const *x,
                            octets_part part, float *sums)
{
    const int left = FULL ? (int)TSR_OCTET : part.left;
    float xs[TOKENS][TSR_OCTET], x_sums[TOKENS];
    TSR_UNROLL
    for (int t = 0; t < TOKENS; t++) {
        tsr_load_floats(x[t] + part.at, left, FULL || a.wide_x, xs[t]);
        x_sums[t] = 0.0f;
        TSR_UNROLL
        for (int i = 0; i < (tsr_weight<TYPE>::minimum ? (int)TSR_OCTET : 0); i++)
            x_sums[t] = x_sums[t] + xs[t][i];
    }
    TSR_UNROLL
    for (int r = 0; r < OCTETS_ROWS; r++) {
        tsr_octet o;
        tsr_octet_load<TYPE>(w[r], part.at, left, FULL || a.wide_w, &o, a.stored);
        TSR_UNROLL
        for (int t = 0; t < TOKENS; t++)
            sums[r * TOKENS + t] = tsr_octet_dot<TYPE>(o, xs[t], x_sums[t]);
    }
}

/* The granule sums of this lane's outputs (one or two of N) for one unit: a granule, or two if narrow. */
template <tsr_type TYPE, int TOKENS>
TSR_DEVICE void octets_unit(const octets_args &a, const unsigned char *const *w, const float *const *x,
                            int64_t unit, int lane, float *granule_sums)
{
    constexpr int N = OCTETS_ROWS * TOKENS;
    const int64_t begin = (a.narrow ? 2 * unit + lane / 16 : unit) * a.granule;
    const int64_t end = begin + a.granule < a.k ? begin + a.granule : a.k;
    const int64_t chunks = a.narrow ? 1 : (end - begin + OCTETS_CHUNK - 1) / OCTETS_CHUNK;
    const int first = (a.narrow ? lane % 16 : lane) * TSR_OCTET;
    /* Whether chunks may be full, and the end of the first chunk if it is full; the same in all lanes. */
    const bool wide = a.wide_x && a.wide_w && (!a.narrow || a.granule == OCTETS_CHUNK / 2);
    const int64_t last = (a.narrow ? 2 * unit : unit) * a.granule + OCTETS_CHUNK;
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t at = begin + c * OCTETS_CHUNK + first;
        const octets_part part = {at, tsr_octet_length(end - at)};
        float sums[N];
        if (wide && last + c * OCTETS_CHUNK <= a.k && (a.narrow || (c + 1) * OCTETS_CHUNK <= a.granule))
            octets_sums<TYPE, TOKENS, true>(a, w, x, part, sums);
        else
            octets_sums<TYPE, TOKENS, false>(a, w, x, part, sums);
        tsr_tree_sum<N>(sums, lane, a.narrow);
        TSR_UNROLL
        for (int i = 0; i < (N == 32 ? 2 : 1); i++)
            granule_sums[i] = c == 0 ? sums[i] : granule_sums[i] + sums[i];
    }
}

/* Add up the warps' totals of output o and store it. A narrow warp's two halves have a total each. */
template <int N, int SLOTS, typename Total>
TSR_DEVICE Total octets_total(const Total (*totals)[SLOTS][TSR_WARP], int o, bool narrow)
{
    const int lane = tsr_tree_lane<N>(o, narrow), slot = tsr_tree_slot<N>(o, narrow);
    Total strand[OCTETS_WARPS];
    TSR_UNROLL
    for (int i = 0; i < OCTETS_WARPS; i++)
        strand[i] = narrow ? totals[i][slot][lane] + totals[i][slot][lane + 16] : totals[i][slot][lane];
    return (strand[0] + strand[1]) + (strand[2] + strand[3]);
}

/* The work of a block. */
template <tsr_type TYPE, int TOKENS> TSR_DEVICE void octets_block(const octets_args &a)
{
    constexpr int N = OCTETS_ROWS * TOKENS;
    __shared__ int64_t shared_fixed[OCTETS_WARPS][2][TSR_WARP];
    __shared__ float shared_float[OCTETS_WARPS][1][TSR_WARP];
    const int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    const int64_t tiles = (a.n_tokens + TOKENS - 1) / TOKENS; /* neighbouring blocks share weights */
    const int64_t row = blockIdx.x / tiles * OCTETS_ROWS, token = blockIdx.x % tiles * TOKENS;

    /* Rows and tokens beyond the last repeat it; their results are dropped. */
    const unsigned char *w[OCTETS_ROWS];
    const float *x[TOKENS];
    TSR_UNROLL
    for (int r = 0; r < OCTETS_ROWS; r++)
        w[r] = a.w + (size_t)(row + r < a.n_rows ? row + r : a.n_rows - 1) * a.w_stride;
    TSR_UNROLL
    for (int t = 0; t < TOKENS; t++)
        x[t] = a.x + (token + t < a.n_tokens ? token + t : a.n_tokens - 1) * a.x_stride;

    const int64_t granules = (a.k + a.granule - 1) / a.granule;
    const int64_t units = a.narrow ? (granules + 1) / 2 : granules;
    int64_t fixed[2] = {0, 0};
    float plain = 0.0f; /* f32 sums are never narrow: one slot */
    bool bad = false;
    for (int64_t unit = warp; unit < units; unit += OCTETS_WARPS) {
        float sums[2] = {0.0f, 0.0f};
        octets_unit<TYPE, TOKENS>(a, w, x, unit, lane, sums);
        if (!a.exact) {
            plain = plain + sums[0];
            continue;
        }
        fixed[0] += tsr_fixed_of(sums[0], a.limit, &bad);
        if (N == 32 && a.narrow) /* otherwise the second slot is unused by the tree */
            fixed[1] += tsr_fixed_of(sums[1], a.limit, &bad);
    }
    if (bad)
        tsr_fault_raise(a.fault);
    shared_fixed[warp][0][lane] = fixed[0];
    shared_fixed[warp][1][lane] = fixed[1];
    shared_float[warp][0][lane] = plain;
    __syncthreads();
    const int o = threadIdx.x;
    const int64_t r = row + o / TOKENS, t = token + o % TOKENS;
    if (o >= N || r >= a.n_rows || t >= a.n_tokens)
        return;
    if (a.exact)
        static_cast<int64_t *>(a.y)[t * a.y_stride + r] = octets_total<N, 2>(shared_fixed, o, a.narrow);
    else
        tsr_put_sum(a.y, t * a.y_stride + r, octets_total<N, 1>(shared_float, o, false), a.bf16);
}

/* Least blocks of an SM; 0 is no hint. Without the hint, the compiler spills with 4 tokens, to have 4 blocks
 * in an SM, and octets with code books with one, to have 8. */
constexpr int octets_blocks(tsr_type type, int tokens)
{
    return tokens == 4 ? 3 : tokens == 1 && type == TSR_CODE_TYPE ? 4 : 0;
}

template <tsr_type TYPE, int TOKENS>
static __global__ void __launch_bounds__(OCTETS_WARPS *TSR_WARP, octets_blocks(TYPE, TOKENS))
    octets_kernel(const octets_args a)
{
    tsr_wait_for_previous();
    tsr_start_next(); /* of siblings: they do not wait for the activations */
    octets_block<TYPE, TOKENS>(a);
}

/* Enqueue the kernel for one type and tile width. */
template <tsr_type TYPE, int TOKENS>
static inline tsr_status octets_enqueue(const octets_args &a, const tsr_cuda_stream *s)
{
    const int64_t tiles = (a.n_tokens + TOKENS - 1) / TOKENS;
    const int64_t blocks = (a.n_rows + OCTETS_ROWS - 1) / OCTETS_ROWS * tiles;
    return tsr_cuda_result(TSR_LAUNCH_EARLY((octets_kernel<TYPE, TOKENS>), dim3((unsigned)blocks),
                                            dim3(OCTETS_WARPS * TSR_WARP), 0, s, a),
                           "octets_kernel");
}

static inline octets_args octets_args_of(const tsr_op_mul_mat *op, const tsr_cuda_stream *s)
{
    octets_args a = {};
    a.w = static_cast<const unsigned char *>(op->w);
    a.w_stride = op->w_stride;
    a.x = op->x;
    a.x_stride = op->x_stride;
    a.y = op->y;
    a.y_stride = op->y_stride;
    a.n_rows = op->n_rows;
    a.k = op->k;
    a.n_tokens = op->n_tokens;
    a.exact = op->partial && op->reduce == TSR_REDUCE_EXACT;
    a.bf16 = op->partial && op->reduce == TSR_REDUCE_BF16;
    a.granule = a.exact ? op->granule : (int64_t)OCTETS_CHUNK;
    a.narrow = a.exact && op->granule <= OCTETS_CHUNK / 2;
    a.limit = op->limit;
    const bool octets_aligned = a.granule % TSR_OCTET == 0;
    a.wide_w = octets_aligned && tsr_wide_rows(op->w, op->w_stride);
    a.wide_x = octets_aligned && tsr_wide_rows(op->x, (size_t)op->x_stride * sizeof(float));
    a.stored = op->type;
    a.fault = tsr_fault_of(s);
    return a;
}

template <tsr_type TYPE>
static inline tsr_status mul_mat_octets(const tsr_op_mul_mat *op, const tsr_cuda_stream *s)
{
    const octets_args a = octets_args_of(op, s);
    if (a.n_tokens == 1)
        return octets_enqueue<TYPE, 1>(a, s);
    return a.n_tokens <= 4 ? octets_enqueue<TYPE, 4>(a, s) : octets_enqueue<TYPE, OCTETS_TOKENS>(a, s);
}

#endif
