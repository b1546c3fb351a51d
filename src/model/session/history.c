/* The tokens of sequences; see history.h. */
#include "model/session/history.h"

#include <string.h>

#include "core/mem.h"

static int32_t *tokens_of(const tsr_history *history, int seq)
{
    return history->tokens + seq * history->n_ctx;
}

tsr_status tsr_history_create(int n_seqs, int64_t n_ctx, tsr_history *history_out)
{
    tsr_status status = TSR_OK;
    tsr_history history = {.n_ctx = n_ctx};
    TSR_TRY(tsr_mem_array((size_t)n_seqs, (size_t)n_ctx * sizeof *history.tokens, "the tokens of sequences",
                          &history.tokens));
    TSR_TRY(
        tsr_mem_array((size_t)n_seqs, sizeof *history.unknown, "the tokens of sequences", &history.unknown));
    *history_out = history;
    return TSR_OK;
out:
    tsr_history_free(&history);
    return status;
}

void tsr_history_free(tsr_history *history)
{
    tsr_mem_free(history->tokens);
    tsr_mem_free(history->unknown);
    *history = (tsr_history){0};
}

void tsr_history_forget(tsr_history *history, int seq, int64_t length)
{
    history->unknown[seq] = length;
}

void tsr_history_fork(tsr_history *history, int from, int to, int64_t length)
{
    if (from == to)
        return;
    memcpy(tokens_of(history, to), tokens_of(history, from), (size_t)length * sizeof *history->tokens);
    history->unknown[to] = history->unknown[from];
}

const int32_t *tsr_history_tokens(const tsr_history *history, int seq, int64_t length)
{
    return length > 0 && history->unknown[seq] > 0 ? NULL : tokens_of(history, seq);
}
