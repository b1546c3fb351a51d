/* The order and number of the rows' runs. Other processes slow down the rows that run at the same time, so
 * rows run in turn: a few visits to each, in alternating order, each with one warm-up and then some
 * repetitions of every test. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "interrupt.h"
#include "tsr.h"

enum {
    MOST_VISITS = 3,
    LEAST_PROMPT = 32, /* tokens below which the budget does not cut a test */
    LEAST_GEN = 8,
    LEAST_ROUNDS = 3
};

/* -- a visit -- */

/* Compiling a prompt's program takes about a millisecond, which matters in short tests only. */
static tsr_status warm_up(bench_engine *engine, const bench_test *test, const bench_cell *cell)
{
    double seconds, expected = cell->n ? cell->seconds[0] : cell->predicted_s;
    if (test->n_prompt && !(expected > 0.5))
        return bench_engine_run(engine, test, &seconds, NULL);
    return test->n_gen ? bench_engine_touch(engine, test->depth) : TSR_OK;
}

/* Update the means, before the repetition itself is added. */
static void add_shares(bench_cell *cell, const bench_shares *shares, int n_devices)
{
    double part = 1.0 / (cell->n + 1);
    for (int d = 0; d < n_devices; d++) {
        bench_shares *mean = &cell->shares[d];
        mean->compute += part * (shares[d].compute - mean->compute);
        mean->reduce += part * (shares[d].reduce - mean->reduce);
        mean->wait += part * (shares[d].wait - mean->wait);
    }
}

/* A division that does not fit is a result, and does not end the benchmark. */
static tsr_status leave_out(bench *b, bench_row *row, tsr_status status)
{
    if (status != TSR_ERR_MEMORY)
        return status;
    row->left_out = true;
    bench_report_note(&b->report, "%s is left out: %s",
                      *row->text ? row->text : bench_row_kind_name(row->kind), tsr_last_error());
    return TSR_OK;
}

static tsr_status visit(bench *b, bench_row *row, int n_repetitions)
{
    tsr_status status = bench_engine_open(&b->engine, &b->report, row);
    if (status != TSR_OK)
        return leave_out(b, row, status);
    for (int t = 0; t < b->report.n_tests && status == TSR_OK; t++) {
        const bench_test *test = &b->report.tests[t];
        status = warm_up(&b->engine, test, &row->cells[t]);
        for (int i = 0; i < n_repetitions && status == TSR_OK && !tool_interrupted; i++) {
            double seconds;
            bench_shares shares[TSR_MAX_DEVICES];
            status = bench_engine_run(&b->engine, test, &seconds, shares);
            if (status == TSR_OK)
                add_shares(&row->cells[t], shares, b->report.n_devices);
            if (status == TSR_OK && !bench_cell_add(&row->cells[t], seconds)) {
                fprintf(stderr, "tsr bench: out of memory for results\n");
                status = TSR_ERR_MEMORY;
            }
        }
    }
    return status;
}

tsr_status bench_measure_rows(bench *b, bench_row **rows, int n_rows, int n_repetitions)
{
    tsr_status status = TSR_OK;
    tool_progress progress = {.what = "measuring", .quiet = b->options->quiet};
    int n_visits = n_repetitions < MOST_VISITS ? n_repetitions : MOST_VISITS, done = 0;
    tool_progress_show(0, &progress);
    for (int v = 0; v < n_visits; v++) {
        int n = n_repetitions * (v + 1) / n_visits - n_repetitions * v / n_visits;
        for (int i = 0; i < n_rows && status == TSR_OK && !tool_interrupted; i++) {
            bench_row *row = rows[v % 2 ? n_rows - 1 - i : i];
            if (!row->left_out)
                status = visit(b, row, n);
            tool_progress_show((double)++done / (n_visits * n_rows + 1), &progress);
        }
    }
    tool_progress_end(&progress);
    b->report.interrupted = tool_interrupted;
    return status;
}

/* -- the budget -- */

static double seconds_of(const bench_report *report, const bench_row *row)
{
    double sum = 0;
    for (int t = 0; t < report->n_tests; t++)
        sum += row->cells[t].seconds[0];
    return sum;
}

static void rename_test(bench_test *test, int *tokens, int cut)
{
    *tokens = cut;
    bench_test_name(test);
}

/* Halve default test sizes until all rows fit; the cell's time decreases in proportion. */
static bool cut_tests(bench *b, bench_row *row)
{
    bool any = false;
    for (int t = 0; t < b->report.n_tests; t++) {
        bench_test *test = &b->report.tests[t];
        bool prompt = test->n_prompt > 0;
        int *tokens = prompt ? &test->n_prompt : &test->n_gen, least = prompt ? LEAST_PROMPT : LEAST_GEN;
        bool given = b->options->model.workload || (prompt ? b->options->prompts : b->options->gens);
        if (given || *tokens / 2 < least)
            continue;
        rename_test(test, tokens, *tokens / 2);
        row->cells[t].seconds[0] /= 2;
        any = true;
    }
    return any;
}

/* Estimate the time of every test with one row from a short version of it. */
static tsr_status estimate(bench *b, bench_row *row)
{
    tsr_status status = bench_engine_open(&b->engine, &b->report, row);
    for (int t = 0; t < b->report.n_tests && status == TSR_OK && !tool_interrupted; t++) {
        bench_test brief = b->report.tests[t];
        double seconds;
        brief.n_prompt = brief.n_prompt > 2 * LEAST_PROMPT ? 2 * LEAST_PROMPT : brief.n_prompt;
        brief.n_gen = brief.n_gen > 2 ? 2 : brief.n_gen;
        status = bench_engine_run(&b->engine, &brief, &seconds, NULL);
        if (status == TSR_OK)
            status = bench_engine_run(&b->engine, &brief, &seconds, NULL);
        seconds *= (double)bench_test_tokens(&b->report.tests[t]) / bench_test_tokens(&brief);
        if (status == TSR_OK && !bench_cell_add(&row->cells[t], seconds))
            status = TSR_ERR_MEMORY;
    }
    return status;
}

/* The repetitions that fit into the budget for n_rows rows, after cutting tests if necessary. */
static tsr_status keep_to_budget(bench *b, bench_row *row, int n_rows, int *n_rounds)
{
    bench_report *report = &b->report;
    bool cut = false;
    tsr_status status = estimate(b, row);
    if (status != TSR_OK || tool_interrupted)
        return status;
    /* a visit's warm-up takes up to as long as a repetition */
    double per_round = 1.3 * n_rows;
    while (seconds_of(report, row) * per_round * LEAST_ROUNDS > b->options->budget_s && cut_tests(b, row))
        cut = true;
    int affordable = (int)(b->options->budget_s / (seconds_of(report, row) * per_round));
    if (affordable < *n_rounds) {
        *n_rounds = affordable > 1 ? affordable : 1;
        bench_report_note(report, "%d repetition%s instead of %d, to end within %d s (--budget)", *n_rounds,
                          *n_rounds == 1 ? "" : "s", b->options->n_rounds, b->options->budget_s);
    }
    if (cut)
        bench_report_note(report, "shorter tests than pp512 and tg128, to end within %d s (--budget, -p, -n)",
                          b->options->budget_s);
    for (int t = 0; t < report->n_tests; t++)
        row->cells[t].n = 0; /* estimates are not results */
    return status;
}

/* The earlier row with the granules of rows[r], or NULL. */
static const bench_row *same_as(const bench_report *report, int r)
{
    for (int other = 0; other < r && !report->rows[r]->left_out; other++)
        if (!report->rows[other]->left_out &&
            bench_same_granules(report, report->rows[other], report->rows[r]))
            return report->rows[other];
    return NULL;
}

/* A split with the granules of an earlier row is measured and listed once. */
static void drop_doubles(bench_report *report)
{
    int n_given = 0;
    for (int r = 0; r < report->n_rows; r++) {
        bench_row *row = report->rows[r];
        const bench_row *same = same_as(report, r);
        if (!same)
            continue;
        if (row->kind == BENCH_ROW_GIVEN)
            n_given++;
        else
            bench_report_note(report, "the %s split is %s (%s)", bench_row_kind_name(row->kind), same->text,
                              bench_row_kind_name(same->kind));
        report->n_rows--;
        memmove(report->rows + r, report->rows + r + 1, (size_t)(report->n_rows - r) * sizeof *report->rows);
        free(row);
        r--;
    }
    if (n_given)
        bench_report_note(
            report, "%d split%s of --ratios divide%s the model like a row before, and %s not listed again",
            n_given, n_given == 1 ? "" : "s", n_given == 1 ? "s" : "", n_given == 1 ? "is" : "are");
}

tsr_status bench_measure(bench *b, int first)
{
    bench_report *report = &b->report;
    int n_rows = report->n_rows - first, n_rounds = b->options->n_rounds;
    tsr_status status = TSR_OK;
    if (first == 0 && b->options->budget_s > 0)
        status = keep_to_budget(b, report->rows[0], n_rows, &n_rounds);
    for (int r = first; r < report->n_rows && status == TSR_OK; r++) {
        status = bench_engine_predict(&b->engine, report, report->rows[r]);
        if (status != TSR_OK)
            status = leave_out(b, report->rows[r], status);
    }
    if (status == TSR_OK)
        drop_doubles(report);
    if (first == 0 && report->rows[0]->text[0] == '~')
        bench_report_note(report, "%s is about the planner's split, which no -ts gives exactly",
                          report->rows[0]->text);
    if (status == TSR_OK && !tool_interrupted)
        status = bench_measure_rows(b, report->rows + first, report->n_rows - first, n_rounds);
    report->interrupted = tool_interrupted;
    return status;
}
