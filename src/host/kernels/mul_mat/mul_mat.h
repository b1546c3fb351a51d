/* mul_mat: y[t][r] = sum_k w[r][k] x[t][k], as one sum or as granule sums in the reduction's format.
 *
 * Plain types are multiplied as floats (plain.h; with AMX, F16 and BF16 by half.h; BF16 as pairs by pairs.h),
 * quantized types as integers (quant.h). Each has one path for one token or a few, where memory limits the
 * speed, and another path for many tokens, with the same bits.
 *
 * Threads take pieces of rows, each thread first the pieces of its own share (host/share.h). */
#ifndef TSR_HOST_KERNELS_MUL_MAT_MUL_MAT_H
#define TSR_HOST_KERNELS_MUL_MAT_MUL_MAT_H

#include "host/kernels/mul_mat/plain.h"
#include "host/kernels/mul_mat/quant.h"
#include "host/kernels/mul_mat/pairs.h"
#if defined(TSR_ISA_AMX)
#include "host/kernels/mul_mat/half.h"
#endif

typedef struct mul_mat_scratch {
    union {
        plain_scratch plain;
        quant_scratch quant;
        pairs_scratch pairs;
#if defined(TSR_ISA_AMX)
        half_scratch half;
#endif
    };
    exact_totals totals;
} mul_mat_scratch;

/* Most tokens that are multiplied directly with the weights as they are read; weights that the first token
 * group has read are in the caches for the next groups. With more tokens a tile takes less time, although its
 * weights must be expanded first: with quantized weights and the vectors of AVX-512 (Zen 4) from 9 (Q6_K) to
 * 13 tokens on, with AVX2's from 7 (Q6_K) to 9 on. */
enum {
#if defined(TSR_ISA_AMX)
    WALK_QUANT_TOKENS = 1, /* more tokens take tiles */
#else
    WALK_QUANT_TOKENS = FEW_TOKENS,
#endif
    WALK_PLAIN_TOKENS = VECTOR_TOKENS > 1 ? FEW_TOKENS : 1
};

/* Whether the few tokens of an op with quantized weights are encoded before its first product (once per
 * thread, or per team: pack.h): if they fit. */
ALWAYS_INLINE bool mul_mat_encodes_once(const tsr_op_mul_mat *op)
{
#if defined(TSR_ISA_INT_VEC)
    return op->n_tokens <= WALK_QUANT_TOKENS && !is_float(op->type) &&
           op->n_tokens * op->k <= (int64_t)QUANT_MAX_BLOCKS * X_BLOCK;
#else
    (void)op;
    return false;
#endif
}

/* Before the first of a thread's products with the same token rows. */
static void mul_mat_begin(const product *p, mul_mat_scratch *scratch)
{
#if defined(TSR_ISA_AMX)
    if (half_walks(p->op))
        half_walk_pack(p, &scratch->half);
#endif
    if (pairs_walk(p))
        pairs_vector_round(p, scratch->pairs.x);
#if defined(TSR_ISA_INT_VEC)
    if (mul_mat_encodes_once(p->op) && !p->packed)
        quant_vector_encode(p, 0, p->op->n_tokens, scratch->quant.x);
#endif
}

/* Whether weights are multiplied as floats, for one token and for many. */
ALWAYS_INLINE bool mul_mat_is_float(tsr_type type)
{
#if defined(TSR_ISA_AMX)
    return type == TSR_TYPE_F32 || type == TSR_TYPE_NVFP4;
#else
    return is_float(type);
#endif
}

/* Whether the op has few tokens, multiplied as floats. */
ALWAYS_INLINE bool mul_mat_walks_plain(const product *p)
{
    return mul_mat_is_float(p->op->type) && !pairs_take(p) && p->op->n_tokens <= WALK_PLAIN_TOKENS;
}

/* An empty sum is zero: a device may hold rows of a matrix but none of its columns. */
static void mul_mat_clear(const product *p)
{
    const tsr_op_mul_mat *op = p->op;
    const size_t elem = op->partial ? tsr_reduce_bytes(op->reduce) : sizeof(float);
    for (int64_t t = p->token; t < p->token_end; t++) {
        const int64_t at = (p->y_rows ? p->y_rows[t] : t) * op->y_stride + p->row;
        memset((char *)op->y + (size_t)at * elem, 0, (size_t)(p->row_end - p->row) * elem);
    }
}

static void mul_mat_tile(const product *p, mul_mat_scratch *scratch)
{
#if defined(TSR_ISA_AMX)
    if (is_half(p->op->type)) {
        half_tiles(p, &scratch->half);
        return;
    }
#endif
    if (pairs_take(p))
        pairs_tile(p, &scratch->pairs);
    else if (is_float(p->op->type))
        plain_tile(p, &scratch->plain);
    else
        quant_tile_product(p, &scratch->quant);
}

/* Multiply many tokens. */
static void mul_mat_tiles(const product *p, mul_mat_scratch *scratch)
{
    product tiles = *p;
    tiles.totals = p->weights ? NULL : totals_begin(p->op, &scratch->totals);
    mul_mat_tile(&tiles, scratch);
    if (tiles.totals && !totals_hold(p->op, tiles.totals))
        mul_mat_tile(p, scratch);
}

/* Compute a product of at most a piece's rows (mul_mat_cut), after mul_mat_begin(). */
static void mul_mat_product(const product *p, mul_mat_scratch *scratch)
{
    const tsr_op_mul_mat *op = p->op;
    if (op->k == 0)
        mul_mat_clear(p);
#if defined(TSR_ISA_AMX)
    else if (half_walks(op))
        half_walk(p, &scratch->half);
#endif
    else if (pairs_walk(p))
        pairs_vector(p, scratch->pairs.x);
    else if (mul_mat_walks_plain(p))
        plain_vector(p);
#if defined(TSR_ISA_INT_VEC)
    else if (mul_mat_encodes_once(op))
        quant_vector(p, p->packed ? (const x_block *)(const void *)p->packed : scratch->quant.x);
#endif
    else
        mul_mat_tiles(p, scratch);
}

/* How an op is cut into pieces that threads take. */
typedef struct mul_mat_pieces {
    int64_t rows, tokens; /* of a piece */
    int64_t across;       /* pieces of the same rows */
    int64_t n;
} mul_mat_pieces;

enum { VECTOR_PIECE_ROWS = 1024 }; /* with few tokens, whose sums need no scratch */

/* Whether the product has one token or a few, multiplied as the weights are read. */
ALWAYS_INLINE bool mul_mat_is_vector(const product *p)
{
    const tsr_op_mul_mat *op = p->op;
    if (pairs_take(p))
        return pairs_walk(p);
#if defined(TSR_ISA_AMX)
    if (is_half(op->type))
        return half_walks(op);
#endif
    return mul_mat_walks_plain(p) || mul_mat_encodes_once(op);
}

/* The size of the register tile, and the most rows and tokens that fit into scratch. */
typedef struct mul_mat_shape {
    int64_t tile_rows, tile_tokens;
    int64_t rows, tokens;
} mul_mat_shape;

ALWAYS_INLINE mul_mat_shape mul_mat_shape_of(const product *p)
{
    const tsr_type type = p->op->type;
    if (pairs_take(p))
        return (mul_mat_shape){PAIR_ROWS, PAIR_SIDE, TILE_ROWS, PAIR_TILE_TOKENS};
#if defined(TSR_ISA_AMX)
    if (is_half(type))
        return (mul_mat_shape){HALF_ROWS, HALF_TOKENS, HALF_TILE_ROWS, HALF_TILE_TOKENS};
#endif
    if (is_float(type))
        return (mul_mat_shape){DOT_ROWS, DOT_TOKENS, TILE_ROWS, TILE_TOKENS};
    return (mul_mat_shape){QUANT_ROWS, QUANT_TOKENS, QUANT_TILE_ROWS, QUANT_TILE_TOKENS};
}

/* Pieces are multiples of the register tile. About four per thread even out the threads' speeds. One token
 * takes long pieces, because the prefetch at the end of a thread's last piece reads another thread's weights.
 * A few tokens take as few rows as possible, for a few long streams rather than many short ones. Many tokens
 * are cut where scratch ends. */
static mul_mat_pieces mul_mat_cut(const product *p)
{
    const tsr_op_mul_mat *op = p->op;
    const mul_mat_shape shape = mul_mat_shape_of(p);
    const bool is_vector = mul_mat_is_vector(p);
    const int64_t most_rows = is_vector                    ? VECTOR_PIECE_ROWS
                              : op->n_tokens <= FEW_TOKENS ? shape.tile_rows
                                                           : shape.rows;
    const int64_t across = (op->n_tokens + shape.tokens - 1) / shape.tokens;
    const int64_t tokens = ((op->n_tokens + across - 1) / across + shape.tile_tokens - 1) /
                           shape.tile_tokens * shape.tile_tokens;
    const int64_t even =
        op->n_rows * across / ((int64_t)p->env->n_threads * 4) / shape.tile_rows * shape.tile_rows;
    const int64_t rows = even < shape.tile_rows ? shape.tile_rows : even < most_rows ? even : most_rows;
    return (mul_mat_pieces){rows, tokens, across, (op->n_rows + rows - 1) / rows * across};
}

static void kernel_mul_mat(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_mul_mat *op = &record->mul_mat;
    bool fault = false;
    product p = {.op = op, .packed = env->packed, .n_packed = op->n_tokens, .fault = &fault, .env = env};
    const mul_mat_pieces pieces = mul_mat_cut(&p);
    mul_mat_begin(&p, env->scratch);
    for (int64_t piece; (piece = tsr_kernel_next_piece(env, pieces.n)) >= 0;) {
        p.row = piece / pieces.across * pieces.rows;
        p.token = piece % pieces.across * pieces.tokens;
        p.row_end = op->n_rows - p.row < pieces.rows ? op->n_rows : p.row + pieces.rows;
        p.token_end = op->n_tokens - p.token < pieces.tokens ? op->n_tokens : p.token + pieces.tokens;
        mul_mat_product(&p, env->scratch);
        if (env->epilogue)
            env->epilogue->run(env->epilogue->what, p.row, p.row_end, p.token, p.token_end);
    }
    if (fault)
        atomic_store_explicit(env->range_fault, 1, memory_order_relaxed);
}

#endif
