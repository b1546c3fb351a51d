/* Columns of every expert, or whole experts: the one that takes less time.
 *
 * With columns all devices work, whatever experts a token uses. But an expert has only a few granules of
 * columns: fine-grained mixtures have experts of few columns. Whole experts divide further. A single token
 * then takes as long as the device that has most of its experts. In prompts all experts are in use, and only
 * the evenness of the counts matters. The planner's cost model predicts both, in the memory that the
 * devices have. */
#include "plan/expert_split.h"

#include <math.h>

#include "core/mem.h"
#include "plan/cost/goal.h"
#include "plan/offload.h"

/* The time of a step on the devices `allowed`, with the FFN divided as planner->shape says; INFINITY if that
 * does not fit. `goal` is working memory. */
static tsr_status predict(const tsr_planner *planner, tsr_device_set allowed, tsr_goal *goal, double *ns_out)
{
    tsr_status status = TSR_OK;
    int64_t counts[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES] = {{0}};
    tsr_cost_result result;
    bool no_room = false;
    TSR_TRY(tsr_goal_init(planner, goal));
    tsr_model_cost *cost = &goal->cost;
    cost->problem.allowed = allowed;
    cost->problem.no_room = &no_room;
    for (int d = 0; d < planner->n_devices; d++)
        cost->rooms[d].capacity_bytes = tsr_device_props_room(&planner->props[d]);
    if (planner->request.automatic) {
        status = tsr_goal_optimize(goal, cost, &result);
    } else {
        for (int c = 0; c < TSR_CLASS_COUNT; c++)
            TSR_TRY(tsr_split_round(planner->request.share, planner->n_devices, planner->shape.granules.n[c],
                                    NULL, counts[c]));
        tsr_cost_evaluate(&cost->problem, counts, &result);
        result.total_ns -= goal->n_prompts * tsr_goal_hidden_ns(goal, counts);
    }
    *ns_out = status == TSR_OK ? result.total_ns : INFINITY;
    if (no_room) {
        tsr_fail_clear();
        status = TSR_OK;
    }
out:
    return status;
}

static tsr_status compare(const tsr_planner *planner, bool *by_expert_out)
{
    tsr_status status = TSR_OK;
    double columns_ns, experts_ns;
    tsr_offload_map map = {0};
    tsr_goal *goal = NULL;
    tsr_planner by_expert = *planner;
    tsr_expert_split_set(&by_expert.shape, true);
    TSR_TRY(tsr_offload_map_create(planner, &map));
    if (tsr_offload_n_free(&map, TSR_CLASS_FFN) == 0 || !tsr_model_cost_known(planner))
        goto out;
    TSR_TRY(TSR_NEW(&goal, "a choice"));
    TSR_TRY(predict(planner, ~map.reserved, goal, &columns_ns));
    TSR_TRY(predict(&by_expert, ~map.reserved, goal, &experts_ns));
    *by_expert_out = experts_ns < columns_ns;
out:
    tsr_mem_free(goal);
    tsr_offload_map_free(&map);
    return status;
}

tsr_status tsr_expert_split_choose(const tsr_planner *planner, bool *by_expert_out)
{
    const tsr_model_config *config = &planner->config;
    bool divides = config->split.mode == TSR_SPLIT_MODE_TENSOR || config->split.mode == TSR_SPLIT_MODE_AUTO;
    *by_expert_out = config->split.experts == TSR_EXPERT_SPLIT_EXPERTS;
    if (config->split.experts != TSR_EXPERT_SPLIT_AUTO || planner->n_devices == 1 || !divides)
        return TSR_OK;
    return compare(planner, by_expert_out);
}
