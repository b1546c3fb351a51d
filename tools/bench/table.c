/* A report as text: aligned tables for a terminal, markdown for forum posts, CSV for plotting programs. */
#include <string.h>

#include <tsr/bytes.h>

#include "bench/output.h"
#include "bench/speeds.h"

/* -- common parts -- */

static void print_environment_lines(const bench_report *report, FILE *out, const char *bullet)
{
    const bench_environment *e = &report->environment;
    char bytes[TSR_BYTES_TEXT];
    fprintf(out, "%stsr %s, %s\n", bullet, e->version, e->date);
    fprintf(out, "%s%s%s%s\n", bullet, e->machine, *e->driver ? "; " : "", e->driver);
    for (int d = 0; d < report->n_devices; d++)
        fprintf(out, "%s%s: %s\n", bullet, report->devices[d].name, report->devices[d].what);
    fprintf(out, "%s%s: %s, %.2f B parameters, %s, %s; %lld layers\n", bullet,
            *e->model_name ? e->model_name : e->model_path, e->architecture, (double)e->n_params * 1e-9,
            e->weight_type, tsr_bytes_text(e->weight_bytes, bytes), (long long)e->n_layers);
    fprintf(out,
            "%sKV %s and %s, context %lld, batch %d, mode %s, reduction %s, activations of %d bits, "
            "collectives %s\n",
            bullet, e->type_k, e->type_v, (long long)e->n_ctx, e->n_batch, e->mode, e->reduction,
            e->activation_bits, e->collectives);
    for (int n = 0; n < report->n_notes; n++)
        fprintf(out, "%s%s\n", bullet, report->notes[n]);
    if (report->interrupted)
        fprintf(out, "%sinterrupted: shows what had been measured until then\n", bullet);
}

void bench_print_environment(const bench_report *report, FILE *out)
{
    print_environment_lines(report, out, "");
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
static void add_mark(tool_table *table, const bench_report *report, const bench_row *row)
{
    const char *kind = row->kind == BENCH_ROW_GIVEN ? "" : bench_row_kind_name(row->kind);
    bool best = bench_is_best(report, row);
    tool_table_cell(table, "%s%s%s", kind, best && *kind ? ", " : "", best ? "best" : "");
}

/* One line per division and test. */
void bench_fill_speeds(const bench_report *report, tool_table *table)
{
    tool_table_header(table, 7,
                      (const char *[]){"split", "", "test", "tokens/s", "spread", "predicted", "n"});
    for (int r = 0; r < report->n_rows; r++) {
        const bench_row *row = report->rows[r];
        for (int t = 0; t < report->n_tests; t++) {
            const bench_cell *cell = &row->cells[t];
            bench_stat stat = bench_stat_of(&report->tests[t], cell);
            tool_table_cell(table, "%s", row->text);
            add_mark(table, report, row);
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

void bench_fill_devices(const bench_report *report, tool_table *table)
{
    const bench_row *row = bench_shown_row(report);
    char bytes[TSR_BYTES_TEXT];
    const int last = report->n_tests - 1;
    tool_table_header(
        table, 8,
        (const char *[]){"device", "memory", "weights", "KV", "other", "compute", "reduce", "wait"});
    for (int d = 0; d < report->n_devices; d++) {
        const bench_row_device *device = &row->devices[d];
        const bench_shares *shares = &row->cells[last].shares[d];
        uint64_t total = bench_total_bytes(device);
        uint64_t weights = device->bytes[TSR_MEMORY_WEIGHTS], kv = device->bytes[TSR_MEMORY_KV];
        bool known = shares->compute + shares->reduce + shares->wait > 0;
        tool_table_cell(table, "%s", report->devices[d].name);
        tool_table_cell(table, "%s", tsr_bytes_text(total, bytes));
        tool_table_cell(table, "%s", tsr_bytes_text(weights, bytes));
        tool_table_cell(table, "%s", tsr_bytes_text(kv, bytes));
        tool_table_cell(table, "%s", tsr_bytes_text(total - weights - kv, bytes));
        add_share(table, shares->compute, known);
        add_share(table, shares->reduce, known);
        add_share(table, shares->wait, known);
    }
}

bool bench_print_table(const bench_report *report, FILE *out)
{
    tool_table speeds = {0}, devices = {0};
    const bench_row *row = bench_shown_row(report);
    bench_fill_speeds(report, &speeds);
    bench_fill_devices(report, &devices);
    bench_print_environment(report, out);
    fprintf(out, "\n");
    tool_table_print(&speeds, out);
    fprintf(out, "\nwith %s, in %s:\n", row->text, report->tests[report->n_tests - 1].name);
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
    const bench_row *row = bench_shown_row(report);
    bench_fill_speeds(report, &speeds);
    bench_fill_devices(report, &devices);
    print_environment_lines(report, out, "- ");
    fprintf(out, "\n");
    print_markdown_table(&speeds, out);
    fprintf(out, "\nWith %s, in %s:\n\n", row->text, report->tests[report->n_tests - 1].name);
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
