/* Reading ranks' partials and adding them up: what the all-reduce kernels share. */
#ifndef TSR_CUDA_REDUCE_CUH
#define TSR_CUDA_REDUCE_CUH

#include "cuda/common.cuh"

/* V neighbouring elements, loaded and stored at once. */
template <typename T, int V> struct alignas(V * sizeof(T)) tsr_pack {
    T at[V];
};

TSR_DEVICE float tsr_sum_to_f32(int64_t sum)
{
    return tsr_fixed_value(sum);
}

TSR_DEVICE float tsr_sum_to_f32(float sum)
{
    return sum;
}

/* Pack i of the sum, parts in order (which matters to F32 only). Several parts' loads are under way at once:
 * from another GPU each takes the better part of a microsecond. */
template <typename Partial, int V>
TSR_DEVICE tsr_pack<float, V> tsr_sum_of_parts(const tsr_cuda_reduction &reduction, int64_t i)
{
    tsr_pack<Partial, V> sum = static_cast<const tsr_pack<Partial, V> *>(reduction.parts[0])[i];
    TSR_UNROLL_BY(4)
    for (int j = 1; j < reduction.n_parts; j++) {
        const tsr_pack<Partial, V> part = static_cast<const tsr_pack<Partial, V> *>(reduction.parts[j])[i];
        TSR_UNROLL
        for (int v = 0; v < V; v++)
            sum.at[v] = sum.at[v] + part.at[v];
    }
    tsr_pack<float, V> value;
    TSR_UNROLL
    for (int v = 0; v < V; v++)
        value.at[v] = tsr_sum_to_f32(sum.at[v]);
    return value;
}

/* y = value (+ residual), pack i. */
template <int V>
TSR_DEVICE void tsr_store_sum(const tsr_cuda_reduction &reduction, int64_t i, tsr_pack<float, V> value)
{
    if (reduction.residual) {
        const tsr_pack<float, V> residual =
            reinterpret_cast<const tsr_pack<float, V> *>(reduction.residual)[i];
        TSR_UNROLL
        for (int v = 0; v < V; v++)
            value.at[v] = value.at[v] + residual.at[v];
    }
    reinterpret_cast<tsr_pack<float, V> *>(reduction.y)[i] = value;
}

#endif
