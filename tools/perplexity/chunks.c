/* The logits of a text, chunk by chunk and PERPLEXITY_OUTPUTS tokens at a time; see perplexity.h. With the
 * exact reduction the bits are the same for any such division. */
#include <stdlib.h>
#include <string.h>

#include "perplexity/perplexity.h"
#include "options.h"
#include "tsr.h"

/* Of the sessions that compute a text. */
typedef struct run {
    tsr_session *const *sessions; /* [2]; the second is NULL without a reference */
    int64_t n_vocab;
    float *logits[2]; /* [PERPLEXITY_OUTPUTS][n_vocab] each */
    bool *silent;     /* [n_chunk] false: no logits wanted */
    int32_t *tokens;  /* [n_chunk] of the present chunk */
} run;

static tsr_status compute(const run *r, int64_t begin, int64_t end, bool outputs)
{
    bool wanted[PERPLEXITY_OUTPUTS];
    memset(wanted, 1, sizeof wanted);
    const tsr_batch batch = {
        .n_tokens = end - begin, .tokens = r->tokens + begin, .outputs = outputs ? wanted : r->silent};
    for (int s = 0; s < 2 && r->sessions[s]; s++) {
        const tsr_status status = tsr_session_decode(r->sessions[s], &batch, r->logits[s]);
        if (status != TSR_OK)
            return status;
    }
    return TSR_OK;
}

/* The last token is predicted but not computed. */
static tsr_status add_chunk(const run *r, int64_t n_chunk, perplexity_sums *sums)
{
    const int64_t first = perplexity_first(n_chunk) - 1;
    tsr_status status = first > 0 ? compute(r, 0, first, false) : TSR_OK;
    for (int64_t begin = first; begin < n_chunk - 1 && status == TSR_OK; begin += PERPLEXITY_OUTPUTS) {
        const int64_t left = n_chunk - 1 - begin, n = left < PERPLEXITY_OUTPUTS ? left : PERPLEXITY_OUTPUTS;
        status = compute(r, begin, begin + n, true);
        for (int64_t i = 0; i < n && status == TSR_OK; i++)
            perplexity_add(sums, r->logits[0] + i * r->n_vocab,
                           r->logits[1] ? r->logits[1] + i * r->n_vocab : NULL, r->n_vocab,
                           r->tokens[begin + i + 1]);
    }
    for (int s = 0; s < 2 && r->sessions[s] && status == TSR_OK; s++)
        status = tsr_session_trim(r->sessions[s], 0, 0);
    return status;
}

int perplexity_compute(tsr_session *const sessions[2], int64_t n_vocab, const perplexity_text *text,
                       tool_progress *progress, perplexity_sums *sums)
{
    const size_t n_chunk = (size_t)text->n_chunk, bytes = PERPLEXITY_OUTPUTS * sizeof(float);
    run r = {.sessions = sessions, .n_vocab = n_vocab};
    r.silent = calloc(n_chunk, sizeof *r.silent);
    r.tokens = malloc(n_chunk * sizeof *r.tokens);
    r.logits[0] = malloc((size_t)n_vocab * bytes);
    r.logits[1] = sessions[1] ? malloc((size_t)n_vocab * bytes) : NULL;
    const int64_t n_counted = perplexity_counted(text);
    sums->kl = sessions[1] ? malloc((size_t)n_counted * sizeof *sums->kl) : NULL;
    const bool has_memory =
        r.silent && r.tokens && r.logits[0] && (!sessions[1] || (r.logits[1] && sums->kl));
    int code = has_memory ? TOOL_GO_ON : perplexity_fail_memory();
    for (int64_t c = 0; c < text->n_chunks && code == TOOL_GO_ON; c++) {
        memcpy(r.tokens, text->tokens + c * text->n_chunk, n_chunk * sizeof *r.tokens);
        if (text->bos >= 0)
            r.tokens[0] = text->bos;
        tool_progress_show((double)c / (double)text->n_chunks, progress);
        const tsr_status status = add_chunk(&r, text->n_chunk, sums);
        code = status == TSR_OK ? TOOL_GO_ON : tool_fail("perplexity", status);
    }
    tool_progress_end(progress);
    free(r.silent);
    free(r.tokens);
    free(r.logits[0]);
    free(r.logits[1]);
    return code;
}
