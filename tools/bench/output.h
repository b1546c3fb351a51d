/* The formats of a report. All of them show the medians of bench_stat_of(). Whole formats return false,
 * with errno, if the stream has an error. */
#ifndef TSR_TOOLS_BENCH_OUTPUT_H
#define TSR_TOOLS_BENCH_OUTPUT_H

#include <stdio.h>

#include <jansson.h>

#include "bench/report.h"

bool bench_print_table(const bench_report *report, FILE *out);
bool bench_print_markdown(const bench_report *report, FILE *out);
bool bench_print_csv(const bench_report *report, FILE *out);

/* "Use -ts 62.5,37.5"; a long split in several quoted lines. */
void bench_print_use(const char *split, FILE *out);

/* The texts of splits by number, if they are too long for tables. */
void bench_print_splits(const bench_report *report, FILE *out);

/* The environment of the measurement, and the notes. */
void bench_print_environment(const bench_report *report, FILE *out);

/* The model and the number of devices, without a line's end. */
void bench_print_title(const bench_report *report, FILE *out);

/* The tensor_split to use, and its gain, where they exceed the noise; nothing if there is one row. */
void bench_print_advice(const bench_report *report, FILE *out);

/* In the format of docs/bench.schema.json; a new reference, NULL when out of memory. */
json_t *bench_report_json(const bench_report *report);

/* Read a document written by bench_report_json(). False, after a line on stderr that names the file, if it
 * is not such a document; *report_out must be freed in any case. */
bool bench_report_load(const char *path, bench_report *report_out);

/* Rows and tests of both reports next to each other, and whether they differ by more than noise. */
void bench_print_comparison(const bench_report *now, const bench_report *before, const char *path, FILE *out);

/* One picture: what was measured on which machine, the advice, and the panels of bench/plot.h. */
bool bench_print_svg(const bench_report *report, FILE *out);

/* One self-contained page. */
bool bench_print_html(const bench_report *report, FILE *out);

#endif
