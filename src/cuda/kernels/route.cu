/* route: which experts each token uses (core/op.h, core/routing.h).
 *
 * A warp chooses for a token, lane l reading logits l, l + 32, ... In n_used passes it takes the best
 * expert that is worse than the previous one, so no marks are needed. With a bias, the keys are computed
 * from the logits again in every pass. Groups of experts are scored by the whole warp, one after another, and
 * their scores chosen from in the same way. One block then lists the slots by expert: it counts them with
 * atomics, whose order does not matter, and a warp per expert collects them in order. With few tokens one
 * block does both. */
#include "cuda/kernels/common.cuh"

enum { ROUTE_THREADS = 1024, ROUTE_FEW_THREADS = 256 }; /* of a block; the second for few tokens */

struct route_pick {
    float key;
    int index; /* INT32_MAX: none */
};

/* Larger keys first, then lower indices. */
TSR_DEVICE bool route_better(const route_pick &a, const route_pick &b)
{
    return a.key > b.key || (a.key == b.key && a.index < b.index);
}

/* One token's logits, their top, and the divisor that turns parts into probabilities; and the groups of
 * experts that compete, a bit each. */
struct route_row {
    const float *x;
    float top, sum;
    uint64_t open;
};

/* A probability before the division by a softmax's sum. */
TSR_DEVICE float route_part(const tsr_op_route &op, const route_row &row, int e)
{
    const float x = row.x[e];
    if (op.gating == TSR_GATING_SQRT_SOFTPLUS)
        return sqrtf(tsr_softplus(x));
    return op.gating == TSR_GATING_SIGMOID ? 1.0f / (1.0f + expf(-x)) : expf(x - row.top);
}

TSR_DEVICE route_row route_row_of(const tsr_op_route &op, int64_t t, int lane)
{
    const int n = (int)op.routing.n_experts;
    route_row row = {op.logits + t * n, -INFINITY, 1.0f, 0};
    for (int e = lane; e < n; e += TSR_WARP)
        row.top = fmaxf(row.top, row.x[e]);
    row.top = tsr_warp_max(row.top);
    if (op.gating != TSR_GATING_SOFTMAX || (op.normalize && !op.bias))
        return row;
    float part = 0.0f;
    for (int e = lane; e < n; e += TSR_WARP)
        part = part + expf(row.x[e] - row.top);
    row.sum = tsr_warp_sum(part);
    return row;
}

/* The key by which experts are chosen. A NaN is less than any number. */
TSR_DEVICE float route_key(const tsr_op_route &op, const route_row &row, int e)
{
    const bool probable = op.bias || (op.n_groups > 1 && op.gating != TSR_GATING_SOFTMAX);
    float key = probable ? route_part(op, row, e) / row.sum : row.x[e];
    if (op.bias)
        key = key + op.bias[e];
    return key == key ? key : -INFINITY;
}

/* The best of all lanes' picks; the same in all lanes. A warp finds the largest of 32 integers in one
 * instruction, so keys become integers of the same order, both zeros the same one. A token's choices follow
 * one another, and a choice by shuffles would take three times as long. */
TSR_DEVICE route_pick route_best(const route_pick &pick)
{
    const float key = pick.key + 0.0f;
    uint32_t bits;
    memcpy(&bits, &key, sizeof bits);
    const uint32_t order = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
    const uint32_t top = __reduce_max_sync(TSR_ALL_LANES, order);
    const uint32_t index =
        __reduce_min_sync(TSR_ALL_LANES, order == top ? (uint32_t)pick.index : (uint32_t)INT32_MAX);
    return {tsr_bits_to_f32(top ^ (top >> 31 ? 0x80000000u : 0xffffffffu)), (int)index};
}

/* The best expert after `last` in that order; the same in all lanes. */
TSR_DEVICE route_pick route_next(const tsr_op_route &op, const route_row &row, const route_pick &last,
                                 int lane)
{
    const int size = op.n_groups > 1 ? (int)(op.routing.n_experts / op.n_groups) : 1;
    route_pick best = {-INFINITY, INT32_MAX};
    for (int e = lane; e < (int)op.routing.n_experts; e += TSR_WARP) {
        const route_pick pick = {route_key(op, row, e), e};
        if (op.n_groups > 1 && (row.open >> (e / size) & 1) == 0)
            continue;
        if (route_better(last, pick) && route_better(pick, best))
            best = pick;
    }
    return route_best(best);
}

/* The score of a group of `size` experts; the same in all lanes. It is never NaN, which compares with
 * nothing: a group of infinity and -infinity is among the worst, so that n_groups_used groups are found. */
TSR_DEVICE float route_score(const tsr_op_route &op, const route_row &row, int group, int size, int lane)
{
    float first = -INFINITY, second = -INFINITY;
    for (int i = lane; i < size; i += TSR_WARP) {
        const float key = route_key(op, row, group * size + i);
        second = fmaxf(second, fminf(first, key));
        first = fmaxf(first, key);
    }
    TSR_UNROLL
    for (int mask = 1; mask < TSR_WARP; mask *= 2) {
        const float other = __shfl_xor_sync(TSR_ALL_LANES, first, mask);
        const float next = __shfl_xor_sync(TSR_ALL_LANES, second, mask);
        second = fmaxf(fmaxf(second, next), fminf(first, other));
        first = fmaxf(first, other);
    }
    const float score = size > 1 && op.gating != TSR_GATING_SOFTMAX ? first + second : first;
    return score == score ? score : -INFINITY;
}

/* The groups that compete. Lane l has the scores of groups l and l + 32. */
TSR_DEVICE uint64_t route_open(const tsr_op_route &op, const route_row &row, int lane)
{
    const int n_groups = (int)op.n_groups, size = (int)(op.routing.n_experts / op.n_groups);
    float low = 0.0f, high = 0.0f;
    uint64_t open = 0;
    route_pick last = {INFINITY, -1};
    for (int g = 0; g < n_groups; g++) {
        const float score = route_score(op, row, g, size, lane);
        if (g % TSR_WARP == lane)
            (g < TSR_WARP ? low : high) = score;
    }
    for (int j = 0; j < (int)op.n_groups_used; j++) {
        route_pick best = {-INFINITY, INT32_MAX};
        for (int g = lane; g < n_groups; g += TSR_WARP) {
            const route_pick pick = {g < TSR_WARP ? low : high, g};
            if (route_better(last, pick) && route_better(pick, best))
                best = pick;
        }
        last = route_best(best);
        open |= (uint64_t)1 << last.index;
    }
    return open;
}

/* Choose the experts of one token, by a warp. */
TSR_DEVICE void route_token(const tsr_op_route &op, int64_t t, int lane)
{
    const tsr_routing &r = op.routing;
    const int n_used = (int)r.n_used;
    route_row row = route_row_of(op, t, lane);
    if (op.n_groups > 1)
        row.open = route_open(op, row, lane);
    int32_t *const expert = r.expert + t * n_used;
    float *const weight = r.weight + t * n_used;
    const int64_t id = op.table && op.ids[t] >= 0 && op.ids[t] < op.n_ids ? op.ids[t] : 0;
    float sum = TSR_ROUTE_LEAST_SUM;
    route_pick pick = {INFINITY, -1}; /* before all experts */
    for (int j = 0; j < n_used; j++) {
        if (op.table) {
            const int32_t e = op.table[id * n_used + j];
            pick.index = e >= 0 && e < (int)op.routing.n_experts ? e : 0;
        } else {
            pick = route_next(op, row, pick, lane);
        }
        const float part = route_part(op, row, pick.index);
        sum = sum + part;
        if (lane == 0) {
            expert[j] = pick.index;
            weight[j] = part;
        }
    }
    const float factor = op.scale / (op.normalize ? sum : row.sum);
    for (int j = 0; j < n_used && lane == 0; j++)
        weight[j] = weight[j] * (op.factors ? factor * op.factors[expert[j]] : factor);
}

/* Turn begin[e + 1] from the number of e's slots into the sum up to it, and list the experts with slots. A
 * warp takes 32 experts at a time: one thread would wait for memory between one expert and the next. */
TSR_DEVICE void route_begin(const tsr_routing &r, int lane)
{
    int n_slots = 0, n_touched = 0;
    for (int first = 0; first < (int)r.n_experts; first += TSR_WARP) {
        const int e = first + lane, count = e < (int)r.n_experts ? r.begin[e + 1] : 0;
        const int up_to = tsr_warp_sum_up_to(count, lane);
        const uint32_t touched = __ballot_sync(TSR_ALL_LANES, count > 0);
        if (count > 0)
            r.touched[n_touched + __popc(touched & ((1u << lane) - 1))] = e;
        if (e < (int)r.n_experts)
            r.begin[e + 1] = n_slots + up_to;
        n_slots += __shfl_sync(TSR_ALL_LANES, up_to, TSR_WARP - 1);
        n_touched += __popc(touched);
    }
    if (lane == 0)
        *r.n_touched = n_touched;
}

TSR_DEVICE void route_count(const tsr_routing &r)
{
    const int64_t n_slots = r.n_tokens * r.n_used;
    for (int64_t e = threadIdx.x; e <= r.n_experts; e += blockDim.x)
        r.begin[e] = 0;
    __syncthreads();
    for (int64_t s = threadIdx.x; s < n_slots; s += blockDim.x)
        atomicAdd(&r.begin[r.expert[s] + 1], 1);
    __syncthreads();
    if (threadIdx.x < TSR_WARP)
        route_begin(r, (int)threadIdx.x);
    __syncthreads();
}

TSR_DEVICE void route_collect(const tsr_routing &r)
{
    const int64_t n_slots = r.n_tokens * r.n_used;
    const int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP, n_touched = *r.n_touched;
    for (int i = warp; i < n_touched; i += blockDim.x / TSR_WARP) {
        const int32_t e = r.touched[i];
        int32_t at = r.begin[e];
        for (int64_t s = 0; s < n_slots; s += TSR_WARP) {
            const bool mine = s + lane < n_slots && r.expert[s + lane] == e;
            const uint32_t all = __ballot_sync(TSR_ALL_LANES, mine);
            if (mine)
                r.order[at + __popc(all & ((1u << lane) - 1))] = (int32_t)(s + lane);
            at += __popc(all);
        }
    }
}

static __global__ void route_choose_kernel(const tsr_op_route op)
{
    tsr_begin_early();
    const int64_t step = (int64_t)gridDim.x * blockDim.x / TSR_WARP;
    for (int64_t t = tsr_flat_begin() / TSR_WARP; t < op.routing.n_tokens; t += step)
        route_token(op, t, threadIdx.x % TSR_WARP);
}

static __global__ void __launch_bounds__(ROUTE_THREADS) route_group_kernel(const tsr_op_route op)
{
    tsr_begin_early();
    route_count(op.routing);
    route_collect(op.routing);
}

/* Choosing and grouping, for as many tokens as a block has warps. */
static __global__ void __launch_bounds__(ROUTE_FEW_THREADS) route_kernel(const tsr_op_route op)
{
    const int warp = threadIdx.x / TSR_WARP;
    tsr_begin_early();
    if (warp < op.routing.n_tokens)
        route_token(op, warp, threadIdx.x % TSR_WARP);
    __syncthreads();
    route_count(op.routing);
    route_collect(op.routing);
}

extern "C" tsr_status tsr_cuda_route(const tsr_op_route *op, const tsr_cuda_stream *s)
{
    const int64_t n = op->routing.n_tokens;
    if (n == 0)
        return TSR_OK;
    if (n <= ROUTE_FEW_THREADS / TSR_WARP)
        return tsr_cuda_result(TSR_LAUNCH_EARLY(route_kernel, dim3(1), dim3(ROUTE_FEW_THREADS), 0, s, *op),
                               "route_kernel");
    tsr_status status = tsr_cuda_result(TSR_LAUNCH_EARLY(route_choose_kernel, tsr_flat_grid(n * TSR_WARP, s),
                                                         dim3(TSR_FLAT_THREADS), 0, s, *op),
                                        "route_choose_kernel");
    if (status != TSR_OK)
        return status;
    return tsr_cuda_result(TSR_LAUNCH_EARLY(route_group_kernel, dim3(1), dim3(ROUTE_THREADS), 0, s, *op),
                           "route_group_kernel");
}
