/* Reading ranks' partials and adding them up, for all all-reduce kernels. */
#ifndef TSR_CUDA_COMM_REDUCE_CUH
#define TSR_CUDA_COMM_REDUCE_CUH

#include "cuda/kernels/common.cuh"
#include "cuda/kernels/rms_norm.cuh"

/* V neighbouring elements, loaded and stored together. */
template <typename T, int V> struct alignas(V * sizeof(T)) tsr_pack {
    T at[V];
};

/* The calling thread loads *address, or stores in it: memory that may be another device's or the host's. The
 * simulated machine counts the bytes. */
template <typename T> TSR_DEVICE void tsr_on_link(const T *address)
{
#ifdef TSR_CUDASIM
    cudasim_on_link(address, sizeof *address);
#endif
}

template <typename T> TSR_DEVICE T tsr_link_load(const T *from)
{
    tsr_on_link(from);
    return *from;
}

template <typename T> TSR_DEVICE void tsr_link_store(T *to, const T &value)
{
    tsr_on_link(to);
    *to = value;
}

/* Elements of a BF16 partial. */
struct tsr_bfloat {
    uint16_t bits;
};

/* The type in which partials of a type are added up, the type in which the sum is stored in a partial, and
 * its conversion to f32. */
TSR_DEVICE int64_t tsr_part_to_add(int64_t part)
{
    return part;
}

TSR_DEVICE float tsr_part_to_add(float part)
{
    return part;
}

TSR_DEVICE float tsr_part_to_add(tsr_bfloat part)
{
    return tsr_bfloat_to_f32(part.bits);
}

template <typename Partial> struct tsr_sum_of;

template <> struct tsr_sum_of<int64_t> {
    typedef int64_t sum;
    typedef float stored;
    TSR_DEVICE float to_f32(int64_t value)
    {
        return tsr_fixed_value(value);
    }
};

template <> struct tsr_sum_of<float> {
    typedef float sum;
    typedef float stored;
    TSR_DEVICE float to_f32(float value)
    {
        return value;
    }
};

/* Rounded once, so storing it is exact. */
template <> struct tsr_sum_of<tsr_bfloat> {
    typedef float sum;
    typedef tsr_bfloat stored;
    TSR_DEVICE float to_f32(float value)
    {
        return tsr_bfloat_to_f32(tsr_bfloat_from_f32(value));
    }
};

/* Pack i of the sum, parts in order (the order matters to floats only). The loads of several parts are in
 * flight together: from another GPU each takes the better part of a microsecond. */
template <typename Partial, int V>
TSR_DEVICE tsr_pack<float, V> tsr_sum_of_parts(const tsr_cuda_reduction &reduction, int64_t i)
{
    const tsr_pack<Partial, V> first =
        tsr_link_load(static_cast<const tsr_pack<Partial, V> *>(reduction.parts[0]) + i);
    typename tsr_sum_of<Partial>::sum sum[V];
    TSR_UNROLL
    for (int v = 0; v < V; v++)
        sum[v] = tsr_part_to_add(first.at[v]);
    TSR_UNROLL_BY(4)
    for (int j = 1; j < reduction.n_parts; j++) {
        const tsr_pack<Partial, V> part =
            tsr_link_load(static_cast<const tsr_pack<Partial, V> *>(reduction.parts[j]) + i);
        TSR_UNROLL
        for (int v = 0; v < V; v++)
            sum[v] = sum[v] + tsr_part_to_add(part.at[v]);
    }
    tsr_pack<float, V> value;
    TSR_UNROLL
    for (int v = 0; v < V; v++)
        value.at[v] = tsr_sum_of<Partial>::to_f32(sum[v]);
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

/* A thread's elements of a row, from `first` of the row at `row` on: y = value (+ residual, loaded before).
 * Returns `sum` with the stored values added as the norm needs them. */
TSR_DEVICE float tsr_store_row(const tsr_cuda_reduction &reduction, const tsr_op_rms_norm &norm, int64_t row,
                               int64_t first, const tsr_row_batch &residual, tsr_row_batch value, float sum)
{
    TSR_UNROLL
    for (int j = 0; j < TSR_ROW_BATCH; j++) {
        const int64_t i = first + j * TSR_ROW_THREADS;
        if (i >= norm.n)
            continue;
        if (reduction.residual)
            value.at[j] = value.at[j] + residual.at[j];
        reduction.y[row + i] = value.at[j];
        sum = tsr_norm_add(norm, value.at[j], sum);
    }
    return sum;
}

#endif
