/* Shapes of published models, from their config.json on Hugging Face (hidden_size, num_hidden_layers,
 * num_attention_heads, num_key_value_heads, intermediate_size, vocab_size, max_position_embeddings). */
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "synth/synth.h"

static const synth_shape shapes[] = {
    {"tinyllama-1.1b", 22, 2048, 32, 4, 64, 5632, 32000, 2048, 0, 0, 10000, false},
    {"llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 0, 0, 500000, true},
    {"llama-3.2-3b", 28, 3072, 24, 8, 128, 8192, 128256, 131072, 0, 0, 500000, true},
    {"llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, 4096, 0, 0, 10000, false},
    {"mistral-7b", 32, 4096, 32, 8, 128, 14336, 32768, 32768, 0, 0, 1000000, false},
    {"llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072, 0, 0, 500000, false},
    {"llama-2-13b", 40, 5120, 40, 40, 128, 13824, 32000, 4096, 0, 0, 10000, false},
    {"mixtral-8x7b", 32, 4096, 32, 8, 128, 14336, 32000, 32768, 8, 2, 1000000, false},
    {"llama-3-70b", 80, 8192, 64, 8, 128, 28672, 128256, 131072, 0, 0, 500000, false},
};

/* Short names. */
static const char *const other_names[][2] = {
    {"1b", "llama-3.2-1b"},         {"1.1b", "tinyllama-1.1b"},
    {"3b", "llama-3.2-3b"},         {"7b", "llama-2-7b"},
    {"8b", "llama-3-8b"},           {"13b", "llama-2-13b"},
    {"mixtral", "mixtral-8x7b"},    {"70b", "llama-3-70b"},
    {"llama-3.1-8b", "llama-3-8b"}, {"llama-3.1-70b", "llama-3-70b"},
};

void synth_print_shapes(FILE *out)
{
    for (int i = 0; i < TOOL_COUNT(shapes); i++)
        fprintf(out, "%s%s", i ? ", " : "", shapes[i].name);
}

static const synth_shape *find(const char *name)
{
    for (int i = 0; i < TOOL_COUNT(other_names); i++)
        if (strcmp(other_names[i][0], name) == 0)
            name = other_names[i][1];
    for (int i = 0; i < TOOL_COUNT(shapes); i++)
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i];
    return NULL;
}

bool synth_shape_parse(const char *command, const char *text, synth_shape *shape_out, tsr_type *type_out)
{
    char name[64];
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    const synth_shape *shape = find(name);
    if (!shape) {
        fprintf(stderr, "tsr %s: '%s' is not a known shape; the shapes are ", command, name);
        synth_print_shapes(stderr);
        fprintf(stderr, "\n");
        return false;
    }
    *type_out = TSR_TYPE_F16;
    if (colon && tsr_type_parse(colon + 1, type_out) != TSR_OK) {
        fprintf(stderr, "tsr %s: %s\n", command, tsr_last_error());
        return false;
    }
    if (*type_out == TSR_TYPE_I32 || *type_out == TSR_TYPE_I64) {
        fprintf(stderr, "tsr %s: weights cannot be integers; use a type such as f16, q8_0 or q4_k\n",
                command);
        return false;
    }
    *shape_out = *shape;
    return true;
}
