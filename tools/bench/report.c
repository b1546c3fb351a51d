/* The data of a report; see bench/report.h. */
#include "bench/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

const char *bench_row_kind_name(bench_row_kind kind)
{
    static const char *const names[] = {"planned", "given", "even", "by-memory", "searched"};
    return names[kind];
}

bench_row *bench_report_add_row(bench_report *report)
{
    bench_row **rows = realloc(report->rows, ((size_t)report->n_rows + 1) * sizeof *rows);
    if (!rows)
        return NULL;
    report->rows = rows;
    bench_row *row = calloc(1, sizeof *row);
    if (row)
        rows[report->n_rows++] = row;
    return row;
}

void bench_report_note(bench_report *report, const char *format, ...)
{
    if (report->n_notes == BENCH_MAX_NOTES)
        return;
    va_list args;
    char *note = report->notes[report->n_notes++];
    va_start(args, format);
    tool_text_vprint(note, sizeof report->notes[0], format, args);
    va_end(args);
}

void bench_report_free(bench_report *report)
{
    for (int r = 0; r < report->n_rows; r++) {
        for (int t = 0; t < report->n_tests; t++)
            free(report->rows[r]->cells[t].seconds);
        free(report->rows[r]);
    }
    free(report->rows);
    *report = (bench_report){0};
}

bool bench_cell_add(bench_cell *cell, double seconds)
{
    double *grown = realloc(cell->seconds, ((size_t)cell->n + 1) * sizeof *grown);
    if (!grown)
        return false;
    cell->seconds = grown;
    cell->seconds[cell->n++] = seconds;
    return true;
}

void bench_test_name(bench_test *test)
{
    int n =
        snprintf(test->name, sizeof test->name, test->n_prompt ? "pp%d" : "tg%d", bench_test_tokens(test));
    if (test->depth)
        snprintf(test->name + n, sizeof test->name - (size_t)n, " @ d%d", test->depth);
}

int bench_test_tokens(const bench_test *test)
{
    return test->n_prompt + test->n_gen;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The quantile q of sorted[n], interpolated. */
static double quantile(const double *sorted, int n, double q)
{
    double at = q * (n - 1);
    int below = (int)at, above = below + 1 < n ? below + 1 : below;
    return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

bench_stat bench_stat_of(const bench_test *test, const bench_cell *cell)
{
    double rates[BENCH_MAX_REPETITIONS];
    int n = cell->n < BENCH_MAX_REPETITIONS ? cell->n : BENCH_MAX_REPETITIONS;
    if (n == 0)
        return (bench_stat){0};
    for (int i = 0; i < n; i++)
        rates[i] = bench_test_tokens(test) / cell->seconds[i];
    qsort(rates, (size_t)n, sizeof *rates, by_value);
    return (bench_stat){quantile(rates, n, 0.5), quantile(rates, n, 0.25), quantile(rates, n, 0.75)};
}

double bench_predicted_rate(const bench_test *test, const bench_cell *cell)
{
    return cell->predicted_s > 0 ? bench_test_tokens(test) / cell->predicted_s : 0;
}

bool bench_within_noise(bench_stat a, bench_stat b)
{
    return a.low <= b.high && b.low <= a.high;
}

bool bench_rows_within_noise(const bench_report *report, const bench_row *a, const bench_row *b)
{
    for (int t = 0; t < report->n_tests; t++)
        if (!bench_within_noise(bench_stat_of(&report->tests[t], &a->cells[t]),
                                bench_stat_of(&report->tests[t], &b->cells[t])))
            return false;
    return true;
}

uint64_t bench_total_bytes(const bench_row_device *device)
{
    uint64_t sum = 0;
    for (int o = 0; o < TSR_MEMORY_COUNT; o++)
        sum += device->bytes[o];
    return sum;
}

double bench_row_seconds(const bench_report *report, const bench_row *row)
{
    double sum = 0;
    for (int t = 0; t < report->n_tests; t++) {
        double rate = bench_stat_of(&report->tests[t], &row->cells[t]).median;
        if (!(rate > 0))
            return 0;
        sum += bench_test_tokens(&report->tests[t]) / rate;
    }
    return sum;
}

const bench_row *bench_best_row(const bench_report *report)
{
    const bench_row *best = NULL;
    double least = 0;
    for (int r = 0; r < report->n_rows; r++) {
        double seconds = bench_row_seconds(report, report->rows[r]);
        if (seconds > 0 && (!best || seconds < least)) {
            best = report->rows[r];
            least = seconds;
        }
    }
    return best;
}

const bench_row *bench_shown_row(const bench_report *report)
{
    const bench_row *best = bench_best_row(report);
    return best ? best : report->rows[0];
}

const bench_row *bench_row_of_kind(const bench_report *report, bench_row_kind kind)
{
    for (int r = 0; r < report->n_rows; r++)
        if (report->rows[r]->kind == kind)
            return report->rows[r];
    return NULL;
}
