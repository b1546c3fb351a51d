/* Rounding of shares to whole granules.
 *
 * Largest remainder (Hamilton) is tried first: without caps it has the smallest largest deviation that whole
 * numbers allow. (To be nearer, a device at distance D would have to move to its other neighbour, and all
 * devices at its side with it; the sum then forces some device a whole granule away, farther than D < 1.)
 *
 * If a cap forbids that, the smallest largest deviation D is found by bisection. For a given D every device
 * has an interval of allowed counts, and D is possible if no interval is empty and the total is between the
 * sums of their ends. Inside the intervals of the smallest D, granules follow a common level, count = level *
 * share, as water fills vessels with floors and lids. So the other devices take over a capped device's part
 * in proportion to their shares. */
#include "split/round.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/status.h"

static const int64_t ONE = INT64_C(1) << TSR_SPLIT_IDEAL_BITS;

typedef tsr_split_wide wide;

typedef struct rounding {
    const int64_t *ideal;
    const int64_t *cap;
    int n_devices;
    int64_t n_granules;
    int64_t low[TSR_MAX_DEVICES], high[TSR_MAX_DEVICES]; /* allowed counts */
} rounding;

/* Give one granule each to the `left` devices with the largest keys, the lower device first in a tie; a
 * negative key takes no part. False if there are fewer devices than granules; count is then partly
 * written. */
static bool hand_out(int64_t *key, int n_devices, int64_t left, int64_t *count)
{
    for (; left > 0; left--) {
        int best = 0;
        for (int d = 1; d < n_devices; d++)
            if (key[d] > key[best])
                best = d;
        if (key[best] < 0)
            return false;
        count[best]++;
        key[best] = -1;
    }
    return true;
}

/* Round by largest remainder. False if a cap forbids the result, or if the ideals do not sum to the total. */
static bool round_freely(const rounding *r, int64_t *count)
{
    int64_t fraction[TSR_MAX_DEVICES], left = r->n_granules;

    for (int d = 0; d < r->n_devices; d++) {
        count[d] = r->ideal[d] / ONE;
        fraction[d] = r->cap[d] > 0 ? r->ideal[d] % ONE : -1;
        left -= count[d];
    }
    if (left < 0 || !hand_out(fraction, r->n_devices, left, count))
        return false;
    for (int d = 0; d < r->n_devices; d++)
        if (count[d] > r->cap[d])
            return false;
    return true;
}

/* Set the intervals for a largest deviation of `deviation` units. Returns whether any assignment is inside
 * them. */
static bool set_intervals(rounding *r, int64_t deviation)
{
    int64_t sum_low = 0, sum_high = 0;

    for (int d = 0; d < r->n_devices; d++) {
        int64_t lowest = r->ideal[d] - deviation;
        r->low[d] = lowest > 0 ? (lowest + ONE - 1) / ONE : 0;
        r->high[d] = TSR_MIN(r->cap[d], (r->ideal[d] + deviation) / ONE);
        if (r->low[d] > r->high[d])
            return false;
        sum_low += r->low[d];
        sum_high += r->high[d];
    }
    return sum_low <= r->n_granules && r->n_granules <= sum_high;
}

/* Leave the intervals of the smallest possible largest deviation in r. The caps are known to suffice. */
static void narrow_intervals(rounding *r)
{
    int64_t impossible = -1, possible = 0;

    for (int d = 0; d < r->n_devices; d++)
        possible = TSR_MAX(possible, r->ideal[d]);
    possible += r->n_granules * ONE; /* every interval is [0, cap] there */
    while (possible - impossible > 1) {
        int64_t middle = impossible + (possible - impossible) / 2;
        if (set_intervals(r, middle))
            possible = middle;
        else
            impossible = middle;
    }
    set_intervals(r, possible);
}

/* Weights are 31 bits of share. A level of 1 << LEVEL_BITS is one granule per unit of weight, the most that
 * can be needed; one step of the level moves a device by less than 2^-20 granule. */
enum { WEIGHT_BITS = 31, LEVEL_BITS = 51 };

/* Write the counts at a level, clamped to the intervals. Returns their sum. */
static int64_t fill_to(const rounding *r, const int64_t *weight, wide level, int64_t *count)
{
    int64_t sum = 0;
    for (int d = 0; d < r->n_devices; d++) {
        wide at = ((wide)weight[d] * level) >> LEVEL_BITS;
        count[d] = at < (wide)r->low[d] ? r->low[d] : at > (wide)r->high[d] ? r->high[d] : (int64_t)at;
        sum += count[d];
    }
    return sum;
}

static void fill_intervals(const rounding *r, int64_t *count)
{
    int64_t weight[TSR_MAX_DEVICES], key[TSR_MAX_DEVICES], whole = 1;
    wide below = 0, above = ((wide)(r->n_granules + 1) << LEVEL_BITS) + 1;

    for (int d = 0; d < r->n_devices; d++)
        whole += r->ideal[d];
    for (int d = 0; d < r->n_devices; d++)
        weight[d] = TSR_MAX(tsr_split_scale(r->ideal[d], INT64_C(1) << WEIGHT_BITS, whole), 1);

    /* The highest level that does not overflow the total; every device is full at `above`. If the sum at
     * `above` is at most the total, `above` is the answer. */
    while (above - below > 1) {
        wide middle = below + (above - below) / 2;
        if (fill_to(r, weight, middle, count) <= r->n_granules)
            below = middle;
        else
            above = middle;
    }
    int64_t left = r->n_granules - fill_to(r, weight, below, count);

    /* The next step would overflow, and a step moves no device by more than one granule: so more than `left`
     * devices stand just below their next granule with room for it. */
    for (int d = 0; d < r->n_devices; d++) {
        wide product = (wide)weight[d] * below;
        bool free_to_rise = (int64_t)(product >> LEVEL_BITS) >= r->low[d] && count[d] < r->high[d];
        key[d] = free_to_rise ? (int64_t)(product & (((wide)1 << LEVEL_BITS) - 1)) : -1;
    }
    hand_out(key, r->n_devices, left, count);
}

bool tsr_split_round_ideals(const int64_t *ideal, const int64_t *cap, int n_devices, int64_t n_granules,
                            int64_t *count_out)
{
    rounding r = {.ideal = ideal, .cap = cap, .n_devices = n_devices, .n_granules = n_granules};
    int64_t capacity = 0;

    for (int d = 0; d < n_devices; d++)
        capacity += TSR_MIN(cap[d], n_granules);
    if (capacity < n_granules)
        return false;
    if (!round_freely(&r, count_out)) {
        narrow_intervals(&r);
        fill_intervals(&r, count_out);
    }
    return true;
}

tsr_status tsr_split_ideals(const double *shares, int n_devices, int64_t n_granules, int64_t *ideal_out)
{
    double largest = 0, sum = 0;

    for (int d = 0; d < n_devices; d++) {
        if (!isfinite(shares[d]) || shares[d] < 0)
            return tsr_fail(TSR_ERR_INVALID, "share of device %d is %g; it must be finite and not negative",
                            d, shares[d]);
        largest = TSR_MAX(largest, shares[d]);
    }
    if (largest == 0)
        return tsr_fail(TSR_ERR_INVALID, "all %d shares are zero; give at least one device a share",
                        n_devices);
    for (int d = 0; d < n_devices; d++)
        sum += shares[d] / largest; /* so that no sum overflows */
    for (int d = 0; d < n_devices; d++) {
        double granules = shares[d] / largest / sum * (double)n_granules;
        ideal_out[d] = TSR_MAX(llround(granules * (double)ONE), shares[d] > 0);
    }
    return TSR_OK;
}

tsr_status tsr_split_round(const double *shares, int n_devices, int64_t n_granules,
                           const int64_t *max_granules, int64_t *count_out)
{
    tsr_status status = TSR_OK;
    int64_t ideal[TSR_MAX_DEVICES], cap[TSR_MAX_DEVICES], count[TSR_MAX_DEVICES], capacity = 0;

    if (!shares || !count_out || n_devices < 1 || n_devices > TSR_MAX_DEVICES || n_granules < 0 ||
        n_granules > TSR_SPLIT_MAX_GRANULES)
        return tsr_fail(
            TSR_ERR_INVALID,
            "cannot round %lld granules over %d devices: 1 to %d devices and at most %lld granules",
            (long long)n_granules, n_devices, TSR_MAX_DEVICES, (long long)TSR_SPLIT_MAX_GRANULES);
    TSR_TRY(tsr_split_ideals(shares, n_devices, n_granules, ideal));
    for (int d = 0; d < n_devices; d++) {
        bool capped = max_granules && max_granules[d] >= 0 && max_granules[d] < n_granules;
        cap[d] = !(shares[d] > 0) ? 0 : capped ? max_granules[d] : n_granules;
        capacity += cap[d];
    }
    if (!tsr_split_round_ideals(ideal, cap, n_devices, n_granules, count))
        return tsr_fail(
            TSR_ERR_MEMORY,
            "%lld of %lld granules find no device: the caps hold %lld; give a device more memory or "
            "use more devices",
            (long long)(n_granules - capacity), (long long)n_granules, (long long)capacity);
    memcpy(count_out, count, (size_t)n_devices * sizeof *count);
out:
    return status;
}
