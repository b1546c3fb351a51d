/* The split that takes the least time.
 *
 * A step walks classes of matrices (attention, FFN, output) one after another, each `repeats` times; in every
 * walk the devices work side by side on their granules and then meet in an all-reduce. So, for a set of
 * devices S and counts n[class][device],
 *
 *     time = sum over classes of repeats * (max over d in S of cost(class, d, n[class][d]) + sync(S, class))
 *     cost(class, d, n) = 0 if n = 0, else fixed_ns[d] + n * granule_ns[d]
 *
 * which is DESIGN's cost of a layer with its two meetings. Device memory ties the classes together:
 * fixed_bytes + sum over classes of n * granule_bytes <= capacity_bytes on every device of S.
 *
 * The minimum is exact, over whole granules and over which devices to use: see optimize.c. */
#ifndef TSR_SPLIT_SEARCH_OPTIMIZE_H
#define TSR_SPLIT_SEARCH_OPTIMIZE_H

#include "split/search/cost.h"

/* Up to so many devices every subset is looked at; beyond, devices are left out one at a time. */
enum { TSR_OPTIMIZE_ALL_SUBSETS = 8 };

/* The fastest split. The same problem gives the same counts everywhere. TSR_ERR_MEMORY when nothing fits on
 * the allowed devices (the message has the missing bytes), TSR_ERR_INVALID for times out of range. */
tsr_status tsr_split_optimize(const tsr_cost_problem *problem, tsr_cost_result *result_out);

/* The fastest split over `devices` together that takes less than limit_ns; without one, total_ns is limit_ns.
 * Work is counted off *work_left, and `proven` is false where that ran out. The problem was checked. */
tsr_status tsr_cost_optimize_set(const tsr_cost_problem *problem, tsr_device_set devices, double limit_ns,
                                 int64_t *work_left, tsr_cost_result *result_out);

#endif
