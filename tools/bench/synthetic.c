/* Benchmarks of synthetic models, which need no download, and of models that are larger than the machine:
 * layers of a transformer are alike, so the times of a few layers give those of all. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "bench/bench.h"
#include "tsr.h"

static int make(const synth_model *model, int n_layers, char path[64])
{
    synth_model some = *model;
    some.shape.n_layers = n_layers;
    if (synth_in_memory(&some, 1, false, path) >= 0) /* stays open until the process ends */
        return TOOL_GO_ON;
    fprintf(stderr, "tsr bench: cannot create a synthetic model of %d layers: %s\n", n_layers,
            strerror(errno));
    return TOOL_EXIT_FAILED;
}

int bench_synthetic_read(bench_options *options, bench_synthetic *synthetic_out)
{
    bench_synthetic s = {0};
    int code = synth_parse("bench", options->model.synthetic, &s.model);
    if (code != TOOL_GO_ON)
        return code;
    int n_layers = s.model.shape.n_layers;
    snprintf(s.path, sizeof s.path, "%s", options->model.synthetic);
    s.n_layers_whole = n_layers;
    s.n_layers = options->n_layers && options->n_layers < n_layers ? options->n_layers : n_layers;
    s.n_layers_half = s.n_layers < s.n_layers_whole ? s.n_layers / 2 : 0;
    *synthetic_out = s;
    options->model.model = synthetic_out->path;
    return code;
}

int bench_synthetic_make(bench_synthetic *synthetic)
{
    int code = make(&synthetic->model, synthetic->n_layers, synthetic->path);
    if (code == TOOL_GO_ON && synthetic->n_layers_half)
        code = make(&synthetic->model, synthetic->n_layers_half, synthetic->half_path);
    return code;
}

/* Copy a row; if it is the planner's, with the division for the larger model. */
static bench_row *copy_row(bench_report *half, const bench_row *row)
{
    bench_row *copy = bench_report_add_row(half);
    if (!copy)
        return NULL;
    copy->kind = row->kind == BENCH_ROW_PLANNED ? BENCH_ROW_GIVEN : row->kind;
    memcpy(copy->split, row->split, sizeof copy->split);
    memcpy(copy->text, row->text, sizeof copy->text);
    return copy;
}

/* Deviations of the parts are scaled by the same factor as the time. */
static void stretch_cell(const bench_test *test, double more, const bench_cell *half, bench_cell *cell)
{
    double median = bench_stat_of(test, cell).median, its = bench_stat_of(test, half).median;
    int tokens = bench_test_tokens(test);
    double seconds = median > 0 ? tokens / median : 0, step = its > 0 ? seconds - tokens / its : 0;
    if (!(step > 0)) { /* no positive difference to extrapolate from */
        cell->n = 0;
        return;
    }
    for (int i = 0; i < cell->n; i++)
        cell->seconds[i] =
            fmax(seconds + more * step + (1 + more) * (cell->seconds[i] - seconds), cell->seconds[i]);
    cell->predicted_s += more * (cell->predicted_s - half->predicted_s);
}

/* Copy the rows of the half model with their predictions. */
static tsr_status copy_rows(const bench *from, bench *half)
{
    tsr_status status = TSR_OK;
    for (int r = 0; r < from->report.n_rows && status == TSR_OK; r++) {
        bench_row *row = copy_row(&half->report, from->report.rows[r]);
        status = row ? bench_engine_predict(&half->engine, &half->report, row) : TSR_ERR_MEMORY;
    }
    return status;
}

/* Measure the half model in place of the whole one, since the machine may not hold both. */
static tsr_status measure_half(bench *b, const bench_synthetic *s, bench *half)
{
    tsr_gguf_config header = tsr_gguf_config_default();
    header.header_only = true;
    *half = (bench){.options = b->options, .processes = b->processes, .machine.list = b->machine.list};
    half->report.n_devices = b->report.n_devices;
    half->report.n_tests = b->report.n_tests;
    memcpy(half->report.tests, b->report.tests, sizeof b->report.tests);
    half->engine = (bench_engine){.rt = b->engine.rt,
                                  .list = b->machine.list,
                                  .processes = &b->processes,
                                  .path = s->half_path,
                                  .config = b->engine.config};
    bench_engine_close(&b->engine);
    b->engine.rt = half->engine.rt;
    tsr_status status = tsr_gguf_open(s->half_path, &header, &half->engine.gguf);
    if (status == TSR_OK)
        status = copy_rows(b, half);
    if (status == TSR_OK)
        status =
            bench_measure_rows(half, half->report.rows, half->report.n_rows, b->report.rows[0]->cells[0].n);
    bench_engine_close(&half->engine);
    return status;
}

tsr_status bench_extrapolate(bench *b, const bench_synthetic *s)
{
    bench half;
    bench_report *report = &b->report;
    double more = (double)(s->n_layers_whole - s->n_layers) / (s->n_layers - s->n_layers_half);
    tsr_status status = measure_half(b, s, &half);
    for (int r = 0; r < report->n_rows && status == TSR_OK; r++)
        for (int t = 0; t < report->n_tests; t++)
            stretch_cell(&report->tests[t], more, &half.report.rows[r]->cells[t], &report->rows[r]->cells[t]);
    report->interrupted = report->interrupted || half.report.interrupted;
    report->environment.layers_measured = s->n_layers;
    report->environment.layers_extrapolated = s->n_layers_whole;
    bench_report_note(report, "extrapolated to %d layers from %d and %d measured ones; memory is that of %d",
                      s->n_layers_whole, s->n_layers, s->n_layers_half, s->n_layers);
    bench_report_free(&half.report);
    return status;
}
