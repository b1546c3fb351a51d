/* Making plans. */
#ifndef TSR_PLAN_CREATE_H
#define TSR_PLAN_CREATE_H

#include "plan/plan.h"
#include "plan/planner.h"

/* Decide a split and report it. config.plan.fit is not regarded (see plan/fit/fit.h). */
tsr_status tsr_planner_plan(const tsr_planner *planner, tsr_plan **plan_out);

#endif
