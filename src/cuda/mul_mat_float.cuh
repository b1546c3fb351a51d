/* y[t][r] = sum_k w[r][k] x[t][k] with f32 activations: the kernel behind mul_mat_vec.cu.
 *
 * A block of four warps makes MUL_MAT_ROWS rows times TOKENS tokens of y. The K granules are dealt out to the
 * warps; inside a warp, lane l multiplies octet l of each chunk (kernels.h has the order of sums), decoding
 * an octet once for all tokens, and a chunk's sums over lanes are formed for all rows and tokens together
 * (tsr_tree_sum), which leaves each of up to 32 outputs in a lane of its own. With one token the pace is that
 * of memory: every warp has one load per row in flight, and a row's chunks are read by all four warps. No
 * shared memory is used for the operands: a chunk of weights is used by one warp only, and activations come
 * from the first-level cache.
 *
 * Granules of at most 128 elements are taken two at a time, one by each half of the warp ("narrow"). */
#ifndef TSR_CUDA_MUL_MAT_FLOAT_CUH
#define TSR_CUDA_MUL_MAT_FLOAT_CUH

#include "cuda/mul_mat.cuh"

enum {
    MUL_MAT_ROWS = 4,
    MUL_MAT_TOKENS = 8, /* most tokens of a block */
    MUL_MAT_WARPS = 4
};

/* One lane's part of one chunk: elements [at, at + left) of K. */
struct mul_mat_octet {
    int64_t at;
    int left;
};

/* Sums of the lane's octet for every (row, token) pair, tokens fastest. FULL: all lanes have eight elements
 * that may be loaded in wide pieces; then there is no branch, and the loads of all rows are under way at
 * once.
 */
template <tsr_type TYPE, int TOKENS, bool FULL>
TSR_DEVICE void mul_mat_octets(const mul_mat_args &a, const unsigned char *const *w, const float *const *x,
                               mul_mat_octet part, float *sums)
{
    const int left = FULL ? (int)TSR_OCTET : part.left;
    float xs[TOKENS][TSR_OCTET], x_sum[TOKENS];
    TSR_UNROLL
    for (int t = 0; t < TOKENS; t++) {
        tsr_load_floats(x[t] + part.at, left, FULL || a.wide_x, xs[t]);
        x_sum[t] = xs[t][0];
        if (tsr_weight<TYPE>::minimum)
            TSR_UNROLL
        for (int i = 1; i < TSR_OCTET; i++)
            x_sum[t] = x_sum[t] + xs[t][i];
    }
    TSR_UNROLL
    for (int r = 0; r < MUL_MAT_ROWS; r++) {
        tsr_octet o;
        tsr_octet_load<TYPE>(w[r], part.at, left, FULL || a.wide_w, &o);
        TSR_UNROLL
        for (int t = 0; t < TOKENS; t++)
            sums[r * TOKENS + t] = tsr_octet_dot<TYPE>(o, xs[t], x_sum[t]);
    }
}

/* The granule sums of this lane's outputs (one or two of N) for one unit: a granule, or two if narrow. */
template <tsr_type TYPE, int TOKENS>
TSR_DEVICE void mul_mat_unit(const mul_mat_args &a, const unsigned char *const *w, const float *const *x,
                             int64_t unit, int lane, float *granule_sums)
{
    constexpr int N = MUL_MAT_ROWS * TOKENS;
    const int64_t begin = (a.narrow ? 2 * unit + lane / 16 : unit) * a.granule;
    const int64_t end = begin + a.granule < a.k ? begin + a.granule : a.k;
    const int64_t chunks = a.narrow ? 1 : (end - begin + MUL_MAT_CHUNK - 1) / MUL_MAT_CHUNK;
    const int first = (a.narrow ? lane % 16 : lane) * TSR_OCTET;
    /* Whether chunks may be full, and where the first chunk ends if it is; the same in all lanes. */
    const bool wide = a.wide_x && (tsr_weight<TYPE>::never_wide || a.wide_w) &&
                      (!a.narrow || a.granule == MUL_MAT_CHUNK / 2);
    const int64_t last = (a.narrow ? 2 * unit : unit) * a.granule + MUL_MAT_CHUNK;
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t at = begin + c * MUL_MAT_CHUNK + first;
        const mul_mat_octet part = {at, tsr_octet_length(end - at)};
        float sums[N];
        if (wide && last + c * MUL_MAT_CHUNK <= a.k && (a.narrow || (c + 1) * MUL_MAT_CHUNK <= a.granule))
            mul_mat_octets<TYPE, TOKENS, true>(a, w, x, part, sums);
        else
            mul_mat_octets<TYPE, TOKENS, false>(a, w, x, part, sums);
        tsr_tree_sum<N>(sums, lane, a.narrow);
        TSR_UNROLL
        for (int i = 0; i < (N == 32 ? 2 : 1); i++)
            granule_sums[i] = c == 0 ? sums[i] : granule_sums[i] + sums[i];
    }
}

/* Add up the warps' totals of output o and store it. A narrow warp's two halves have a total each. */
template <int N, int SLOTS, typename Total>
TSR_DEVICE Total mul_mat_total(const Total (*totals)[SLOTS][TSR_WARP], int o, bool narrow)
{
    const int lane = tsr_tree_lane<N>(o, narrow), slot = tsr_tree_slot<N>(o, narrow);
    Total strand[MUL_MAT_WARPS];
    TSR_UNROLL
    for (int i = 0; i < MUL_MAT_WARPS; i++)
        strand[i] = narrow ? totals[i][slot][lane] + totals[i][slot][lane + 16] : totals[i][slot][lane];
    return (strand[0] + strand[1]) + (strand[2] + strand[3]);
}

template <tsr_type TYPE, int TOKENS>
__global__ void __launch_bounds__(MUL_MAT_WARPS *TSR_WARP) mul_mat_kernel(const mul_mat_args a)
{
    constexpr int N = MUL_MAT_ROWS * TOKENS;
    __shared__ int64_t shared_fixed[MUL_MAT_WARPS][2][TSR_WARP];
    __shared__ float shared_float[MUL_MAT_WARPS][1][TSR_WARP];
    const int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    const int64_t tiles = (a.n_tokens + TOKENS - 1) / TOKENS; /* neighbouring blocks share weights */
    const int64_t row = blockIdx.x / tiles * MUL_MAT_ROWS, token = blockIdx.x % tiles * TOKENS;

    /* Rows and tokens beyond the last repeat it; their results are dropped. */
    const unsigned char *w[MUL_MAT_ROWS];
    const float *x[TOKENS];
    TSR_UNROLL
    for (int r = 0; r < MUL_MAT_ROWS; r++)
        w[r] = a.w + (size_t)(row + r < a.n_rows ? row + r : a.n_rows - 1) * a.w_stride;
    TSR_UNROLL
    for (int t = 0; t < TOKENS; t++)
        x[t] = a.x + (token + t < a.n_tokens ? token + t : a.n_tokens - 1) * a.x_stride;

    const int64_t granules = (a.k + a.granule - 1) / a.granule;
    const int64_t units = a.narrow ? (granules + 1) / 2 : granules;
    int64_t fixed[2] = {0, 0};
    float plain = 0.0f; /* f32 sums are never narrow: one slot */
    bool bad = false;
    for (int64_t unit = warp; unit < units; unit += MUL_MAT_WARPS) {
        float sums[2] = {0.0f, 0.0f};
        mul_mat_unit<TYPE, TOKENS>(a, w, x, unit, lane, sums);
        if (!a.exact) {
            plain = plain + sums[0];
            continue;
        }
        fixed[0] += tsr_fixed_of(sums[0], a.limit, &bad);
        if (N == 32 && a.narrow) /* else the second slot holds the tree's leftovers */
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
        static_cast<int64_t *>(a.y)[t * a.y_stride + r] = mul_mat_total<N, 2>(shared_fixed, o, a.narrow);
    else
        static_cast<float *>(a.y)[t * a.y_stride + r] = mul_mat_total<N, 1>(shared_float, o, false);
}

/* Enqueue the kernel for one type and tile width. */
template <tsr_type TYPE, int TOKENS>
static inline tsr_status mul_mat_enqueue(const mul_mat_args &a, const tsr_cuda_stream *s)
{
    const int64_t tiles = (a.n_tokens + TOKENS - 1) / TOKENS;
    const int64_t blocks = (a.n_rows + MUL_MAT_ROWS - 1) / MUL_MAT_ROWS * tiles;
    return tsr_cuda_result(TSR_LAUNCH((mul_mat_kernel<TYPE, TOKENS>), dim3((unsigned)blocks),
                                      dim3(MUL_MAT_WARPS * TSR_WARP), 0, s->stream, a),
                           "mul_mat_kernel");
}

/* The same for a type known only now; X-macro FOR_EACH names the types that are compiled. */
#define MUL_MAT_CASE(constant) \
    case constant:             \
        return mul_mat_enqueue<constant, TOKENS>(a, s);

#define MUL_MAT_DEFINE_ENQUEUE(name, FOR_EACH)                                             \
    template <int TOKENS>                                                                  \
    static tsr_status name(tsr_type type, const mul_mat_args &a, const tsr_cuda_stream *s) \
    {                                                                                      \
        switch (type) {                                                                    \
            FOR_EACH(MUL_MAT_CASE)                                                         \
        default:                                                                           \
            return tsr_cuda_result(cudaErrorNotSupported, "mul_mat_kernel");               \
        }                                                                                  \
    }

#endif
