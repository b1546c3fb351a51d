/* Hyper-parameters of a model, read from the keys of a GGUF file and checked against each other. */
#ifndef TSR_ARCH_HPARAMS_H
#define TSR_ARCH_HPARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include <tsr/experts.h>

#include "arch/keys.h"

typedef enum tsr_rope_scaling {
    TSR_ROPE_SCALING_NONE = 0,
    TSR_ROPE_SCALING_LINEAR,  /* positions divided by the factor */
    TSR_ROPE_SCALING_YARN,    /* YaRN (Peng et al., arXiv:2309.00071) */
    TSR_ROPE_SCALING_LONGROPE /* LongRoPE (Ding et al., arXiv:2402.13753): the file has factors for short
                               * and long contexts */
} tsr_rope_scaling;

/* One rotary embedding. */
typedef struct tsr_rope_params {
    int64_t n_rot;     /* leading elements of a head that are rotated; 0: the model has no such rotation */
    int64_t n_fixed;   /* the first of these: angle 0, only the temperature makes them grow */
    int64_t n_factors; /* of the file's tensor, of which the first n_rot / 2 apply; 0: n_rot / 2 */
    double base;
    tsr_rope_scaling scaling;
    double factor;               /* factor by which the context is stretched */
    double n_ctx_orig;           /* YaRN, LongRoPE, temperature: context before stretching */
    double attn_factor;          /* factor on cos and sin */
    double yarn_magnitude;       /* YaRN: growth of cos and sin; 0: the growth that follows from the factor */
    double log_multiplier;       /* YaRN: part of the magnitude's growth that another scale of the model
                                  * has already */
    double beta_fast, beta_slow; /* YaRN: rotations that bound the ramp */
    bool as_trained;             /* the file's tensor of factors does not apply */
    bool exact_ramp;             /* YaRN: the ramp's ends are not rounded to whole pairs */
    double temperature; /* position p's cos and sin grow by 1 + temperature ln(1 + floor(p / n_ctx_orig)) */
    double temperature_length; /* instead of n_ctx_orig there; 0: none */
    double temperature_offset; /* added to the position there */
    int64_t group;             /* angles are those of the first of every `group` positions; 0: of each */
    bool inverse;              /* rotate back: angles are negative */
} tsr_rope_params;

/* The rotations of a model. Layers without a rotation of their own kind use the main one. */
typedef enum tsr_rope_slot {
    TSR_ROPE_MAIN = 0,
    TSR_ROPE_WINDOWED, /* queries and keys of layers with a window */
    TSR_ROPE_QUERIES,  /* queries */
    TSR_ROPE_NAMED, /* those before are named by the kinds of layers; the next are of blocks/compressed.c */

    TSR_ROPE_BACK = TSR_ROPE_NAMED, /* the inverse of the main one */
    TSR_ROPE_WIDE,                  /* queries and keys of layers with compressed positions, ... */
    TSR_ROPE_WIDE_BACK,             /* its inverse, */
    TSR_ROPE_ROWS,                  /* the compressed rows of layers that see all of them, */
    TSR_ROPE_CHOSEN_ROWS,           /* of layers that select them, */
    TSR_ROPE_INDEX,                 /* index queries, */
    TSR_ROPE_INDEX_ROWS,            /* and index keys */
    TSR_ROPE_SLOTS
} tsr_rope_slot;

/* Sizes of keys and values that differ from those of the heads: in models that are planned and not run, and,
 * for predictions of time, in layers with windows. */
typedef struct tsr_kv_shape {
    double k_elems, v_elems; /* per token, mean over the layers; both 0: the sizes of the heads */
    bool whole;              /* every device reads all of it (MLA) */
    double windowed;         /* fraction of layers that see `window` positions only */
    int64_t window;
} tsr_kv_shape;

/* Families have layers of few kinds; a model of more kinds is refused. */
enum { TSR_MAX_LAYERS = 1 << 12, TSR_MAX_LAYER_KINDS = 16 };

/* What a layer mixes the tokens of a sequence with. */
typedef enum tsr_mixer {
    TSR_MIXER_ATTENTION = 0,
    TSR_MIXER_DELTA,      /* the gated delta rule behind a convolution */
    TSR_MIXER_LATENT,     /* attention over compressed keys and values (blocks/latent.c) */
    TSR_MIXER_CONV,       /* a short convolution (blocks/short_conv.c) */
    TSR_MIXER_MAMBA,      /* Mamba-2 (blocks/mamba.c) */
    TSR_MIXER_COMPRESSED, /* attention to a window and to compressed positions (blocks/compressed.c) */
    TSR_MIXER_NONE        /* nothing: the layer is an FFN */
} tsr_mixer;

typedef enum tsr_ffn { TSR_FFN_DENSE = 0, TSR_FFN_EXPERTS, TSR_FFN_NONE } tsr_ffn;

/* The shape of a layer. Layers of equal shape are of one kind. Compared as bytes: no padding. */
typedef struct tsr_layer_kind {
    int64_t n_head, n_head_kv, head_dim;
    int64_t window; /* positions that the layer sees, its own included; 0: all */
    int64_t n_ff;   /* length of a dense FFN */

    /* Of a recurrent layer: n_head_kv heads of queries and keys, of key_dim elements, for n_head heads of
     * values, of head_dim elements; tokens that a convolution sees. Values are stored in `parts` equal parts;
     * a part has n_head / parts / n_head_kv value heads for each key head, in the order of the key heads.
     * TSR_MIXER_CONV has n_head = n_head_kv groups of head_dim channels, and only conv_kernel besides. */
    int64_t key_dim, conv_kernel, parts;

    /* Of Mamba-2: groups of heads, each with a key (B) and a query (C). Where they are not n_head_kv, that is
     * the number of heads: heads are divided, and every device has the keys and queries of all groups. */
    int64_t n_groups;
    int64_t beside; /* 1 + the kind of a mixer that reads the layer's input, too; 0: none */

    /* Of attention to selected positions: blocks of positions that a token sees (0: all), and elements of the
     * layer's index keys (0: the selection of the last layer that has any). */
    int64_t n_selected, index_dim;

    /* Of TSR_MIXER_COMPRESSED: positions that are compressed to one row (0: the layer has no such rows), of
     * which a token then sees those selected. Heads are in n_head_kv groups, each with a matrix to the
     * output. */
    int64_t ratio;
    tsr_mixer mixer;
    tsr_ffn ffn;
    int rope_q, rope_k;            /* rotations of queries and keys, tsr_rope_slot; -1: none */
    float ffn_limit, expert_limit; /* of TSR_GLU_CAPPED (hparams->bounded_glu: of TSR_GLU_BOUNDED) in the
                                    * dense FFN or the shared experts, and in the experts; 0:
                                    * hparams->ffn_activation */
} tsr_layer_kind;

/* Sizes of latent attention. A head's query has n_plain elements without rotation, then n_rot with rotation;
 * a layer's head_dim is the length of values, and every query head has keys and values of its own. */
typedef struct tsr_latent {
    int64_t q_rank;  /* of the compressed queries; 0: they are not compressed */
    int64_t kv_rank; /* of the compressed keys and values; 0: the model has no latent attention */
    int64_t n_plain, n_rot;
} tsr_latent;

/* How positions are selected (SELECT in core/op.h). */
typedef struct tsr_indexer {
    int64_t n_heads, dim; /* of index queries and keys; n_heads 0: layers see all positions */
    bool sums_heads;      /* one list by a sum over heads; false: a list of each head, for a KV head each */
    int64_t n_selected;   /* blocks */
    int64_t block;        /* positions of a block */
    int64_t n_local;      /* the last blocks, which are selected in any case */
} tsr_indexer;

typedef struct tsr_hparams {
    char architecture[32];
    char name[128];
    int64_t n_layers, n_embd, n_vocab, n_ctx_train;
    int64_t n_head, n_head_kv, n_ff; /* of the layer with the most; n_ff: with a mixture, of an expert */
    int64_t head_dim;         /* of layers without a window; with latent attention, the length of values */
    int64_t n_predict_layers; /* layers after these that predict further tokens; not loaded */
    bool predicts; /* the last of n_layers predicts further tokens: no part of a step (blocks/prediction.c) */
    int64_t n_expert, n_expert_used; /* experts per layer and token; 0: no mixture of experts */
    int64_t n_dense_layers;          /* layers with dense FFNs before the first layer with a mixture */
    int64_t n_ff_shared;             /* length of the shared experts as one FFN; 0: no shared experts */
    bool expert_normalize;           /* weights of the chosen experts sum to 1 (times the scale) */
    float expert_scale;
    tsr_gating expert_gating;
    bool by_expert; /* decided by the planner: devices hold whole experts instead of columns of each */
    tsr_kv_shape kv;
    float norm_eps;
    bool layer_norm;        /* norms are LayerNorms, and may have biases */
    bool parallel_blocks;   /* attention and FFN both read the layer's input */
    bool ungated_ffn;       /* down(act(up x)) */
    bool joined_alpha_beta; /* of gated delta rules: in one tensor, ssm_ba */
    bool gated_attention;   /* outputs of heads are multiplied by sigmoids, element by element */
    bool relu_squared;      /* activation of FFNs without a gate; false: GELU */

    tsr_rope_params rope[TSR_ROPE_SLOTS];
    bool rope_interleaved; /* pairs of neighbours (llama); false: pairs half a rotation apart (neox) */

    /* Factors; 0: no factor. */
    double embedding_scale; /* on the embedding */
    double residual_scale;  /* on the results of blocks */
    double attention_scale; /* on scores, instead of 1 / sqrt(head_dim) */
    double logit_scale;     /* on the logits */

    /* x becomes cap * tanh(x / cap); 0: no cap */
    double attention_softcap, logit_softcap;

    int64_t window;        /* positions that a layer with a sliding window sees; 0: no such layers */
    int64_t window_period; /* all but the last layer of every period have the window; 0: all have;
                            * -n: the file has a flag for each of the first n, and the others (prediction
                            * layers) have no window */
    tsr_glu_kind ffn_activation;
    double shared_scale;  /* on the result of the shared experts; 0: no factor */
    bool norm_after_rope; /* norms of queries and keys read rotated heads */

    bool value_norm;       /* values have an RMS norm without a weight over every head */
    int64_t n_shared_kv;   /* the last layers, which read keys and values of an earlier layer */
    int64_t n_layer_input; /* length of the embeddings per layer; 0: none (blocks/layer_input.c) */

    tsr_layer_kind kinds[TSR_MAX_LAYER_KINDS];
    int n_kinds;
    unsigned char kind_of[TSR_MAX_LAYERS]; /* [n_layers] */
    tsr_latent latent;
    int64_t n_expert_groups, n_expert_groups_used; /* 0 or 1: experts are not chosen by groups */
    const char *output_norm;                       /* the name of the last norm's tensor; NULL: output_norm */
    int64_t n_expert_embd;    /* length of what the chosen experts read and write; 0: n_embd */
    int64_t expert_step;      /* only every n-th layer has a mixture; 0 or 1: every one */
    bool weigh_expert_inputs; /* weights of experts are factors of their inputs */
    tsr_indexer indexer;
    bool chunked;          /* windows are chunks (tsr_op_attention) */
    bool rotated_norm;     /* rotated queries and keys have an RMS norm without a weight over every head */
    bool bounded_glu;      /* a limit bounds the input of an activation instead of its result */
    int64_t n_hash_layers; /* the first layers, whose experts depend on the token alone */
    int64_t out_rank;      /* TSR_MIXER_COMPRESSED: elements of a group's result */
    int64_t n_streams, stream_iterations; /* residual streams (blocks/streams.c); 0: one, without weights */
    float stream_eps;
} tsr_hparams;

/* Read the hyper-parameters of a decoder-only transformer. TSR_ERR_FORMAT names the key that is missing or
 * out of range, TSR_ERR_UNSUPPORTED the feature. */
tsr_status tsr_hparams_read(tsr_keys *keys, bool latent, tsr_hparams *hparams_out);

/* The gating of files without a key for it. */
void tsr_hparams_default_gating(tsr_keys *keys, tsr_gating gating, tsr_hparams *hparams);

/* Read the epsilon of the kind of norm that the model has (hparams->layer_norm). The key may be missing if
 * hparams->norm_eps is set. */
tsr_status tsr_hparams_read_norm(tsr_keys *keys, tsr_hparams *hparams);

/* The shape of layer l as the keys say, with the windows and rotations of *hparams. */
tsr_status tsr_layer_kind_read(tsr_keys *keys, const tsr_hparams *hparams, int64_t l,
                               tsr_layer_kind *kind_out);

/* Give layer l a shape; layers are given in order. TSR_ERR_UNSUPPORTED: too many kinds. */
tsr_status tsr_hparams_set_layer(tsr_hparams *hparams, int64_t l, const tsr_layer_kind *kind);

static inline const tsr_layer_kind *tsr_hparams_layer(const tsr_hparams *hparams, int64_t l)
{
    return &hparams->kinds[hparams->kind_of[l]];
}

/* Whether a mixer has a state per sequence instead of keys and values. */
static inline bool tsr_mixer_is_recurrent(tsr_mixer mixer)
{
    return mixer == TSR_MIXER_DELTA || mixer == TSR_MIXER_CONV || mixer == TSR_MIXER_MAMBA;
}

/* The layers of a step. */
static inline int64_t tsr_hparams_n_step_layers(const tsr_hparams *hparams)
{
    return hparams->n_layers - hparams->predicts;
}

/* The layer whose keys and values layer l reads: l, or the last layer before the n_shared_kv last ones with
 * the same window. */
int64_t tsr_hparams_kv_layer(const tsr_hparams *hparams, int64_t l);

/* The last layers that belong together: those that read another layer's keys and values, and those from the
 * first such other layer on. 0: there are none. */
int64_t tsr_hparams_n_together(const tsr_hparams *hparams);

/* The index keys of layer l are stored as a KV layer of their own, of this number, behind those of the
 * layers; l = n_layers: the number of all KV layers. */
int64_t tsr_hparams_index_layer(const tsr_hparams *hparams, int64_t l);

/* The same for the compressed rows of layer l. */
int64_t tsr_hparams_rows_layer(const tsr_hparams *hparams, int64_t l);

/* The sizes of the index, "attention.indexer.*", of which hparams->indexer.sums_heads is set. */
tsr_status tsr_hparams_read_indexer(tsr_keys *keys, tsr_hparams *hparams);

/* The sliding window, "attention.sliding_window", and the layers that have it:
 * "attention.sliding_window_pattern" (a period, or a flag per layer), otherwise `period`. The rotation of
 * these layers is hparams->rope[TSR_ROPE_WINDOWED] if that is set, otherwise the main one, with the base
 * "rope.freq_base_swa" if the file has the key. */
tsr_status tsr_hparams_read_window(tsr_keys *keys, int64_t period, tsr_hparams *hparams);

#endif
