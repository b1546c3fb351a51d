/* From a decision to the plan that reports it. */
#ifndef TSR_PLAN_REPORT_H
#define TSR_PLAN_REPORT_H

#include "plan/decide.h"
#include "plan/plan.h"

/* The plan of a choice, whose split it takes over. */
tsr_status tsr_plan_report(const tsr_planner *planner, tsr_plan_choice *choice, tsr_plan **plan_out);

#endif
