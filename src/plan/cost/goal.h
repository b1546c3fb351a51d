/* What the planner minimises: the time of the workload that the config states. */
#ifndef TSR_PLAN_COST_GOAL_H
#define TSR_PLAN_COST_GOAL_H

#include "plan/cost/step.h"
#include "split/search/pipeline_problem.h"

/* Must not be moved: problems point into it. */
typedef struct tsr_goal {
    tsr_model_cost cost;           /* to be minimised: that of all steps of the workload */
    tsr_model_cost decode, prompt; /* of one step of each kind */
    tsr_device_set halving;        /* GPUs, which run a step of prompts in halves; empty: no step does */
    tsr_model_cost half;           /* of half a step of prompts, if some GPUs do */
    double n_decodes, n_prompts;   /* steps of the workload */
    tsr_pipeline_chunks chunks[TSR_PIPELINE_LANES + 1]; /* of the prompts, by the number of stages */
} tsr_goal;

/* A walk of `cost` stands for those of all steps; its parts are decoding and the prompts. A step of prompts
 * has n_batch tokens, or those of all prompts if they are fewer. TSR_ERR_INVALID if rates are not known. */
tsr_status tsr_goal_init(const tsr_planner *planner, tsr_goal *goal_out);

/* The time of the workload by the times of both kinds of steps. */
double tsr_goal_ns(const tsr_goal *goal, double decode_ns, double prompt_ns);

/* What a step of prompts saves where every layer is divided by `counts` and all-reduces of one half of the
 * step run beside the work of the other (docs/design/overlap.md); below 0 if halves lose more. */
double tsr_goal_hidden_ns(const tsr_goal *goal, const int64_t counts[][TSR_MAX_DEVICES]);

/* The time of a step of each kind where every layer is divided by `counts`. */
void tsr_goal_step_times(const tsr_goal *goal, const int64_t counts[][TSR_MAX_DEVICES], double *decode_ns_out,
                         double *prompt_ns_out);

/* tsr_split_optimize() of one of the goal's costs, less what all-reduces beside work save: the better one of
 * the splits that are fastest if none or all of them did. */
tsr_status tsr_goal_optimize(tsr_goal *goal, tsr_model_cost *cost, tsr_cost_result *result_out);

#endif
