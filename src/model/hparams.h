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

typedef struct tsr_hparams {
    char architecture[32];
    char name[128];
    int64_t n_layers, n_embd, n_head, n_head_kv, head_dim, n_ff, n_vocab, n_ctx_train;
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

#endif
