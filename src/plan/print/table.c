/* Lines and tables of a printed plan.
 *
 * A table is a list of columns, each a heading and a function that writes one cell. Every cell is written
 * several times, to find equal rows and the widths and to print, so that nothing is allocated and printing
 * cannot fail. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "plan/names.h"
#include "plan/print/text.h"

enum { MAX_COLUMNS = 12, PARAGRAPH_BYTES = 1024 };

/* -- lines -- */

void tsr_plan_put(const tsr_plan_printer *p, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tsr_clean_text(text, strlen(text), "\n");
    p->write(text, p->user);
}

void tsr_plan_put_wrapped(const tsr_plan_printer *p, const char *format, ...)
{
    char text[PARAGRAPH_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tsr_clean_text(text, strlen(text), "");
    tsr_put_paragraph(text, false, p->write, p->user);
}

/* -- tables -- */

typedef struct table {
    const tsr_plan *plan;
    const tsr_plan_column *columns;
    int n_columns;
} table;

static bool are_equal(const table *t, const tsr_plan_device *a, const tsr_plan_device *b)
{
    char one[TSR_PLAN_CELL_BYTES], other[TSR_PLAN_CELL_BYTES];
    for (int c = 0; c < t->n_columns; c++) {
        t->columns[c].cell(t->plan, a, t->columns[c].arg, one);
        t->columns[c].cell(t->plan, b, t->columns[c].arg, other);
        if (strcmp(one, other) != 0)
            return false;
    }
    return true;
}

/* Devices that share the row of the first of devices[n]. */
static int count_in_row(const table *t, const tsr_plan_device *devices, int n)
{
    int in_row = 1;
    while (in_row < n && tsr_plan_names_follow(devices[in_row - 1].name, devices[in_row].name) &&
           are_equal(t, &devices[0], &devices[in_row]))
        in_row++;
    return in_row;
}

static size_t column_width(const table *t, int c, const tsr_plan_device *devices, int n)
{
    char text[TSR_PLAN_CELL_BYTES];
    size_t width = 0;
    for (int d = 0; d < n; d++) {
        t->columns[c].cell(t->plan, &devices[d], t->columns[c].arg, text);
        width = TSR_MAX(width, strlen(text));
    }
    return width;
}

static void put_row(const tsr_plan_printer *p, const table *t, const char *name, size_t name_width,
                    const size_t *widths, const tsr_plan_device *device)
{
    char text[TSR_PLAN_CELL_BYTES];
    tsr_plan_put(p, "%-*s", (int)name_width, name);
    for (int c = 0; c < t->n_columns; c++) {
        if (device)
            t->columns[c].cell(t->plan, device, t->columns[c].arg, text);
        tsr_plan_put(p, "  %*s", (int)widths[c], device ? text : t->columns[c].heading);
    }
    tsr_plan_put(p, "\n");
}

void tsr_plan_put_table(const tsr_plan_printer *p, const char *title, const tsr_plan_column *columns,
                        int n_columns, const tsr_plan_device *devices, int n_devices,
                        const tsr_plan_device *sum)
{
    const table t = {p->plan, columns, n_columns};
    size_t widths[MAX_COLUMNS], name_width = TSR_MAX(strlen(title), sum ? strlen(sum->name) : 0);
    char name[TSR_PLAN_RANGE_BYTES];
    for (int d = 0, n; d < n_devices; d += n) {
        n = count_in_row(&t, devices + d, n_devices - d);
        tsr_plan_name_range(devices + d, n, name);
        name_width = TSR_MAX(name_width, strlen(name));
    }
    for (int c = 0; c < n_columns; c++) {
        widths[c] = TSR_MAX(strlen(columns[c].heading), column_width(&t, c, devices, n_devices));
        if (sum)
            widths[c] = TSR_MAX(widths[c], column_width(&t, c, sum, 1));
    }
    for (int from = 0, to; from < n_columns; from = to) {
        size_t width = name_width;
        for (to = from; to < n_columns && (to == from || width + 2 + widths[to] <= TSR_PRINT_COLUMNS); to++)
            width += 2 + widths[to];
        const table part = {p->plan, columns + from, to - from};
        tsr_plan_put(p, "\n");
        put_row(p, &part, title, name_width, widths + from, NULL);
        for (int d = 0, n; d < n_devices; d += n) {
            n = count_in_row(&t, devices + d, n_devices - d);
            tsr_plan_name_range(devices + d, n, name);
            put_row(p, &part, name, name_width, widths + from, &devices[d]);
        }
        if (sum)
            put_row(p, &part, sum->name, name_width, widths + from, sum);
    }
}
