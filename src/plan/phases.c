/* See phases.h. */
#include "plan/phases.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "split/search/optimize_level.h"

enum { TOKENS_WITHOUT_RATES = 32 };

/* -- the fastest pair -- */

static bool has_pairs(const tsr_planner *planner, const tsr_goal *goal)
{
    const tsr_hparams *hp = &planner->shape.hparams;
    bool some = goal->n_decodes > 0 && goal->n_prompts > 0 && !planner->shape.arch->header_only &&
                planner->n_devices <= TSR_OPTIMIZE_ALL_SUBSETS &&
                goal->prompt.n_tokens > goal->decode.n_tokens;
    for (int i = 0; i < hp->n_kinds; i++)
        some = some && hp->kinds[i].mixer != TSR_MIXER_MAMBA && hp->kinds[i].mixer != TSR_MIXER_COMPRESSED &&
               hp->kinds[i].beside == 0;
    return some;
}

/* The granules of class c for which devices of a set have room beside `taken` bytes each. */
static void find_caps(const tsr_model_cost *cost, int c, tsr_device_set set, const int64_t *taken,
                      int64_t cap[TSR_MAX_DEVICES])
{
    const int64_t bytes = (int64_t)TSR_MAX(cost->classes[c].granule_bytes, 1);
    for (int d = 0; d < cost->problem.n_devices; d++) {
        const int64_t room = tsr_cost_room(&cost->problem.rooms[d]) - (taken ? taken[d] : 0);
        cap[d] =
            tsr_device_set_has(set, d) && room > 0 ? TSR_MIN(cost->classes[c].n_granules, room / bytes) : 0;
    }
}

/* The fastest counts of one class, and the time of its walks; INFINITY: they do not fit. */
static tsr_status find_counts(const tsr_cost_class *k, int n_devices, const int64_t *cap, int64_t *counts,
                              double *ns_out)
{
    int64_t sum = 0, work = INT64_C(1) << 22;
    bool proven = true;
    for (int d = 0; d < n_devices; d++)
        sum += cap[d];
    *ns_out = INFINITY;
    if (sum < k->n_granules)
        return TSR_OK;
    tsr_status status = tsr_cost_least(k, n_devices, cap, &work, &proven, counts, ns_out);
    *ns_out *= k->repeats;
    return status;
}

/* The fastest FFN and output of a phase over the devices of a set, beside attention; `rooms` of the cost that
 * is minimised. */
static tsr_status find_rest(const tsr_model_cost *cost, const tsr_model_cost *of_phase, tsr_device_set set,
                            const int64_t *taken, int64_t counts[][TSR_MAX_DEVICES], double *ns_out)
{
    tsr_status status = TSR_OK;
    const int n = cost->problem.n_devices;
    int64_t cap[TSR_MAX_DEVICES], used[TSR_MAX_DEVICES];
    double ffn_ns, output_ns;
    *ns_out = INFINITY;
    find_caps(cost, TSR_CLASS_FFN, set, taken, cap);
    TSR_TRY(find_counts(&of_phase->classes[TSR_CLASS_FFN], n, cap, counts[TSR_CLASS_FFN], &ffn_ns));
    if (isinf(ffn_ns))
        return TSR_OK;
    for (int d = 0; d < n; d++)
        used[d] = taken[d] + counts[TSR_CLASS_FFN][d] * (int64_t)cost->classes[TSR_CLASS_FFN].granule_bytes;
    find_caps(cost, TSR_CLASS_OUTPUT, set, used, cap);
    TSR_TRY(find_counts(&of_phase->classes[TSR_CLASS_OUTPUT], n, cap, counts[TSR_CLASS_OUTPUT], &output_ns));
    *ns_out = ffn_ns + output_ns;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        *ns_out += of_phase->classes[c].repeats * tsr_cost_sync(&of_phase->problem, set, c);
out:
    return status;
}

/* The same over all sets with the devices of attention. */
static tsr_status find_best_rest(const tsr_model_cost *cost, const tsr_model_cost *of_phase,
                                 tsr_device_set attention, const int64_t *taken,
                                 int64_t counts[][TSR_MAX_DEVICES], double *ns_out)
{
    tsr_status status = TSR_OK;
    int64_t some[TSR_CLASS_COUNT][TSR_MAX_DEVICES];
    const tsr_device_set all = cost->problem.allowed & (tsr_device_set_one(cost->problem.n_devices) - 1);
    double ns;
    *ns_out = INFINITY;
    for (tsr_device_set set = 1; set <= all; set++) {
        if ((set & ~all) || (attention & ~set))
            continue;
        TSR_TRY(find_rest(cost, of_phase, set, taken, some, &ns));
        if (ns >= *ns_out)
            continue;
        *ns_out = ns;
        memcpy(counts[TSR_CLASS_FFN], some[TSR_CLASS_FFN], sizeof some[0]);
        memcpy(counts[TSR_CLASS_OUTPUT], some[TSR_CLASS_OUTPUT], sizeof some[0]);
    }
out:
    return status;
}

static bool has_room(const tsr_model_cost *cost, const tsr_phase_pair *pair)
{
    for (int d = 0; d < cost->problem.n_devices; d++) {
        int64_t room = tsr_cost_room(&cost->problem.rooms[d]);
        for (int c = 0; c < TSR_CLASS_COUNT; c++)
            room -=
                tsr_phase_held(pair->decode[c], pair->prompt[c], d) * (int64_t)cost->classes[c].granule_bytes;
        if (room < 0)
            return false;
    }
    return true;
}

/* The fastest pair with attention on a set of devices. */
static tsr_status find_with(tsr_goal *goal, tsr_device_set attention, tsr_phase_pair *pair)
{
    tsr_status status = TSR_OK;
    const tsr_model_cost *cost = &goal->cost;
    const int n = cost->problem.n_devices;
    int64_t cap[TSR_MAX_DEVICES], taken[TSR_MAX_DEVICES] = {0};
    double ns, decode_ns, prompt_ns;
    tsr_cost_result decode, prompt;
    pair->total_ns = INFINITY;
    find_caps(cost, TSR_CLASS_ATTENTION, attention, NULL, cap);
    TSR_TRY(find_counts(&cost->classes[TSR_CLASS_ATTENTION], n, cap, pair->decode[TSR_CLASS_ATTENTION], &ns));
    if (isinf(ns))
        return TSR_OK;
    memcpy(pair->prompt[TSR_CLASS_ATTENTION], pair->decode[TSR_CLASS_ATTENTION], sizeof pair->prompt[0]);
    for (int d = 0; d < n; d++)
        taken[d] =
            pair->decode[TSR_CLASS_ATTENTION][d] * (int64_t)cost->classes[TSR_CLASS_ATTENTION].granule_bytes;
    TSR_TRY(find_best_rest(cost, &goal->decode, attention, taken, pair->decode, &decode_ns));
    TSR_TRY(find_best_rest(cost, &goal->prompt, attention, taken, pair->prompt, &prompt_ns));
    if (isinf(decode_ns) || isinf(prompt_ns) || !has_room(cost, pair))
        return TSR_OK;
    tsr_cost_evaluate(&goal->decode.problem, (const int64_t(*)[TSR_MAX_DEVICES])pair->decode, &decode);
    tsr_cost_evaluate(&goal->prompt.problem, (const int64_t(*)[TSR_MAX_DEVICES])pair->prompt, &prompt);
    pair->total_ns = tsr_goal_ns(goal, decode.total_ns, prompt.total_ns);
out:
    return status;
}

tsr_status tsr_phase_find_pair(const tsr_planner *planner, tsr_goal *goal, tsr_phase_pair *pair_out)
{
    tsr_status status = TSR_OK;
    const tsr_device_set all = goal->cost.problem.allowed & (tsr_device_set_one(planner->n_devices) - 1);
    tsr_phase_pair pair = {.total_ns = INFINITY};
    *pair_out = pair;
    for (tsr_device_set set = 1; has_pairs(planner, goal) && set <= all; set++) {
        if (set & ~all)
            continue;
        TSR_TRY(find_with(goal, set, &pair));
        if (pair.total_ns < pair_out->total_ns)
            *pair_out = pair;
    }
out:
    return status;
}

/* -- the least tokens -- */

static double step_ns(const tsr_model_cost *cost, const int64_t *flat)
{
    const int n = cost->problem.n_devices;
    int64_t counts[TSR_CLASS_COUNT][TSR_MAX_DEVICES];
    tsr_cost_result result;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        for (int d = 0; d < n; d++)
            counts[c][d] = flat[c * n + d];
    tsr_cost_evaluate(&cost->problem, (const int64_t(*)[TSR_MAX_DEVICES])counts, &result);
    return result.total_ns;
}

/* `tokens`, or the nearest threshold with which steps of the workload use the split that they were counted
 * with: those that decode a token of every sequence use that of decoding, full steps of prompts that of
 * prompts. */
static int64_t between_phases(const tsr_planner *planner, int64_t tokens)
{
    const tsr_model_config *config = &planner->config;
    const int64_t n_seq = config->workload.n_seq, n_prompt = config->workload.n_prompt * n_seq;
    const int64_t most = TSR_MIN(n_prompt, config->session.n_batch);
    return TSR_MIN(TSR_MAX(tokens, n_seq + 1), TSR_MAX(most, 2));
}

static tsr_status find_tokens(const tsr_planner *planner, const int64_t *counts, const int64_t *prompt_counts,
                              int64_t *tokens_out)
{
    tsr_status status = TSR_OK;
    const int64_t n_batch = planner->config.session.n_batch;
    tsr_model_cost *cost = NULL;
    int64_t tokens = 2;
    if (planner->config.prompt.n_tokens > 0) {
        *tokens_out = TSR_MIN(planner->config.prompt.n_tokens, n_batch);
        return TSR_OK;
    }
    if (!tsr_model_cost_known(planner)) {
        *tokens_out = TSR_MIN(TOKENS_WITHOUT_RATES, n_batch);
        return TSR_OK;
    }
    TSR_TRY(TSR_NEW(&cost, "the times of steps"));
    while (2 * tokens <= n_batch)
        tokens *= 2;
    for (; tokens > 2; tokens /= 2) {
        TSR_TRY(tsr_model_cost_init(planner, tokens / 2, 1, cost));
        if (step_ns(cost, prompt_counts) > step_ns(cost, counts))
            break;
    }
    *tokens_out = tokens;
    if (planner->prompt.automatic)
        *tokens_out = between_phases(planner, tokens);
out:
    tsr_mem_free(cost);
    return status;
}

tsr_status tsr_phase_add_split(const tsr_planner *planner, const int64_t *counts,
                               const int64_t *prompt_counts, tsr_model_split *split)
{
    tsr_status status = TSR_OK;
    int64_t tokens;
    TSR_TRY(find_tokens(planner, counts, prompt_counts, &tokens));
    TSR_TRY(tsr_model_split_add_prompt(&planner->shape.hparams, &planner->shape.granules,
                                       planner->prompt.share, prompt_counts, tokens, split));
out:
    return status;
}

int64_t tsr_phase_held(const int64_t *counts, const int64_t *prompt_counts, int d)
{
    int64_t first = 0, prompt_first = 0;
    for (int i = 0; i < d; i++) {
        first += counts[i];
        prompt_first += prompt_counts[i];
    }
    const int64_t both =
        TSR_MIN(first + counts[d], prompt_first + prompt_counts[d]) - TSR_MAX(first, prompt_first);
    return counts[d] + prompt_counts[d] - TSR_MAX(both, 0);
}
