/* Inside the optimiser: one class alone (optimize_level.c), one set of devices whose memory is short
 * (optimize_memory.c), all sets (optimize.c). */
#ifndef TSR_SPLIT_SEARCH_OPTIMIZE_PARTS_H
#define TSR_SPLIT_SEARCH_OPTIMIZE_PARTS_H

#include "split/search/cost.h"

/* Most granules, at most `cap`, that a device does within `ns`. */
int64_t tsr_cost_most(const tsr_cost_class *c, int device, double ns, int64_t cap);

/* The shortest time in which devices with cap[n_devices] granules at most do the whole class; INFINITY where
 * the caps are too small. It equals the cost of some count on some device. */
double tsr_cost_level(const tsr_cost_class *c, int n_devices, const int64_t *cap);

/* Counts, summing to n_granules, that take no longer than `level`, which tsr_cost_level() gave: by speed, as
 * far as that allows. */
tsr_status tsr_cost_level_counts(const tsr_cost_class *c, int n_devices, const int64_t *cap, double level,
                                 int64_t *count_out);

/* TSR_ERR_INVALID: counts, bytes or times out of range. */
tsr_status tsr_cost_check(const tsr_cost_problem *problem);

/* The fastest split over `devices` together that takes less than limit_ns; without one, total_ns is limit_ns.
 * Work is counted off *work_left, and `proven` is false where that ran out. The problem was checked. */
tsr_status tsr_cost_optimize_set(const tsr_cost_problem *problem, uint64_t devices, double limit_ns,
                                 int64_t *work_left, tsr_cost_result *result_out);

/* One set of devices. */
typedef struct tsr_cost_set {
    const tsr_cost_problem *problem;
    int64_t room[TSR_MAX_DEVICES];                       /* bytes for granules; 0 for devices outside */
    int64_t cap[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES]; /* granules that the room allows each class alone */
    double level[TSR_SPLIT_MAX_CLASSES];                 /* of each class alone */
    double sync_ns;                                      /* per step */
} tsr_cost_set;

/* Counts for a set whose classes do not fit at their levels together: the fastest ones if a step takes less
 * than *best_ns, which is then lowered and *found_out set. Work is counted off *work_left; *proven_inout is
 * cleared where it did not suffice to rule out something faster. */
tsr_status tsr_cost_under_memory(const tsr_cost_set *set, int64_t *work_left, double *best_ns,
                                 bool *found_out, int64_t count_out[][TSR_MAX_DEVICES], bool *proven_inout);

#endif
