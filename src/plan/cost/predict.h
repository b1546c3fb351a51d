/* Predicting the times of a plan and of its alternatives. */
#ifndef TSR_PLAN_COST_PREDICT_H
#define TSR_PLAN_COST_PREDICT_H

#include "plan/cost/step.h"
#include "plan/plan.h"

/* Fill plan->times and the alternatives from plan->split and the rates. */
tsr_status tsr_plan_predict_times(tsr_plan *plan, const tsr_model_shape *shape, const tsr_weights *weights,
                                  const tsr_model_config *resolved);

enum { TSR_PLAN_MODE_ALTERNATIVES = 4 };

/* Add the best of every mode to the alternatives, which have room for so many, but of `wanted` where the plan
 * is that. The costs are of its two phases; those of decoding are changed. */
tsr_status tsr_plan_add_modes(tsr_plan *plan, const tsr_model_shape *shape, const tsr_weights *weights,
                              tsr_model_cost *decode, tsr_model_cost *prompt, tsr_split_mode wanted);

#endif
