/* The measured model; see bench/engine.h. It is loaded once; another row is another split of it. On host
 * devices a split is another set of pointers; on GPUs only weights that change their device are copied,
 * and sequences keep their tokens. */
#include "bench/engine.h"

#include <math.h>
#include <stdlib.h>

#include "bench/bench.h"
#include "tsr.h"

static void set_split(const bench_engine *engine, const bench_row *row, tsr_model_config *config)
{
    config->split.tensor_split = row->kind == BENCH_ROW_PLANNED ? NULL : row->split;
    config->split.n_tensor_split = row->kind == BENCH_ROW_PLANNED ? 0 : engine->list->n_devices;
}

static bool is_used(const bench_row_device *device)
{
    return device->bytes[TSR_MEMORY_WEIGHTS] > 0;
}

static void note_devices(const tsr_plan *plan, const bench_report *report, bench_row *row)
{
    tsr_plan_device device;
    for (int d = 0; d < report->n_devices; d++) {
        bench_row_device *to = &row->devices[d];
        if (tsr_plan_get_device(plan, d, &device) != TSR_OK)
            continue;
        for (int c = 0; c < TSR_CLASS_COUNT; c++)
            to->granules[c] = device.granules[c];
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            to->bytes[o] = device.bytes[o];
        to->capacity = device.memory_cap == SIZE_MAX ? 0 : device.memory_cap;
    }
}

/* Whether -ts TEXT puts the same granules on every device. */
static bool text_gives(const bench_engine *engine, const bench_report *report, const bench_row *row,
                       const char *text)
{
    tsr_model_config config = engine->config;
    float split[TSR_MAX_DEVICES];
    tsr_plan *plan = NULL;
    bench_row *other = calloc(1, sizeof *other);
    bool same = false;
    config.split.tensor_split = split;
    if (other && tsr_split_parse(text, split, report->n_devices, &config.split.n_tensor_split) == TSR_OK &&
        tsr_plan_create(engine->gguf, engine->list, &config, &plan) == TSR_OK) {
        note_devices(plan, report, other);
        same = bench_same_granules(report, other, row);
    }
    tsr_plan_destroy(plan);
    free(other);
    return same;
}

/* A split that rounds to the granules of all classes. A share that is nearer to a count than half a granule
 * rounds to it, so each class leaves an interval to each device's share. Between the lower ends of what all
 * classes leave, which sum up to less than 1, and the upper ones, which sum up to more, are shares that sum
 * up to 1. */
static void split_of_granules(const tsr_plan *plan, const bench_report *report, const bench_row *row,
                              float *split)
{
    double low[TSR_MAX_DEVICES], high[TSR_MAX_DEVICES], sum_low = 0, sum_high = 0;
    tsr_plan_info info;
    tsr_plan_get_info(plan, &info);
    for (int d = 0; d < report->n_devices; d++) {
        low[d] = 0;
        high[d] = 1;
        for (int c = 0; c < TSR_CLASS_COUNT; c++) {
            double n = (double)info.n_granules[c], count = (double)row->devices[d].granules[c];
            if (n > 0) {
                low[d] = fmax(low[d], (count - 0.5) / n);
                high[d] = fmin(high[d], (count + 0.5) / n);
            }
        }
        if (!is_used(&row->devices[d]))
            high[d] = 0;
        sum_low += low[d];
        sum_high += high[d];
    }
    double t = sum_high > sum_low ? fmin(fmax((1 - sum_low) / (sum_high - sum_low), 0), 1) : 0;
    for (int d = 0; d < report->n_devices; d++)
        split[d] = (float)fmax(low[d] + t * (high[d] - low[d]), 0);
}

/* The text of the planner's row. The planner divides attention, FFN and output each in its own way, so no
 * split may give all of its granules. */
static void find_text(const bench_engine *engine, const tsr_plan *plan, const bench_report *report,
                      bench_row *row)
{
    enum { MOST_DIGITS = 4 };
    char text[BENCH_SPLIT_TEXT];
    float rounding[TSR_MAX_DEVICES];
    const float *splits[] = {row->split, rounding};
    tsr_plan_device device;
    for (int d = 0; d < report->n_devices; d++)
        row->split[d] = tsr_plan_get_device(plan, d, &device) == TSR_OK ? (float)device.requested : 0;
    split_of_granules(plan, report, row, rounding);
    for (int digits = 0; digits <= MOST_DIGITS; digits++)
        for (size_t s = 0; s < sizeof splits / sizeof *splits; s++) {
            bench_split_percent(splits[s], report->n_devices, digits, row->text);
            if (text_gives(engine, report, row, row->text))
                return;
        }
    bench_split_percent(row->split, report->n_devices, BENCH_SPLIT_DIGITS, text);
    snprintf(row->text, sizeof row->text, "~%.*s", BENCH_SPLIT_TEXT - 2, text);
}

static tsr_status no_memory(void)
{
    fprintf(stderr, "tsr bench: out of memory for tokens and logits\n");
    return TSR_ERR_MEMORY;
}

static tsr_status make_room(bench_engine *engine)
{
    tsr_model_info info;
    tsr_plan_info plan;
    tsr_model_get_info(engine->model, &info);
    tsr_plan_get_info(tsr_model_plan(engine->model), &plan);
    engine->tokens = calloc((size_t)plan.n_ctx, sizeof *engine->tokens);
    engine->logits = calloc((size_t)info.n_vocab, sizeof *engine->logits);
    engine->n_tokens = plan.n_ctx;
    return engine->tokens && engine->logits ? TSR_OK : no_memory();
}

static tsr_status load(bench_engine *engine)
{
    tsr_status status = tsr_model_open(engine->rt, engine->path, &engine->config, &engine->model);
    if (status == TSR_OK)
        status = tsr_session_create(engine->model, &engine->session);
    return status == TSR_OK ? make_room(engine) : status;
}

tsr_status bench_engine_open(bench_engine *engine, const bench_report *report, bench_row *row)
{
    if (engine->row == row)
        return TSR_OK;
    tsr_status status;
    set_split(engine, row, &engine->config);
    if (engine->session)
        status = tsr_model_resplit(engine->model, engine->config.split.tensor_split,
                                   engine->config.split.n_tensor_split);
    else
        status = load(engine);
    if (status == TSR_OK) {
        note_devices(tsr_model_plan(engine->model), report, row);
        if (row->kind == BENCH_ROW_PLANNED && !*row->text)
            find_text(engine, tsr_model_plan(engine->model), report, row);
        engine->row = row;
    }
    return status;
}

static tsr_status append(bench_engine *engine, int64_t n)
{
    tsr_batch batch = {.n_tokens = n, .tokens = engine->tokens};
    return tsr_session_decode(engine->session, &batch, engine->logits);
}

/* Make the sequence `depth` tokens long, with any tokens; from the start if the model's layers do not allow
 * cutting it. */
static tsr_status go_to(bench_engine *engine, int depth)
{
    tsr_status status = TSR_OK;
    if (tsr_session_length(engine->session, 0) > depth)
        status = tsr_session_trim(engine->session, 0, depth);
    if (status == TSR_ERR_INVALID)
        status = tsr_session_trim(engine->session, 0, 0);
    int64_t length = tsr_session_length(engine->session, 0);
    return status == TSR_OK && length < depth ? append(engine, depth - length) : status;
}

/* All zeros for a device that takes no part, or without measured times. A process knows its own devices. */
static tsr_status read_shares(const bench_engine *engine, double seconds, bench_shares *shares)
{
    tsr_status status = TSR_OK;
    for (int d = 0; d < engine->list->n_devices && status == TSR_OK; d++) {
        tsr_device_times times = {0};
        status = tsr_runtime_times(engine->rt, d, &times);
        double wait = (double)times.wait_ns * 1e-9 / seconds;
        double collective = (double)times.collective_ns * 1e-9 / seconds;
        shares[d] = (bench_shares){0};
        if (times.known && is_used(&engine->row->devices[d]))
            shares[d] = (bench_shares){1 - collective, collective - wait, wait};
    }
    if (status == TSR_OK && !bench_share_devices(engine, shares, sizeof *shares))
        status = TSR_ERR_DEVICE_LOST;
    return status;
}

tsr_status bench_engine_run(bench_engine *engine, const bench_test *test, double *seconds_out,
                            bench_shares *shares)
{
    tsr_status status = go_to(engine, test->depth);
    if (shares)
        tsr_runtime_time_collectives(engine->rt, true);
    double start = tool_clock();
    if (status == TSR_OK && test->n_prompt)
        status = append(engine, test->n_prompt);
    for (int i = 0; i < test->n_gen && status == TSR_OK; i++)
        status = append(engine, 1);
    engine->finish_s = tool_clock();
    *seconds_out = engine->finish_s - start;
    if (status == TSR_OK)
        status = bench_share_times(engine, seconds_out);
    if (shares && status == TSR_OK)
        status = read_shares(engine, *seconds_out, shares);
    return status;
}

tsr_status bench_engine_touch(bench_engine *engine, int depth)
{
    tsr_status status = go_to(engine, depth);
    return status == TSR_OK ? append(engine, 1) : status;
}

/* The prediction of a plan assumes half of the context before each step, so the context sets the depth. */
static tsr_status predict_test(const bench_engine *engine, const bench_test *test, const bench_row *row,
                               double *seconds_out)
{
    tsr_plan *plan = NULL;
    tsr_plan_times times = {0};
    tsr_model_config config = engine->config;
    int tokens = bench_test_tokens(test);
    set_split(engine, row, &config);
    config.session.n_ctx = 2 * (int64_t)test->depth + tokens;
    if (test->n_prompt && test->n_prompt < config.session.n_batch)
        config.session.n_batch = test->n_prompt;
    tsr_status status = tsr_plan_create(engine->gguf, engine->list, &config, &plan);
    if (status == TSR_OK)
        tsr_plan_predict(plan, &times);
    tsr_plan_destroy(plan);
    const tsr_plan_phase *phase = test->n_prompt ? &times.prompt : &times.decode;
    *seconds_out = phase->n_tokens ? phase->total_ns * 1e-9 * tokens / (double)phase->n_tokens : 0;
    return status;
}

tsr_status bench_engine_predict(const bench_engine *engine, const bench_report *report, bench_row *row)
{
    tsr_model_config config = engine->config;
    tsr_plan *plan = NULL;
    set_split(engine, row, &config);
    tsr_status status = tsr_plan_create(engine->gguf, engine->list, &config, &plan);
    if (status == TSR_OK) {
        note_devices(plan, report, row);
        if (row->kind == BENCH_ROW_PLANNED && !*row->text)
            find_text(engine, plan, report, row);
    }
    tsr_plan_destroy(plan);
    for (int t = 0; t < report->n_tests && status == TSR_OK; t++)
        status = predict_test(engine, &report->tests[t], row, &row->cells[t].predicted_s);
    return status;
}

void bench_engine_close(bench_engine *engine)
{
    tsr_session_destroy(engine->session);
    tsr_model_close(engine->model);
    tsr_gguf_close(engine->gguf);
    free(engine->tokens);
    free(engine->logits);
    *engine = (bench_engine){0};
}
