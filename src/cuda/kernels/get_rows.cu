/* y[j][:] = row ids[j] of a table of any weight type, [n_ids][n_cols] dense, as f32 or fixed point: one
 * thread per octet. Rows that this device does not hold give zeros. */
#include "cuda/kernels/mul_mat/quant.cuh"

/* Store in the format of `reduce`; F32 if the output is no partial. */
TSR_DEVICE void put(const tsr_op_get_rows &op, int64_t at, const tsr_octet &o, int left,
                    tsr_reduce_type reduce, tsr_fault_word fault)
{
    bool bad = false;
    TSR_UNROLL
    for (int i = 0; i < TSR_OCTET; i++) {
        if (i >= left)
            break;
        const float value = tsr_octet_value(o, i);
        if (reduce == TSR_REDUCE_EXACT)
            static_cast<int64_t *>(op.y)[at + i] = tsr_fixed_of(value, op.limit, &bad);
        else
            tsr_put_sum(op.y, at + i, value, reduce == TSR_REDUCE_BF16);
    }
    if (bad)
        tsr_fault_raise(fault);
}

template <tsr_type TYPE>
static __global__ void get_rows_kernel(const tsr_op_get_rows op, bool wide, tsr_reduce_type reduce,
                                       tsr_fault_word fault)
{
    const int64_t octets = (op.n_cols + TSR_OCTET - 1) / TSR_OCTET;
    tsr_begin_early();
    for (int64_t i = tsr_flat_begin(); i < octets * op.n_ids; i += tsr_flat_step()) {
        const int64_t j = i / octets, column = i % octets * TSR_OCTET, id = op.ids[j];
        const int left = tsr_octet_length(op.n_cols - column);
        tsr_octet o = {};
        if (id >= op.row_begin && id < op.row_end)
            tsr_octet_load<TYPE>(static_cast<const unsigned char *>(op.table) +
                                     (size_t)(id - op.row_begin) * op.table_stride,
                                 column, left, wide, &o, op.type);
        put(op, j * op.n_cols + column, o, left, reduce, fault);
    }
}

extern "C" tsr_status tsr_cuda_get_rows(const tsr_op_get_rows *op, const tsr_cuda_stream *s)
{
    const int64_t octets = (op->n_cols + TSR_OCTET - 1) / TSR_OCTET * op->n_ids;
    if (octets == 0)
        return TSR_OK;
    const dim3 grid = tsr_flat_grid(octets, s), block(TSR_FLAT_THREADS);
    const bool wide = tsr_wide_rows(op->table, op->table_stride);
    const tsr_reduce_type reduce = op->partial ? op->reduce : TSR_REDUCE_F32;
    switch (tsr_kernel_type(op->type)) {
#define GET_ROWS_CASE(type)                                                                            \
    case type:                                                                                         \
        return tsr_cuda_result(TSR_LAUNCH_EARLY((get_rows_kernel<type>), grid, block, 0, s, *op, wide, \
                                                reduce, tsr_fault_of(s)),                              \
                               "get_rows_kernel");
        TSR_FOR_EACH_WEIGHT_TYPE(GET_ROWS_CASE)
#undef GET_ROWS_CASE
    default:
        return tsr_cuda_result(cudaErrorNotSupported, "get_rows_kernel");
    }
}
