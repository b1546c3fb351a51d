/* Ops over experts with quantized weights: the launcher. experts_q.cuh has the order of sums.
 *
 * With few slots per expert the blocks of the kernel for few tokens quantize the activations themselves,
 * where they fit into shared memory: one launch less per op. Otherwise the activations are quantized first,
 * into scratch memory, once per token for gate and up and once per slot for down. Sums of down that are not
 * exact are stored for each slot, and added over a token's slots by a kernel, so that their order is that of
 * the slots. */
#include "cuda/kernels/experts/experts_q.cuh"
#include "cuda/kernels/mul_mat/mul_mat.h"

enum { ALIGNMENT = 256, MOST_SLOTS = 1 << 20 /* of a launch: grids have at most 65535 tiles along y */ };

/* -- sums over slots -- */

struct add_args {
    const float *sums; /* [slots of the portion][n_rows] */
    tsr_expert_bias bias;
    tsr_expert_range held;
    tsr_routing routing;
    int64_t n_rows, first, n; /* first slot; rows of all tokens of the portion */
    bool onto, bf16;
    void *y;
};

/* y[token] = sum over its slots, in order, of weight * sum and weight * bias. */
static __global__ void experts_add_kernel(const add_args a)
{
    const tsr_routing &r = a.routing;
    for (int64_t i = tsr_flat_begin(); i < a.n; i += tsr_flat_step()) {
        const int64_t token = i / a.n_rows, row = i - token * a.n_rows;
        const int64_t at = a.first / r.n_used * a.n_rows + i;
        float sum = !a.onto  ? 0.0f
                    : a.bf16 ? tsr_bfloat_to_f32(static_cast<const uint16_t *>(a.y)[at])
                             : static_cast<const float *>(a.y)[at];
        for (int64_t j = token * r.n_used; j < (token + 1) * r.n_used; j++) {
            const int32_t expert = r.expert[a.first + j];
            if (expert < a.held.begin || expert >= a.held.end)
                continue;
            const float weight = expert_weight(r, a.first + j);
            sum = sum + weight * a.sums[j * a.n_rows + row];
            sum = sum + weight * expert_bias_at(a.bias, expert, row);
        }
        tsr_put_sum(a.y, at, sum, a.bf16);
    }
}

static tsr_status add_slots(const tsr_op_experts_down *op, const experts_q_args &e, const tsr_cuda_stream *s)
{
    add_args a = {};
    a.sums = static_cast<const float *>(e.q.y);
    a.bias = op->bias;
    a.held = op->held;
    a.routing = op->routing;
    a.n_rows = op->n_rows;
    a.first = e.first;
    a.n = (e.end - e.first) / op->routing.n_used * op->n_rows;
    a.onto = op->onto;
    a.bf16 = op->reduce == TSR_REDUCE_BF16;
    a.y = op->y;
    return tsr_cuda_result(
        TSR_LAUNCH(experts_add_kernel, tsr_flat_grid(a.n, s), dim3(TSR_FLAT_THREADS), 0, s->stream, a),
        "experts_add_kernel");
}

/* -- the ops as products -- */

extern "C" bool tsr_cuda_experts_q_takes(tsr_type type)
{
    switch (type) {
#define TAKES_CASE(constant) case constant:
        TSR_FOR_EACH_QUANTIZED_TYPE(TAKES_CASE)
#undef TAKES_CASE
        return true;
    default:
        return false;
    }
}

/* The product of the first held expert with all rows of activations. */
static tsr_op_mul_mat product_of_glu(const tsr_op_experts_glu *op, const tsr_expert_matrix &m)
{
    tsr_op_mul_mat p = {};
    p.type = m.type;
    p.w = m.data;
    p.w_stride = m.row_stride;
    p.n_rows = op->n_rows;
    p.k = op->k;
    p.x = op->x;
    p.x_stride = op->k;
    p.n_tokens = op->routing.n_tokens;
    p.y = op->y;
    p.x_bits = op->x_bits;
    return p;
}

static tsr_op_mul_mat product_of_down(const tsr_op_experts_down *op)
{
    tsr_op_mul_mat p = {};
    p.type = op->down.type;
    p.w = op->down.data;
    p.w_stride = op->down.row_stride;
    p.n_rows = op->n_rows;
    p.k = op->k;
    p.x = op->x;
    p.x_stride = op->k;
    p.n_tokens = op->routing.n_tokens * op->routing.n_used;
    p.partial = op->reduce == TSR_REDUCE_EXACT;
    p.reduce = op->reduce;
    p.granule = op->granule;
    p.limit = op->limit;
    p.y = op->y;
    p.x_bits = op->x_bits;
    return p;
}

static experts_q_matrix matrix_of(const tsr_op_mul_mat &p, const tsr_expert_matrix &m,
                                  const tsr_expert_bias &b)
{
    const experts_q_matrix q = {static_cast<const unsigned char *>(m.data), m.expert_stride,
                                (size_t)(p.n_rows - 1) * m.row_stride + tsr_type_row_bytes(m.type, p.k), b};
    return q;
}

/* -- portions of tokens -- */

/* Bytes of scratch memory for a token: the codes of its rows of activations, if any, and SLOT's sums. */
static size_t token_bytes(const experts_q_args &a, bool codes)
{
    const size_t n_used = (size_t)a.routing.n_used, rows = n_used / (size_t)a.x_slots;
    return (codes ? rows * tsr_cuda_q_token_bytes(a.q) : 0) +
           (a.form == EXPERTS_Q_SLOT ? n_used * (size_t)a.q.n_rows * sizeof(float) : 0);
}

/* Compute the op's slots [a->first, a->end); `from`: its first row of activations. */
static tsr_status run_portion(tsr_type type, experts_q_args *a, bool many, bool codes, const float *from,
                              const tsr_cuda_stream *s)
{
    const int64_t row = a->first / a->x_slots;
    size_t used = 0;
    tsr_status status = TSR_OK;
    a->q.x = from + row * a->q.x_stride;
    a->q.n_tokens = (int)(a->end / a->x_slots - row);
    a->q.codes = NULL;
    if (codes) {
        status = tsr_cuda_q_quantize(&a->q, s);
        used = (size_t)a->q.n_tokens * tsr_cuda_q_token_bytes(a->q);
    }
    if (a->form == EXPERTS_Q_SLOT)
        a->q.y = static_cast<char *>(s->scratch) + (used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (status != TSR_OK)
        return status;
    return many ? tsr_cuda_experts_q_many(type, *a, s) : tsr_cuda_experts_q_few(type, *a, s);
}

/* All tokens. `down`: the op whose slots are added, with SLOT. */
static tsr_status run(tsr_type type, experts_q_args a, const tsr_op_experts_down *down,
                      const tsr_cuda_stream *s)
{
    const tsr_routing &r = a.routing;
    const float *const from = a.q.x;
    const bool fits = tsr_cuda_experts_q_few_fits(a, s->props);
    const size_t room = s->scratch_bytes > ALIGNMENT ? s->scratch_bytes - ALIGNMENT : 0;
    bool many = expert_load(&r) >= 2, codes = many || !fits;
    if (codes && token_bytes(a, true) > room && fits)
        many = codes = false;
    const size_t bytes = token_bytes(a, codes);
    const int64_t in_room = bytes == 0 ? r.n_tokens : (int64_t)(room / bytes);
    const int64_t in_grid = r.n_used < MOST_SLOTS ? MOST_SLOTS / r.n_used : 1;
    const int64_t most = in_room < in_grid ? in_room : in_grid;
    if (most == 0)
        return tsr_fail(TSR_ERR_MEMORY,
                        "experts of %lld columns and %lld rows need %zu bytes of scratch memory",
                        (long long)a.q.k, (long long)a.q.n_rows, bytes + ALIGNMENT);
    if (many && a.form == EXPERTS_Q_EXACT && !a.onto) {
        const tsr_status status = TSR_CUDA(
            cudaMemsetAsync(a.q.y, 0, (size_t)(r.n_tokens * a.q.n_rows) * sizeof(int64_t), s->stream));
        if (status != TSR_OK)
            return status;
    }
    for (int64_t token = 0; token < r.n_tokens; token += most) {
        const int64_t n = r.n_tokens - token < most ? r.n_tokens - token : most;
        a.first = token * r.n_used;
        a.end = (token + n) * r.n_used;
        tsr_status status = run_portion(type, &a, many, codes, from, s);
        if (status == TSR_OK && a.form == EXPERTS_Q_SLOT)
            status = add_slots(down, a, s);
        if (status != TSR_OK)
            return status;
    }
    return TSR_OK;
}

/* -- ops -- */

extern "C" tsr_status tsr_cuda_experts_glu_q(const tsr_op_experts_glu *op, tsr_glu_pass pass,
                                             const tsr_cuda_stream *s)
{
    const tsr_expert_matrix &first = pass == TSR_GLU_UP ? op->up : op->gate;
    const tsr_op_mul_mat p = product_of_glu(op, first);
    experts_q_args a = {};
    size_t apart = first.expert_stride;
    if (pass == TSR_GLU_BOTH)
        apart |= (uintptr_t)op->up.data | op->up.expert_stride;
    a.q = tsr_cuda_q_args(&p, apart, s);
    a.m[0] = matrix_of(p, first, pass == TSR_GLU_UP ? op->up_bias : op->gate_bias);
    if (pass == TSR_GLU_BOTH)
        a.m[1] = matrix_of(p, op->up, op->up_bias);
    a.form = pass == TSR_GLU_BOTH ? EXPERTS_Q_GLU : pass == TSR_GLU_GATE ? EXPERTS_Q_GATE : EXPERTS_Q_UP;
    a.kind = op->kind;
    a.glu_limit = op->limit;
    a.held = op->held;
    a.routing = op->routing;
    a.x_slots = op->routing.n_used;
    return run(first.type, a, NULL, s);
}

extern "C" tsr_status tsr_cuda_experts_down_q(const tsr_op_experts_down *op, const tsr_cuda_stream *s)
{
    const tsr_op_mul_mat p = product_of_down(op);
    experts_q_args a = {};
    a.q = tsr_cuda_q_args(&p, op->down.expert_stride, s);
    a.m[0] = matrix_of(p, op->down, op->bias);
    a.form = p.partial ? EXPERTS_Q_EXACT : EXPERTS_Q_SLOT;
    a.onto = op->onto;
    a.held = op->held;
    a.routing = op->routing;
    a.x_slots = 1;
    return run(op->down.type, a, op, s);
}

/* -- scratch memory -- */

extern "C" size_t tsr_cuda_experts_glu_scratch(const tsr_op_experts_glu *op)
{
    const tsr_expert_matrix &m = tsr_cuda_experts_q_takes(op->gate.type) ? op->gate : op->up;
    if (!tsr_cuda_experts_q_takes(m.type))
        return 0;
    const tsr_op_mul_mat p = product_of_glu(op, m);
    return tsr_cuda_mul_mat_q_scratch(&p) + ALIGNMENT;
}

extern "C" size_t tsr_cuda_experts_down_scratch(const tsr_op_experts_down *op)
{
    if (!tsr_cuda_experts_q_takes(op->down.type))
        return 0;
    const tsr_op_mul_mat p = product_of_down(op);
    const size_t sums = p.partial ? 0 : (size_t)(p.n_tokens * p.n_rows) * sizeof(float);
    return tsr_cuda_mul_mat_q_scratch(&p) + sums + ALIGNMENT;
}
