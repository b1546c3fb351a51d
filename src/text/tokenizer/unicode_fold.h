/* Text without accents and in small letters, for uncased vocabularies. */
#ifndef TSR_TEXT_TOKENIZER_UNICODE_FOLD_H
#define TSR_TEXT_TOKENIZER_UNICODE_FOLD_H

#include <stdbool.h>
#include <stddef.h>

/* Most bytes that one byte of text can become: a Hangul syllable of three bytes becomes three letters of
 * three. */
enum { TSR_UNICODE_FOLD_GROWTH = 3 };

/* Write text[bytes] without white space and control characters to out[bytes * TSR_UNICODE_FOLD_GROWTH],
 * and if `fold` without accents and in small letters. Bytes that are not UTF-8 are dropped. Returns the
 * number of bytes written. */
size_t tsr_unicode_fold(const char *text, size_t bytes, bool fold, char *out);

#endif
