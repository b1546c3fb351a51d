/* Encoding of text by either kind of vocabulary. */
#ifndef TSR_MODEL_ENCODE_H
#define TSR_MODEL_ENCODE_H

#include "text/tokenizer/bpe_merge.h"
#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/vocab.h"
#include "text/tokenizer/word_cache.h"

/* One call of tsr_tokenizer_encode(): scratch memory, and the tokens so far. Tokens past the capacity are
 * counted but not stored. */
typedef struct tsr_encoder {
    const tsr_vocab *vocab;
    const tsr_pretokenizer *pretokenizer; /* BPE */
    tsr_merger merger;
    tsr_word_cache words;
    char *scratch; /* BPE: a word's spelling; SPM: the text with its spaces marked */
    size_t scratch_bytes;
    int32_t *tokens; /* [capacity] */
    size_t capacity, n;
} tsr_encoder;

void tsr_encoder_emit(tsr_encoder *encoder, int32_t token);

/* Make encoder->scratch hold this many bytes; what is in it may be lost. */
tsr_status tsr_encoder_reserve(tsr_encoder *encoder, size_t bytes);

/* Append the tokens of text[bytes], less than 1 GiB, in which no special token is looked for.
 * `after_special`: it stands at the beginning or behind a special token. */
tsr_status tsr_encoder_add_text(tsr_encoder *encoder, const char *text, size_t bytes, bool after_special);

void tsr_encoder_release(tsr_encoder *encoder);

#endif
