/* SentencePiece's unigram vocabularies ("t5" in GGUF): every token has a log-probability, and a text is
 * encoded as the tokens with the greatest product of probabilities (Kudo 2018, "Subword regularization"). */
#ifndef TSR_TEXT_TOKENIZER_UNIGRAM_H
#define TSR_TEXT_TOKENIZER_UNIGRAM_H

#include "text/tokenizer/charsmap.h"
#include "text/tokenizer/encoder.h"
#include "text/tokenizer/vocab.h"

/* A token that can result from text. */
typedef struct tsr_unigram_entry {
    const char *text; /* of the vocabulary */
    uint32_t bytes;
    int32_t id;
    float score; /* log-probability; 0 for a token defined by a user, which always wins */
} tsr_unigram_entry;

typedef struct tsr_unigram {
    tsr_unigram_entry *entries; /* [n_entries] by text */
    size_t n_entries;
    double unknown_score; /* of a character that is no token */
    tsr_charsmap charsmap;
    bool merges_spaces; /* several consecutive spaces are one, and those at the end are dropped */
    bool space_behind;  /* a space is added at the end of the text instead of the beginning */
} tsr_unigram;

/* Read the keys of this kind of vocabulary, after its tokens and special tokens. */
tsr_status tsr_unigram_load(const tsr_gguf *gguf, tsr_vocab *vocab);
void tsr_unigram_destroy(tsr_unigram *unigram);

/* Append the tokens of text[bytes], in which special tokens are not recognised. */
tsr_status tsr_unigram_add(tsr_encoder *encoder, const char *text, size_t bytes);

#endif
