/* Ops over experts with quantized weights: what the kernels for few and for many tokens share.
 *
 * The product of one expert's row with one slot's activations is a sum of chunks as in mul_mat (q_chunk.cuh):
 * gate, up, and down unless the reduction is exact, as one that is not partial; down under the exact
 * reduction in units of a granule, each of which is multiplied by the slot's weight and rounded to fixed
 * point. The order does not depend on the form, nor on which slots share a tile. */
#ifndef TSR_CUDA_KERNELS_EXPERTS_EXPERTS_Q_CUH
#define TSR_CUDA_KERNELS_EXPERTS_EXPERTS_Q_CUH

#include "cuda/kernels/experts/experts.cuh"
#include "cuda/kernels/experts/experts_q.h"
#include "cuda/kernels/glu.cuh"
#include "cuda/kernels/mul_mat/q_block.cuh"

/* What becomes of the sums. */
enum experts_q_form {
    EXPERTS_Q_GLU,  /* y[slot] = act(gate) * factor(up) */
    EXPERTS_Q_GATE, /* y[slot] = act(gate) */
    EXPERTS_Q_UP,   /* y[slot] *= factor(up) */
    EXPERTS_Q_SLOT, /* y[slot - first] = down, for a kernel that adds them */
    EXPERTS_Q_EXACT /* y[token] += weights times down, and biases */
};

/* One matrix of the held experts. */
struct experts_q_matrix {
    const unsigned char *w; /* of the first of them */
    size_t expert_stride;
    size_t bytes; /* of one expert, to the last row's end */
    tsr_expert_bias bias;
};

/* An op, and the portion of its tokens that a launch computes. */
struct experts_q_args {
    q_args q; /* of one expert's product; q.x, q.codes and q.meta begin with the portion's first row */
    experts_q_matrix m[2]; /* gate and up; or one matrix and none */
    experts_q_form form;
    tsr_glu_kind kind;
    float glu_limit;
    bool onto;
    tsr_expert_range held;
    tsr_routing routing;
    int64_t x_slots;    /* slots that share a row of activations: a token's, or one */
    int64_t first, end; /* slots of the portion, whole tokens */
};

/* The product of a held expert. */
TSR_DEVICE q_args experts_q_of(const experts_q_args &a, const experts_q_matrix &m, int64_t expert)
{
    q_args q = a.q;
    q.w = m.w + (size_t)(expert - a.held.begin) * m.expert_stride;
    q.w_end = q.w + m.bytes;
    return q;
}

TSR_DEVICE bool experts_q_holds(const experts_q_args &a, int64_t expert)
{
    return expert >= a.held.begin && expert < a.held.end;
}

/* Gate's sum with its bias, activated. */
TSR_DEVICE float experts_q_act(const experts_q_args &a, int64_t expert, int64_t row, float gate)
{
    return tsr_glu_activation(a.kind, gate + expert_bias_at(a.m[0].bias, expert, row), a.glu_limit);
}

TSR_DEVICE float experts_q_factor(const experts_q_args &a, const experts_q_matrix &m, int64_t expert,
                                  int64_t row, float up)
{
    return tsr_glu_factor(a.kind, up + expert_bias_at(m.bias, expert, row), a.glu_limit);
}

/* Store a row's sums of a slot; not EXACT. `up` counts for GLU only. */
TSR_DEVICE void experts_q_store(const experts_q_args &a, int64_t expert, int64_t slot, int64_t row, float sum,
                                float up)
{
    float *const y = static_cast<float *>(a.q.y) + slot * a.q.n_rows + row;
    const float weight = expert_input_weight(a.routing, slot);
    if (a.form == EXPERTS_Q_GLU)
        *y = experts_q_act(a, expert, row, weight * sum) *
             experts_q_factor(a, a.m[1], expert, row, weight * up);
    else if (a.form == EXPERTS_Q_GATE)
        *y = experts_q_act(a, expert, row, weight * sum);
    else if (a.form == EXPERTS_Q_UP)
        *y = *y * experts_q_factor(a, a.m[0], expert, row, weight * sum);
    else
        y[-a.first * a.q.n_rows] = sum;
}

/* The weighted bias of a slot's row in fixed point. */
TSR_DEVICE int64_t experts_q_bias(const experts_q_args &a, int64_t expert, int64_t slot, int64_t row,
                                  bool *bad)
{
    if (!a.m[0].bias.data)
        return 0;
    const float bias = expert_weight(a.routing, slot) * expert_bias_at(a.m[0].bias, expert, row);
    return tsr_fixed_of(bias, a.q.limit, bad);
}

/* -- weights -- */

/* The distribution of the pieces of a step of ROWS rows over THREADS threads. Steps of rows inside a matrix
 * differ in their begin alone, so that a piece costs an addition. */
template <tsr_type TYPE, int ROWS, int THREADS> struct experts_q_pieces {
    static constexpr int most = ROWS * ((q_type<TYPE>::step_bytes + 14 + 15) / 16);
    static constexpr int mine = (most + THREADS - 1) / THREADS;
    static constexpr int row_bits = ROWS <= 16 ? 4 : 8;
    static_assert(mine * row_bits <= 32, "one word has the rows of a thread's pieces");
    static constexpr bool kept = mine <= 3; /* for which there are registers */
    /* Where a row has an even number of pieces, half a warp has one of two rows: one address is enough. */
    static constexpr bool pairs = THREADS == TSR_WARP && q_type<TYPE>::pieces % 2 == 0;
    static constexpr int least = (q_type<TYPE>::step_bytes + 15) / 16 * ROWS;
    uint32_t from[mine];          /* bytes from the first row's step */
    uint32_t to[kept ? mine : 1]; /* bytes from the first slot; or the rows, row_bits each */
};

/* Whether rows are even (q_args), and there is no gap between their slots: then less is computed, where there
 * are many pieces. Kernels of more rows have no registers for two ways. */
template <tsr_type TYPE, int ROWS> TSR_DEVICE bool experts_q_even(const q_args &q)
{
    return ROWS == Q_ROWS && q_type<TYPE>::pieces % 2 == 1 && q.even &&
           !experts_q_pieces<TYPE, Q_ROWS, TSR_WARP>::kept;
}

/* Whether rows that are not even are copied bytewise (q_args), and so in no second way. */
template <tsr_type TYPE, int ROWS> TSR_DEVICE constexpr bool experts_q_one_way(void)
{
    return ROWS == Q_ROWS && q_type<TYPE>::words && q_type<TYPE>::pieces % 2 == 1;
}

template <tsr_type TYPE, int ROWS, int THREADS>
TSR_DEVICE void experts_q_deal(const q_args &q, int thread, experts_q_pieces<TYPE, ROWS, THREADS> *p)
{
    p->to[0] = 0;
    if constexpr (experts_q_pieces<TYPE, ROWS, THREADS>::pairs) {
        p->from[0] = (uint32_t)thread / 16 * (uint32_t)q.w_stride + thread % 16 * 16;
        p->to[0] = thread / 16 * q.slot_stride + thread % 16 * 16;
    } else {
        TSR_UNROLL
        for (int i = 0; i < p->mine; i++) {
            const int number = thread + i * THREADS;
            const int row =
                experts_q_even<TYPE, ROWS>(q) ? number / q_type<TYPE>::pieces : number / q.slot_pieces;
            p->from[i] = (uint32_t)row * (uint32_t)q.w_stride + 16 * (number - row * q.slot_pieces);
            if (p->kept)
                p->to[i] = 16 * number + row * (q.slot_stride - 16 * q.slot_pieces);
            else if (!experts_q_one_way<TYPE, ROWS>())
                p->to[0] |= (uint32_t)(row % ROWS) << p->row_bits * i;
        }
    }
}

/* Whether all pieces of a step of rows are inside the tensor, and moved asynchronously; `step`: the step of
 * the first row. The same in all threads. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE bool experts_q_inside(const q_args &q, int64_t row, const unsigned char *step)
{
    if (row + ROWS > q.n_rows || (q_type<TYPE>::words && q.bytewise))
        return false;
    return q.slot_pieces * 16 == q_type<TYPE>::step_bytes ||
           (step - q.w >= 16 && q.w_end - step >= (int64_t)((ROWS - 1) * q.w_stride) + 16 * q.slot_pieces);
}

/* Rows 1 to n: any step of ROWS rows that begin with one of them is inside the matrix. */
template <tsr_type TYPE, int ROWS> TSR_DEVICE uint32_t experts_q_inner(const q_args &q)
{
    return q.n_rows > ROWS + 1 && q.w_stride >= 16 * (size_t)q.slot_pieces &&
                   !(q_type<TYPE>::words && q.bytewise)
               ? (uint32_t)q.n_rows - ROWS - 1
               : 0;
}

/* Start copying the step of ROWS rows that begins with `chunk`, a slot each. Of even rows only those around
 * the matrix's last have pieces that are not inside it. `inner`: experts_q_inner(), or 0. The value is where
 * the first row's step begins, as far as it counts for alignment. */
template <tsr_type TYPE, int ROWS, int THREADS>
TSR_DEVICE uint32_t experts_q_copy(const q_args &q, const experts_q_pieces<TYPE, ROWS, THREADS> &p,
                                   int thread, int row, int chunk, uint32_t inner, unsigned char *slots)
{
    const size_t at = q_step_at<TYPE>(q, chunk);
    const unsigned char *const step = q_kept(q.w + ((uint64_t)(uint32_t)row * (uint32_t)q.w_stride + at));
    const bool even = experts_q_even<TYPE, ROWS>(q);
    const bool inside = even ? row + ROWS < q.n_rows + (q_type<TYPE>::step_bytes % 16 == 0)
                             : !experts_q_one_way<TYPE, ROWS>() &&
                                   ((uint32_t)row - 1 < inner || experts_q_inside<TYPE, ROWS>(q, row, step));
    if (!inside) {
        q_copy_rows<TYPE>(q, q_deal_of(q, thread, THREADS), row, ROWS, at, slots);
        return (uint32_t) reinterpret_cast<uintptr_t>(step);
    }
    if constexpr (experts_q_pieces<TYPE, ROWS, THREADS>::pairs) {
        uint64_t from = reinterpret_cast<uintptr_t>(step) + p.from[0];
        TSR_UNROLL
        for (int i = 0; thread % 16 < q.slot_pieces && i < ROWS / 2; i++, from += 2 * (uint32_t)q.w_stride)
            tsr_copy_async_16(slots + p.to[0] + 2 * i * q.slot_stride,
                              reinterpret_cast<const unsigned char *>(from & ~(uint64_t)15));
    } else {
        TSR_UNROLL
        for (int i = 0; (even || experts_q_one_way<TYPE, ROWS>()) && i < p.mine; i++) {
            const int number = thread + i * THREADS;
            if ((i + 1) * THREADS <= ROWS * q_type<TYPE>::pieces || number < ROWS * q_type<TYPE>::pieces)
                tsr_copy_async_16(slots + 16 * number, step - at % 16 + p.from[i]);
        }
        TSR_UNROLL
        for (int i = 0; !even && !experts_q_one_way<TYPE, ROWS>() && i < p.mine; i++) {
            const int number = thread + i * THREADS;
            const uint32_t own = p.to[0] >> p.row_bits * i & ((1u << p.row_bits) - 1);
            const uint32_t to =
                p.kept ? p.to[p.kept ? i : 0] : 16 * number + own * (q.slot_stride - 16 * q.slot_pieces);
            const uintptr_t piece = reinterpret_cast<uintptr_t>(step + p.from[i]) & ~(uintptr_t)15;
            if ((i + 1) * THREADS <= p.least || number < ROWS * q.slot_pieces)
                tsr_copy_async_16(slots + to, reinterpret_cast<const unsigned char *>(piece));
        }
    }
    return (uint32_t) reinterpret_cast<uintptr_t>(step);
}

/* A lane's two rows of 16 rows of the step that begins with `chunk`, in their slots, ROWS of which were
 * copied together. */
template <tsr_type TYPE, int ROWS>
TSR_DEVICE void experts_q_rows(const q_args &q, const unsigned char *slots, int row, int chunk, int lane,
                               const unsigned char *rows[2])
{
    const uint32_t at = (uint32_t)q_step_at<TYPE>(q, chunk);
    TSR_UNROLL
    for (int r = 0; r < 2; r++) {
        const int own = q_row_in(lane) + 8 * r, last = (int)q.n_rows - 1;
        uint32_t begin = q_type<TYPE>::step_bytes % 16 == 0 ? 0 : at;
        if (!experts_q_even<TYPE, ROWS>(q))
            begin = (uint32_t) reinterpret_cast<uintptr_t>(q.w) + at +
                    (uint32_t)(row + own < last ? row + own : last) * (uint32_t)q.w_stride;
        const uint32_t offset = q_type<TYPE>::words && q.bytewise ? 0 : begin % 16;
        rows[r] = slots + ((uint32_t)(own * q.slot_stride) + offset);
    }
}

/* -- launchers -- */

/* A few tokens; without a.q.codes the activations must fit into shared memory. */
tsr_status tsr_cuda_experts_q_few(tsr_type type, const experts_q_args &a, const tsr_cuda_stream *s);
bool tsr_cuda_experts_q_few_fits(const experts_q_args &a, const tsr_cuda_props *props);

/* Any number of tokens, from a.q.codes. EXACT: y has zeros, or what is added to. */
tsr_status tsr_cuda_experts_q_many(tsr_type type, const experts_q_args &a, const tsr_cuda_stream *s);

#endif
