/* Reading a vocabulary from a GGUF file's keys.
 *
 * Missing values are llama.cpp's defaults (src/llama-vocab.cpp), since files are made for it.
 * Contradictions are refused with key and index: a wrong vocabulary does not cause a crash, it makes the
 * model write nonsense, which is harder to diagnose. */
#include "text/tokenizer/vocab_load.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/input/utf8.h"
#include "core/mem.h"
#include "text/tokenizer/unigram.h"
#include "text/tokenizer/wordpiece.h"

#define KEY "tokenizer.ggml."

static tsr_bytes as_bytes(tsr_gguf_string s)
{
    return (tsr_bytes){s.data, s.bytes};
}

static bool bytes_equal(tsr_bytes a, const char *b)
{
    return a.bytes == strlen(b) && !memcmp(a.data, b, a.bytes);
}

static tsr_status read_kind(const tsr_gguf *gguf, tsr_vocab *vocab)
{
    tsr_status status = TSR_OK;
    tsr_gguf_string model, pre = {"default", 7};

    if (!tsr_gguf_has_key(gguf, KEY "model"))
        return tsr_fail(TSR_ERR_NOT_FOUND, "%s has no vocabulary (key " KEY "model is missing)",
                        tsr_gguf_path(gguf));
    TSR_TRY(tsr_gguf_get_string(gguf, KEY "model", &model));
    if (bytes_equal(as_bytes(model), "no_vocab") || bytes_equal(as_bytes(model), "none"))
        return tsr_fail(TSR_ERR_NOT_FOUND, "%s was made without a vocabulary (key " KEY "model is \"%.*s\")",
                        tsr_gguf_path(gguf), (int)model.bytes, model.data);
    if (bytes_equal(as_bytes(model), "llama")) {
        vocab->kind = TSR_VOCAB_SPM;
        return TSR_OK;
    }
    if (bytes_equal(as_bytes(model), "bert")) {
        vocab->kind = TSR_VOCAB_WPM;
        vocab->pre = &tsr_wordpiece_rule;
        return TSR_OK;
    }
    if (bytes_equal(as_bytes(model), "t5")) {
        vocab->kind = TSR_VOCAB_UGM;
        return TSR_OK;
    }
    bool gemma4 = bytes_equal(as_bytes(model), "gemma4");
    if (!gemma4 && !bytes_equal(as_bytes(model), "gpt2"))
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        KEY "model is \"%.*s\", an unsupported tokenizer; supported are: gpt2 llama "
                            "gemma4 bert t5",
                        (int)TSR_MIN(model.bytes, (size_t)80), model.data);
    vocab->kind = TSR_VOCAB_BPE;
    if (gemma4)
        pre = (tsr_gguf_string){"gemma4", 6};
    else if (tsr_gguf_has_key(gguf, KEY "pre"))
        TSR_TRY(tsr_gguf_get_string(gguf, KEY "pre", &pre));
    TSR_TRY(tsr_pretokenizer_find(pre.data, pre.bytes, &vocab->pre));
out:
    return status;
}

static tsr_status read_type(const tsr_gguf *gguf, bool has_types, int32_t id, uint8_t *type_out)
{
    tsr_status status = TSR_OK;
    int64_t type = TSR_TOKEN_NORMAL;

    if (has_types)
        TSR_TRY(tsr_gguf_array_i64(gguf, KEY "token_type", id, &type));
    if (type < TSR_TOKEN_UNDEFINED || type > TSR_TOKEN_BYTE)
        return tsr_fail(TSR_ERR_FORMAT, KEY "token_type[%d] is %lld; types are 0 to 6", id, (long long)type);
    *type_out = (uint8_t)type;
out:
    return status;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "<0x0A>" -> 10; -1 for another spelling. */
static int parse_byte_token(tsr_bytes text)
{
    if (text.bytes != 6 || memcmp(text.data, "<0x", 3) || text.data[5] != '>')
        return -1;
    int high = hex_digit(text.data[3]), low = hex_digit(text.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Decodes byte-level BPE's spelling, at most text.bytes bytes. A text in another spelling (some files have
 * plain added tokens marked as normal) is copied unchanged. */
static uint32_t unspell(tsr_bytes text, char *piece)
{
    static const unsigned first_hidden = 256, n_hidden = 33 + 34 + 1;
    uint32_t n = 0;

    for (size_t at = 0; at < text.bytes;) {
        size_t length = tsr_utf8_sequence(text.data + at, text.bytes - at, NULL);
        unsigned point = (uint8_t)text.data[at];
        if (length == 2)
            point = (point & 0x1Fu) << 6 | ((uint8_t)text.data[at + 1] & 0x3Fu);
        unsigned hidden = point - first_hidden;
        unsigned byte = point;
        if (point >= first_hidden)
            byte = hidden <= 32 ? hidden : hidden < 33 + 34 ? hidden - 33 + 127 : 173;
        char spelled[2];
        bool good = (length == 1 || length == 2) && point < first_hidden + n_hidden &&
                    tsr_vocab_spell_byte((uint8_t)byte, spelled) == length &&
                    !memcmp(spelled, text.data + at, length);
        if (!good) {
            memcpy(piece, text.data, text.bytes);
            return (uint32_t)text.bytes;
        }
        piece[n++] = (char)byte;
        at += length;
    }
    return n;
}

/* '▁' -> ' '. */
static uint32_t unmark_spaces(tsr_bytes text, char *piece)
{
    uint32_t n = 0;
    for (size_t at = 0; at < text.bytes;) {
        bool mark = tsr_vocab_is_mark(text.data + at, text.bytes - at);
        piece[n++] = mark ? ' ' : text.data[at];
        at += mark ? TSR_SPACE_MARK_BYTES : 1;
    }
    return n;
}

/* The bytes that a token represents, at most text.bytes. */
static tsr_status make_piece(const tsr_vocab *vocab, int32_t id, tsr_bytes text, char *piece, uint32_t *n_out)
{
    switch (vocab->tokens[id].type) {
    case TSR_TOKEN_NORMAL:
        *n_out = tsr_vocab_spells_bytes(vocab) ? unspell(text, piece) : unmark_spaces(text, piece);
        return TSR_OK;
    case TSR_TOKEN_USER_DEFINED:
        memcpy(piece, text.data, text.bytes);
        *n_out = (uint32_t)text.bytes;
        return TSR_OK;
    case TSR_TOKEN_BYTE: {
        int byte = parse_byte_token(text);
        if (byte < 0)
            return tsr_fail(TSR_ERR_FORMAT,
                            KEY "tokens[%d] is a byte token but not spelled like one (\"<0x0A>\")", id);
        *piece = (char)byte;
        *n_out = 1;
        return TSR_OK;
    }
    default:
        *n_out = 0;
        return TSR_OK;
    }
}

/* Reserve memory for every text and every piece, which is never longer than its text. */
static tsr_status reserve_bytes(const tsr_gguf *gguf, tsr_vocab *vocab)
{
    tsr_status status = TSR_OK;
    size_t total = 0;

    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        tsr_gguf_string text;
        TSR_TRY(tsr_gguf_array_string(gguf, KEY "tokens", id, &text));
        if (!tsr_add_size(total, text.bytes, &total) || total > UINT32_MAX / 2)
            return tsr_fail(TSR_ERR_UNSUPPORTED, KEY "tokens holds more than 2 GiB of text");
    }
    TSR_TRY(tsr_mem_array(2 * total, 1, "the vocabulary's texts", &vocab->bytes));
out:
    return status;
}

static tsr_status read_tokens(const tsr_gguf *gguf, tsr_vocab *vocab)
{
    tsr_status status = TSR_OK;
    bool has_types = tsr_gguf_has_key(gguf, KEY "token_type");
    int64_t n, n_types;
    uint32_t used = 0;

    TSR_TRY(tsr_vocab_read_length(gguf, KEY "tokens", 0, &n));
    if (n < 1 || n > INT32_MAX / 4)
        return tsr_fail(TSR_ERR_FORMAT, KEY "tokens has %lld entries; 1 to %d are supported", (long long)n,
                        INT32_MAX / 4);
    if (has_types)
        TSR_TRY(tsr_vocab_read_length(gguf, KEY "token_type", n, &n_types));
    vocab->n_tokens = (int32_t)n;
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *vocab->tokens, "the vocabulary", &vocab->tokens));
    TSR_TRY(reserve_bytes(gguf, vocab));

    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        tsr_vocab_token *token = &vocab->tokens[id];
        tsr_gguf_string text;
        TSR_TRY(tsr_gguf_array_string(gguf, KEY "tokens", id, &text));
        TSR_TRY(read_type(gguf, has_types, id, &token->type));
        token->text = used;
        token->text_bytes = (uint32_t)text.bytes;
        memcpy(vocab->bytes + used, text.data, text.bytes);
        used += token->text_bytes;
        token->piece = used;
        TSR_TRY(make_piece(vocab, id, as_bytes(text), vocab->bytes + used, &token->piece_bytes));
        used += token->piece_bytes;
        vocab->max_text_bytes = TSR_MAX(vocab->max_text_bytes, token->text_bytes);
        vocab->max_piece_bytes = TSR_MAX(vocab->max_piece_bytes, token->piece_bytes);
    }
    TSR_TRY(tsr_vocab_index_tokens(vocab));
out:
    return status;
}

/* Each byte's token: "<0x0A>", or the byte itself (in byte-level spelling for BPE). */
static void find_byte_tokens(tsr_vocab *vocab)
{
    for (int byte = 0; byte < 256; byte++) {
        char text[8] = {(char)byte};
        size_t n = 1;
        int32_t id = TSR_TOKEN_NONE;
        if (tsr_vocab_spells_bytes(vocab)) {
            n = tsr_vocab_spell_byte((uint8_t)byte, text);
        } else {
            char name[8];
            snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
            id = tsr_vocab_find(vocab, name, 6);
        }
        if (!tsr_vocab_is(vocab, id, TSR_TOKEN_TYPE_BIT(TSR_TOKEN_BYTE)))
            id = tsr_vocab_find(vocab, text, n);
        unsigned usable = TSR_TOKEN_TYPE_BIT(TSR_TOKEN_BYTE) | TSR_TOKEN_TYPE_BIT(TSR_TOKEN_NORMAL);
        vocab->byte_token[byte] = tsr_vocab_is(vocab, id, usable) ? id : TSR_TOKEN_NONE;
    }
}

/* Floats in descending order as unsigned integers in ascending order. */
static uint32_t descending_rank(float score)
{
    uint32_t bits;
    score += 0.0f; /* -0 becomes +0, its equal */
    memcpy(&bits, &score, sizeof bits);
    return ~(bits & 0x80000000u ? ~bits : bits | 0x80000000u);
}

/* Whether a '▁' follows another character. */
static bool has_inner_mark(const char *text, size_t bytes)
{
    for (size_t at = 1; at < bytes; at++)
        if (tsr_vocab_is_mark(text + at, bytes - at) &&
            !(at >= TSR_SPACE_MARK_BYTES &&
              tsr_vocab_is_mark(text + at - TSR_SPACE_MARK_BYTES, TSR_SPACE_MARK_BYTES)))
            return true;
    return false;
}

/* Read scores: SentencePiece merges the pair whose token has the highest score. */
static tsr_status read_scores(const tsr_gguf *gguf, tsr_vocab *vocab)
{
    tsr_status status = TSR_OK;
    int64_t n;

    TSR_TRY(tsr_vocab_read_length(gguf, KEY "scores", vocab->n_tokens, &n));
    vocab->words_stand_alone = true;
    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        double score;
        TSR_TRY(tsr_gguf_array_f64(gguf, KEY "scores", id, &score));
        if (isnan(score))
            return tsr_fail(TSR_ERR_FORMAT, KEY "scores[%d] is not a number", id);
        tsr_vocab_token *token = &vocab->tokens[id];
        token->rank = descending_rank((float)score);

        if (has_inner_mark(vocab->bytes + token->text, token->text_bytes))
            vocab->words_stand_alone = false;
    }
out:
    return status;
}

/* One line of tokenizer.ggml.merges, "left right" in the tokens' spelling, which contains no other spaces.
 * `joined` has room for the longest token. */
static tsr_status read_merge(const tsr_gguf *gguf, tsr_vocab *vocab, int64_t line, char *joined)
{
    tsr_status status = TSR_OK;
    tsr_gguf_string text;
    TSR_TRY(tsr_gguf_array_string(gguf, KEY "merges", line, &text));

    /* Raw text contains no other spaces either, but an element may begin with one by mistake. */
    const char *space = text.bytes > 1 ? memchr(text.data + 1, ' ', text.bytes - 1) : NULL;
    if (!space)
        return tsr_fail(TSR_ERR_FORMAT, KEY "merges[%lld] is not two tokens with a space between them",
                        (long long)line);
    size_t left_bytes = (size_t)(space - text.data), right_bytes = text.bytes - left_bytes - 1;
    tsr_vocab_merge merge = {.left = tsr_vocab_find(vocab, text.data, left_bytes),
                             .right = tsr_vocab_find(vocab, space + 1, right_bytes),
                             .merged = TSR_TOKEN_NONE,
                             .rank = (uint32_t)line};
    if (left_bytes + right_bytes <= vocab->max_text_bytes) {
        memcpy(joined, text.data, left_bytes);
        memcpy(joined + left_bytes, space + 1, right_bytes);
        merge.merged = tsr_vocab_find(vocab, joined, left_bytes + right_bytes);
    }
    const char *wrong = merge.left == TSR_TOKEN_NONE     ? "its left part"
                        : merge.right == TSR_TOKEN_NONE  ? "its right part"
                        : merge.merged == TSR_TOKEN_NONE ? "its result"
                                                         : NULL;
    if (wrong)
        return tsr_fail(TSR_ERR_FORMAT,
                        KEY "merges[%lld]: %s is not in " KEY
                            "tokens; the file is damaged or was converted wrongly",
                        (long long)line, wrong);
    tsr_vocab_add_merge(vocab, merge);
out:
    return status;
}

static tsr_status read_merges(const tsr_gguf *gguf, tsr_vocab *vocab)
{
    tsr_status status = TSR_OK;
    char *joined = NULL;
    int64_t n;

    TSR_TRY(tsr_vocab_read_length(gguf, KEY "merges", 0, &n));
    if (n > INT32_MAX)
        return tsr_fail(TSR_ERR_FORMAT, KEY "merges has %lld entries; %d are supported", (long long)n,
                        INT32_MAX);
    TSR_TRY(tsr_vocab_reserve_merges(vocab, (size_t)n));
    TSR_TRY(tsr_mem_array((size_t)vocab->max_text_bytes + 1, 1, "the longest token", &joined));
    for (int64_t line = 0; line < n; line++)
        TSR_TRY(read_merge(gguf, vocab, line, joined));
out:
    tsr_mem_free(joined);
    return status;
}

tsr_status tsr_vocab_load(const tsr_gguf *gguf, tsr_vocab **vocab_out)
{
    tsr_status status = TSR_OK;
    tsr_vocab *vocab = NULL;

    TSR_TRY(TSR_NEW(&vocab, "the vocabulary"));
    TSR_TRY(read_kind(gguf, vocab));
    TSR_TRY(read_tokens(gguf, vocab));
    find_byte_tokens(vocab);
    if (vocab->kind == TSR_VOCAB_BPE)
        TSR_TRY(read_merges(gguf, vocab));
    else if (vocab->kind == TSR_VOCAB_SPM)
        TSR_TRY(read_scores(gguf, vocab));
    TSR_TRY(tsr_vocab_read_specials(gguf, vocab));
    if (vocab->kind == TSR_VOCAB_UGM)
        TSR_TRY(tsr_unigram_load(gguf, vocab));
    TSR_TRY(tsr_vocab_index_specials(vocab));
    *vocab_out = vocab;
    vocab = NULL;
out:
    tsr_vocab_destroy(vocab);
    return status;
}

void tsr_vocab_destroy(tsr_vocab *vocab)
{
    if (!vocab)
        return;
    tsr_unigram_destroy(vocab->unigram);
    tsr_mem_free(vocab->specials.entries);
    tsr_mem_free(vocab->user_defined.entries);
    tsr_mem_free(vocab->merges);
    tsr_mem_free(vocab->slots);
    tsr_mem_free(vocab->bytes);
    tsr_mem_free(vocab->tokens);
    tsr_mem_free(vocab);
}
