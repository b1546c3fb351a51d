/* Two reports compared: the difference of medians, the noise that it must exceed, and what else differs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/bytes.h>

#include "bench/groups.h"
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

static double share(const bench_row *row, int d)
{
    double sum = 0;
    for (int i = 0; i < TSR_MAX_DEVICES; i++)
        sum += (double)row->split[i];
    return sum > 0 ? (double)row->split[d] / sum : 0;
}

static bool same_shares(const bench_row *a, const bench_row *b)
{
    for (int d = 0; d < TSR_MAX_DEVICES; d++)
        if (fabs(share(a, d) - share(b, d)) > 1e-5)
            return false;
    return true;
}

/* The planner's row matches the planner's even if the divisions differ: then the plans are compared. */
static const bench_row *same_row(const bench_report *report, const bench_row *row)
{
    const bench_row *planned = bench_row_of_kind(report, BENCH_ROW_PLANNED);
    if (row->kind == BENCH_ROW_PLANNED && planned)
        return planned;
    for (int r = 0; r < report->n_rows; r++)
        if (report->rows[r] != planned && row->kind != BENCH_ROW_PLANNED && same_shares(report->rows[r], row))
            return report->rows[r];
    return NULL;
}

/* -- what else differs -- */

static bool same_model(const bench_environment *a, const bench_environment *b)
{
    return strcmp(a->model_name, b->model_name) == 0 && strcmp(a->architecture, b->architecture) == 0 &&
           strcmp(a->weight_type, b->weight_type) == 0 && a->weight_bytes == b->weight_bytes &&
           a->n_params == b->n_params && a->n_layers == b->n_layers &&
           a->layers_measured == b->layers_measured && a->layers_extrapolated == b->layers_extrapolated;
}

static void print_text(const char *what, const char *now, const char *before, FILE *out)
{
    char *text;
    if (strcmp(now, before) == 0)
        return;
    int n =
        asprintf(&text, "%s: now %s; before %s", what, *now ? now : "unknown", *before ? before : "unknown");
    if (n < 0)
        return;
    tool_print_wrapped(text, n, 80, 0, 2, out);
    free(text);
}

static void print_number(const char *what, int64_t now, int64_t before, FILE *out)
{
    char a[24], b[24];
    snprintf(a, sizeof a, "%lld", (long long)now);
    snprintf(b, sizeof b, "%lld", (long long)before);
    print_text(what, a, b, out);
}

static void name_model(const bench_environment *e, char text[400])
{
    char bytes[TSR_BYTES_TEXT];
    int used = snprintf(text, 400, "%s (%s, %s", *e->model_name ? e->model_name : e->model_path,
                        e->weight_type, tsr_bytes_text(e->weight_bytes, bytes));
    if (e->layers_extrapolated)
        used += snprintf(text + used, 400 - (size_t)used, ", extrapolated from %lld of %lld layers",
                         (long long)e->layers_measured, (long long)e->layers_extrapolated);
    snprintf(text + used, 400 - (size_t)used, ")");
}

static char *list_devices(const bench_report *report)
{
    bench_group *groups;
    char *text = NULL;
    size_t bytes = 0;
    int n = bench_groups(report, bench_same_make, &groups);
    FILE *memory = open_memstream(&text, &bytes);
    for (int g = 0; g < n && memory; g++)
        fprintf(memory, "%s%s: %s", g ? ", " : "", groups[g].name, groups[g].what);
    if (memory)
        fclose(memory);
    free(groups);
    return text;
}

static void print_devices(const bench_report *now, const bench_report *before, FILE *out)
{
    char *a = list_devices(now), *b = list_devices(before);
    if (a && b)
        print_text("different devices", a, b, out);
    free(a);
    free(b);
}

static void print_differences(const bench_report *now, const bench_report *before, FILE *out)
{
    const bench_environment *a = &now->environment, *b = &before->environment;
    const bench_row *x = bench_row_of_kind(now, BENCH_ROW_PLANNED),
                    *y = bench_row_of_kind(before, BENCH_ROW_PLANNED);
    if (!same_model(a, b)) {
        char its[400], other[400];
        name_model(a, its);
        name_model(b, other);
        if (strcmp(its, other) == 0) { /* they differ in what the names do not have */
            snprintf(its, sizeof its, "%s", a->model_path);
            snprintf(other, sizeof other, "%s, another file", b->model_path);
        }
        print_text("different models", its, other, out);
    }
    print_text("different machines", a->machine, b->machine, out);
    print_text("different drivers", a->driver, b->driver, out);
    print_text("different versions", a->version, b->version, out);
    if (strcmp(a->version, b->version) == 0)
        print_text("different builds", a->build, b->build, out);
    print_devices(now, before, out);
    print_text("KV types of keys", a->type_k, b->type_k, out);
    print_text("KV types of values", a->type_v, b->type_v, out);
    print_text("split modes", a->mode, b->mode, out);
    print_text("reductions", a->reduction, b->reduction, out);
    print_text("collectives", a->collectives, b->collectives, out);
    print_number("bits of activations", a->activation_bits, b->activation_bits, out);
    print_number("contexts", a->n_ctx, b->n_ctx, out);
    print_number("batches", a->n_batch, b->n_batch, out);
    if (x && y)
        print_text("the planner's splits", x->text, y->text, out);
}

/* -- the table -- */

static void add_line(tool_table *table, const bench_report *report, const bench_row *row,
                     const bench_test *test, bench_stat now, bench_stat before, bool verdict)
{
    char name[BENCH_ROW_LABEL];
    /* like the change, of the median before */
    double noise = bench_noise(now, before) * fmin(now.median, before.median) / before.median;
    bench_row_name(report, row, name);
    tool_table_cell(table, "%s", name);
    tool_table_cell(table, "%s", test->name);
    tool_table_cell(table, before.median < 100 ? "%.2f" : "%.1f", before.median);
    tool_table_cell(table, now.median < 100 ? "%.2f" : "%.1f", now.median);
    tool_table_cell(table, "%+.1f %%", 100 * (now.median / before.median - 1));
    if (isinf(noise))
        tool_table_cell(table, "-");
    else
        tool_table_cell(table, "%.1f %%", 100 * noise);
    tool_table_cell(table, "%s",
                    !verdict                          ? ""
                    : isinf(noise)                    ? "unknown"
                    : bench_within_noise(now, before) ? "within noise"
                    : now.median > before.median      ? "faster"
                                                      : "slower");
}

/* Results of two models are shown together, but one is not "faster" than the other. */
void bench_print_comparison(const bench_report *now, const bench_report *before, const char *path, FILE *out)
{
    tool_table table = {0};
    int n = 0;
    bool verdict = same_model(&now->environment, &before->environment);
    tool_table_header(&table, 7, (const char *[]){"split", "test", "before", "now", "change", "noise", ""});
    for (int r = 0; r < now->n_rows; r++) {
        const bench_row *row = now->rows[r], *other = same_row(before, row);
        for (int t = 0; t < now->n_tests && other; t++) {
            int its = same_test(before, &now->tests[t]);
            bench_stat a = bench_stat_of(&now->tests[t], &row->cells[t]), b = {0};
            if (its >= 0)
                b = bench_stat_of(&before->tests[its], &other->cells[its]);
            if (a.n == 0 || b.n == 0)
                continue;
            add_line(&table, now, row, &now->tests[t], a, b, verdict);
            n++;
        }
    }
    fprintf(out, "\ncompared with %s of %s, tokens/s:\n", path, before->environment.date);
    print_differences(now, before, out);
    if (n) {
        bench_print_splits(now, out);
        tool_table_print(&table, out);
    } else {
        fprintf(out, "no split and test is in both reports\n");
    }
    tool_table_free(&table);
}
