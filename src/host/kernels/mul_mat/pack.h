/* Activations of many tokens, packed once for all threads of a team: encoded, rounded, divided or copied as
 * the product's kernel multiplies them. Every piece of a product needs the activations of all its tokens, and
 * the more threads there are, the fewer rows a piece has to amortise packing them.
 *
 * Which thread packs what changes no bit: a product without packed activations packs them itself. */
#ifndef TSR_HOST_KERNELS_MUL_MAT_PACK_H
#define TSR_HOST_KERNELS_MUL_MAT_PACK_H

#include "host/kernels/ops/experts.h"

ALWAYS_INLINE const pack_layout *mul_mat_layout(const product *p)
{
#if defined(TSR_ISA_AMX)
    if (is_half(p->op->type))
        return &half_layout;
#endif
#if defined(TSR_ISA_PAIRS)
    if (pairs_take(p))
        return &pairs_layout;
#endif
    return is_float(p->op->type) ? &plain_layout : &quant_layout;
}

/* Pack the product's tokens of one stage. */
static void mul_mat_pack_stage(const product *p, const k_stage *stage, void *out)
{
    const int n_tokens = (int)(p->token_end - p->token);
#if defined(TSR_ISA_AMX)
    if (is_half(p->op->type)) {
        half_pack(p, &stage->segments[0], p->token, n_tokens, out);
        return;
    }
#endif
#if defined(TSR_ISA_PAIRS)
    if (pairs_take(p)) {
        pairs_pack(p, stage, p->token, n_tokens, out);
        return;
    }
#endif
    if (is_float(p->op->type))
        plain_pack(p, stage, p->token, n_tokens, out);
    else
        quant_encode_tokens(p, stage, p->token, n_tokens, out);
}

/* Step to the next stage as cut by the product's kernel; false after the last. */
static bool mul_mat_next_stage(const product *p, k_segment *next, k_stage *stage)
{
#if defined(TSR_ISA_AMX)
    if (is_half(p->op->type)) { /* segment by segment */
        *stage = (k_stage){.index = stage->index + 1, .n = next->n, .n_segments = 1, .segments = {*next}};
        return segment_next(p->op, next);
    }
#endif
    return stage_next(p->op, next, stage);
}

/* -- few tokens with quantized weights -- */

enum { WALK_PACK_ELEMS = 8192 }; /* fewer: every thread encodes in less time than a barrier */

/* Whether packing spares each thread at least this many elements. */
ALWAYS_INLINE bool mul_mat_packs_walk(const product *p)
{
    const tsr_op_mul_mat *op = p->op;
    const int64_t elems = op->n_tokens * op->k, n_threads = p->env->n_threads;
    return mul_mat_encodes_once(op) && op->n_tokens > 1 && elems - elems / n_threads >= WALK_PACK_ELEMS;
}

/* Pack one token at a time. */
static void mul_mat_pack_walk(const product *p)
{
#if defined(TSR_ISA_INT_VEC)
    x_block *x = (x_block *)(void *)p->packed;
    for (int64_t t; (t = tsr_kernel_next(p->env)) < p->op->n_tokens;)
        quant_vector_encode(p, t, t + 1, x + t * (p->op->k / X_BLOCK));
#else
    (void)p;
#endif
}

/* -- many tokens -- */

/* Whether stages are packed. Few tokens with plain weights are not: they are read in place. */
ALWAYS_INLINE bool mul_mat_packs_stages(const product *p)
{
    const tsr_op_mul_mat *op = p->op;
    const bool in_place = mul_mat_is_float(op->type) && !pairs_take(p) && op->n_tokens <= FEW_TOKENS;
    return op->k > 0 && op->n_tokens > 1 && !in_place && !mul_mat_is_vector(p);
}

static size_t mul_mat_stages_bytes(const product *p)
{
    const pack_layout *layout = mul_mat_layout(p);
    k_segment next = segment_first(p->op, layout->longest);
    k_stage stage = {.index = -1};
    while (mul_mat_next_stage(p, &next, &stage))
        ;
    return (size_t)((stage.index + 1) * packed_rows(p->op->n_tokens, layout)) * layout->bytes;
}

/* Pack one group of tokens at a time. */
static void mul_mat_pack_stages(product p)
{
    const pack_layout *layout = mul_mat_layout(&p);
    const int64_t n_tokens = p.op->n_tokens;
    while ((p.token = tsr_kernel_next(p.env) * layout->group) < n_tokens) {
        k_segment next = segment_first(p.op, layout->longest);
        k_stage stage = {.index = -1};
        bool more;
        p.token_end = n_tokens - p.token < layout->group ? n_tokens : p.token + layout->group;
        do {
            more = mul_mat_next_stage(&p, &next, &stage);
            mul_mat_pack_stage(&p, &stage, product_packed(&p, layout, stage.index, p.token));
        } while (more);
    }
}

/* -- both -- */

/* The product whose activations the op packs. Of experts: a product with all the rows that they read, if
 * their weights are quantized. False: none. */
static bool mul_mat_packs_for(const tsr_op *record, tsr_op_mul_mat *op)
{
    if (record->kind == TSR_OP_EXPERTS_GLU)
        *op = experts_glu_x(&record->experts_glu);
    else if (record->kind == TSR_OP_EXPERTS_DOWN)
        *op = experts_down_x(&record->experts_down);
    else if (record->kind == TSR_OP_MUL_MAT)
        *op = record->mul_mat;
    else
        return false;
    return record->kind == TSR_OP_MUL_MAT || !is_float(op->type);
}

static size_t kernel_pack_bytes(const tsr_op *record, const tsr_kernel_env *env)
{
    tsr_op_mul_mat op;
    const product p = {.op = &op, .env = env};
    if (!mul_mat_packs_for(record, &op))
        return 0;
    if (mul_mat_packs_walk(&p))
        return (size_t)(op.n_tokens * op.k / X_BLOCK) * sizeof(x_block);
    return mul_mat_packs_stages(&p) ? mul_mat_stages_bytes(&p) : 0;
}

static void kernel_pack(const tsr_op *record, const tsr_kernel_env *env)
{
    tsr_op_mul_mat op;
    if (!mul_mat_packs_for(record, &op))
        return;
    const product p = {.op = &op, .env = env, .packed = env->packed, .n_packed = op.n_tokens};
    if (mul_mat_encodes_once(&op)) /* as its product will decide: the number of threads is unknown here */
        mul_mat_pack_walk(&p);
    else
        mul_mat_pack_stages(p);
}

#endif
