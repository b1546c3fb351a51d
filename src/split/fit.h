/* Inside src/split: the search behind tsr_split_fit() and tsr_split_optimize() where memory is short. */
#ifndef TSR_SPLIT_FIT_H
#define TSR_SPLIT_FIT_H

#include <tsr/split.h>

/* Classes in order of descending granule size; only those with granules of at least a byte. All byte counts
 * fit int64_t together. */
typedef struct tsr_split_fit_problem {
    int n_devices, n_classes;
    int64_t n_granules[TSR_SPLIT_MAX_CLASSES];
    int64_t granule_bytes[TSR_SPLIT_MAX_CLASSES];
    bool allowed[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];         /* has a share */
    int64_t target_bytes[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES]; /* 0 where not allowed */
    int64_t room_bytes[TSR_MAX_DEVICES];
} tsr_split_fit_problem;

/* Indices of the classes with bytes[n] > 0, those with the largest granules first, the lower index first in a
 * tie; returns how many. */
int tsr_split_order(const size_t *bytes, int n, int *order);

/* tsr_split_fit() that tells what TSR_ERR_MEMORY means: *no_room is set where the devices' memory is what is
 * short, and left alone otherwise. */
tsr_status tsr_split_fit_in_rooms(const tsr_split_class *classes, int n_classes, const tsr_split_room *rooms,
                                  int n_devices, int64_t *count_out, bool *no_room);

/* Counts that fit the rooms, as near to the targets as tsr_split_fit() promises. *fits_out tells whether
 * there are any; count_out is written only then. TSR_ERR_UNSUPPORTED where the search grew too long,
 * TSR_ERR_MEMORY when host memory is short. */
tsr_status tsr_split_fit_search(const tsr_split_fit_problem *problem, bool *fits_out,
                                int64_t count_out[][TSR_MAX_DEVICES]);

/* Counts that fit the rooms with at most most[class][device] granules (>= 0) each, targets aside; *fits_out
 * tells whether there are any. Device steps are counted off *work_left: TSR_ERR_UNSUPPORTED when it runs out.
 * TSR_ERR_MEMORY when host memory is short. */
tsr_status tsr_split_place(const tsr_split_fit_problem *problem, const int64_t most[][TSR_MAX_DEVICES],
                           int64_t *work_left, bool *fits_out, int64_t count_out[][TSR_MAX_DEVICES]);

#endif
