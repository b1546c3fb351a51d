/* The schedule of two halves (halves.h). */
#include "plan/cost/halves.h"

#include "core/mem.h"

double tsr_halves_ns(const tsr_half_segment *segments, int n, int repeats)
{
    double work = 0, sums = 0, summed[2] = {0};
    for (int i = 0; i < repeats * n; i++)
        for (int half = 0; half < 2; half++) {
            work = TSR_MAX(work, summed[half]) + segments[i % n].work_ns;
            sums = TSR_MAX(work, sums) + segments[i % n].sync_ns;
            summed[half] = sums;
        }
    return TSR_MAX(work, sums);
}
