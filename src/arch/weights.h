/* The tensors of a model: find them in the file, check them, and place them as a split says. */
#ifndef TSR_ARCH_WEIGHTS_H
#define TSR_ARCH_WEIGHTS_H

#include <tsr/gguf.h>
#include <tsr/states.h>

#include "arch/sharding.h"
#include "core/tensor.h"

/* The block that a tensor belongs to, and how the tensor is divided in the block's group. */
typedef enum tsr_weight_role {
    TSR_WEIGHT_ATTENTION_WHOLE = 0, /* norms and small tensors: whole on every device of the block's group */
    TSR_WEIGHT_Q_ROWS,              /* by query heads */
    TSR_WEIGHT_KV_ROWS,             /* by KV heads */
    TSR_WEIGHT_Q_COLUMNS,           /* W_o */
    TSR_WEIGHT_Q_HEADS,             /* an element, or a row, per query head */
    TSR_WEIGHT_FFN_WHOLE,
    TSR_WEIGHT_FFN_ROWS,       /* gate, up */
    TSR_WEIGHT_FFN_COLUMNS,    /* down */
    TSR_WEIGHT_EXPERT_ROWS,    /* gate, up of all experts: rows of every expert, or whole experts */
    TSR_WEIGHT_EXPERT_COLUMNS, /* down of all experts: columns, or whole experts */
    TSR_WEIGHT_EXPERTS,        /* whole experts, also where columns are divided: biases of down */
    TSR_WEIGHT_OUTPUT_WHOLE,
    TSR_WEIGHT_VOCAB_ROWS /* embedding, output */
} tsr_weight_role;

/* The layer that a tensor belongs to (>= 0), or one of these values. */
enum { TSR_LAYER_EMBEDDING = -1, TSR_LAYER_OUTPUT = -2 };

/* A dense FFN. */
typedef struct tsr_ffn_weights {
    tsr_tensor *gate, *up, *down;
    tsr_tensor *gate_bias, *up_bias, *down_bias; /* NULL: none */
} tsr_ffn_weights;

/* A gated delta rule. */
typedef struct tsr_delta_weights {
    tsr_tensor *alpha_low, *z_low;         /* compressions of what alpha and wz multiply; NULL: none */
    tsr_tensor *wq, *wk, *conv_q, *conv_k; /* queries and keys, and their convolutions */
    tsr_weight_parts wv, conv_v, wz;       /* values, their convolution, gate of the output */
    tsr_tensor *ba;                        /* per key head first the betas, then the alphas; */
    tsr_weight_parts alpha, beta;          /* or each by itself */
    tsr_weight_parts a, dt_bias;
    tsr_tensor *norm, *out;
} tsr_delta_weights;

/* A short convolution: the rows of in_proj for its two gates and its inputs. */
typedef struct tsr_conv_weights {
    tsr_tensor *before, *after, *x, *conv, *out;
} tsr_conv_weights;

/* Mamba-2. */
typedef struct tsr_mamba_weights {
    tsr_tensor *wz, *wx, *wb, *wc, *wdt; /* gate of the output, values, keys, queries, steps */
    tsr_tensor *conv_x, *conv_b, *conv_c;
    tsr_tensor *bias_x, *bias_b, *bias_c; /* of the convolutions; NULL: none */
    tsr_tensor *a, *dt_bias, *skip, *out;
    tsr_tensor *norm; /* NULL: none */
} tsr_mamba_weights;

/* The index by which positions are selected. */
typedef struct tsr_index_weights {
    tsr_tensor *q, *k, *proj;                  /* queries, key; weights of the heads */
    tsr_tensor *q_norm, *k_norm, *k_norm_bias; /* of a LayerNorm, if there is a bias */
} tsr_index_weights;

/* What compresses positions to rows: values, gates, biases of the gates by place, and the norm of a row. */
typedef struct tsr_compressor_weights {
    tsr_tensor *x, *gate, *bias, *norm;
} tsr_compressor_weights;

/* The weights of residual streams before a block: a matrix, factors, and what is added. */
typedef struct tsr_stream_weights_of {
    tsr_tensor *matrix, *scale, *base;
} tsr_stream_weights_of;

/* What a prediction layer has besides a layer's tensors (blocks/prediction.c). */
typedef struct tsr_prediction_weights {
    tsr_tensor *of_embedding, *of_hidden, *embedding_norm, *hidden_norm;
    tsr_tensor *norm, *embedding, *output; /* NULL: the model's */
} tsr_prediction_weights;

/* The tensors of one layer; NULL: the model has no such tensor. */
typedef struct tsr_layer_weights {
    tsr_tensor *attn_norm, *wq, *wk, *wv, *wo;
    tsr_tensor *q_norm, *k_norm, *attn_post_norm;
    tsr_tensor *bq, *bk, *bv, *bo; /* biases */
    tsr_tensor *sinks;
    tsr_delta_weights delta;
    tsr_conv_weights conv;
    tsr_mamba_weights mamba;
    tsr_tensor *attn_gate; /* gates of attention's result: a row for each element, or for each head */
    tsr_tensor *latent_q, *latent_q_norm;             /* latent attention: compression of queries, ... */
    tsr_tensor *latent_kv, *latent_kv_norm, *key_rot; /* of keys and values; the rotated part of all keys */
    tsr_tensor *k_of_head, *v_of_head;                /* a matrix per head from and to the compressed row */
    tsr_index_weights index;
    tsr_tensor *group_out; /* blocks/compressed.c: a matrix of each group of heads */
    tsr_compressor_weights compressor, index_compressor;
    tsr_stream_weights_of attn_streams, ffn_streams; /* blocks/streams.c */
    tsr_tensor *ffn_norm, *ffn_post_norm;
    tsr_ffn_weights ffn, shared;                                /* a dense FFN; the shared experts */
    tsr_tensor *shared_gate;                                    /* gate per token of the shared experts */
    tsr_tensor *router, *expert_gate, *expert_up, *expert_down; /* a mixture of experts */
    tsr_tensor *router_bias, *choice_bias;                      /* bias of the router's logits; bias for
                                                                 * the choice only */
    tsr_tensor *expert_gate_bias, *expert_up_bias, *expert_down_bias;
    tsr_tensor *expert_table;           /* I32: the experts of every token */
    tsr_tensor *expert_in, *expert_out; /* from and to the length that the chosen experts have */
    tsr_tensor *router_scale;           /* gemma4: factors on the router's input */
    tsr_tensor *expert_scales;          /* factors on the weights of the experts */
    tsr_tensor *dense_post_norm, *expert_norm, *expert_post_norm; /* gemma4: of a dense FFN beside experts */
    tsr_tensor *input_gate, *input_proj, *input_norm;             /* blocks/layer_input.c */
    tsr_tensor *output_scale;                                     /* a factor on the layer's result */
    tsr_tensor *attn_norm_bias, *attn_norm_2, *attn_norm_2_bias, *ffn_norm_bias; /* of LayerNorms */
} tsr_layer_weights;

/* One declared tensor. */
typedef struct tsr_weight {
    tsr_tensor tensor;             /* first member, so that a declared tensor's address is this tensor's */
    const tsr_gguf_tensor *source; /* &part, or the tensor of the file; NULL: without a file */
    tsr_gguf_tensor part;          /* a range of rows of a tensor of the file */
    tsr_weight_role role;
    int layer;
    bool tied;        /* the embedding, used as output matrix */
    bool expert;      /* of a mixture of experts: [columns, rows, experts], of which a token uses a few */
    bool by_expert;   /* divided by whole experts */
    bool vectors;     /* biases: one row per expert */
    bool matrix;      /* has rows, even if there is one only */
    int64_t per_head; /* elements of the divided axis for each KV head (of a recurrent layer: key head), where
                       * the class's axis has other numbers; 0: the same */
    int64_t granule;  /* elements of the divided axis that stay together; 0: the map of the role decides */
    tsr_source_layout layout; /* of the source, as in tsr_placement; parts are owned */
    float *floats;            /* the source's elements, if the file has another type; NULL: the file's */
    const tsr_gguf_tensor **experts; /* [experts] tensors of the file that are the source; NULL: one tensor */
    bool beside;                     /* of the mixer beside the layer's own */
} tsr_weight;

typedef struct tsr_weights {
    const tsr_gguf *gguf; /* NULL: no file; every required tensor exists, with matrices in F16 */
    tsr_weight **list;
    int n, capacity;
    int64_t n_layers;
    tsr_layer_weights *layers; /* [n_layers] */
    int64_t ffn_columns;       /* columns of a granule, as in tsr_model_granules: the unit of partial sums
                                * of experts */
    tsr_tensor *layer_embedding, *layer_proj, *layer_proj_norm; /* blocks/layer_input.c; NULL: none */
    tsr_prediction_weights prediction;                          /* NULLs: no prediction layer */
    tsr_stream_weights_of output_streams;                       /* blocks/streams.c */
    tsr_tensor *embedding, *output_norm, *output_norm_bias, *output, *output_bias;
    bool tied_output;
    struct tsr_buffer *buffer;
} tsr_weights;

tsr_status tsr_weights_init(tsr_weights *weights, const tsr_gguf *gguf, int64_t n_layers);
void tsr_weights_free(tsr_weights *weights);

/* Declare the tensor `name` (formatted) of shape [ne0, ne1] (ne1 1: one dimension). If the tensor is absent:
 * TSR_ERR_FORMAT if it is required, otherwise *tensor_out = NULL. TSR_ERR_FORMAT: the shape differs. */
tsr_status tsr_weights_declare(tsr_weights *weights, bool required, tsr_weight_role role, int layer,
                               int64_t ne0, int64_t ne1, tsr_tensor **tensor_out, const char *name_format,
                               ...) TSR_PRINTF(8, 9);

/* TSR_ERR_UNSUPPORTED: the type of a norm or bias is not F32. */
tsr_status tsr_weights_check_vector(const tsr_weights *weights, const char *name, tsr_type type);

/* Find a tensor of the file and check its shape and type. *source_out = NULL: the tensor is absent and not
 * required. */
tsr_status tsr_weights_find(const tsr_weights *weights, bool required, const char *name, const int64_t ne[3],
                            bool matrix, const tsr_gguf_tensor **source_out);

/* Declare rows [first, first + ne1) of a tensor [ne0, all] as a tensor of its own, for files that have
 * several matrices in one tensor, and for matrices that may have one row. Each matrix is divided by itself,
 * so that every device gets its part of each. ne0 1: elements of a tensor of one dimension. Otherwise as
 * tsr_weights_declare(), for which a tensor of one row is a vector. */
typedef struct tsr_weight_rows {
    int64_t ne0, first, ne1, all;
} tsr_weight_rows;

tsr_status tsr_weights_declare_rows(tsr_weights *weights, bool required, tsr_weight_role role, int layer,
                                    tsr_weight_rows rows, tsr_tensor **tensor_out, const char *name);

/* Declare columns [first, first + ne0) of a matrix [all, ne1], required and whole on every device.
 * TSR_ERR_FORMAT: they are no whole blocks of the type. */
typedef struct tsr_weight_columns {
    int64_t first, ne0, all, ne1;
} tsr_weight_columns;

tsr_status tsr_weights_declare_columns(tsr_weights *weights, tsr_weight_role role, int layer,
                                       tsr_weight_columns columns, tsr_tensor **tensor_out, const char *name);

/* Declare a matrix per head, [ne0, ne1, n_heads] in the file, required and divided by query heads: a tensor
 * of ne1 * n_heads rows. */
tsr_status tsr_weights_declare_heads(tsr_weights *weights, int layer, int64_t ne0, int64_t ne1,
                                     int64_t n_heads, tsr_tensor **tensor_out, const char *name);

/* Declare the matrices of n_experts experts, [ne0, ne1, n_experts] in the file, required. The role is
 * TSR_WEIGHT_EXPERT_ROWS or _COLUMNS; `by_expert`: whole experts are divided. tensor.ne is as
 * tsr/experts.h needs it. With `all_rows` the file has [ne0, all_rows, n_experts], and
 * the matrices are the ne1 rows from first_row on of each; the role is then TSR_WEIGHT_EXPERT_ROWS. */
typedef struct tsr_weight_experts {
    int64_t ne0, ne1, n_experts;
    bool by_expert;
    int64_t first_row, all_rows;
} tsr_weight_experts;

tsr_status tsr_weights_declare_experts(tsr_weights *weights, tsr_weight_role role, int layer,
                                       tsr_weight_experts experts, tsr_tensor **tensor_out, const char *name);

/* The same for a file with a tensor for each expert: blk.<layer>.ffn_<kind>.<expert>.weight, [ne0, ne1]. The
 * tensor is called as in other files, blk.<layer>.ffn_<kind>_exps.weight. TSR_ERR_UNSUPPORTED: the types
 * differ. */
tsr_status tsr_weights_declare_expert_tensors(tsr_weights *weights, tsr_weight_role role, int layer,
                                              tsr_weight_experts experts, tsr_tensor **tensor_out,
                                              const char *kind);

/* Declare the biases of experts, of n elements each: [n, n_experts], F32, optional. The role is
 * TSR_WEIGHT_EXPERT_COLUMNS (gate, up) or TSR_WEIGHT_EXPERTS (down). */
tsr_status tsr_weights_declare_expert_biases(tsr_weights *weights, tsr_weight_role role, int layer, int64_t n,
                                             const tsr_weight_experts *experts, tsr_tensor **tensor_out,
                                             const char *name);

/* Say that the divided axis of a declared tensor is not the axis of its class: the tensor is cut at the same
 * proportions, at multiples of `granule` elements. */
void tsr_weights_cut_every(tsr_tensor *tensor, int64_t granule);

/* Say that a declared tensor of an attention class has `per_head` elements of the divided axis for each KV
 * head; NULL: no effect. */
void tsr_weights_cut_heads(tsr_tensor *tensor, int64_t per_head);

/* The kind whose heads divide the tensors of an attention class: that of the layer, or of the mixer beside
 * it. */
int tsr_weight_kind(const tsr_weight *weight, const tsr_hparams *hparams);

/* Declare a matrix [ne0, ne1] of the file as a vector of all its elements, in F32. Converters and quantizers
 * take such a tensor for a matrix, and may give it any type. */
tsr_status tsr_weights_declare_vector(tsr_weights *weights, bool required, tsr_weight_role role, int layer,
                                      int64_t ne0, int64_t ne1, tsr_tensor **tensor_out, const char *name);

/* Declare a tensor of the file, of any shape. tensor.ne is [ne[0], rows] with all outer dimensions
 * multiplied. */
tsr_status tsr_weights_append(tsr_weights *weights, const tsr_gguf_tensor *source, tsr_weight_role role,
                              int layer, tsr_weight **weight_out);

/* Declare the embedding as output matrix. If a split has both in one group they become one tensor, otherwise
 * the output's group gets its own copy (or view). */
tsr_status tsr_weights_tie_output(tsr_weights *weights);

/* Least common multiple of the quantization blocks of the tensors in one role; 1 if there are none. */
int64_t tsr_weights_block(const tsr_weights *weights, tsr_weight_role role);

/* Least common multiple of `block` and the quantization block of one tensor. */
int64_t tsr_weight_common_block(const tsr_weight *weight, int64_t block);

tsr_block tsr_weight_block(const tsr_weight *weight);

/* The layer N in a tensor's name "blk.N.<rest>"; -1: a name of another form. */
int64_t tsr_weight_name_layer(const char *name);

/* The class whose counts divide the role; TSR_CLASS_COUNT: a role that is whole everywhere. */
tsr_split_class_id tsr_weight_class(const tsr_weight *weight);

/* Bytes of all tensors in use. */
size_t tsr_weights_bytes(const tsr_weights *weights);

/* Bytes over all layers (or, for VOCAB_ROWS, the matrices) of the tensors in the roles of one class. */
size_t tsr_weights_class_bytes(const tsr_weights *weights, tsr_split_class_id id);

#endif
