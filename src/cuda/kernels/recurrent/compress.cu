/* compress (core/op.h): one thread per channel and sequence, token after token, the state in registers. The
 * position says where a group begins, so the state between groups is not read. */
#include "cuda/kernels/common.cuh"

enum { COMPRESS_THREADS = 128 };

/* An online softmax: the largest gate, the sum of the weights, the weighted sum. */
struct compress_sum {
    float top, sum, x;
};

TSR_DEVICE compress_sum compress_none(void)
{
    return {-INFINITY, 0.0f, 0.0f};
}

TSR_DEVICE void compress_add(compress_sum *s, float gate, float x)
{
    const float top = fmaxf(s->top, gate), keep = expf(s->top - top), weight = expf(gate - top);
    s->sum = fmaf(s->sum, keep, weight);
    s->x = fmaf(s->x, keep, weight * x);
    s->top = top;
}

/* Nothing if there is no state. */
TSR_DEVICE compress_sum compress_load(const float *state, int64_t n, bool there)
{
    compress_sum s;
    s.top = there ? state[0] : -INFINITY;
    s.sum = there ? state[n] : 0.0f;
    s.x = there ? state[2 * n] : 0.0f;
    return s;
}

TSR_DEVICE void compress_store(float *state, int64_t n, const compress_sum &s)
{
    state[0] = s.top;
    state[n] = s.sum;
    state[2 * n] = s.x;
}

template <bool OVERLAP>
static __global__ void __launch_bounds__(COMPRESS_THREADS) compress_kernel(const tsr_op_compress op)
{
    tsr_begin_early();
    const tsr_state_row row = op.index.rows[blockIdx.y];
    const int64_t c = (int64_t)blockIdx.x * COMPRESS_THREADS + threadIdx.x, n = op.n;
    const int64_t width = OVERLAP ? 2 * n : n, second = OVERLAP ? n : 0;
    const int ratio = (int)op.ratio;
    if (row.first < 0 || c >= n)
        return;
    const float *before = op.state.base + row.read * op.state.slot_elems + c;
    compress_sum open = compress_load(before, n, row.read >= 0);
    compress_sum next = compress_load(before + 3 * n, n, OVERLAP && row.read >= 0);
    for (int64_t t = row.first; t >= 0; t = op.index.next[t]) {
        const int position = op.position[t], j = position % ratio;
        const float *x = op.x + t * width + c, *gate = op.gate + t * width + c;
        const float *bias = op.bias + j * width + c;
        if (j == 0) {
            open = OVERLAP && position >= ratio ? next : compress_none();
            next = compress_none();
        }
        if (OVERLAP)
            compress_add(&next, gate[0] + bias[0], x[0]);
        compress_add(&open, gate[second] + bias[second], x[second]);
        op.y[t * n + c] = j + 1 == ratio ? open.x / open.sum : 0.0f;
    }
    float *after = op.state.base + row.write * op.state.slot_elems + c;
    compress_store(after, n, open);
    if (OVERLAP)
        compress_store(after + 3 * n, n, next);
}

extern "C" tsr_status tsr_cuda_compress(const tsr_op_compress *op, const tsr_cuda_stream *s)
{
    if (op->n_tokens == 0 || op->n == 0)
        return TSR_OK;
    const dim3 grid((unsigned)((op->n + COMPRESS_THREADS - 1) / COMPRESS_THREADS),
                    (unsigned)op->index.n_rows);
    return tsr_cuda_result(
        op->overlap ? TSR_LAUNCH_EARLY((compress_kernel<true>), grid, dim3(COMPRESS_THREADS), 0, s, *op)
                    : TSR_LAUNCH_EARLY((compress_kernel<false>), grid, dim3(COMPRESS_THREADS), 0, s, *op),
        "compress_kernel");
}
