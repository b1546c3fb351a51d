/* Types of tensors. A type by itself is that of all matrices; a mixture is what people download as "Q4_K_M",
 * in which llama.cpp gives some tensors more bits (llama_tensor_get_type() in src/llama-quant.cpp; release
 * b4500 and later). */
#include <string.h>
#include <strings.h>

#include "options.h"
#include "synth/synth.h"

/* Layers of a model in which a tensor has more bits. */
typedef enum layers {
    NO_LAYERS,
    FIRST_2,
    FIRST_4,
    FIRST_16TH,
    FIRST_8TH,
    MORE_BITS, /* the first and last eighth, and every third layer between them */
    ALL_LAYERS
} layers;

/* Types other than the mixture's; F32, which is 0: there is none. */
typedef struct rule {
    layers which;
    tsr_type there, elsewhere;
} rule;

struct synth_mixture {
    const char *name;
    tsr_type type; /* of matrices without a rule */
    rule values;   /* attn_v */
    rule down;     /* ffn_down, of experts, too */
    tsr_type output;
    tsr_type experts;
};

/* MXFP4's is that of OpenAI's own weights. */
static const synth_mixture mixtures[] = {
    {"q3_k_s", TSR_TYPE_Q3_K, {0}, {0}, 0, 0},
    {"q3_k_m",
     TSR_TYPE_Q3_K,
     {FIRST_2, TSR_TYPE_Q5_K, TSR_TYPE_Q4_K},
     {FIRST_16TH, TSR_TYPE_Q5_K, TSR_TYPE_Q4_K},
     TSR_TYPE_Q4_K,
     0},
    {"q3_k_l",
     TSR_TYPE_Q3_K,
     {ALL_LAYERS, TSR_TYPE_Q5_K, 0},
     {ALL_LAYERS, TSR_TYPE_Q5_K, 0},
     TSR_TYPE_Q5_K,
     0},
    {"q4_k_s", TSR_TYPE_Q4_K, {FIRST_4, TSR_TYPE_Q5_K, 0}, {FIRST_8TH, TSR_TYPE_Q5_K, 0}, 0, 0},
    {"q4_k_m", TSR_TYPE_Q4_K, {MORE_BITS, TSR_TYPE_Q6_K, 0}, {MORE_BITS, TSR_TYPE_Q6_K, 0}, 0, 0},
    {"q5_k_s", TSR_TYPE_Q5_K, {0}, {0}, 0, 0},
    {"q5_k_m", TSR_TYPE_Q5_K, {MORE_BITS, TSR_TYPE_Q6_K, 0}, {MORE_BITS, TSR_TYPE_Q6_K, 0}, 0, 0},
    {"mxfp4", TSR_TYPE_Q8_0, {0}, {0}, 0, TSR_TYPE_MXFP4},
};

const synth_mixture *synth_mixture_find(const char *name)
{
    for (int i = 0; i < TOOL_COUNT(mixtures); i++)
        if (strcasecmp(mixtures[i].name, name) == 0)
            return &mixtures[i];
    return NULL;
}

void synth_print_mixtures(FILE *out)
{
    for (int i = 0; i < TOOL_COUNT(mixtures); i++)
        fprintf(out, "%s%s", i ? ", " : "", mixtures[i].name);
}

static bool is_in(layers which, int layer, int n)
{
    switch (which) {
    case NO_LAYERS:
        break;
    case FIRST_2:
        return layer < 2;
    case FIRST_4:
        return layer < 4;
    case FIRST_16TH:
        return layer < n / 16;
    case FIRST_8TH:
        return layer < n / 8;
    case MORE_BITS:
        return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
    case ALL_LAYERS:
        return true;
    }
    return false;
}

static tsr_type by_rule(const synth_mixture *m, const rule *r, int layer, int n)
{
    tsr_type type = is_in(r->which, layer, n) ? r->there : r->elsewhere;
    return type ? type : m->type;
}

/* The part of a tensor's name behind "blk.N.". */
static const char *kind_of(const synth_tensor *tensor)
{
    return tensor->layer < 0 ? tensor->name : strchr(tensor->name + 4, '.') + 1;
}

static bool is_kind(const synth_tensor *tensor, const char *kind)
{
    return strncmp(kind_of(tensor), kind, strlen(kind)) == 0;
}

/* Models of 8 experts have more bits in attention, which is small beside the experts. */
static tsr_type of_attention(const synth_model *model, const synth_tensor *tensor, int n_layers)
{
    const synth_mixture *m = model->mixture;
    const synth_shape *shape = &model->shape;
    bool is_values = is_kind(tensor, "attn_v.");
    if (is_kind(tensor, "attn_output")) {
        bool small = m->type == TSR_TYPE_Q3_K || m->type == TSR_TYPE_Q4_K;
        if (shape->n_expert == 8)
            return small && strcmp(m->name, "q3_k_l") != 0 ? TSR_TYPE_Q5_K : m->type;
        return m->output ? m->output : m->type;
    }
    if (shape->n_expert == 8 && (is_values || is_kind(tensor, "attn_k")))
        return TSR_TYPE_Q8_0;
    tsr_type type = is_values ? by_rule(m, &m->values, tensor->layer, n_layers) : m->type;
    bool is_70b = strcmp(shape->architecture, "llama") == 0 && n_layers == 80;
    return is_values && is_70b && (type == TSR_TYPE_Q3_K || type == TSR_TYPE_Q4_K) ? TSR_TYPE_Q5_K : type;
}

/* Or the embedding that serves as output matrix. */
static bool is_output(const synth_model *model, const synth_tensor *tensor)
{
    return is_kind(tensor, model->shape.parts & SYNTH_TIED ? "token_embd." : "output.");
}

static tsr_type of_mixture(const synth_model *model, const synth_tensor *tensor)
{
    const synth_mixture *m = model->mixture;
    int n_layers = model->shape.n_layers + ((model->shape.parts & SYNTH_NEXTN) != 0);
    if (is_output(model, tensor))
        return m->type == TSR_TYPE_Q8_0 ? TSR_TYPE_Q8_0 : TSR_TYPE_Q6_K;
    if (m->experts && tensor->n_dims == 3)
        return m->experts;
    if (is_kind(tensor, "ffn_down"))
        return by_rule(m, &m->down, tensor->layer, n_layers);
    return is_kind(tensor, "attn_") ? of_attention(model, tensor, n_layers) : m->type;
}

/* The types that mixtures have where rows are not a multiple of the type's block. */
static tsr_type narrow_type(tsr_type type)
{
    return type == TSR_TYPE_Q3_K   ? TSR_TYPE_IQ4_NL
           : type == TSR_TYPE_Q4_K ? TSR_TYPE_Q5_0
           : type == TSR_TYPE_Q5_K ? TSR_TYPE_Q5_1
                                   : TSR_TYPE_Q8_0;
}

/* Vectors, biases of experts, routers and convolutions are F32 in all files. */
tsr_type synth_tensor_type(const synth_model *model, const synth_tensor *tensor)
{
    if (tensor->n_dims == 1 || strstr(tensor->name, ".bias") || is_kind(tensor, "ffn_gate_inp.") ||
        is_kind(tensor, "ssm_conv1d."))
        return TSR_TYPE_F32;
    tsr_type type = model->mixture ? of_mixture(model, tensor) : model->type;
    if (tensor->ne[0] % tsr_type_block_elems(type) == 0)
        return type;
    type = model->mixture && !is_output(model, tensor) ? narrow_type(type) : TSR_TYPE_Q8_0;
    return tensor->ne[0] % tsr_type_block_elems(type) == 0 ? type : TSR_TYPE_F16;
}
