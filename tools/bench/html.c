/* A report as one self-contained page: no script, no font, no other file. */
#include <stdlib.h>
#include <string.h>

#include "bench/groups.h"
#include "bench/output.h"
#include "bench/plot.h"
#include "bench/speeds.h"
#include "bench/svg.h"

static void print_style(FILE *out)
{
    fprintf(out, "<style>\n");
    svg_style(out);
    fprintf(
        out,
        "body{margin:0 auto;max-width:70rem;padding:1rem;background:var(--page);color:var(--ink);"
        "font:15px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\n"
        "h1{font-size:1.3rem;margin:.3rem 0}h2{font-size:1.05rem;margin:1.4rem 0 .5rem}\n"
        "h1,p{overflow-wrap:anywhere}p{color:var(--soft)}\n"
        ".advice{color:var(--ink);background:var(--card);border-left:4px solid var(--best);padding:.6rem "
        ".9rem;border-radius:4px;white-space:pre-wrap;font-variant-numeric:tabular-nums}\n"
        ".panels,.devices{display:grid;gap:12px;align-items:start}\n"
        ".panels{grid-template-columns:repeat(auto-fit,minmax(min(100%%,400px),1fr))}\n"
        ".devices{grid-template-columns:repeat(auto-fit,minmax(min(100%%,200px),1fr))}\n"
        ".devices div{border:1px solid var(--line);border-radius:6px;padding:.4rem .7rem;min-width:0}\n"
        ".devices p{margin:0;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;font-size:.85rem}\n"
        ".devices p:first-child{color:var(--ink);font-weight:600}\n"
        ".panels svg.panel{width:100%%;height:auto;max-width:620px}\n"
        ".scroll{overflow-x:auto;background:var(--card);border-radius:8px}\n"
        "table{border-collapse:collapse;width:100%%;font-variant-numeric:tabular-nums}\n"
        "th,td{padding:.3rem .7rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}\n"
        "th:first-child,td:first-child,.word{text-align:left}th{color:var(--soft);font-weight:600}\n"
        /* paper: two panels in a row, nothing cut at a page's end, long splits in several lines */
        "@media "
        "print{body{max-width:none;padding:0;background:none;font-size:11px;print-color-adjust:exact}\n"
        ".panels{grid-template-columns:1fr 1fr}svg.panel,.devices div,tr{break-inside:avoid}\n"
        "h2{break-after:avoid}.scroll{overflow:visible}th,td{padding:.1rem .4rem}\n"
        "td:first-child{white-space:normal;overflow-wrap:anywhere}pre{white-space:pre-wrap}}\n"
        "</style>\n");
}

static void print_table(const tool_table *table, FILE *out)
{
    fprintf(out, "<div class=\"scroll\"><table>\n");
    for (int cell = 0; cell < table->n_cells; cell++) {
        const char *tag = cell < table->n_columns ? "th" : "td";
        if (cell % table->n_columns == 0)
            fprintf(out, "<tr>");
        fprintf(out, "<%s%s>", tag, table->cells[cell % table->n_columns][0] ? "" : " class=\"word\"");
        svg_escape(table->cells[cell] ? table->cells[cell] : "", out);
        fprintf(out, "</%s>", tag);
        if ((cell + 1) % table->n_columns == 0)
            fprintf(out, "</tr>\n");
    }
    fprintf(out, "</table></div>\n");
}

/* Print the output of `print`, escaped, by way of memory. */
static void print_escaped(void (*print)(const bench_report *, FILE *), const bench_report *report, FILE *out)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    if (!memory)
        return;
    print(report, memory);
    if (fclose(memory) == 0)
        for (char *line = text + strspn(text, "\n"), *end; *line; line = end) {
            end = line + strcspn(line, "\n");
            bool more = *end != '\0';
            *end = '\0';
            svg_escape(line, out);
            fputc('\n', out);
            end += more;
        }
    free(text);
}

static void print_environment(const bench_report *report, FILE *out)
{
    fprintf(out, "<pre class=\"scroll\">");
    print_escaped(bench_print_environment, report, out);
    fprintf(out, "</pre>\n");
}

/* Boxes that the page wraps into rows and whose text it cuts. */
static void print_machine(const bench_report *report, FILE *out)
{
    bench_group *groups;
    int n = bench_groups(report, bench_same_make, &groups);
    fprintf(out, "<div class=\"devices\">\n");
    for (int g = 0; g < n; g++) {
        const char *texts[] = {groups[g].name, groups[g].what};
        fprintf(out, "<div>");
        for (int i = 0; i < 2; i++) {
            fprintf(out, "<p title=\"");
            svg_escape(texts[i], out);
            fprintf(out, "\">");
            svg_escape(texts[i], out);
            fprintf(out, "</p>");
        }
        fprintf(out, "</div>\n");
    }
    fprintf(out, "</div>\n");
    free(groups);
}

bool bench_print_html(const bench_report *report, FILE *out)
{
    const bench_environment *e = &report->environment;
    tool_table speeds = {0}, devices = {0};
    const char *name = *e->model_name ? e->model_name : e->model_path;
    char label[BENCH_ROW_LABEL];
    bench_fill_speeds(report, false, &speeds);
    bench_fill_devices(report, false, &devices);
    fprintf(out,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
            "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>tsr bench: ");
    svg_escape(name, out);
    fprintf(out, "</title>\n");
    print_style(out);
    fprintf(out, "</head><body>\n<h1>");
    print_escaped(bench_print_title, report, out);
    fprintf(out, "</h1>\n");
    if (report->n_rows > 1) {
        fprintf(out, "<p class=\"advice\">");
        print_escaped(bench_print_advice, report, out);
        fprintf(out, "</p>\n");
    }
    print_machine(report, out);
    fprintf(out, "<h2>Speed, memory, time</h2>\n<div class=\"panels\">\n");
    for (int p = 0; p < bench_n_panels(report); p++)
        bench_print_panel(report, p, 0, 0, out);
    fprintf(out, "</div>\n<h2>All results</h2>\n");
    print_table(&speeds, out);
    fprintf(out, "<h2>Devices with ");
    bench_row_label(report, report->shown_row, label);
    svg_escape(label, out);
    fprintf(out, "</h2>\n");
    print_table(&devices, out);
    fprintf(out, "<h2>Measured with</h2>\n");
    print_environment(report, out);
    fprintf(out, "</body></html>\n");
    tool_table_free(&devices);
    tool_table_free(&speeds);
    return !ferror(out);
}
