/* The two tables of a report, for every form that shows them. */
#ifndef TSR_TOOLS_BENCH_SPEEDS_H
#define TSR_TOOLS_BENCH_SPEEDS_H

#include "bench/report.h"
#include "format.h"

/* A line per division and test. */
void bench_fill_speeds(const bench_report *report, tool_table *table);

/* With the row that is shown in detail, in the last test: what each device held and did. */
void bench_fill_devices(const bench_report *report, tool_table *table);

#endif
