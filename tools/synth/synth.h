/* Models of published shapes with random weights, so that nobody needs a download to compare machines: speed
 * depends on shapes and types, not on values. The same shape and seed give the same file on every machine. */
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

/* Parts of the shapes' names, with ", " between. */
void synth_print_shapes(FILE *out);

/* "llama-3-8b" or "llama-3-8b:q4_k" (F16 where no type is named). False after a line on stderr that says what
 * there is. */
bool synth_shape_parse(const char *command, const char *text, synth_shape *shape_out, tsr_type *type_out);

/* Write the model as a GGUF file to `file` (any that can be written to from its start on). Matrices whose
 * rows are no multiple of the type's block become Q8_0, or else F16. False with errno where writing fails. */
bool synth_write(const synth_shape *shape, tsr_type type, uint64_t seed, FILE *file);

/* The same into memory: a file that is gone when the process ends or the descriptor is closed. `path` becomes
 * a name that it can be opened by. Returns the descriptor, -1 with errno. */
int synth_in_memory(const synth_shape *shape, tsr_type type, uint64_t seed, char path[64]);

#endif
