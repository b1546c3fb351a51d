/* Pre-tokenizers: the cutting of text into words before merging, for byte-level BPE vocabularies. */
#ifndef TSR_TEXT_TOKENIZER_PRETOKENIZER_H
#define TSR_TEXT_TOKENIZER_PRETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

enum { TSR_PRETOKENIZER_MAX_STAGES = 6 };

/* Properties of a rule besides its patterns, or-ed together. */
typedef enum tsr_pretokenizer_flags {
    TSR_PRE_WHOLE_WORDS = 1,      /* a word that is a token is used as a whole, regardless of merges */
    TSR_PRE_ADDS_BOS = 2,         /* unless tokenizer.ggml.add_bos_token is set */
    TSR_PRE_DIGITS_IN_THREES = 4, /* the first stage's matches are cut into threes, counted from the right */
    TSR_PRE_RAW_TEXT = 8,       /* tokens are spelled as in SentencePiece: no byte alphabet, '▁' for ' ' */
    TSR_PRE_WHOLE_NEWLINES = 16 /* as WHOLE_WORDS, for words of newlines only */
} tsr_pretokenizer_flags;

/* One rule. Each stage cuts every piece of the previous stage into the matches of its pattern and the text
 * between them. */
typedef struct tsr_pretokenizer_rule {
    const char *names;                                 /* values of tokenizer.ggml.pre, separated by spaces */
    unsigned flags;                                    /* tsr_pretokenizer_flags */
    const char *patterns[TSR_PRETOKENIZER_MAX_STAGES]; /* PCRE2, UTF; unused stages are NULL */
} tsr_pretokenizer_rule;

/* The rule with this name. TSR_ERR_UNSUPPORTED if there is none; the message lists one name of every rule. */
tsr_status tsr_pretokenizer_find(const char *name, size_t name_bytes, const tsr_pretokenizer_rule **rule_out);

/* The names of the i-th rule, separated by spaces; NULL past the last. */
const char *tsr_pretokenizer_names(int i);

/* A compiled rule. Read-only once created: any number of threads may use it. */
typedef struct tsr_pretokenizer tsr_pretokenizer;

tsr_status tsr_pretokenizer_create(const tsr_pretokenizer_rule *rule, tsr_pretokenizer **pretokenizer_out);
void tsr_pretokenizer_destroy(tsr_pretokenizer *pretokenizer);

/* Receives one word, 1 byte or more, which points into the text; a status other than TSR_OK ends the
 * cutting. */
typedef tsr_status (*tsr_word_fn)(void *user, const char *word, size_t bytes);

/* Call `fn` for every word of text[bytes], from left to right; the words cover the text. Bytes that are
 * not UTF-8 form words of their own. TSR_ERR_INVALID: a pattern's match limit was reached; the message has
 * the position. */
tsr_status tsr_pretokenizer_split(const tsr_pretokenizer *pretokenizer, const char *text, size_t bytes,
                                  tsr_word_fn fn, void *user);

#endif
