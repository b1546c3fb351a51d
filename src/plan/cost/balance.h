/* Ties: of the splits that take the least time, one that leaves equal devices about equally full. The
 * searches (split/search) fill devices in their order, since memory is no part of the time. */
#ifndef TSR_PLAN_COST_BALANCE_H
#define TSR_PLAN_COST_BALANCE_H

#include "plan/cost/stages.h"

/* Exchange the granules of devices with the same rates and the same room, class by class, so that their bytes
 * differ less. The time is the same, because the devices are. */
void tsr_balance_counts(const tsr_model_cost *cost, int64_t counts[][TSR_MAX_DEVICES]);

/* Move layers from fuller to emptier stages as long as the pipeline takes no more time by stages->problem. */
void tsr_balance_stages(const tsr_stages_problem *stages, tsr_pipeline *pipeline);

#endif
