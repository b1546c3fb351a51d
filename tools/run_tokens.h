/* The tokens of a prompt, with or without a chat template, and of further messages. */
#ifndef TSR_TOOLS_RUN_TOKENS_H
#define TSR_TOOLS_RUN_TOKENS_H

#include "run.h"

typedef struct run_tokens {
    int32_t *at; /* [n] */
    int64_t n;
} run_tokens;

/* All functions return TOOL_GO_ON or an exit code, after an error message. */

/* `text` alone, or in the engine's chat template with the options' system message. */
int run_tokens_of_prompt(const run_engine *engine, const run_options *options, const char *text, size_t bytes,
                         run_tokens *tokens_out);

/* A user's message after a computed answer. */
int run_tokens_of_reply(const run_engine *engine, const char *text, size_t bytes, run_tokens *tokens_out);

/* Check that the tokens fit into the context after `n_before` others. */
int run_tokens_check(const run_tokens *tokens, int64_t n_before, int64_t n_ctx);

void run_tokens_free(run_tokens *tokens);

#endif
