/* Encoding of text by the kind of its vocabulary. */
#ifndef TSR_TEXT_TOKENIZER_ENCODE_H
#define TSR_TEXT_TOKENIZER_ENCODE_H

#include "text/tokenizer/encoder.h"

/* Append the tokens of text[bytes], less than 1 GiB, in which no special token is looked for.
 * `after_special`: it stands at the beginning or behind a special token. */
tsr_status tsr_encoder_add_text(tsr_encoder *encoder, const char *text, size_t bytes, bool after_special);

#endif
