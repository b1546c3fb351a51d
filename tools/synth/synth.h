/* Models of published shapes with random weights, so that machines can be compared without a download:
 * speed depends on shapes and types, not on values. The same shape and seed give the same file on every
 * machine. */
#ifndef TSR_TOOLS_SYNTH_H
#define TSR_TOOLS_SYNTH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tsr/types.h>

typedef struct synth_shape {
    const char *name; /* "llama-3-8b" */
    int n_layers, n_embd, n_head, n_head_kv, head_dim, n_ff, n_vocab, n_ctx;
    int n_expert, n_expert_used; /* 0: dense */
    float rope_freq_base;
    bool tied_output; /* the embedding serves as output matrix */
} synth_shape;

/* Print the names of the shapes, separated by ", ". */
void synth_print_shapes(FILE *out);

/* Parse "llama-3-8b" or "llama-3-8b:q4_k" (default F16). False after a line on stderr that lists the
 * shapes or types. */
bool synth_shape_parse(const char *command, const char *text, synth_shape *shape_out, tsr_type *type_out);

/* Write the model as a GGUF file to `file`, sequentially. Matrices whose rows are not a multiple of the
 * type's block become Q8_0, or F16 if that does not fit either. False with errno if writing fails. */
bool synth_write(const synth_shape *shape, tsr_type type, uint64_t seed, FILE *file);

/* Write the model into memory: a file that exists until the process ends or the descriptor is closed.
 * `path` is set to a name for opening it. Returns the descriptor, -1 with errno. */
int synth_in_memory(const synth_shape *shape, tsr_type type, uint64_t seed, char path[64]);

#endif
