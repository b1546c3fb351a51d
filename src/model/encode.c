/* From text to tokens, once special tokens have been cut out of it.
 *
 * Byte-level BPE: the pre-tokenizer's words, one symbol per byte. SentencePiece: the whole text with its
 * spaces marked, one symbol per character; what stays a character that no token has falls back to byte
 * tokens.
 */
#include "model/encode.h"

#include <string.h>

#include "core/mem.h"
#include "model/utf8.h"

void tsr_encoder_emit(tsr_encoder *encoder, int32_t token)
{
    if (encoder->n < encoder->capacity)
        encoder->tokens[encoder->n] = token;
    encoder->n++;
}

void tsr_encoder_release(tsr_encoder *encoder)
{
    tsr_merger_release(&encoder->merger);
    tsr_mem_free(encoder->scratch);
    encoder->scratch = NULL;
}

static tsr_status reserve_scratch(tsr_encoder *encoder, size_t bytes)
{
    if (bytes <= encoder->scratch_bytes)
        return TSR_OK;
    char *grown = tsr_mem_realloc(encoder->scratch, bytes, 1);
    if (!grown)
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory: %zu bytes for encoding text; split the text",
                        bytes);
    encoder->scratch = grown;
    encoder->scratch_bytes = bytes;
    return TSR_OK;
}

/* A symbol that is no token: byte by byte if every byte has a token, as one unknown token otherwise. */
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
                "unknown token; leave it out",
                (uint8_t)bytes[i]);
        tsr_encoder_emit(encoder, vocab->unk);
        return TSR_OK;
    }
    for (size_t i = 0; i < n; i++)
        tsr_encoder_emit(encoder, vocab->byte_token[(uint8_t)bytes[i]]);
    return TSR_OK;
}

static tsr_status merge_and_emit(tsr_encoder *encoder)
{
    tsr_status status = TSR_OK;
    tsr_merger *merger = &encoder->merger;

    tsr_merger_run(merger);
    for (int32_t i = merger->n_symbols ? 0 : -1; i >= 0; i = merger->symbols[i].next) {
        const tsr_symbol *symbol = &merger->symbols[i];
        if (symbol->token != TSR_TOKEN_NONE)
            tsr_encoder_emit(encoder, symbol->token);
        else
            TSR_TRY(emit_bytes(encoder, merger->text + symbol->begin, symbol->bytes));
    }
out:
    return status;
}

/* The normal token that is this whole word, or TSR_TOKEN_NONE. */
static tsr_status find_whole_word(tsr_encoder *encoder, const char *word, size_t bytes, int32_t *id_out)
{
    tsr_status status = TSR_OK;
    const tsr_vocab *vocab = encoder->vocab;
    int32_t id = TSR_TOKEN_NONE;

    if (bytes <= vocab->max_piece_bytes) {
        size_t n = 0;
        TSR_TRY(reserve_scratch(encoder, 2 * bytes));
        for (size_t i = 0; i < bytes; i++)
            n += tsr_vocab_spell_byte((uint8_t)word[i], encoder->scratch + n);
        id = tsr_vocab_find(vocab, encoder->scratch, n);
    }
    *id_out = tsr_vocab_is(vocab, id, TSR_TOKEN_TYPE_BIT(TSR_TOKEN_NORMAL)) ? id : TSR_TOKEN_NONE;
out:
    return status;
}

static tsr_status add_word(void *user, const char *word, size_t bytes)
{
    tsr_status status = TSR_OK;
    tsr_encoder *encoder = user;
    const tsr_vocab *vocab = encoder->vocab;

    if (vocab->pre->whole_words) {
        int32_t id;
        TSR_TRY(find_whole_word(encoder, word, bytes, &id));
        if (id != TSR_TOKEN_NONE) {
            tsr_encoder_emit(encoder, id);
            return TSR_OK;
        }
    }
    TSR_TRY(tsr_merger_begin(&encoder->merger, word, bytes));
    for (size_t i = 0; i < bytes; i++)
        tsr_merger_add(&encoder->merger, 1, vocab->byte_token[(uint8_t)word[i]]);
    TSR_TRY(merge_and_emit(encoder));
out:
    return status;
}

/* A stretch of marked text that merging can treat by itself. */
static tsr_status add_marked(tsr_encoder *encoder, const char *text, size_t bytes)
{
    tsr_status status = TSR_OK;

    TSR_TRY(tsr_merger_begin(&encoder->merger, text, bytes));
    for (size_t at = 0; at < bytes;) {
        size_t length = tsr_utf8_sequence(text + at, bytes - at, NULL);
        length = length ? length : 1;
        int32_t id = tsr_vocab_find(encoder->vocab, text + at, length);
        id = tsr_vocab_is(encoder->vocab, id, TSR_TOKEN_TEXT_TYPES) ? id : TSR_TOKEN_NONE;
        tsr_merger_add(&encoder->merger, (uint32_t)length, id);
        at += length;
    }
    TSR_TRY(merge_and_emit(encoder));
out:
    return status;
}

static size_t mark_space(char *out)
{
    memcpy(out, TSR_SPACE_MARK, TSR_SPACE_MARK_BYTES);
    return TSR_SPACE_MARK_BYTES;
}

static tsr_status add_sentence(tsr_encoder *encoder, const char *text, size_t bytes, bool after_special)
{
    tsr_status status = TSR_OK;
    size_t n = 0;

    TSR_TRY(reserve_scratch(encoder, (bytes + 1) * TSR_SPACE_MARK_BYTES));
    char *marked = encoder->scratch;
    if (after_special && encoder->vocab->add_space_prefix)
        n = mark_space(marked);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == ' ')
            n += mark_space(marked + n);
        else
            marked[n++] = text[i];
    }

    /* Where no token reaches into the next word, words merge independently; short ones stay in the cache. */
    size_t begin = 0;
    for (size_t at = 1; encoder->vocab->words_stand_alone && at < n; at++) {
        bool marks_word = tsr_vocab_is_mark(marked + at, n - at);
        bool after_mark = at >= TSR_SPACE_MARK_BYTES &&
                          tsr_vocab_is_mark(marked + at - TSR_SPACE_MARK_BYTES, TSR_SPACE_MARK_BYTES);
        if (!marks_word || after_mark)
            continue;
        TSR_TRY(add_marked(encoder, marked + begin, at - begin));
        begin = at;
    }
    TSR_TRY(add_marked(encoder, marked + begin, n - begin));
out:
    return status;
}

tsr_status tsr_encoder_add_text(tsr_encoder *encoder, const char *text, size_t bytes, bool after_special)
{
    if (bytes == 0)
        return TSR_OK;
    if (encoder->vocab->kind == TSR_VOCAB_SPM)
        return add_sentence(encoder, text, bytes, after_special);
    return tsr_pretokenizer_split(encoder->pretokenizer, text, bytes, add_word, encoder);
}
