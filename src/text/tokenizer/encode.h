/* Encoding of text by the kind of its vocabulary. */
#ifndef TSR_TEXT_TOKENIZER_ENCODE_H
#define TSR_TEXT_TOKENIZER_ENCODE_H

#include "text/tokenizer/encoder.h"

/* Append the tokens of text[bytes], less than 1 GiB, in which special tokens are not recognised.
 * `after_special`: the text is at the beginning or after a special token. */
tsr_status tsr_encoder_add_text(tsr_encoder *encoder, const char *text, size_t bytes, bool after_special);

#endif
