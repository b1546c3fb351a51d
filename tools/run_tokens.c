/* Tokens of prompts and messages; see run_tokens.h. */
#include "run_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "run_decode.h"
#include "tsr.h"

/* The text to encode, or messages, of which the first n_done are computed already. */
typedef struct source {
    const char *text;
    size_t bytes;
    const tsr_chat_message *messages; /* NULL: `text` is encoded */
    size_t n, n_done;
} source;

static tsr_status encode(const run_engine *engine, const source *s, int32_t *tokens, size_t capacity,
                         size_t *n)
{
    const unsigned flags = TSR_ENCODE_ADD_SPECIAL | TSR_ENCODE_PARSE_SPECIAL;
    if (s->messages)
        return tsr_chat_encode(engine->chat, engine->tokenizer, s->messages, s->n, s->n_done,
                               TSR_CHAT_ADD_GENERATION_PROMPT, tokens, capacity, n);
    return tsr_tokenizer_encode(engine->tokenizer, s->text, s->bytes, flags, tokens, capacity, n);
}

static int make(const run_engine *engine, const source *s, run_tokens *tokens_out)
{
    size_t n;
    tsr_status status = encode(engine, s, NULL, 0, &n);
    if (status != TSR_OK)
        return tool_fail("run", status);
    int32_t *tokens = malloc((n + 1) * sizeof *tokens);
    if (!tokens)
        return run_fail_memory();
    status = encode(engine, s, tokens, n, &n);
    if (status != TSR_OK) {
        free(tokens);
        return tool_fail("run", status);
    }
    *tokens_out = (run_tokens){tokens, (int64_t)n};
    return TOOL_GO_ON;
}

int run_tokens_of_prompt(const run_engine *engine, const run_options *options, const char *text, size_t bytes,
                         run_tokens *tokens_out)
{
    const char *system = options->system ? options->system : "";
    const tsr_chat_message messages[] = {{"system", system, strlen(system)}, {"user", text, bytes}};
    size_t skip = options->system ? 0 : 1;
    source s = {.text = text, .bytes = bytes};
    if (engine->chat)
        s = (source){.messages = messages + skip, .n = 2 - skip};
    return make(engine, &s, tokens_out);
}

int run_tokens_of_reply(const run_engine *engine, const char *text, size_t bytes, run_tokens *tokens_out)
{
    const tsr_chat_message messages[] = {{"assistant", "", 0}, {"user", text, bytes}};
    const source s = {.messages = messages, .n = 2, .n_done = 1};
    return make(engine, &s, tokens_out);
}

int run_tokens_check(const run_tokens *tokens, int64_t n_before, int64_t n_ctx)
{
    if (tokens->n == 0) {
        fprintf(stderr,
                "tsr run: the prompt is empty and the model has no token that begins a text; give -p TEXT\n");
        return TOOL_EXIT_FAILED;
    }
    if (n_before + tokens->n <= n_ctx)
        return TOOL_GO_ON;
    if (n_before && tokens->n <= n_ctx)
        fprintf(stderr,
                "tsr run: the message has %lld token%s, and %lld of %lld tokens of context are left; /clear "
                "starts a new conversation, after which it fits\n",
                (long long)tokens->n, tool_plural(tokens->n), (long long)(n_ctx - n_before),
                (long long)n_ctx);
    else
        fprintf(
            stderr,
            "tsr run: the prompt is %lld tokens long, but the context holds %lld; use -c %lld or more, or "
            "a shorter prompt\n",
            (long long)tokens->n, (long long)n_ctx, (long long)tokens->n + 1);
    return TOOL_EXIT_FAILED;
}

void run_tokens_free(run_tokens *tokens)
{
    free(tokens->at);
    *tokens = (run_tokens){0};
}
