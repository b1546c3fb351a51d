/* Measuring a split: loading it on devices that allocate nothing, and reading their accounting. */
#ifndef TSR_PLAN_DRY_RUN_H
#define TSR_PLAN_DRY_RUN_H

#include "plan/measurement.h"
#include "plan/planner.h"

/* planner->weights and planner->request are not used. */
tsr_status tsr_measurement_create(const tsr_planner *planner, const tsr_model_split *split,
                                  tsr_measurement *measurement_out);

#endif
