/* What the tests of sessions have in common: a small model on disk, and rows of logits compared bit by bit
 * with the plainest way to compute them: one sequence, one device, one token at a time. */
#ifndef TSR_TESTS_SESSION_CHECK_H
#define TSR_TESTS_SESSION_CHECK_H

#include "support/directory.h"
#include "support/runner.h"

/* The embedding of token SESSION_POISON is not a number, so that a step with it leaves the exact range. */
enum { SESSION_VOCAB = 320, SESSION_POISON = 319, SESSION_MAX_TOKENS = 160 };

/* The F16 model; written by the group's setup, of two layers or of seven. */
extern char session_model_path[DIRECTORY_PATH];
int session_model_write(void **state);
int session_deep_model_write(void **state);

tsr_model_config session_config(int64_t n_ctx, int n_seq_max, int n_batch, int n_outputs_max);

/* Any tokens but the poison. */
void session_random_tokens(uint64_t *seed, int32_t *tokens, int64_t n);

/* Logits of every token, [n][SESSION_VOCAB], with the KV types of `types` (NULL: the defaults); the caller
 * frees them. */
float *session_plain_logits(const tsr_model_config *types, const int32_t *tokens, int64_t n);

/* Fail unless row[SESSION_VOCAB] has the bits of the plain logits at a position. */
void session_assert_row(const float *row, const float *plain, int64_t position);

/* Append at most SESSION_MAX_TOKENS tokens to one sequence with the logits of the last one. */
tsr_status session_append(tsr_session *session, int seq, const int32_t *tokens, int64_t n, float *logits);

#endif
