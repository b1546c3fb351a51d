/* Small vocabularies; see small_vocab.h. */
#include "support/small_vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "support/vocab_file.h"

/* Byte-level BPE's alphabet, built as its definition says: visible Latin-1 characters stand for themselves,
 * the others get the characters from U+0100 on, in order. */
static void byte_alphabet(char text[256][3])
{
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; byte++) {
        bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        unsigned point = visible ? byte : next++;
        int n = 0;
        if (point < 0x80) {
            text[byte][n++] = (char)point;
        } else {
            text[byte][n++] = (char)(0xC0 | point >> 6);
            text[byte][n++] = (char)(0x80 | (point & 63));
        }
        text[byte][n] = '\0';
    }
}

void small_vocab_init(small_vocab *v, const char *model)
{
    memset(v, 0, sizeof *v);
    v->model = model;
    v->has_tokens = true;
    v->bos = v->eos = v->eot = v->eom = v->unk = v->pad = -1;
    v->add_bos = v->add_eos = v->add_space_prefix = v->merges_spaces = v->space_behind = -1;
    if (!strcmp(model, "gpt2")) {
        char text[256][3];
        byte_alphabet(text);
        v->pre = "gpt-2";
        v->has_merges = true;
        for (int byte = 0; byte < 256; byte++)
            small_vocab_add(v, text[byte], 1, 0);
        v->n_scores = 0;
        return;
    }
    small_vocab_add(v, "<unk>", 2, 0);
    small_vocab_add(v, "<s>", 3, 0);
    small_vocab_add(v, "</s>", 3, 0);
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", byte);
        small_vocab_add(v, text, 6, 0);
    }
}

void small_vocab_release(small_vocab *v)
{
    for (size_t i = 0; i < v->n_tokens; i++)
        free(v->tokens[i]);
    for (size_t i = 0; i < v->n_merges; i++)
        free(v->merges[i]);
}

int32_t small_vocab_add(small_vocab *v, const char *text, int32_t type, float score)
{
    size_t id = v->n_tokens++;
    assert_true(id < SMALL_VOCAB_MAX);
    v->tokens[id] = strdup(text);
    v->types[id] = type;
    v->scores[id] = score;
    v->n_types = v->n_tokens;
    if (strcmp(v->model, "gpt2"))
        v->n_scores = v->n_tokens;
    return (int32_t)id;
}

int32_t small_vocab_find(const small_vocab *v, const char *text)
{
    for (size_t i = 0; i < v->n_tokens; i++)
        if (!strcmp(v->tokens[i], text))
            return (int32_t)i;
    return -1;
}

int32_t small_vocab_merge(small_vocab *v, const char *left, const char *right)
{
    char text[256];
    assert_true(v->n_merges < SMALL_VOCAB_MAX);
    snprintf(text, sizeof text, "%s %s", left, right);
    v->merges[v->n_merges++] = strdup(text);
    snprintf(text, sizeof text, "%s%s", left, right);
    int32_t id = small_vocab_find(v, text);
    return id >= 0 ? id : small_vocab_add(v, text, 1, 0);
}

tsr_gguf *small_vocab_gguf(const small_vocab *v)
{
    vocab_file *file = vocab_file_begin();
    const struct {
        const char *key;
        int64_t value;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", v->bos},     {"tokenizer.ggml.eos_token_id", v->eos},
        {"tokenizer.ggml.eot_token_id", v->eot},     {"tokenizer.ggml.eom_token_id", v->eom},
        {"tokenizer.ggml.unknown_token_id", v->unk}, {"tokenizer.ggml.padding_token_id", v->pad},
    };

    if (v->model)
        vocab_file_string(file, "tokenizer.ggml.model", v->model);
    if (v->name)
        vocab_file_string(file, "general.name", v->name);
    if (v->pre)
        vocab_file_string(file, "tokenizer.ggml.pre", v->pre);
    if (v->has_tokens)
        vocab_file_strings(file, "tokenizer.ggml.tokens", (const char *const *)v->tokens, v->n_tokens);
    if (v->n_types)
        vocab_file_i32s(file, "tokenizer.ggml.token_type", v->types, v->n_types);
    if (v->n_scores)
        vocab_file_f32s(file, "tokenizer.ggml.scores", v->scores, v->n_scores);
    if (v->has_merges)
        vocab_file_strings(file, "tokenizer.ggml.merges", (const char *const *)v->merges, v->n_merges);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (ids[i].value >= 0)
            vocab_file_u32(file, ids[i].key, (uint32_t)ids[i].value);
    if (v->add_bos >= 0)
        vocab_file_bool(file, "tokenizer.ggml.add_bos_token", v->add_bos);
    if (v->add_eos >= 0)
        vocab_file_bool(file, "tokenizer.ggml.add_eos_token", v->add_eos);
    if (v->add_space_prefix >= 0)
        vocab_file_bool(file, "tokenizer.ggml.add_space_prefix", v->add_space_prefix);
    if (v->merges_spaces >= 0)
        vocab_file_bool(file, "tokenizer.ggml.remove_extra_whitespaces", v->merges_spaces);
    if (v->space_behind >= 0)
        vocab_file_bool(file, "tokenizer.ggml.treat_whitespace_as_suffix", v->space_behind);
    if (v->charsmap)
        vocab_file_u8s(file, "tokenizer.ggml.precompiled_charsmap", v->charsmap, v->charsmap_bytes);
    return vocab_file_open(file);
}

tsr_tokenizer *small_vocab_tokenizer(const small_vocab *v)
{
    tsr_tokenizer *tokenizer = NULL;
    tsr_gguf *gguf = small_vocab_gguf(v);
    tsr_status status = tsr_tokenizer_create(gguf, &tokenizer);
    tsr_gguf_close(gguf);
    if (status != TSR_OK)
        fail_msg("%s", tsr_last_error());
    return tokenizer;
}

tsr_tokenizer *small_vocab_hello(void)
{
    small_vocab v;
    small_vocab_init(&v, "gpt2");
    small_vocab_merge(&v, "l", "l");
    small_vocab_merge(&v, "h", "e");
    small_vocab_merge(&v, "he", "ll");
    small_vocab_merge(&v, "hell", "o");
    small_vocab_merge(&v, "Ġ", "w");
    small_vocab_merge(&v, "o", "r");
    v.bos = small_vocab_add(&v, "<|bos|>", 3, 0);
    v.eos = small_vocab_add(&v, "<|eos|>", 3, 0);
    small_vocab_add(&v, "<|eot_id|>", 1, 0); /* a file that forgot what it is */
    small_vocab_add(&v, "<|start|>", 3, 0);
    small_vocab_add(&v, "[tool]", 4, 0);
    small_vocab_add(&v, "[tool]s", 4, 0);
    v.pad = 4000000; /* past the end, as some files have it */
    tsr_tokenizer *tokenizer = small_vocab_tokenizer(&v);
    small_vocab_release(&v);
    return tokenizer;
}
