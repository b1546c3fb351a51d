/* From text without special tokens to tokens.
 *
 * Byte-level BPE: the pre-tokenizer's words, one symbol per byte. SentencePiece: the whole text with its
 * spaces marked, one symbol per character; a character without a token falls back to byte tokens. BPE of
 * raw text merges as byte-level BPE, starting with SentencePiece's symbols. */
#include "text/tokenizer/encode.h"

#include <string.h>

#include "core/input/utf8.h"
#include "core/mem.h"
#include "text/tokenizer/unigram.h"
#include "text/tokenizer/wordpiece.h"

/* Encoding a shorter text takes less time than clearing the cache of words. */
enum { MIN_CACHED_TEXT = 16 << 10 };

/* Emit a symbol that is no token: byte by byte if every byte has a token, otherwise as one unknown token. */
static tsr_status emit_bytes(tsr_encoder *encoder, const char *bytes, size_t n)
{
    const tsr_vocab *vocab = encoder->vocab;

    for (size_t i = 0; i < n; i++) {
        if (vocab->byte_token[(uint8_t)bytes[i]] != TSR_TOKEN_NONE)
            continue;
        if (vocab->unk == TSR_TOKEN_NONE)
            return tsr_fail(
                TSR_ERR_UNSUPPORTED,
                "the text has a byte 0x%02X, for which this vocabulary has neither a token nor an "
                "unknown token; remove it",
                (uint8_t)bytes[i]);
        tsr_encoder_emit(encoder, vocab->unk);
        return TSR_OK;
    }
    for (size_t i = 0; i < n; i++)
        tsr_encoder_emit(encoder, vocab->byte_token[(uint8_t)bytes[i]]);
    return TSR_OK;
}

/* The initial symbols of a word: bytes, or characters. */
static void add_symbols(tsr_encoder *encoder, const char *word, size_t bytes)
{
    const tsr_vocab *vocab = encoder->vocab;

    if (tsr_vocab_spells_bytes(vocab)) {
        for (size_t i = 0; i < bytes; i++)
            tsr_merger_add(&encoder->merger, 1, vocab->byte_token[(uint8_t)word[i]]);
        return;
    }
    for (size_t at = 0; at < bytes;) {
        size_t length = tsr_utf8_sequence(word + at, bytes - at, NULL);
        length = length ? length : 1;
        int32_t id = tsr_vocab_find(vocab, word + at, length);
        id = tsr_vocab_is(vocab, id, TSR_TOKEN_TEXT_TYPES) ? id : TSR_TOKEN_NONE;
        tsr_merger_add(&encoder->merger, (uint32_t)length, id);
        at += length;
    }
}

/* Store the merged tokens of a word, if there is room. */
static void remember(const tsr_merger *merger, const char *word, size_t bytes, tsr_cached_word *place)
{
    uint8_t n = 0;
    for (int32_t i = 0; i >= 0; i = merger->symbols[i].next) {
        if (n == TSR_WORD_CACHE_MAX_TOKENS || merger->symbols[i].token == TSR_TOKEN_NONE)
            return;
        place->bytes = 0; /* invalidates the tokens of the previous word */
        place->tokens[n++] = merger->symbols[i].token;
    }
    place->n_tokens = n;
    place->bytes = (uint8_t)bytes;
    memcpy(place->word, word, bytes);
}

/* A piece of text, 1 byte or more, that merges independently. */
static tsr_status merge_word(tsr_encoder *encoder, const char *word, size_t bytes)
{
    tsr_status status = TSR_OK;
    tsr_merger *merger = &encoder->merger;
    tsr_cached_word *place = tsr_word_cache_place(&encoder->words, word, bytes);

    if (place && place->bytes == bytes && !memcmp(place->word, word, bytes)) {
        for (uint8_t i = 0; i < place->n_tokens; i++)
            tsr_encoder_emit(encoder, place->tokens[i]);
        return TSR_OK;
    }
    TSR_TRY(tsr_merger_begin(merger, word, bytes));
    add_symbols(encoder, word, bytes);
    tsr_merger_run(merger);
    for (int32_t i = 0; i >= 0; i = merger->symbols[i].next) {
        const tsr_symbol *symbol = &merger->symbols[i];
        if (symbol->token != TSR_TOKEN_NONE)
            tsr_encoder_emit(encoder, symbol->token);
        else
            TSR_TRY(emit_bytes(encoder, word + symbol->begin, symbol->bytes));
    }
    if (place)
        remember(merger, word, bytes, place);
out:
    return status;
}

/* The normal token that is this whole word, or TSR_TOKEN_NONE. */
static tsr_status find_whole_word(tsr_encoder *encoder, const char *word, size_t bytes, int32_t *id_out)
{
    tsr_status status = TSR_OK;
    const tsr_vocab *vocab = encoder->vocab;
    int32_t id = TSR_TOKEN_NONE;

    if (!tsr_vocab_spells_bytes(vocab)) {
        id = tsr_vocab_find(vocab, word, bytes);
    } else if (bytes <= vocab->max_piece_bytes) {
        size_t n = 0;
        TSR_TRY(tsr_encoder_reserve(encoder, 2 * bytes));
        for (size_t i = 0; i < bytes; i++)
            n += tsr_vocab_spell_byte((uint8_t)word[i], encoder->scratch + n);
        id = tsr_vocab_find(vocab, encoder->scratch, n);
    }
    *id_out = tsr_vocab_is(vocab, id, TSR_TOKEN_TYPE_BIT(TSR_TOKEN_NORMAL)) ? id : TSR_TOKEN_NONE;
out:
    return status;
}

/* A word from the pre-tokenizer. */
static tsr_status add_word(void *user, const char *word, size_t bytes)
{
    tsr_status status = TSR_OK;
    tsr_encoder *encoder = user;
    unsigned flags = encoder->vocab->pre->flags;
    int32_t whole = TSR_TOKEN_NONE;

    /* A pre-tokenizer with this flag makes words of newlines only. */
    if (flags & TSR_PRE_WHOLE_WORDS || (flags & TSR_PRE_WHOLE_NEWLINES && *word == '\n'))
        TSR_TRY(find_whole_word(encoder, word, bytes, &whole));
    if (whole != TSR_TOKEN_NONE)
        tsr_encoder_emit(encoder, whole);
    else
        TSR_TRY(merge_word(encoder, word, bytes));
out:
    return status;
}

static size_t mark_space(char *out)
{
    memcpy(out, TSR_SPACE_MARK, TSR_SPACE_MARK_BYTES);
    return TSR_SPACE_MARK_BYTES;
}

/* Text with its spaces marked, in the scratch memory, and one more in front if `prefix`. */
static tsr_status mark_spaces(tsr_encoder *encoder, const char *text, size_t bytes, bool prefix,
                              size_t *n_out)
{
    tsr_status status = TSR_OK;
    size_t n = 0;

    TSR_TRY(tsr_encoder_reserve(encoder, (bytes + 1) * TSR_SPACE_MARK_BYTES));
    if (prefix)
        n = mark_space(encoder->scratch);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == ' ')
            n += mark_space(encoder->scratch + n);
        else
            encoder->scratch[n++] = text[i];
    }
    *n_out = n;
out:
    return status;
}

static tsr_status add_sentence(tsr_encoder *encoder, const char *text, size_t bytes, bool after_special)
{
    tsr_status status = TSR_OK;
    size_t n;

    TSR_TRY(mark_spaces(encoder, text, bytes, after_special && encoder->vocab->add_space_prefix, &n));
    const char *marked = encoder->scratch;

    /* If no token extends into the next word, words merge independently; short ones are cached. */
    size_t begin = 0;
    for (size_t at = 1; encoder->vocab->words_stand_alone && at < n; at++) {
        bool marks_word = tsr_vocab_is_mark(marked + at, n - at);
        bool after_mark = at >= TSR_SPACE_MARK_BYTES &&
                          tsr_vocab_is_mark(marked + at - TSR_SPACE_MARK_BYTES, TSR_SPACE_MARK_BYTES);
        if (!marks_word || after_mark)
            continue;
        TSR_TRY(merge_word(encoder, marked + begin, at - begin));
        begin = at;
    }
    TSR_TRY(merge_word(encoder, marked + begin, n - begin));
out:
    return status;
}

tsr_status tsr_encoder_add_text(tsr_encoder *encoder, const char *text, size_t bytes, bool after_special)
{
    tsr_status status = TSR_OK;

    if (bytes == 0)
        return TSR_OK;
    if (!encoder->words.places && bytes >= MIN_CACHED_TEXT)
        TSR_TRY(tsr_word_cache_create(&encoder->words));
    if (encoder->vocab->kind == TSR_VOCAB_SPM)
        return add_sentence(encoder, text, bytes, after_special);
    if (encoder->vocab->kind == TSR_VOCAB_UGM)
        return tsr_unigram_add(encoder, text, bytes);
    if (encoder->vocab->kind == TSR_VOCAB_WPM)
        return tsr_pretokenizer_split(encoder->pretokenizer, text, bytes, tsr_wordpiece_add, encoder);
    if (!tsr_vocab_spells_bytes(encoder->vocab)) {
        TSR_TRY(mark_spaces(encoder, text, bytes, false, &bytes));
        text = encoder->scratch;
    }
    TSR_TRY(tsr_pretokenizer_split(encoder->pretokenizer, text, bytes, add_word, encoder));
out:
    return status;
}
