/** @file
 * Ops with a state for each sequence, and products of weights in parts: what recurrent layers are made of.
 *
 * A state is a part of a layer of a KV region (tsr_kv_layer_config.states), which the region divides as the
 * op's weights are divided. A convolution and a gated delta rule on the heads of one layer are
 *
 *     const tsr_kv_state_config states[] = {{conv, kernel - 1}, {wv, dk}};        wv has n_heads * dv rows
 *     layers[l] = (tsr_kv_layer_config){.states = states, .n_states = 2};
 *     ...                                                     of each layer, h being the normed residual:
 *     tsr_weight_parts conv_v = {.at = {conv}, .n = 1};
 *     tsr_tensor *v = tsr_conv(graph, inputs, l, 0, tsr_mul_mat(graph, wv, h), &conv_v, NULL, true);
 *     tsr_recurrence_operands operands = {.v = v, ...};
 *     tsr_tensor *y = tsr_recurrence(graph, inputs, l, 1, &operands);
 *     x = tsr_add(graph, x, tsr_mul_mat(graph, wo, y));
 *
 * The ops always work token after token of a sequence: forms that compute many tokens at a time round
 * otherwise. So the bits of a result depend neither on the split nor on how a prompt is cut into steps. All
 * are computed if the graph has any output, because they change the sequences.
 *
 * Errors, threads and ownership are those of tsr/graph.h. Constructors refuse shapes that do not fit, and
 * layers without the states; tsr_program_compile() refuses weights that are not divided like the operands,
 * and states of another size (TSR_ERR_INVALID, naming the tensor).
 */
#ifndef TSR_STATES_H
#define TSR_STATES_H

#include <stdbool.h>
#include <stdint.h>

#include <tsr/graph.h>
#include <tsr/kv.h>
#include <tsr/ops.h>

TSR_BEGIN_DECLS

/* -- weights in parts -- */

/** The most parts of an operand. */
enum { TSR_MAX_PARTS = 8 };

/** Weights of one type and shape, divided alike, as one operand: rows of a matrix, or elements of a vector,
 * that are not adjacent in the file but belong to one device. The value of an op over n parts is [ne0 of a
 * part, n * n_tokens]: the parts of a token are rows one after another. */
typedef struct tsr_weight_parts {
    tsr_tensor *at[TSR_MAX_PARTS]; /**< [n] */
    int n;                         /**< 1 .. TSR_MAX_PARTS */
} tsr_weight_parts;

/** W x of every part of W, which is whole or divided by rows: F32 [rows of a part, n * n_tokens], divided
 * like the parts. One part: as tsr_mul_mat(). x becomes whole. */
TSR_API tsr_tensor *tsr_mul_mat_parts(tsr_graph *graph, const tsr_weight_parts *w, tsr_tensor *x);

/** W x, where the rows of x are the parts of a token: x is F32 [ne0 of W / n, n * n_tokens]; the result is
 * that of tsr_mul_mat(), [rows of W, n_tokens]. If W is divided by columns, x becomes whole for n > 1. */
TSR_API tsr_tensor *tsr_mul_mat_joined(tsr_graph *graph, tsr_tensor *w, tsr_tensor *x);

/* -- convolution -- */

/** The most tokens that a convolution sees. */
enum { TSR_MAX_CONV_KERNEL = 8 };

/** Causal convolution of every channel by itself over the last `kernel` tokens of its sequence:
 *
 *     y[t][c] = act(bias[c] + sum_k w[c][k] * x[t - kernel + 1 + k][c])
 *
 * in order of k; tokens before the first are zeros. x and the result are F32 [n, parts * n_tokens]. The
 * weights are F32 [kernel, n], kernel 2 .. TSR_MAX_CONV_KERNEL; bias is an F32 weight [n] of a convolution of
 * one part, or NULL. silu: act(x) = x / (1 + exp(-x)), otherwise x.
 *
 * x and weights are whole, or divided alike; so is the result. The bias is divided like them, or whole.
 * States, from `state` on, one of each part: like the weight of the part, n = kernel - 1. */
TSR_API tsr_tensor *tsr_conv(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, int state, tsr_tensor *x,
                             const tsr_weight_parts *weights, tsr_tensor *bias, bool silu);

/* -- recurrences -- */

/** The most rows dk of a head's state. */
enum { TSR_MAX_STATE_ROWS = 256 };

/** The operands of a recurrence. Of n parts, each with n_heads, v is [n_heads * dv, n * n_tokens], alpha
 * [n_heads * n_decay, n * n_tokens], beta [n_heads, n * n_tokens], all F32. n_decay is 1 or dk. a, dt_bias
 * and skip are F32 weights of one row. */
typedef struct tsr_recurrence_operands {
    tsr_tensor *q;            /**< F32 [n_key_heads * dk, n_tokens]; Mamba-2: C */
    tsr_tensor *k;            /**< like q; Mamba-2: B */
    tsr_tensor *v;            /**< values; Mamba-2: x */
    tsr_tensor *alpha;        /**< of the decay; Mamba-2: dt */
    tsr_tensor *beta;         /**< NULL: Mamba-2 */
    tsr_weight_parts a;       /**< [n_heads] */
    tsr_weight_parts dt_bias; /**< [n_heads * n_decay] */
    int64_t n_heads;          /**< of a part; a multiple of n_key_heads */
    int64_t n_key_heads;      /**< head h has the queries and keys of key head h / (n_heads / n_key_heads) */
    float eps;                /**< of the norms of q and k; Mamba-2 has none */
    tsr_tensor *skip;         /**< [n_heads] of Mamba-2, which has one part and n_decay 1; otherwise NULL */
} tsr_recurrence_operands;

/** A recurrence on the state S [dk][dv] of every head. The gated delta rule (arXiv:2412.06464; with n_decay
 * dk Kimi Delta Attention, arXiv:2510.26692):
 *
 *     k' = k / sqrt(sum k^2 + eps)                       q' = q / sqrt(dk) / sqrt(sum q^2 + eps)
 *     g = a * softplus(alpha + dt_bias)                  (one per head, or one per row of S)
 *     S = diag(exp g) S;  u = sigmoid(beta) (v - S^T k');  S = S + k' u^T;  y = S^T q'
 *
 * Mamba-2 (arXiv:2405.21060), where q, k, v and alpha are called C, B, x and dt:
 *
 *     dt = softplus(alpha + dt_bias);  S = exp(a dt) S + (dt k) v^T;  y = S^T q + skip v
 *
 * The result is F32 of the shape of v. All operands are whole, or divided alike, by key heads with their
 * heads; or q and k are whole, and the others are divided by heads. a, dt_bias and skip may always be whole,
 * on every device of v. The result is divided like v. States, from `state` on, one of each part: n_heads * dv
 * * dk numbers, divided like v (a weight of n_heads * dv rows, and n = dk). */
TSR_API tsr_tensor *tsr_recurrence(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, int state,
                                   const tsr_recurrence_operands *operands);

/* -- compressed positions -- */

/** How groups of positions become rows. */
typedef struct tsr_compress_rule {
    int64_t ratio;    /**< positions of a group, at least 2 */
    bool overlap;     /**< a row is also made of the group before */
    tsr_tensor *bias; /**< F32 weight, whole: `ratio` rows like those of x, as one vector */
} tsr_compress_rule;

/** Groups of `ratio` consecutive positions compressed to one row each: a sum whose weights are, in every
 * channel, a softmax over the tokens of the group,
 *
 *     y[t][c] = sum_j softmax_j(gate[j][c] + bias[j % ratio][c]) x[j][c]
 *
 * for the last token t of a group, zeros for all others. x and gate are F32 [n, n_tokens], or, with overlap,
 * [2 n, n_tokens]: a group's second half, and the first half of the group before it if there is one, are
 * summed together. They become whole on the devices of the bias, where the result is, [n, n_tokens]. Its rows
 * are for a KV layer of the same ratio.
 *
 * One state, whole: 3 n numbers, with overlap 6 n (like: the bias, or another replicated weight of one row of
 * m elements that divides these; n: the numbers / m). */
TSR_API tsr_tensor *tsr_compress(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, int state, tsr_tensor *x,
                                 tsr_tensor *gate, const tsr_compress_rule *rule);

TSR_END_DECLS
#endif
