/* The addresses of keys and values in the paged cache (tsr_kv_view, tsr_kv_index in core/op.h). */
#ifndef TSR_CUDA_KERNELS_KV_CUH
#define TSR_CUDA_KERNELS_KV_CUH

#include "cuda/kernels/common.cuh"

/* Byte offset from kv.base of the page that contains `position` of a sequence, and the row of (head,
 * position) inside a layer's keys or values there. */
struct tsr_kv_place {
    size_t page;
    int64_t row;
};

/* tsr_kv_seen(). */
TSR_DEVICE int64_t tsr_kv_n_seen(const tsr_kv_view &kv, int64_t position)
{
    return kv.ratio > 1 ? tsr_divide(position + 1, kv.ratio).of : position + 1;
}

TSR_DEVICE tsr_kv_place tsr_kv_find(const tsr_kv_view &kv, const tsr_kv_index &index, int64_t seq_row,
                                    int64_t position, int64_t head)
{
    const tsr_quotient at = tsr_divide(position, kv.page_tokens);
    const int64_t page = index.page_table[seq_row * index.table_stride + at.of];
    return {(size_t)page * kv.page_bytes, head * kv.page_tokens + at.rest};
}

TSR_DEVICE unsigned char *tsr_kv_key(const tsr_kv_view &kv, const tsr_kv_place &place)
{
    return kv.base + place.page + kv.k_offset + (size_t)place.row * kv.k_row_bytes;
}

TSR_DEVICE unsigned char *tsr_kv_value(const tsr_kv_view &kv, const tsr_kv_place &place)
{
    return kv.base + place.page + kv.v_offset + (size_t)place.row * kv.v_row_bytes;
}

#endif
