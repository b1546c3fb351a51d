/* What the planner minimises: the time of a step, or of the workload that the config states. */
#ifndef TSR_PLAN_COST_GOAL_H
#define TSR_PLAN_COST_GOAL_H

#include "plan/cost/step.h"

/* Must not be moved: problems point into it. */
typedef struct tsr_goal {
    tsr_model_cost cost;           /* to be minimised */
    tsr_model_cost decode, prompt; /* a step of one token; a step of the prompt */
    double n_decodes, n_prompts;   /* steps of the workload; both 0: `cost` is of plan.n_tokens tokens */
} tsr_goal;

/* Without a workload, the prompt has n_batch tokens; a shorter prompt of the workload has its own. The
 * classes of `cost` are those of the workload's steps added up: the time of a walk is then a bound, reached
 * where the same device is the slowest in decoding and in the prompt. TSR_ERR_INVALID if rates are not
 * known. */
tsr_status tsr_goal_init(const tsr_planner *planner, tsr_goal *goal_out);

/* Whether the workload has steps of both phases. */
bool tsr_goal_is_mixed(const tsr_goal *goal);

/* The time of the workload by the times of both kinds of steps; 0 without a workload. */
double tsr_goal_ns(const tsr_goal *goal, double decode_ns, double prompt_ns);

/* Whether the minimum of goal->cost, total_ns, is the time of these counts in both phases. */
bool tsr_goal_is_exact(const tsr_goal *goal, const int64_t counts[][TSR_MAX_DEVICES], double total_ns);

#endif
