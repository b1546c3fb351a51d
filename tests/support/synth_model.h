/* Complete models with random weights, for tests and benchmarks: llama or one of synth_arch.h, any shape, any
 * type.
 *
 *     struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
 *     config.weight_type = TSR_TYPE_Q4_K;
 *     synth_model_write(&config, "/tmp/model.gguf");
 *
 * Weights are N(0, 1 / columns) and norms of a llama are 1, so activations neither vanish nor overflow,
 * however many layers. The same config gives the same bytes on every machine. Failures end the program (see
 * gguf_writer.h). */
#ifndef TSR_TESTS_SYNTH_MODEL_H
#define TSR_TESTS_SYNTH_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include <tsr/types.h>

#include "support/synth_arch.h"

struct synth_model_config {
    int n_layers;
    int n_embd;
    int n_heads;
    int n_kv_heads; /* n_heads is a multiple of it */
    int head_dim;   /* even; need not be n_embd / n_heads */
    int n_ff;
    int n_experts, n_experts_used; /* experts 0: a dense FFN; else n_ff is that of one expert (Mixtral) */
    int n_vocab;
    int n_tokens; /* of the tokenizer; 0: n_vocab */
    int n_ctx;
    float weight_scale;   /* on every matrix: 1, or more to leave the range of the exact reduction */
    tsr_type weight_type; /* of all matrices; where a row is no multiple of its block: Q8_0, else F16 */
    tsr_type other_type;  /* of attn_v and ffn_down, as in layers of Q4_K_M files; F32: weight_type */
    bool tied_output;     /* no output.weight: the embedding serves */
    bool rope_factors;    /* a rope_freqs.weight as llama 3.1 has it */
    bool tokenizer;       /* a byte-level gpt2 vocabulary; needs n_vocab >= 260 */
    float rope_freq_base;
    uint64_t seed;
    bool header_only; /* nothing behind the header: for planning */
    bool holes;       /* of full length, but weights of zero that take no disk space; no rope_factors then */
    const struct synth_arch *arch; /* NULL: llama. Else norms are about 1, and biases are random */
    int n_files; /* more than 1: a multi-file model, and the path is its prefix (gguf_writer_save_split) */
};

/* A model of 1.4 million weights with grouped queries, good for every weight type. */
#define SYNTH_MODEL_CONFIG_INIT                                                                          \
    {                                                                                                    \
        .n_layers = 2, .n_embd = 256, .n_heads = 8, .n_kv_heads = 4, .head_dim = 32, .n_ff = 512,        \
        .n_vocab = 512, .n_ctx = 256, .weight_scale = 1, .weight_type = TSR_TYPE_F16, .tokenizer = true, \
        .rope_freq_base = 10000, .seed = 1, .n_files = 1                                                 \
    }

void synth_model_write(const struct synth_model_config *config, const char *path);

#endif
