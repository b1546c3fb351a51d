/* The operations with a state per sequence, as core/op.h has the others: conv, recurrence, compress. */
#ifndef TSR_CORE_OPS_STATES_H
#define TSR_CORE_OPS_STATES_H

#include <stdbool.h>
#include <stdint.h>

#include <tsr/states.h> /* TSR_MAX_CONV_KERNEL, TSR_MAX_STATE_ROWS: kernels keep these in fixed tiles */

/* The row of a sequence of the batch: its state before the batch is stored in slot `read` (-1: zeros), its
 * state behind the batch goes to slot `write`, another one; `first` is its first token (-1: the row is
 * unused). */
typedef struct tsr_state_row {
    int32_t read, write, first;
} tsr_state_row;

/* The sequences of the batch (device memory, refilled every step). next[t] is the token behind t in its
 * sequence, -1 behind the last. */
typedef struct tsr_state_index {
    const tsr_state_row *rows; /* [n_rows] */
    int64_t n_rows;
    const int32_t *next; /* [n_tokens] */
} tsr_state_index;

/* One part of a layer's state: in slot s it is stored from base + s * slot_elems on. */
typedef struct tsr_state_view {
    float *base;
    int64_t slot_elems;
} tsr_state_view;

/* Causal convolution of every channel by itself, over the last `kernel` tokens of its sequence:
 *
 *     y[t][c] = act(bias[c] + sum_k w[c][k] * x[t - kernel + 1 + k][c])
 *
 * in order of k, where t - 1 is the token before t in its sequence. The state has the last kernel - 1 inputs
 * of every channel, the oldest first: [n][kernel - 1]. x may equal y. */
typedef struct tsr_op_conv {
    tsr_state_view state;
    tsr_state_index index;
    const float *x;    /* [n_tokens][stride], n used */
    const float *w;    /* [n][kernel] */
    const float *bias; /* [n]; NULL: none */
    float *y;          /* like x */
    int64_t n_tokens, n, kernel;
    int64_t stride; /* elements from one token to the next */
    bool silu;      /* act(x) = x / (1 + exp(-x)); otherwise x */
} tsr_op_conv;

/* How a recurrence changes its state. */
typedef enum tsr_recurrence_rule {
    TSR_RECURRENCE_DELTA = 0, /* the gated delta rule (Yang et al., arXiv:2412.06464) */
    TSR_RECURRENCE_MAMBA      /* Mamba-2 (Dao and Gu, arXiv:2405.21060) */
} tsr_recurrence_rule;

/* A recurrence on the state S [dk][dv] of every head. The gated delta rule:
 *
 *     k' = k / sqrt(sum k^2 + eps)                       q' = scale * q / sqrt(sum q^2 + eps)
 *     g = a * softplus(alpha + dt_bias)                  (one per head, or one per row of S: n_decay)
 *     S = diag(exp g) S;  u = sigmoid(beta) (v - S^T k');  S = S + k' u^T;  y = S^T q'
 *
 * Mamba-2, where q, k, v and alpha are called C, B, x and dt; n_decay is 1:
 *
 *     dt = softplus(alpha + dt_bias);  S = exp(a dt) S + (dt k) v^T;  y = S^T q + skip v
 *
 * Head h uses the queries and keys of key head (first_head + h) / group. Always token after token: forms that
 * multiply many tokens at a time round otherwise, so the result would depend on the division of a prompt into
 * batches. Sums over dk are in one fixed order. */
typedef struct tsr_op_recurrence {
    tsr_state_view state; /* [n_heads][dk][dv] */
    tsr_state_index index;
    const float *q, *k;   /* [n_tokens][n_key_heads][dk], dense */
    const float *v;       /* [n_tokens][heads_stride][dv], n_heads used */
    const float *alpha;   /* [n_tokens][heads_stride][n_decay] */
    const float *beta;    /* [n_tokens][heads_stride]; NULL with Mamba-2 */
    const float *a;       /* [n_heads] */
    const float *dt_bias; /* [n_heads][n_decay] */
    float *y;             /* [n_tokens][heads_stride][dv]; no operand */
    int64_t n_tokens, n_heads, n_key_heads, dk, dv;
    int64_t heads_stride; /* heads from one token to the next */
    int64_t n_decay;      /* 1 or dk */
    float eps, scale;
    int64_t group;      /* heads of a key head */
    int64_t first_head; /* heads before the first one, of the first key head held here */
    tsr_recurrence_rule rule;
    const float *skip; /* [n_heads]; of Mamba-2 */
} tsr_op_recurrence;

/* Compresses groups of `ratio` consecutive positions to one row each: a sum whose weights are, in every
 * channel, a softmax over the tokens of the group,
 *
 *     y[t][c] = sum_j softmax_j(gate[j][c] + bias[j % ratio][c]) x[j][c]
 *
 * for the last token t of a group, zeros for all others. With `overlap` rows have two halves: a group's
 * second half, and the first half of the group before it if there is one, are summed together. Always token
 * after token, by an online softmax (largest gate, sum, weighted sum), for the reason of a recurrence. The
 * state has these three of the group that is not full, [3][n], and with overlap behind them those of its
 * first half. */
typedef struct tsr_op_compress {
    tsr_state_view state;
    tsr_state_index index;
    const int32_t *position; /* [n_tokens] */
    const float *x, *gate;   /* [n_tokens][n], dense; with overlap [n_tokens][2][n] */
    const float *bias;       /* [ratio] rows like them */
    float *y;                /* [n_tokens][n]; no operand */
    int64_t n_tokens, n, ratio;
    bool overlap;
} tsr_op_compress;

#endif
