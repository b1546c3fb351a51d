/* What a report advises: another split than the planner's only where it is faster by more than the noise of
 * the repetitions. */
#include <math.h>

#include "bench/output.h"

static const char *the_split(bench_row_kind kind)
{
    static const char *const names[] = {"the planner's split", "the split before", "the even split",
                                        "the split by memory", "the split that was searched"};
    return names[kind];
}

static void print_gain(const bench_report *report, const bench_row *row, bench_row_kind kind, FILE *out)
{
    const bench_row *other = bench_row_of_kind(report, kind);
    bench_stat mine = bench_row_stat(report, row), its = {0};
    if (other && other != row)
        its = bench_row_stat(report, other);
    double noise = bench_noise(mine, its);
    if (its.n == 0 || isinf(noise))
        return;
    if (bench_within_noise(mine, its))
        fprintf(out, "  no difference beyond noise (\302\261%.1f %%) from %s\n", 100 * noise,
                the_split(kind));
    else
        fprintf(out, "  %+.1f %% tokens/s against %s (noise \302\261%.1f %%)\n",
                100 * (mine.median / its.median - 1), the_split(kind), 100 * noise);
}

/* The most noise between the best row and another one that it does not beat; negative: it beats all. */
static double most_noise(const bench_report *report, const bench_row *best)
{
    double most = -1;
    for (int r = 0; r < report->n_rows; r++) {
        bench_stat other = bench_row_stat(report, report->rows[r]), its = bench_row_stat(report, best);
        if (report->rows[r] != best && other.n && bench_within_noise(its, other))
            most = fmax(most, bench_noise(its, other));
    }
    return most;
}

void bench_print_advice(const bench_report *report, FILE *out)
{
    const bench_row *best = report->best_row, *row = report->shown_row;
    if (report->n_rows < 2 || !best)
        return;
    double noise = most_noise(report, best);
    if (isinf(noise))
        fprintf(out, "\nNo advice: the noise is unknown with fewer than %d repetitions (-r)\n",
                BENCH_LEAST_REPETITIONS);
    else if (!best->best)
        fprintf(out, "\nNo difference beyond noise (\302\261%.1f %%) between the splits\n", 100 * noise);
    else {
        if (row->kind == BENCH_ROW_PLANNED && row == best)
            fprintf(out, "\nUse no -ts: the planner's split is the fastest\n");
        else if (row->kind == BENCH_ROW_PLANNED)
            fprintf(out, "\nUse no -ts: no split is faster than the planner's beyond noise\n");
        else {
            fprintf(out, "\n");
            bench_print_use(row->text, out);
        }
        print_gain(report, row, BENCH_ROW_PLANNED, out);
        print_gain(report, row, BENCH_ROW_EVEN, out);
        print_gain(report, row, BENCH_ROW_BY_MEMORY, out);
    }
}
