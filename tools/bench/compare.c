/* Two reports compared: ratios of medians, with their range by chance. */
#include <string.h>

#include "bench/output.h"
#include "format.h"

static int same_test(const bench_report *report, const bench_test *test)
{
    for (int t = 0; t < report->n_tests; t++) {
        const bench_test *other = &report->tests[t];
        if (other->n_prompt == test->n_prompt && other->n_gen == test->n_gen && other->depth == test->depth)
            return t;
    }
    return -1;
}

/* The planner's row matches the planner's even if the divisions differ: then the plans are compared. */
static const bench_row *same_row(const bench_report *report, const bench_row *row)
{
    for (int r = 0; r < report->n_rows; r++) {
        const bench_row *other = report->rows[r];
        bool planned = row->kind == BENCH_ROW_PLANNED, its = other->kind == BENCH_ROW_PLANNED;
        if (planned == its && (planned || strcmp(other->text, row->text) == 0))
            return other;
    }
    return NULL;
}

static bool same_model(const bench_environment *a, const bench_environment *b)
{
    return strcmp(a->weight_type, b->weight_type) == 0 && a->weight_bytes == b->weight_bytes &&
           a->n_layers == b->n_layers;
}

/* Without `judged` there is no word on faster or slower: of two models, it would say nothing of the split. */
static void add_line(tool_table *table, const bench_test *test, const bench_row *now, bench_stat a,
                     const bench_row *before, bench_stat b, bool judged)
{
    tool_table_cell(table, "%s", now->text);
    tool_table_cell(table, "%s", strcmp(now->text, before->text) == 0 ? "" : before->text);
    tool_table_cell(table, "%s", test->name);
    tool_table_cell(table, "%.2f", b.median);
    tool_table_cell(table, "%.2f", a.median);
    tool_table_cell(table, "%.3f", a.median / b.median);
    tool_table_cell(table, "%.3f to %.3f", a.low / b.high, a.high / b.low);
    tool_table_cell(table, "%s",
                    !judged                    ? ""
                    : bench_within_noise(a, b) ? "within noise"
                    : a.median > b.median      ? "faster"
                                               : "slower");
}

static void print_differences(const bench_environment *now, const bench_environment *before, FILE *out)
{
    if (strcmp(now->machine, before->machine) != 0)
        fprintf(out, "another machine: %s\n", before->machine);
    if (!same_model(now, before))
        fprintf(out, "another model, so the ratios compare models: %s, %s\n", before->model_path,
                before->weight_type);
    if (strcmp(now->version, before->version) != 0)
        fprintf(out, "another version: %s\n", before->version);
}

void bench_print_comparison(const bench_report *now, const bench_report *before, const char *path, FILE *out)
{
    tool_table table = {0};
    int n = 0;
    tool_table_header(
        &table, 8, (const char *[]){"split", "was", "test", "tokens/s before", "now", "ratio", "spread", ""});
    for (int r = 0; r < now->n_rows; r++) {
        const bench_row *row = now->rows[r], *other = same_row(before, row);
        for (int t = 0; t < now->n_tests && other; t++) {
            int its = same_test(before, &now->tests[t]);
            bench_stat a = bench_stat_of(&now->tests[t], &row->cells[t]), b = {0};
            if (its >= 0)
                b = bench_stat_of(&before->tests[its], &other->cells[its]);
            if (!(a.median > 0) || !(b.median > 0))
                continue;
            add_line(&table, &now->tests[t], row, a, other, b,
                     same_model(&now->environment, &before->environment));
            n++;
        }
    }
    fprintf(out, "\ncompared with %s of %s:\n", path, before->environment.date);
    print_differences(&now->environment, &before->environment, out);
    if (n)
        tool_table_print(&table, out);
    else
        fprintf(out, "no split and test is in both reports\n");
    tool_table_free(&table);
}
