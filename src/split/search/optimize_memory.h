/* One set of devices whose memory is short. */
#ifndef TSR_SPLIT_SEARCH_OPTIMIZE_MEMORY_H
#define TSR_SPLIT_SEARCH_OPTIMIZE_MEMORY_H

#include "split/search/cost.h"

/* One set of devices. */
typedef struct tsr_cost_set {
    const tsr_cost_problem *problem;
    int64_t room[TSR_MAX_DEVICES]; /* bytes for granules; 0 for devices outside */
    int64_t cap[TSR_SPLIT_MAX_CLASSES]
               [TSR_MAX_DEVICES]; /* granules of each class alone that the room holds */
    double sync_ns;               /* per step */
} tsr_cost_set;

/* The fastest counts for a set whose classes do not fit together at their levels. Each class fits alone. If a
 * step takes less than *best_ns, *best_ns is lowered and *found_out is set. Work reduces *work_left;
 * *proven_inout is cleared if the work did not suffice to exclude a faster split. */
tsr_status tsr_cost_under_memory(const tsr_cost_set *set, int64_t *work_left, double *best_ns,
                                 bool *found_out, int64_t count_out[][TSR_MAX_DEVICES], bool *proven_inout);

#endif
