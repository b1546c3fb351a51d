/* mul_heads: a matrix per head, multiplied by the head's part of the activations.
 *
 * Each head is a product of mul_mat.h, cut into the same pieces, so all types and instruction sets are those
 * of mul_mat, and the bits of a head are those of a mul_mat with its matrix. Pieces encode the activations
 * themselves: a head has few of them, and every head has others. */
#ifndef TSR_HOST_KERNELS_MUL_MAT_HEADS_H
#define TSR_HOST_KERNELS_MUL_MAT_HEADS_H

#include "host/kernels/mul_mat/mul_mat.h"

/* Copy the rest of one head behind the product, for all tokens. */
static void mul_heads_rest(const tsr_op_mul_heads *op, int64_t head)
{
    const int64_t x_dim = op->k + op->rest, y_dim = op->n_rows + op->rest;
    for (int64_t t = 0; t < op->n_tokens; t++) {
        const int64_t part = t * op->n_heads + head;
        memcpy(op->y + part * y_dim + op->n_rows, op->x + part * x_dim + op->k,
               (size_t)op->rest * sizeof(float));
    }
}

static void kernel_mul_heads(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_mul_heads *op = &record->mul_heads;
    bool fault = false; /* stays false: no product is partial */
    tsr_op_mul_mat of_head = tsr_op_of_head(op, 0);
    product p = {.op = &of_head, .fault = &fault, .env = env};
    const mul_mat_pieces pieces = mul_mat_cut(&p);
    for (int64_t i; (i = tsr_kernel_next_piece(env, op->n_heads * pieces.n)) >= 0;) {
        const int64_t head = i / pieces.n, piece = i % pieces.n;
        of_head = tsr_op_of_head(op, head);
        if (piece == 0)
            mul_heads_rest(op, head);
        p.row = piece / pieces.across * pieces.rows;
        p.token = piece % pieces.across * pieces.tokens;
        p.row_end = op->n_rows - p.row < pieces.rows ? op->n_rows : p.row + pieces.rows;
        p.token_end = op->n_tokens - p.token < pieces.tokens ? op->n_tokens : p.token + pieces.tokens;
        mul_mat_begin(&p, env->scratch);
        mul_mat_product(&p, env->scratch);
    }
}

#endif
