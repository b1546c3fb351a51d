/* The workload as a cost problem. */
#include "plan/cost/goal.h"

#include <math.h>

#include "arch/sharding.h"
#include "core/mem.h"
#include "core/status.h"
#include "model/model.h"
#include "plan/cost/halves.h"

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

static tsr_device_set gpus_of(const tsr_planner *planner)
{
    tsr_device_set gpus = 0;
    for (int d = 0; d < planner->n_devices; d++)
        gpus |= planner->props[d].kind == TSR_DEVICE_CUDA ? tsr_device_set_one(d) : 0;
    return gpus;
}

/* Whether sessions run chunks of prompts in halves on GPUs, unless sums are staged
 * (tsr_session_first_half()). */
static bool may_halve(const tsr_hparams *hp)
{
    bool may = !hp->predicts;
    for (int64_t l = 0; l < hp->n_layers; l++) {
        const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
        may = may && (kind->mixer == TSR_MIXER_ATTENTION || kind->mixer == TSR_MIXER_LATENT) &&
              kind->beside == 0;
    }
    return may;
}

static bool keeps_windows(const tsr_planner *planner)
{
    bool keeps = false;
    for (int i = 0; i < planner->shape.hparams.n_kinds; i++)
        keeps = keeps || planner->shape.hparams.kinds[i].window > 0;
    return keeps && !planner->config.session.swa_full;
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
    const bool gpu = gpus_of(planner) != 0;
    const double step = (double)goal->prompt.n_tokens, cost = (double)tsr_stage_chunk_cost(gpu);
    tsr_model_cost *chunk = NULL;
    int64_t least = 0;
    TSR_TRY(TSR_NEW(&chunk, "the times of chunks"));
    for (int s = 0; s <= TSR_PIPELINE_LANES; s++) {
        const int64_t most = s < 2 ? n_tokens
                                   : tsr_stage_chunk_tokens(n_tokens, s, gpu, keeps_windows(planner),
                                                            planner->config.session.n_batch);
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
    goal->halving =
        n_tokens >= 2 * TSR_MODEL_HALF_TOKENS && may_halve(&planner->shape.hparams) ? gpus_of(planner) : 0;
    if (goal->halving)
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

double tsr_goal_hidden_ns(const tsr_goal *goal, const int64_t counts[][TSR_MAX_DEVICES])
{
    tsr_cost_result whole, half;
    tsr_half_segment segments[2];
    double whole_ns = 0;
    tsr_cost_evaluate(&goal->prompt.problem, counts, &whole);
    if (tsr_device_set_count(whole.devices) < 2 || (whole.devices & ~goal->halving))
        return 0;
    tsr_cost_evaluate(&goal->half.problem, counts, &half);
    const double repeats = goal->prompt.classes[TSR_CLASS_FFN].repeats;
    for (int c = TSR_CLASS_ATTENTION; c <= TSR_CLASS_FFN; c++) {
        segments[c - TSR_CLASS_ATTENTION] = (tsr_half_segment){half.work_ns[c], half.sync_ns[c]};
        whole_ns += repeats * (whole.work_ns[c] + whole.sync_ns[c]);
    }
    return whole_ns - tsr_halves_ns(segments, 2, (int)repeats);
}

void tsr_goal_step_times(const tsr_goal *goal, const int64_t counts[][TSR_MAX_DEVICES], double *decode_ns_out,
                         double *prompt_ns_out)
{
    tsr_cost_result decode, prompt;
    tsr_cost_evaluate(&goal->decode.problem, counts, &decode);
    tsr_cost_evaluate(&goal->prompt.problem, counts, &prompt);
    *decode_ns_out = decode.total_ns;
    *prompt_ns_out = prompt.total_ns - tsr_goal_hidden_ns(goal, counts);
}

/* -- the search -- */

/* What a step of `cost` saves. */
static double saved_ns(const tsr_goal *goal, const tsr_model_cost *cost, const tsr_cost_result *result)
{
    const double steps = cost == &goal->cost ? goal->n_prompts : cost == &goal->prompt;
    return steps > 0 ? steps * tsr_goal_hidden_ns(goal, (const int64_t(*)[TSR_MAX_DEVICES])result->counts)
                     : 0;
}

/* The fastest split over GPUs if all-reduces of prompts took no time; no_room_out: none fits. */
static tsr_status optimize_beside(tsr_goal *goal, const tsr_model_cost *cost, tsr_cost_result *result_out,
                                  bool *no_room_out)
{
    tsr_cost_problem problem = cost->problem;
    problem.allowed &= goal->halving;
    problem.no_room = no_room_out;
    goal->prompt.sums_beside = true;
    tsr_status status = tsr_split_optimize(&problem, result_out);
    goal->prompt.sums_beside = false;
    return status;
}

tsr_status tsr_goal_optimize(tsr_goal *goal, tsr_model_cost *cost, tsr_cost_result *result_out)
{
    tsr_status status = TSR_OK;
    tsr_cost_result beside, exact;
    bool no_room = false;
    TSR_TRY(tsr_split_optimize(&cost->problem, result_out));
    if (cost == &goal->decode || (cost == &goal->cost && goal->n_prompts <= 0) ||
        tsr_device_set_count(cost->problem.allowed & goal->halving) < 2)
        return TSR_OK;
    const double exposed_ns = result_out->total_ns;
    result_out->total_ns -= saved_ns(goal, cost, result_out);
    status = optimize_beside(goal, cost, &beside, &no_room);
    if (no_room) {
        tsr_fail_clear();
        return TSR_OK;
    }
    TSR_TRY(status);
    tsr_cost_evaluate(&cost->problem, (const int64_t(*)[TSR_MAX_DEVICES])beside.counts, &exact);
    exact.total_ns -= saved_ns(goal, cost, &exact);
    const bool proven = result_out->proven && beside.proven;
    if (exact.total_ns < result_out->total_ns)
        *result_out = exact;
    result_out->proven = proven && result_out->total_ns <= TSR_MIN(exposed_ns, beside.total_ns);
out:
    return status;
}
