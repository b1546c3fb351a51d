/* How the FFN of a mixture of experts is divided: columns of every expert, or whole experts. */
#ifndef TSR_PLAN_EXPERT_SPLIT_H
#define TSR_PLAN_EXPERT_SPLIT_H

#include "plan/planner.h"

/* Choose the granules of the FFN of a model with experts, before anything else is decided. The choice is that
 * of planner->config.split.experts; for TSR_EXPERT_SPLIT_AUTO it is the split that takes less time by the
 * rates on these devices, for the workload of the config: columns if both take the same time, or if rates
 * are not known. planner->shape is divided by columns. Errors are those of tsr_offload_map_create(). */
tsr_status tsr_expert_split_choose(const tsr_planner *planner, bool *by_expert_out);

#endif
