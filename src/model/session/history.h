/* The tokens of a session's sequences: with them a KV region that was lost is computed again.
 *
 * The KV region has the lengths; what is noted behind a sequence's length is meaningless. */
#ifndef TSR_MODEL_SESSION_HISTORY_H
#define TSR_MODEL_SESSION_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

typedef struct tsr_history {
    int64_t n_ctx;
    int32_t *tokens;  /* [n_seqs][n_ctx]; pages of memory are used as they are written */
    int64_t *unknown; /* [n_seqs] first tokens of a sequence that are unknown: it was loaded from a file */
} tsr_history;

tsr_status tsr_history_create(int n_seqs, int64_t n_ctx, tsr_history *history_out);
void tsr_history_free(tsr_history *history);

/* Token `at` of a sequence. */
static inline void tsr_history_note(tsr_history *history, int seq, int64_t at, int32_t token)
{
    history->tokens[seq * history->n_ctx + at] = token;
    if (at == 0)
        history->unknown[seq] = 0;
}

/* The sequence came from elsewhere, with `length` tokens. */
void tsr_history_forget(tsr_history *history, int seq, int64_t length);

/* `to` is now a fork of `from`, which has `length` tokens. */
void tsr_history_fork(tsr_history *history, int from, int to, int64_t length);

/* The first tokens of a sequence; NULL: one of the first `length` is unknown. */
const int32_t *tsr_history_tokens(const tsr_history *history, int seq, int64_t length);

#endif
