/* The split that takes the least time.
 *
 * A step walks classes of matrices (attention, FFN, output) one after another, each `repeats` times. In every
 * walk the devices work on their granules at the same time; an all-reduce follows. So, for a set of devices S
 * and counts n[class][device],
 *
 *     time = sum over classes of repeats * (max over d in S of cost(class, d, n[class][d]) + sync(S, class))
 *     cost(class, d, n) = 0 if n = 0, else fixed_ns[d] + n * granule_ns[d]
 *
 * which is the cost of a layer with two all-reduces. Device memory ties the classes together: fixed_bytes +
 * sum over classes of n * granule_bytes <= capacity_bytes on every device of S.
 *
 * The minimum is exact, over whole granules and over which devices to use: see optimize.c. */
#ifndef TSR_SPLIT_SEARCH_OPTIMIZE_H
#define TSR_SPLIT_SEARCH_OPTIMIZE_H

#include "split/search/cost.h"

/* With at most this number of devices every subset is tried; with more, devices are left out one at a
 * time. */
enum { TSR_OPTIMIZE_ALL_SUBSETS = 8 };

/* The fastest split. The same problem gives the same counts everywhere. TSR_ERR_MEMORY: nothing fits on the
 * allowed devices (the message has the missing bytes), TSR_ERR_INVALID for times out of range. */
tsr_status tsr_split_optimize(const tsr_cost_problem *problem, tsr_cost_result *result_out);

/* The fastest split over `devices` together that takes less than limit_ns; without one, total_ns is limit_ns.
 * Work reduces *work_left; `proven` is false if none is left. The caller has checked the problem. */
tsr_status tsr_cost_optimize_set(const tsr_cost_problem *problem, tsr_device_set devices, double limit_ns,
                                 int64_t *work_left, tsr_cost_result *result_out);

#endif
