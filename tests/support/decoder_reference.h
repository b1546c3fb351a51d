/* A decoder-only transformer in double precision, written from the models' papers and reference
 * implementations (named in decoder_reference.c), to compare the library's logits with. It shares with the
 * library the reading of files and the decoding of quantized rows, which have tests of their own, and nothing
 * else: token by token, head by head, no caches, no devices. */
#ifndef TSR_TESTS_DECODER_REFERENCE_H
#define TSR_TESTS_DECODER_REFERENCE_H

#include <stdint.h>

/* Logits of every token of a text, [n][n_vocab], n_ctx being the context that the model is opened for. The
 * caller frees them. Fails the test for an architecture it does not know. */
double *decoder_reference(const char *path, const int32_t *tokens, int64_t n, int64_t n_ctx);

#endif
