/* Graph nodes inside the library, and the ops that only the model layer uses (KV cache, experts). */
#ifndef TSR_GRAPH_GRAPH_H
#define TSR_GRAPH_GRAPH_H

#include <tsr/experts.h>
#include <tsr/graph.h>
#include <tsr/ops.h>

#include "core/runtime.h"
#include "core/tensor.h"

struct tsr_kv;

/* The inputs of a step with the states of its sequences (tsr_state_index), both I32. */
typedef struct tsr_state_inputs {
    tsr_tensor *rows; /* [3, rows] tsr_state_row */
    tsr_tensor *next; /* [n_tokens, 1] */
} tsr_state_inputs;

/* A part of a layer's state in the KV region; of an op over several parts, the first of as many. */
typedef struct tsr_state_part {
    struct tsr_kv *kv;
    int layer, part;
} tsr_state_part;

/* Weights of one shape, divided alike, as one operand: rows of a matrix, or elements of a vector, that are
 * not adjacent in the file but belong to one device. The value of an op over n parts is [ne0 of a part, n *
 * n_tokens]: the parts of a token are rows one after another. So every part is divided by the same map, and
 * the whole value has the order of the parts. */
enum { TSR_MAX_PARTS = 8 };
typedef struct tsr_weight_parts {
    tsr_tensor *at[TSR_MAX_PARTS];
    int n;
} tsr_weight_parts;

/* The operands of a recurrence (core/op.h). q and k are [n_key_heads * dk, n_tokens]. Of n parts, each with
 * n_heads, v is [n_heads * dv, n * n_tokens], alpha [n_heads * n_decay, n * n_tokens], beta [n_heads, n *
 * n_tokens]; a, dt_bias and skip are F32 weights of one row, [n_heads], [n_heads * n_decay] and [n_heads].
 * All are divided alike, by key heads with their heads; or q and k are whole, and the others are divided by
 * heads. */
typedef struct tsr_recurrence_operands {
    tsr_tensor *q, *k, *v, *alpha, *beta; /* beta NULL: Mamba-2 */
    tsr_weight_parts a, dt_bias;
    int64_t n_heads, n_key_heads;
    float eps;
    tsr_tensor *skip; /* of Mamba-2, which has one part; otherwise NULL */
} tsr_recurrence_operands;

/* 0: 16 bits. */
static inline bool tsr_activation_bits_known(int bits)
{
    return bits == 0 || bits == 8 || bits == 16;
}

/* The element format of PARTIAL values under a reduction. */
static inline tsr_reduce_type tsr_reduce_type_of(tsr_reduction reduction)
{
    return reduction == TSR_REDUCTION_BF16  ? TSR_REDUCE_BF16
           : reduction == TSR_REDUCTION_F32 ? TSR_REDUCE_F32
                                            : TSR_REDUCE_EXACT;
}

/* The rule by which a token's blocks of positions are selected: the arguments of SELECT (core/op.h). */
typedef struct tsr_select_rule {
    int64_t n_heads, n_blocks, block, n_local;
} tsr_select_rule;

/* The arguments of COMPRESS (core/op.h). */
typedef struct tsr_compress_rule {
    int64_t ratio;
    bool overlap;
    tsr_tensor *bias; /* F32 weight of `ratio` rows as one vector, whole */
} tsr_compress_rule;

/* The arguments of STREAM_WEIGHTS (core/op.h). */
typedef struct tsr_stream_rule {
    int64_t n, iterations;
    bool mixes;
    float eps;
    tsr_tensor *scale, *base; /* F32 weights, whole */
} tsr_stream_rule;

/* The arguments of STREAM_MIX (core/op.h). */
typedef struct tsr_mix_rule {
    int64_t n_in, n_out, first, add_first;
} tsr_mix_rule;

/* Parameters of a node, by its op. */
typedef struct tsr_node_args {
    float eps;                          /* RMS_NORM */
    bool center;                        /* RMS_NORM: compute LayerNorm instead */
    tsr_tensor *bias;                   /* RMS_NORM, CONV: placed like the weight; NULL: none */
    float factor;                       /* SCALE, SOFTMAX, ATTENTION (scale of the scores) */
    float softcap;                      /* ATTENTION, SOFTCAP */
    int64_t window;                     /* ATTENTION */
    tsr_glu_kind glu;                   /* GLU */
    float limit;                        /* GLU: of TSR_GLU_CAPPED and TSR_GLU_BOUNDED */
    int64_t head_dim;                   /* ROPE; MUL_HEADS: rows of a head's matrix; RMS_NORM: without a
                                         * weight, or with one for each head, otherwise 0 */
    int64_t n_heads;                    /* MUL_HEADS */
    bool interleaved;                   /* ROPE */
    struct tsr_kv *kv;                  /* KV_WRITE, ATTENTION */
    int layer;                          /* KV_WRITE, ATTENTION */
    bool chunked;                       /* ATTENTION */
    tsr_select_rule select;             /* SELECT, ATTENTION with a selection */
    int64_t n_lists;                    /* the same */
    tsr_tensor *sinks;                  /* ATTENTION; NULL: none */
    bool has_more;                      /* ATTENTION: keys of KV layer more_layer are seen, too */
    int more_layer;                     /* the same */
    tsr_compress_rule compress;         /* COMPRESS */
    tsr_stream_rule streams;            /* STREAM_WEIGHTS */
    tsr_mix_rule mix;                   /* STREAM_MIX */
    tsr_columns columns;                /* COPY; period 0: all */
    tsr_state_part state;               /* CONV, RECURRENCE, COMPRESS */
    bool silu;                          /* CONV */
    tsr_weight_parts parts;             /* MUL_MAT, CONV; n 0: one, the first operand */
    tsr_recurrence_operands recurrence; /* RECURRENCE */
    tsr_routing_config route;           /* ROUTE */
    int64_t k;                          /* TOP_K */
    int64_t n_used;                     /* ROUTE, EXPERTS_*: experts per token */
    int64_t n_experts;                  /* ROUTE, EXPERTS_* */
    bool weigh_inputs;                  /* EXPERTS_*: of the routing */
    tsr_experts_config experts;         /* EXPERTS_*: gate and its bias are set */
    int64_t n_ff;                       /* EXPERTS_*: columns of an expert's down */
} tsr_node_args;

/* One allocation per node: the public tensor first, so that a tsr_tensor * of a graph is its node. */
typedef struct tsr_node {
    tsr_tensor tensor;
    tsr_node_args args;
} tsr_node;

struct tsr_graph {
    tsr_runtime *rt;
    tsr_tracked tracked;
    tsr_node **nodes; /* in creation order, the order of lowering and of execution */
    int n_nodes, capacity;
    int n_first;       /* the nodes of the first half (lower/halves.h); 0: the graph has no halves */
    tsr_status status; /* first failure of a constructor */
    char message[512];
    tsr_kv_inputs *kv_inputs; /* list; NULL: none */
    tsr_program *program;     /* the last one compiled, which stores inputs and outputs; NULL: none */
};

/* Free the list of a graph (kv_inputs.c). */
void tsr_kv_inputs_free_all(tsr_kv_inputs *first);

/* Append a node; NULL (and the graph's sticky failure) if out of memory. */
tsr_node *tsr_graph_append(tsr_graph *graph, tsr_op_kind op, tsr_type type, int64_t ne0, int64_t ne1,
                           const char *name);

/* Record a failure in the graph (the first one stays) and return NULL; refuse: TSR_ERR_INVALID with the op's
 * name and operand. */
void *tsr_graph_fail(tsr_graph *graph, tsr_status status);
void *tsr_graph_refuse(tsr_graph *graph, const char *op, const tsr_tensor *x, const char *why);

/* Whether one of n operands is NULL or of another graph: after an earlier failure, or by a bug of the caller,
 * which is then recorded. */
bool tsr_graph_misses(tsr_graph *graph, const char *op, tsr_tensor *const *operands, int n);

/* Whether a tensor is F32, of at most two dimensions. */
static inline bool tsr_tensor_is_f32(const tsr_tensor *x)
{
    return x->type == TSR_TYPE_F32 && x->ne[2] == 1 && x->ne[3] == 1;
}

/* Columns of down that are one granule, of experts whose weights are placed. */
static inline int64_t tsr_experts_granule(const tsr_node_args *args)
{
    const tsr_placement *down = &args->experts.down->placement;
    return args->experts.granule > 0 ? args->experts.granule
           : down->axis == 0         ? down->map->granule
                                     : args->n_ff;
}

/* The number n of entries of src in use: src[0 .. n). */
int tsr_node_n_src(const tsr_tensor *tensor);

/* Whether a tensor is a weight: placed by a buffer, not computed and not an input. */
bool tsr_tensor_is_weight(const tsr_tensor *tensor);

/* Whether a tensor is F32, of at most two dimensions, and no weight. */
static inline bool tsr_tensor_is_activation(const tsr_tensor *x)
{
    return tsr_tensor_is_f32(x) && !tsr_tensor_is_weight(x);
}

/* RMS norm, or LayerNorm (`center`) without a bias, over each head of x, with a weight [ne0 of x] that has
 * elements for each head and is SPLIT like x between heads. */
tsr_tensor *tsr_heads_norm(tsr_graph *graph, tsr_tensor *x, tsr_tensor *weight, int64_t head_dim, bool center,
                           float eps);

/* W x of every part of W. */
tsr_tensor *tsr_mul_mat_parts(tsr_graph *graph, const tsr_weight_parts *w, tsr_tensor *x);

/* W x, where the rows of x are the parts of a token: x is [ne[0] of W / n, n * n_tokens]. If W is divided by
 * columns, x must be whole for n > 1. */
tsr_tensor *tsr_mul_mat_joined(tsr_graph *graph, tsr_tensor *w, tsr_tensor *x);

/* Causal convolution of every channel of x over the last tokens of its sequence: x is [n, parts * n_tokens],
 * the weights are F32 [kernel, n], divided like x. */
tsr_tensor *tsr_conv(tsr_graph *graph, tsr_tensor *x, const tsr_weight_parts *weights, bool silu,
                     tsr_state_part state, const tsr_state_inputs *inputs);

/* Add a bias to the sums of a convolution of one part: an F32 weight [n], divided like the weight. Both may
 * be NULL. Returns the convolution. */
tsr_tensor *tsr_conv_bias(tsr_graph *graph, tsr_tensor *conv, tsr_tensor *bias);

/* The recurrence, divided like v. */
tsr_tensor *tsr_recurrence(tsr_graph *graph, const tsr_recurrence_operands *operands, tsr_state_part state,
                           const tsr_state_inputs *inputs);

/* Groups of positions compressed to a row each: x and gate are [n, n_tokens], or with overlap [2 n,
 * n_tokens]. [n, n_tokens], whole, with a row for the last position of each group, and zeros for the
 * others. */
tsr_tensor *tsr_compress(tsr_graph *graph, tsr_tensor *x, tsr_tensor *gate, tsr_tensor *position,
                         const tsr_compress_rule *rule, tsr_state_part state, const tsr_state_inputs *inputs);

/* The weights of residual streams from x, [2 n + n n, n_tokens], or [n, n_tokens] if they do not mix. */
tsr_tensor *tsr_stream_weights(tsr_graph *graph, tsr_tensor *x, const tsr_stream_rule *rule);

/* Sums of streams and of one more operand, with weights of each token: x is [n_in * n, n_tokens], add (NULL:
 * none) [n, n_tokens]. [n_out * n, n_tokens]. Without weights (NULL) copies of the only stream. */
tsr_tensor *tsr_stream_mix(tsr_graph *graph, tsr_tensor *x, tsr_tensor *weights, tsr_tensor *add,
                           const tsr_mix_rule *rule);

/* Every head's own matrix times the first elements of the head's part of x; the elements behind them follow
 * the product. w is [k, n_rows * n_heads], the rows of one head after another, SPLIT by head or whole; x is
 * [(k + rest) * n_heads, n_tokens], divided by the same heads. [(n_rows + rest) * n_heads, n_tokens]. */
tsr_tensor *tsr_mul_heads(tsr_graph *graph, tsr_tensor *w, tsr_tensor *x, int64_t n_heads);

/* Besides what tsr/ops.h says of tsr_kv_store(): if a layer has one KV head for all heads, k and v are whole
 * where the head is. If its values are in its keys, k has the k_dim - v_dim elements behind them, or is v if
 * there are none. If it has keys only, v is k. */

/* The blocks of positions that every token attends to (SELECT in core/op.h), by the index keys that KV layer
 * `layer` stores. q is [n_heads * k_dim, n_tokens], weights (NULL: none) are [n_heads, n_tokens]. */
tsr_tensor *tsr_select(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, tsr_tensor *q, tsr_tensor *weights,
                       const tsr_select_rule *rule);

/* Let an attention see the keys of KV layer more_layer, too (-1: none), and only the positions that a
 * tsr_select() has: of those of more_layer, or without it of the attention's own (NULL: all). Returns the
 * attention, which may be NULL. */
tsr_tensor *tsr_attention_extend(tsr_graph *graph, tsr_tensor *attention, tsr_kv_inputs *inputs,
                                 tsr_tensor *selection, int more_layer);

/* The k largest elements of every row of x with their columns (TOP_K in core/op.h): an I32 tensor [2 *
 * TSR_MAX_CANDIDATES, n_tokens] that begins with [n_tokens][k] candidates; k 0: none are computed, in the
 * same memory. Of a divided x every device finds those of its columns, and the caller merges:
 * placement.devices says which ones there are, and shards[d].data where. Only a graph's output. */
tsr_tensor *tsr_top_k(tsr_graph *graph, tsr_tensor *x, int64_t k);

#endif
