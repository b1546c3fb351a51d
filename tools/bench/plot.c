/* The pictures of a report; see bench/plot.h. */
#include "bench/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/bytes.h>

#include "bench/output.h"

/* The axes' rectangle inside a panel. */
static const double left = 52, right = BENCH_PANEL_WIDTH - 28, top = 58, bottom = BENCH_PANEL_HEIGHT - 44;

/* Colours are repeated in every rule, since SVG renderers (librsvg 2.54) do not support CSS variables. */
typedef struct palette {
    const char *ink, *soft, *line, *card, *page, *a, *b, *c, *best;
} palette;

static void print_rules(const palette *p, FILE *out)
{
    const struct {
        const char *class, *colour;
    } parts[] = {{"a", p->a}, {"b", p->b}, {"c", p->c}, {"best", p->best}};
    fprintf(out, "svg text{fill:%s}\nsvg .soft{fill:%s}\nsvg .grid{stroke:%s}\n", p->ink, p->soft, p->line);
    fprintf(out, "svg .card{fill:%s}\nsvg .page{fill:%s}\n", p->card, p->page);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        fprintf(out, "svg .%s{stroke:%s;fill:%s}\n", parts[i].class, parts[i].colour, parts[i].colour);
    fprintf(out, ":root{--ink:%s;--soft:%s;--line:%s;--card:%s;--page:%s;--best:%s}\n", p->ink, p->soft,
            p->line, p->card, p->page, p->best);
}

void bench_print_style(FILE *out)
{
    static const palette light = {"#1c2430", "#5b6675", "#d5dbe3", "#ffffff", "#f3f5f8",
                                  "#1767c5", "#c2570c", "#8793a3", "#11803f"};
    static const palette dark = {"#e6eaf0", "#a3aebd", "#38424f", "#1b222b", "#12171d",
                                 "#6aaef7", "#f2a15f", "#76828f", "#5fcf8b"};
    fprintf(out, "svg text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\n"
                 "svg .soft{font-size:11px}\nsvg .title{font-size:14px;font-weight:600}\n");
    print_rules(&light, out);
    fprintf(out, "@media(prefers-color-scheme:dark){\n");
    print_rules(&dark, out);
    fprintf(out, "}\n:root{color-scheme:light dark}\nsvg .open{fill:none}\nsvg .bar{stroke:none}\n");
}

void bench_print_text(const char *text, FILE *out)
{
    for (; *text; text++)
        switch (*text) {
        case '&':
            fputs("&amp;", out);
            break;
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            fputc((unsigned char)*text < ' ' ? ' ' : *text, out); /* XML does not allow control characters */
        }
}

/* anchor: "start", "middle" or "end" */
static void put_text(FILE *out, double x, double y, const char *anchor, const char *class, const char *text)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor, class);
    bench_print_text(text, out);
    fprintf(out, "</text>\n");
}

static void begin_panel(FILE *out, int x, int y, const char *title)
{
    fprintf(out,
            "<svg x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" "
            "xmlns=\"http://www.w3.org/2000/svg\">\n<rect class=\"card\" width=\"%d\" height=\"%d\" "
            "rx=\"8\"/>\n",
            x, y, BENCH_PANEL_WIDTH, BENCH_PANEL_HEIGHT, BENCH_PANEL_WIDTH, BENCH_PANEL_HEIGHT,
            BENCH_PANEL_WIDTH, BENCH_PANEL_HEIGHT);
    put_text(out, 14, 22, "start", "title", title);
}

/* -- speed against ratio -- */

/* Places of rows on the x axis: at the first device's share, if that determines the split, otherwise one
 * after the other. */
typedef struct speed_axes {
    const bench_report *report;
    int test;
    bool by_share;
    double y_max, y_step;
    int n;
    const bench_row **rows; /* [n] rows with results, by x */
} speed_axes;

static double first_share(const bench_report *report, const bench_row *row)
{
    double sum = 0;
    for (int d = 0; d < report->n_devices; d++)
        sum += (double)row->split[d];
    return sum > 0 ? (double)row->split[0] / sum : 0;
}

static bool others_alike(const bench_report *report)
{
    for (int r = 0; r < report->n_rows; r++)
        for (int d = 2; d < report->n_devices; d++)
            if (fabsf(report->rows[r]->split[d] - report->rows[r]->split[1]) >
                0.001f * report->rows[r]->split[1])
                return false;
    return report->n_devices > 1;
}

/* 1, 2 or 5 times a power of ten, such that at most five steps reach `most`. */
static double nice_step(double most)
{
    double power = pow(10, floor(log10(most / 5))), ratio = most / 5 / power;
    return power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
}

static double rate_of(const speed_axes *axes, const bench_row *row)
{
    return bench_stat_of(&axes->report->tests[axes->test], &row->cells[axes->test]).median;
}

static double predicted_of(const speed_axes *axes, const bench_row *row)
{
    return bench_predicted_rate(&axes->report->tests[axes->test], &row->cells[axes->test]);
}

static void sort_rows(speed_axes *axes)
{
    for (int i = 1; i < axes->n; i++)
        for (int j = i;
             j > 0 && first_share(axes->report, axes->rows[j]) < first_share(axes->report, axes->rows[j - 1]);
             j--) {
            const bench_row *swap = axes->rows[j];
            axes->rows[j] = axes->rows[j - 1];
            axes->rows[j - 1] = swap;
        }
}

static bool make_axes(const bench_report *report, int test, speed_axes *axes)
{
    double most = 0;
    *axes = (speed_axes){.report = report, .test = test, .by_share = others_alike(report)};
    axes->rows = calloc((size_t)report->n_rows, sizeof *axes->rows);
    for (int r = 0; r < report->n_rows && axes->rows; r++) {
        const bench_row *row = report->rows[r];
        if (row->cells[test].n == 0)
            continue;
        axes->rows[axes->n++] = row;
        most = fmax(
            most, fmax(bench_stat_of(&report->tests[test], &row->cells[test]).high, predicted_of(axes, row)));
    }
    if (axes->n == 0)
        return false;
    if (axes->by_share)
        sort_rows(axes);
    axes->y_step = nice_step(most);
    axes->y_max = axes->y_step * ceil(most / axes->y_step);
    return true;
}

static double x_at(const speed_axes *axes, int i)
{
    double at = axes->by_share ? first_share(axes->report, axes->rows[i]) : (i + 0.5) / axes->n;
    return left + at * (right - left);
}

static double y_at(const speed_axes *axes, double rate)
{
    return bottom - rate / axes->y_max * (bottom - top);
}

static void draw_grid(const speed_axes *axes, FILE *out)
{
    char text[BENCH_TEXT + 16];
    for (double value = 0; value <= axes->y_max * 1.001; value += axes->y_step) {
        double y = y_at(axes, value);
        fprintf(out, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", left, right,
                y, y);
        snprintf(text, sizeof text, "%g", value);
        put_text(out, left - 6, y + 4, "end", "soft", text);
    }
    if (!axes->by_share) {
        for (int i = 0; i < axes->n; i++) {
            snprintf(text, sizeof text, "%d", i + 1);
            put_text(out, x_at(axes, i), bottom + 16, "middle", "soft", text);
        }
        put_text(out, (left + right) / 2, bottom + 34, "middle", "soft", "line of the table");
        return;
    }
    for (int percent = 0; percent <= 100; percent += 20) {
        snprintf(text, sizeof text, "%d %%", percent);
        put_text(out, left + percent * 0.01 * (right - left), bottom + 16, "middle", "soft", text);
    }
    snprintf(text, sizeof text, "share of %s", axes->report->devices[0].name);
    put_text(out, (left + right) / 2, bottom + 34, "middle", "soft", text);
}

static void draw_predicted(const speed_axes *axes, FILE *out)
{
    fprintf(out, "<polyline class=\"b open\" stroke-width=\"1.5\" stroke-dasharray=\"5 4\" points=\"");
    for (int i = 0; i < axes->n; i++)
        if (predicted_of(axes, axes->rows[i]) > 0)
            fprintf(out, "%.1f,%.1f ", x_at(axes, i), y_at(axes, predicted_of(axes, axes->rows[i])));
    fprintf(out, "\"/>\n");
}

static void draw_measured(const speed_axes *axes, FILE *out)
{

    fprintf(out, "<polyline class=\"a open\" stroke-width=\"1.5\" points=\"");
    for (int i = 0; i < axes->n; i++)
        fprintf(out, "%.1f,%.1f ", x_at(axes, i), y_at(axes, rate_of(axes, axes->rows[i])));
    fprintf(out, "\"/>\n");
    for (int i = 0; i < axes->n; i++) {
        const bench_row *row = axes->rows[i];
        const char *class = bench_is_best(axes->report, row) ? "best" : "a";
        bench_stat stat = bench_stat_of(&axes->report->tests[axes->test], &row->cells[axes->test]);
        fprintf(out,
                "<line class=\"%s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke-width=\"2\"/>\n"
                "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\"><title>",
                class, x_at(axes, i), x_at(axes, i), y_at(axes, stat.low), y_at(axes, stat.high), class,
                x_at(axes, i), y_at(axes, stat.median), bench_is_best(axes->report, row) ? "5" : "3.5");
        bench_print_text(row->text, out);
        fprintf(out, ": %.2f tokens/s, spread %.2f to %.2f</title></circle>\n", stat.median, stat.low,
                stat.high);
    }
}

static void draw_legend(FILE *out)
{
    fprintf(out, "<circle class=\"a\" cx=\"20\" cy=\"37\" r=\"3.5\"/>\n");
    put_text(out, 28, 41, "start", "soft", "measured, bar: spread");
    fprintf(out, "<circle class=\"best\" cx=\"188\" cy=\"37\" r=\"4.5\"/>\n");
    put_text(out, 197, 41, "start", "soft", "best of all tests");
    fprintf(out, "<line class=\"b\" x1=\"296\" x2=\"318\" y1=\"37\" y2=\"37\" stroke-dasharray=\"5 4\" "
                 "stroke-width=\"1.5\"/>\n");
    put_text(out, 323, 41, "start", "soft", "predicted");
}

static void speed_panel(const bench_report *report, int test, int x, int y, FILE *out)
{
    char title[80];
    speed_axes axes;
    snprintf(title, sizeof title, "%s, tokens/s", report->tests[test].name);
    begin_panel(out, x, y, title);
    if (make_axes(report, test, &axes)) {
        draw_legend(out);
        draw_grid(&axes, out);
        draw_predicted(&axes, out);
        draw_measured(&axes, out);
    } else {
        put_text(out, BENCH_PANEL_WIDTH / 2.0, BENCH_PANEL_HEIGHT / 2.0, "middle", "soft", "not measured");
    }
    fprintf(out, "</svg>\n");
    free(axes.rows);
}

/* -- bars per device -- */

enum { MOST_BARS = 8 };

typedef struct bar_part {
    double value;
    const char *class;
} bar_part;

/* A label, a bar whose parts may sum up to `whole`, and a note at its right. */
static void draw_bar(FILE *out, int index, int n, const char *label, const bar_part *parts, int n_parts,
                     double whole, const char *note)
{
    double pitch = (bottom + 20 - top) / (n < 4 ? 4 : n), y = top + 6 + index * pitch;
    double height = pitch < 40 ? pitch - 16 : 24, from = 14, length = right - from;
    put_text(out, from, y + 9, "start", "soft", label);
    put_text(out, right, y + 9, "end", "soft", note);
    fprintf(out, "<rect class=\"grid open\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", from,
            y + 14, length, height > 6 ? height - 6 : 4);
    for (int p = 0; p < n_parts; p++) {
        double part = whole > 0 ? parts[p].value / whole * length : 0;
        if (part < 1 && parts[p].value > 0)
            part = 1; /* keep it visible */
        fprintf(out, "<rect class=\"%s bar\" x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>\n",
                parts[p].class, from, y + 14, part, height > 6 ? height - 6 : 4);
        from += part;
    }
}

static void legend_entry(FILE *out, double x, const char *class, const char *text)
{
    fprintf(out, "<rect class=\"%s bar\" x=\"%.1f\" y=\"32\" width=\"10\" height=\"10\"/>\n", class, x);
    put_text(out, x + 15, 41, "start", "soft", text);
}

static void time_panel(const bench_report *report, const bench_row *row, int x, int y, FILE *out)
{
    char title[BENCH_SPLIT_TEXT + 64];
    int last = report->n_tests - 1, n = report->n_devices < MOST_BARS ? report->n_devices : MOST_BARS;
    snprintf(title, sizeof title, "Time in %s with %s", report->tests[last].name, row->text);
    begin_panel(out, x, y, title);
    legend_entry(out, 14, "a", "compute");
    legend_entry(out, 104, "b", "reduce");
    legend_entry(out, 184, "c", "wait");
    for (int d = 0; d < n; d++) {
        const bench_shares *s = &row->cells[last].shares[d];
        char note[32];
        snprintf(note, sizeof note, "%.1f %% waiting", 100 * s->wait);
        draw_bar(out, d, n, report->devices[d].name,
                 (bar_part[]){{s->compute, "a"}, {s->reduce, "b"}, {s->wait, "c"}}, 3, 1, note);
    }
    fprintf(out, "</svg>\n");
}

/* Whether bars are drawn in proportion to the devices' capacity: otherwise used memory would be too small
 * to see. */
static bool is_to_scale(const bench_report *report, const bench_row *row, double *most)
{
    bool enough = false;
    for (int d = 0; d < report->n_devices; d++) {
        double all = (double)bench_total_bytes(&row->devices[d]);
        *most = fmax(*most, all);
        enough = enough || all > 0.05 * (double)row->devices[d].capacity;
    }
    return enough;
}

static void memory_panel(const bench_report *report, const bench_row *row, int x, int y, FILE *out)
{
    char title[BENCH_SPLIT_TEXT + 16];
    int n = report->n_devices < MOST_BARS ? report->n_devices : MOST_BARS;
    snprintf(title, sizeof title, "Memory with %s", row->text);
    begin_panel(out, x, y, title);
    legend_entry(out, 14, "a", "weights");
    legend_entry(out, 94, "b", "KV");
    double most = 0;
    bool to_scale = is_to_scale(report, row, &most);
    legend_entry(out, 144, "c",
                 to_scale ? "other; frame: the device's memory" : "other; frame: the most used");
    for (int d = 0; d < n; d++) {
        const bench_row_device *device = &row->devices[d];
        double all = (double)bench_total_bytes(device), weights = (double)device->bytes[TSR_MEMORY_WEIGHTS],
               kv = (double)device->bytes[TSR_MEMORY_KV];
        char note[2 * TSR_BYTES_TEXT + 8], total[TSR_BYTES_TEXT], capacity[TSR_BYTES_TEXT];
        tsr_bytes_text((uint64_t)all, total);
        if (device->capacity)
            snprintf(note, sizeof note, "%s of %s", total, tsr_bytes_text(device->capacity, capacity));
        else
            snprintf(note, sizeof note, "%s", total);
        draw_bar(out, d, n, report->devices[d].name,
                 (bar_part[]){{weights, "a"}, {kv, "b"}, {all - weights - kv, "c"}}, 3,
                 to_scale && device->capacity ? (double)device->capacity : most, note);
    }
    fprintf(out, "</svg>\n");
}

/* -- the whole picture -- */

static bool times_known(const bench_report *report)
{
    const bench_shares *s = &bench_shown_row(report)->cells[report->n_tests - 1].shares[0];
    return s->compute + s->reduce + s->wait > 0;
}

int bench_n_panels(const bench_report *report)
{
    return report->n_tests + 1 + times_known(report);
}

void bench_print_panel(const bench_report *report, int index, int x, int y, FILE *out)
{
    if (index < report->n_tests)
        speed_panel(report, index, x, y, out);
    else if (index == report->n_tests)
        memory_panel(report, bench_shown_row(report), x, y, out);
    else
        time_panel(report, bench_shown_row(report), x, y, out);
}

bool bench_print_svg(const bench_report *report, FILE *out)
{
    const int gap = 12, n = bench_n_panels(report), columns = n > 1 ? 2 : 1,
              rows = (n + columns - 1) / columns;
    const int width = columns * (BENCH_PANEL_WIDTH + gap) + gap,
              height = rows * (BENCH_PANEL_HEIGHT + gap) + gap;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
            "%d\">\n<style>\n",
            width, height, width, height);
    bench_print_style(out);
    fprintf(out, "</style>\n<rect width=\"100%%\" height=\"100%%\" class=\"page\"/>\n");
    for (int p = 0; p < n; p++)
        bench_print_panel(report, p, gap + p % columns * (BENCH_PANEL_WIDTH + gap),
                          gap + p / columns * (BENCH_PANEL_HEIGHT + gap), out);
    fprintf(out, "</svg>\n");
    return !ferror(out);
}

void bench_print_machine(const bench_report *report, FILE *out)
{
    const int box = 230, gap = 16, n = report->n_devices, columns = n < 4 ? n : 4;
    const int lines = (n + columns - 1) / columns, width = columns * (box + gap) + gap,
              height = lines * 84 + 34;
    fprintf(out, "<svg class=\"machine\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">\n",
            width, height, width, height);
    for (int d = 0; d < n; d++) {
        double x = gap + d % columns * (box + gap), y = 12 + d / columns * 84;
        fprintf(out,
                "<rect class=\"a open\" x=\"%.0f\" y=\"%.0f\" width=\"%d\" height=\"54\" rx=\"6\"/>\n"
                "<line class=\"a\" x1=\"%.0f\" x2=\"%.0f\" y1=\"%.0f\" y2=\"%.0f\"/>\n",
                x, y, box, x + box / 2.0, x + box / 2.0, y + 54, y + 70);
        put_text(out, x + 10, y + 22, "start", "title", report->devices[d].name);
        put_text(out, x + 10, y + 42, "start", "soft", report->devices[d].what);
    }
    for (int line = 0; line < lines; line++)
        fprintf(out, "<line class=\"a\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke-width=\"3\"/>\n", gap,
                width - gap, 82 + 84 * line, 82 + 84 * line);
    put_text(out, gap, height - 6, "start", "soft", report->environment.collectives);
    fprintf(out, "</svg>\n");
}
