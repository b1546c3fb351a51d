/* The smallest models that open: a layer or two, a few thousand bytes, in F32. */
#ifndef TSR_TESTS_FUZZ_MODEL_H
#define TSR_TESTS_FUZZ_MODEL_H

#include "support/synth_model.h"

/* `arch` NULL: llama. */
static inline struct synth_model_config fuzz_model(const struct synth_arch *arch)
{
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.n_layers = arch ? 2 : 1;
    config.n_embd = 16;
    config.n_heads = 4;
    config.n_kv_heads = 2;
    config.head_dim = 4;
    config.n_ff = 32;
    config.n_vocab = 8;
    config.n_ctx = 64;
    config.weight_type = TSR_TYPE_F32;
    config.tokenizer = false;
    config.arch = arch;
    return config;
}

#endif
