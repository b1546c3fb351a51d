/* The pictures of a report: charts of one width, so that a page can arrange them next to or below each
 * other. */
#ifndef TSR_TOOLS_BENCH_PLOT_H
#define TSR_TOOLS_BENCH_PLOT_H

#include <stdio.h>

#include "bench/report.h"

/* Panels: one per test with the speeds of the splits, then the devices' memory with the row to use, and how
 * they spent their time, if that was measured. */
int bench_n_panels(const bench_report *report);

/* Draw a panel as an <svg> element at (x, y) of the element around it, both 0 in a page. Returns its
 * height. */
int bench_print_panel(const bench_report *report, int index, int x, int y, FILE *out);

/* Draw a box for each device, or for several equal ones; `width` pixels wide, at (x, y). Returns the
 * height. */
int bench_print_machine(const bench_report *report, int x, int y, int width, FILE *out);

#endif
