/* Hyper-parameters of a model, read from the keys of a GGUF file and checked against each other. */
#ifndef TSR_ARCH_HPARAMS_H
#define TSR_ARCH_HPARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include <tsr/gguf.h>

#include "core/op.h"

typedef enum tsr_rope_scaling {
    TSR_ROPE_SCALING_NONE = 0,
    TSR_ROPE_SCALING_LINEAR,  /* positions divided by the factor */
    TSR_ROPE_SCALING_YARN,    /* Peng et al., arXiv:2309.00071 */
    TSR_ROPE_SCALING_LONGROPE /* Ding et al., arXiv:2402.13753: the file has factors for short and long
                                 contexts */
} tsr_rope_scaling;

/* One rotary embedding. */
typedef struct tsr_rope_params {
    int64_t n_rot; /* leading elements of a head that are rotated; 0: the model has no such rotation */
    double base;
    tsr_rope_scaling scaling;
    double factor;               /* context is stretched by it */
    double n_ctx_orig;           /* YaRN, LongRoPE, temperature: context before stretching */
    double attn_factor;          /* on cos and sin */
    double log_multiplier;       /* YaRN: part of the magnitude's growth that the model has otherwise */
    double beta_fast, beta_slow; /* YaRN: rotations that bound the ramp */
    bool exact_ramp;             /* YaRN: the ramp's ends are not rounded to whole pairs */
    double temperature; /* position p's cos and sin grow by 1 + temperature ln(1 + floor(p / n_ctx_orig)) */
} tsr_rope_params;

/* What a model's rotations are for. Where it has no special one the main one serves. */
typedef enum tsr_rope_slot {
    TSR_ROPE_MAIN = 0,
    TSR_ROPE_WINDOWED, /* queries and keys of layers with a window */
    TSR_ROPE_QUERIES,  /* queries */
    TSR_ROPE_SLOTS
} tsr_rope_slot;

/* Keys and values where they are not what the heads say: of models that are planned and not run, and, for
 * predictions of time, windows. */
typedef struct tsr_kv_shape {
    double k_elems, v_elems; /* per token, mean over the layers; both 0: what the heads say */
    bool whole;              /* every device reads all of it (MLA) */
    double windowed;         /* part of the layers that see `window` positions only */
    int64_t window;
} tsr_kv_shape;

typedef struct tsr_hparams {
    char architecture[32];
    char name[128];
    int64_t n_layers, n_embd, n_head, n_head_kv, head_dim, n_ff, n_vocab, n_ctx_train;
    int64_t n_expert, n_expert_used; /* experts per layer and token; 0: no mixture of experts */
    int64_t n_dense_layers;          /* before the first layer with a mixture, with dense FFNs */
    int64_t n_ff_dense;              /* of those; n_ff is an expert's. 0: of no mixture, n_ff serves */
    int64_t n_ff_shared;             /* of the experts that every token uses, as one FFN; 0: there are none */
    bool expert_normalize;           /* weights of the chosen experts sum to 1 (times the scale) */
    float expert_scale;
    tsr_gating expert_gating;
    bool by_expert; /* decided, not read: devices hold whole experts instead of columns of each */
    tsr_kv_shape kv;
    float norm_eps;
    bool layer_norm;      /* norms take off the mean, too, and may have biases */
    bool parallel_blocks; /* attention and FFN both read what comes into the layer */
    bool ungated_ffn;     /* down(act(up x)) */
    bool relu_squared;    /* activation of FFNs without a gate; else GELU */

    tsr_rope_params rope[TSR_ROPE_SLOTS];
    bool rope_interleaved;  /* pairs of neighbours (llama); false: pairs half a rotation apart (neox) */
    int64_t no_rope_period; /* in every period of layers the last has no rotation; 0: all have */

    /* Factors; 0: the model has none. */
    double embedding_scale; /* on the embedding */
    double residual_scale;  /* on what a block adds to the residual stream */
    double attention_scale; /* on scores, instead of 1 / sqrt(head_dim) */
    double logit_scale;     /* on the logits */

    /* x becomes cap * tanh(x / cap); 0: it does not */
    double attention_softcap, logit_softcap;

    int64_t window;        /* positions that a layer with a sliding window sees; 0: there are none such */
    int64_t window_period; /* in every period of layers all but the last have the window; 0: all have */
    tsr_glu_kind ffn_activation;
} tsr_hparams;

/* Read what a decoder-only transformer has; `architecture` is the prefix of its keys. TSR_ERR_FORMAT names
 * the key that is missing or out of range, TSR_ERR_UNSUPPORTED the feature. */
tsr_status tsr_hparams_read(const tsr_gguf *gguf, const char *architecture, tsr_hparams *hparams_out);

/* Whether the FFN of `layer` is a mixture of experts. */
bool tsr_hparams_is_mixture(const tsr_hparams *hparams, int64_t layer);

/* Positions that `layer` sees, itself included; 0: all. */
int64_t tsr_hparams_window(const tsr_hparams *hparams, int64_t layer);

/* Which rotation the queries (or keys) of `layer` have; -1: none. */
int tsr_hparams_rope(const tsr_hparams *hparams, int64_t layer, bool queries);

enum { TSR_ALL_LAYERS = -1 };

/* The integer "<architecture>.<suffix>", in [low, high]. Files give some keys as an array with one entry per
 * layer: `layer` says which; TSR_ALL_LAYERS refuses entries that differ (TSR_ERR_UNSUPPORTED). *value keeps
 * its default where the key is absent and not required. TSR_ERR_FORMAT names the key otherwise. */
tsr_status tsr_hparams_key(const tsr_gguf *gguf, const char *architecture, const char *suffix, int64_t layer,
                           bool required, int64_t low, int64_t high, int64_t *value);

/* The real number "<architecture>.<suffix>"; *value keeps its default where the key is absent. */
tsr_status tsr_hparams_real(const tsr_gguf *gguf, const char *architecture, const char *suffix, bool required,
                            double low, double high, double *value);

/* The sliding window: "attention.sliding_window", and of which layers if the file says so
 * ("attention.sliding_window_pattern": a period, or a flag per layer), else `period`. */
tsr_status tsr_hparams_read_window(const tsr_gguf *gguf, int64_t period, tsr_hparams *hparams);

#endif
