/* Graph nodes inside the library. */
#ifndef TSR_GRAPH_GRAPH_H
#define TSR_GRAPH_GRAPH_H

#include <tsr/experts.h>
#include <tsr/graph.h>
#include <tsr/ops.h>
#include <tsr/states.h>

#include "core/runtime.h"
#include "core/tensor.h"

struct tsr_kv;

/* A state of a layer in the KV region; of an op over several parts, the first of as many. */
typedef struct tsr_state_part {
    struct tsr_kv *kv;
    int layer, part;
} tsr_state_part;

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
    int64_t n_heads;                    /* MUL_HEADS; SELECT: of the index queries; COPY: of operands that
                                         * are joined, otherwise 0 */
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
    tsr_columns columns;                /* COPY; period 0: none are taken */
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

/* Whether a tensor is an input of the graph, or computed by it. */
bool tsr_graph_has(const tsr_graph *graph, const tsr_tensor *x);

/* Whether one of n operands is NULL, of another graph, or a weight of another runtime: after an earlier
 * failure, or by a bug of the caller, which is then recorded. */
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

/* The part of tsr_top_k_get() that allocates nothing: `parts` has room for the candidates of every device of
 * `top_k`, one device after another. */
tsr_status tsr_top_k_read(const tsr_tensor *top_k, tsr_candidate *parts, tsr_candidate *candidates_out);

#endif
