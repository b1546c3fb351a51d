/* recurrence (core/op.h): one block for 32 columns of a head's state, for one sequence, token after token.
 *
 * Of Mamba-2 a key is its element times dt, and nothing is taken off the value.
 *
 * A warp has eight columns. Four of its lanes share a column: lane l has rows l / 8, l / 8 + 4, ..., in
 * registers from the first token to the last. All warps need the same queries, keys and decays, so the block
 * makes them once per token, in one of two buffers: one barrier per token keeps the writers of a buffer apart
 * from its readers two tokens before. A sum over rows is two chains in each lane (even and odd rows of the
 * lane), then a tree over the four lanes. */
#include "cuda/kernels/common.cuh"

enum {
    RECURRENCE_COLUMNS = 8, /* of a warp */
    RECURRENCE_LANES = TSR_WARP / RECURRENCE_COLUMNS,
    RECURRENCE_WARPS = 4,
    RECURRENCE_THREADS = RECURRENCE_WARPS * TSR_WARP
};

/* One token's operands, by row of the state. */
template <int ROWS> struct recurrence_rows {
    float q[ROWS], k[ROWS], decay[ROWS];
};

/* The factor that gives a head's row the length `length`; every lane of the warp computes it. */
TSR_DEVICE float recurrence_unit(const tsr_op_recurrence &op, const float *x, float length)
{
    float squares = 0.0f;
    for (int64_t i = threadIdx.x % TSR_WARP; i < op.dk; i += TSR_WARP)
        squares = fmaf(x[i], x[i], squares);
    return length / sqrtf(tsr_warp_sum(squares) + op.eps);
}

/* Queries and keys with their factors, and decays, of one token and head; zeros behind dk. */
template <int ROWS, tsr_recurrence_rule RULE>
TSR_DEVICE void recurrence_load(const tsr_op_recurrence &op, int64_t t, int64_t head,
                                recurrence_rows<ROWS> *rows)
{
    const bool mamba = RULE == TSR_RECURRENCE_MAMBA;
    const int64_t key_head = (op.first_head + head) / op.group;
    const float *q = op.q + (t * op.n_key_heads + key_head) * op.dk;
    const float *k = op.k + (t * op.n_key_heads + key_head) * op.dk;
    const float *alpha = op.alpha + (t * op.heads_stride + head) * op.n_decay;
    const float *dt_bias = op.dt_bias + head * op.n_decay;
    const float of_q = mamba ? 1.0f : recurrence_unit(op, q, op.scale);
    const float of_k = mamba ? 1.0f : recurrence_unit(op, k, 1.0f);
    for (int i = threadIdx.x; i < ROWS; i += RECURRENCE_THREADS) {
        const int64_t d = !mamba && op.n_decay > 1 ? i : 0;
        const bool used = i < op.dk;
        const float dt = used ? tsr_softplus(alpha[d] + dt_bias[d]) : 0.0f;
        rows->q[i] = used ? of_q * q[i] : 0.0f;
        rows->k[i] = used ? (mamba ? dt : of_k) * k[i] : 0.0f;
        rows->decay[i] = used ? expf(op.a[head] * dt) : 0.0f;
    }
}

/* The sum over all rows of a column, in every lane of the column. */
TSR_DEVICE float recurrence_sum(float even, float odd)
{
    float sum = even + odd;
    TSR_UNROLL
    for (int mask = RECURRENCE_COLUMNS; mask < TSR_WARP; mask *= 2)
        sum = sum + __shfl_xor_sync(TSR_ALL_LANES, sum, mask);
    return sum;
}

/* What the token adds to a column of the state for each element of the key; the state decays. */
template <int PER_LANE>
TSR_DEVICE float recurrence_delta(const tsr_op_recurrence &op, int64_t at, float v, const float *k,
                                  const float *decay, int first, float *state)
{
    float sums[2] = {0.0f, 0.0f};
    TSR_UNROLL
    for (int j = 0; j < PER_LANE; j++) {
        const int i = first + j * RECURRENCE_LANES;
        state[j] = decay[i] * state[j];
        sums[j % 2] = fmaf(k[i], state[j], sums[j % 2]);
    }
    return (v - recurrence_sum(sums[0], sums[1])) / (1.0f + expf(-op.beta[at]));
}

/* PER_LANE rows of a lane. */
template <int PER_LANE, tsr_recurrence_rule RULE>
static __global__ void __launch_bounds__(RECURRENCE_THREADS) recurrence_kernel(const tsr_op_recurrence op)
{
    __shared__ recurrence_rows<PER_LANE * RECURRENCE_LANES> shared[2];
    tsr_begin_early();
    const tsr_state_row row = op.index.rows[blockIdx.z];
    const int lane = threadIdx.x % TSR_WARP, first = lane / RECURRENCE_COLUMNS;
    const int64_t head = blockIdx.y;
    const int64_t column =
        ((int64_t)blockIdx.x * RECURRENCE_WARPS + threadIdx.x / TSR_WARP) * RECURRENCE_COLUMNS +
        lane % RECURRENCE_COLUMNS;
    const bool used = column < op.dv, mamba = RULE == TSR_RECURRENCE_MAMBA;
    const int64_t offset = head * op.dk * op.dv + column;
    if (row.first < 0)
        return;
    float state[PER_LANE];
    TSR_UNROLL
    for (int j = 0; j < PER_LANE; j++) {
        const int64_t i = first + j * RECURRENCE_LANES;
        state[j] = used && row.read >= 0 && i < op.dk
                       ? op.state.base[row.read * op.state.slot_elems + offset + i * op.dv]
                       : 0.0f;
    }
    int buffer = 0;
    for (int64_t t = row.first; t >= 0; t = op.index.next[t], buffer ^= 1) {
        recurrence_load<PER_LANE * RECURRENCE_LANES, RULE>(op, t, head, &shared[buffer]);
        __syncthreads();
        const float *q = shared[buffer].q, *k = shared[buffer].k, *decay = shared[buffer].decay;
        const int64_t at = t * op.heads_stride + head;
        const float v = used ? op.v[at * op.dv + column] : 0.0f;
        const float u = mamba ? v : recurrence_delta<PER_LANE>(op, at, v, k, decay, first, state);
        float sums[2] = {0.0f, 0.0f};
        TSR_UNROLL
        for (int j = 0; j < PER_LANE; j++) {
            const int i = first + j * RECURRENCE_LANES;
            state[j] = fmaf(k[i], u, mamba ? decay[i] * state[j] : state[j]);
            sums[j % 2] = fmaf(q[i], state[j], sums[j % 2]);
        }
        const float y = recurrence_sum(sums[0], sums[1]);
        if (used && first == 0)
            op.y[at * op.dv + column] = mamba ? fmaf(op.skip[head], v, y) : y;
    }
    TSR_UNROLL
    for (int j = 0; j < PER_LANE; j++) {
        const int64_t i = first + j * RECURRENCE_LANES;
        if (used && i < op.dk)
            op.state.base[row.write * op.state.slot_elems + offset + i * op.dv] = state[j];
    }
}

template <int PER_LANE, tsr_recurrence_rule RULE>
static tsr_status launch(const tsr_op_recurrence *op, const tsr_cuda_stream *s)
{
    const int64_t columns = RECURRENCE_WARPS * RECURRENCE_COLUMNS;
    const dim3 grid((unsigned)((op->dv + columns - 1) / columns), (unsigned)op->n_heads,
                    (unsigned)op->index.n_rows);
    return tsr_cuda_result(
        TSR_LAUNCH_EARLY((recurrence_kernel<PER_LANE, RULE>), grid, dim3(RECURRENCE_THREADS), 0, s, *op),
        "recurrence_kernel");
}

extern "C" tsr_status tsr_cuda_recurrence(const tsr_op_recurrence *op, const tsr_cuda_stream *s)
{
    if (op->n_tokens == 0 || op->n_heads == 0)
        return TSR_OK;
    if (op->rule == TSR_RECURRENCE_MAMBA)
        return op->dk <= 128 ? launch<32, TSR_RECURRENCE_MAMBA>(op, s)
                             : launch<64, TSR_RECURRENCE_MAMBA>(op, s);
    return op->dk <= 128 ? launch<32, TSR_RECURRENCE_DELTA>(op, s) : launch<64, TSR_RECURRENCE_DELTA>(op, s);
}
