/* Generating: the prompt in chunks, then token by token, written as it comes. */
#include "run.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>

#include "tsr.h"

/* Everything generation allocates for itself. */
typedef struct generation {
    const run_engine *engine;
    const run_options *options;
    run_result *result;
    int64_t n_vocab, n_ctx, n_batch;
    int32_t *prompt; /* [result->n_prompt] */
    float *logits;   /* [n_vocab] */
    bool *silent;    /* [n_batch] false: no logits wanted */
    int32_t *eog;    /* [n_eog] tokens that end a text */
    int n_eog;
    tsr_detokenizer *stream;
    char last; /* byte written to stdout */
} generation;

static volatile sig_atomic_t interrupted;

/* Reset on delivery (SA_RESETHAND), so that a second Ctrl-C ends the process. */
static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

static void write_text(generation *g, const char *text, size_t bytes)
{
    if (bytes == 0)
        return;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
    g->last = text[bytes - 1];
}

/* ---- preparing ------------------------------------------------------------------------------- */

static int fail_memory(void)
{
    fprintf(stderr, "tsr run: out of memory\n");
    return TOOL_EXIT_FAILED;
}

static int tokenize(generation *g, const char *text, size_t bytes)
{
    const unsigned flags = TSR_ENCODE_ADD_SPECIAL | TSR_ENCODE_PARSE_SPECIAL;
    size_t n;
    tsr_status status = tsr_tokenizer_encode(g->engine->tokenizer, text, bytes, flags, NULL, 0, &n);
    if (status != TSR_OK)
        return tool_fail("run", status);
    if (n == 0) {
        fprintf(stderr,
                "tsr run: the prompt is empty and the model has no token to begin with; give -p TEXT\n");
        return TOOL_EXIT_FAILED;
    }
    if ((int64_t)n > g->n_ctx) {
        fprintf(stderr,
                "tsr run: the prompt is %zu tokens long, the context holds %lld; use a larger -c or a "
                "shorter prompt\n",
                n, (long long)g->n_ctx);
        return TOOL_EXIT_FAILED;
    }
    g->prompt = malloc(n * sizeof *g->prompt);
    if (!g->prompt)
        return fail_memory();
    status = tsr_tokenizer_encode(g->engine->tokenizer, text, bytes, flags, g->prompt, n, &n);
    g->result->n_prompt = (int64_t)n;
    return status == TSR_OK ? TOOL_GO_ON : tool_fail("run", status);
}

static int find_eog(generation *g)
{
    int32_t n = tsr_tokenizer_n_vocab(g->engine->tokenizer);
    g->eog = malloc((size_t)n * sizeof *g->eog);
    if (!g->eog)
        return fail_memory();
    for (int32_t token = 0; token < n && token < g->n_vocab; token++)
        if (tsr_tokenizer_is_eog(g->engine->tokenizer, token))
            g->eog[g->n_eog++] = token;
    return TOOL_GO_ON;
}

static int prepare(generation *g, const char *prompt, size_t prompt_bytes)
{
    tsr_model_info model;
    tsr_plan_info plan;
    tsr_model_describe(g->engine->model, &model);
    tsr_plan_describe(tsr_model_plan(g->engine->model), &plan);
    g->n_vocab = model.n_vocab;
    g->n_ctx = plan.n_ctx;
    g->n_batch = plan.n_batch;
    g->logits = malloc((size_t)g->n_vocab * sizeof *g->logits);
    g->silent = calloc((size_t)g->n_batch, sizeof *g->silent);
    if (!g->logits || !g->silent)
        return fail_memory();
    int code = tokenize(g, prompt, prompt_bytes);
    if (code == TOOL_GO_ON)
        code = find_eog(g);
    if (code != TOOL_GO_ON)
        return code;
    tsr_status status = tsr_detokenizer_create(g->engine->tokenizer, &g->stream);
    return status == TSR_OK ? TOOL_GO_ON : tool_fail("run", status);
}

static void release(generation *g)
{
    tsr_detokenizer_destroy(g->stream);
    free(g->prompt);
    free(g->logits);
    free(g->silent);
    free(g->eog);
}

/* ---- computing ------------------------------------------------------------------------------- */

/* Chunk by chunk, so that Ctrl-C is heard during a long prompt; the bits are the same. */
static tsr_status compute_prompt(generation *g)
{
    tsr_status status = TSR_OK;
    double start = tool_clock();
    int64_t n = g->result->n_prompt;
    for (int64_t at = 0; at < n && status == TSR_OK && !interrupted; at += g->n_batch) {
        bool last = n - at <= g->n_batch;
        tsr_batch batch = {.n_tokens = last ? n - at : g->n_batch,
                           .tokens = g->prompt + at,
                           .outputs = last ? NULL : g->silent};
        status = tsr_session_decode(g->engine->session, &batch, g->logits);
    }
    for (int64_t i = 0; i < n; i++)
        tsr_sampler_accept(g->engine->sampler, g->prompt[i]);
    g->result->prompt_s = tool_clock() - start;
    return status;
}

static tsr_status compute_token(generation *g, int32_t token)
{
    double start = tool_clock();
    tsr_batch batch = {.n_tokens = 1, .tokens = &token};
    tsr_status status = tsr_session_decode(g->engine->session, &batch, g->logits);
    g->result->decode_s += tool_clock() - start;
    g->result->n_decoded += status == TSR_OK;
    return status;
}

static tsr_status sample(generation *g, int32_t *token_out)
{
    for (int i = 0; g->options->ignore_eos && i < g->n_eog; i++)
        g->logits[g->eog[i]] = -INFINITY;
    return tsr_sampler_sample(g->engine->sampler, g->logits, g->n_vocab, token_out);
}

/* Sample, write, compute, until something ends it. */
static tsr_status continue_text(generation *g)
{
    int64_t limit = g->options->n_predict < 0 ? INT64_MAX : g->options->n_predict;
    for (int64_t i = 0; !interrupted; i++) {
        int32_t token;
        if (i == limit) {
            g->result->end = "as many tokens as asked";
            return TSR_OK;
        }
        tsr_status status = sample(g, &token);
        if (status != TSR_OK)
            return status;
        if (tsr_tokenizer_is_eog(g->engine->tokenizer, token)) {
            g->result->end = "end of text";
            return TSR_OK;
        }
        tsr_bytes text = tsr_detokenizer_push(g->stream, token);
        write_text(g, text.data, text.bytes);
        if (ferror(stdout)) {
            g->result->end = "the text cannot be written";
            return TSR_OK;
        }
        if (tsr_session_length(g->engine->session, 0) == g->n_ctx) {
            g->result->end = "context full, -c makes it larger";
            return TSR_OK;
        }
        status = i + 1 < limit ? compute_token(g, token) : TSR_OK;
        if (status != TSR_OK)
            return status;
    }
    return TSR_OK;
}

int run_generate(const run_engine *engine, const run_options *options, const char *prompt,
                 size_t prompt_bytes, run_result *result)
{
    generation g = {.engine = engine, .options = options, .result = result};
    struct sigaction before, action = {.sa_handler = on_interrupt, .sa_flags = SA_RESETHAND | SA_RESTART};
    int code = prepare(&g, prompt, prompt_bytes);
    if (code != TOOL_GO_ON) {
        release(&g);
        return code;
    }
    sigaction(SIGINT, &action, &before);
    if (!options->hide_prompt)
        write_text(&g, prompt, prompt_bytes);
    tsr_status status = compute_prompt(&g);
    if (status == TSR_OK)
        status = continue_text(&g);
    tsr_bytes rest = tsr_detokenizer_finish(g.stream);
    write_text(&g, rest.data, rest.bytes);
    if (g.last && g.last != '\n')
        write_text(&g, "\n", 1);
    sigaction(SIGINT, &before, NULL);
    if (interrupted) {
        result->interrupted = true;
        result->end = "interrupted";
    }
    release(&g);
    return status == TSR_OK ? TOOL_EXIT_OK : tool_fail("run", status);
}
