/* UTF-8 sequences, as RFC 3629 (section 4) allows them: no overlong forms, no surrogates, nothing past
 * U+10FFFF. */
#ifndef TSR_TEXT_TOKENIZER_UTF8_H
#define TSR_TEXT_TOKENIZER_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length (1..4) of the well-formed sequence that text[bytes] starts with, 0 if there is none. Then *cut_out
 * tells the reason (may be NULL): true if more bytes could still complete it, false if none can. */
size_t tsr_utf8_sequence(const char *text, size_t bytes, bool *cut_out);

/* Length of the longest well-formed beginning of text[bytes]. */
size_t tsr_utf8_valid_prefix(const char *text, size_t bytes);

#endif
