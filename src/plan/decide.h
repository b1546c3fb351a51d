/* Deciding which device gets which granules. */
#ifndef TSR_PLAN_DECIDE_H
#define TSR_PLAN_DECIDE_H

#include "plan/measurement.h"
#include "plan/offload.h"

/* What was decided, and what the devices would need without memory caps. */
typedef struct tsr_plan_choice {
    tsr_offload_map map;
    tsr_model_split split;
    tsr_measurement measurement;
    bool automatic, proven;                           /* as in tsr_plan_times */
    size_t wanted[TSR_MAX_DEVICES][TSR_MEMORY_COUNT]; /* bytes of the split without memory caps */
    bool no_room; /* the status is TSR_ERR_MEMORY because of the devices' memory, not of the host's own */
} tsr_plan_choice;

/* Choose granule counts (or layers) for the devices so that everything fits, and measure the result. An
 * automatic request gets the counts that take the least time by config.rates. A failure names the device and
 * the bytes that are missing; *choice_out then has only `wanted` (as far as found) and `no_room`. */
tsr_status tsr_plan_decide(const tsr_planner *planner, tsr_plan_choice *choice_out);
void tsr_plan_choice_free(tsr_plan_choice *choice);

#endif
