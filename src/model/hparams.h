/* Hyper-parameters of a model, read from the keys of a GGUF file and checked against each other. */
#ifndef TSR_MODEL_HPARAMS_H
#define TSR_MODEL_HPARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include <tsr/gguf.h>

typedef enum tsr_rope_scaling {
    TSR_ROPE_SCALING_NONE = 0,
    TSR_ROPE_SCALING_LINEAR, /* positions divided by the factor */
    TSR_ROPE_SCALING_YARN    /* Peng et al., arXiv:2309.00071 */
} tsr_rope_scaling;

/* Keys and values of models that are planned and not run, where they are not what the heads say. */
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
    tsr_kv_shape kv;
    float norm_eps;

    int64_t n_rot; /* leading elements of a head that are rotated */
    bool rope_interleaved;
    double rope_base;
    tsr_rope_scaling rope_scaling;
    double rope_factor;                    /* context is stretched by it */
    double rope_n_ctx_orig;                /* YaRN: context before stretching */
    double rope_attn_factor;               /* YaRN: extra factor on cos and sin */
    double rope_beta_fast, rope_beta_slow; /* YaRN: rotations that bound the ramp */
} tsr_hparams;

/* Read what a decoder-only transformer has; `architecture` is the prefix of its keys. TSR_ERR_FORMAT names
 * the key that is missing or out of range, TSR_ERR_UNSUPPORTED the feature. */
tsr_status tsr_hparams_read(const tsr_gguf *gguf, const char *architecture, tsr_hparams *hparams_out);

enum { TSR_ALL_LAYERS = -1 };

/* The integer "<architecture>.<suffix>", in [low, high]. Files give some keys as an array with one entry per
 * layer: `layer` says which; TSR_ALL_LAYERS refuses entries that differ (TSR_ERR_UNSUPPORTED). *value keeps
 * its default where the key is absent and not required. TSR_ERR_FORMAT names the key otherwise. */
tsr_status tsr_hparams_key(const tsr_gguf *gguf, const char *architecture, const char *suffix, int64_t layer,
                           bool required, int64_t low, int64_t high, int64_t *value);

#endif
