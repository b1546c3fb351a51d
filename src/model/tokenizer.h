/* What is behind tsr_tokenizer. */
#ifndef TSR_MODEL_TOKENIZER_H
#define TSR_MODEL_TOKENIZER_H

#include "model/pretokenizer.h"
#include "model/vocab.h"

struct tsr_tokenizer {
    tsr_vocab *vocab;
    tsr_pretokenizer *pretokenizer; /* NULL for SentencePiece */
};

#endif
