/* The pictures of a report as SVG panels of one size, so that a page can arrange them next to or below
 * each other. Colours come from the classes of bench_print_style(), in a light and a dark set. */
#ifndef TSR_TOOLS_BENCH_PLOT_H
#define TSR_TOOLS_BENCH_PLOT_H

#include <stdio.h>

#include "bench/report.h"

enum { BENCH_PANEL_WIDTH = 420, BENCH_PANEL_HEIGHT = 280 };

/* Panels: one per test with speed against ratio, then how the devices spent their time with the best row (if
 * that was measured), and their memory. */
int bench_n_panels(const bench_report *report);

/* An <svg> element at (x, y) of the surrounding element; both 0 in a page. */
void bench_print_panel(const bench_report *report, int index, int x, int y, FILE *out);

/* The devices and the links between them. */
void bench_print_machine(const bench_report *report, FILE *out);

/* Content of a <style> element. */
void bench_print_style(FILE *out);

/* Text with &, <, > and quotes escaped, for XML and HTML. */
void bench_print_text(const char *text, FILE *out);

#endif
