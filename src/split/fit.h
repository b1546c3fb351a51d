/* Inside src/split: the search that tsr_split_fit() and tsr_split_optimize() use when memory is short. */
#ifndef TSR_SPLIT_FIT_H
#define TSR_SPLIT_FIT_H

#include <tsr/split.h>

/* Classes in order of descending granule size; classes whose granules have no bytes are left out. The sum of
 * all byte counts fits int64_t. */
typedef struct tsr_split_fit_problem {
    int n_devices, n_classes;
    int64_t n_granules[TSR_SPLIT_MAX_CLASSES];
    int64_t granule_bytes[TSR_SPLIT_MAX_CLASSES];
    bool allowed[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];         /* has a share */
    int64_t target_bytes[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES]; /* 0 where not allowed */
    int64_t room_bytes[TSR_MAX_DEVICES];
} tsr_split_fit_problem;

/* Write the indices of the classes with bytes[n] > 0, the largest granules first, the lower index first in a
 * tie. Returns their number. */
int tsr_split_order(const size_t *bytes, int n, int *order);

/* tsr_split_fit() with the reason for TSR_ERR_MEMORY: *no_room is set if the devices' memory is short, and is
 * left unchanged if host memory is. */
tsr_status tsr_split_fit_in_rooms(const tsr_split_class *classes, int n_classes, const tsr_split_room *rooms,
                                  int n_devices, int64_t *count_out, bool *no_room);

/* Counts that fit the rooms, as near to the targets as tsr_split_fit() promises. *fits_out: whether such
 * counts exist; count_out is written only then. TSR_ERR_UNSUPPORTED: the search became too long.
 * TSR_ERR_MEMORY: host memory is short. */
tsr_status tsr_split_fit_search(const tsr_split_fit_problem *problem, bool *fits_out,
                                int64_t count_out[][TSR_MAX_DEVICES]);

/* Counts that fit the rooms with at most most[class][device] granules (>= 0) each, without regard to targets.
 * *fits_out: whether such counts exist. Every device step reduces *work_left by one; TSR_ERR_UNSUPPORTED when
 * none is left. TSR_ERR_MEMORY: host memory is short. */
tsr_status tsr_split_place(const tsr_split_fit_problem *problem, const int64_t most[][TSR_MAX_DEVICES],
                           int64_t *work_left, bool *fits_out, int64_t count_out[][TSR_MAX_DEVICES]);

#endif
