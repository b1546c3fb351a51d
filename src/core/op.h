/* One operation as a device executes it: a kind and its arguments, all pointers in that device's memory.
 *
 * A compiled program is, per device, an array of these. Activations are f32, token-major: element (i, t) of a
 * [n, n_tokens] tensor is x[t * stride + i], strides counted in elements. Every op is defined so that its
 * result for one token does not depend on which other tokens share the call, nor on how rows, heads or
 * granules are divided over devices and threads: that is what makes the output independent of the split.
 * Kernels keep what has a TSR_MAX_... of the public headers in fixed tiles, and refuse more. */
#ifndef TSR_CORE_OP_H
#define TSR_CORE_OP_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/experts.h>
#include <tsr/ops.h>
#include <tsr/sampler.h>
#include <tsr/types.h>

#include "core/ops/states.h"
#include "core/routing.h"

typedef enum tsr_op_kind {
    TSR_OP_NONE = 0,
    TSR_OP_INPUTS,
    TSR_OP_GET_ROWS,
    TSR_OP_RMS_NORM,
    TSR_OP_SUM_SQUARES,
    TSR_OP_RMS_SCALE,
    TSR_OP_MUL_MAT,
    TSR_OP_MUL_HEADS,
    TSR_OP_ROPE,
    TSR_OP_KV_WRITE,
    TSR_OP_ATTENTION,
    TSR_OP_SELECT,
    TSR_OP_CONV,
    TSR_OP_RECURRENCE,
    TSR_OP_COMPRESS,
    TSR_OP_STREAM_WEIGHTS,
    TSR_OP_STREAM_MIX,
    TSR_OP_GLU,
    TSR_OP_ADD,
    TSR_OP_SCALE,
    TSR_OP_SOFTCAP,
    TSR_OP_GATE,
    TSR_OP_SOFTMAX,
    TSR_OP_ARGMAX,
    TSR_OP_TOP_K,
    TSR_OP_COPY,
    TSR_OP_ROUTE,
    TSR_OP_EXPERTS_GLU,
    TSR_OP_EXPERTS_DOWN,
    TSR_OP_ALL_REDUCE,
    TSR_OP_ALL_GATHER,
    TSR_OP_SEND,
    TSR_OP_RECV,
    TSR_OP_JOIN,
    TSR_OP_COUNT
} tsr_op_kind;

/* Element format of a PARTIAL value, which the all-reduce adds. */
typedef enum tsr_reduce_type {
    TSR_REDUCE_EXACT = 0, /* int64 fixed point (core/quant/fixed.h) */
    TSR_REDUCE_F32 = 1,   /* float; depends on the split */
    TSR_REDUCE_BF16 = 2   /* bfloat16 (core/quant/half.h), summed in f32 and rounded; depends on the split */
} tsr_reduce_type;

/* Bytes of one element of a partial. */
static inline size_t tsr_reduce_bytes(tsr_reduce_type type)
{
    return type == TSR_REDUCE_EXACT ? sizeof(int64_t)
           : type == TSR_REDUCE_F32 ? sizeof(float)
                                    : sizeof(uint16_t);
}

/* y = a copy of pinned host memory (tsr_device_ops.pin), as it is when the program runs. */
typedef struct tsr_op_inputs {
    const void *x;
    void *y;
    size_t bytes;
} tsr_op_inputs;

/* y[j][:] = row ids[j] of the table, converted to f32. The device may hold only rows [row_begin, row_end) of
 * the whole table; ids outside give zeros, so that the sum over devices is the row. */
typedef struct tsr_op_get_rows {
    tsr_type type;
    const void *table;   /* row row_begin */
    size_t table_stride; /* bytes between rows */
    int64_t row_begin, row_end;
    int64_t n_cols;
    const int32_t *ids; /* [n_ids] */
    int64_t n_ids;
    bool partial;           /* write `reduce` format instead of f32 */
    tsr_reduce_type reduce; /* with partial */
    float limit;            /* with partial and EXACT: tsr_fixed_limit of one granule */
    void *y;                /* [n_ids][n_cols], dense */
} tsr_op_get_rows;

/* y[r][i] = x[r][i] / sqrt(mean_i(x[r][i]^2) + eps) * weight[i] + bias[i]. With `center` x is first made less
 * by its mean (LayerNorm, arXiv:1607.06450): two passes, so that a large mean costs no digits.
 * x may equal y. */
typedef struct tsr_op_rms_norm {
    const float *x;      /* [n_rows][n], dense */
    const float *weight; /* [n] (or [n_weights][n]), NULL = ones */
    float *y;            /* [n_rows][n], dense */
    int64_t n, n_rows;
    float eps;
    const float *bias; /* [n], NULL = zeros */
    bool center;
    int64_t n_weights; /* rows of the weight, which rows of x take in turn; 0 or 1: one. More than one: a norm
                        * of heads that has a weight for each, and no bias */
} tsr_op_rms_norm;

/* Squares of rows that are divided over devices: y[r] = {c, f} with sum_i x[r][i]^2 = c * limit + f. The row
 * is cut into granules as in mul_mat. A granule's sum s, in f32 in one fixed order, is one term of each:
 *
 *     EXACT: with c = round(s / limit) (to the nearest integer), tsr_fixed_from_f32() of c and of s - c *
 *            limit, which is exact. Sums up to limit^2 are in range, because the squares of large activations
 *            would leave the range of a single number; beyond it the range fault is raised.
 *     F32, BF16: 0 and s. */
typedef struct tsr_op_sum_squares {
    const float *x;    /* [n_rows][n], dense: the columns held here */
    int64_t n, n_rows; /* n > 0 */
    int64_t granule;
    tsr_reduce_type reduce;
    float limit; /* a power of two */
    void *y;     /* [n_rows][2], dense, in `reduce` format */
} tsr_op_sum_squares;

/* The second half of a norm of divided rows: y[r][i] = x[r][i] / sqrt((c * unit + f) / n_all + eps) *
 * weight[i], where {c, f} = squares[r]. x may equal y. */
typedef struct tsr_op_rms_scale {
    const float *x;       /* [n_rows][n], dense: the columns held here */
    const float *squares; /* [n_rows][2] */
    const float *weight;  /* [n] */
    float *y;             /* [n_rows][n], dense */
    int64_t n, n_rows;
    int64_t n_all; /* columns of the whole row */
    float unit;    /* limit of the sums */
    float eps;
} tsr_op_rms_scale;

/* y[t][r] = sum_k w[r][k] * x[t][k].
 *
 * partial == false: f32 y, each row one sum over k in a fixed order.
 * partial == true: K is cut into granules of `granule` elements, counted from the first column held here (the
 * last granule may be shorter); each granule is one f32 sum in the same fixed order, then
 *
 *     EXACT: y is int64, the sum of tsr_fixed_from_f32(granule sum); out of `limit` raises the device's
 *            range fault;
 *     F32:   y is f32, the sum of granule sums in order;
 *     BF16:  y is bfloat16, one f32 sum over all of k, rounded once. */
typedef struct tsr_op_mul_mat {
    tsr_type type;
    const void *w;   /* first element held here; no byte past the last row's last block may be read */
    size_t w_stride; /* bytes between rows */
    int64_t n_rows, k;
    const float *x;   /* [n_tokens][x_stride], k used */
    int64_t x_stride; /* elements */
    int64_t n_tokens;
    bool partial;
    tsr_reduce_type reduce; /* of the program; where it is not EXACT, sums may differ between one token and
                             * many, even if `partial` is false */
    int64_t granule;
    float limit;
    void *y;          /* [n_tokens][y_stride], n_rows used */
    int64_t y_stride; /* elements of y's type */
    int x_bits; /* of the integers that activations for quantized weights are rounded to: 16 (or 0), or 8 */
} tsr_op_mul_mat;

/* y[t][h] = [W_h x[t][h] | rest of x[t][h]]: every head has a matrix of its own, which multiplies the first k
 * elements of the head's part of x. The `rest` elements behind them are copied behind the product. Each
 * element of the product is one sum in the order of a mul_mat that is not partial. */
typedef struct tsr_op_mul_heads {
    tsr_type type;
    const void *w;     /* [n_heads][n_rows] rows of k elements; no byte past the last may be read */
    size_t w_stride;   /* bytes between rows; heads follow each other without a gap */
    int64_t n_rows, k; /* of one head */
    int64_t rest;      /* elements */
    int64_t n_heads;   /* held here */
    const float *x;    /* [n_tokens][n_heads][k + rest], dense */
    float *y;          /* [n_tokens][n_heads][n_rows + rest], dense */
    int64_t n_tokens;
    tsr_reduce_type reduce; /* as in tsr_op_mul_mat, here and below */
    int x_bits;
} tsr_op_mul_heads;

/* One head's product, without the rest. */
static inline tsr_op_mul_mat tsr_op_of_head(const tsr_op_mul_heads *op, int64_t head)
{
    const int64_t x_dim = op->k + op->rest, y_dim = op->n_rows + op->rest;
    tsr_op_mul_mat m = {op->type,
                        (const unsigned char *)op->w + (size_t)(head * op->n_rows) * op->w_stride,
                        op->w_stride,
                        op->n_rows,
                        op->k,
                        op->x + head * x_dim,
                        op->n_heads * x_dim,
                        op->n_tokens,
                        false,
                        op->reduce,
                        0,
                        0.0f,
                        op->y + head * y_dim,
                        op->n_heads * y_dim,
                        op->x_bits};
    return m;
}

/* Whether activations are rounded to 8 bits, one scale per 32. */
static inline bool tsr_op_takes_bytes(int x_bits)
{
    return x_bits == 8;
}

/* Rotary embedding of the first n_rot elements of each head, from a table made once per step:
 * table[t][2 i] = cos, table[t][2 i + 1] = sin of token t's angle i, i < n_rot / 2.
 * interleaved: pairs (2i, 2i + 1) (llama); otherwise pairs (i, i + n_rot / 2) (neox). x may equal y. */
typedef struct tsr_op_rope {
    const float *x;     /* [n_tokens][n_heads][head_dim], dense */
    const float *table; /* [n_tokens][n_rot] */
    float *y;
    int64_t n_tokens, n_heads, head_dim, n_rot;
    bool interleaved;
} tsr_op_rope;

/* Addresses of one layer's keys and values on one device. The key of position p of a sequence is stored in
 * page page_table[seq_row][p / page_tokens], slot p % page_tokens. Inside a page a layer has keys,
 * [n_heads][page_tokens][k_dim] elements of type_k, and values, [n_heads][page_tokens][v_dim] of type_v. With
 * v_in_k a value is the first v_dim elements of its key: the values have the offset, the row bytes and the
 * type of the keys. */
typedef struct tsr_kv_view {
    unsigned char *base; /* page 0 */
    size_t page_bytes;
    size_t k_offset, v_offset;       /* of this layer inside a page */
    size_t k_row_bytes, v_row_bytes; /* from one token of a head to the next */
    tsr_type type_k, type_v;         /* F16, BF16, Q8_0, Q4_0 or F32 */
    int64_t n_heads, page_tokens;    /* n_heads: KV heads held here */
    int64_t k_dim, v_dim;            /* elements of a key and of a value */
    bool v_in_k;
    int64_t ratio; /* consecutive positions that have one key together; 0: 1 */
} tsr_kv_view;

/* The keys that the token at a position sees where it sees all: those of the groups of `ratio` positions that
 * end with it or before it. With a ratio, the tables of pages, windows and selections count keys. */
static inline int64_t tsr_kv_seen(const tsr_kv_view *kv, int64_t position)
{
    return kv->ratio > 1 ? (position + 1) / kv->ratio : position + 1;
}

/* Sequence and position of each token of the batch (device memory, refilled every step). */
typedef struct tsr_kv_index {
    const int32_t *page_table; /* [rows][table_stride] page numbers */
    int64_t table_stride;
    const int32_t *seq_row;  /* [n_tokens] row of page_table */
    const int32_t *position; /* [n_tokens] */
} tsr_kv_index;

/* Convert and store one batch's keys and values; with a ratio, those of every last position of a group. */
typedef struct tsr_op_kv_write {
    tsr_kv_view kv;
    tsr_kv_index index;
    const float *k; /* [n_tokens][kv.n_heads][tsr_kv_write_dim()], dense */
    const float *v; /* [n_tokens][kv.n_heads][kv.v_dim], dense */
    int64_t n_tokens;
} tsr_op_kv_write;

/* Elements of k: those of a key, or, where values are in keys, those behind the value. */
static inline int64_t tsr_kv_write_dim(const tsr_kv_view *kv)
{
    return kv->v_in_k ? kv->k_dim - kv->v_dim : kv->k_dim;
}

/* Which positions each token sees, in blocks of `block` consecutive ones: the numbers of its blocks,
 * ascending, in a list for every KV head of the op's, or one list for all. Entries behind the last are
 * TSR_NO_BLOCK. */
typedef struct tsr_selection {
    const int32_t *blocks; /* [n_tokens][n_lists][n_blocks]; NULL: a token sees all positions */
    int64_t n_lists, n_blocks, block;
} tsr_selection;

#define TSR_NO_BLOCK INT32_MAX

/* Keys of another layer of the KV region that attention sees besides those of its own: all that tsr_kv_seen()
 * has, or the selected ones of these. */
typedef struct tsr_attention_more {
    tsr_kv_view kv; /* heads, keys and values of the sizes of the op's; base NULL: no more keys */
    tsr_kv_index index;
    tsr_selection selected;
} tsr_attention_more;

/* y[t][h] = sum_p softmax_p(scale * q[t][h] . k[p][h / group]) v[p][h / group] over positions p in
 * (position[t] - window, position[t]] (window 0: from 0; `chunked`: from the last multiple of window on, so
 * that positions form chunks that do not see each other) and in the blocks selected; scores pass through
 * softcap * tanh(s / softcap) when softcap > 0. Online softmax in one fixed order, which depends on pages and
 * positions only. With `more` the softmax is over these keys, too, after the op's own. A head's sink is one
 * more score of the softmax, after all others, without a value: it takes weight from the positions and adds
 * nothing (arXiv:2309.17453 has the idea, gpt-oss learns one per head). */
typedef struct tsr_op_attention {
    tsr_kv_view kv;
    tsr_kv_index index;
    const float *q;            /* [n_tokens][n_heads][kv.k_dim], dense */
    float *y;                  /* [n_tokens][n_heads][kv.v_dim], dense */
    int64_t n_tokens, n_heads; /* n_heads: query heads held here, a multiple of kv.n_heads */
    float scale, softcap;
    int64_t window;
    const float *sinks; /* [n_heads]; NULL: none */
    bool chunked;
    tsr_selection selected; /* every token has at least one block with a position that it sees */
    tsr_attention_more more;
} tsr_op_attention;

/* Selects the blocks of positions that each token attends to (tsr_selection), by scores of a cache of index
 * keys, one head, written like other keys. With a ratio of the cache, its keys are what is called positions
 * here, and a token may see none. With weights there is one list, otherwise one for each head:
 *
 *     score(p) = sum_h weights[t][h] * max(q[t][h] . k[p], 0)   (heads in order), or q[t][list] . k[p]
 *     score(b) = max of score(p) over the positions p <= position[t] of block b
 *
 * The list has the blocks with the n_blocks largest scores: the lower number first among equals, a NaN less
 * than any number, and the n_local last blocks, up to the token's own, before all others. */
typedef struct tsr_op_select {
    tsr_kv_view kv; /* of the index keys */
    tsr_kv_index index;
    const float *q;       /* [n_tokens][n_heads][kv.k_dim], dense */
    const float *weights; /* [n_tokens][n_heads], dense; NULL: none */
    int32_t *y;           /* [n_tokens][n_lists][n_blocks] */
    int64_t n_tokens, n_heads, n_lists;
    int64_t n_blocks, block, n_local;
} tsr_op_select;

/* Whether kernels take an op of this size; otherwise *what_out names what there is too much of. */
bool tsr_op_select_fits(const tsr_op_select *op, const char **what_out);

/* The weights of n residual streams (hyper-connections, arXiv:2409.19606, with a mixing that is doubly
 * stochastic, arXiv:2512.24880): of their sum that a block reads, of the block's result in each of them, and
 * of stream j in stream k. x and y are [n + n + n * n] for each token, or, without `mixes`, the first n:
 *
 *     pre = sigmoid(scale[0] x + base) + eps        post = 2 sigmoid(scale[1] x + base)
 *     C = softmax over k of (scale[2] x[j][k] + base[j][k]), + eps;  columns divided by their sum + eps;
 *     (iterations - 1) times: rows divided by their sum + eps, then columns */
typedef struct tsr_op_stream_weights {
    const float *x;     /* dense */
    const float *scale; /* [3]; without mixes [1] */
    const float *base;  /* [n + n + n * n]; without mixes [n] */
    float *y;           /* x may equal y */
    int64_t n_tokens, n;
    bool mixes;
    int64_t iterations;
    float eps;
} tsr_op_stream_weights;

/* y[t][k] = sum_j weights[t][first + j * n_out + k] x[t][j]  (j in order)  + weights[t][add_first + k]
 * add[t] */
typedef struct tsr_op_stream_mix {
    const float *x;       /* [n_tokens][n_in][n], dense */
    const float *weights; /* [n_tokens][n_weights], dense; NULL: 1, of one stream and nothing added */
    const float *add;     /* [n_tokens][n], dense; NULL: none */
    float *y;             /* [n_tokens][n_out][n], dense; no operand */
    int64_t n_tokens, n, n_in, n_out;
    int64_t n_weights, first, add_first;
} tsr_op_stream_mix;

/* L and A of TSR_GLU_CLAMPED (swiglu_limit and alpha of github.com/openai/gpt-oss,
 * gpt_oss/torch/model.py). */
#define TSR_GLU_LIMIT 7.0f
#define TSR_GLU_ALPHA 1.702f

/* y[i] = act(gate[i]) * up[i], n elements. An FFN without a gate applies the activation as its own gate: gate
 * and up are the same buffer. gate or up may equal y. */
typedef struct tsr_op_glu {
    tsr_glu_kind kind;
    const float *gate, *up;
    float *y;
    int64_t n;
    float limit; /* TSR_GLU_CAPPED, TSR_GLU_BOUNDED */
} tsr_op_glu;

/* y[r][i] = a[r][i] + b[r or 0][i]. a or b may equal y. */
typedef struct tsr_op_add {
    const float *a, *b;
    float *y;
    int64_t n, n_rows;
    bool broadcast_b; /* b is one row */
} tsr_op_add;

/* y[i] = factor * by[0] * x[i]. x may equal y. */
typedef struct tsr_op_scale {
    const float *x;
    float *y;
    int64_t n;
    float factor;
    const float *by; /* NULL: 1 */
} tsr_op_scale;

/* y[i] = cap * tanh(x[i] / cap). x may equal y. */
typedef struct tsr_op_softcap {
    const float *x;
    float *y;
    int64_t n;
    float cap;
} tsr_op_softcap;

/* y[r][i] = x[r][i] / (1 + exp(-gate[r])). x may equal y. */
typedef struct tsr_op_gate {
    const float *x;
    const float *gate; /* [n_rows] */
    float *y;
    int64_t n, n_rows;
} tsr_op_gate;

/* y[r] = softmax(scale * x[r]). x may equal y. */
typedef struct tsr_op_softmax {
    const float *x;
    float *y;
    int64_t n, n_rows;
    float scale;
} tsr_op_softmax;

/* y[r] = index of the largest x[r][i]; the lowest index wins a tie. */
typedef struct tsr_op_argmax {
    const float *x;
    int32_t *y;
    int64_t n, n_rows;
} tsr_op_argmax;

/* y[r] = the k largest x[r][i], in the order of tsr_candidate_is_before(), with first + i as ids. Behind n
 * elements follow {-infinity, -1}. */
typedef struct tsr_op_top_k {
    const float *x;   /* [n_rows][n], dense */
    tsr_candidate *y; /* [n_rows][k] */
    int64_t n, n_rows, k, first;
} tsr_op_top_k;

/* The largest logit first, and of equal ones the lowest id; what is no number below infinity, an error,
 * comes before all others. */
static inline bool tsr_candidate_is_before(tsr_candidate a, tsr_candidate b)
{
    const bool bad = !(a.logit < INFINITY);
    if (bad != !(b.logit < INFINITY))
        return bad;
    return bad || a.logit == b.logit ? a.id < b.id : a.logit > b.logit;
}

/* Copy (and convert) n_rows rows of n f32 elements to dst_type. */
typedef struct tsr_op_copy {
    const float *x;
    int64_t x_stride; /* elements */
    tsr_type dst_type;
    void *y;
    size_t y_stride; /* bytes */
    int64_t n, n_rows;
} tsr_op_copy;

/* Selects the experts of each token: the n_used largest logits, or, with a bias, the largest probability +
 * bias; the lower index first among equals, and a NaN is less than any number. The weights are the
 * selected experts' probabilities, divided by their sum (`normalize`; a softmax over all becomes one over
 * the selected), times `scale` and the expert's factor. Fills all of `routing`.
 *
 * With n_groups > 1 the experts are that many groups of neighbours, of which only the n_groups_used best
 * compete. A group's score is its largest logit (with a bias: probability + bias) after a softmax, and
 * otherwise the sum of its two largest probabilities (with a bias: + bias); a NaN is less than any number. */
typedef struct tsr_op_route {
    const float *logits; /* [n_tokens][n_experts], dense */
    const float *bias;   /* [n_experts], for selecting only; NULL: none */
    tsr_routing routing;
    tsr_gating gating;
    bool normalize;
    float scale;
    int64_t n_groups, n_groups_used; /* 0 or 1: no groups */
    const float *factors;            /* [n_experts]; NULL: 1 */
    const int32_t *table;            /* [n_ids][n_used] experts of each token id, which are then the selected
                                      * ones; an expert or an id out of range is 0; NULL: none */
    const int32_t *ids;              /* [n_tokens] with a table */
    int64_t n_ids;
} tsr_op_route;

/* One matrix of every expert that a device holds, starting with the first of them. */
typedef struct tsr_expert_matrix {
    tsr_type type;
    const void *data; /* no byte past the last row's last block may be read */
    size_t row_stride, expert_stride;
} tsr_expert_matrix;

/* The experts [begin, end) that a device holds. Results of other experts' slots are unused, though their
 * rows of activations may be read. */
typedef struct tsr_expert_range {
    int64_t begin, end;
} tsr_expert_range;

/* A bias of each of the experts `held`, starting with the first of them. */
typedef struct tsr_expert_bias {
    const float *data; /* NULL: no bias */
    int64_t stride;    /* elements from one expert to the next */
    tsr_expert_range held;
} tsr_expert_bias;

/* y[s][r] = act(sum_k gate[e][r][k] * x[t][k]) * (sum_k up[e][r][k] * x[t][k]) for every slot s of the
 * routing whose expert e is held here, t its token; the sums are those of a mul_mat that is not partial,
 * multiplied by weight[s] if the routing weighs inputs, and biases are added to them. Rows of other slots are
 * not written. No weight of an expert that no token uses is read. An FFN without a gate has up as gate, with
 * the same bias. */
typedef struct tsr_op_experts_glu {
    tsr_glu_kind kind;
    float limit; /* TSR_GLU_CAPPED, TSR_GLU_BOUNDED */
    int x_bits;  /* as in tsr_op_mul_mat */
    tsr_expert_matrix gate, up;
    tsr_expert_bias gate_bias, up_bias; /* [n_rows] each, of the experts of `held` */
    tsr_expert_range held;
    int64_t n_rows, k;
    tsr_routing routing;
    const float *x; /* [n_tokens][k], dense */
    float *y;       /* [n_slots][n_rows], dense */
} tsr_op_experts_glu;

/* y[t][r] = sum over the slots s of token t whose expert e is held here, of weight[s] * sum_k down[e][r][k] *
 * x[s][k], without weight[s] if the routing weighs inputs; zeros if there is no such slot. K is cut into
 * granules as in mul_mat, and a granule's sum is multiplied by the weight, rounded to f32. EXACT: y is int64,
 * the sum of tsr_fixed_from_f32() of these products, hence the same whether columns or whole experts are
 * divided; out of `limit` raises the range fault. F32: experts ascending, granules in order. BF16: slots in
 * order, each one f32 sum over k; rounded once.
 *
 * weight[s] * bias[e][r] is one more such product, after those of e's granules. The bias of an expert is
 * held by exactly one device, independently of the expert's weights. */
typedef struct tsr_op_experts_down {
    int x_bits; /* as in tsr_op_mul_mat */
    tsr_expert_matrix down;
    tsr_expert_bias bias; /* [n_rows] each; of experts in `held` */
    tsr_expert_range held;
    int64_t n_rows, k;
    tsr_routing routing;
    const float *x; /* [n_slots][k], dense */
    tsr_reduce_type reduce;
    int64_t granule;
    float limit;
    bool onto; /* add to the sum that y holds; two that stay in range fit 64 bits */
    void *y;   /* [n_tokens][n_rows], dense */
} tsr_op_experts_down;

struct tsr_collective; /* core/comm.h */

/* Sum of every contributing rank's partial, as f32, on every participating rank:
 * y[i] = to_f32(sum over ranks partial[rank][i]) (+ residual[i]). residual may equal y.
 * F32 is added in rank order. BF16 is added in f32 in rank order and rounded to bfloat16 once, before the
 * residual. NCCL uses its own order for both, and rounds BF16 at every step. */
typedef struct tsr_op_all_reduce {
    struct tsr_collective *collective;
    const float *residual; /* NULL = none */
    float *y;
    int64_t n;
    bool beside; /* devices that work in streams may run it beside what follows, until its JOIN */
} tsr_op_all_reduce;

/* What follows may read the sum of an ALL_REDUCE `beside`, and write what that reads. Only in programs of
 * devices that work in streams. */
typedef struct tsr_op_join {
    struct tsr_collective *collective;
} tsr_op_join;

/* Gathers a [n, n_rows] tensor SPLIT along n on every participating rank. Rank r's part is
 * collective->partial[r], [n_rows][count of r] dense. */
typedef struct tsr_op_all_gather {
    struct tsr_collective *collective;
    float *y; /* [n_rows][n] */
    int64_t n, n_rows;
} tsr_op_all_gather;

/* Transfer of n f32 elements from one rank to another: SEND publishes them (the sender may then reuse x),
 * RECV waits and copies. */
typedef struct tsr_op_send {
    struct tsr_collective *collective;
    const float *x;
    int64_t n;
} tsr_op_send;

typedef struct tsr_op_recv {
    struct tsr_collective *collective;
    float *y;
    int64_t n;
} tsr_op_recv;

typedef struct tsr_op {
    tsr_op_kind kind;
    const char *name; /* of its result, for messages and traces; must outlive the program */
    union {
        tsr_op_inputs inputs;
        tsr_op_get_rows get_rows;
        tsr_op_rms_norm rms_norm;
        tsr_op_sum_squares sum_squares;
        tsr_op_rms_scale rms_scale;
        tsr_op_mul_mat mul_mat;
        tsr_op_mul_heads mul_heads;
        tsr_op_rope rope;
        tsr_op_kv_write kv_write;
        tsr_op_attention attention;
        tsr_op_select select;
        tsr_op_conv conv;
        tsr_op_recurrence recurrence;
        tsr_op_compress compress;
        tsr_op_stream_weights stream_weights;
        tsr_op_stream_mix stream_mix;
        tsr_op_glu glu;
        tsr_op_add add;
        tsr_op_scale scale;
        tsr_op_softcap softcap;
        tsr_op_gate gate;
        tsr_op_softmax softmax;
        tsr_op_argmax argmax;
        tsr_op_top_k top_k;
        tsr_op_copy copy;
        tsr_op_route route;
        tsr_op_experts_glu experts_glu;
        tsr_op_experts_down experts_down;
        tsr_op_all_reduce all_reduce;
        tsr_op_all_gather all_gather;
        tsr_op_send send;
        tsr_op_recv recv;
        tsr_op_join join;
    };
} tsr_op;

/* Whether two buffers of an op have a byte in common. */
static inline bool tsr_op_floats_overlap(const float *a, int64_t n_a, const float *b, int64_t n_b)
{
    return (uintptr_t)a < (uintptr_t)(b + n_b) && (uintptr_t)b < (uintptr_t)(a + n_a);
}

/* Whether ops[i] is a product of the output of an attention, or of products of its heads. */
bool tsr_op_reads_attention(const tsr_op *ops, int i);

/* The collective that an op refers to; NULL for kinds without one. */
struct tsr_collective *tsr_op_collective(const tsr_op *op);

/* "mul_mat", "all_reduce", ...; never NULL. */
const char *tsr_op_kind_name(tsr_op_kind kind);

/* For messages: "op 'NAME' (kind)" with the layer, where the name of the op or of one behind it
 * ("blk.3.ffn_up") has a layer. */
void tsr_op_describe(const tsr_op *ops, int n_ops, int index, char *text, size_t bytes);

#endif
