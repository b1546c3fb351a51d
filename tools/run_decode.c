/* The decode loop, for tokens of any origin; see run_decode.h. */
#include "run_decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tsr/gguf.h>

#include "interrupt.h"
#include "run_losses.h"
#include "tsr.h"

/* In pieces of whole UTF-8 characters, whose bytes would be replaced one by one. */
static void write_clean(const char *text, size_t bytes)
{
    char piece[256];
    for (size_t n; bytes > 0; text += n, bytes -= n) {
        n = bytes < sizeof piece ? bytes : sizeof piece;
        while (n < bytes && n > sizeof piece - 4 && (text[n] & 0xC0) == 0x80)
            n--;
        memcpy(piece, text, n);
        tsr_clean_text(piece, n, "\n\t");
        fwrite(piece, 1, n, stdout);
    }
}

void run_decoder_write(run_decoder *d, const char *text, size_t bytes)
{
    if (bytes == 0)
        return;
    if (d->terminal)
        write_clean(text, bytes);
    else
        fwrite(text, 1, bytes, stdout);
    fflush(stdout);
    d->last = text[bytes - 1];
}

int run_fail_memory(void)
{
    fprintf(stderr, "tsr run: out of memory\n");
    return TOOL_EXIT_FAILED;
}

static int find_eog(run_decoder *d)
{
    int32_t n = tsr_tokenizer_n_vocab(d->engine->tokenizer);
    d->eog = malloc((size_t)n * sizeof *d->eog);
    if (!d->eog)
        return run_fail_memory();
    for (int32_t token = 0; token < n && token < d->n_vocab; token++)
        if (tsr_tokenizer_is_eog(d->engine->tokenizer, token))
            d->eog[d->n_eog++] = token;
    return TOOL_GO_ON;
}

/* Tokens of context that the model knows the positions of. INT64_MAX with RoPE scaling, whose keys differ in
 * what they say about the context. */
static int64_t count_trained(const tsr_gguf *gguf, const tsr_model_info *model)
{
    static const char *const keys[] = {"rope.scaling.factor", "rope.scale_linear"};
    char name[80];
    for (int i = 0; i < TOOL_COUNT(keys); i++) {
        double factor;
        snprintf(name, sizeof name, "%s.%s", model->architecture, keys[i]);
        if (tsr_gguf_has_key(gguf, name) && tsr_gguf_get_f64(gguf, name, &factor) == TSR_OK && factor > 1)
            return INT64_MAX;
    }
    return tsr_gguf_find_tensor(gguf, "rope_factors_long.weight") ? INT64_MAX : model->n_ctx_train;
}

/* Once. */
static void warn_of_context(run_decoder *d, int64_t n_tokens)
{
    if (n_tokens <= d->n_trained)
        return;
    fprintf(stderr,
            "tsr run: warning: the model was trained for %lld tokens of context and has no RoPE scaling, so "
            "text beyond them loses its sense; use -c %lld, or a model for longer contexts\n",
            (long long)d->n_trained, (long long)d->n_trained);
    d->n_trained = INT64_MAX;
}

void run_decoder_check_context(run_decoder *d, int64_t n)
{
    int64_t n_new = d->options->n_predict > 0 ? d->options->n_predict : 0;
    int64_t n_all = tsr_session_length(d->engine->session, 0) + n + n_new;
    warn_of_context(d, n_all < d->n_ctx ? n_all : d->n_ctx);
}

/* Stages compute chunks of one call at the same time, and have less to do at its beginning and end. */
static int64_t tokens_of_call(const tsr_plan *plan, int64_t n_batch)
{
    enum { BATCHES = 4 };
    tsr_plan_stage second;
    return tsr_plan_stage_at(plan, 1, &second) && second.n_layers > 0 ? BATCHES * n_batch : n_batch;
}

int run_decoder_open(run_decoder *d, const run_engine *engine, const run_options *options, run_result *result)
{
    tsr_model_info model;
    tsr_plan_info plan;
    *d = (run_decoder){
        .engine = engine, .options = options, .result = result, .terminal = isatty(STDOUT_FILENO) == 1};
    d->stop.strings = &options->stop;
    d->reading = (tool_progress){.what = "prompt", .quiet = options->engine.quiet};
    tsr_model_get_info(engine->model, &model);
    tsr_plan_get_info(tsr_model_plan(engine->model), &plan);
    d->n_vocab = model.n_vocab;
    d->n_ctx = plan.n_ctx;
    d->n_call = tokens_of_call(tsr_model_plan(engine->model), plan.n_batch);
    d->n_trained = count_trained(tsr_model_gguf(engine->model), &model);
    d->logits = malloc((size_t)d->n_vocab * sizeof *d->logits);
    d->silent = calloc((size_t)d->n_call, sizeof *d->silent);
    d->tokens_before = calloc((size_t)d->n_call, sizeof *d->tokens_before);
    if (!d->logits || !d->silent || !d->tokens_before)
        return run_fail_memory();
    int code = find_eog(d);
    if (code != TOOL_GO_ON)
        return code;
    d->n_candidates =
        tsr_sampler_n_candidates(engine->sampler, d->n_vocab, options->ignore_eos ? d->n_eog : 0);
    tsr_status status = tsr_detokenizer_create(engine->tokenizer, &d->stream);
    return status == TSR_OK ? TOOL_GO_ON : tool_fail("run", status);
}

void run_decoder_close(run_decoder *d)
{
    tsr_detokenizer_destroy(d->stream);
    free(d->logits);
    free(d->silent);
    free(d->tokens_before);
    free(d->eog);
}

static bool is_together(const run_decoder *d)
{
    return d->engine->processes->transport != NULL;
}

void run_decoder_hear_interrupts(const run_decoder *d, bool once, struct sigaction *before_out)
{
    if (is_together(d))
        tool_hear_interrupts_together(tool_processes_is_first(d->engine->processes), once, before_out);
    else
        tool_hear_interrupts(once, true, before_out);
}

/* Whether nothing more can be written. Of several processes one would know it alone. */
static bool is_broken(const run_decoder *d)
{
    return !is_together(d) && ferror(stdout);
}

/* A decode that the first process has cancelled fails in all processes. */
static void cancel_if_wanted(const run_decoder *d)
{
    if (is_together(d) && (tool_interrupt_wanted || ferror(stdout)))
        tsr_session_cancel(d->engine->session);
    tool_interrupt_wanted = 0;
}

static tsr_status decode_once(run_decoder *d, const tsr_batch *batch)
{
    cancel_if_wanted(d);
    return d->n_candidates
               ? tsr_session_decode_candidates(d->engine->session, batch, d->n_candidates, d->candidates)
               : tsr_session_decode(d->engine->session, batch, d->logits);
}

/* Append tokens, and compute what the sampler needs; with --survive also without what is lost. */
static tsr_status decode(run_decoder *d, const tsr_batch *batch)
{
    const int64_t length = tsr_session_length(d->engine->session, 0);
    tsr_status status = decode_once(d, batch);
    while (status == TSR_ERR_DEVICE_LOST && d->options->survive) {
        status = run_losses_go_on(d->engine->rt, d->engine->processes);
        if (status != TSR_OK)
            break;
        if (tsr_session_length(d->engine->session, 0) < length)
            status = decode_once(d, &d->before); /* of which another process has lost the result */
        if (status == TSR_OK)
            status = decode_once(d, batch);
    }
    if (status == TSR_ERR_CANCELLED)
        tool_interrupted = 1;
    if (status == TSR_OK) {
        memcpy(d->tokens_before, batch->tokens, (size_t)batch->n_tokens * sizeof *batch->tokens);
        d->before =
            (tsr_batch){.n_tokens = batch->n_tokens, .tokens = d->tokens_before, .outputs = batch->outputs};
    }
    return status;
}

/* In several calls, so that Ctrl-C is handled during a long prompt; the bits are the same. */
tsr_status run_decoder_feed(run_decoder *d, const int32_t *tokens, int64_t n)
{
    tsr_status status = TSR_OK;
    double start = tool_clock();
    const uint64_t traced = tool_trace_now(d->engine->trace);
    int64_t n_done = 0;
    tool_progress_show(0, &d->reading);
    while (n_done < n && status == TSR_OK && !tool_interrupted) {
        bool last = n - n_done <= d->n_call;
        tsr_batch batch = {.n_tokens = last ? n - n_done : d->n_call,
                           .tokens = tokens + n_done,
                           .outputs = last ? NULL : d->silent};
        status = decode(d, &batch);
        n_done += status == TSR_OK ? batch.n_tokens : 0;
        tool_progress_show((double)n_done / (double)n, &d->reading);
    }
    tool_progress_end(&d->reading);
    tool_trace_add_phase(d->engine->trace, traced, "prompt");
    for (int64_t i = 0; i < n_done; i++)
        tsr_sampler_accept(d->engine->sampler, tokens[i]);
    d->result->prompt_s += tool_clock() - start;
    d->result->n_prompt += n_done;
    return status == TSR_ERR_CANCELLED ? TSR_OK : status;
}

/* Let the split follow the devices; -v has the library's reasons. */
static tsr_status adapt(run_decoder *d)
{
    const tsr_plan *plan;
    tsr_plan_device device;
    bool changed;
    const tsr_status status = tsr_model_adapt(d->engine->model, &changed);
    if (!changed)
        return status;
    plan = tsr_model_plan(d->engine->model);
    fprintf(stderr, "tsr: run: the split follows the speed of the devices:");
    for (int i = 0; tsr_plan_get_device(plan, i, &device) == TSR_OK; i++)
        fprintf(stderr, "%s %s %.1f %%", i ? "," : "", device.name, 100 * device.achieved[TSR_CLASS_FFN]);
    fprintf(stderr, "\n");
    return status;
}

static tsr_status compute_token(run_decoder *d, int32_t token)
{
    double start = tool_clock();
    const uint64_t traced = tool_trace_now(d->engine->trace);
    tsr_batch batch = {.n_tokens = 1, .tokens = &token};
    tsr_status status = decode(d, &batch);
    if (status == TSR_ERR_CANCELLED && d->keep_last) /* the token has been written */
        status = decode(d, &batch);
    if (status == TSR_OK && d->options->adapt)
        status = adapt(d);
    tool_trace_add_phase(d->engine->trace, traced, "token");
    d->result->decode_s += tool_clock() - start;
    d->result->n_decoded += status == TSR_OK;
    return status == TSR_ERR_CANCELLED ? TSR_OK : status;
}

static tsr_status sample(run_decoder *d, int32_t *token_out)
{
    const int n_forbidden = d->options->ignore_eos ? d->n_eog : 0;
    for (int i = 0; i < n_forbidden; i++) {
        d->logits[d->eog[i]] = -INFINITY;
        for (int c = 0; c < d->n_candidates; c++)
            if (d->candidates[c].id == d->eog[i])
                d->candidates[c].logit = -INFINITY;
    }
    return d->n_candidates ? tsr_sampler_choose(d->engine->sampler, d->candidates, d->n_candidates, token_out)
                           : tsr_sampler_sample(d->engine->sampler, d->logits, d->n_vocab, token_out);
}

/* `text` up to a stop string. */
static void write_answer(run_decoder *d, tsr_bytes text)
{
    tsr_bytes parts[2];
    d->stopped = run_stop_push(&d->stop, text, parts);
    for (int i = 0; i < 2; i++)
        run_decoder_write(d, parts[i].data, parts[i].bytes);
}

static void write_token(run_decoder *d, int32_t token)
{
    tsr_bytes text = tsr_detokenizer_push(d->stream, token);
    if (d->at_start && text.bytes && *text.data == ' ') {
        text.data++;
        text.bytes--;
    }
    d->at_start = false;
    write_answer(d, text);
}

tsr_status run_decoder_continue(run_decoder *d)
{
    int64_t limit = d->options->n_predict < 0 ? INT64_MAX : d->options->n_predict;
    d->stopped = false;
    for (int64_t i = 0; !tool_interrupted; i++) {
        int32_t token;
        if (i == limit) {
            d->result->end = "requested number of tokens";
            return TSR_OK;
        }
        tsr_status status = sample(d, &token);
        if (status != TSR_OK)
            return status;
        if (tsr_tokenizer_is_eog(d->engine->tokenizer, token)) {
            d->result->end = "end of text";
            return TSR_OK;
        }
        write_token(d, token);
        bool full = tsr_session_length(d->engine->session, 0) == d->n_ctx;
        d->result->end = is_broken(d) ? "the text cannot be written"
                         : d->stopped ? "stop string"
                         : full       ? "context full; use a larger -c"
                                      : NULL;
        bool goes_on = !d->result->end && i + 1 < limit;
        if (!is_broken(d) && !full && (goes_on || d->keep_last))
            status = compute_token(d, token);
        if (d->result->end || status != TSR_OK)
            return status;
    }
    return TSR_OK;
}

void run_decoder_end_line(run_decoder *d)
{
    tsr_bytes rest = tsr_detokenizer_finish(d->stream);
    if (!d->stopped)
        write_answer(d, rest);
    rest = run_stop_finish(&d->stop);
    run_decoder_write(d, rest.data, rest.bytes);
    if (d->last && d->last != '\n')
        run_decoder_write(d, "\n", 1);
    warn_of_context(d, tsr_session_length(d->engine->session, 0));
}
