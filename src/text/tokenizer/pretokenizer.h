/* Pre-tokenizers: how a byte-level BPE vocabulary wants text cut into words before merging. */
#ifndef TSR_TEXT_TOKENIZER_PRETOKENIZER_H
#define TSR_TEXT_TOKENIZER_PRETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

enum { TSR_PRETOKENIZER_MAX_STAGES = 6 };

/* What a rule says besides its patterns, or-ed together. */
typedef enum tsr_pretokenizer_flags {
    TSR_PRE_WHOLE_WORDS = 1,      /* a word that is a token is taken as it is, whatever the merges say */
    TSR_PRE_ADDS_BOS = 2,         /* unless tokenizer.ggml.add_bos_token says otherwise */
    TSR_PRE_DIGITS_IN_THREES = 4, /* the first stage's matches are cut into threes, counted from the right */
    TSR_PRE_RAW_TEXT = 8, /* tokens are spelled as SentencePiece does: no byte alphabet, '▁' for ' ' */
    TSR_PRE_WHOLE_NEWLINES = 16 /* as WHOLE_WORDS, for words of newlines only */
} tsr_pretokenizer_flags;

/* One way of cutting. Each stage cuts every piece that the stage before left into the matches of its pattern
 * and what lies between them. */
typedef struct tsr_pretokenizer_rule {
    const char *names;                                 /* values of tokenizer.ggml.pre, separated by spaces */
    unsigned flags;                                    /* tsr_pretokenizer_flags */
    const char *patterns[TSR_PRETOKENIZER_MAX_STAGES]; /* PCRE2, UTF; unused stages are NULL */
} tsr_pretokenizer_rule;

/* The rule of that name. TSR_ERR_UNSUPPORTED: there is none
 * (message: the name, and one name of every rule). */
tsr_status tsr_pretokenizer_find(const char *name, size_t name_bytes, const tsr_pretokenizer_rule **rule_out);

/* The names of the i-th rule, separated by spaces; NULL past the last. */
const char *tsr_pretokenizer_names(int i);

/* A compiled rule. Read-only once created: any number of threads may use it. */
typedef struct tsr_pretokenizer tsr_pretokenizer;

tsr_status tsr_pretokenizer_create(const tsr_pretokenizer_rule *rule, tsr_pretokenizer **pretokenizer_out);
void tsr_pretokenizer_destroy(tsr_pretokenizer *pretokenizer);

/* Takes one word, 1 byte or more, pointing into the text; a status other than TSR_OK ends the cutting. */
typedef tsr_status (*tsr_word_fn)(void *user, const char *word, size_t bytes);

/* Call `fn` for every word of text[bytes], from left to right; the words are the whole text. Bytes that are
 * not UTF-8 form words of their own. TSR_ERR_INVALID: a pattern's match limit was reached (message:
 * where). */
tsr_status tsr_pretokenizer_split(const tsr_pretokenizer *pretokenizer, const char *text, size_t bytes,
                                  tsr_word_fn fn, void *user);

#endif
