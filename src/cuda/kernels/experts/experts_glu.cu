/* experts_glu: a warp computes one row of gate and of up for a tile of slots (experts.cuh). Where gate and up
 * are of different types there are two passes, the second of which multiplies the first's results in y. */
#include "cuda/kernels/experts/experts.cuh"
#include "cuda/kernels/experts/experts_q.h"
#include "cuda/kernels/glu.cuh"

enum { GLU_WARPS = 4 };

struct experts_glu_args {
    expert_rows gate, up; /* of the pass: TSR_GLU_GATE has no up, TSR_GLU_UP no gate */
    tsr_expert_bias gate_bias, up_bias;
    tsr_glu_kind kind;
    float limit;
    tsr_glu_pass pass;
    tsr_expert_range held;
    tsr_routing routing;
    int64_t n_rows, k;
    const float *x;
    float *y;
};

TSR_DEVICE void experts_glu_store(const experts_glu_args &a, int64_t expert, int64_t row, float *y,
                                  float gate, float up)
{
    const float act = tsr_glu_activation(a.kind, gate + expert_bias_at(a.gate_bias, expert, row), a.limit);
    const float factor = tsr_glu_factor(a.kind, up + expert_bias_at(a.up_bias, expert, row), a.limit);
    if (a.pass == TSR_GLU_BOTH)
        *y = act * factor;
    else if (a.pass == TSR_GLU_GATE)
        *y = act;
    else
        *y = *y * factor;
}

template <tsr_type TYPE, int SLOTS>
static __global__ void __launch_bounds__(GLU_WARPS *TSR_WARP) experts_glu_kernel(const experts_glu_args a)
{
    const int lane = threadIdx.x % TSR_WARP;
    const int64_t row = (int64_t)blockIdx.x * GLU_WARPS + threadIdx.x / TSR_WARP;
    for (int64_t index = blockIdx.y;; index += gridDim.y) {
        const expert_tile tile = expert_tile_at(a.routing, a.held, index, SLOTS);
        if (tile.n == 0 || row >= a.n_rows)
            return;
        const float *x[SLOTS]; /* slots beyond the last repeat it; their results are dropped */
        float gate[SLOTS] = {}, up[SLOTS] = {};
        TSR_UNROLL
        for (int s = 0; s < SLOTS; s++)
            x[s] = a.x + tile.slots[s < tile.n ? s : tile.n - 1] / a.routing.n_used * a.k;
        const int64_t expert = tile.expert - a.held.begin;
        if (a.pass != TSR_GLU_UP)
            expert_dot<TYPE, SLOTS, TSR_WARP>(expert_row(a.gate, expert, row), a.gate.wide, x, 0, a.k, lane,
                                              gate);
        if (a.pass != TSR_GLU_GATE)
            expert_dot<TYPE, SLOTS, TSR_WARP>(expert_row(a.up, expert, row), a.up.wide, x, 0, a.k, lane, up);
        TSR_UNROLL
        for (int s = 0; s < SLOTS; s++) {
            const float gate_sum = expert_lanes_sum<TSR_WARP>(gate[s]),
                        up_sum = expert_lanes_sum<TSR_WARP>(up[s]);
            if (lane == s && s < tile.n) {
                const float weight = expert_input_weight(a.routing, tile.slots[s]);
                experts_glu_store(a, tile.expert, row, a.y + tile.slots[s] * a.n_rows + row,
                                  weight * gate_sum, weight * up_sum);
            }
        }
    }
}

template <tsr_type TYPE, int SLOTS>
static tsr_status launch(const experts_glu_args &a, const tsr_cuda_stream *s)
{
    const int64_t tiles = expert_tiles(a.routing.n_tokens * a.routing.n_used, &a.held, SLOTS);
    const dim3 grid((unsigned)((a.n_rows + GLU_WARPS - 1) / GLU_WARPS),
                    (unsigned)(tiles < 65535 ? tiles : 65535));
    return tsr_cuda_result(
        TSR_LAUNCH((experts_glu_kernel<TYPE, SLOTS>), grid, dim3(GLU_WARPS * TSR_WARP), 0, s->stream, a),
        "experts_glu_kernel");
}

static tsr_status launch_octets(tsr_type type, const experts_glu_args &a, const tsr_cuda_stream *s)
{
    const bool many = expert_load(&a.routing) >= 2;
    switch (tsr_kernel_type(type)) {
#define GLU_CASE(constant) \
    case constant:         \
        return many ? launch<constant, 8>(a, s) : launch<constant, 1>(a, s);
        TSR_FOR_EACH_PLAIN_TYPE(GLU_CASE)
        TSR_FOR_EACH_OCTET_TYPE(GLU_CASE)
#undef GLU_CASE
    default:
        return tsr_cuda_result(cudaErrorNotSupported, "experts_glu_kernel");
    }
}

static experts_glu_args args_of(const tsr_op_experts_glu *op)
{
    experts_glu_args a = {};
    a.gate = expert_rows_of(&op->gate, op->x, op->k, op->k);
    a.up = expert_rows_of(&op->up, op->x, op->k, op->k);
    a.gate_bias = op->gate_bias;
    a.up_bias = op->up_bias;
    a.kind = op->kind;
    a.limit = op->limit;
    a.held = op->held;
    a.routing = op->routing;
    a.n_rows = op->n_rows;
    a.k = op->k;
    a.x = op->x;
    a.y = op->y;
    return a;
}

static tsr_status launch_pass(const tsr_op_experts_glu *op, tsr_glu_pass pass, const tsr_cuda_stream *s)
{
    const tsr_type type = pass == TSR_GLU_UP ? op->up.type : op->gate.type;
    if (tsr_cuda_experts_q_takes(type))
        return tsr_cuda_experts_glu_q(op, pass, s);
    experts_glu_args a = args_of(op);
    a.pass = pass;
    return launch_octets(type, a, s);
}

extern "C" tsr_status tsr_cuda_experts_glu(const tsr_op_experts_glu *op, const tsr_cuda_stream *s)
{
    if (op->n_rows == 0 || op->routing.n_tokens == 0 || op->held.end == op->held.begin)
        return TSR_OK;
    if (op->gate.type == op->up.type && op->gate.row_stride == op->up.row_stride)
        return launch_pass(op, TSR_GLU_BOTH, s);
    const tsr_status status = launch_pass(op, TSR_GLU_GATE, s);
    return status == TSR_OK ? launch_pass(op, TSR_GLU_UP, s) : status;
}
