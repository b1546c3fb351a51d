/* experts_down: half a warp computes one row (experts.cuh), since granules usually have 128 elements, 16
 * octets.
 *
 * With few tokens a block belongs to a token and goes through its slots. With many, under the exact
 * reduction, blocks work on tiles of slots of one expert and add their integers to y with atomics: with
 * integers the order does not matter. */
#include "cuda/kernels/experts/experts.cuh"
#include "cuda/kernels/experts/experts_q.h"

enum {
    DOWN_WARPS = 4,
    DOWN_LANES = TSR_WARP / 2,
    DOWN_ROWS = DOWN_WARPS * TSR_WARP / DOWN_LANES, /* of a block */
    DOWN_SLOTS = 8
};

struct experts_down_args {
    expert_rows down;
    tsr_expert_bias bias;
    tsr_expert_range held;
    tsr_routing routing;
    int64_t n_rows, k, granule;
    const float *x;
    float limit;
    bool exact, bf16, onto;
    void *y;
    tsr_fault_word fault;
};

/* Row and lane of a thread. Rows beyond the last repeat it, because all lanes take part in the sums. */
struct down_place {
    int64_t row;
    int lane;
    bool stores;
};

TSR_DEVICE down_place down_place_of(const experts_down_args &a)
{
    const int64_t row = (int64_t)blockIdx.x * DOWN_ROWS + threadIdx.x / DOWN_LANES;
    const down_place p = {row < a.n_rows ? row : a.n_rows - 1, (int)threadIdx.x % DOWN_LANES,
                          row < a.n_rows && threadIdx.x % DOWN_LANES == 0};
    return p;
}

/* The previous value of y, for the lane that stores the sum. Sums of other lanes are dropped; in rows beyond
 * the last they would read a y that another warp is storing. */
TSR_DEVICE int64_t down_before_exact(const experts_down_args &a, const down_place &p, int64_t at)
{
    return a.exact && a.onto && p.stores ? static_cast<const int64_t *>(a.y)[at] : 0;
}

TSR_DEVICE float down_before(const experts_down_args &a, const down_place &p, int64_t at)
{
    return a.exact || !a.onto || !p.stores ? 0.0f
           : a.bf16 ? tsr_from_16_bits<TSR_TYPE_BF16>(static_cast<const uint16_t *>(a.y)[at])
                    : static_cast<const float *>(a.y)[at];
}

/* One block per 8 rows and token. Octets with code books would spill without the hint; 0 is no hint. */
template <tsr_type TYPE>
static __global__ void __launch_bounds__(DOWN_WARPS *TSR_WARP, TYPE == TSR_CODE_TYPE ? 6 : 0)
    experts_down_token_kernel(const experts_down_args a)
{
    const tsr_routing &r = a.routing;
    const down_place p = down_place_of(a);
    bool bad = false;
    for (int64_t t = blockIdx.y; t < r.n_tokens; t += gridDim.y) {
        const int64_t at = t * a.n_rows + p.row;
        int64_t fixed = 0;
        float plain = down_before(a, p, at);
        for (int64_t slot = t * r.n_used; slot < (t + 1) * r.n_used; slot++) {
            const int32_t expert = r.expert[slot];
            if (expert < a.held.begin || expert >= a.held.end)
                continue;
            const unsigned char *row = expert_row(a.down, expert - a.held.begin, p.row);
            const float *const x = a.x + slot * a.k;
            for (int64_t begin = 0; begin < a.k; begin += a.granule) {
                const int64_t end = begin + a.granule < a.k ? begin + a.granule : a.k;
                float sum = 0.0f;
                expert_dot<TYPE, 1, DOWN_LANES>(row, a.down.wide, &x, begin, end, p.lane, &sum);
                const float weighted = expert_weight(r, slot) * expert_lanes_sum<DOWN_LANES>(sum);
                if (a.exact)
                    fixed += tsr_fixed_of(weighted, a.limit, &bad);
                else
                    plain = plain + weighted;
            }
            const float bias = expert_weight(r, slot) * expert_bias_at(a.bias, expert, p.row);
            if (a.exact)
                fixed += tsr_fixed_of(bias, a.limit, &bad);
            else
                plain = plain + bias;
        }
        if (p.stores && a.exact)
            static_cast<int64_t *>(a.y)[at] = fixed + down_before_exact(a, p, at);
        else if (p.stores)
            tsr_put_sum(a.y, at, plain, a.bf16);
    }
    if (bad)
        tsr_fault_raise(a.fault);
}

/* One block per 8 rows and tile. */
template <tsr_type TYPE>
static __global__ void __launch_bounds__(DOWN_WARPS *TSR_WARP)
    experts_down_tile_kernel(const experts_down_args a)
{
    const tsr_routing &r = a.routing;
    const down_place p = down_place_of(a);
    bool bad = false;
    for (int64_t index = blockIdx.y;; index += gridDim.y) {
        const expert_tile tile = expert_tile_at(r, a.held, index, DOWN_SLOTS);
        if (tile.n == 0)
            break;
        const unsigned char *row = expert_row(a.down, tile.expert - a.held.begin, p.row);
        const float *x[DOWN_SLOTS]; /* slots beyond the last repeat it; their results are dropped */
        int64_t fixed[DOWN_SLOTS] = {};
        TSR_UNROLL
        for (int s = 0; s < DOWN_SLOTS; s++)
            x[s] = a.x + tile.slots[s < tile.n ? s : tile.n - 1] * a.k;
        for (int64_t begin = 0; begin < a.k; begin += a.granule) {
            const int64_t end = begin + a.granule < a.k ? begin + a.granule : a.k;
            float sums[DOWN_SLOTS] = {};
            expert_dot<TYPE, DOWN_SLOTS, DOWN_LANES>(row, a.down.wide, x, begin, end, p.lane, sums);
            TSR_UNROLL
            for (int s = 0; s < DOWN_SLOTS; s++) {
                const float weight = expert_weight(r, tile.slots[s < tile.n ? s : tile.n - 1]);
                fixed[s] += tsr_fixed_of(weight * expert_lanes_sum<DOWN_LANES>(sums[s]), a.limit, &bad);
            }
        }
        const float bias = expert_bias_at(a.bias, tile.expert, p.row);
        TSR_UNROLL
        for (int s = 0; s < DOWN_SLOTS; s++)
            if (p.stores && s < tile.n)
                fixed[s] += tsr_fixed_of(expert_weight(r, tile.slots[s]) * bias, a.limit, &bad);
        TSR_UNROLL
        for (int s = 0; s < DOWN_SLOTS; s++)
            if (p.stores && s < tile.n)
                atomicAdd(static_cast<unsigned long long *>(a.y) + tile.slots[s] / r.n_used * a.n_rows +
                              p.row,
                          (unsigned long long)fixed[s]);
    }
    if (bad)
        tsr_fault_raise(a.fault);
}

template <tsr_type TYPE> static tsr_status launch(const experts_down_args &a, const tsr_cuda_stream *s)
{
    const unsigned rows = (unsigned)((a.n_rows + DOWN_ROWS - 1) / DOWN_ROWS);
    const dim3 block(DOWN_WARPS * TSR_WARP);
    const int64_t n = a.routing.n_tokens,
                  tiles = expert_tiles(a.routing.n_tokens * a.routing.n_used, &a.held, DOWN_SLOTS);
    if (!a.exact || expert_load(&a.routing) < 2)
        return tsr_cuda_result(TSR_LAUNCH((experts_down_token_kernel<TYPE>),
                                          dim3(rows, (unsigned)(n < 65535 ? n : 65535)), block, 0, s->stream,
                                          a),
                               "experts_down_token_kernel");
    tsr_status status = TSR_OK;
    if (!a.onto)
        status = TSR_CUDA(cudaMemsetAsync(a.y, 0, (size_t)(n * a.n_rows) * sizeof(int64_t), s->stream));
    if (status != TSR_OK || tiles == 0) /* a device without experts; grids must not be empty */
        return status;
    return tsr_cuda_result(TSR_LAUNCH((experts_down_tile_kernel<TYPE>),
                                      dim3(rows, (unsigned)(tiles < 65535 ? tiles : 65535)), block, 0,
                                      s->stream, a),
                           "experts_down_tile_kernel");
}

extern "C" tsr_status tsr_cuda_experts_down(const tsr_op_experts_down *op, const tsr_cuda_stream *s)
{
    experts_down_args a = {};
    if (op->n_rows == 0 || op->routing.n_tokens == 0)
        return TSR_OK;
    if (op->k > 0 && tsr_cuda_experts_q_takes(op->down.type))
        return tsr_cuda_experts_down_q(op, s);
    a.bias = op->bias;
    a.held = op->held;
    a.routing = op->routing;
    a.n_rows = op->n_rows;
    a.k = op->k;
    a.granule = op->reduce == TSR_REDUCE_BF16 ? op->k : op->granule;
    a.down = expert_rows_of(&op->down, op->x, op->k, a.granule);
    a.x = op->x;
    a.limit = op->limit;
    a.exact = op->reduce == TSR_REDUCE_EXACT;
    a.bf16 = op->reduce == TSR_REDUCE_BF16;
    a.onto = op->onto;
    a.y = op->y;
    a.fault = tsr_fault_of(s);
    /* Without columns no weight is read. */
    switch (op->k == 0 ? TSR_TYPE_F32 : tsr_kernel_type(op->down.type)) {
#define DOWN_CASE(constant) \
    case constant:          \
        return launch<constant>(a, s);
        TSR_FOR_EACH_PLAIN_TYPE(DOWN_CASE)
        TSR_FOR_EACH_OCTET_TYPE(DOWN_CASE)
#undef DOWN_CASE
    default:
        return tsr_cuda_result(cudaErrorNotSupported, "experts_down_kernel");
    }
}
