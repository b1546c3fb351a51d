/* The tokens to be computed: of a prompt as it stands, or of messages in a chat template. */
#ifndef TSR_TOOLS_RUN_TOKENS_H
#define TSR_TOOLS_RUN_TOKENS_H

#include "run.h"

typedef struct run_tokens {
    int32_t *at; /* [n] */
    int64_t n;
} run_tokens;

/* The functions return TOOL_GO_ON or an exit code, after saying why. */

/* `text` as it stands, or in the engine's chat template with the options' system message. */
int run_tokens_of_prompt(const run_engine *engine, const run_options *options, const char *text, size_t bytes,
                         run_tokens *tokens_out);

/* A user's message behind an answer that is computed already. */
int run_tokens_of_reply(const run_engine *engine, const char *text, size_t bytes, run_tokens *tokens_out);

/* Whether they fit into the context behind `n_before` others. */
int run_tokens_check(const run_tokens *tokens, int64_t n_before, int64_t n_ctx);

void run_tokens_free(run_tokens *tokens);

#endif
