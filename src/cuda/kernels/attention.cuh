/* Attention: the common part of the kernel for one token and the kernel for tiles of a prompt. attention.cu
 * says how positions are divided, and in which order everything is added. */
#ifndef TSR_CUDA_KERNELS_ATTENTION_CUH
#define TSR_CUDA_KERNELS_ATTENTION_CUH

#include "cuda/kernels/kv.cuh"
#include "cuda/kernels/mul_mat/quant.cuh"

enum {
    SEGMENT = 128,
    GROUP_SEGMENTS = 2, /* enough groups to fill a card, few enough that their results fit into scratch */
    GROUP = GROUP_SEGMENTS * SEGMENT
};

struct attention_args {
    tsr_op_attention op;
    int64_t share, parts; /* query heads per KV head; blocks that share them */
    bool wide_k;          /* keys are aligned for wide loads: tsr_wide_rows() */
    bool full_k;          /* and their octets are whole, or of a type that is never wide */
    /* NULL: merge in place. Otherwise results (top, sum, output) of a round's groups, and of all previous
     * rounds: [n_tokens][n_heads][round_groups][v_dim + 2] and [n_tokens][n_heads][v_dim + 2] */
    float *groups, *so_far;
    uint32_t *counters; /* of blocks that have left their groups, by item; NULL: combine_kernel comes next */
    int64_t round_groups;
    int64_t first_group; /* of the round, counted from a token's first group */
    int64_t tile_tokens; /* 0: no tiles (attention_tile.cu) */
    bool wide_v;
    bool staged; /* attention.cu copies keys and values to shared memory before it uses them */
    bool wide_q; /* queries are aligned for wide loads */
    int span;    /* attention/halves.cuh; 0: the op is not of that kind */
    float unit;  /* the weights' factor */
};

/* The positions [begin, end) that a token sees. */
struct attention_range {
    int64_t begin, end;
};

TSR_DEVICE attention_range range_of(const tsr_op_attention &op, int64_t t)
{
    const int64_t position = op.index.position[t];
    if (op.window == 0 || position < op.window)
        return {0, position + 1};
    return {op.chunked ? position / op.window * op.window : position - op.window + 1, position + 1};
}

TSR_DEVICE int64_t groups_of(const attention_range &range)
{
    return (range.end + GROUP - 1) / GROUP - range.begin / GROUP;
}

/* Those of the other keys. */
TSR_DEVICE attention_range more_of(const tsr_op_attention &op, int64_t t)
{
    return {0, op.more.kv.base ? tsr_kv_n_seen(op.more.kv, op.index.position[t]) : 0};
}

/* Groups of the op's own keys, then of the other keys. */
TSR_DEVICE int64_t all_groups(const tsr_op_attention &op, int64_t t)
{
    return groups_of(range_of(op, t)) + groups_of(more_of(op, t));
}

/* The merged state of the pieces so far (segments of a group, or groups), and the factors for their output
 * and for the output of the last piece. */
struct attention_merge {
    float top, sum, keep, take;
};

TSR_DEVICE attention_merge merge_nothing(void)
{
    return {-INFINITY, 0.0f, 0.0f, 0.0f};
}

/* A piece without a selected position has a sum of zero, and changes nothing. */
TSR_DEVICE void merge_piece(attention_merge *m, float top, float sum)
{
    if (sum == 0.0f) {
        m->keep = 1.0f;
        m->take = 0.0f;
        return;
    }
    const float higher = fmaxf(m->top, top);
    m->keep = expf(m->top - higher);
    m->take = expf(top - higher);
    m->sum = fmaf(m->sum, m->keep, sum * m->take);
    m->top = higher;
}

TSR_DEVICE float merge_output(const attention_merge &m, float before, float piece)
{
    return fmaf(before, m.keep, piece * m.take);
}

/* The factor of the outputs of `head` (of the heads held here): one over the sum of weights, to which its
 * sink is added. */
TSR_DEVICE float attention_end(const attention_args &a, int64_t head, attention_merge total)
{
    if (!a.op.sinks)
        return 1.0f / total.sum;
    merge_piece(&total, a.op.sinks[head], a.unit);
    return total.keep / total.sum;
}

static inline __host__ __device__ int64_t padded(int64_t dim)
{
    return (dim + TSR_OCTET - 1) / TSR_OCTET * TSR_OCTET;
}

TSR_DEVICE float attention_score(const tsr_op_attention &op, float product)
{
    const float score = product * op.scale, cap = op.softcap;
    return cap > 0.0f ? cap * tanhf(score / cap) : score;
}

/* Turn a query's scores of slots [from, to) of a segment, at scores[slot * stride], into weights, and merge
 * the top score and the sum of the weights into its group. Slots without a bit in `selected` (NULL: all have)
 * get a weight of 0. All lanes of a warp call it, with at least one slot. */
TSR_DEVICE void attention_weigh(float *scores, int stride, int from, int to, const uint32_t *selected,
                                attention_merge *group)
{
    const int lane = threadIdx.x % TSR_WARP;
    float weight[SEGMENT / TSR_WARP], top = -INFINITY, sum = 0.0f;
    TSR_UNROLL
    for (int i = 0; i < SEGMENT / TSR_WARP; i++) {
        const int slot = i * TSR_WARP + lane;
        const bool seen = slot >= from && slot < to && (!selected || (selected[i] >> lane & 1u));
        weight[i] = seen ? scores[slot * stride] : -INFINITY;
        top = fmaxf(top, weight[i]);
    }
    top = tsr_warp_max(top);
    TSR_UNROLL
    for (int i = 0; i < SEGMENT / TSR_WARP; i++) {
        const int slot = i * TSR_WARP + lane;
        if (slot < from || slot >= to)
            continue;
        weight[i] = expf(weight[i] - top);
        scores[slot * stride] = weight[i];
        sum = sum + weight[i];
    }
    sum = tsr_warp_sum(sum);
    if (lane == 0)
        merge_piece(group, top, sum);
}

/* Whether the tokens of the tile that contains t belong to one sequence, so that they can share keys and
 * values. If so, attention_tile.cu computes the tile, otherwise attention.cu computes its tokens. Known on
 * the card only. All lanes of a warp call it. */
TSR_DEVICE bool is_tile(const attention_args &a, int64_t t)
{
    if (a.tile_tokens == 0)
        return false;
    const int tokens = (int)a.tile_tokens, first = tsr_divide(t, tokens).of * tokens;
    const int left = (int)a.op.n_tokens - first, n = left < tokens ? left : tokens;
    bool same = true;
    for (int i = threadIdx.x % TSR_WARP; i < n; i += TSR_WARP)
        same = same && a.op.index.seq_row[first + i] == a.op.index.seq_row[first];
    return __all_sync(TSR_ALL_LANES, same) != 0;
}

/* -- merging groups that blocks have left in scratch memory -- */

/* They are merged in the order of positions: what merge_piece() and merge_output() compute group after group.
 * A warp takes 64 elements of a head, and the factors of 32 groups at a time, one per lane, so that only sums
 * are added one after another. Any block may do it: the last of those that share the groups of a token's
 * heads does, as a counter tells, so that a step has no kernel for it. With very many groups it takes longer
 * than a kernel with a block per head: by count, as long with 32K positions. */

enum {
    COMBINE_ELEMENTS = 2, /* of a lane */
    COMBINE_DIMS = COMBINE_ELEMENTS * TSR_WARP,
    COMBINE_LOADS = 8 /* groups whose elements are loaded together */
};

/* A group's sum of weights, and the factors for the output so far and for the group's. */
struct combine_factors {
    float keep, take, sum;
};

/* Those of 32 groups, of each in one lane; `here`: the lane has one. *top: the highest score so far,
 * before and after. A group without a selected position has a sum of zero, and changes nothing. */
TSR_DEVICE combine_factors combine_factors_of(const float *group, bool here, int lane, float *top)
{
    const float mine = here ? group[0] : -INFINITY, sum = here ? group[1] : 0.0f;
    float higher = sum == 0.0f ? -INFINITY : mine; /* of the lanes up to this one */
    TSR_UNROLL
    for (int step = 1; step < TSR_WARP; step *= 2) {
        const float other = __shfl_up_sync(TSR_ALL_LANES, higher, step);
        higher = lane >= step ? fmaxf(higher, other) : higher;
    }
    const float lower = __shfl_up_sync(TSR_ALL_LANES, higher, 1);
    const float before = lane == 0 ? *top : fmaxf(*top, lower), after = fmaxf(before, mine);
    *top = fmaxf(*top, __shfl_sync(TSR_ALL_LANES, higher, TSR_WARP - 1));
    if (sum == 0.0f)
        return {1.0f, 0.0f, sum};
    return {expf(before - after), expf(mine - after), sum};
}

/* A warp's head, its groups, and the lane's elements of it. */
struct combine_item {
    const float *groups;
    int n, stride;
    int at; /* of the lane's first element */
    bool here[COMBINE_ELEMENTS];
};

/* Merge groups [run, run + 32), as far as they are there. */
TSR_DEVICE void combine_run(const combine_item &item, int run, attention_merge *total,
                            float out[COMBINE_ELEMENTS])
{
    const int lane = threadIdx.x % TSR_WARP, left = item.n - run;
    const combine_factors factors =
        combine_factors_of(item.groups + (int64_t)(run + lane) * item.stride, lane < left, lane, &total->top);
    TSR_UNROLL_BY(1)
    for (int first = 0; first < TSR_WARP && first < left; first += COMBINE_LOADS) {
        const float *values = item.groups + (int64_t)(run + first) * item.stride + 2 + item.at;
        float value[COMBINE_LOADS][COMBINE_ELEMENTS];
        TSR_UNROLL
        for (int i = 0; i < COMBINE_LOADS; i++)
            TSR_UNROLL
        for (int k = 0; k < COMBINE_ELEMENTS; k++)
            value[i][k] = first + i < left && item.here[k] ? values[i * item.stride + k * TSR_WARP] : 0.0f;
        TSR_UNROLL
        for (int i = 0; i < COMBINE_LOADS; i++) {
            const float keep = __shfl_sync(TSR_ALL_LANES, factors.keep, first + i),
                        take = __shfl_sync(TSR_ALL_LANES, factors.take, first + i),
                        sum = __shfl_sync(TSR_ALL_LANES, factors.sum, first + i);
            if (first + i < left)
                total->sum = fmaf(total->sum, keep, sum * take);
            TSR_UNROLL
            for (int k = 0; k < COMBINE_ELEMENTS; k++)
                out[k] = first + i < left ? fmaf(out[k], keep, value[i][k] * take) : out[k];
        }
    }
}

/* A warp merges elements [first, first + COMBINE_DIMS) of a token's head. ended: the top score and the
 * sum of a head whose groups go on in the next round; NULL: another warp stores them. */
TSR_DEVICE void combine_warp(const attention_args &a, int64_t t, int64_t head, int first, bool ends,
                             float *ended)
{
    const int lane = threadIdx.x % TSR_WARP, v_dim = (int)a.op.kv.v_dim, stride = v_dim + 2;
    const int64_t row = t * a.op.n_heads + head, left = all_groups(a.op, t) - a.first_group;
    float *const so_far = a.so_far + row * stride, *const y = a.op.y + row * v_dim;
    combine_item item = {a.groups + row * a.round_groups * stride,
                         (int)(left < a.round_groups ? left : a.round_groups), stride, first + lane};
    attention_merge total = merge_nothing();
    float out[COMBINE_ELEMENTS];
    if (a.first_group > 0) {
        total.top = so_far[0];
        total.sum = so_far[1];
    }
    TSR_UNROLL
    for (int k = 0; k < COMBINE_ELEMENTS; k++) {
        item.here[k] = item.at + k * TSR_WARP < v_dim;
        out[k] = a.first_group > 0 && item.here[k] ? so_far[2 + item.at + k * TSR_WARP] : 0.0f;
    }
    TSR_UNROLL_BY(1)
    for (int run = 0; run < item.n; run += TSR_WARP)
        combine_run(item, run, &total, out);
    const float factor = ends ? attention_end(a, head, total) : 1.0f;
    TSR_UNROLL
    for (int k = 0; k < COMBINE_ELEMENTS; k++)
        if (item.here[k])
            (ends ? y : so_far + 2)[item.at + k * TSR_WARP] = out[k] * factor;
    if (ended && lane == 0) {
        ended[0] = total.top;
        ended[1] = total.sum;
    }
}

/* All threads of a block merge the groups of token t's heads from first_head on. The round that has the
 * last group writes the result. shared: two floats per head. */
TSR_DEVICE void attention_combine(const attention_args &a, int64_t t, int64_t first_head, int n_heads,
                                  float *shared)
{
    const int warps = blockDim.x / TSR_WARP, slices = ((int)a.op.kv.v_dim + COMBINE_DIMS - 1) / COMBINE_DIMS;
    const bool ends = all_groups(a.op, t) <= a.first_group + a.round_groups;
    TSR_UNROLL_BY(1)
    for (int i = threadIdx.x / TSR_WARP; i < n_heads * slices; i += warps) {
        const int head = i / slices, slice = i % slices;
        combine_warp(a, t, first_head + head, slice * COMBINE_DIMS, ends,
                     slice == 0 ? shared + 2 * head : NULL);
    }
    if (ends)
        return;
    __syncthreads(); /* no warp reads the sums of the previous rounds any more */
    for (int i = threadIdx.x; i < 2 * n_heads; i += blockDim.x)
        a.so_far[(t * a.op.n_heads + first_head + i / 2) * (a.op.kv.v_dim + 2) + i % 2] = shared[i];
}

/* The groups of token t that blocks leave in this round. Of a single one halves_token_kernel writes the
 * result. */
TSR_DEVICE int combine_groups(const attention_args &a, int64_t t)
{
    const int64_t all = all_groups(a.op, t), left = all - a.first_group;
    if (left <= 0 || is_tile(a, t) || (a.span > 0 && all == 1))
        return 0;
    return (int)(left < a.round_groups ? left : a.round_groups);
}

/* The same by the last of the blocks that share an item's groups: a token, and up to `most` heads that
 * share a KV head. All blocks call it that have left groups. The item is found anew, so that it takes no
 * registers until here. */
TSR_DEVICE void attention_combine_last(const attention_args &a, int most, float *shared)
{
    const tsr_quotient row = tsr_divide(tsr_not_kept(blockIdx.x), a.parts),
                       token = tsr_divide(row.of, a.op.kv.n_heads);
    const uint32_t groups = (uint32_t)combine_groups(a, token.of);
    const int share = (int)a.share, first = row.rest * most, rest = share - first;
    if (blockIdx.y < groups &&
        tsr_is_last_of(a.counters + blockIdx.x, groups < gridDim.y ? groups : gridDim.y))
        attention_combine(a, token.of, token.rest * share + first, rest < most ? rest : most, shared);
}

/* Tokens of a tile; 0 if tiles do not help this op, or are too large for this card. */
int64_t tsr_cuda_attention_tile_tokens(const tsr_op_attention *op, const tsr_cuda_stream *s);

/* Compute all tiles whose tokens belong to one sequence. a.tile_tokens > 0. */
tsr_status tsr_cuda_attention_tiles(const attention_args &a, const tsr_cuda_stream *s);

/* -- attention on tensor cores: attention/halves.cuh -- */

enum {
    HALVES_ROWS = 16,         /* queries of a product */
    HALVES_UNIT_F16 = 1 << 14 /* a.unit with F16 */
};

/* How many positions of a group halves_token.cu has in shared memory together: a.span; 0: this card has no
 * room for the op, or the op is of another kind. The op's fields and the card alone decide, so that all
 * tokens of a layer are computed in the same way. */
int tsr_cuda_attention_halves_span(const attention_args &a, const tsr_cuda_stream *s);

tsr_status tsr_cuda_attention_halves(const attention_args &a, dim3 grid, const tsr_cuda_stream *s);

/* As tsr_cuda_attention_tile_tokens() and tsr_cuda_attention_tiles(), where a.span > 0. */
int64_t tsr_cuda_attention_halves_tile_tokens(const attention_args &a, const tsr_cuda_stream *s);
tsr_status tsr_cuda_attention_halves_tiles(const attention_args &a, const tsr_cuda_stream *s);

#endif
