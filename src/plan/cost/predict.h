/* Predicting the times of a plan and of its alternatives. */
#ifndef TSR_PLAN_COST_PREDICT_H
#define TSR_PLAN_COST_PREDICT_H

#include "plan/cost/goal.h"
#include "plan/plan.h"

/* Fill plan->times and the alternatives from plan->split and the rates. */
tsr_status tsr_plan_predict_times(const tsr_planner *planner, tsr_plan *plan);

enum { TSR_PLAN_MODE_ALTERNATIVES = 6 };

/* Add the fastest plan of every split mode to plan->alternatives, which have room for
 * TSR_PLAN_MODE_ALTERNATIVES more, and in this plan's mode those that are the fastest for decoding alone and
 * for prompts alone. The mode of config.split.mode is left out if the plan itself is the fastest of that
 * mode. `goal` is the planner's, and is changed. */
tsr_status tsr_plan_add_modes(const tsr_planner *planner, tsr_goal *goal, tsr_plan *plan);

#endif
