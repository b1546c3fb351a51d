/* Devices that are alike, shown together where a report has many. */
#ifndef TSR_TOOLS_BENCH_GROUPS_H
#define TSR_TOOLS_BENCH_GROUPS_H

#include "bench/report.h"

enum { BENCH_GROUP_NAME = 40 * TSR_MAX_DEVICES };

typedef struct bench_group {
    int first, n;
    char name[BENCH_GROUP_NAME]; /* "cuda0", "cuda0 to cuda7", "cuda0, cuda2, cuda4" */
    char what[BENCH_TEXT + 16];  /* "NVIDIA H100", "8 x NVIDIA H100" */
} bench_group;

typedef bool bench_alike_fn(const bench_report *report, int a, int b);

/* Whether two devices are of the same make. */
bench_alike_fn bench_same_make;

/* Whether they are also used alike by the row shown in detail: bytes within 1 %, times within 1 % of the
 * time. */
bench_alike_fn bench_same_use;

/* Groups of devices that are alike, in the order of their first devices; up to 4 devices are a group each.
 * Returns the number of groups; *groups_out must be freed, and is NULL when out of memory. */
int bench_groups(const bench_report *report, bench_alike_fn *alike, bench_group **groups_out);

#endif
