/* How small a piece of a tensor may be: the granule of each tensor class, from shape facts alone. */
#include <tsr/split.h>

#include "core/mem.h"
#include "core/status.h"

tsr_status tsr_granule_attention(int64_t head_dim, int64_t n_head, int64_t n_head_kv, int64_t block_elems,
                                 int64_t *kv_heads_out)
{
    int64_t columns;

    if (head_dim < 1 || n_head < 1 || n_head_kv < 1 || block_elems < 1 || !kv_heads_out)
        return tsr_fail(
            TSR_ERR_INVALID,
            "attention of %lld heads of %lld, %lld KV heads, blocks of %lld: all must be positive",
            (long long)n_head, (long long)head_dim, (long long)n_head_kv, (long long)block_elems);
    if (n_head % n_head_kv)
        return tsr_fail(
            TSR_ERR_INVALID,
            "attention has %lld heads for %lld KV heads: the query groups are unequal, which is no "
            "grouped-query attention",
            (long long)n_head, (long long)n_head_kv);
    if (__builtin_mul_overflow(head_dim, n_head, &columns) || columns % block_elems)
        return tsr_fail(TSR_ERR_INVALID,
                        "attention output has %lld heads of %lld columns, no multiple of its quantization "
                        "block of %lld: the tensor is malformed",
                        (long long)n_head, (long long)head_dim, (long long)block_elems);
    *kv_heads_out = block_elems / tsr_gcd(block_elems, columns / n_head_kv);
    return TSR_OK;
}

tsr_status tsr_granule_ffn(int64_t n_ff, int64_t block_elems, int64_t *columns_out)
{
    enum { VECTOR_COLUMNS = 128 };
    int64_t columns;

    if (n_ff < 1 || block_elems < 1 || n_ff % block_elems || !columns_out)
        return tsr_fail(TSR_ERR_INVALID,
                        "FFN of %lld columns in quantization blocks of %lld: it must be whole blocks, the "
                        "tensor is malformed",
                        (long long)n_ff, (long long)block_elems);
    if (__builtin_mul_overflow(block_elems / tsr_gcd(block_elems, VECTOR_COLUMNS), VECTOR_COLUMNS, &columns))
        columns = n_ff;
    *columns_out = TSR_MIN(columns, n_ff);
    return TSR_OK;
}
