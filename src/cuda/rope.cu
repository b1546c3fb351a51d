/* Rotary embedding of [n_tokens][n_heads][head_dim] by a table of [n_tokens][n_rot] cosines and sines.
 *
 * Thread j of a head turns pair j while j < n_rot / 2, and the threads after those copy the elements that are
 * not rotated. A thread reads both elements before it writes either, since x may equal y. */
#include "cuda/common.cuh"

TSR_DEVICE void rope_pair(const float *x, float *y, int64_t first, int64_t second, const float *angle)
{
    const float a = x[first], b = x[second], cosine = angle[0], sine = angle[1];
    y[first] = a * cosine - b * sine;
    y[second] = a * sine + b * cosine;
}

__global__ void rope_kernel(const tsr_op_rope op)
{
    const int64_t half = op.n_rot / 2, items = op.head_dim - half; /* per head */
    const int64_t total = op.n_tokens * op.n_heads * items;
    for (int64_t i = tsr_flat_begin(); i < total; i += tsr_flat_step()) {
        const int64_t head = i / items, j = i % items;
        const float *x = op.x + head * op.head_dim;
        float *y = op.y + head * op.head_dim;
        const float *angle = op.table + head / op.n_heads * op.n_rot + 2 * j;
        if (j >= half)
            y[half + j] = x[half + j];
        else if (op.interleaved)
            rope_pair(x, y, 2 * j, 2 * j + 1, angle);
        else
            rope_pair(x, y, j, j + half, angle);
    }
}

extern "C" tsr_status tsr_cuda_rope(const tsr_op_rope *op, const tsr_cuda_stream *s)
{
    const int64_t items = op->n_tokens * op->n_heads * (op->head_dim - op->n_rot / 2);
    if (items == 0)
        return TSR_OK;
    return tsr_cuda_result(
        TSR_LAUNCH(rope_kernel, tsr_flat_grid(items, s), dim3(TSR_FLAT_THREADS), 0, s->stream, *op),
        "rope_kernel");
}
