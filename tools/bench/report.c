/* The data of a report; see bench/report.h. */
#include "bench/report.h"

#include <math.h>
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

static size_t longer(size_t length, const char *text)
{
    return strlen(text) > length ? strlen(text) : length;
}

bool bench_splits_are_long(const bench_report *report)
{
    enum { OTHER_COLUMNS = 56 }; /* those of bench_print_comparison() */
    size_t split = 0, test = 0;
    for (int r = 0; r < report->n_rows; r++)
        split = longer(split, report->rows[r]->text);
    for (int t = 0; t < report->n_tests; t++)
        test = longer(test, report->tests[t].name);
    return split + test + OTHER_COLUMNS > 80;
}

static int number_of(const bench_report *report, const bench_row *row)
{
    int r = 0;
    while (report->rows[r] != row)
        r++;
    return r + 1;
}

void bench_row_label(const bench_report *report, const bench_row *row, char label[BENCH_ROW_LABEL])
{
    const char *kind = row->kind == BENCH_ROW_GIVEN ? "" : bench_row_kind_name(row->kind);
    if (bench_splits_are_long(report))
        snprintf(label, BENCH_ROW_LABEL, "%d: %s%s%s", number_of(report, row), kind, *kind ? " " : "",
                 row->text);
    else
        snprintf(label, BENCH_ROW_LABEL, "%s%s%s", row->text, *kind ? " " : "", kind);
}

void bench_row_name(const bench_report *report, const bench_row *row, char name[BENCH_ROW_LABEL])
{
    if (bench_splits_are_long(report))
        snprintf(name, BENCH_ROW_LABEL, "split %d", number_of(report, row));
    else
        snprintf(name, BENCH_ROW_LABEL, "%s", row->text);
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

/* The values to leave out at each end of n sorted ones, so that the rest encloses the true median with a
 * confidence of 90 %: the number of values below the median is binomial (the sign test). */
static int n_outside(int n)
{
    double term = pow(0.5, n), tail = 0;
    int k = 0;
    for (; 2 * (tail + term) <= 0.1; k++) {
        tail += term;
        term *= (double)(n - k) / (k + 1);
    }
    return k > 0 ? k - 1 : 0;
}

bench_stat bench_stat_of(const bench_test *test, const bench_cell *cell)
{
    double rates[BENCH_MAX_REPETITIONS];
    int n = cell->n < BENCH_MAX_REPETITIONS ? cell->n : BENCH_MAX_REPETITIONS, outside = n_outside(n);
    if (n == 0)
        return (bench_stat){0};
    for (int i = 0; i < n; i++)
        rates[i] = bench_test_tokens(test) / cell->seconds[i];
    qsort(rates, (size_t)n, sizeof *rates, by_value);
    return (bench_stat){(rates[(n - 1) / 2] + rates[n / 2]) / 2, rates[outside], rates[n - 1 - outside], n};
}

bench_stat bench_row_stat(const bench_report *report, const bench_row *row)
{
    double tokens = 0, median = 0, low = 0, high = 0;
    int n = BENCH_MAX_REPETITIONS;
    for (int t = 0; t < report->n_tests; t++) {
        bench_stat stat = bench_stat_of(&report->tests[t], &row->cells[t]);
        int more = bench_test_tokens(&report->tests[t]);
        if (stat.n == 0)
            return (bench_stat){0};
        tokens += more;
        median += more / stat.median;
        low += more / stat.low;
        high += more / stat.high;
        n = stat.n < n ? stat.n : n;
    }
    return (bench_stat){tokens / median, tokens / low, tokens / high, n};
}

double bench_predicted_rate(const bench_test *test, const bench_cell *cell)
{
    return cell->predicted_s > 0 ? bench_test_tokens(test) / cell->predicted_s : 0;
}

double bench_noise(bench_stat a, bench_stat b)
{
    bench_stat fast = a.median > b.median ? a : b, slow = a.median > b.median ? b : a;
    if (fast.n < BENCH_LEAST_REPETITIONS || slow.n < BENCH_LEAST_REPETITIONS)
        return INFINITY;
    return (fast.median - fast.low + slow.high - slow.median) / slow.median;
}

bool bench_within_noise(bench_stat a, bench_stat b)
{
    return isinf(bench_noise(a, b)) || (a.low <= b.high && b.low <= a.high);
}

bool bench_same_granules(const bench_report *report, const bench_row *a, const bench_row *b)
{
    for (int d = 0; d < report->n_devices; d++) {
        const bench_row_device *x = &a->devices[d], *y = &b->devices[d];
        /* layers on different devices have equal granules, but not equal weights */
        if (memcmp(x->granules, y->granules, sizeof x->granules) != 0 ||
            x->bytes[TSR_MEMORY_WEIGHTS] != y->bytes[TSR_MEMORY_WEIGHTS])
            return false;
    }
    return true;
}

uint64_t bench_total_bytes(const bench_row_device *device)
{
    uint64_t sum = 0;
    for (int o = 0; o < TSR_MEMORY_COUNT; o++)
        sum += device->bytes[o];
    return sum;
}

const bench_row *bench_row_of_kind(const bench_report *report, bench_row_kind kind)
{
    for (int r = 0; r < report->n_rows; r++)
        if (report->rows[r]->kind == kind)
            return report->rows[r];
    return NULL;
}

static void mark_best(bench_report *report, bench_stat best)
{
    bool any_slower = false;
    for (int r = 0; r < report->n_rows; r++) {
        bench_stat stat = bench_row_stat(report, report->rows[r]);
        bool slower = !bench_within_noise(stat, best);
        any_slower = any_slower || (stat.n && slower);
        report->rows[r]->best = stat.n >= BENCH_LEAST_REPETITIONS && !slower;
    }
    for (int r = 0; r < report->n_rows; r++)
        report->rows[r]->best = report->rows[r]->best && any_slower;
}

void bench_report_judge(bench_report *report)
{
    const bench_row *planned = bench_row_of_kind(report, BENCH_ROW_PLANNED);
    bench_stat best = {0}, its = {0};
    report->best_row = NULL;
    for (int r = 0; r < report->n_rows; r++) {
        bench_stat stat = bench_row_stat(report, report->rows[r]);
        if (stat.median > best.median) {
            report->best_row = report->rows[r];
            best = stat;
        }
    }
    if (planned)
        its = bench_row_stat(report, planned);
    report->shown_row = its.n && bench_within_noise(its, best) ? planned : report->best_row;
    if (!report->best_row)
        report->shown_row = report->rows[0];
    mark_best(report, best);
}
