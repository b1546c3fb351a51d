/* Models of published shapes with random weights, so that machines can be compared and plans made without a
 * download: speed depends on shapes and types, not on values. The same shape and seed give the same file on
 * every machine.
 *
 * shapes.c has the shapes and reads "llama-3-8b:q4_k_m", family.c has what architectures are made of,
 * mixture.c decides the type of each tensor, keys.c and model.c list the keys and tensors of a shape, write.c
 * adds random weights. */
#ifndef TSR_TOOLS_SYNTH_H
#define TSR_TOOLS_SYNTH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tsr/types.h>

#include "progress.h"

/* What a shape has besides the tensors of its architecture (family.h). */
enum {
    SYNTH_TIED = 1,            /* the embedding serves as output matrix */
    SYNTH_ROPE_FACTORS = 2,    /* of Llama 3.1 and later */
    SYNTH_HEAD_NORMS = 4,      /* norms of every query and key head */
    SYNTH_NEXTN = 8,           /* a layer more, which predicts further tokens */
    SYNTH_KEYS_ARE_VALUES = 16 /* in layers without a window */
};

/* Sizes of latent attention; the length of a head is that of its values. */
typedef struct synth_latent {
    int q_rank, kv_rank, n_plain, n_rot;
} synth_latent;

/* Heads of recurrent layers. */
typedef struct synth_delta {
    int n_key_heads, n_value_heads, head_dim;
} synth_delta;

/* A sliding window, and the heads of layers with it. */
typedef struct synth_window {
    int size, n_head, n_head_kv, head_dim;
} synth_window;

typedef struct synth_shape {
    const char *name;         /* "llama-3-8b" */
    const char *architecture; /* as in general.architecture */
    int n_vocab, n_ctx;
    float rope_freq_base;
    int n_layers, n_embd, n_head, n_head_kv, head_dim, n_ff;
    int n_expert, n_expert_used, n_ff_expert; /* 0: dense */
    int n_dense_layers;                       /* before the first one with experts */
    unsigned parts;

    /* What only some architectures have; 0: none, or as above. */
    synth_latent latent;
    synth_delta delta;
    synth_window window;
    int n_ff_shared; /* length of the shared experts as one FFN; 0: that of one expert */
    int n_expert_groups, n_expert_groups_used;
    int n_layer_input; /* length of the embeddings per layer */
    int n_shared_kv;   /* last layers that read an earlier layer's keys and values */
    int expert_step;   /* only every n-th layer has experts; 0: every one */
} synth_shape;

typedef struct synth_mixture synth_mixture; /* mixture.c */

/* A shape with the type of its matrices. */
typedef struct synth_model {
    synth_shape shape;
    tsr_type type;                /* of all matrices, */
    const synth_mixture *mixture; /* unless this is not NULL */
} synth_model;

typedef struct synth_tensor {
    char name[64];
    int layer; /* -1: outside layers */
    tsr_type type;
    int n_dims;
    int64_t ne[3];
} synth_tensor;

/* Parse "llama-3-8b" or "llama-3-8b:q4_k" (default: F16; MXFP4 where the model was published in it). "help"
 * lists the shapes on stdout and returns TOOL_EXIT_OK. Otherwise TOOL_GO_ON, or TOOL_EXIT_USAGE after a line
 * on stderr. */
int synth_parse(const char *command, const char *text, synth_model *model_out);

/* The mixture that llama.cpp calls `name`; NULL if there is none. */
const synth_mixture *synth_mixture_find(const char *name);

/* "q3_k_s, q3_k_m, ..." */
void synth_print_mixtures(FILE *out);

/* The type of a tensor whose other members are set. */
tsr_type synth_tensor_type(const synth_model *model, const synth_tensor *tensor);

/* The tensors in the order of a file, to be freed by the caller; NULL when out of memory. */
synth_tensor *synth_tensors(const synth_model *model, int *n_out);

struct tsr_gguf_writer;
void synth_add_keys(const synth_shape *shape, struct tsr_gguf_writer *writer);

/* Write the model as a GGUF file to `file`, sequentially. False with errno if writing fails, or after Ctrl-C
 * (EINTR). */
bool synth_write(const synth_model *model, uint64_t seed, tool_progress *progress, FILE *file);

/* Write the model, or its header alone, into memory: a file that exists until the process ends or the
 * descriptor is closed. `path` is set to a name for opening it. Returns the descriptor, -1 with errno. */
int synth_in_memory(const synth_model *model, uint64_t seed, bool header_only, char path[64]);

#endif
