/* The workload as a cost problem. */
#include "plan/cost/goal.h"

#include <math.h>

#include "arch/sharding.h"
#include "core/mem.h"
#include "model/model.h"

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
    return ns >= 0 ? ns : tsr_cost_walk_ns(&cost->classes[c], cost->problem.n_devices, counts);
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

/* Whether one device is the slowest in both phases, whatever the counts: all devices are equal, or each takes
 * the same multiple of its time for decoding. */
static bool is_one_slowest(const tsr_cost_class *decode, const tsr_cost_class *prompt, int n_devices)
{
    const double ratio = prompt->granule_ns[0] / decode->granule_ns[0], error = 1e-12 * ratio;
    bool equal = true, proportional = true;
    for (int d = 0; d < n_devices; d++) {
        const double granule_ns = decode->granule_ns[d], fixed_ns = decode->fixed_ns[d];
        equal = equal && tsr_cost_alike(decode, 0, d) && tsr_cost_alike(prompt, 0, d);
        proportional = proportional &&
                       fabs(prompt->granule_ns[d] - ratio * granule_ns) <= error * granule_ns &&
                       fabs(prompt->fixed_ns[d] - ratio * fixed_ns) <= error * fixed_ns;
    }
    return equal || proportional;
}

static void mix_class(const tsr_goal *goal, int c, tsr_cost_class *mixed)
{
    const tsr_cost_class *phases[TSR_COST_PARTS] = {&goal->decode.classes[c], &goal->prompt.classes[c]};
    const double steps[TSR_COST_PARTS] = {goal->n_decodes, goal->n_prompts};
    const int n_devices = goal->cost.problem.n_devices;
    mixed->has_parts = steps[0] > 0 && steps[1] > 0 && !is_one_slowest(phases[0], phases[1], n_devices);
    for (int d = 0; d < n_devices; d++) {
        mixed->granule_ns[d] = mixed->fixed_ns[d] = 0;
        for (int i = 0; i < TSR_COST_PARTS; i++) {
            mixed->part_granule_ns[i][d] = steps[i] * phases[i]->granule_ns[d];
            mixed->part_fixed_ns[i][d] = steps[i] * phases[i]->fixed_ns[d];
            mixed->granule_ns[d] += mixed->part_granule_ns[i][d];
            mixed->fixed_ns[d] += mixed->part_fixed_ns[i][d];
        }
    }
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
        mix_class(goal, c, &cost->classes[c]);
}

static bool any_gpu(const tsr_planner *planner)
{
    bool any = false;
    for (int d = 0; d < planner->n_devices; d++)
        any = any || planner->props[d].kind == TSR_DEVICE_CUDA;
    return any;
}

/* The time of all granules on a device. */
static double all_ns(const tsr_model_cost *cost, int d)
{
    double ns = 0;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        ns += cost->classes[c].repeats * tsr_cost_of(&cost->classes[c], d, cost->classes[c].n_granules);
    return ns;
}

/* The prompts in chunks as a session makes them. A chunk takes longer than as many tokens of a larger step by
 * what sessions assume, or by what its step costs: with experts, each chunk reads almost all of them. */
static tsr_status find_chunks(const tsr_planner *planner, int64_t n_tokens, tsr_goal *goal)
{
    tsr_status status = TSR_OK;
    const bool gpu = any_gpu(planner);
    const double step = (double)goal->prompt.n_tokens, cost = (double)tsr_stage_chunk_cost(gpu);
    tsr_model_cost *chunk = NULL;
    int64_t least = 0;
    TSR_TRY(TSR_NEW(&chunk, "the times of chunks"));
    for (int s = 0; s <= TSR_PIPELINE_LANES; s++) {
        const int64_t most =
            s < 2 ? n_tokens : tsr_stage_chunk_tokens(n_tokens, s, gpu, planner->config.session.n_batch);
        const int64_t n = (n_tokens + most - 1) / most;
        const double tokens = (double)n_tokens / (double)n;
        goal->chunks[s] = (tsr_pipeline_chunks){.n = (double)n, .slower = 1};
        if (n == 1)
            continue;
        goal->chunks[s].slower = (1 + cost / tokens) / (1 + cost / step);
        if (most != least)
            TSR_TRY(tsr_model_cost_init(planner, most, 1, chunk));
        least = most;
        for (int d = 0; d < planner->n_devices; d++)
            goal->chunks[s].slower = TSR_MAX(goal->chunks[s].slower, all_ns(chunk, d) / (double)most * step /
                                                                         all_ns(&goal->prompt, d));
    }
out:
    tsr_mem_free(chunk);
    return status;
}

tsr_status tsr_goal_init(const tsr_planner *planner, tsr_goal *goal)
{
    tsr_status status = TSR_OK;
    const tsr_model_config *config = &planner->config;
    const int64_t n_seq = config->workload.n_seq, n_batch = config->session.n_batch;
    const int64_t n_prompt = config->workload.n_prompt, n_all = n_seq * n_prompt;
    const int64_t n_tokens = n_all ? TSR_MIN(n_all, n_batch) : n_batch; /* of a step of the prompts */
    const int64_t n_prompts = n_all ? TSR_MIN((n_tokens + n_prompt - 1) / n_prompt, n_seq) : 1;
    const int64_t n_parts = (n_seq + n_batch - 1) / n_batch; /* steps that decode a token of every sequence */
    const int64_t n_decoding = (n_seq + n_parts - 1) / n_parts;
    goal->n_decodes = (double)config->workload.n_new * (double)n_seq / (double)n_decoding;
    goal->n_prompts = (double)n_all / (double)n_tokens;
    TSR_TRY(tsr_model_cost_init(planner, n_decoding, n_decoding, &goal->decode));
    TSR_TRY(tsr_model_cost_init(planner, n_tokens, n_prompts, &goal->prompt));
    goal->half.n_tokens = 0;
    if (n_tokens >= 2 * TSR_MODEL_HALF_TOKENS)
        TSR_TRY(tsr_model_cost_init(planner, n_tokens / 2, n_prompts, &goal->half));
    mix(goal);
    TSR_TRY(find_chunks(planner, TSR_MAX(n_all, n_tokens), goal));
out:
    return status;
}

double tsr_goal_ns(const tsr_goal *goal, double decode_ns, double prompt_ns)
{
    return goal->n_decodes * decode_ns + goal->n_prompts * prompt_ns;
}
