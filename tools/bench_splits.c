/* A model at different splits, measured beside what the planner predicts. A split is a view of the file, so
 * on host devices trying another one costs milliseconds; that is used to go round all splits several times,
 * and to take the best of each. What other processes do then falls on all of them, not on one. */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/session.h>

#include "format.h"
#include "options.h"
#include "tsr.h"

/* One split. Times are the best so far. */
typedef struct candidate {
    char text[96];
    bool is_planners; /* no tensor_split */
    float split[TSR_MAX_DEVICES];
    double prompt_s, decode_s; /* measured: of the prompt, of one token */
    tsr_plan_times predicted;
    int64_t granules[TSR_CLASS_COUNT]; /* of the first device */
} candidate;

/* Buffers of one open session. */
typedef struct steps {
    tsr_session *session;
    int32_t *tokens; /* any, as no kernel's time depends on them */
    float *logits;
} steps;

static int no_memory(void)
{
    fprintf(stderr, "tsr bench: out of memory for the splits and their results\n");
    return TOOL_EXIT_FAILED;
}

/* ---- one split ------------------------------------------------------------------------------- */

static tsr_status time_round(const bench *b, const steps *s, int n_decode, candidate *c)
{
    const bench_options *o = b->options;
    tsr_batch prompt = {.n_tokens = o->n_prompt, .tokens = s->tokens},
              one = {.n_tokens = 1, .tokens = s->tokens};
    tsr_status status = tsr_session_trim(s->session, 0, 0);
    double start = tool_clock();
    if (status == TSR_OK)
        status = tsr_session_decode(s->session, &prompt, s->logits);
    double between = tool_clock();
    for (int i = 0; i < n_decode && status == TSR_OK; i++)
        status = tsr_session_decode(s->session, &one, s->logits);
    double end = tool_clock();
    if (status == TSR_OK) {
        c->prompt_s = fmin(c->prompt_s, between - start);
        c->decode_s = fmin(c->decode_s, (end - between) / n_decode);
    }
    return status;
}

static void note_plan(const tsr_plan *plan, candidate *c)
{
    tsr_plan_device first;
    tsr_plan_predict(plan, &c->predicted);
    if (tsr_plan_describe_device(plan, 0, &first) == TSR_OK)
        memcpy(c->granules, first.granules, sizeof c->granules);
}

/* The first round of a session does not count: its programs are made, caches and page tables settle. */
static int time_candidate(const bench *b, candidate *c, int n_rounds)
{
    int code = TOOL_EXIT_OK;
    tsr_model *model = NULL;
    tsr_model_info info = {0};
    steps s = {0};
    tsr_model_config config = b->config;
    config.tensor_split = c->is_planners ? NULL : c->split;
    config.n_tensor_split = c->is_planners ? 0 : b->list->n_devices;
    tsr_status status = tsr_model_open(b->rt, b->options->model.model, &config, &model);
    if (status == TSR_OK)
        status = tsr_session_create(model, &s.session);
    if (status == TSR_OK) {
        tsr_model_describe(model, &info);
        note_plan(tsr_model_plan(model), c);
        s.tokens = calloc((size_t)b->options->n_prompt, sizeof *s.tokens);
        s.logits = calloc((size_t)info.n_vocab, sizeof *s.logits);
        if (!s.tokens || !s.logits)
            code = no_memory();
    }
    candidate unused = *c;
    if (status == TSR_OK && code == TOOL_EXIT_OK)
        status = time_round(b, &s, 1, &unused);
    for (int i = 0; i < n_rounds && status == TSR_OK && code == TOOL_EXIT_OK; i++)
        status = time_round(b, &s, b->options->n_decode, c);
    if (status != TSR_OK)
        code = tool_fail("bench", status);
    free(s.logits);
    free(s.tokens);
    tsr_session_destroy(s.session);
    tsr_model_close(model);
    return code;
}

/* ---- all splits ------------------------------------------------------------------------------ */

/* As "1,1;3,1" lists them. */
static int list_candidates(const bench *b, candidate *candidates, int *n)
{
    for (const char *at = b->options->splits; *at;) {
        candidate *c = &candidates[*n];
        int n_parsed;
        size_t length = strcspn(at, ";");
        snprintf(c->text, sizeof c->text, "%.*s", (int)length, at);
        tsr_status status = tsr_split_parse(c->text, c->split, b->list->n_devices, &n_parsed);
        if (status != TSR_OK)
            return tool_fail("bench", status);
        at += length + (at[length] == ';');
        ++*n;
    }
    return TOOL_EXIT_OK;
}

/* Shares of the first device from little to much, the others alike. */
static void sweep_candidates(const bench *b, candidate *candidates, int *n)
{
    int n_devices = b->list->n_devices, n_ratios = n_devices > 1 ? b->options->n_ratios : 0;
    for (int i = 1; i <= n_ratios; i++) {
        candidate *c = &candidates[(*n)++];
        c->split[0] = (float)i / (float)(n_ratios + 1);
        for (int d = 1; d < n_devices; d++)
            c->split[d] = (1 - c->split[0]) / (float)(n_devices - 1);
        snprintf(c->text, sizeof c->text, "%.1f %% on %s", 100 * (double)c->split[0],
                 b->list->devices[0].name);
    }
}

/* With room for the planner's own, which is the first. */
static int most_candidates(const bench_options *o)
{
    int n = 2;
    for (const char *at = o->splits; at && (at = strchr(at, ';')); at++)
        n++;
    return o->splits ? n : n + o->n_ratios;
}

/* Round after round where changing the split costs nothing, else one after the other. */
static int time_all(const bench *b, candidate *candidates, int n)
{
    int code = TOOL_EXIT_OK, rounds = b->options->n_rounds;
    bool views = true;
    for (int d = 0; d < b->list->n_devices; d++)
        views = views && b->list->devices[d].kind == TSR_DEVICE_HOST;
    for (int round = 0; round < (views ? rounds : 1) && code == TOOL_EXIT_OK; round++)
        for (int i = 0; i < n && code == TOOL_EXIT_OK; i++)
            code = time_candidate(b, &candidates[i], views ? 1 : rounds);
    return code;
}

/* ---- what came of it ------------------------------------------------------------------------- */

/* "-" where the planner knows no rates. */
static void add_predicted(tool_table *table, const tsr_plan_phase *phase)
{
    if (phase->total_ns > 0)
        tool_table_cell(table, "%.1f", (double)phase->n_tokens * 1e9 / phase->total_ns);
    else
        tool_table_cell(table, "-");
}

static void print_table(const bench *b, const candidate *candidates, int n)
{
    tool_table table = {0};
    tool_table_header(
        &table, 5, (const char *[]){"split", "decode tokens/s", "predicted", "prompt tokens/s", "predicted"});
    for (int i = 0; i < n; i++) {
        const candidate *c = &candidates[i];
        tool_table_cell(&table, "%s", c->text);
        tool_table_cell(&table, "%.1f", 1 / c->decode_s);
        add_predicted(&table, &c->predicted.decode);
        tool_table_cell(&table, "%.1f", b->options->n_prompt / c->prompt_s);
        add_predicted(&table, &c->predicted.prompt);
    }
    printf("\n");
    tool_table_print(&table, stdout);
    tool_table_free(&table);
}

/* Whether the prediction finds the best of the given splits: the distance between the one that is predicted
 * to be the fastest and the one that is, in what the first device has and in time. */
static void print_verdict(const candidate *candidates, int n)
{
    const candidate *predicted = NULL, *measured = NULL;
    for (int i = 0; i < n; i++) {
        const candidate *c = &candidates[i];
        if (c->is_planners || !(c->predicted.decode.total_ns > 0))
            continue;
        if (!predicted || c->predicted.decode.total_ns < predicted->predicted.decode.total_ns)
            predicted = c;
        if (!measured || c->decode_s < measured->decode_s)
            measured = c;
    }
    if (!predicted)
        return;
    printf("\ndecode, predicted best: %s, measured %.1f tokens/s\n", predicted->text,
           1 / predicted->decode_s);
    printf("decode, measured best:  %s, measured %.1f tokens/s\n", measured->text, 1 / measured->decode_s);
    printf("apart:");
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        printf(" %lld %s,", llabs((long long)(predicted->granules[c] - measured->granules[c])),
               tsr_split_class_name((tsr_split_class_id)c));
    printf(" in granules; %.1f %% in time\n", 100 * (predicted->decode_s / measured->decode_s - 1));
    if (candidates[0].is_planners)
        printf("the planner's own takes %+.1f %% of the measured best's time\n",
               100 * (candidates[0].decode_s / measured->decode_s - 1));
}

int bench_splits(const bench *b)
{
    int n = 0, most = most_candidates(b->options), code = TOOL_EXIT_OK;
    candidate *candidates = calloc((size_t)most, sizeof *candidates);
    if (!candidates)
        return no_memory();
    candidate *first = &candidates[n++];
    first->is_planners = true;
    snprintf(first->text, sizeof first->text, "%s", b->list->n_devices > 1 ? "the planner's" : "one device");
    if (b->options->splits)
        code = list_candidates(b, candidates, &n);
    else
        sweep_candidates(b, candidates, &n);
    for (int i = 0; i < n; i++)
        candidates[i].prompt_s = candidates[i].decode_s = INFINITY;
    if (code == TOOL_EXIT_OK)
        code = time_all(b, candidates, n);
    if (code == TOOL_EXIT_OK) {
        print_table(b, candidates, n);
        print_verdict(candidates, n);
    }
    free(candidates);
    return code;
}
