/* y[r] = index of the largest x[r][i] of [n_rows][n], the lowest index of equals: one block per row. A NaN
 * never wins; a row of NaNs gives 0. */
#include "cuda/kernels/common.cuh"

enum { ARGMAX_THREADS = 1024 }; /* vocabularies are long, and there are few rows */

struct candidate {
    float value;
    int32_t index; /* INT32_MAX: no element yet */
};

/* INT32_MAX as an index loses every tie, so an empty candidate loses against -infinity too. */
TSR_DEVICE bool beats(const candidate &a, const candidate &b)
{
    return a.value > b.value || (a.value == b.value && a.index < b.index);
}

static __global__ void argmax_kernel(const tsr_op_argmax op)
{
    __shared__ candidate shared[ARGMAX_THREADS];
    tsr_begin_early();
    for (int64_t r = blockIdx.x; r < op.n_rows; r += gridDim.x) {
        const float *x = op.x + r * op.n;
        candidate best = {-INFINITY, INT32_MAX};
        for (int64_t i = threadIdx.x; i < op.n; i += ARGMAX_THREADS) {
            const candidate next = {x[i], (int32_t)i};
            if (beats(next, best))
                best = next;
        }
        shared[threadIdx.x] = best;
        for (unsigned n = ARGMAX_THREADS / 2; n > 0; n /= 2) {
            __syncthreads();
            if (threadIdx.x < n && beats(shared[threadIdx.x + n], shared[threadIdx.x]))
                shared[threadIdx.x] = shared[threadIdx.x + n];
        }
        if (threadIdx.x == 0)
            op.y[r] = shared[0].index == INT32_MAX ? 0 : shared[0].index;
        __syncthreads(); /* the next row overwrites shared[] */
    }
}

extern "C" tsr_status tsr_cuda_argmax(const tsr_op_argmax *op, const tsr_cuda_stream *s)
{
    if (op->n_rows == 0)
        return TSR_OK;
    return tsr_cuda_result(
        TSR_LAUNCH_EARLY(argmax_kernel, tsr_row_grid(op->n_rows, s), dim3(ARGMAX_THREADS), 0, s, *op),
        "argmax_kernel");
}
