/* The tensors of a model: found in the file, checked, and placed as a split says. */
#ifndef TSR_ARCH_WEIGHTS_H
#define TSR_ARCH_WEIGHTS_H

#include <tsr/gguf.h>

#include "core/tensor.h"
#include "arch/sharding.h"

/* Which block a tensor belongs to, and how it is divided in that block's group. */
typedef enum tsr_weight_role {
    TSR_WEIGHT_ATTENTION_WHOLE = 0, /* norms and the like: whole on every device of the block's group */
    TSR_WEIGHT_Q_ROWS,              /* by query heads */
    TSR_WEIGHT_KV_ROWS,             /* by KV heads */
    TSR_WEIGHT_Q_COLUMNS,           /* W_o */
    TSR_WEIGHT_Q_HEADS,             /* an element per query head */
    TSR_WEIGHT_FFN_WHOLE,
    TSR_WEIGHT_FFN_ROWS,       /* gate, up */
    TSR_WEIGHT_FFN_COLUMNS,    /* down */
    TSR_WEIGHT_EXPERT_ROWS,    /* gate, up of all experts: rows of every expert, or whole experts */
    TSR_WEIGHT_EXPERT_COLUMNS, /* down of all experts: columns, or whole experts */
    TSR_WEIGHT_EXPERTS,        /* whole experts, also where columns are divided: biases of down */
    TSR_WEIGHT_OUTPUT_WHOLE,
    TSR_WEIGHT_VOCAB_ROWS /* embedding, output */
} tsr_weight_role;

/* Which layer a tensor belongs to (>= 0), or one of these. */
enum { TSR_LAYER_EMBEDDING = -1, TSR_LAYER_OUTPUT = -2 };

/* A dense FFN. */
typedef struct tsr_ffn_weights {
    tsr_tensor *gate, *up, *down;
    tsr_tensor *gate_bias, *up_bias, *down_bias; /* NULL: none */
} tsr_ffn_weights;

/* What one layer is made of; NULL where the model has no such thing. */
typedef struct tsr_layer_weights {
    tsr_tensor *attn_norm, *wq, *wk, *wv, *wo;
    tsr_tensor *q_norm, *k_norm, *attn_post_norm;
    tsr_tensor *bq, *bk, *bv, *bo; /* biases */
    tsr_tensor *sinks;
    tsr_tensor *ffn_norm, *ffn_post_norm;
    tsr_ffn_weights ffn, shared;                                /* dense; the experts that every token uses */
    tsr_tensor *shared_gate;                                    /* how much of them a token takes */
    tsr_tensor *router, *expert_gate, *expert_up, *expert_down; /* a mixture of experts */
    tsr_tensor *router_bias, *choice_bias;                      /* on logits; for choosing only */
    tsr_tensor *expert_gate_bias, *expert_up_bias, *expert_down_bias;
    tsr_tensor *attn_norm_bias, *attn_norm_2, *attn_norm_2_bias, *ffn_norm_bias; /* of LayerNorms */
} tsr_layer_weights;

/* One declared tensor. */
typedef struct tsr_weight {
    tsr_tensor tensor;             /* first, so that a declared tensor is one of these */
    const tsr_gguf_tensor *source; /* &part, or the file's; NULL: of no file */
    tsr_gguf_tensor part;          /* rows of a tensor in which the file keeps several */
    tsr_weight_role role;
    int layer;
    bool tied;       /* the embedding once more, as output matrix */
    bool expert;     /* of a mixture of experts: [columns, rows, experts], of which a token uses a few */
    bool by_expert;  /* whole experts are divided */
    bool vectors;    /* an expert has a row each: biases */
    int64_t granule; /* elements of the divided axis that stay together; 0: as the role's map says */
} tsr_weight;

typedef struct tsr_weights {
    const tsr_gguf *gguf; /* NULL: no file; every required tensor exists, matrices in F16 */
    tsr_weight **list;
    int n, capacity;
    int64_t n_layers;
    tsr_layer_weights *layers; /* [n_layers] */
    int64_t ffn_columns;       /* of a granule, as in tsr_model_granules: what experts are summed in */
    tsr_tensor *embedding, *output_norm, *output_norm_bias, *output, *output_bias;
    bool tied_output;
    struct tsr_buffer *buffer;
} tsr_weights;

tsr_status tsr_weights_init(tsr_weights *weights, const tsr_gguf *gguf, int64_t n_layers);
void tsr_weights_free(tsr_weights *weights);

/* Declare the tensor `name` (formatted) of shape [ne0, ne1] (ne1 1: one dimension). An absent one is
 * TSR_ERR_FORMAT if required, else *tensor_out = NULL. TSR_ERR_FORMAT for another shape than expected. */
tsr_status tsr_weights_declare(tsr_weights *weights, bool required, tsr_weight_role role, int layer,
                               int64_t ne0, int64_t ne1, tsr_tensor **tensor_out, const char *name_format,
                               ...) TSR_PRINTF(8, 9);

/* Rows [first, first + ne1) of a tensor of [ne0, all], as a tensor of its own: where a file keeps several
 * matrices in one, each is divided by itself, so that every device gets its part of each. With ne0 1,
 * elements of a tensor of one dimension. The rest as above. */
typedef struct tsr_weight_rows {
    int64_t ne0, first, ne1, all;
} tsr_weight_rows;

tsr_status tsr_weights_declare_rows(tsr_weights *weights, bool required, tsr_weight_role role, int layer,
                                    tsr_weight_rows rows, tsr_tensor **tensor_out, const char *name);

/* The matrices of n_experts experts, [ne0, ne1, n_experts] in the file, required. The role is
 * TSR_WEIGHT_EXPERT_ROWS or _COLUMNS; `by_expert`: whole experts are divided. tensor.ne is what
 * tsr_expert_weights wants (graph/graph.h). */
typedef struct tsr_weight_experts {
    int64_t ne0, ne1, n_experts;
    bool by_expert;
} tsr_weight_experts;

tsr_status tsr_weights_declare_experts(tsr_weights *weights, tsr_weight_role role, int layer,
                                       tsr_weight_experts experts, tsr_tensor **tensor_out, const char *name);

/* Their biases, of n elements each: [n, n_experts], F32, optional. The role is TSR_WEIGHT_EXPERT_COLUMNS
 * (gate, up) or TSR_WEIGHT_EXPERTS (down). */
tsr_status tsr_weights_declare_expert_biases(tsr_weights *weights, tsr_weight_role role, int layer, int64_t n,
                                             const tsr_weight_experts *experts, tsr_tensor **tensor_out,
                                             const char *name);

/* A declared tensor's divided axis is another one than its class's: it is cut where that is, in proportion,
 * every `granule` elements. */
void tsr_weights_cut_every(tsr_tensor *tensor, int64_t granule);

/* Declare a tensor of the file, of any shape. tensor.ne is [ne[0], rows] with all outer dimensions
 * multiplied. */
tsr_status tsr_weights_append(tsr_weights *weights, const tsr_gguf_tensor *source, tsr_weight_role role,
                              int layer, tsr_weight **weight_out);

/* The output matrix is the embedding again. Where a split puts both in one group they become one tensor, else
 * the output's group gets its own copy (or view). */
tsr_status tsr_weights_tie_output(tsr_weights *weights);

/* Least common multiple of the quantization blocks of the tensors in one role; 1 if there are none. */
int64_t tsr_weights_block(const tsr_weights *weights, tsr_weight_role role);

tsr_block tsr_weight_block(const tsr_weight *weight);

/* The class whose counts divide it; TSR_CLASS_COUNT for one that is whole everywhere. */
tsr_split_class_id tsr_weight_class(const tsr_weight *weight);

/* Bytes of all tensors in use. */
size_t tsr_weights_bytes(const tsr_weights *weights);

/* Bytes over all layers (or, for VOCAB_ROWS, the matrices) of the tensors in the roles of one class. */
size_t tsr_weights_class_bytes(const tsr_weights *weights, tsr_split_class_id id);

/* A map of another axis of the same class: cut where `like` is cut, in proportion, at the nearest whole
 * granule. So axes of different lengths go to the devices alike. */
void tsr_weights_scale_map(const tsr_shard_map *like, int64_t extent, int64_t granule,
                           tsr_shard_map *map_out);

/* How tensors are placed; flags and `later` are those of tsr_buffer_load(). */
typedef struct tsr_weights_placing {
    unsigned flags;
    void (*progress)(double fraction, void *user); /* NULL: no progress callback */
    void *user;
    const tsr_weights
        *previous;           /* the same tensors under another split, which stay as they are; NULL: none */
    tsr_device_set deferred; /* devices that tsr_weights_refill() is for */
} tsr_weights_placing;

/* Put every declared tensor where `split` says. */
tsr_status tsr_weights_place(tsr_weights *weights, tsr_runtime *rt, const tsr_model_split *split,
                             const tsr_weights_placing *placing);

/* Load what devices lack that have nothing: copies, from the file. On failure they have nothing again. */
tsr_status tsr_weights_refill(tsr_weights *weights, tsr_device_set devices, unsigned flags);

#endif
