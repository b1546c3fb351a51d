/* Inside a plan. */
#ifndef TSR_PLAN_PLAN_H
#define TSR_PLAN_PLAN_H

#include <tsr/plan.h>

#include "arch/sharding.h"

enum { TSR_PLAN_MAX_NOTES = TSR_MAX_DEVICES + 8 };

struct tsr_plan {
    tsr_plan_info info;
    tsr_plan_device *devices; /* [info.n_devices] */
    tsr_model_split split;
    tsr_plan_times times;
    tsr_plan_alternative *alternatives; /* [n_alternatives] */
    int n_alternatives;
    double with_ns[TSR_MAX_DEVICES]; /* decoding if a device that is left out took part; 0: not known */
    char *notes[TSR_PLAN_MAX_NOTES];
    int n_notes;
};

const tsr_model_split *tsr_plan_split(const tsr_plan *plan);

#endif
