/* SentencePiece's unigram vocabularies ("t5" in GGUF): every token has a log-probability, and a text becomes
 * the tokens whose probabilities have the greatest product (Kudo 2018, "Subword regularization"). */
#ifndef TSR_TEXT_TOKENIZER_UNIGRAM_H
#define TSR_TEXT_TOKENIZER_UNIGRAM_H

#include "text/tokenizer/charsmap.h"
#include "text/tokenizer/encoder.h"
#include "text/tokenizer/vocab.h"

/* A token that text can become. */
typedef struct tsr_unigram_entry {
    const char *text; /* of the vocabulary */
    uint32_t bytes;
    int32_t id;
    float score; /* log-probability; 0 where a user defined the token, so that it always wins */
} tsr_unigram_entry;

typedef struct tsr_unigram {
    tsr_unigram_entry *entries; /* [n_entries] by text */
    size_t n_entries;
    double unknown_score; /* of a character that is no token */
    tsr_charsmap charsmap;
    bool merges_spaces; /* several in a row are one, and those at the end none */
    bool space_behind;  /* a space is put behind the text instead of in front of it */
} tsr_unigram;

/* Read what a vocabulary of this kind has beside its tokens and special tokens, which it has already. */
tsr_status tsr_unigram_load(const tsr_gguf *gguf, tsr_vocab *vocab);
void tsr_unigram_destroy(tsr_unigram *unigram);

/* Append the tokens of text[bytes], in which no special token is looked for. */
tsr_status tsr_unigram_add(tsr_encoder *encoder, const char *text, size_t bytes);

#endif
