/* One class alone: the shortest time in which devices do all of it. */
#ifndef TSR_SPLIT_SEARCH_OPTIMIZE_LEVEL_H
#define TSR_SPLIT_SEARCH_OPTIMIZE_LEVEL_H

#include "split/search/cost.h"

/* Most granules, at most `cap`, that a device does within `ns`. */
int64_t tsr_cost_most(const tsr_cost_class *c, int device, double ns, int64_t cap);

/* The shortest time in which devices with at most cap[n_devices] granules do the whole class; INFINITY: the
 * caps are too small. It equals the cost of some count on some device. */
double tsr_cost_level(const tsr_cost_class *c, int n_devices, const int64_t *cap);

/* Counts, summing to n_granules, that take no longer than `level`, a result of tsr_cost_level(). Within this
 * limit the counts are in proportion to speed. */
tsr_status tsr_cost_level_counts(const tsr_cost_class *c, int n_devices, const int64_t *cap, double level,
                                 int64_t *count_out);

#endif
