/* Measuring a split of a model that is planned and not run (plan/header_only/header.h). */
#ifndef TSR_PLAN_HEADER_ONLY_DRY_RUN_H
#define TSR_PLAN_HEADER_ONLY_DRY_RUN_H

#include "plan/measurement.h"
#include "plan/planner.h"

/* As tsr_measurement_create(); the arena is an estimate. */
tsr_status tsr_measurement_create_header_only(const tsr_planner *planner, const tsr_model_split *split,
                                              tsr_measurement *measurement_out);

#endif
