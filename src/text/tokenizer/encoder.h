/* The state of encoding one text, shared by all kinds of vocabulary. */
#ifndef TSR_TEXT_TOKENIZER_ENCODER_H
#define TSR_TEXT_TOKENIZER_ENCODER_H

#include "text/tokenizer/bpe_merge.h"
#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/vocab.h"
#include "text/tokenizer/word_cache.h"

/* State of one call of tsr_tokenizer_encode(): scratch memory, and the tokens so far. Tokens beyond the
 * capacity are only counted. */
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

/* Make encoder->scratch hold this many bytes; its contents may be lost. */
tsr_status tsr_encoder_reserve(tsr_encoder *encoder, size_t bytes);

void tsr_encoder_release(tsr_encoder *encoder);

#endif
