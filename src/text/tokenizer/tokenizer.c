/* The public functions of the tokenizer: special tokens around and inside the text, and decoding. */
#include <tsr/tokenizer.h>

#include <string.h>

#include "core/mem.h"
#include "text/tokenizer/encode.h"
#include "text/tokenizer/vocab_load.h"
#include "text/tokenizer/tokenizer.h"

enum { MAX_TEXT_BYTES = 1 << 30 }; /* with every space marked, offsets still fit into 32 bits */

tsr_status tsr_tokenizer_create(const tsr_gguf *gguf, tsr_tokenizer **tokenizer_out)
{
    tsr_status status = TSR_OK;
    tsr_tokenizer *tokenizer = NULL;

    if (!gguf || !tokenizer_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_tokenizer_create: gguf and tokenizer_out must not be NULL");
    TSR_TRY(TSR_NEW(&tokenizer, "the tokenizer"));
    TSR_TRY(tsr_vocab_load(gguf, &tokenizer->vocab));
    if (tokenizer->vocab->pre)
        TSR_TRY(tsr_pretokenizer_create(tokenizer->vocab->pre, &tokenizer->pretokenizer));
    *tokenizer_out = tokenizer;
    tokenizer = NULL;
out:
    tsr_tokenizer_destroy(tokenizer);
    return status;
}

void tsr_tokenizer_destroy(tsr_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    tsr_pretokenizer_destroy(tokenizer->pretokenizer);
    tsr_vocab_destroy(tokenizer->vocab);
    tsr_mem_free(tokenizer);
}

static bool is_ascii_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Input of encoding: control tokens are not recognised in plain[n_plain]. */
typedef struct encode_input {
    const char *text;
    size_t bytes;
    const tsr_text_range *plain;
    size_t n_plain;
} encode_input;

/* The special token at text[at], or TSR_TOKEN_NONE. *plain is the first range that ends after `at`. */
static int32_t find_special(const tsr_vocab *vocab, const encode_input *in, size_t at, unsigned types,
                            size_t *plain)
{
    const unsigned harmless = types & TSR_TOKEN_TYPE_BIT(TSR_TOKEN_USER_DEFINED);
    size_t bytes = in->bytes - at;

    while (*plain < in->n_plain && in->plain[*plain].end <= at)
        ++*plain;
    if (*plain < in->n_plain && in->plain[*plain].begin <= at)
        types = harmless;
    if (!(vocab->first_byte[(uint8_t)in->text[at]] & types))
        return TSR_TOKEN_NONE;
    int32_t id = tsr_vocab_find_special(vocab, in->text + at, bytes, types);
    if (*plain < in->n_plain && types != harmless && id != TSR_TOKEN_NONE &&
        at + vocab->tokens[id].text_bytes > in->plain[*plain].begin)
        id = tsr_vocab_find_special(vocab, in->text + at, bytes, harmless);
    return id;
}

static tsr_status encode_text(tsr_encoder *encoder, const encode_input *in, unsigned flags)
{
    tsr_status status = TSR_OK;
    const tsr_vocab *vocab = encoder->vocab;
    unsigned types = flags & TSR_ENCODE_PARSE_SPECIAL ? TSR_TOKEN_SPECIAL_TYPES
                                                      : TSR_TOKEN_TYPE_BIT(TSR_TOKEN_USER_DEFINED);
    size_t begin = 0; /* of the text not encoded yet, always after a special token */
    size_t plain = 0;

    if (flags & (TSR_ENCODE_ADD_SPECIAL | TSR_ENCODE_ADD_BOS) && vocab->add_bos)
        tsr_encoder_emit(encoder, vocab->bos);
    for (size_t at = 0; at < in->bytes;) {
        int32_t id = find_special(vocab, in, at, types, &plain);
        if (id == TSR_TOKEN_NONE) {
            at++;
            continue;
        }
        TSR_TRY(tsr_encoder_add_text(encoder, in->text + begin, at - begin, true));
        tsr_encoder_emit(encoder, id);
        at += vocab->tokens[id].text_bytes;
        while (vocab->tokens[id].strips_right && at < in->bytes && is_ascii_space(in->text[at]))
            at++;
        begin = at;
    }
    TSR_TRY(tsr_encoder_add_text(encoder, in->text + begin, in->bytes - begin, true));
    if (flags & TSR_ENCODE_ADD_SPECIAL && vocab->add_eos)
        tsr_encoder_emit(encoder, vocab->eos);
out:
    return status;
}

tsr_status tsr_tokenizer_encode_ranges(const tsr_tokenizer *tokenizer, const char *text, size_t text_bytes,
                                       const tsr_text_range *plain, size_t n_plain, unsigned flags,
                                       int32_t *tokens, size_t capacity, size_t *n_out)
{
    tsr_status status = TSR_OK;
    tsr_encoder encoder = {0};
    const encode_input in = {text, text_bytes, plain, n_plain};

    if (text_bytes >= MAX_TEXT_BYTES)
        return tsr_fail(TSR_ERR_INVALID, "the text has %zu bytes; the limit is below %d; encode it in parts",
                        text_bytes, MAX_TEXT_BYTES);
    encoder.vocab = encoder.merger.vocab = tokenizer->vocab;
    encoder.pretokenizer = tokenizer->pretokenizer;
    encoder.tokens = tokens;
    encoder.capacity = tokens ? capacity : 0;
    TSR_TRY(encode_text(&encoder, &in, flags));
    if (tokens && encoder.n > capacity)
        TSR_TRY(tsr_fail(TSR_ERR_FULL, "the text needs room for %zu token%s, not %zu", encoder.n,
                         tsr_plural((long long)encoder.n), capacity));
    *n_out = encoder.n;
out:
    tsr_encoder_release(&encoder);
    return status;
}

tsr_status tsr_tokenizer_encode(const tsr_tokenizer *tokenizer, const char *text, size_t text_bytes,
                                unsigned flags, int32_t *tokens, size_t capacity, size_t *n_out)
{
    if (!tokenizer || (!text && text_bytes) || !n_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_tokenizer_encode: tokenizer, text and n_out must not be NULL");
    flags &= TSR_ENCODE_ADD_SPECIAL | TSR_ENCODE_PARSE_SPECIAL;
    return tsr_tokenizer_encode_ranges(tokenizer, text, text_bytes, NULL, 0, flags, tokens, capacity, n_out);
}

tsr_status tsr_tokenizer_decode(const tsr_tokenizer *tokenizer, const int32_t *tokens, size_t n,
                                unsigned flags, char *text, size_t capacity, size_t *bytes_out)
{
    if (!tokenizer || (!tokens && n) || !bytes_out)
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_tokenizer_decode: tokenizer, tokens and bytes_out must not be NULL");

    const tsr_vocab *vocab = tokenizer->vocab;
    const unsigned shown = TSR_TOKEN_TYPE_BIT(TSR_TOKEN_CONTROL) | TSR_TOKEN_TYPE_BIT(TSR_TOKEN_UNKNOWN);
    bool at_start = true; /* positions where encoding adds its space: at the beginning, and after special
                           * tokens */
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        if (!tsr_vocab_has(vocab, tokens[i]))
            return tsr_fail(TSR_ERR_INVALID, "tokens[%zu] is %d; the vocabulary has tokens 0 to %d", i,
                            tokens[i], vocab->n_tokens - 1);
        bool special = tsr_vocab_is(vocab, tokens[i], TSR_TOKEN_SPECIAL_TYPES);
        tsr_bytes piece = tsr_tokenizer_piece(tokenizer, tokens[i]);
        if (flags & TSR_DECODE_SHOW_SPECIAL && tsr_vocab_is(vocab, tokens[i], shown))
            piece = tsr_tokenizer_token_text(tokenizer, tokens[i]);
        if (at_start && !special && vocab->add_space_prefix && piece.bytes && piece.data[0] == ' ') {
            piece.data++;
            piece.bytes--;
        }
        at_start = special;
        if (text && piece.bytes && total + piece.bytes <= capacity)
            memcpy(text + total, piece.data, piece.bytes);
        total += piece.bytes;
    }
    if (text && total > capacity)
        return tsr_fail(TSR_ERR_FULL, "the text needs room for %zu bytes, not %zu", total, capacity);
    *bytes_out = total;
    return TSR_OK;
}

tsr_bytes tsr_tokenizer_piece(const tsr_tokenizer *tokenizer, int32_t token)
{
    const tsr_vocab *vocab = tokenizer->vocab;
    if (!tsr_vocab_has(vocab, token))
        return (tsr_bytes){"", 0};
    const tsr_vocab_token *t = &vocab->tokens[token];
    return (tsr_bytes){vocab->bytes + t->piece, t->piece_bytes};
}

tsr_bytes tsr_tokenizer_token_text(const tsr_tokenizer *tokenizer, int32_t token)
{
    const tsr_vocab *vocab = tokenizer->vocab;
    if (!tsr_vocab_has(vocab, token))
        return (tsr_bytes){"", 0};
    const tsr_vocab_token *t = &vocab->tokens[token];
    return (tsr_bytes){vocab->bytes + t->text, t->text_bytes};
}

int32_t tsr_tokenizer_find(const tsr_tokenizer *tokenizer, const char *text, size_t text_bytes)
{
    return tsr_vocab_find(tokenizer->vocab, text, text_bytes);
}

int32_t tsr_tokenizer_n_vocab(const tsr_tokenizer *tokenizer)
{
    return tokenizer->vocab->n_tokens;
}

int32_t tsr_tokenizer_bos(const tsr_tokenizer *tokenizer)
{
    return tokenizer->vocab->bos;
}

int32_t tsr_tokenizer_eos(const tsr_tokenizer *tokenizer)
{
    return tokenizer->vocab->eos;
}

int32_t tsr_tokenizer_eot(const tsr_tokenizer *tokenizer)
{
    return tokenizer->vocab->eot;
}

int32_t tsr_tokenizer_eom(const tsr_tokenizer *tokenizer)
{
    return tokenizer->vocab->eom;
}

int32_t tsr_tokenizer_unk(const tsr_tokenizer *tokenizer)
{
    return tokenizer->vocab->unk;
}

int32_t tsr_tokenizer_pad(const tsr_tokenizer *tokenizer)
{
    return tokenizer->vocab->pad;
}

bool tsr_tokenizer_adds_bos(const tsr_tokenizer *tokenizer)
{
    return tokenizer->vocab->add_bos;
}

bool tsr_tokenizer_adds_eos(const tsr_tokenizer *tokenizer)
{
    return tokenizer->vocab->add_eos;
}

bool tsr_tokenizer_is_control(const tsr_tokenizer *tokenizer, int32_t token)
{
    return tsr_vocab_is(tokenizer->vocab, token, TSR_TOKEN_TYPE_BIT(TSR_TOKEN_CONTROL));
}

bool tsr_tokenizer_is_eog(const tsr_tokenizer *tokenizer, int32_t token)
{
    return tsr_vocab_has(tokenizer->vocab, token) && tokenizer->vocab->tokens[token].eog;
}
