/* WordPiece: the longest token at the start of a word, then the longest at the start of the rest, to its
 * end; a word that cannot be cut in this way is one unknown token (Schuster and Nakajima 2012; as in
 * github.com/google-research/bert, tokenization.py). GGUF spells tokens at the start of a word with a '▁',
 * and tokens inside a word without. */
#include "text/tokenizer/wordpiece.h"

#include <string.h>

#include "text/tokenizer/unicode_fold.h"

/* Punctuation in addition to Unicode's: the other ASCII signs. */
#define SIGNS "\\p{P}$+<=>^`|~"

/* CJK ideographs as in BERT's BasicTokenizer (the fourth range from the end as in huggingface.co's). */
#define CHINESE                                                                                             \
    "\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{20000}-\\x{2A6DF}\\x{2A700}-\\x{2B73F}\\x{2B740}-\\x{2B81F}" \
    "\\x{2B920}-\\x{2CEAF}\\x{F900}-\\x{FAFF}\\x{2F800}-\\x{2FA1F}"
#define SPACE \
    "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"

const tsr_pretokenizer_rule tsr_wordpiece_rule = {
    .names = "wordpiece",
    .patterns = {"[" SIGNS CHINESE "]|[^" SPACE SIGNS CHINESE "]+"},
};

/* The longest token at the start of text[bytes], or TSR_TOKEN_NONE. */
static int32_t longest_token(const tsr_vocab *vocab, const char *text, size_t bytes, size_t *length_out)
{
    size_t length = bytes < vocab->max_text_bytes ? bytes : vocab->max_text_bytes;
    for (; length > 0; length--) {
        int32_t id = tsr_vocab_find(vocab, text, length);
        if (tsr_vocab_is(vocab, id, TSR_TOKEN_TEXT_TYPES)) {
            *length_out = length;
            return id;
        }
    }
    return TSR_TOKEN_NONE;
}

tsr_status tsr_wordpiece_add(void *user, const char *word, size_t bytes)
{
    tsr_status status = TSR_OK;
    tsr_encoder *encoder = user;
    const tsr_vocab *vocab = encoder->vocab;
    size_t n_before = encoder->n, length;

    TSR_TRY(tsr_encoder_reserve(encoder, TSR_SPACE_MARK_BYTES + bytes * TSR_UNICODE_FOLD_GROWTH));
    char *spelled = encoder->scratch;
    memcpy(spelled, TSR_SPACE_MARK, TSR_SPACE_MARK_BYTES);
    size_t n = tsr_unicode_fold(word, bytes, vocab->folds, spelled + TSR_SPACE_MARK_BYTES);
    if (n == 0)
        return TSR_OK; /* white space, or ignored characters */
    n += TSR_SPACE_MARK_BYTES;
    for (size_t at = 0; at < n; at += length) {
        int32_t id = longest_token(vocab, spelled + at, n - at, &length);
        if (id == TSR_TOKEN_NONE) {
            encoder->n = n_before;
            tsr_encoder_emit(encoder, vocab->unk);
            return TSR_OK;
        }
        tsr_encoder_emit(encoder, id);
    }
out:
    return status;
}
