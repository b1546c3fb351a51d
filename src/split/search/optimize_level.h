/* One class alone: the shortest time in which devices do all of it. */
#ifndef TSR_SPLIT_SEARCH_OPTIMIZE_LEVEL_H
#define TSR_SPLIT_SEARCH_OPTIMIZE_LEVEL_H

#include "split/search/cost.h"

enum { TSR_COST_LEVEL_WORK = 16 }; /* what finding a level takes, per device */

/* Most granules, at most `cap`, that a device does within `ns`. */
int64_t tsr_cost_most(tsr_cost_times times, int device, double ns, int64_t cap);

/* The shortest time in which devices with at most cap[n_devices] granules do n_granules; INFINITY: the caps
 * are too small. It equals the cost of some count on some device. */
double tsr_cost_level(tsr_cost_times times, int64_t n_granules, int n_devices, const int64_t *cap);

/* The time of a walk that no counts within cap[n_devices] can beat, by bounds that are quick to find;
 * INFINITY: the caps are too small. */
double tsr_cost_walk_bound(const tsr_cost_class *c, int n_devices, const int64_t *cap);

/* The counts within cap[n_devices] that take the shortest time, and this time. Within the levels of the
 * parts, counts are in proportion to speed. The caps are large enough. With parts, the search reduces
 * *work_left; *proven_inout is cleared if none is left. */
tsr_status tsr_cost_least(const tsr_cost_class *c, int n_devices, const int64_t *cap, int64_t *work_left,
                          bool *proven_inout, int64_t *count_out, double *ns_out);

#endif
