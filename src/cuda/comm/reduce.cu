/* Sums of several ranks' partials, [n] each, to f32, with a residual and (for the same rows) the following
 * norm: for one device alone, and as the one-shot all-reduce between devices that read each other's memory.
 * The pointers are kernel parameters. */
#include "cuda/comm/device_barrier.cuh"
#include "cuda/comm/reduce.cuh"

/* 16 bytes of partials per thread and part. */
enum {
    REDUCE_THREADS = TSR_ROW_THREADS,
    EXACT_PACK = 2,
    F32_PACK = 4,
    BF16_PACK = 8,
    REDUCE_PER_BLOCK = 1024
};

template <typename Partial, int V>
static __global__ void reduce_kernel(const __grid_constant__ tsr_cuda_barrier barrier,
                                     const __grid_constant__ tsr_cuda_reduction reduction)
{
    tsr_wait_for_previous();
    tsr_barrier_wait(barrier);
    tsr_start_next();
    const int64_t n = reduction.n / V, step = (int64_t)gridDim.x * REDUCE_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * REDUCE_THREADS + threadIdx.x; i < n; i += step)
        tsr_store_sum<V>(reduction, i, tsr_sum_of_parts<Partial, V>(reduction, i));
}

/* A thread's elements of a row of the sum, from element `at` on, of which `left` are left. All loads of a
 * part are in flight together. */
template <typename Partial>
TSR_DEVICE tsr_row_batch row_sums(const tsr_cuda_reduction &reduction, int64_t at, int64_t left)
{
    typename tsr_sum_of<Partial>::sum sum[TSR_ROW_BATCH];
    const Partial *from = static_cast<const Partial *>(reduction.parts[0]) + at;
    TSR_UNROLL
    for (int j = 0; j < TSR_ROW_BATCH; j++)
        sum[j] = j * TSR_ROW_THREADS < left ? tsr_part_to_add(from[j * TSR_ROW_THREADS]) : 0;
    for (int part = 1; part < reduction.n_parts; part++) {
        from = static_cast<const Partial *>(reduction.parts[part]) + at;
        TSR_UNROLL
        for (int j = 0; j < TSR_ROW_BATCH; j++)
            if (j * TSR_ROW_THREADS < left)
                sum[j] = sum[j] + tsr_part_to_add(from[j * TSR_ROW_THREADS]);
    }
    tsr_row_batch batch;
    TSR_UNROLL
    for (int j = 0; j < TSR_ROW_BATCH; j++)
        batch.at[j] = tsr_sum_of<Partial>::to_f32(sum[j]);
    return batch;
}

/* One block per row, in the order of rms_norm.cu. Every thread reads again only its own results. */
template <typename Partial>
static __global__ void reduce_norm_kernel(const __grid_constant__ tsr_cuda_barrier barrier,
                                          const __grid_constant__ tsr_cuda_reduction reduction,
                                          const __grid_constant__ tsr_op_rms_norm norm)
{
    __shared__ float shared[TSR_ROW_WARPS];
    if (norm.weight)
        tsr_prefetch(norm.weight, norm.n);
    tsr_wait_for_previous();
    tsr_barrier_wait(barrier);
    tsr_start_next();
    for (int64_t r = blockIdx.x; r < norm.n_rows; r += gridDim.x) {
        const int64_t row = r * norm.n;
        float sum = 0.0f;
        for (int64_t first = threadIdx.x; first < norm.n; first += TSR_ROW_STEP) {
            tsr_row_batch residual = {};
            if (reduction.residual)
                residual = tsr_row_load(reduction.residual + row, first, norm.n);
            const tsr_row_batch value = row_sums<Partial>(reduction, row + first, norm.n - first);
            sum = tsr_store_row(reduction, norm, row, first, residual, value, sum);
        }
        tsr_norm_row(norm, reduction.y + row, sum, norm.y + row, shared);
    }
}

/* -- launchers -- */

/* Whether every access of a pack is aligned, and no elements remain. */
static bool can_pack(const tsr_cuda_reduction *reduction, int pack)
{
    const size_t part_bytes = 16, value_bytes = (size_t)pack * sizeof(float);
    bool can = reduction->n % pack == 0 && (uintptr_t)reduction->y % value_bytes == 0 &&
               (uintptr_t)reduction->residual % value_bytes == 0;
    for (int j = 0; j < reduction->n_parts; j++)
        can = can && (uintptr_t)reduction->parts[j] % part_bytes == 0;
    return can;
}

template <typename Partial, int V>
static tsr_status launch_reduce(const tsr_cuda_barrier *barrier, const tsr_cuda_reduction *reduction,
                                dim3 grid, const tsr_cuda_stream *s)
{
    const dim3 block(REDUCE_THREADS);
    return tsr_cuda_result(
        can_pack(reduction, V)
            ? TSR_LAUNCH_EARLY((reduce_kernel<Partial, V>), grid, block, 0, s, *barrier, *reduction)
            : TSR_LAUNCH_EARLY((reduce_kernel<Partial, 1>), grid, block, 0, s, *barrier, *reduction),
        "reduce_kernel");
}

template <typename Partial>
static tsr_status launch_reduce_norm(const tsr_cuda_barrier *barrier, const tsr_cuda_reduction *reduction,
                                     const tsr_op_rms_norm *norm, dim3 grid, const tsr_cuda_stream *s)
{
    return tsr_cuda_result(TSR_LAUNCH_EARLY((reduce_norm_kernel<Partial>), grid, dim3(REDUCE_THREADS), 0, s,
                                            *barrier, *reduction, *norm),
                           "reduce_norm_kernel");
}

template <typename Partial, int V>
static tsr_status launch_type(const tsr_cuda_barrier *barrier, const tsr_cuda_reduction *reduction,
                              const tsr_op_rms_norm *norm, dim3 grid, const tsr_cuda_stream *s)
{
    return norm ? launch_reduce_norm<Partial>(barrier, reduction, norm, grid, s)
                : launch_reduce<Partial, V>(barrier, reduction, grid, s);
}

static tsr_status launch(const tsr_cuda_barrier *barrier, const tsr_cuda_reduction *reduction,
                         const tsr_op_rms_norm *norm, dim3 grid, const tsr_cuda_stream *s)
{
    switch (reduction->type) {
    case TSR_REDUCE_EXACT:
        return launch_type<int64_t, EXACT_PACK>(barrier, reduction, norm, grid, s);
    case TSR_REDUCE_F32:
        return launch_type<float, F32_PACK>(barrier, reduction, norm, grid, s);
    case TSR_REDUCE_BF16:
        return launch_type<tsr_bfloat, BF16_PACK>(barrier, reduction, norm, grid, s);
    }
    return tsr_cuda_result(cudaErrorNotSupported, "reduce_kernel");
}

static unsigned blocks_for(int64_t n, int64_t most)
{
    const int64_t blocks = (n + REDUCE_PER_BLOCK - 1) / REDUCE_PER_BLOCK;
    return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

extern "C" tsr_status tsr_cuda_reduce(const tsr_cuda_reduction *reduction, const tsr_op_rms_norm *norm,
                                      const tsr_cuda_stream *s)
{
    static const tsr_cuda_barrier alone = {};
    if (reduction->n == 0)
        return TSR_OK;
    const dim3 grid =
        norm ? tsr_row_grid(norm->n_rows, s) : dim3(blocks_for(reduction->n, (int64_t)s->props->n_sms * 8));
    return launch(&alone, reduction, norm, grid, s);
}

extern "C" tsr_status tsr_cuda_barrier_reduce(const tsr_cuda_barrier *barrier,
                                              const tsr_cuda_reduction *reduction,
                                              const tsr_op_rms_norm *norm, const tsr_cuda_stream *s)
{
    return launch(barrier, reduction, norm, dim3(blocks_for(reduction->n, barrier->max_blocks)), s);
}
