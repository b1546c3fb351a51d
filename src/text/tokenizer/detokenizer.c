/* Text from a stream of tokens: bytes are pushed, whole UTF-8 characters are returned.
 *
 * At most three bytes are held back (the beginning of a four-byte character), so one buffer, sized once
 * for the longest piece, serves every push. */
#include <string.h>

#include "core/input/utf8.h"
#include "core/mem.h"
#include "text/tokenizer/tokenizer.h"

enum { MAX_HELD = 3 };

static const char replacement[3] = {'\xEF', '\xBF', '\xBD'}; /* U+FFFD */

struct tsr_detokenizer {
    const tsr_tokenizer *tokenizer;
    size_t n_held;
    char *in;  /* [n_held] held back, then room for the longest piece */
    char *out; /* worst case: every byte of `in` becomes a U+FFFD */
};

tsr_status tsr_detokenizer_create(const tsr_tokenizer *tokenizer, tsr_detokenizer **detokenizer_out)
{
    tsr_status status = TSR_OK;
    tsr_detokenizer *detokenizer = NULL;

    if (!tokenizer || !detokenizer_out)
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_detokenizer_create: tokenizer and detokenizer_out must not be NULL");
    size_t in_bytes = (size_t)tokenizer->vocab->max_piece_bytes + MAX_HELD;
    TSR_TRY(TSR_NEW(&detokenizer, "the detokenizer"));
    TSR_TRY(tsr_mem_array(in_bytes, 1, "the detokenizer", &detokenizer->in));
    TSR_TRY(tsr_mem_array(in_bytes, sizeof replacement, "the detokenizer", &detokenizer->out));
    detokenizer->tokenizer = tokenizer;
    *detokenizer_out = detokenizer;
    detokenizer = NULL;
out:
    tsr_detokenizer_destroy(detokenizer);
    return status;
}

void tsr_detokenizer_destroy(tsr_detokenizer *detokenizer)
{
    if (!detokenizer)
        return;
    tsr_mem_free(detokenizer->out);
    tsr_mem_free(detokenizer->in);
    tsr_mem_free(detokenizer);
}

/* Move complete characters from in[n] to out; the rest is held back, unless this is the end. */
static tsr_bytes flush(tsr_detokenizer *d, size_t n, bool end)
{
    size_t at = 0, written = 0;

    while (at < n) {
        bool cut;
        size_t length = tsr_utf8_sequence(d->in + at, n - at, &cut);
        if (cut && !end)
            break;
        memcpy(d->out + written, length ? d->in + at : replacement, length ? length : sizeof replacement);
        written += length ? length : sizeof replacement;
        at += length ? length : 1;
    }
    d->n_held = n - at;
    memmove(d->in, d->in + at, d->n_held);
    return (tsr_bytes){d->out, written};
}

tsr_bytes tsr_detokenizer_push(tsr_detokenizer *detokenizer, int32_t token)
{
    tsr_bytes piece = tsr_tokenizer_piece(detokenizer->tokenizer, token);
    memcpy(detokenizer->in + detokenizer->n_held, piece.data, piece.bytes);
    return flush(detokenizer, detokenizer->n_held + piece.bytes, false);
}

tsr_bytes tsr_detokenizer_finish(tsr_detokenizer *detokenizer)
{
    return flush(detokenizer, detokenizer->n_held, true);
}
