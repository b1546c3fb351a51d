/* Shapes of published models, from their config.json on Hugging Face (num_hidden_layers, hidden_size,
 * num_attention_heads, num_key_value_heads, head_dim, intermediate_size, vocab_size,
 * max_position_embeddings; num_experts, num_experts_per_tok, moe_intermediate_size, first_k_dense_replace;
 * rope_theta, tie_word_embeddings; q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, n_group,
 * topk_group; linear_num_key_heads, linear_num_value_heads, linear_key_head_dim; sliding_window,
 * hidden_size_per_layer_input, num_kv_shared_layers; interleave_moe_layer_step, intermediate_size_mlp). The
 * text part, and without prediction layers unless the parts say so. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <tsr/bytes.h>

#include "format.h"
#include "options.h"
#include "synth/synth.h"
#include "tsr.h"

/* Architecture, vocabulary, context and rope_theta. */
#define LLAMA_2      "llama", 32000, 4096, 1e4f
#define LLAMA_3      "llama", 128256, 131072, 5e5f
#define QWEN_3       "qwen3", 151936, 40960, 1e6f
#define QWEN_3_MOE   "qwen3moe", 151936, 40960, 1e6f
#define GPT_OSS      "gpt-oss", 201088, 131072, 1.5e5f
#define GLM_4_5      "glm4moe", 151552, 131072, 1e6f
#define GEMMA_3      "gemma3", 262208, 131072, 1e6f
#define TINYLLAMA    "llama", 32000, 2048, 1e4f
#define MISTRAL_7B   "llama", 32768, 32768, 1e6f
#define SMALL_3_1    "llama", 131072, 131072, 1e9f
#define LARGE_2      "llama", 32768, 131072, 1e6f
#define MIXTRAL      "llama", 32000, 32768, 1e6f
#define MIXTRAL_22B  "llama", 32768, 65536, 1e6f
#define QWEN_3_CODER "qwen3moe", 151936, 262144, 1e7f
#define QWEN_3_VL    "qwen3vlmoe", 151936, 262144, 5e6f
#define QWEN_3_NEXT  "qwen3next", 151936, 262144, 1e7f
#define QWEN_3_5     "qwen35", 248320, 262144, 1e7f
#define QWEN_3_5_MOE "qwen35moe", 248320, 262144, 1e7f
#define GEMMA_4      "gemma4", 262144, 262144, 1e6f
#define GEMMA_4_E    "gemma4", 262144, 131072, 1e6f
#define DEEPSEEK_V3  "deepseek2", 129280, 163840, 1e4f
#define KIMI_K2      "deepseek2", 163840, 131072, 5e4f
#define GLM_4_7_LITE "deepseek2", 154880, 202752, 1e6f
#define LARGE_3      "deepseek2", 131072, 262144, 1e4f
#define SMALL_4      "mistral4", 131072, 1048576, 1e4f
#define MINIMAX_M2   "minimax-m2", 200064, 196608, 5e6f
#define SEED_OSS     "seed_oss", 155136, 524288, 1e7f
#define HUNYUAN_MOE  "hunyuan-moe", 128167, 262144, 1e4f
#define EXAONE_4     "exaone4", 102400, 131072, 1e6f
#define LING_2       "bailingmoe2", 157184, 32768, 6e5f
#define TRINITY      "afmoe", 200192, 262144, 1e4f
#define STEP_3_5     "step35", 128896, 262144, 5e6f
#define SCOUT        "llama4", 202048, 10485760, 5e5f
#define MAVERICK     "llama4", 202048, 1048576, 5e5f

#define DENSE   0, 0, 0, 0
#define TIED    SYNTH_TIED
#define FACTORS SYNTH_ROPE_FACTORS
#define NEXTN   SYNTH_NEXTN
#define NORMS   SYNTH_HEAD_NORMS
#define G4      (FACTORS | TIED | SYNTH_KEYS_ARE_VALUES)

/* clang-format off */
static const synth_shape shapes[] = {
    /*                                  layers, embd, heads, KV, dim,  FF,  experts, parts */
    {"tinyllama-1.1b",     TINYLLAMA,     22,  2048,  32,  4,  64,  5632, DENSE,           0},
    {"llama-2-7b",         LLAMA_2,       32,  4096,  32, 32, 128, 11008, DENSE,           0},
    {"llama-2-13b",        LLAMA_2,       40,  5120,  40, 40, 128, 13824, DENSE,           0},
    {"llama-3.2-1b",       LLAMA_3,       16,  2048,  32,  8,  64,  8192, DENSE,           FACTORS | TIED},
    {"llama-3.2-3b",       LLAMA_3,       28,  3072,  24,  8, 128,  8192, DENSE,           FACTORS | TIED},
    {"llama-3-8b",         LLAMA_3,       32,  4096,  32,  8, 128, 14336, DENSE,           FACTORS},
    {"llama-3-70b",        LLAMA_3,       80,  8192,  64,  8, 128, 28672, DENSE,           FACTORS},
    {"llama-3-405b",       LLAMA_3,      126, 16384, 128,  8, 128, 53248, DENSE,           FACTORS},
    {"mistral-7b",         MISTRAL_7B,    32,  4096,  32,  8, 128, 14336, DENSE,           0},
    {"mistral-small-24b",  SMALL_3_1,     40,  5120,  32,  8, 128, 32768, DENSE,           0},
    {"mistral-large-123b", LARGE_2,       88, 12288,  96,  8, 128, 28672, DENSE,           0},
    {"mixtral-8x7b",       MIXTRAL,       32,  4096,  32,  8, 128, 14336, 8, 2, 14336, 0,  0},
    {"mixtral-8x22b",      MIXTRAL_22B,   56,  6144,  48,  8, 128, 16384, 8, 2, 16384, 0,  0},
    {"qwen3-0.6b",         QWEN_3,        28,  1024,  16,  8, 128,  3072, DENSE,           TIED},
    {"qwen3-1.7b",         QWEN_3,        28,  2048,  16,  8, 128,  6144, DENSE,           TIED},
    {"qwen3-4b",           QWEN_3,        36,  2560,  32,  8, 128,  9728, DENSE,           TIED},
    {"qwen3-8b",           QWEN_3,        36,  4096,  32,  8, 128, 12288, DENSE,           0},
    {"qwen3-14b",          QWEN_3,        40,  5120,  40,  8, 128, 17408, DENSE,           0},
    {"qwen3-32b",          QWEN_3,        64,  5120,  64,  8, 128, 25600, DENSE,           0},
    {"qwen3-30b-a3b",      QWEN_3_MOE,    48,  2048,  32,  4, 128,  6144, 128, 8, 768, 0,  0},
    {"qwen3-235b-a22b",    QWEN_3_MOE,    94,  4096,  64,  4, 128, 12288, 128, 8, 1536, 0, 0},
    {"qwen3-480b-a35b",    QWEN_3_CODER,  62,  6144,  96,  8, 128,  8192, 160, 8, 2560, 0, 0},
    {"gpt-oss-20b",        GPT_OSS,       24,  2880,  64,  8,  64,  2880, 32, 4, 2880, 0,  0},
    {"gpt-oss-120b",       GPT_OSS,       36,  2880,  64,  8,  64,  2880, 128, 4, 2880, 0, 0},
    {"glm-4.5-air",        GLM_4_5,       46,  4096,  96,  8, 128, 10944, 128, 8, 1408, 1, NEXTN},
    {"glm-4.5",            GLM_4_5,       92,  5120,  96,  8, 128, 12288, 160, 8, 1536, 3, NEXTN | NORMS},
    {"gemma-3-4b",         GEMMA_3,       34,  2560,   8,  4, 256, 10240, DENSE,           TIED},
    {"gemma-3-12b",        GEMMA_3,       48,  3840,  16,  8, 256, 15360, DENSE,           TIED},
    {"gemma-3-27b",        GEMMA_3,       62,  5376,  32, 16, 128, 21504, DENSE,           TIED},
    {"gemma-4-e4b",        GEMMA_4_E,     42,  2560,   8,  2, 512, 10240, DENSE,           FACTORS | TIED,
     .window = {512, 0, 0, 256}, .n_layer_input = 256, .n_shared_kv = 18},
    {"gemma-4-26b-a4b",    GEMMA_4,       30,  2816,  16,  2, 512,  2112, 128, 8, 704, 0,  G4,
     .window = {1024, 0, 8, 256}},
    {"gemma-4-31b",        GEMMA_4,       60,  5376,  32,  4, 512, 21504, DENSE,           G4,
     .window = {1024, 0, 16, 256}},
    {"qwen3-vl-235b-a22b", QWEN_3_VL,     94,  4096,  64,  4, 128, 12288, 128, 8, 1536, 0, 0},
    {"qwen3-next-80b-a3b", QWEN_3_NEXT,   48,  2048,  16,  2, 256,  5120, 512, 10, 512, 0, 0,
     .delta = {16, 32, 128}, .n_ff_shared = 512},
    {"qwen3.5-27b",        QWEN_3_5,      64,  5120,  24,  4, 256, 17408, DENSE,           0,
     .delta = {16, 48, 128}},
    {"qwen3.5-122b-a10b",  QWEN_3_5_MOE,  48,  3072,  32,  2, 256,  3072, 256, 8, 1024, 0, 0,
     .delta = {16, 64, 128}, .n_ff_shared = 1024},
    {"qwen3.5-397b-a17b",  QWEN_3_5_MOE,  60,  4096,  32,  2, 256,  4096, 512, 10, 1024, 0, 0,
     .delta = {16, 64, 128}, .n_ff_shared = 1024},
    {"deepseek-v3",        DEEPSEEK_V3,   61,  7168, 128,  1, 128, 18432, 256, 8, 2048, 3, 0,
     .latent = {1536, 512, 128, 64}, .n_expert_groups = 8, .n_expert_groups_used = 4},
    {"kimi-k2",            KIMI_K2,       61,  7168,  64,  1, 128, 18432, 384, 8, 2048, 1, 0,
     .latent = {1536, 512, 128, 64}},
    {"glm-4.7-flash",      GLM_4_7_LITE,  47,  2048,  20,  1, 256, 10240, 64, 4, 1536, 1,  NEXTN,
     .latent = {768, 512, 192, 64}},
    {"mistral-large-3",    LARGE_3,       61,  7168, 128,  1, 128, 16384, 128, 4, 4096, 3, 0,
     .latent = {1536, 512, 128, 64}},
    {"mistral-small-4",    SMALL_4,       36,  4096,  32,  1, 128, 12288, 128, 4, 2048, 0, 0,
     .latent = {1024, 256, 64, 64}},
    {"minimax-m2",         MINIMAX_M2,    62,  3072,  48,  8, 128,  1536, 256, 8, 1536, 0, 0},
    {"seed-oss-36b",       SEED_OSS,      64,  5120,  80,  8, 128, 27648, DENSE,           0},
    {"hunyuan-a13b",       HUNYUAN_MOE,   32,  4096,  32,  8, 128,  3072, 64, 8, 3072, 0,  TIED},
    {"exaone-4-32b",       EXAONE_4,      64,  5120,  40,  8, 128, 27392, DENSE,           FACTORS,
     .window = {4096, 0, 0, 0}},
    {"ling-1t",            LING_2,        80,  8192,  64,  8, 128, 18432, 256, 8, 2048, 4, 0,
     .n_expert_groups = 8, .n_expert_groups_used = 4},
    {"trinity-large",      TRINITY,       60,  3072,  48,  8, 128, 12288, 256, 4, 3072, 6, 0,
     .window = {4096, 0, 0, 0}},
    {"step-3.5-flash",     STEP_3_5,      45,  4096,  64,  8, 128, 11264, 288, 8, 1280, 3, 0,
     .window = {512, 96, 0, 0}},
    {"llama-4-scout",      SCOUT,         48,  5120,  40,  8, 128, 16384, 16, 1, 8192, 0,  FACTORS,
     .expert_step = 1},
    {"llama-4-maverick",   MAVERICK,      48,  5120,  40,  8, 128, 16384, 128, 1, 8192, 0, 0,
     .expert_step = 2},
};
/* clang-format on */

/* Short names, and models of the same shape. */
static const char *const other_names[][2] = {
    {"1b", "llama-3.2-1b"},
    {"1.1b", "tinyllama-1.1b"},
    {"3b", "llama-3.2-3b"},
    {"7b", "llama-2-7b"},
    {"8b", "llama-3-8b"},
    {"13b", "llama-2-13b"},
    {"70b", "llama-3-70b"},
    {"405b", "llama-3-405b"},
    {"mixtral", "mixtral-8x7b"},
    {"llama-3.1-8b", "llama-3-8b"},
    {"llama-3.1-70b", "llama-3-70b"},
    {"llama-3.3-70b", "llama-3-70b"},
    {"llama-3.1-405b", "llama-3-405b"},
    {"mistral-large", "mistral-large-123b"},
    {"mistral-small", "mistral-small-24b"},
    {"qwen3-coder-30b-a3b", "qwen3-30b-a3b"},
    {"qwen3-coder-480b-a35b", "qwen3-480b-a35b"},
    {"glm-4.6", "glm-4.5"},
    {"glm-4.7", "glm-4.5"},
    {"deepseek-r1", "deepseek-v3"},
    {"deepseek-v3.1", "deepseek-v3"},
    {"ring-1t", "ling-1t"},
};

static const synth_shape *find(const char *name)
{
    for (int i = 0; i < TOOL_COUNT(other_names); i++)
        if (strcasecmp(other_names[i][0], name) == 0)
            name = other_names[i][1];
    for (int i = 0; i < TOOL_COUNT(shapes); i++)
        if (strcasecmp(shapes[i].name, name) == 0)
            return &shapes[i];
    return NULL;
}

/* MXFP4 where it is the type that the model was published in. */
static void set_default_type(synth_model *model)
{
    model->type = TSR_TYPE_F16;
    if (strcmp(model->shape.architecture, "gpt-oss") == 0)
        model->mixture = synth_mixture_find("mxfp4");
}

/* -- the list -- */

static bool add_row(tool_table *table, const synth_shape *shape)
{
    synth_model model = {.shape = *shape};
    double elements = 0, bytes = 0;
    char text[TSR_BYTES_TEXT];
    int n;
    set_default_type(&model);
    synth_tensor *tensors = synth_tensors(&model, &n);
    for (int i = 0; tensors && i < n; i++) {
        const synth_tensor *t = &tensors[i];
        elements += (double)t->ne[0] * (double)t->ne[1] * (double)t->ne[2];
        bytes += (double)tsr_type_row_bytes(t->type, t->ne[0]) * (double)t->ne[1] * (double)t->ne[2];
    }
    free(tensors);
    tool_table_cell(table, "%s", shape->name);
    tool_table_cell(table, "%s", shape->architecture);
    tool_table_cell(table, "%.2f", elements * 1e-9);
    tool_table_cell(table, "%d", shape->n_layers);
    tool_table_cell(table, "%d", shape->n_ctx);
    tool_table_cell(table, "%s", model.mixture ? "mxfp4" : "f16");
    tool_table_cell(table, "%s", tsr_bytes_text((uint64_t)bytes, text));
    return tensors != NULL;
}

static int print_shapes(const char *command)
{
    tool_table table = {0};
    bool good = true;
    tool_table_header(
        &table, 7,
        (const char *[]){"shape", "architecture", "billions", "layers", "context", "type", "size"});
    for (int i = 0; i < TOOL_COUNT(shapes) && good; i++)
        good = add_row(&table, &shapes[i]);
    tool_table_print(&table, stdout);
    tool_table_free(&table);
    printf("\nSHAPE:TYPE gives all matrices one type: f16, bf16, q8_0, q4_k and so on.\n"
           "SHAPE:MIXTURE gives some more bits, as in shared files, e.g. qwen3-32b:q4_k_m:\n  ");
    synth_print_mixtures(stdout);
    printf("\n");
    if (!good)
        fprintf(stderr, "tsr %s: out of memory\n", command);
    return good ? TOOL_EXIT_OK : TOOL_EXIT_FAILED;
}

/* -- parsing -- */

static int complain_shape(const char *command, const char *name)
{
    const char *names[TOOL_COUNT(shapes) + TOOL_COUNT(other_names)];
    for (int i = 0; i < TOOL_COUNT(shapes); i++)
        names[i] = shapes[i].name;
    for (int i = 0; i < TOOL_COUNT(other_names); i++)
        names[TOOL_COUNT(shapes) + i] = other_names[i][0];
    const char *close = tool_closest(name, names, TOOL_COUNT(names));
    fprintf(stderr, "tsr %s: '%s' is not a known shape; ", command, name);
    if (close)
        fprintf(stderr, "did you mean '%s'? ", close);
    fprintf(stderr, "`tsr synth --shape help` lists the shapes\n");
    return TOOL_EXIT_USAGE;
}

static int read_type(const char *command, const char *text, synth_model *model)
{
    model->mixture = synth_mixture_find(text);
    if (model->mixture)
        return TOOL_GO_ON;
    if (tsr_type_parse(text, &model->type) != TSR_OK) {
        fprintf(stderr, "tsr %s: %s; mixtures are ", command, tsr_last_error());
        synth_print_mixtures(stderr);
        fprintf(stderr, "\n");
        return TOOL_EXIT_USAGE;
    }
    if (model->type != TSR_TYPE_I32 && model->type != TSR_TYPE_I64)
        return TOOL_GO_ON;
    fprintf(stderr, "tsr %s: weights cannot be integers; use a type such as f16, q8_0 or q4_k_m\n", command);
    return TOOL_EXIT_USAGE;
}

int synth_parse(const char *command, const char *text, synth_model *model_out)
{
    char name[64];
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    if (strcmp(text, "help") == 0)
        return print_shapes(command);
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    const synth_shape *shape = find(name);
    if (!shape)
        return complain_shape(command, name);
    synth_model model = {.shape = *shape};
    set_default_type(&model);
    int code = colon ? read_type(command, colon + 1, &model) : TOOL_GO_ON;
    if (code == TOOL_GO_ON)
        *model_out = model;
    return code;
}
