/* The workload as a cost problem. */
#include "plan/cost/goal.h"

#include "core/mem.h"

bool tsr_goal_is_mixed(const tsr_goal *goal)
{
    return goal->n_decodes > 0 && goal->n_prompts > 0;
}

static double sync_ns(void *user, tsr_device_set devices, int c)
{
    tsr_goal *goal = user;
    return goal->n_decodes * tsr_cost_sync(&goal->decode.problem, devices, c) +
           goal->n_prompts * tsr_cost_sync(&goal->prompt.problem, devices, c);
}

/* One walk of a phase. */
static double phase_ns(const tsr_model_cost *cost, int c, const int64_t *counts)
{
    double ns = cost->problem.walk_ns ? cost->problem.walk_ns(cost->problem.user, c, counts) : -1;
    if (ns >= 0)
        return ns;
    for (int d = 0; d < cost->problem.n_devices; d++)
        ns = TSR_MAX(ns, tsr_cost_of(&cost->classes[c], d, counts[d]));
    return ns;
}

static double walk_ns(void *user, int c, const int64_t *counts)
{
    const tsr_goal *goal = user;
    if (c != TSR_CLASS_FFN)
        return -1;
    return goal->n_decodes * phase_ns(&goal->decode, c, counts) +
           goal->n_prompts * phase_ns(&goal->prompt, c, counts);
}

static double transfer_ns(void *user, tsr_device_set from, tsr_device_set to, bool outputs)
{
    tsr_goal *goal = user;
    return goal->n_decodes * goal->decode.transfer_ns(&goal->decode, from, to, outputs) +
           goal->n_prompts * goal->prompt.transfer_ns(&goal->prompt, from, to, outputs);
}

/* goal->cost from the two phases. */
static void mix(tsr_goal *goal)
{
    tsr_model_cost *cost = &goal->cost;
    *cost = goal->decode;
    cost->problem.classes = cost->classes;
    cost->problem.rooms = cost->rooms;
    cost->problem.sync_ns = sync_ns;
    cost->problem.walk_ns = goal->decode.n_touched || goal->prompt.n_touched ? walk_ns : NULL;
    cost->problem.user = goal;
    cost->transfer_ns = transfer_ns;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        for (int d = 0; d < cost->problem.n_devices; d++) {
            const tsr_cost_class *a = &goal->decode.classes[c], *b = &goal->prompt.classes[c];
            cost->classes[c].granule_ns[d] =
                goal->n_decodes * a->granule_ns[d] + goal->n_prompts * b->granule_ns[d];
            cost->classes[c].fixed_ns[d] =
                goal->n_decodes * a->fixed_ns[d] + goal->n_prompts * b->fixed_ns[d];
        }
}

tsr_status tsr_goal_init(const tsr_planner *planner, tsr_goal *goal)
{
    tsr_status status = TSR_OK;
    const tsr_model_config *config = &planner->config;
    int64_t n_batch = config->session.n_batch, n_prompt = config->workload.n_prompt;
    int64_t n_tokens = n_prompt ? TSR_MIN(n_prompt, n_batch) : n_batch;
    goal->n_decodes = config->workload.n_new;
    goal->n_prompts = (double)n_prompt / (double)n_tokens;
    TSR_TRY(tsr_model_cost_init(planner, 1, &goal->decode));
    TSR_TRY(tsr_model_cost_init(planner, n_tokens, &goal->prompt));
    if (tsr_goal_is_mixed(goal))
        mix(goal);
    else
        TSR_TRY(tsr_model_cost_init(planner,
                                    n_prompt                 ? n_tokens
                                    : config->workload.n_new ? 1
                                                             : config->plan.n_tokens,
                                    &goal->cost));
out:
    return status;
}

double tsr_goal_ns(const tsr_goal *goal, double decode_ns, double prompt_ns)
{
    return goal->n_decodes * decode_ns + goal->n_prompts * prompt_ns;
}

bool tsr_goal_is_exact(const tsr_goal *goal, const int64_t counts[][TSR_MAX_DEVICES], double total_ns)
{
    tsr_cost_result decode, prompt;
    if (!tsr_goal_is_mixed(goal))
        return true;
    tsr_cost_evaluate(&goal->decode.problem, counts, &decode);
    tsr_cost_evaluate(&goal->prompt.problem, counts, &prompt);
    return tsr_goal_ns(goal, decode.total_ns, prompt.total_ns) <= total_ns * (1 + 1e-9);
}
