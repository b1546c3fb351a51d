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
#ifndef TSR_SPLIT_OPTIMIZE_H
#define TSR_SPLIT_OPTIMIZE_H

#include <stdint.h>

#include <tsr/split.h>

/* Up to so many devices every subset is looked at; beyond, devices are left out one at a time. */
enum { TSR_OPTIMIZE_ALL_SUBSETS = 8 };

/* Times are in nanoseconds, finite and >= 0; granule_ns > 0. */
typedef struct tsr_cost_class {
    const char *name;     /* for messages */
    int64_t n_granules;   /* 0..TSR_SPLIT_MAX_GRANULES */
    size_t granule_bytes; /* device memory that one granule takes, over all layers, KV included */
    double repeats;       /* walks per step: n_layers, or 1 for the output */
    double granule_ns[TSR_MAX_DEVICES]; /* one granule in one walk */
    double fixed_ns[TSR_MAX_DEVICES];   /* one walk, however few granules: launches */
} tsr_cost_class;

typedef struct tsr_cost_problem {
    int n_devices, n_classes; /* n_classes is 1..TSR_SPLIT_MAX_CLASSES */
    const tsr_cost_class *classes;
    const tsr_split_room *rooms; /* [n_devices] */
    uint64_t allowed;            /* devices that may be used, one bit each */

    /* What follows one walk of a class when `devices` share it: the all-reduce. NULL: nothing. */
    double (*sync_ns)(void *user, uint64_t devices, int class_index);

    /* What a walk takes with counts[n_devices] of a class where it is more than on the slowest device,
     * because chance decides how much of its part each has to do; less it is never. NULL, or a negative
     * value: that of the slowest device. The search minimises the slowest device's over counts, and this over
     * sets of devices; it proves nothing then. */
    double (*walk_ns)(void *user, int class_index, const int64_t *counts);
    void *user;

    bool *no_room; /* set where the devices' memory is what TSR_ERR_MEMORY is about; NULL: nobody asks */
} tsr_cost_problem;

typedef struct tsr_cost_result {
    uint64_t devices; /* S: those that hold something */
    int64_t counts[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];
    double work_ns[TSR_SPLIT_MAX_CLASSES]; /* one walk on the slowest device */
    double sync_ns[TSR_SPLIT_MAX_CLASSES]; /* one walk */
    int slowest[TSR_SPLIT_MAX_CLASSES];    /* that device; -1 where nobody has work */
    double total_ns;                       /* of a step */
    double bound_ns;                       /* no split could take less */
    bool proven;                           /* total_ns is the minimum */
} tsr_cost_result;

/* cost(class, device, n) above. */
double tsr_cost_of(const tsr_cost_class *c, int device, int64_t n);

/* Time of given counts; `devices` is taken from them. bound_ns is 0, proven false. */
void tsr_cost_evaluate(const tsr_cost_problem *problem, const int64_t counts[][TSR_MAX_DEVICES],
                       tsr_cost_result *result_out);

/* The fastest split. The same problem gives the same counts everywhere. TSR_ERR_MEMORY when nothing fits on
 * the allowed devices (the message has the missing bytes), TSR_ERR_INVALID for times out of range. */
tsr_status tsr_split_optimize(const tsr_cost_problem *problem, tsr_cost_result *result_out);

#endif
