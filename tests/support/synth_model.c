/* Random-weight models, laid out as llama.cpp's converter lays out real ones. */
#include "support/synth_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/gguf_writer.h"
#include "support/random.h"

enum { N_SPECIAL = 4, N_BYTES = 256, TOKEN_BYTES = 32 };

static void die(const char *why)
{
    fprintf(stderr, "synth_model: %s\n", why);
    exit(99);
}

/* general.file_type: llama.cpp's number for "mostly this type" (enum llama_ftype in its llama.h). */
static uint32_t file_type(tsr_type type)
{
    switch (type) {
    case TSR_TYPE_F32:
        return 0;
    case TSR_TYPE_Q4_0:
        return 2;
    case TSR_TYPE_Q4_1:
        return 3;
    case TSR_TYPE_Q8_0:
        return 7;
    case TSR_TYPE_Q5_0:
        return 8;
    case TSR_TYPE_Q5_1:
        return 9;
    case TSR_TYPE_Q2_K:
        return 10;
    case TSR_TYPE_Q3_K:
        return 12;
    case TSR_TYPE_Q4_K:
        return 14;
    case TSR_TYPE_Q5_K:
        return 16;
    case TSR_TYPE_Q6_K:
        return 18;
    case TSR_TYPE_IQ2_XXS:
        return 19;
    case TSR_TYPE_IQ2_XS:
        return 20;
    case TSR_TYPE_IQ3_XXS:
        return 23;
    case TSR_TYPE_IQ1_S:
        return 24;
    case TSR_TYPE_IQ4_NL:
        return 25;
    case TSR_TYPE_IQ3_S:
        return 26;
    case TSR_TYPE_IQ2_S:
        return 28;
    case TSR_TYPE_IQ4_XS:
        return 30;
    case TSR_TYPE_IQ1_M:
        return 31;
    case TSR_TYPE_BF16:
        return 32;
    case TSR_TYPE_TQ1_0:
        return 36;
    case TSR_TYPE_TQ2_0:
        return 37;
    case TSR_TYPE_MXFP4:
        return 38;
    case TSR_TYPE_NVFP4:
        return 39;
    default:
        return 1; /* F16 */
    }
}

static unsigned parts_of(const struct synth_model_config *config)
{
    return (config->arch ? config->arch->parts : 0) | (config->n_experts ? SYNTH_EXPERTS : 0);
}

/* Where only the architecture says that there are any: five, of which a token uses two. */
static int n_experts(const struct synth_model_config *config)
{
    return config->n_experts ? config->n_experts : parts_of(config) & SYNTH_EXPERTS ? 5 : 0;
}

/* A dense FFN beside experts of n_ff columns. */
static int n_ff_dense(const struct synth_model_config *config)
{
    return parts_of(config) & SYNTH_DENSE_FIRST ? 2 * config->n_ff + 64 : config->n_ff;
}

/* The experts that every token uses, as one FFN: as its keys say, else as long as a dense one. */
static int n_ff_shared(const struct synth_model_config *config)
{
    for (const struct synth_key *k = config->arch ? config->arch->keys : NULL; k && k->suffix; k++) {
        if (strcmp(k->suffix, "expert_shared_feed_forward_length") == 0)
            return (int)k->value;
        if (strcmp(k->suffix, "expert_shared_count") == 0)
            return (int)k->value * config->n_ff;
    }
    return n_ff_dense(config);
}

static int n_rotated(const struct synth_model_config *config)
{
    return parts_of(config) & SYNTH_HALF_ROTATED ? config->head_dim / 4 * 2 : config->head_dim;
}

static const char *key_of(const struct synth_model_config *config, const char *suffix, char key[96])
{
    snprintf(key, 96, "%s.%s", config->arch ? config->arch->name : "llama", suffix);
    return key;
}

/* What only this architecture has. */
static void write_own_keys(gguf_writer *writer, const struct synth_model_config *config)
{
    char key[96];
    for (const struct synth_key *k = config->arch->keys; k->suffix; k++) {
        uint32_t values[8];
        key_of(config, k->suffix, key);
        for (int i = 0; i < k->n; i++)
            values[i] = (uint32_t)k->value;
        if (k->n > 0)
            gguf_writer_array(writer, key, TSR_GGUF_U32, values, (size_t)k->n);
        else if (k->real)
            gguf_writer_f32(writer, key, (float)k->value);
        else
            gguf_writer_u32(writer, key, (uint32_t)k->value);
    }
    if (config->arch->parts & SYNTH_SEQUENTIAL)
        gguf_writer_bool(writer, key_of(config, "use_parallel_residual", key), false);
    if (strcmp(config->arch->name, "mistral3") == 0 || strcmp(config->arch->name, "gpt-oss") == 0)
        gguf_writer_string(writer, key_of(config, "rope.scaling.type", key), "yarn");
}

static void write_hyperparameters(gguf_writer *writer, const struct synth_model_config *config)
{
    char key[96];
#define U32(suffix, value) gguf_writer_u32(writer, key_of(config, suffix, key), (uint32_t)(value))
    gguf_writer_string(writer, "general.architecture", config->arch ? config->arch->name : "llama");
    gguf_writer_string(writer, "general.name", "synth");
    gguf_writer_u32(writer, "general.file_type", file_type(config->weight_type));
    gguf_writer_u32(writer, "general.quantization_version", 2);
    U32("block_count", config->n_layers);
    U32("context_length", config->n_ctx);
    U32("embedding_length", config->n_embd);
    U32("feed_forward_length", n_ff_dense(config));
    U32("attention.head_count", config->n_heads);
    U32("attention.head_count_kv", config->n_kv_heads);
    const char *epsilon = parts_of(config) & SYNTH_LAYER_NORM ? "attention.layer_norm_epsilon"
                                                              : "attention.layer_norm_rms_epsilon";
    gguf_writer_f32(writer, key_of(config, epsilon, key), 1e-5f);
    gguf_writer_f32(writer, key_of(config, "rope.freq_base", key), config->rope_freq_base);
    U32("rope.dimension_count", n_rotated(config));
    U32("vocab_size", config->n_vocab);
    if (n_experts(config) > 0) {
        U32("expert_count", n_experts(config));
        U32("expert_used_count", config->n_experts_used ? config->n_experts_used : 2);
        if (parts_of(config) & SYNTH_DENSE_FIRST) {
            U32("expert_feed_forward_length", config->n_ff);
            U32("leading_dense_block_count", 1);
        }
    }
    if (config->head_dim * config->n_heads != config->n_embd) {
        U32("attention.key_length", config->head_dim);
        U32("attention.value_length", config->head_dim);
    }
    if (config->arch)
        write_own_keys(writer, config);
#undef U32
}

/* How GPT-2's byte-level vocabulary spells a byte, in UTF-8: printable Latin-1 characters stand for
 * themselves, the others for code points from 256 on (bytes_to_unicode in
 * https://github.com/openai/gpt-2/blob/master/src/encoder.py). */
static void spell_byte(int byte, char text[TOKEN_BYTES])
{
    int code = byte, others = 0;
    for (int b = 0; b <= byte; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
        if (!printable) {
            code = b == byte ? 256 + others : code;
            others++;
        }
    }
    if (code < 0x80)
        snprintf(text, TOKEN_BYTES, "%c", code);
    else
        snprintf(text, TOKEN_BYTES, "%c%c", 0xc0 | code >> 6, 0x80 | (code & 0x3f));
}

/* Four special tokens, 256 bytes, then pairs of lower-case letters with their merges, then unused ones. */
static void write_tokenizer(gguf_writer *writer, int n_tokens)
{
    static const char *const special[N_SPECIAL] = {"<|bos|>", "<|eos|>", "<|pad|>", "<|unk|>"};
    enum { NORMAL = 1, CONTROL = 3, UNUSED = 5 }; /* token types as GGUF numbers them */
    size_t n = (size_t)n_tokens, n_merges = 0;
    char(*text)[TOKEN_BYTES] = calloc(n, sizeof *text), merge_text[26 * 26][4];
    const char **tokens = calloc(n, sizeof *tokens), *merges[26 * 26];
    int32_t *types = calloc(n, sizeof *types);
    if (n < N_SPECIAL + N_BYTES || !text || !tokens || !types)
        die("the vocabulary needs 260 tokens or more");
    for (size_t i = 0; i < n; i++) {
        size_t pair = i - N_SPECIAL - N_BYTES;
        types[i] = i < N_SPECIAL ? CONTROL : NORMAL;
        if (i < N_SPECIAL) {
            snprintf(text[i], TOKEN_BYTES, "%s", special[i]);
        } else if (i < N_SPECIAL + N_BYTES) {
            spell_byte((int)i - N_SPECIAL, text[i]);
        } else if (pair < 26 * 26) {
            char a = (char)('a' + pair / 26), b = (char)('a' + pair % 26);
            snprintf(text[i], TOKEN_BYTES, "%c%c", a, b);
            snprintf(merge_text[n_merges], sizeof merge_text[0], "%c %c", a, b);
            merges[n_merges] = merge_text[n_merges];
            n_merges++;
        } else {
            snprintf(text[i], TOKEN_BYTES, "<|unused%zu|>", i);
            types[i] = UNUSED;
        }
        tokens[i] = text[i];
    }
    gguf_writer_string(writer, "tokenizer.ggml.model", "gpt2");
    gguf_writer_string(writer, "tokenizer.ggml.pre", "gpt-2");
    gguf_writer_strings(writer, "tokenizer.ggml.tokens", tokens, n);
    gguf_writer_array(writer, "tokenizer.ggml.token_type", TSR_GGUF_I32, types, n);
    gguf_writer_strings(writer, "tokenizer.ggml.merges", merges, n_merges);
    gguf_writer_u32(writer, "tokenizer.ggml.bos_token_id", 0);
    gguf_writer_u32(writer, "tokenizer.ggml.eos_token_id", 1);
    gguf_writer_u32(writer, "tokenizer.ggml.unknown_token_id", 3);
    gguf_writer_bool(writer, "tokenizer.ggml.add_bos_token", true);
    free(types);
    free(tokens);
    free(text);
}

struct weights {
    gguf_writer *writer;
    const struct synth_model_config *config;
    uint64_t seed; /* of the next matrix */
};

/* `n` matrices of `rows` rows of `columns`, N(0, 1 / columns). */
static void matrices(struct weights *weights, const char *name, int columns, int rows, int n)
{
    const bool other = weights->config->other_type != TSR_TYPE_F32 &&
                       (strstr(name, ".attn_v.weight") || strstr(name, ".ffn_down.weight"));
    const tsr_type choices[] = {other ? weights->config->other_type : weights->config->weight_type,
                                TSR_TYPE_Q8_0, TSR_TYPE_F16};
    int choice = 0;
    while (columns % tsr_type_block_elems(choices[choice]) != 0)
        choice++;
    gguf_writer_tensor_normal(weights->writer, name, choices[choice], n > 1 ? 3 : 2,
                              (int64_t[]){columns, rows, n}, weights->seed++,
                              weights->config->weight_scale / sqrtf((float)columns));
}

static void matrix(struct weights *weights, const char *name, int columns, int rows)
{
    matrices(weights, name, columns, rows, 1);
}

/* Rows of a vector around `mean`: all of a llama's norms are 1. */
static void vectors(struct weights *weights, const char *name, int64_t columns, int64_t rows, float mean,
                    float spread)
{
    const int64_t n = columns * rows;
    float *values = malloc((size_t)n * sizeof *values);
    uint64_t seed = weights->seed;
    if (!values)
        die("out of memory");
    for (int64_t i = 0; i < n; i++)
        values[i] =
            mean + (weights->config->arch ? spread * ((float)random_below(&seed, 2001) / 1000 - 1) : 0);
    if (weights->config->arch)
        weights->seed = seed;
    gguf_writer_tensor_f32(weights->writer, name, TSR_TYPE_F32, rows > 1 ? 2 : 1, (int64_t[]){columns, rows},
                           values);
    free(values);
}

/* Factors as llama 3.1's: 1 for the fast half of the frequencies, `top` for the slowest, rising between. */
static void rope_factors(struct weights *weights, const char *name, float top)
{
    int64_t n = n_rotated(weights->config) / 2;
    float *factors = malloc((size_t)n * sizeof *factors);
    if (!factors)
        die("out of memory");
    for (int64_t i = 0; i < n; i++)
        factors[i] = i < n / 2 ? 1.0f : 1.0f + (top - 1) * (float)(i - n / 2 + 1) / (float)(n - n / 2);
    gguf_writer_tensor_f32(weights->writer, name, TSR_TYPE_F32, 1, &n, factors);
    free(factors);
}

/* One tensor of a layer, in files whose architecture has (any of) `with` and none of `without`. */
struct part {
    const char *name;
    enum { MATRIX, NORM, BIAS, EXPERTS, EXPERT_BIASES, SINKS } kind;
    int columns, rows; /* rows: of a matrix */
    unsigned with, without;
};

static void add_part(struct weights *weights, int layer, const struct part *part)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", layer, part->name);
    if (part->kind == MATRIX)
        matrix(weights, name, part->columns, part->rows);
    else if (part->kind == EXPERTS)
        matrices(weights, name, part->columns, part->rows, n_experts(weights->config));
    else if (part->kind == NORM)
        vectors(weights, name, part->columns, part->rows, 1, 0.5f);
    else /* sinks that matter beside scores, biases that make what follows reach where it is clamped */
        vectors(weights, name, part->columns, part->rows, 0,
                part->kind == SINKS           ? 2
                : part->kind == EXPERT_BIASES ? 9
                                              : 0.4f);
}

static void layer(struct weights *weights, int index)
{
    const struct synth_model_config *c = weights->config;
    const unsigned of_mixture = SYNTH_EXPERTS | SYNTH_EXPERT_BIASES | SYNTH_ROUTER_BIAS | SYNTH_SHARED |
                                SYNTH_SHARED_GATE | SYNTH_CHOICE_BIAS;
    const bool dense = parts_of(c) & SYNTH_DENSE_FIRST && index == 0;
    const unsigned parts = parts_of(c) & ~(dense ? of_mixture : 0);
    const int n_ff = n_ff_dense(c), shared = n_ff_shared(c);
    const int d = c->head_dim, q = c->n_heads * d, kv = c->n_kv_heads * d, norms = SYNTH_NO_PRE_NORMS;
    const int other_norm = SYNTH_OTHER_FFN_NORM, dense_biases = SYNTH_OTHER_BIASES;
    const int fused = q + 2 * kv;
    const struct part all[] = {
        {"attn_norm.weight", NORM, c->n_embd, 1, 0, norms},
        {"attn_q.weight", MATRIX, c->n_embd, q, 0, SYNTH_FUSED_QKV},
        {"attn_k.weight", MATRIX, c->n_embd, kv, 0, SYNTH_FUSED_QKV},
        {"attn_v.weight", MATRIX, c->n_embd, kv, 0, SYNTH_FUSED_QKV},
        {"attn_output.weight", MATRIX, q, c->n_embd, 0, 0},
        {"attn_sinks.weight", SINKS, c->n_heads, 1, SYNTH_SINKS, 0},
        {"ffn_norm.weight", NORM, c->n_embd, 1, 0, norms | other_norm | SYNTH_NO_FFN_NORM},
        {"post_attention_norm.weight", NORM, c->n_embd, 1, other_norm, 0},
        {"ffn_gate.weight", MATRIX, c->n_embd, n_ff, 0, SYNTH_FUSED_FFN | SYNTH_EXPERTS | SYNTH_NO_GATE},
        {"ffn_up.weight", MATRIX, c->n_embd, n_ff, 0, SYNTH_FUSED_FFN | SYNTH_EXPERTS},
        {"ffn_down.weight", MATRIX, n_ff, c->n_embd, 0, SYNTH_EXPERTS},
        {"ffn_gate_inp.weight", MATRIX, c->n_embd, n_experts(c), SYNTH_EXPERTS, 0},
        {"ffn_gate_exps.weight", EXPERTS, c->n_embd, c->n_ff, SYNTH_EXPERTS, 0},
        {"ffn_up_exps.weight", EXPERTS, c->n_embd, c->n_ff, SYNTH_EXPERTS, 0},
        {"ffn_down_exps.weight", EXPERTS, c->n_ff, c->n_embd, SYNTH_EXPERTS, 0},
        {"ffn_gate_shexp.weight", MATRIX, c->n_embd, shared, SYNTH_SHARED, 0},
        {"ffn_up_shexp.weight", MATRIX, c->n_embd, shared, SYNTH_SHARED, 0},
        {"ffn_down_shexp.weight", MATRIX, shared, c->n_embd, SYNTH_SHARED, 0},
        {"ffn_gate_inp_shexp.weight", BIAS, c->n_embd, 1, SYNTH_SHARED_GATE, 0},
        {"exp_probs_b.bias", BIAS, n_experts(c), 1, SYNTH_CHOICE_BIAS, 0},
        {"ffn_gate_inp.bias", BIAS, n_experts(c), 1, SYNTH_ROUTER_BIAS, 0},
        {"ffn_gate_exps.bias", EXPERT_BIASES, c->n_ff, n_experts(c), SYNTH_EXPERT_BIASES, 0},
        {"ffn_up_exps.bias", EXPERT_BIASES, c->n_ff, n_experts(c), SYNTH_EXPERT_BIASES, 0},
        {"ffn_down_exps.bias", EXPERT_BIASES, c->n_embd, n_experts(c), SYNTH_EXPERT_BIASES, 0},
        {"attn_qkv.weight", MATRIX, c->n_embd, fused, SYNTH_FUSED_QKV, 0},
        {"ffn_up.weight", MATRIX, c->n_embd, 2 * n_ff, SYNTH_FUSED_FFN, 0},
        {"attn_q.bias", BIAS, q, 1, SYNTH_QKV_BIASES, SYNTH_FUSED_QKV},
        {"attn_k.bias", BIAS, kv, 1, SYNTH_QKV_BIASES, SYNTH_FUSED_QKV},
        {"attn_v.bias", BIAS, kv, 1, SYNTH_QKV_BIASES, SYNTH_FUSED_QKV},
        {"attn_qkv.bias", BIAS, parts & SYNTH_QKV_BIASES ? fused : 0, 1, SYNTH_FUSED_QKV, 0},
        {"attn_output.bias", BIAS, c->n_embd, 1, SYNTH_OTHER_BIASES, 0},
        {"ffn_gate.bias", BIAS, n_ff, 1, dense_biases, SYNTH_EXPERTS | SYNTH_NO_GATE},
        {"ffn_up.bias", BIAS, n_ff, 1, dense_biases, SYNTH_EXPERTS},
        {"ffn_down.bias", BIAS, c->n_embd, 1, dense_biases, SYNTH_EXPERTS},
        {"attn_q_norm.weight", NORM, d, 1, SYNTH_HEAD_NORMS, 0},
        {"attn_k_norm.weight", NORM, d, 1, SYNTH_HEAD_NORMS, 0},
        {"attn_q_norm.weight", NORM, q, 1, SYNTH_WIDE_NORMS, 0},
        {"attn_k_norm.weight", NORM, kv, 1, SYNTH_WIDE_NORMS, 0},
        {"attn_q_norm.weight", NORM, d, c->n_heads, SYNTH_HEADS_NORMS, 0},
        {"attn_k_norm.weight", NORM, d, c->n_kv_heads, SYNTH_HEADS_NORMS, 0},
        {"attn_norm.bias", BIAS, c->n_embd, 1, SYNTH_NORM_BIASES, 0},
        {"ffn_norm.bias", BIAS, c->n_embd, 1, SYNTH_NORM_BIASES, SYNTH_NO_FFN_NORM},
        {"attn_norm_2.weight", NORM, c->n_embd, 1, SYNTH_ATTENTION_NORM, 0},
        {"attn_norm_2.bias", BIAS, c->n_embd, 1, SYNTH_ATTENTION_NORM, 0},
        {"post_attention_norm.weight", NORM, c->n_embd, 1, SYNTH_POST_NORMS, 0},
        {"post_ffw_norm.weight", NORM, c->n_embd, 1, SYNTH_POST_NORMS, 0},
        {"nextn.eh_proj.weight", MATRIX, index + 1 == c->n_layers ? 2 * c->n_embd : 0, c->n_embd,
         SYNTH_PREDICTION, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if ((!all[i].with || parts & all[i].with) && !(parts & all[i].without) && all[i].columns > 0)
            add_part(weights, index, &all[i]);
}

void synth_model_write(const struct synth_model_config *config, const char *path)
{
    gguf_writer *writer = gguf_writer_create(3);
    struct weights weights = {writer, config, config->seed * 1000003};
    write_hyperparameters(writer, config);
    if (config->tokenizer)
        write_tokenizer(writer, config->n_tokens ? config->n_tokens : config->n_vocab);
    matrix(&weights, "token_embd.weight", config->n_embd, config->n_vocab);
    if (config->rope_factors)
        rope_factors(&weights, "rope_freqs.weight", 8);
    if (parts_of(config) & SYNTH_LONGROPE) {
        rope_factors(&weights, "rope_factors_long.weight", 20);
        rope_factors(&weights, "rope_factors_short.weight", 1.5f);
    }
    for (int i = 0; i < config->n_layers; i++)
        layer(&weights, i);
    vectors(&weights, "output_norm.weight", config->n_embd, 1, 1, 0.5f);
    if (parts_of(config) & SYNTH_NORM_BIASES)
        vectors(&weights, "output_norm.bias", config->n_embd, 1, 0, 0.4f);
    if (parts_of(config) & SYNTH_OUTPUT_BIAS && !config->tied_output)
        vectors(&weights, "output.bias", config->n_vocab, 1, 0, 0.4f);
    if (!config->tied_output)
        matrix(&weights, "output.weight", config->n_embd, config->n_vocab);
    if (config->header_only || config->holes)
        gguf_writer_save_header(writer, path, config->holes);
    else if (config->n_files > 1)
        gguf_writer_save_split(writer, path, config->n_files);
    else
        gguf_writer_save(writer, path);
    gguf_writer_destroy(writer);
}
