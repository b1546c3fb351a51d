/* The two tables of a report, for all formats that show them. */
#ifndef TSR_TOOLS_BENCH_SPEEDS_H
#define TSR_TOOLS_BENCH_SPEEDS_H

#include "bench/report.h"
#include "format.h"

/* One line per division and test. Long texts of splits come after their numbers, or if `narrow` are left
 * out. */
void bench_fill_speeds(const bench_report *report, bool narrow, tool_table *table);

/* For the row shown in detail, in the last test: memory and time of each device, or group of
 * equal devices. */
void bench_fill_devices(const bench_report *report, bool narrow, tool_table *table);

#endif
