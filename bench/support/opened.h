/* What measuring programs do with whole models: make one, open it on some devices, decode, fail loudly. */
#ifndef TSR_BENCH_OPENED_H
#define TSR_BENCH_OPENED_H

#include <tsr/session.h>
#include <tsr/transport.h>

#include "support/synth_model.h"

/* The layers of TinyLlama 1.1B, 4 of its 22. */
#define BENCH_TINYLLAMA_LAYERS                                                                              \
    {                                                                                                       \
        .n_layers = 4, .n_embd = 2048, .n_heads = 32, .n_kv_heads = 4, .head_dim = 64, .n_ff = 5632,        \
        .n_vocab = 32000, .n_ctx = 8192, .weight_scale = 1, .weight_type = TSR_TYPE_F16, .tokenizer = true, \
        .rope_freq_base = 10000, .seed = 1, .n_files = 1                                                    \
    }

/* The shape of Llama 3.2 1B in F16, 2 GB of holes that take no disk: for what reads no weight. */
#define BENCH_LLAMA_1B_HOLES                                                                          \
    {                                                                                                 \
        .n_layers = 16, .n_embd = 2048, .n_heads = 32, .n_kv_heads = 8, .head_dim = 64, .n_ff = 8192, \
        .n_vocab = 128256, .n_ctx = 131072, .weight_scale = 1, .weight_type = TSR_TYPE_F16,           \
        .tied_output = true, .tokenizer = true, .rope_freq_base = 500000, .seed = 1, .n_files = 1,    \
        .holes = true                                                                                 \
    }

/* Anything but TSR_OK ends the program, with the library's message. */
void bench_check(tsr_status status);

/* A model's file in a temporary folder of its own, until bench_unmake(). */
typedef struct bench_file {
    char folder[32], path[48];
} bench_file;

bench_file bench_make(const struct synth_model_config *config);
void bench_unmake(const bench_file *file);

/* A model on some devices, with a session and room for one token's logits. */
typedef struct bench_opened {
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *session;
    float *logits;
} bench_opened;

bench_opened bench_open(const char *path, const char *devices, int64_t n_ctx);
/* With collectives as tsr_runtime_config has them. */
bench_opened bench_open_with(const char *path, const char *devices, const char *collectives, int64_t n_ctx);
/* Host devices have copies of their weights instead of views of the file. */
bench_opened bench_open_copies(const char *path, const char *devices, int64_t n_ctx);
/* Divided evenly over all devices, of several processes where there is a transport. */
bench_opened bench_open_evenly(const char *path, const char *devices, const tsr_transport *transport,
                               int64_t n_ctx);
/* In layer mode, as many of n_layers layers on each device as on the others. */
bench_opened bench_open_layers(const char *path, const char *devices, int64_t n_ctx, int n_layers);
void bench_close(bench_opened *o);

/* Seconds per token of n tokens, one by one, behind `depth` tokens that the session holds; afterwards it
 * holds those. */
double bench_decode(bench_opened *o, int n, int64_t depth);

#endif
