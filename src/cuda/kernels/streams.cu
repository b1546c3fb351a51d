/* stream_weights, stream_mix (core/op.h).
 *
 * weights   a block of 64 threads per token: thread i n + j has C[i][j], in shared memory, and adds up its
 *           row or its column in order; a barrier between one division and the next.
 * mix       a thread per element of a stream; it reads every stream once. */
#include "cuda/kernels/common.cuh"

enum { STREAM_CELLS = TSR_MAX_STREAMS * TSR_MAX_STREAMS };

TSR_DEVICE float stream_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* The sum of n cells, `step` apart. */
TSR_DEVICE float stream_sum(const float *cells, int n, int step)
{
    float sum = 0.0f;
    for (int i = 0; i < n; i++)
        sum = sum + cells[i * step];
    return sum;
}

/* Divide this thread's cell of c by the sum of the n cells from `from` on, `step` apart. */
TSR_DEVICE void stream_divide(float *c, int cell, int from, int n, int step, float eps, bool used)
{
    const float value = used ? c[cell] / (stream_sum(c + from, n, step) + eps) : 0.0f;
    __syncthreads();
    if (used)
        c[cell] = value;
    __syncthreads();
}

static __global__ void __launch_bounds__(STREAM_CELLS) stream_weights_kernel(const tsr_op_stream_weights op)
{
    __shared__ float c[STREAM_CELLS];
    tsr_begin_early();
    const int n = (int)op.n, cell = (int)threadIdx.x, i = cell / n, j = cell - i * n;
    const int64_t width = op.mixes ? (2 + n) * n : n;
    const float *x = op.x + blockIdx.x * width;
    float *y = op.y + blockIdx.x * width;
    const bool used = op.mixes && cell < n * n;
    float mine = used ? op.scale[2] * x[2 * n + cell] + op.base[2 * n + cell] : 0.0f;
    if (cell < n)
        y[cell] = stream_sigmoid(op.scale[0] * x[cell] + op.base[cell]) + op.eps;
    else if (op.mixes && cell < 2 * n)
        y[cell] = 2.0f * stream_sigmoid(op.scale[1] * x[cell] + op.base[cell]);
    if (!op.mixes) /* the same in all threads */
        return;
    if (used)
        c[cell] = mine;
    __syncthreads();
    float top = mine;
    for (int k = 0; used && k < n; k++)
        top = fmaxf(top, c[i * n + k]);
    __syncthreads();
    if (used)
        c[cell] = expf(mine - top);
    __syncthreads();
    mine = used ? c[cell] / stream_sum(c + i * n, n, 1) + op.eps : 0.0f;
    __syncthreads();
    if (used)
        c[cell] = mine;
    __syncthreads();
    stream_divide(c, cell, j, n, n, op.eps, used);
    for (int64_t k = 1; k < op.iterations; k++) {
        stream_divide(c, cell, i * n, n, 1, op.eps, used);
        stream_divide(c, cell, j, n, n, op.eps, used);
    }
    if (used)
        y[2 * n + cell] = c[cell];
}

extern "C" tsr_status tsr_cuda_stream_weights(const tsr_op_stream_weights *op, const tsr_cuda_stream *s)
{
    if (op->n_tokens == 0)
        return TSR_OK;
    return tsr_cuda_result(
        TSR_LAUNCH_EARLY(stream_weights_kernel, dim3((unsigned)op->n_tokens), dim3(STREAM_CELLS), 0, s, *op),
        "stream_weights_kernel");
}

/* Grid: tokens, columns. */
static __global__ void __launch_bounds__(TSR_CUDA_MIX_THREADS) stream_mix_kernel(const tsr_op_stream_mix op)
{
    tsr_begin_early();
    const int64_t t = blockIdx.x, column = (int64_t)blockIdx.y * TSR_CUDA_MIX_THREADS + threadIdx.x;
    const int n_in = (int)op.n_in, n_out = (int)op.n_out;
    const float *weights = op.weights ? op.weights + t * op.n_weights : NULL;
    float x[TSR_MAX_STREAMS];
    if (column >= op.n)
        return;
    TSR_UNROLL
    for (int j = 0; j < TSR_MAX_STREAMS; j++)
        x[j] = j < n_in ? op.x[(t * n_in + j) * op.n + column] : 0.0f;
    const float add = op.add ? op.add[t * op.n + column] : 0.0f;
    for (int k = 0; k < n_out; k++) {
        float sum = op.weights ? weights[op.first + k] * x[0] : x[0];
        TSR_UNROLL
        for (int j = 1; j < TSR_MAX_STREAMS; j++)
            if (j < n_in)
                sum = sum + weights[op.first + j * n_out + k] * x[j];
        if (op.add)
            sum = sum + weights[op.add_first + k] * add;
        op.y[(t * n_out + k) * op.n + column] = sum;
    }
}

extern "C" tsr_status tsr_cuda_stream_mix(const tsr_op_stream_mix *op, const tsr_cuda_stream *s)
{
    if (op->n_tokens == 0 || op->n == 0)
        return TSR_OK;
    const dim3 grid((unsigned)op->n_tokens,
                    (unsigned)((op->n + TSR_CUDA_MIX_THREADS - 1) / TSR_CUDA_MIX_THREADS));
    return tsr_cuda_result(TSR_LAUNCH_EARLY(stream_mix_kernel, grid, dim3(TSR_CUDA_MIX_THREADS), 0, s, *op),
                           "stream_mix_kernel");
}
