/* Headers of published models of many architectures, with their true shapes: for planning, which needs no
 * more than a header. */
#ifndef TSR_TESTS_ARCH_MODELS_H
#define TSR_TESTS_ARCH_MODELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/types.h>

#include "support/gguf_writer.h"

/* A tensor, or ("blk.%d...") one per layer. */
struct arch_tensor {
    const char *name;
    int64_t ne[3];             /* trailing zeros: fewer dimensions */
    bool whole;                /* of which every device that uses it has all */
    int first_layer, n_layers; /* 0 layers: all from the first on */
};

struct arch_key {
    const char *suffix;
    int64_t value;
};

struct arch_model {
    const char *title, *architecture;
    int64_t n_params;       /* as published */
    int64_t kv_token_bytes; /* of one token in F16, as published or from the published shape */
    bool kv_whole;          /* on every device */
    int n_layers;
    const struct arch_key *keys;       /* besides block_count; ends with NULL */
    const struct arch_tensor *tensors; /* ends with NULL */
};

extern const struct arch_model arch_models[];
extern const size_t n_arch_models;

/* Keys and tensors; matrices in `type`, where its blocks do not divide a row in F16; the rest in F32. */
gguf_writer *arch_model_writer(const struct arch_model *model, tsr_type type);

#endif
