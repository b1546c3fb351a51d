/* The best division, searched by measuring. Predictions give the start and the order of neighbours; only
 * measurements decide.
 *
 * From the best row so far a piece of the whole is moved from one device to another, for every pair in
 * turn. The best neighbour that is faster by more than noise becomes the next centre; if there is none,
 * the piece is halved. The centre is measured again together with its neighbours, so other load on the
 * machine affects both. Time as a function of a device's share is a maximum of lines, one per device, and
 * has one minimum; the search ends there, within noise. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "interrupt.h"
#include "tsr.h"

enum {
    NEIGHBOURS = 4, /* measured around a centre: those with the best predictions */
    REPETITIONS = 3,
    FINALISTS = 3
};
static const double first_piece = 0.125, last_piece = 0.015;

typedef struct search {
    bench *b;
    double deadline;
    bench_row *centre;
    double piece;
} search;

static double share_of(const search *s, const bench_row *row, int device)
{
    double sum = 0;
    for (int d = 0; d < s->b->machine.list->n_devices; d++)
        sum += (double)row->split[d];
    return (double)row->split[device] / sum;
}

/* A row with the granules of another row would be measured twice. */
static bool is_new(const bench_report *report, const bench_row *row)
{
    for (int r = 0; r < report->n_rows; r++)
        if (report->rows[r] != row && bench_same_granules(report, report->rows[r], row))
            return false;
    return true;
}

static double predicted_seconds(const bench_report *report, const bench_row *row)
{
    double sum = 0;
    for (int t = 0; t < report->n_tests; t++)
        sum += row->cells[t].predicted_s;
    return sum;
}

/* The centre with a piece moved; dropped if this changes nothing. */
static tsr_status try_move(search *s, int from, int to, bench_row **row_out)
{
    bench_report *report = &s->b->report;
    double moved = fmin(s->piece, share_of(s, s->centre, from));
    *row_out = NULL;
    if (!(moved > 0))
        return TSR_OK;
    bench_row *row = bench_report_add_row(report);
    if (!row)
        return TSR_ERR_MEMORY;
    row->kind = BENCH_ROW_SEARCHED;
    for (int d = 0; d < report->n_devices; d++)
        row->split[d] = (float)(share_of(s, s->centre, d) - (d == from) * moved + (d == to) * moved);
    bench_split_round(row->split, report->n_devices, row->text);
    tsr_status status = bench_engine_predict(&s->b->engine, report, row);
    if (status == TSR_OK && is_new(report, row)) {
        *row_out = row;
        return TSR_OK;
    }
    report->n_rows--;
    free(row);
    /* the device's memory is too small: not a neighbour, and not a failure of the benchmark */
    return status == TSR_ERR_MEMORY ? TSR_OK : status;
}

/* Keep the neighbours with the best predictions; the others are removed from the report. */
static int keep_best(search *s, bench_row **rows, int n)
{
    bench_report *report = &s->b->report;
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && predicted_seconds(report, rows[j]) < predicted_seconds(report, rows[j - 1]);
             j--) {
            bench_row *swap = rows[j];
            rows[j] = rows[j - 1];
            rows[j - 1] = swap;
        }
    report->n_rows -= n;
    int kept = n < NEIGHBOURS ? n : NEIGHBOURS;
    for (int i = 0; i < kept; i++)
        report->rows[report->n_rows++] = rows[i];
    for (int i = kept; i < n; i++)
        free(rows[i]);
    return kept;
}

/* Add every new neighbour at the end of the report and to rows[]. */
static tsr_status neighbours(search *s, bench_row *rows[NEIGHBOURS], int *n_out)
{
    tsr_status status = TSR_OK;
    int n_devices = s->b->machine.list->n_devices, n = 0;
    bench_row **all = calloc((size_t)n_devices * (size_t)n_devices, sizeof *all);
    if (!all)
        return TSR_ERR_MEMORY;
    for (int from = 0; from < n_devices && status == TSR_OK; from++)
        for (int to = 0; to < n_devices && status == TSR_OK; to++) {
            bench_row *row = NULL;
            if (from != to)
                status = try_move(s, from, to, &row);
            if (row)
                all[n++] = row;
        }
    *n_out = keep_best(s, all, n);
    memcpy(rows, all, (size_t)*n_out * sizeof *rows);
    free(all);
    return status;
}

static double rate_of(const bench_report *report, const bench_row *row)
{
    return bench_row_stat(report, row).median;
}

static bool is_better(const bench_report *report, const bench_row *row, const bench_row *than)
{
    bench_stat its = bench_row_stat(report, row), old = bench_row_stat(report, than);
    return its.median > old.median && !bench_within_noise(its, old);
}

/* Measure around the centre, then move to the best neighbour or halve the piece. */
static tsr_status step(search *s)
{
    bench_report *report = &s->b->report;
    bench_row *rows[NEIGHBOURS + 1];
    int n = 0;
    tsr_status status = neighbours(s, rows, &n);
    if (status != TSR_OK)
        return status;
    if (n == 0) {
        s->piece /= 2;
        return TSR_OK;
    }
    rows[n] = s->centre;
    status = bench_measure_rows(s->b, rows, n + 1, REPETITIONS);
    bench_row *next = s->centre;
    for (int i = 0; i < n && status == TSR_OK && !tool_interrupted; i++)
        if (is_better(report, rows[i], next))
            next = rows[i];
    if (next == s->centre)
        s->piece /= 2;
    s->centre = next;
    return status;
}

/* Measure the fastest rows and the usual references once more, in turn. */
static tsr_status compare_finalists(search *s)
{
    bench_report *report = &s->b->report;
    bench_row **rows = calloc((size_t)report->n_rows, sizeof *rows);
    int n = 0;
    if (!rows)
        return TSR_ERR_MEMORY;
    for (int r = 0; r < report->n_rows; r++) {
        int faster = 0;
        for (int other = 0; other < report->n_rows; other++)
            faster += rate_of(report, report->rows[other]) > rate_of(report, report->rows[r]);
        if (faster < FINALISTS || report->rows[r]->kind != BENCH_ROW_SEARCHED)
            rows[n++] = report->rows[r];
    }
    tsr_status status = bench_measure_rows(s->b, rows, n, REPETITIONS);
    free(rows);
    return status;
}

tsr_status bench_search(bench *b)
{
    search s = {.b = b, .piece = first_piece, .deadline = INFINITY};
    tsr_status status = TSR_OK;
    if (b->options->budget_s)
        s.deadline = b->engine.finish_s + b->options->budget_s;
    for (int r = 0; r < b->report.n_rows; r++)
        if (!s.centre || rate_of(&b->report, b->report.rows[r]) > rate_of(&b->report, s.centre))
            s.centre = b->report.rows[r];
    while (status == TSR_OK && s.piece >= last_piece && !tool_interrupted && b->engine.finish_s < s.deadline)
        status = step(&s);
    if (b->engine.finish_s >= s.deadline)
        bench_report_note(&b->report, "the search ended after %d s, moving %.1f %% at a time (--budget)",
                          b->options->budget_s, 100 * s.piece);
    if (status == TSR_OK && !tool_interrupted)
        status = compare_finalists(&s);
    return status;
}
