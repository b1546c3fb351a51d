/* conv (core/op.h): one thread per channel and sequence, token after token. The last inputs are in registers;
 * a shorter kernel has weights of zero in front. */
#include "cuda/kernels/glu.cuh"

enum { CONV_THREADS = 128 };

static __global__ void __launch_bounds__(CONV_THREADS) conv_kernel(const tsr_op_conv op)
{
    tsr_begin_early();
    const tsr_state_row row = op.index.rows[blockIdx.y];
    const int64_t c = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x;
    const int kept = (int)op.kernel - 1, skipped = TSR_MAX_CONV_KERNEL - (int)op.kernel;
    if (row.first < 0 || c >= op.n)
        return;
    const float *before = op.state.base + row.read * op.state.slot_elems + c * kept;
    float w[TSR_MAX_CONV_KERNEL], inputs[TSR_MAX_CONV_KERNEL];
    TSR_UNROLL
    for (int k = 0; k < TSR_MAX_CONV_KERNEL; k++) {
        const int tap = k - skipped;
        w[k] = tap >= 0 ? op.w[c * op.kernel + tap] : 0.0f;
        inputs[k] = tap >= 0 && tap < kept && row.read >= 0 ? before[tap] : 0.0f;
    }
    const float bias = op.bias ? op.bias[c] : 0.0f;
    for (int64_t t = row.first; t >= 0; t = op.index.next[t]) {
        float sum = bias;
        inputs[TSR_MAX_CONV_KERNEL - 1] = op.x[t * op.stride + c];
        TSR_UNROLL
        for (int k = 0; k < TSR_MAX_CONV_KERNEL; k++)
            sum = fmaf(w[k], inputs[k], sum);
        op.y[t * op.stride + c] = op.silu ? tsr_silu(sum) : sum;
        TSR_UNROLL
        for (int k = 0; k + 1 < TSR_MAX_CONV_KERNEL; k++)
            inputs[k] = inputs[k + 1];
    }
    float *after = op.state.base + row.write * op.state.slot_elems + c * kept;
    TSR_UNROLL
    for (int k = 0; k + 1 < TSR_MAX_CONV_KERNEL; k++)
        if (k >= skipped)
            after[k - skipped] = inputs[k];
}

extern "C" tsr_status tsr_cuda_conv(const tsr_op_conv *op, const tsr_cuda_stream *s)
{
    if (op->n_tokens == 0 || op->n == 0)
        return TSR_OK;
    const dim3 grid((unsigned)((op->n + CONV_THREADS - 1) / CONV_THREADS), (unsigned)op->index.n_rows);
    return tsr_cuda_result(TSR_LAUNCH_EARLY(conv_kernel, grid, dim3(CONV_THREADS), 0, s, *op), "conv_kernel");
}
