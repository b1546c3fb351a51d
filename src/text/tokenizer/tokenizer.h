/* Definition of tsr_tokenizer. */
#ifndef TSR_TEXT_TOKENIZER_TOKENIZER_H
#define TSR_TEXT_TOKENIZER_TOKENIZER_H

#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/vocab.h"

/* Bytes [begin, end) of a text. */
typedef struct tsr_text_range {
    size_t begin, end;
} tsr_text_range;

/* A flag in addition to tsr_encode_flags: add BOS at the beginning if the model requires it, but nothing
 * at the end. */
enum { TSR_ENCODE_ADD_BOS = 4 };

/* As tsr_tokenizer_encode(), but control tokens are not recognised if they overlap plain[n_plain], which
 * are ordered and disjoint. */
tsr_status tsr_tokenizer_encode_ranges(const tsr_tokenizer *tokenizer, const char *text, size_t text_bytes,
                                       const tsr_text_range *plain, size_t n_plain, unsigned flags,
                                       int32_t *tokens, size_t capacity, size_t *n_out);

struct tsr_tokenizer {
    tsr_vocab *vocab;
    tsr_pretokenizer *pretokenizer; /* NULL for SentencePiece */
};

#endif
