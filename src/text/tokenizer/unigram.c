/* The text is normalised first: spellings are replaced, spaces marked. Then the best path to each position
 * is found from left to right (Viterbi): the best path to the start of a token, followed by this token.
 * Tokens that start at a position are found by narrowing the range of sorted entries that match the text,
 * byte by byte. Sums are in double and the first of equal paths wins, as in llama.cpp, so the ids are the
 * same. */
#include "text/tokenizer/unigram.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/input/utf8.h"
#include "core/mem.h"

#define KEY "tokenizer.ggml."

/* Below the least probable token (kUnkPenalty in google/sentencepiece, src/unigram_model.cc). */
static const double unknown_penalty = 10.0;

/* -- loading -- */

static int by_text(const void *a, const void *b)
{
    const tsr_unigram_entry *x = a, *y = b;
    const int order = memcmp(x->text, y->text, TSR_MIN(x->bytes, y->bytes));
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static tsr_status read_entries(const tsr_gguf *gguf, const tsr_vocab *vocab, tsr_unigram *unigram)
{
    tsr_status status = TSR_OK;
    int64_t n;
    double least = FLT_MAX;

    TSR_TRY(tsr_vocab_read_length(gguf, KEY "scores", vocab->n_tokens, &n));
    TSR_TRY(tsr_mem_array((size_t)vocab->n_tokens, sizeof *unigram->entries, "the vocabulary",
                          &unigram->entries));
    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        const tsr_vocab_token *token = &vocab->tokens[id];
        double score;
        TSR_TRY(tsr_gguf_array_f64(gguf, KEY "scores", id, &score));
        if (!isfinite(score))
            return tsr_fail(TSR_ERR_FORMAT, KEY "scores[%d] is %g, which is not a log-probability", id,
                            score);
        if (token->type == TSR_TOKEN_NORMAL)
            least = fmin(least, score);
        if (token->type == TSR_TOKEN_USER_DEFINED)
            score = 0;
        if (tsr_vocab_is(vocab, id, TSR_TOKEN_TEXT_TYPES) && token->text_bytes > 0)
            unigram->entries[unigram->n_entries++] =
                (tsr_unigram_entry){vocab->bytes + token->text, token->text_bytes, id, (float)score};
    }
    unigram->unknown_score = (double)((float)least - (float)unknown_penalty);
    if (unigram->n_entries > 0)
        qsort(unigram->entries, unigram->n_entries, sizeof *unigram->entries, by_text);
out:
    return status;
}

static tsr_status read_charsmap(const tsr_gguf *gguf, tsr_unigram *unigram)
{
    tsr_status status = TSR_OK;
    tsr_gguf_value_type type;
    uint8_t *table = NULL;
    int64_t n;

    if (!tsr_gguf_has_key(gguf, KEY "precompiled_charsmap"))
        return TSR_OK;
    TSR_TRY(tsr_gguf_get_array(gguf, KEY "precompiled_charsmap", &type, &n));
    if (type != TSR_GGUF_U8 && type != TSR_GGUF_I8)
        return tsr_fail(TSR_ERR_FORMAT, KEY "precompiled_charsmap is not an array of bytes");
    TSR_TRY(tsr_mem_array((size_t)n, 1, "the vocabulary's spellings", &table));
    for (int64_t i = 0; i < n; i++) {
        int64_t byte;
        TSR_TRY(tsr_gguf_array_i64(gguf, KEY "precompiled_charsmap", i, &byte));
        table[i] = (uint8_t)byte;
    }
    TSR_TRY(tsr_charsmap_create(table, (size_t)n, &unigram->charsmap));
out:
    tsr_mem_free(table);
    return status;
}

tsr_status tsr_unigram_load(const tsr_gguf *gguf, tsr_vocab *vocab)
{
    tsr_status status = TSR_OK;
    tsr_unigram *unigram = NULL;

    TSR_TRY(TSR_NEW(&unigram, "the vocabulary"));
    TSR_TRY(read_entries(gguf, vocab, unigram));
    TSR_TRY(read_charsmap(gguf, unigram));
    TSR_TRY(tsr_vocab_read_flag(gguf, KEY "remove_extra_whitespaces", false, &unigram->merges_spaces));
    TSR_TRY(tsr_vocab_read_flag(gguf, KEY "treat_whitespace_as_suffix", false, &unigram->space_behind));
    unigram->space_behind = unigram->space_behind && vocab->add_space_prefix;
    vocab->add_space_prefix = vocab->add_space_prefix && !unigram->space_behind;
    vocab->unigram = unigram;
    unigram = NULL;
out:
    tsr_unigram_destroy(unigram);
    return status;
}

void tsr_unigram_destroy(tsr_unigram *unigram)
{
    if (!unigram)
        return;
    tsr_charsmap_release(&unigram->charsmap);
    tsr_mem_free(unigram->entries);
    tsr_mem_free(unigram);
}

/* -- normalising -- */

/* Destination of normalised text: `at` is NULL while the text is only counted. */
typedef struct normaliser {
    const tsr_unigram *unigram;
    bool prefix;  /* a space still has to be written at the beginning */
    bool in_word; /* after a character that is not a space */
    char *at;
    size_t n;
} normaliser;

static void put(normaliser *out, const char *bytes, size_t n)
{
    if (out->at)
        memcpy(out->at + out->n, bytes, n);
    out->n += n;
}

static void put_mark(normaliser *out)
{
    put(out, TSR_SPACE_MARK, TSR_SPACE_MARK_BYTES);
}

static void put_byte(normaliser *out, char byte)
{
    if (byte == ' ') {
        out->in_word = false;
        if (!out->unigram->merges_spaces)
            put_mark(out);
        return;
    }
    if (!out->in_word && (out->prefix || out->unigram->merges_spaces)) {
        put_mark(out);
        out->prefix = false;
    }
    out->in_word = true;
    put(out, &byte, 1);
}

/* Write text[bytes] in the form that the vocabulary was trained on to out->at, out->n bytes. */
static void normalise(normaliser *out, const char *text, size_t bytes)
{
    static const char replacement_character[] = "\xEF\xBF\xBD";

    for (size_t at = 0; at < bytes;) {
        const char *spelling;
        size_t taken = tsr_charsmap_find(&out->unigram->charsmap, text + at, bytes - at, &spelling);
        size_t n = taken ? strlen(spelling) : 0;
        if (taken == 0) {
            taken = n = tsr_utf8_sequence(text + at, bytes - at, NULL);
            spelling = text + at;
        }
        if (taken == 0) {
            taken = 1;
            spelling = replacement_character;
            n = sizeof replacement_character - 1;
        }
        for (size_t i = 0; i < n; i++)
            put_byte(out, spelling[i]);
        at += taken;
    }
    if (out->unigram->space_behind)
        put_mark(out);
}

/* Normalise into the encoder's scratch memory. */
static tsr_status normalise_into_scratch(tsr_encoder *encoder, const char *text, size_t bytes, size_t *n_out)
{
    tsr_status status = TSR_OK;
    normaliser count = {.unigram = encoder->vocab->unigram, .prefix = encoder->vocab->add_space_prefix};
    normaliser write = count;

    normalise(&count, text, bytes);
    TSR_TRY(tsr_encoder_reserve(encoder, count.n));
    write.at = encoder->scratch;
    normalise(&write, text, bytes);
    *n_out = write.n;
out:
    return status;
}

/* -- the best tokens -- */

/* The best path to a position of the text: the last token and its start. */
typedef struct way {
    double score;
    uint32_t begin;
    int32_t token;
} way;

static void offer(way *best, double score, size_t begin, int32_t token)
{
    if (score > best->score)
        *best = (way){score, (uint32_t)begin, token};
}

/* The first of entries[low, high), which match in `depth` bytes, whose next byte is `byte` or more. */
static size_t first_at_least(const tsr_unigram_entry *entries, size_t low, size_t high, uint32_t depth,
                             int byte)
{
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((uint8_t)entries[middle].text[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Extend the path at `begin` by every token there. True if a token is `character` bytes long. */
static bool offer_tokens(const tsr_unigram *unigram, const char *text, size_t bytes, size_t begin,
                         size_t character, way *ways)
{
    const tsr_unigram_entry *entries = unigram->entries;
    size_t low = 0, high = unigram->n_entries;
    bool whole = false;

    for (uint32_t depth = 0; begin + depth < bytes && low < high; depth++) {
        const int byte = (uint8_t)text[begin + depth];
        low = first_at_least(entries, low, high, depth, byte);
        high = first_at_least(entries, low, high, depth, byte + 1);
        if (low < high && entries[low].bytes == depth + 1) {
            offer(&ways[begin + depth + 1], ways[begin].score + (double)entries[low].score, begin,
                  entries[low].id);
            whole = whole || depth + 1 == character;
            low++; /* the other entries are longer */
        }
    }
    return whole;
}

static void find_ways(const tsr_vocab *vocab, const char *text, size_t bytes, way *ways)
{
    for (size_t at = 0; at <= bytes; at++)
        ways[at] = (way){at == 0 ? 0 : -DBL_MAX, 0, vocab->unk};
    for (size_t at = 0, character; at < bytes; at += character) {
        character = TSR_MAX(tsr_utf8_sequence(text + at, bytes - at, NULL), (size_t)1);
        if (!offer_tokens(vocab->unigram, text, bytes, at, character, ways))
            offer(&ways[at + character], ways[at].score + vocab->unigram->unknown_score, at, vocab->unk);
    }
}

/* Consecutive unknown tokens become one. */
static void emit_way(tsr_encoder *encoder, size_t bytes, way *ways)
{
    const int32_t unk = encoder->vocab->unk;
    int32_t before = TSR_TOKEN_NONE;
    uint32_t first = 0;

    /* Reverse the list: instead of the start of each token, store the end of the next; 0 after the last. */
    for (uint32_t end = (uint32_t)bytes; end > 0;) {
        const uint32_t begin = ways[end].begin;
        ways[end].begin = first;
        first = end;
        end = begin;
    }
    for (uint32_t end = first; end > 0; end = ways[end].begin) {
        const int32_t token = ways[end].token;
        if (token != unk || before != unk)
            tsr_encoder_emit(encoder, token);
        before = token;
    }
}

tsr_status tsr_unigram_add(tsr_encoder *encoder, const char *text, size_t bytes)
{
    tsr_status status = TSR_OK;
    way *ways = NULL;
    size_t n;

    TSR_TRY(normalise_into_scratch(encoder, text, bytes, &n));
    if (n == 0)
        return TSR_OK;
    if (n >= UINT32_MAX)
        return tsr_fail(TSR_ERR_INVALID, "a text of %zu bytes; encode it in parts", bytes);
    TSR_TRY(tsr_mem_array(n + 1, sizeof *ways, "encoding text", &ways));
    find_ways(encoder->vocab, encoder->scratch, n, ways);
    emit_way(encoder, n, ways);
out:
    tsr_mem_free(ways);
    return status;
}
