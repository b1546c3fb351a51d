/* Merging the groups of a round that blocks have left in scratch memory, in the order of positions: what
 * merge_piece() and merge_output() compute group after group. A warp takes 64 elements of a head, and the factors
 * of 32 groups at a time, one per lane, so that only sums are added one after another. Any block may do it.
 *
 * The last of the blocks that share the groups of a token's heads does it, as a counter tells, so that a step has
 * no kernel for it. With very many groups that takes longer than a kernel with a block per head: by count, groups
 * of 32K positions come to the one block in the time that another kernel takes. */
#ifndef TSR_CUDA_KERNELS_ATTENTION_COMBINE_CUH
#define TSR_CUDA_KERNELS_ATTENTION_COMBINE_CUH

#include "cuda/kernels/attention.cuh"

enum {
    COMBINE_ELEMENTS = 2, /* of a lane */
    COMBINE_DIMS = COMBINE_ELEMENTS * TSR_WARP,
    COMBINE_LOADS = 8 /* groups whose elements are loaded together */
};

/* A group's sum of weights, and the factors for the output so far and for the group's. */
struct combine_factors {
    float keep, take, sum;
};

/* Those of 32 groups, of each in one lane; `here`: the lane has one. *top: the highest score so far, before and
 * after. A group without a selected position has a sum of zero, and changes nothing. */
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

/* A warp merges elements [first, first + COMBINE_DIMS) of a token's head. ended: the top score and the sum of a
 * head whose groups go on in the next round; NULL: another warp stores them. */
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

/* All threads of a block merge the groups of token t's heads from first_head on. The round that has the last
 * group writes the result. shared: two floats per head. */
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

/* The groups of token t that blocks leave in this round. Of a single one halves_token_kernel writes the result. */
TSR_DEVICE int combine_groups(const attention_args &a, int64_t t)
{
    const int64_t all = all_groups(a.op, t), left = all - a.first_group;
    if (left <= 0 || is_tile(a, t) || (a.span > 0 && all == 1))
        return 0;
    return (int)(left < a.round_groups ? left : a.round_groups);
}

/* The same by the last of the blocks that share an item's groups: a token, and up to `most` heads that share a KV
 * head. All blocks call it that have left groups. The item is found anew, so that it takes no registers until here. */
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

#endif
