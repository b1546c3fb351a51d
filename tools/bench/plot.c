/* The pictures of a report; see bench/plot.h. */
#include "bench/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/bytes.h>

#include "bench/chart.h"
#include "bench/groups.h"
#include "bench/output.h"
#include "bench/svg.h"

enum { MOST_BARS = 40, GAP = 12 };

static chart_point *add_point(chart *c, const char *label)
{
    chart_point *grown = realloc(c->points, ((size_t)c->n + 1) * sizeof *grown);
    if (!grown)
        return NULL;
    c->points = grown;
    chart_point *point = &c->points[c->n++];
    *point = (chart_point){0};
    snprintf(point->label, sizeof point->label, "%s", label);
    return point;
}

static void set_keys(chart *c, const char *const (*keys)[2], int n)
{
    for (int k = 0; k < n; k++) {
        c->keys[k].shape = keys[k][0];
        c->keys[k].text = keys[k][1];
    }
}

/* -- speeds of splits -- */

static double fastest(const bench_report *report, int test)
{
    double most = 0;
    for (int r = 0; r < report->n_rows; r++)
        most = fmax(most, bench_stat_of(&report->tests[test], &report->rows[r]->cells[test]).median);
    return most;
}

/* All tests have one scale: percent of the fastest split. Predictions of more than half above are beyond
 * it. */
static double common_scale(const bench_report *report)
{
    double most = 100;
    for (int t = 0; t < report->n_tests; t++) {
        const double whole = fastest(report, t) / 100;
        for (int r = 0; r < report->n_rows; r++) {
            const bench_cell *cell = &report->rows[r]->cells[t];
            double predicted = bench_predicted_rate(&report->tests[t], cell) / whole;
            if (cell->n)
                most = fmax(most,
                            fmax(bench_stat_of(&report->tests[t], cell).high / whole, fmin(predicted, 150)));
        }
    }
    return 25 * ceil(most / 25);
}

static double first_share(const bench_report *report, const bench_row *row)
{
    double sum = 0;
    for (int d = 0; d < report->n_devices; d++)
        sum += (double)row->split[d];
    return sum > 0 ? (double)row->split[0] / sum : 0;
}

/* Rows with results: of two devices by the first share, otherwise the fastest ones first. */
static const bench_row **sorted_rows(const bench_report *report, int *n_out)
{
    const bench_row **rows = calloc((size_t)report->n_rows, sizeof *rows);
    double *keys = calloc((size_t)report->n_rows, sizeof *keys);
    *n_out = 0;
    for (int r = 0; r < report->n_rows && rows && keys; r++) {
        const bench_row *row = report->rows[r];
        double key = report->n_devices == 2 ? first_share(report, row) : -bench_row_stat(report, row).median;
        int at = (*n_out)++;
        if (bench_row_stat(report, row).n == 0) {
            --*n_out;
            continue;
        }
        for (; at > 0 && keys[at - 1] > key; at--) {
            keys[at] = keys[at - 1];
            rows[at] = rows[at - 1];
        }
        keys[at] = key;
        rows[at] = row;
    }
    free(keys);
    return rows;
}

/* Values are in percent of `whole`. */
static void add_speed(const bench_report *report, int test, const bench_row *row, double whole, chart *c)
{
    const bench_cell *cell = &row->cells[test];
    bench_stat stat = bench_stat_of(&report->tests[test], cell);
    double predicted = bench_predicted_rate(&report->tests[test], cell);
    char label[BENCH_ROW_LABEL];
    bench_row_label(report, row, label);
    chart_point *p = add_point(c, report->n_devices > 1 ? label : report->devices[0].name);
    if (!p)
        return;
    size_t used = 0;
    used = (size_t)snprintf(p->note, sizeof p->note, stat.median < 100 ? "%.2f" : "%.1f", stat.median);
    if (stat.n >= BENCH_LEAST_REPETITIONS)
        snprintf(p->note + used, sizeof p->note - used, " tokens/s \302\261%.1f %%",
                 50 * (stat.high - stat.low) / stat.median);
    else
        snprintf(p->note + used, sizeof p->note - used, " tokens/s");
    p->x = first_share(report, row);
    p->parts[0] = stat.median / whole;
    p->low = stat.low / whole;
    p->high = stat.high / whole;
    p->predicted = predicted / whole;
    p->best = row->best;
    p->ring = row->kind == BENCH_ROW_PLANNED;
}

static void speed_chart(const bench_report *report, int test, chart *c)
{
    static const char *const bars[][2] = {
        {"a", "measured"}, {"spread", "spread"}, {"predicted", "predicted"}, {"best", "best within noise"}};
    static const char *const curve[][2] = {{"a", "measured"},
                                           {"spread", "spread"},
                                           {"predicted", "predicted"},
                                           {"best", "best"},
                                           {"ring", "planner's"}};
    int n;
    const bench_row **rows = sorted_rows(report, &n);
    double whole = fastest(report, test) / 100;
    c->is_curve = report->n_devices == 2 && n > 1;
    c->most = common_scale(report);
    c->step = c->most > 150 ? 50 : 25;
    c->second = whole;
    set_keys(c, c->is_curve ? curve : bars, c->is_curve ? 5 : n > 1 ? 4 : 3);
    for (int i = 0; i < n && (c->is_curve || i < MOST_BARS); i++)
        add_speed(report, test, rows[i], whole, c);
    if (n > c->n)
        snprintf(c->footer, sizeof c->footer, "%d slower splits are not drawn; the table has all", n - c->n);
    snprintf(c->title, sizeof c->title, "Speed in %s", report->tests[test].name);
    snprintf(c->second_axis, sizeof c->second_axis, "tokens/s");
    snprintf(c->x_axis, sizeof c->x_axis, "share of %s", report->devices[0].name);
    if (c->is_curve)
        snprintf(c->axis, sizeof c->axis, "%% of the fastest");
    else
        snprintf(c->axis, sizeof c->axis, "tokens/s in %% of the fastest, %.*f tokens/s", whole < 1 ? 2 : 1,
                 100 * whole);
    free(rows);
}

/* -- devices -- */

/* What the devices did in a test, or their memory. */
static void title_with_split(const bench_report *report, chart *c, const char *test)
{
    char name[BENCH_ROW_LABEL];
    bench_row_name(report, report->shown_row, name);
    snprintf(c->title, sizeof c->title, "%s%s%s%s", test ? "Time in " : "Memory", test ? test : "",
             report->n_devices > 1 ? " with " : "", report->n_devices > 1 ? name : "");
}

static void time_chart(const bench_report *report, const bench_group *groups, int n, chart *c)
{
    static const char *const keys[][2] = {{"a", "compute"}, {"b", "reduce"}, {"c", "wait for others"}};
    const bench_row *row = report->shown_row;
    const int last = report->n_tests - 1;
    title_with_split(report, c, report->tests[last].name);
    snprintf(c->axis, sizeof c->axis, "%% of the time");
    c->most = 100;
    c->step = 25;
    set_keys(c, keys, 3);
    for (int g = 0; g < n; g++) {
        const bench_shares *s = &row->cells[last].shares[groups[g].first];
        chart_point *p = add_point(c, groups[g].name);
        if (!p)
            return;
        memcpy(p->parts, (double[]){100 * s->compute, 100 * s->reduce, 100 * s->wait}, sizeof p->parts);
        if (s->compute + s->reduce + s->wait > 0)
            snprintf(p->note, sizeof p->note, "%s%.1f %% waiting", groups[g].n > 1 ? "each " : "",
                     100 * s->wait);
        else
            snprintf(p->note, sizeof p->note, "not used");
    }
}

static void add_memory(const bench_report *report, const bench_group *group, double unit, chart *c)
{
    const bench_row_device *device = &report->shown_row->devices[group->first];
    double weights = (double)device->bytes[TSR_MEMORY_WEIGHTS], kv = (double)device->bytes[TSR_MEMORY_KV];
    uint64_t all = bench_total_bytes(device);
    char total[TSR_BYTES_TEXT], capacity[TSR_BYTES_TEXT];
    chart_point *p = add_point(c, group->name);
    if (!p)
        return;
    memcpy(p->parts, (double[]){weights / unit, kv / unit, ((double)all - weights - kv) / unit},
           sizeof p->parts);
    if ((double)device->capacity <= c->most * unit)
        p->frame = (double)device->capacity / unit;
    snprintf(p->note, sizeof p->note, "%s%s%s%s", group->n > 1 ? "each " : "", tsr_bytes_text(all, total),
             device->capacity ? " of " : "",
             device->capacity ? tsr_bytes_text(device->capacity, capacity) : "");
}

/* The axis ends at the largest device's memory, or where most memory is unused, at the most used. */
static void memory_chart(const bench_report *report, const bench_group *groups, int n, chart *c)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    static const char *const keys[][2] = {{"a", "weights"}, {"b", "KV"}, {"c", "other"}};
    const bench_row *row = report->shown_row;
    double used = 1, capacity = 0;
    for (int d = 0; d < report->n_devices; d++) {
        used = fmax(used, (double)bench_total_bytes(&row->devices[d]));
        capacity = fmax(capacity, (double)row->devices[d].capacity);
    }
    double most = capacity < 20 * used ? fmax(used, capacity) : used, unit = 1;
    size_t u = 0;
    for (; u + 1 < sizeof units / sizeof *units && most / unit >= 1024; u++)
        unit *= 1024;
    c->step = chart_nice_step(most / unit);
    c->most = most / unit;
    title_with_split(report, c, NULL);
    snprintf(c->axis, sizeof c->axis, "memory, %s", units[u]);
    set_keys(c, keys, 3);
    for (int g = 0; g < n; g++)
        add_memory(report, &groups[g], unit, c);
    for (int p = 0; p < c->n; p++)
        if (c->points[p].frame > 0)
            c->keys[2].text = "other; frame: the device's memory";
}

/* -- the whole picture -- */

static bool times_known(const bench_report *report)
{
    const bench_shares *shares = report->shown_row->cells[report->n_tests - 1].shares;
    for (int d = 0; d < report->n_devices; d++)
        if (shares[d].compute + shares[d].reduce + shares[d].wait > 0)
            return true;
    return false;
}

int bench_n_panels(const bench_report *report)
{
    return report->n_tests + 1 + times_known(report);
}

int bench_print_panel(const bench_report *report, int index, int x, int y, FILE *out)
{
    chart c = {0};
    bench_group *groups;
    int n = bench_groups(report, bench_same_use, &groups);
    if (index < report->n_tests)
        speed_chart(report, index, &c);
    else if (index == report->n_tests)
        memory_chart(report, groups, n, &c);
    else
        time_chart(report, groups, n, &c);
    chart_draw(&c, x, y, out);
    free(c.points);
    free(groups);
    return chart_height(&c);
}

int bench_print_machine(const bench_report *report, int x, int y, int width, FILE *out)
{
    enum { MOST_COLUMNS = 4, HEIGHT = 48 };
    bench_group *groups;
    const int n = bench_groups(report, bench_same_make, &groups);
    const int columns = n < 2 ? 2 : n < MOST_COLUMNS ? n : MOST_COLUMNS;
    const int box = (width - (columns - 1) * GAP) / columns;
    for (int g = 0; g < n; g++) {
        /* an <svg> element cuts what is wider than expected */
        fprintf(out,
                "<svg class=\"device\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"><rect class=\"a open\" "
                "x=\"1\" "
                "y=\"1\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n",
                x + g % columns * (box + GAP), y + g / columns * (HEIGHT + GAP), box, HEIGHT, box - 2,
                HEIGHT - 2);
        svg_text(out, 10, 20, SVG_START, SVG_TITLE, box - 20, groups[g].name);
        svg_text(out, 10, 38, SVG_START, SVG_SOFT, box - 20, groups[g].what);
        fprintf(out, "</svg>\n");
    }
    free(groups);
    return (n + columns - 1) / columns * (HEIGHT + GAP);
}

/* Lines of text as `print` makes them, from y on. Returns the height. */
static int print_lines(const bench_report *report, void (*print)(const bench_report *, FILE *), int y,
                       int width, FILE *out)
{
    char *text = NULL, *rest;
    size_t bytes = 0;
    int height = 0;
    FILE *memory = open_memstream(&text, &bytes);
    if (!memory)
        return 0;
    print(report, memory);
    if (fclose(memory) == 0)
        for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), height += 17)
            svg_text(out, GAP, y + height + 12, SVG_START, SVG_PLAIN, width - 2 * GAP, line);
    free(text);
    return height;
}

static void print_subject(const bench_report *report, FILE *out)
{
    const bench_environment *e = &report->environment;
    char bytes[TSR_BYTES_TEXT];
    fprintf(out, "%s, %s, %lld layers; reductions: %s\n%s%s%s\ntsr %s%s%s, %s\n", e->weight_type,
            tsr_bytes_text(e->weight_bytes, bytes), (long long)e->n_layers, e->collectives, e->machine,
            *e->driver ? "; " : "", e->driver, e->version, *e->build ? ", build " : "", e->build, e->date);
}

void bench_print_title(const bench_report *report, FILE *out)
{
    const bench_environment *e = &report->environment;
    fprintf(out, "%s on %d device%s", *e->model_name ? e->model_name : e->model_path, report->n_devices,
            report->n_devices == 1 ? "" : "s");
}

static int print_head(const bench_report *report, int width, FILE *out)
{
    char title[sizeof report->environment.model_path + 32] = "";
    FILE *memory = fmemopen(title, sizeof title, "w");
    if (memory) {
        bench_print_title(report, memory);
        fclose(memory);
    }
    svg_text(out, GAP, 26, SVG_START, SVG_TITLE, width - 2 * GAP, title);
    int y = 34;
    y += print_lines(report, print_subject, y, width, out);
    y += 8 + print_lines(report, bench_print_advice, y + 4, width, out);
    return y + bench_print_machine(report, GAP, y, width - 2 * GAP, out);
}

static int print_panels(const bench_report *report, int y, FILE *out)
{
    int height = 0;
    for (int p = 0; p < bench_n_panels(report); p++) {
        int its = bench_print_panel(report, p, GAP + p % 2 * (CHART_WIDTH + GAP), y, out);
        height = its > height ? its : height;
        if (p % 2 || p + 1 == bench_n_panels(report)) {
            y += height + GAP;
            height = 0;
        }
    }
    return y;
}

/* The body comes first, since its height is known only afterwards. */
bool bench_print_svg(const bench_report *report, FILE *out)
{
    const int width = 2 * (CHART_WIDTH + GAP) + GAP;
    char *body = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&body, &bytes);
    if (!memory)
        return false;
    int height = print_panels(report, print_head(report, width, memory), memory);
    if (report->n_rows <= MOST_BARS) /* the bars show the beginning of a long split */
        height += print_lines(report, bench_print_splits, height, width, memory) + 4;
    if (fclose(memory) != 0) {
        free(body);
        return false;
    }
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
            "%d\">\n<title>",
            width, height, width, height);
    svg_escape(*report->environment.model_name ? report->environment.model_name
                                               : report->environment.model_path,
               out);
    fprintf(out, "</title>\n<style>\n");
    svg_style(out);
    fprintf(out, "</style>\n<rect width=\"100%%\" height=\"100%%\" class=\"page\"/>\n%s</svg>\n", body);
    free(body);
    return !ferror(out);
}
