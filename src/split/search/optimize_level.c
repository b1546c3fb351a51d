/* One class alone: the shortest time within which all of its granules can be done. Devices work at the same
 * time, so a time allows every device a number of granules of its own, and the least time is the first at
 * which these numbers sum to enough.
 *
 * A class with two parts has two such times, which allow every device the smaller of two numbers. The second
 * time is never longer where the first is longer. So between two values of the first, no sum is less than the
 * lower value and the second time at the higher one: intervals in which that is no better than the best sum
 * are left out, and the others are cut in two. */
#include "split/search/optimize_level.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"

int64_t tsr_cost_most(tsr_cost_times times, int device, double ns, int64_t cap)
{
    if (cap == 0 || tsr_cost_time(times, device, 1) > ns)
        return 0;
    double n = (ns - times.fixed_ns[device]) / times.granule_ns[device];
    int64_t most = n < (double)cap ? TSR_MAX((int64_t)n, 1) : cap;
    while (most < cap &&
           tsr_cost_time(times, device, most + 1) <= ns) /* lost in the rounding of the division */
        most++;
    while (tsr_cost_time(times, device, most) > ns)
        most--;
    return most;
}

/* All granules that `ns` allows. */
static int64_t within(tsr_cost_times times, int n_devices, const int64_t *cap, double ns)
{
    int64_t sum = 0;
    for (int d = 0; d < n_devices; d++)
        sum += tsr_cost_most(times, d, ns, cap[d]);
    return sum;
}

double tsr_cost_level(tsr_cost_times times, int64_t n_granules, int n_devices, const int64_t *cap)
{
    double enough = 0, too_short = 0;
    int64_t sum = 0;
    if (n_granules == 0)
        return 0;
    for (int d = 0; d < n_devices; d++) {
        sum += cap[d];
        enough = fmax(enough, tsr_cost_time(times, d, cap[d]));
    }
    if (sum < n_granules)
        return INFINITY;
    /* Bisect down to two neighbouring numbers, so that the result is the cost of some count, to the bit. */
    for (;;) {
        double middle = too_short + (enough - too_short) / 2;
        if (middle <= too_short || middle >= enough)
            return enough;
        *(within(times, n_devices, cap, middle) >= n_granules ? &enough : &too_short) = middle;
    }
}

double tsr_cost_walk_bound(const tsr_cost_class *c, int n_devices, const int64_t *cap)
{
    const tsr_cost_times sums = {c->granule_ns, c->fixed_ns};
    double bound = tsr_cost_level(sums, c->n_granules, n_devices, cap), parts = 0;
    for (int i = 0; c->has_parts && i < TSR_COST_PARTS; i++)
        parts += tsr_cost_level(tsr_cost_part(c, i), c->n_granules, n_devices, cap);
    return fmax(bound, parts);
}

/* -- two parts -- */

typedef struct two_levels {
    const tsr_cost_class *c;
    int n_devices;
    const int64_t *cap;
    double level[TSR_COST_PARTS]; /* of the best sum so far */
    int64_t *work_left;
} two_levels;

static void most_within(const two_levels *t, int part, double level, int64_t most[TSR_MAX_DEVICES])
{
    for (int d = 0; d < t->n_devices; d++)
        most[d] = tsr_cost_most(tsr_cost_part(t->c, part), d, level, t->cap[d]);
}

/* Search first levels from `low` to `high`, at which the second level is at least `second`. */
static void search_between(two_levels *t, double low, double high, double second)
{
    const tsr_cost_times first = tsr_cost_part(t->c, 0);
    double down = 0, up = INFINITY, middle = low + (high - low) / 2;
    int64_t most[TSR_MAX_DEVICES];
    if (low > high || low + second >= t->level[0] + t->level[1] || *t->work_left <= 0)
        return;
    *t->work_left -= TSR_COST_LEVEL_WORK * t->n_devices;
    most_within(t, 0, middle, most);
    for (int d = 0; d < t->n_devices; d++) { /* the costs of counts that are nearest to the middle */
        down = fmax(down, tsr_cost_time(first, d, most[d]));
        if (most[d] < t->cap[d])
            up = fmin(up, tsr_cost_time(first, d, most[d] + 1));
    }
    double here = tsr_cost_level(tsr_cost_part(t->c, 1), t->c->n_granules, t->n_devices, most);
    if (down + here < t->level[0] + t->level[1]) {
        t->level[0] = down;
        t->level[1] = here;
    }
    search_between(t, low, nextafter(down, 0), here);
    search_between(t, up, high, second);
}

/* Find the levels with the least sum, from the levels that are the least for one part. */
static void find_levels(two_levels *t)
{
    int64_t most[TSR_MAX_DEVICES];
    double end[TSR_COST_PARTS][TSR_COST_PARTS]; /* [i]: with the least level of part i */
    for (int i = 0; i < TSR_COST_PARTS; i++) {
        end[i][i] = tsr_cost_level(tsr_cost_part(t->c, i), t->c->n_granules, t->n_devices, t->cap);
        most_within(t, i, end[i][i], most);
        end[i][!i] = tsr_cost_level(tsr_cost_part(t->c, !i), t->c->n_granules, t->n_devices, most);
    }
    const double *best = end[0][0] + end[0][1] <= end[1][0] + end[1][1] ? end[0] : end[1];
    memcpy(t->level, best, sizeof t->level);
    search_between(t, end[0][0], end[1][0], end[1][1]);
}

/* -- counts -- */

tsr_status tsr_cost_least(const tsr_cost_class *c, int n_devices, const int64_t *cap, int64_t *work_left,
                          bool *proven_inout, int64_t *count_out, double *ns_out)
{
    two_levels t = {.c = c, .n_devices = n_devices, .cap = cap, .work_left = work_left};
    double speed[TSR_MAX_DEVICES];
    int64_t most[TSR_MAX_DEVICES];
    *ns_out = 0;
    memset(count_out, 0, (size_t)n_devices * sizeof *count_out);
    if (c->n_granules == 0)
        return TSR_OK;
    if (c->has_parts)
        find_levels(&t);
    else
        t.level[0] = tsr_cost_level(tsr_cost_part(c, 0), c->n_granules, n_devices, cap);
    *proven_inout = *proven_inout && (!c->has_parts || *work_left > 0);
    for (int d = 0; d < n_devices; d++) {
        most[d] = cap[d];
        for (int i = 0; i < tsr_cost_n_parts(c); i++)
            most[d] = tsr_cost_most(tsr_cost_part(c, i), d, t.level[i], most[d]);
        speed[d] = most[d] > 0 ? 1 / c->granule_ns[d] : 0;
    }
    *ns_out = t.level[0] + t.level[1];
    return tsr_split_round(speed, n_devices, c->n_granules, most, count_out);
}
