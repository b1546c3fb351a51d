/* Devices that are alike; see bench/groups.h. */
#include "bench/groups.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_MANY = 4 };

bool bench_same_make(const bench_report *report, int a, int b)
{
    return strcmp(report->devices[a].what, report->devices[b].what) == 0;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 0.01 * fmax(a, b);
}

bool bench_same_use(const bench_report *report, int a, int b)
{
    const bench_row *row = report->shown_row;
    const bench_row_device *x = &row->devices[a], *y = &row->devices[b];
    const bench_shares *shares = row->cells[report->n_tests - 1].shares, *s = &shares[a], *t = &shares[b];
    return bench_same_make(report, a, b) && x->capacity == y->capacity &&
           near((double)bench_total_bytes(x), (double)bench_total_bytes(y)) &&
           near((double)x->bytes[TSR_MEMORY_WEIGHTS], (double)y->bytes[TSR_MEMORY_WEIGHTS]) &&
           fabs(s->compute - t->compute) < 0.01 && fabs(s->wait - t->wait) < 0.01;
}

/* members[n], ascending */
static void name_group(const bench_report *report, const int *members, int n, char *name)
{
    int used = 0;
    if (n > 2 && members[n - 1] == members[0] + n - 1) {
        snprintf(name, BENCH_GROUP_NAME, "%s to %s", report->devices[members[0]].name,
                 report->devices[members[n - 1]].name);
        return;
    }
    for (int i = 0; i < n; i++)
        used += snprintf(name + used, (size_t)(BENCH_GROUP_NAME - used), "%s%s", i ? ", " : "",
                         report->devices[members[i]].name);
}

int bench_groups(const bench_report *report, bench_alike_fn *alike, bench_group **groups_out)
{
    int n_groups = 0;
    bool done[TSR_MAX_DEVICES] = {false};
    bench_group *groups = calloc((size_t)report->n_devices, sizeof *groups);
    *groups_out = groups;
    for (int d = 0; d < report->n_devices && groups; d++) {
        int members[TSR_MAX_DEVICES], n = 0;
        for (int other = d; other < report->n_devices; other++)
            if (other == d || (report->n_devices > NOT_MANY && !done[other] && alike(report, d, other)))
                members[n++] = other;
        if (done[d])
            continue;
        for (int i = 0; i < n; i++)
            done[members[i]] = true;
        bench_group *group = &groups[n_groups++];
        group->first = d;
        group->n = n;
        name_group(report, members, n, group->name);
        if (n > 1)
            snprintf(group->what, sizeof group->what, "%d x %s", n, report->devices[d].what);
        else
            snprintf(group->what, sizeof group->what, "%s", report->devices[d].what);
    }
    return n_groups;
}
