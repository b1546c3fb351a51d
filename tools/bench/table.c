/* A report as text: aligned tables for a terminal, markdown for forum posts, CSV for plotting programs. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/bytes.h>

#include "bench/groups.h"
#include "bench/output.h"
#include "bench/speeds.h"

/* -- common parts -- */

enum { COLUMNS = 80 };

/* A line of the environment: wrapped for a terminal, an item of a list in markdown. */
static void print_line(FILE *out, bool markdown, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void print_line(FILE *out, bool markdown, const char *format, ...)
{
    char text[2 * BENCH_GROUP_NAME];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (markdown)
        fprintf(out, "- %s\n", text);
    else
        tool_print_wrapped(text, (int)strlen(text), COLUMNS, 0, 2, out);
}

static void print_devices(const bench_report *report, FILE *out, bool markdown)
{
    bench_group *groups;
    int n = bench_groups(report, bench_same_make, &groups);
    for (int g = 0; g < n; g++)
        print_line(out, markdown, "%s: %s", groups[g].name, groups[g].what);
    free(groups);
}

static void print_environment_lines(const bench_report *report, FILE *out, bool markdown)
{
    const bench_environment *e = &report->environment;
    char bytes[TSR_BYTES_TEXT];
    print_line(out, markdown, "tsr %s%s%s, %s", e->version, *e->build ? ", build " : "", e->build, e->date);
    print_line(out, markdown, "%s%s%s", e->machine, *e->driver ? "; " : "", e->driver);
    print_devices(report, out, markdown);
    print_line(out, markdown, "%s: %s, %.2f B parameters, %s, %s; %lld layers",
               *e->model_name ? e->model_name : e->model_path, e->architecture, (double)e->n_params * 1e-9,
               e->weight_type, tsr_bytes_text(e->weight_bytes, bytes), (long long)e->n_layers);
    print_line(out, markdown,
               "KV %s and %s, context %lld, batch %d, mode %s, reduction %s, activations of %d bits, "
               "collectives %s",
               e->type_k, e->type_v, (long long)e->n_ctx, e->n_batch, e->mode, e->reduction,
               e->activation_bits, e->collectives);
    for (int n = 0; n < report->n_notes; n++)
        print_line(out, markdown, "%s", report->notes[n]);
    if (report->interrupted)
        print_line(out, markdown, "interrupted: shows what had been measured until then");
}

void bench_print_environment(const bench_report *report, FILE *out)
{
    print_environment_lines(report, out, false);
}

static void add_rate(tool_table *table, double rate)
{
    if (rate > 0)
        tool_table_cell(table, rate < 100 ? "%.2f" : "%.1f", rate);
    else
        tool_table_cell(table, "-");
}

/* Half the interval, in percent of the median. */
static void add_spread(tool_table *table, bench_stat stat)
{
    if (stat.n >= BENCH_LEAST_REPETITIONS)
        tool_table_cell(table, "%.1f %%", 50 * (stat.high - stat.low) / stat.median);
    else
        tool_table_cell(table, "-");
}

/* "planned, best" */
static void add_mark(tool_table *table, const bench_row *row)
{
    const char *kind = row->kind == BENCH_ROW_GIVEN ? "" : bench_row_kind_name(row->kind);
    bool best = row->best;
    tool_table_cell(table, "%s%s%s", kind, best && *kind ? ", " : "", best ? "best" : "");
}

static void add_split(tool_table *table, const bench_report *report, int r, bool narrow)
{
    const char *text = report->rows[r]->text;
    if (!bench_splits_are_long(report))
        tool_table_cell(table, "%s", text);
    else if (narrow)
        tool_table_cell(table, "%d", r + 1);
    else
        tool_table_cell(table, "%d: %s", r + 1, text);
}

void bench_fill_speeds(const bench_report *report, bool narrow, tool_table *table)
{
    tool_table_header(table, 7,
                      (const char *[]){"split", "", "test", "tokens/s", "spread", "predicted", "n"});
    for (int r = 0; r < report->n_rows; r++) {
        const bench_row *row = report->rows[r];
        for (int t = 0; t < report->n_tests; t++) {
            const bench_cell *cell = &row->cells[t];
            bench_stat stat = bench_stat_of(&report->tests[t], cell);
            add_split(table, report, r, narrow);
            add_mark(table, row);
            tool_table_cell(table, "%s", report->tests[t].name);
            add_rate(table, stat.median);
            add_spread(table, stat);
            add_rate(table, bench_predicted_rate(&report->tests[t], cell));
            tool_table_cell(table, "%d", cell->n);
        }
    }
}

static void add_share(tool_table *table, double share, bool known)
{
    if (known)
        tool_table_cell(table, "%.1f %%", 100 * share);
    else
        tool_table_cell(table, "-");
}

void bench_fill_devices(const bench_report *report, bool narrow, tool_table *table)
{
    enum { NAME = 16 };
    const bench_row *row = report->shown_row;
    bench_group *groups;
    char bytes[TSR_BYTES_TEXT];
    int n = bench_groups(report, bench_same_use, &groups);
    tool_table_header(
        table, 8,
        (const char *[]){"device", "memory", "weights", "KV", "other", "compute", "reduce", "wait"});
    for (int g = 0; g < n; g++) {
        const bench_row_device *device = &row->devices[groups[g].first];
        const bench_shares *shares = &row->cells[report->n_tests - 1].shares[groups[g].first];
        uint64_t total = bench_total_bytes(device);
        uint64_t weights = device->bytes[TSR_MEMORY_WEIGHTS], kv = device->bytes[TSR_MEMORY_KV];
        bool known = shares->compute + shares->reduce + shares->wait > 0;
        if (narrow && strlen(groups[g].name) > NAME)
            tool_table_cell(table, "%.*s...", NAME, groups[g].name);
        else
            tool_table_cell(table, "%s", groups[g].name);
        tool_table_cell(table, "%s", tsr_bytes_text(total, bytes));
        tool_table_cell(table, "%s", tsr_bytes_text(weights, bytes));
        tool_table_cell(table, "%s", tsr_bytes_text(kv, bytes));
        tool_table_cell(table, "%s", tsr_bytes_text(total - weights - kv, bytes));
        add_share(table, shares->compute, known);
        add_share(table, shares->reduce, known);
        add_share(table, shares->wait, known);
    }
    free(groups);
}

/* The text of a long split in lines that end at commas. Quoted lines can be typed, since -ts takes blanks. */
static void print_split_lines(const char *text, int used, int indent, FILE *out)
{
    for (const char *at = text; *at;) {
        int entry = (int)strcspn(at, ",");
        entry += at[entry] == ',';
        if (used + entry > COLUMNS - 1) {
            fprintf(out, "\n%*s", indent, "");
            used = indent;
        }
        used += fprintf(out, "%.*s", entry, at);
        at += entry;
    }
}

void bench_print_use(const char *split, FILE *out)
{
    bool quoted = strlen(split) > COLUMNS - sizeof "Use -ts ";
    int used = fprintf(out, "Use -ts %s", quoted ? "'" : "");
    print_split_lines(split, used, 4, out);
    fprintf(out, "%s\n", quoted ? "'" : "");
}

void bench_print_splits(const bench_report *report, FILE *out)
{
    for (int r = 0; r < report->n_rows && bench_splits_are_long(report); r++) {
        int used = fprintf(out, "split %d: ", r + 1);
        print_split_lines(report->rows[r]->text, used, 4, out);
        fprintf(out, "\n");
    }
}

static void print_shown(const bench_report *report, FILE *out)
{
    char name[BENCH_ROW_LABEL];
    bench_row_name(report, report->shown_row, name);
    fprintf(out, "\nwith %s, in %s:\n", name, report->tests[report->n_tests - 1].name);
}

bool bench_print_table(const bench_report *report, FILE *out)
{
    tool_table speeds = {0}, devices = {0};
    bench_fill_speeds(report, true, &speeds);
    bench_fill_devices(report, true, &devices);
    bench_print_environment(report, out);
    bench_print_splits(report, out);
    fprintf(out, "\n");
    tool_table_print(&speeds, out);
    print_shown(report, out);
    tool_table_print(&devices, out);
    bench_print_advice(report, out);
    tool_table_free(&devices);
    tool_table_free(&speeds);
    return !ferror(out);
}

/* -- markdown -- */

static void print_markdown_table(const tool_table *table, FILE *out)
{
    for (int cell = 0; cell < table->n_cells; cell++) {
        const char *text = table->cells[cell];
        fprintf(out, "%s %s ", "|", text ? text : "");
        if ((cell + 1) % table->n_columns)
            continue;
        fprintf(out, "|\n");
        if (cell + 1 == table->n_columns) {
            for (int c = 0; c < table->n_columns; c++)
                fprintf(out, "| ---%s ", c ? ":" : "");
            fprintf(out, "|\n");
        }
    }
}

bool bench_print_markdown(const bench_report *report, FILE *out)
{
    tool_table speeds = {0}, devices = {0};
    bench_fill_speeds(report, false, &speeds);
    bench_fill_devices(report, false, &devices);
    print_environment_lines(report, out, true);
    fprintf(out, "\n");
    print_markdown_table(&speeds, out);
    print_shown(report, out);
    fprintf(out, "\n");
    print_markdown_table(&devices, out);
    bench_print_advice(report, out);
    tool_table_free(&devices);
    tool_table_free(&speeds);
    return !ferror(out);
}

/* -- CSV -- */

/* RFC 4180: quoted, with quotes doubled. */
static void print_quoted(const char *text, FILE *out)
{
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

bool bench_print_csv(const bench_report *report, FILE *out)
{
    const bench_environment *e = &report->environment;
    fprintf(out, "model,weight_type,split,kind,test,n_prompt,n_gen,depth,n,tokens_per_s,tokens_per_s_low,"
                 "tokens_per_s_high,predicted_tokens_per_s");
    for (int d = 0; d < report->n_devices; d++)
        fprintf(out, ",%s_bytes,%s_compute,%s_reduce,%s_wait", report->devices[d].name,
                report->devices[d].name, report->devices[d].name, report->devices[d].name);
    fprintf(out, "\n");
    for (int r = 0; r < report->n_rows; r++)
        for (int t = 0; t < report->n_tests; t++) {
            const bench_row *row = report->rows[r];
            const bench_test *test = &report->tests[t];
            const bench_cell *cell = &row->cells[t];
            bench_stat stat = bench_stat_of(test, cell);
            print_quoted(*e->model_name ? e->model_name : e->model_path, out);
            fputc(',', out);
            print_quoted(e->weight_type, out);
            fputc(',', out);
            print_quoted(row->text, out);
            fprintf(out, ",%s,%s,%d,%d,%d,%d,%.9g,%.9g,%.9g,%.9g", bench_row_kind_name(row->kind), test->name,
                    test->n_prompt, test->n_gen, test->depth, cell->n, stat.median, stat.low, stat.high,
                    bench_predicted_rate(test, cell));
            for (int d = 0; d < report->n_devices; d++)
                fprintf(out, ",%llu,%.6g,%.6g,%.6g", (unsigned long long)bench_total_bytes(&row->devices[d]),
                        cell->shares[d].compute, cell->shares[d].reduce, cell->shares[d].wait);
            fprintf(out, "\n");
        }
    return !ferror(out);
}
