/* A split of their own for prompts (config.prompt): when steps use it, and the fastest pair of splits. */
#ifndef TSR_PLAN_PHASES_H
#define TSR_PLAN_PHASES_H

#include "arch/sharding.h"
#include "plan/cost/goal.h"

/* Give `split`, of tensor mode with counts[class * n_devices + d], a split of prompts with prompt_counts. Its
 * least step is that of the config. If the config leaves it open: the smallest power of two from which on no
 * step is predicted to be slower with it; 32 where rates are not known, and at most n_batch. */
tsr_status tsr_phase_add_split(const tsr_planner *planner, const int64_t *counts,
                               const int64_t *prompt_counts, tsr_model_split *split);

/* Two splits with the same counts of attention. */
typedef struct tsr_phase_pair {
    int64_t decode[TSR_CLASS_COUNT][TSR_MAX_DEVICES], prompt[TSR_CLASS_COUNT][TSR_MAX_DEVICES];
    double total_ns; /* of the workload; INFINITY: no pair fits */
} tsr_phase_pair;

/* A fast pair for the goal, of which every device has room for what it holds of both splits. With enough
 * memory, by the goal's times no pair is faster, unless whole experts are divided. INFINITY for a workload of
 * one phase, for more than TSR_OPTIMIZE_ALL_SUBSETS devices, and for models whose states would make devices
 * take part in all steps. */
tsr_status tsr_phase_find_pair(const tsr_planner *planner, tsr_goal *goal, tsr_phase_pair *pair_out);

/* The granules of one class that device d holds for two splits with counts[n_devices] each. */
int64_t tsr_phase_held(const int64_t *counts, const int64_t *prompt_counts, int d);

#endif
