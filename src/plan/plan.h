/* Inside a plan. */
#ifndef TSR_PLAN_PLAN_H
#define TSR_PLAN_PLAN_H

#include <tsr/plan.h>

#include "arch/sharding.h"

enum { TSR_PLAN_MAX_NOTES = TSR_MAX_DEVICES + 8 };

/* The work of one class of tensors in one group of devices, in one kind of step. */
typedef struct tsr_plan_walk {
    tsr_split_class_id class_id;
    int repeats;             /* layers; 1 for the output */
    double work_ns, sync_ns; /* of the slowest device, and of the all-reduce after the work; per repeat */
    int slowest;             /* -1: no work */
} tsr_plan_walk;

/* Of a kind of step. */
typedef struct tsr_plan_walks {
    tsr_plan_walk *list; /* [n], by class */
    int n;
} tsr_plan_walks;

/* Alternatives whose text begins like this are the best for one phase alone, in the plan's mode. */
#define TSR_PLAN_FOR_DECODE "for decode alone"
#define TSR_PLAN_FOR_PROMPT "for prompts alone"

/* Times without a device that is used, or with one that is left out, memory aside. */
typedef struct tsr_plan_effect {
    double decode_ns, prompt_ns, workload_ns;
} tsr_plan_effect;

struct tsr_plan {
    tsr_plan_info info;
    tsr_plan_device *devices; /* [info.n_devices] */
    tsr_model_split split;
    tsr_plan_times times;
    tsr_plan_walks decode_walks, prompt_walks; /* of the times; empty where they are not known */
    tsr_plan_alternative *alternatives;        /* [n_alternatives] */
    int n_alternatives;
    tsr_plan_effect effect[TSR_MAX_DEVICES]; /* 0: not known */
    double pair_ns; /* of the workload with a split of prompts; 0: no gain, or not asked */
    size_t pair_bytes[TSR_MAX_DEVICES]; /* what a device holds with it */
    double
        assumed_bytes_per_s[TSR_MAX_DEVICES]; /* of memory whose speed nothing states; 0: known, or unused */
    char *notes[TSR_PLAN_MAX_NOTES];
    int n_notes;
};

const tsr_model_split *tsr_plan_split(const tsr_plan *plan);

#endif
