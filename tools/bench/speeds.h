/* The two tables of a report, for all formats that show them. */
#ifndef TSR_TOOLS_BENCH_SPEEDS_H
#define TSR_TOOLS_BENCH_SPEEDS_H

#include "bench/report.h"
#include "format.h"

/* One line per division and test. */
void bench_fill_speeds(const bench_report *report, tool_table *table);

/* For the row shown in detail, in the last test: memory and time of each device. */
void bench_fill_devices(const bench_report *report, tool_table *table);

#endif
