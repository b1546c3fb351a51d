/* WordPiece, the vocabularies of BERT and related models. */
#ifndef TSR_TEXT_TOKENIZER_WORDPIECE_H
#define TSR_TEXT_TOKENIZER_WORDPIECE_H

#include "text/tokenizer/encoder.h"

/* Words end at white space, and around every punctuation mark and Chinese character. */
extern const tsr_pretokenizer_rule tsr_wordpiece_rule;

/* Append the tokens of a word, 1 byte or more, from a pre-tokenizer of that rule; a tsr_word_fn whose user is
 * a tsr_encoder. */
tsr_status tsr_wordpiece_add(void *encoder, const char *word, size_t bytes);

#endif
