/* Reading a vocabulary from a file. */
#ifndef TSR_TEXT_TOKENIZER_VOCAB_LOAD_H
#define TSR_TEXT_TOKENIZER_VOCAB_LOAD_H

#include "text/tokenizer/vocab.h"

/* Statuses as tsr_tokenizer_create() documents them. */
tsr_status tsr_vocab_load(const tsr_gguf *gguf, tsr_vocab **vocab_out);
void tsr_vocab_destroy(tsr_vocab *vocab);

/* The last step of tsr_vocab_load() before the tables of special tokens: reads their ids, the flags, and
 * the tokens that end a generation. */
tsr_status tsr_vocab_read_specials(const tsr_gguf *gguf, tsr_vocab *vocab);

#endif
