/* UTF-8 sequences as in RFC 3629 (section 4): no overlong forms, no surrogates, nothing beyond U+10FFFF. */
#ifndef TSR_CORE_INPUT_UTF8_H
#define TSR_CORE_INPUT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length (1..4) of the well-formed sequence at the start of text[bytes], 0 if there is none. Then *cut_out
 * (may be NULL) is true if more bytes could complete the sequence, and false otherwise. */
size_t tsr_utf8_sequence(const char *text, size_t bytes, bool *cut_out);

/* Whether a well-formed sequence is a control character: U+0000 to U+001F, U+007F to U+009F. */
bool tsr_utf8_is_control(const char *sequence);

/* Length of the longest well-formed beginning of text[bytes]. */
size_t tsr_utf8_valid_prefix(const char *text, size_t bytes);

#endif
