/* The time of a mixture whose experts are divided whole: that of the slowest device. */
#include "plan/cost/experts.h"

#include <math.h>

#include "core/mem.h"

/* C(n, k). */
static double choose(int64_t n, int64_t k)
{
    double c = 1;
    for (int64_t i = 0; i < k; i++)
        c *= (double)(n - i) / (double)(i + 1);
    return c;
}

/* The probability that no device d has more than cap[d] of the touched experts. */
static double all_within(int n_devices, const int64_t *counts, const int64_t *cap, int64_t n_touched)
{
    double ways[TSR_EXPERTS_SPREAD + 1] = {1}; /* [j] of touching j experts on the devices so far */
    int64_t n_experts = 0;
    for (int d = 0; d < n_devices; d++) {
        n_experts += counts[d];
        for (int64_t j = n_touched; j >= 0; j--) {
            double sum = 0, of_device = 1; /* C(counts[d], x) */
            for (int64_t x = 0; x <= TSR_MIN(cap[d], j); x++) {
                sum += ways[j - x] * of_device;
                of_device *= (double)(counts[d] - x) / (double)(x + 1);
            }
            ways[j] = sum;
        }
    }
    return ways[n_touched] / choose(n_experts, n_touched);
}

/* Without chance: every device has its part of the touched experts. */
static double slowest_mean(const tsr_cost_class *c, int n_devices, const int64_t *counts)
{
    double ns = 0;
    for (int d = 0; d < n_devices; d++)
        ns = TSR_MAX(ns, tsr_cost_of(c, d, counts[d]));
    return ns;
}

double tsr_experts_walk_ns(const tsr_cost_class *c, int n_devices, const int64_t *counts, int64_t n_touched)
{
    int64_t n_experts = 0, cap[TSR_MAX_DEVICES] = {0};
    double ns = 0, now = 0;
    for (int d = 0; d < n_devices; d++) {
        n_experts += counts[d];
        if (counts[d] > 0)
            now = TSR_MAX(now, c->fixed_ns[d]);
    }
    if (n_touched >= n_experts || n_touched > TSR_EXPERTS_SPREAD)
        return slowest_mean(c, n_devices, counts);
    const double touched_ns = (double)n_experts / (double)n_touched; /* of granule_ns */
    for (ns = now;;) {
        double next = INFINITY; /* the time at which the next device finishes one more expert */
        int first = -1;
        for (int d = 0; d < n_devices; d++) {
            double done = c->fixed_ns[d] + (double)(cap[d] + 1) * c->granule_ns[d] * touched_ns;
            if (cap[d] < TSR_MIN(counts[d], n_touched) && done < next) {
                next = done;
                first = d;
            }
        }
        if (first < 0)
            return ns;
        if (next > now) {
            ns += (next - now) * (1 - all_within(n_devices, counts, cap, n_touched));
            now = next;
        }
        cap[first]++;
    }
}
