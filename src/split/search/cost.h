/* The cost of a split as a problem: times of granules, of walks, and of the all-reduce after a walk. The
 * formula is in split/search/optimize.h. */
#ifndef TSR_SPLIT_SEARCH_COST_H
#define TSR_SPLIT_SEARCH_COST_H

#include <stdint.h>

#include <tsr/split.h>

#include "core/device_set.h"

enum { TSR_COST_PARTS = 2 };

/* Times are in nanoseconds, finite and >= 0; granule_ns > 0. */
typedef struct tsr_cost_class {
    const char *name;     /* for messages */
    int64_t n_granules;   /* 0..TSR_SPLIT_MAX_GRANULES */
    size_t granule_bytes; /* device memory that one granule takes, over all layers, KV included */
    double repeats;       /* walks per step: n_layers, or 1 for the output */
    double granule_ns[TSR_MAX_DEVICES]; /* one granule in one walk */
    double fixed_ns[TSR_MAX_DEVICES];   /* one walk, however few granules: launches */
    /* With has_parts, a walk stands for two walks with the same counts, each of which waits for a slowest
     * device of its own: the time is the sum of two maxima. granule_ns and fixed_ns are sums of the parts. */
    bool has_parts;
    double part_granule_ns[TSR_COST_PARTS][TSR_MAX_DEVICES], part_fixed_ns[TSR_COST_PARTS][TSR_MAX_DEVICES];
} tsr_cost_class;

/* Times of a class, or of a part of its walks, by device. */
typedef struct tsr_cost_times {
    const double *granule_ns, *fixed_ns; /* of the class */
} tsr_cost_times;

typedef struct tsr_cost_problem {
    int n_devices, n_classes; /* n_classes is 1..TSR_SPLIT_MAX_CLASSES */
    const tsr_cost_class *classes;
    const tsr_split_room *rooms; /* [n_devices] */
    tsr_device_set allowed;      /* devices that may be used */

    /* The time of the all-reduce after one walk of a class that `devices` share. NULL: there is none. */
    double (*sync_ns)(void *user, tsr_device_set devices, int class_index);

    /* The time of a walk with counts[n_devices] of a class, if it is more than that of the slowest device
     * because chance decides how much of its part each device computes. NULL, or a negative value: the time
     * of the slowest device. The search minimises the time of the slowest device over counts, and this time
     * over sets of devices; the result is not proven then. */
    double (*walk_ns)(void *user, int class_index, const int64_t *counts);
    void *user;

    bool *no_room; /* set if TSR_ERR_MEMORY is about the devices' memory; NULL: not reported */
} tsr_cost_problem;

typedef struct tsr_cost_result {
    tsr_device_set devices; /* S: the devices that hold granules */
    int64_t counts[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];
    double work_ns[TSR_SPLIT_MAX_CLASSES]; /* one walk on the slowest device */
    double sync_ns[TSR_SPLIT_MAX_CLASSES]; /* one walk */
    int slowest[TSR_SPLIT_MAX_CLASSES];    /* the slowest device; -1: no device has work */
    double total_ns;                       /* of a step */
    double bound_ns;                       /* no split could take less */
    bool proven;                           /* total_ns is the minimum */
} tsr_cost_result;

/* cost(class, device, n) of the formula in split/search/optimize.h; with parts, the sum of both. */
double tsr_cost_of(const tsr_cost_class *c, int device, int64_t n);

/* The number of parts of a walk: 1, or TSR_COST_PARTS. */
int tsr_cost_n_parts(const tsr_cost_class *c);
tsr_cost_times tsr_cost_part(const tsr_cost_class *c, int part);

static inline double tsr_cost_time(tsr_cost_times times, int device, int64_t n)
{
    return n ? times.fixed_ns[device] + (double)n * times.granule_ns[device] : 0;
}

/* The time of a walk with counts[n_devices]: of the slowest device, or of that of each part. */
double tsr_cost_walk_ns(const tsr_cost_class *c, int n_devices, const int64_t *counts);

/* The class as if its walks were those of one part; `part` TSR_COST_PARTS: as if a walk took the time of both
 * parts on the same device. */
tsr_cost_class tsr_cost_as_one_part(const tsr_cost_class *c, int part);

/* Whether two devices have the same times in a class. */
bool tsr_cost_alike(const tsr_cost_class *c, int a, int b);

/* Time of given counts; `devices` is taken from them. bound_ns is 0, proven false. */
void tsr_cost_evaluate(const tsr_cost_problem *problem, const int64_t counts[][TSR_MAX_DEVICES],
                       tsr_cost_result *result_out);

/* The time of the all-reduce after one walk of a class that `devices` share. */
static inline double tsr_cost_sync(const tsr_cost_problem *problem, tsr_device_set devices, int class_index)
{
    return problem->sync_ns && problem->classes[class_index].n_granules
               ? problem->sync_ns(problem->user, devices, class_index)
               : 0;
}

/* Bytes for granules, at most INT64_MAX / 4. */
int64_t tsr_cost_room(const tsr_split_room *room);

/* TSR_ERR_INVALID: counts, bytes or times out of range. */
tsr_status tsr_cost_check(const tsr_cost_problem *problem);

#endif
