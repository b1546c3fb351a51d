/* What a step of a model consists of besides its matrices: operations and collectives, counted in the graph
 * of a step as it is lowered. */
#ifndef TSR_PLAN_COST_PROFILE_H
#define TSR_PLAN_COST_PROFILE_H

#include "plan/planner.h"

/* Count for planner->shape and planner->config, in a graph of two equal devices, so that every collective is
 * there. A model that does not run has the counts of a llama. tsr_step_profile_free() takes what a failure
 * leaves. */
tsr_status tsr_step_profile_create(const tsr_planner *planner, tsr_step_profile *profile_out);

#endif
