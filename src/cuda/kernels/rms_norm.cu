/* rms_norm, and LayerNorm (core/op.h): one block per row of [n_rows][n]; and the halves of a norm of divided
 * rows: sum_squares, also one block per row, and rms_scale, one thread per element. */
#include "cuda/kernels/rms_norm.cuh"

static __global__ void rms_norm_kernel(const tsr_op_rms_norm op)
{
    __shared__ float shared[TSR_ROW_WARPS];
    if (op.weight)
        tsr_prefetch(op.weight, op.n);
    tsr_begin_early();
    for (int64_t r = blockIdx.x; r < op.n_rows; r += gridDim.x) {
        const float *x = op.x + r * op.n;
        float sum = 0.0f;
        TSR_UNROLL_BY(8)
        for (int64_t i = threadIdx.x; i < op.n; i += TSR_ROW_THREADS)
            sum = tsr_norm_add(op, x[i], sum);
        tsr_norm_row(op, x, sum, op.y + r * op.n, shared);
    }
}

/* The same with a weight for each head. */
static __global__ void heads_norm_kernel(const tsr_op_rms_norm op)
{
    __shared__ float shared[TSR_ROW_WARPS];
    tsr_begin_early();
    for (int64_t r = blockIdx.x; r < op.n_rows; r += gridDim.x) {
        const float *x = op.x + r * op.n;
        tsr_op_rms_norm head = op;
        head.weight = op.weight + r % op.n_weights * op.n;
        float sum = 0.0f;
        TSR_UNROLL_BY(8)
        for (int64_t i = threadIdx.x; i < op.n; i += TSR_ROW_THREADS)
            sum = tsr_norm_add(op, x[i], sum);
        tsr_norm_row(head, x, sum, op.y + r * op.n, shared);
    }
}

extern "C" tsr_status tsr_cuda_rms_norm(const tsr_op_rms_norm *op, const tsr_cuda_stream *s)
{
    if (op->n_rows == 0 || op->n == 0)
        return TSR_OK;
    if (op->n_weights > 1)
        return tsr_cuda_result(TSR_LAUNCH_EARLY(heads_norm_kernel, tsr_row_grid(op->n_rows, s),
                                                dim3(TSR_ROW_THREADS), 0, s, *op),
                               "heads_norm_kernel");
    return tsr_cuda_result(
        TSR_LAUNCH_EARLY(rms_norm_kernel, tsr_row_grid(op->n_rows, s), dim3(TSR_ROW_THREADS), 0, s, *op),
        "rms_norm_kernel");
}

/* A granule's sum is added by every thread, and written by one. */
static __global__ void sum_squares_kernel(const tsr_op_sum_squares op, tsr_fault_word fault)
{
    __shared__ float shared[TSR_ROW_WARPS];
    tsr_begin_early();
    for (int64_t r = blockIdx.x; r < op.n_rows; r += gridDim.x) {
        const float *x = op.x + r * op.n;
        int64_t coarse_sum = 0, fine_sum = 0;
        float plain = 0.0f;
        bool bad = false;
        for (int64_t first = 0; first < op.n; first += op.granule) {
            const int64_t end = first + op.granule < op.n ? first + op.granule : op.n;
            float sum = 0.0f;
            for (int64_t i = first + threadIdx.x; i < end; i += TSR_ROW_THREADS)
                sum = fmaf(x[i], x[i], sum);
            sum = tsr_block_sum(sum, shared);
            plain = plain + sum;
            const float coarse = rintf(sum / op.limit);
            coarse_sum += tsr_fixed_of(coarse, op.limit, &bad);
            fine_sum += tsr_fixed_of(fmaf(-coarse, op.limit, sum), op.limit, &bad);
        }
        if (threadIdx.x > 0)
            continue;
        if (op.reduce == TSR_REDUCE_EXACT) {
            static_cast<int64_t *>(op.y)[2 * r] = coarse_sum;
            static_cast<int64_t *>(op.y)[2 * r + 1] = fine_sum;
            if (bad)
                tsr_fault_raise(fault);
        } else {
            tsr_put_sum(op.y, 2 * r, 0.0f, op.reduce == TSR_REDUCE_BF16);
            tsr_put_sum(op.y, 2 * r + 1, plain, op.reduce == TSR_REDUCE_BF16);
        }
    }
}

extern "C" tsr_status tsr_cuda_sum_squares(const tsr_op_sum_squares *op, const tsr_cuda_stream *s)
{
    if (op->n_rows == 0)
        return TSR_OK;
    return tsr_cuda_result(TSR_LAUNCH_EARLY(sum_squares_kernel, tsr_row_grid(op->n_rows, s),
                                            dim3(TSR_ROW_THREADS), 0, s, *op, tsr_fault_of(s)),
                           "sum_squares_kernel");
}

static __global__ void rms_scale_kernel(const tsr_op_rms_scale op)
{
    tsr_begin_early();
    for (int64_t i = tsr_flat_begin(); i < op.n * op.n_rows; i += tsr_flat_step()) {
        const float *squares = op.squares + 2 * (i / op.n);
        const float scale = 1.0f / sqrtf(fmaf(squares[0], op.unit, squares[1]) / (float)op.n_all + op.eps);
        op.y[i] = op.x[i] * scale * op.weight[i % op.n];
    }
}

extern "C" tsr_status tsr_cuda_rms_scale(const tsr_op_rms_scale *op, const tsr_cuda_stream *s)
{
    const int64_t n = op->n * op->n_rows;
    if (n == 0)
        return TSR_OK;
    return tsr_cuda_result(
        TSR_LAUNCH_EARLY(rms_scale_kernel, tsr_flat_grid(n, s), dim3(TSR_FLAT_THREADS), 0, s, *op),
        "rms_scale_kernel");
}
