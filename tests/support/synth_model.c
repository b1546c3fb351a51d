/* Random-weight models, laid out as llama.cpp's converter lays out real ones. */
#include "support/synth_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/gguf_writer.h"

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
    case TSR_TYPE_Q8_0:
        return 7;
    case TSR_TYPE_Q4_K:
        return 14;
    case TSR_TYPE_Q5_K:
        return 16;
    case TSR_TYPE_Q6_K:
        return 18;
    case TSR_TYPE_BF16:
        return 32;
    default:
        return 1; /* F16 */
    }
}

static void write_hyperparameters(gguf_writer *writer, const struct synth_model_config *config)
{
    gguf_writer_string(writer, "general.architecture", "llama");
    gguf_writer_string(writer, "general.name", "synth");
    gguf_writer_u32(writer, "general.file_type", file_type(config->weight_type));
    gguf_writer_u32(writer, "general.quantization_version", 2);
    gguf_writer_u32(writer, "llama.block_count", (uint32_t)config->n_layers);
    gguf_writer_u32(writer, "llama.context_length", (uint32_t)config->n_ctx);
    gguf_writer_u32(writer, "llama.embedding_length", (uint32_t)config->n_embd);
    gguf_writer_u32(writer, "llama.feed_forward_length", (uint32_t)config->n_ff);
    gguf_writer_u32(writer, "llama.attention.head_count", (uint32_t)config->n_heads);
    gguf_writer_u32(writer, "llama.attention.head_count_kv", (uint32_t)config->n_kv_heads);
    gguf_writer_f32(writer, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_writer_f32(writer, "llama.rope.freq_base", config->rope_freq_base);
    gguf_writer_u32(writer, "llama.rope.dimension_count", (uint32_t)config->head_dim);
    gguf_writer_u32(writer, "llama.vocab_size", (uint32_t)config->n_vocab);
    if (config->head_dim * config->n_heads != config->n_embd) {
        gguf_writer_u32(writer, "llama.attention.key_length", (uint32_t)config->head_dim);
        gguf_writer_u32(writer, "llama.attention.value_length", (uint32_t)config->head_dim);
    }
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
static void write_tokenizer(gguf_writer *writer, int n_vocab)
{
    static const char *const special[N_SPECIAL] = {"<|bos|>", "<|eos|>", "<|pad|>", "<|unk|>"};
    enum { NORMAL = 1, CONTROL = 3, UNUSED = 5 }; /* token types as GGUF numbers them */
    size_t n = (size_t)n_vocab, n_merges = 0;
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

/* A matrix of `rows` rows of `columns`, N(0, 1 / columns). */
static void matrix(struct weights *weights, const char *name, int columns, int rows)
{
    const tsr_type choices[] = {weights->config->weight_type, TSR_TYPE_Q8_0, TSR_TYPE_F16};
    int choice = 0;
    while (columns % tsr_type_block_elems(choices[choice]) != 0)
        choice++;
    gguf_writer_tensor_normal(weights->writer, name, choices[choice], 2, (int64_t[]){columns, rows},
                              weights->seed++, weights->config->weight_scale / sqrtf((float)columns));
}

static void norm(struct weights *weights, const char *name)
{
    int64_t n = weights->config->n_embd;
    float *ones = malloc((size_t)n * sizeof *ones);
    if (!ones)
        die("out of memory");
    for (int64_t i = 0; i < n; i++)
        ones[i] = 1.0f;
    gguf_writer_tensor_f32(weights->writer, name, TSR_TYPE_F32, 1, &n, ones);
    free(ones);
}

/* Factors as llama 3.1's: 1 for the fast half of the frequencies, 8 for the slowest, rising between them. */
static void rope_factors(struct weights *weights)
{
    int64_t n = weights->config->head_dim / 2;
    float *factors = malloc((size_t)n * sizeof *factors);
    if (!factors)
        die("out of memory");
    for (int64_t i = 0; i < n; i++)
        factors[i] = i < n / 2 ? 1.0f : 1.0f + 7.0f * (float)(i - n / 2 + 1) / (float)(n - n / 2);
    gguf_writer_tensor_f32(weights->writer, "rope_freqs.weight", TSR_TYPE_F32, 1, &n, factors);
    free(factors);
}

static void layer(struct weights *weights, int index)
{
    const struct synth_model_config *c = weights->config;
    const struct {
        const char *name;
        int columns, rows; /* rows 0: a norm */
    } parts[] = {
        {"attn_norm", c->n_embd, 0},
        {"attn_q", c->n_embd, c->n_heads * c->head_dim},
        {"attn_k", c->n_embd, c->n_kv_heads * c->head_dim},
        {"attn_v", c->n_embd, c->n_kv_heads * c->head_dim},
        {"attn_output", c->n_heads * c->head_dim, c->n_embd},
        {"ffn_norm", c->n_embd, 0},
        {"ffn_gate", c->n_embd, c->n_ff},
        {"ffn_up", c->n_embd, c->n_ff},
        {"ffn_down", c->n_ff, c->n_embd},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s.weight", index, parts[i].name);
        if (parts[i].rows == 0)
            norm(weights, name);
        else
            matrix(weights, name, parts[i].columns, parts[i].rows);
    }
}

void synth_model_write(const struct synth_model_config *config, const char *path)
{
    gguf_writer *writer = gguf_writer_create(3);
    struct weights weights = {writer, config, config->seed * 1000003};
    write_hyperparameters(writer, config);
    if (config->tokenizer)
        write_tokenizer(writer, config->n_vocab);
    matrix(&weights, "token_embd.weight", config->n_embd, config->n_vocab);
    if (config->rope_factors)
        rope_factors(&weights);
    for (int i = 0; i < config->n_layers; i++)
        layer(&weights, i);
    norm(&weights, "output_norm.weight");
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
