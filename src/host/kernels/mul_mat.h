/* mul_mat: y[t][r] = sum_k w[r][k] x[t][k], as one sum or as granule sums in the reduction's format.
 *
 * Plain types are multiplied as floats (mul_mat_plain.h), the common quantized ones as integers
 * (mul_mat_quant.h), either of them in one way for one token, where memory sets the pace, and in another for
 * many, with the same bits. Quantized types that are met less often are decoded to floats first.
 *
 * Threads take chunks of rows from the team's counter, because cores do not run at equal speed for long. */
#ifndef TSR_HOST_KERNELS_MUL_MAT_H
#define TSR_HOST_KERNELS_MUL_MAT_H

#include "host/kernels/mul_mat_plain.h"
#include "host/kernels/mul_mat_quant.h"

typedef union mul_mat_scratch {
    plain_scratch plain;
    quant_scratch quant;
} mul_mat_scratch;

/* Most rows of a product at once; a multiple of every register tile's rows. */
enum { MUL_MAT_MAX_ROWS = (int)TILE_ROWS < (int)QUANT_TILE_ROWS ? (int)TILE_ROWS : (int)QUANT_TILE_ROWS };

/* One token of quantized weights is encoded once per thread, if it fits. */
ALWAYS_INLINE bool mul_mat_encodes_once(const tsr_op_mul_mat *op)
{
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
    return op->n_tokens == 1 && !multiplies_floats(op->type) && op->k <= (int64_t)QUANT_MAX_BLOCKS * X_BLOCK;
#else
    (void)op;
    return false;
#endif
}

/* Before the first of a thread's products with the same token rows. */
static void mul_mat_begin(const product *p, mul_mat_scratch *scratch)
{
    if (mul_mat_encodes_once(p->op))
        x_encode(product_x(p, 0), p->op->k, quant_x_limit(p->op->type), scratch->quant.x);
}

/* An empty sum is zero: a device may hold rows of a matrix but none of its columns. */
static void mul_mat_clear(const product *p)
{
    const tsr_op_mul_mat *op = p->op;
    const size_t elem = op->partial ? tsr_reduce_bytes(op->reduce) : sizeof(float);
    for (int64_t t = 0; t < op->n_tokens; t++) {
        const int64_t at = (p->y_rows ? p->y_rows[t] : t) * op->y_stride + p->row;
        memset((char *)op->y + (size_t)at * elem, 0, (size_t)(p->row_end - p->row) * elem);
    }
}

/* Compute a product of at most MUL_MAT_MAX_ROWS rows, after mul_mat_begin(). */
static void mul_mat_product(const product *p, mul_mat_scratch *scratch)
{
    const tsr_op_mul_mat *op = p->op;
    if (op->k == 0)
        mul_mat_clear(p);
    else if (is_plain(op->type) && op->n_tokens == 1)
        plain_vector(p);
    else if (multiplies_floats(op->type))
        plain_tile(p, &scratch->plain);
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
    else if (mul_mat_encodes_once(op))
        quant_vector(p, scratch->quant.x);
#endif
    else
        quant_tile_product(p, &scratch->quant);
}

/* Rows that a thread takes at once, a multiple of the register tile. About four chunks per thread even out
 * the threads' speeds; few tokens take the least, to walk along a few rows rather than jump among many. */
static int64_t mul_mat_chunk(const tsr_op_mul_mat *op, int n_threads)
{
    const int64_t tile = multiplies_floats(op->type) ? DOT_ROWS : QUANT_ROWS;
    const int64_t most = op->n_tokens == 1 ? 64 : op->n_tokens <= FEW_TOKENS ? tile : MUL_MAT_MAX_ROWS;
    const int64_t even = op->n_rows / ((int64_t)n_threads * 4) / tile * tile;
    return even < tile ? tile : even < most ? even : most;
}

static void kernel_mul_mat(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_mul_mat *op = &record->mul_mat;
    const int64_t chunk = mul_mat_chunk(op, env->n_threads);
    bool fault = false;
    product p = {.op = op, .fault = &fault};
    mul_mat_begin(&p, env->scratch);
    while ((p.row = tsr_kernel_next(env) * chunk) < op->n_rows) {
        p.row_end = op->n_rows - p.row < chunk ? op->n_rows : p.row + chunk;
        mul_mat_product(&p, env->scratch);
    }
    if (fault)
        atomic_store_explicit(env->range_fault, 1, memory_order_relaxed);
}

#endif
