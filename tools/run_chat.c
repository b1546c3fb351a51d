/* tsr run -i: a conversation, line by line.
 *
 * Previous messages stay in the session; only a new message and the end of the previous answer are encoded
 * and computed. So an answer that was stopped early is continued from its last token. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interrupt.h"
#include "run_decode.h"
#include "run_lines.h"
#include "run_tokens.h"
#include "tsr.h"

/* A message of one or several lines. */
typedef struct chat_input {
    run_lines *lines;
    char *text; /* the message */
    size_t bytes, capacity;
} chat_input;

static bool append(chat_input *in, const char *text, size_t bytes)
{
    if (in->bytes + bytes + 1 > in->capacity) {
        size_t capacity = 2 * (in->bytes + bytes + 1);
        char *grown = realloc(in->text, capacity);
        if (!grown)
            return false;
        in->text = grown;
        in->capacity = capacity;
    }
    memcpy(in->text + in->bytes, text, bytes);
    in->bytes += bytes;
    in->text[in->bytes] = '\0';
    return true;
}

/* A message is a line; a backslash at its end continues it in the next line. */
static run_line read_message(chat_input *in)
{
    in->bytes = 0;
    for (bool more = false;; more = true) {
        const char *line;
        size_t n;
        run_line got = run_lines_read(in->lines, more ? "  " : "> ", &line, &n);
        if (got != RUN_LINE)
            return got == RUN_LINE_END && more ? RUN_LINE : got;
        bool goes_on = n > 0 && line[n - 1] == '\\';
        if (!append(in, line, n - goes_on) || (goes_on && !append(in, "\n", 1)))
            return RUN_LINE_NO_MEMORY;
        if (!goes_on)
            return RUN_LINE;
    }
}

/* One conversation. */
typedef struct conversation {
    run_decoder decoder;
    bool begun; /* the session ends with an answer, perhaps an incomplete one */
} conversation;

static int64_t length(const conversation *c)
{
    return tsr_session_length(c->decoder.engine->session, 0);
}

/* If layers with a sliding window, or recurrent layers, do not allow removing the message, the previous
 * messages are removed, too. */
static tsr_status take_back(conversation *c, int64_t n_before)
{
    tsr_session *session = c->decoder.engine->session;
    tsr_status status = tsr_session_trim(session, 0, n_before);
    if (status != TSR_ERR_INVALID)
        return status;
    fprintf(stderr, "tsr run: the message cannot be removed (%s), so the conversation starts again\n",
            tsr_last_error());
    c->begun = false;
    return tsr_session_trim(session, 0, 0);
}

/* A message that was not computed completely is removed. Stopping an answer is not a failure. */
static int answer(conversation *c, const run_tokens *tokens)
{
    run_decoder *d = &c->decoder;
    struct sigaction before;
    int64_t n_before = length(c);
    d->at_start = true;
    d->last = '\0';
    tool_interrupted = 0;
    run_decoder_hear_interrupts(d, false, &before);
    run_decoder_check_context(d, tokens->n);
    tsr_status status = run_decoder_feed(d, tokens->at, tokens->n);
    if (status == TSR_OK && tool_interrupted)
        status = take_back(c, n_before);
    else if (status == TSR_OK) {
        c->begun = true;
        status = run_decoder_continue(d);
    }
    run_decoder_end_line(d);
    if (tool_interrupted && !d->last && d->terminal)
        fprintf(stderr, "\n"); /* after the ^C of the terminal */
    sigaction(SIGINT, &before, NULL);
    tool_interrupted = 0;
    if (status == TSR_OK && length(c) == d->n_ctx)
        fprintf(
            stderr,
            "tsr run: the context of %lld tokens is full; /clear starts a new conversation, and after the "
            "end (Ctrl-D) -c %lld makes room for twice as much\n",
            (long long)d->n_ctx, 2 * (long long)d->n_ctx);
    return status == TSR_OK ? TOOL_GO_ON : tool_fail("run", status);
}

static int clear(conversation *c)
{
    tsr_status status = tsr_session_trim(c->decoder.engine->session, 0, 0);
    tsr_sampler_reset(c->decoder.engine->sampler);
    c->begun = false;
    return status == TSR_OK ? TOOL_GO_ON : tool_fail("run", status);
}

static int say(conversation *c, const char *text, size_t bytes)
{
    const run_decoder *d = &c->decoder;
    run_tokens tokens = {0};
    int code = c->begun ? run_tokens_of_reply(d->engine, text, bytes, &tokens)
                        : run_tokens_of_prompt(d->engine, d->options, text, bytes, &tokens);
    if (code == TOOL_GO_ON && run_tokens_check(&tokens, length(c), d->n_ctx) == TOOL_GO_ON)
        code = answer(c, &tokens);
    run_tokens_free(&tokens);
    return code;
}

/* The next message: of several processes the first reads it. False after an error message. */
static bool next_message(const conversation *c, chat_input *in, run_line *got_out)
{
    const tool_processes *processes = c->decoder.engine->processes;
    const bool is_first = tool_processes_is_first(processes);
    int got = RUN_LINE_END;
    struct sigaction before;
    if (is_first)
        tool_hear_interrupts(false, false, &before);
    else
        tool_hear_interrupts_together(false, false, &before);
    if (is_first && !ferror(stdout))
        got = (int)read_message(in);
    const bool shared = tool_processes_share_text(processes, &got, &in->text, &in->bytes);
    sigaction(SIGINT, &before, NULL);
    tool_interrupted = 0;
    *got_out = (run_line)got;
    return shared;
}

static int converse(conversation *c, chat_input *in)
{
    int code = TOOL_GO_ON;
    while (code == TOOL_GO_ON) {
        run_line got;
        if (!next_message(c, in, &got))
            return TOOL_EXIT_FAILED;
        if (got == RUN_LINE_END)
            break;
        if (got == RUN_LINE_NO_MEMORY)
            return run_fail_memory();
        if (got == RUN_LINE_INTERRUPTED)
            fprintf(stderr, "\n(Ctrl-D ends)\n");
        else if (strcmp(in->text, "/clear") == 0)
            code = clear(c);
        else if (in->bytes)
            code = say(c, in->text, in->bytes);
    }
    return code == TOOL_GO_ON ? TOOL_EXIT_OK : code;
}

int run_converse(const run_engine *engine, const run_options *options, const char *first, size_t first_bytes,
                 run_result *result)
{
    conversation c = {0};
    const bool terminal =
        tool_processes_is_first(engine->processes) && isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    chat_input in = {.lines = run_lines_open(terminal, !options->no_history)};
    int code = run_decoder_open(&c.decoder, engine, options, result);
    if (code == TOOL_GO_ON && !in.lines)
        code = run_fail_memory();
    c.decoder.keep_last = true;
    if (terminal)
        fprintf(stderr, "Ctrl-C stops an answer, /clear starts a new conversation, Ctrl-D ends.\n");
    if (code == TOOL_GO_ON && first)
        code = say(&c, first, first_bytes);
    if (code == TOOL_GO_ON)
        code = converse(&c, &in);
    if (terminal)
        fprintf(stderr, "\n");
    result->end = ferror(stdout) ? "cannot write the text" : "end of the conversation";
    free(in.text);
    run_lines_close(in.lines);
    run_decoder_close(&c.decoder);
    return code;
}
