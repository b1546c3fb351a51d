/* One class alone: the shortest time within which all of its granules can be done. Devices work at the same
 * time, so a time allows every device a number of granules of its own, and the least time is the first at
 * which these numbers sum to enough. */
#include "split/search/optimize_level.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"

int64_t tsr_cost_most(const tsr_cost_class *c, int device, double ns, int64_t cap)
{
    if (cap == 0 || tsr_cost_of(c, device, 1) > ns)
        return 0;
    double n = (ns - c->fixed_ns[device]) / c->granule_ns[device];
    int64_t most = n < (double)cap ? TSR_MAX((int64_t)n, 1) : cap;
    while (most < cap && tsr_cost_of(c, device, most + 1) <= ns) /* lost in the rounding of the division */
        most++;
    while (tsr_cost_of(c, device, most) > ns)
        most--;
    return most;
}

/* All granules that `ns` allows; counting stops soon after n_granules. */
static int64_t within(const tsr_cost_class *c, int n_devices, const int64_t *cap, double ns)
{
    int64_t sum = 0;
    for (int d = 0; d < n_devices; d++)
        sum += tsr_cost_most(c, d, ns, cap[d]);
    return sum;
}

double tsr_cost_level(const tsr_cost_class *c, int n_devices, const int64_t *cap)
{
    double enough = 0, too_short = 0;
    int64_t sum = 0;
    if (c->n_granules == 0)
        return 0;
    for (int d = 0; d < n_devices; d++) {
        sum += cap[d];
        enough = fmax(enough, tsr_cost_of(c, d, cap[d]));
    }
    if (sum < c->n_granules)
        return INFINITY;
    /* Bisect down to two neighbouring numbers, so that the result is the cost of some count, to the bit. */
    for (;;) {
        double middle = too_short + (enough - too_short) / 2;
        if (middle <= too_short || middle >= enough)
            return enough;
        *(within(c, n_devices, cap, middle) >= c->n_granules ? &enough : &too_short) = middle;
    }
}

tsr_status tsr_cost_level_counts(const tsr_cost_class *c, int n_devices, const int64_t *cap, double level,
                                 int64_t *count_out)
{
    double speed[TSR_MAX_DEVICES];
    int64_t most[TSR_MAX_DEVICES];
    for (int d = 0; d < n_devices; d++) {
        most[d] = tsr_cost_most(c, d, level, cap[d]);
        speed[d] = most[d] > 0 ? 1 / c->granule_ns[d] : 0;
    }
    if (c->n_granules == 0) {
        memset(count_out, 0, (size_t)n_devices * sizeof *count_out);
        return TSR_OK;
    }
    return tsr_split_round(speed, n_devices, c->n_granules, most, count_out);
}
