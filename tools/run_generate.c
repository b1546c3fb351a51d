/* Generating once: the continuation of a prompt, or of one question in a chat template. */
#include <stdlib.h>

#include "interrupt.h"
#include "run_decode.h"
#include "run_tokens.h"
#include "tsr.h"

static int continue_prompt(run_decoder *d, const char *prompt, size_t prompt_bytes, const run_tokens *tokens)
{
    run_decoder_check_context(d, tokens->n);
    const bool shown = !d->options->hide_prompt && !d->engine->chat;
    const bool later =
        d->terminal && tool_progress_is_on(&d->reading); /* the bar would erase its last line */
    if (shown && !later)
        run_decoder_write(d, prompt, prompt_bytes);
    d->at_start = d->engine->chat != NULL;
    tsr_status status = run_decoder_feed(d, tokens->at, tokens->n);
    if (shown && later)
        run_decoder_write(d, prompt, prompt_bytes);
    if (status == TSR_OK)
        status = run_decoder_continue(d);
    run_decoder_end_line(d);
    return status == TSR_OK ? TOOL_EXIT_OK : tool_fail("run", status);
}

int run_generate(const run_engine *engine, const run_options *options, const char *prompt,
                 size_t prompt_bytes, run_result *result)
{
    run_decoder d;
    run_tokens tokens = {0};
    struct sigaction before;
    int code = run_decoder_open(&d, engine, options, result);
    if (code == TOOL_GO_ON)
        code = run_tokens_of_prompt(engine, options, prompt, prompt_bytes, &tokens);
    if (code == TOOL_GO_ON)
        code = run_tokens_check(&tokens, 0, d.n_ctx);
    if (code == TOOL_GO_ON) {
        run_decoder_hear_interrupts(&d, true, &before);
        code = continue_prompt(&d, prompt, prompt_bytes, &tokens);
        sigaction(SIGINT, &before, NULL);
        if (tool_interrupted && !ferror(stdout)) {
            result->interrupted = true;
            result->end = "interrupted";
        }
    }
    run_tokens_free(&tokens);
    run_decoder_close(&d);
    return code;
}
