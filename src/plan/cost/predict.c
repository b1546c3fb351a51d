/* What a plan's steps will take, and what other layouts would. */
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "plan/cost/predict.h"
#include "plan/cost/stages.h"

/* More devices than this are not shown one by one among the alternatives. */
enum { MAX_SINGLES = 8, MAX_ALTERNATIVES = 2 * MAX_SINGLES + 3 + TSR_PLAN_MODE_ALTERNATIVES };

typedef struct predictor {
    const tsr_planner *planner;
    tsr_plan *plan;
    tsr_goal goal;
} predictor;

/* -- phases -- */

/* The work of one group, and of its devices, which is added to device_ns. `participants` are the devices of
 * the all-reduce after each repeat. */
static tsr_plan_walk walk_of(const tsr_model_cost *cost, const tsr_split_group *group, tsr_split_class_id c,
                             int repeats, tsr_device_set participants, double *device_ns)
{
    const tsr_shard_map *map = tsr_split_group_map(group, c);
    const tsr_cost_problem *problem = &cost->problem;
    tsr_plan_walk walk = {.class_id = c, .repeats = repeats, .slowest = -1};
    int64_t counts[TSR_MAX_DEVICES] = {0};
    for (int d = 0; d < problem->n_devices; d++) {
        int64_t n = counts[d] = map->begin[d + 1] - map->begin[d];
        double ns = tsr_cost_of(&cost->classes[c], d, n);
        device_ns[d] += repeats * ns;
        if (n > 0 && (walk.slowest < 0 || ns > walk.work_ns)) {
            walk.slowest = d;
            walk.work_ns = ns;
        }
    }
    if (walk.slowest >= 0 && problem->walk_ns && problem->walk_ns(problem->user, c, counts) >= 0)
        walk.work_ns = problem->walk_ns(problem->user, c, counts);
    walk.sync_ns = problem->sync_ns(problem->user, participants, c);
    return walk;
}

/* Layers, or outputs, that a group has of a class. */
static int count_repeats(const tsr_model_split *split, tsr_split_class_id c, int g)
{
    const int *group = c == TSR_CLASS_ATTENTION ? split->attention_group : split->ffn_group;
    int n = 0;
    if (c == TSR_CLASS_OUTPUT)
        return split->output_group == g;
    for (int64_t l = 0; l < split->n_layers; l++)
        n += group[l] == g;
    return n;
}

/* `walks` NULL: only the sums are needed. */
static void predict_class(const tsr_model_split *split, const tsr_model_cost *cost, tsr_split_class_id c,
                          tsr_plan_phase *phase, tsr_plan_walks *walks)
{
    double repeats = cost->classes[c].repeats, work_ns = 0, sync_ns = 0, waited_ns[TSR_MAX_DEVICES] = {0};
    phase->slowest[c] = -1;
    for (int g = 0; g < split->n_groups; g++) {
        int n = count_repeats(split, c, g);
        /* The output matrix's parts stay where they are; of its class the embedding is summed up. */
        int reducing = c == TSR_CLASS_OUTPUT ? split->embedding_group : g;
        if (n == 0)
            continue;
        tsr_plan_walk walk =
            walk_of(cost, &split->groups[g], c, n, split->groups[reducing].devices, phase->device_ns[c]);
        work_ns += n * walk.work_ns;
        sync_ns += n * walk.sync_ns;
        if (walk.slowest >= 0)
            waited_ns[walk.slowest] += n * walk.work_ns;
        if (walks)
            walks->list[walks->n++] = walk;
    }
    phase->repeats[c] = repeats;
    phase->work_ns[c] = work_ns / repeats;
    phase->sync_ns[c] = sync_ns / repeats;
    for (int d = 0; d < split->n_devices; d++) {
        int slowest = phase->slowest[c];
        phase->device_ns[c][d] /= repeats;
        if (waited_ns[d] > 0 && (slowest < 0 || waited_ns[d] > waited_ns[slowest]))
            phase->slowest[c] = d;
    }
    phase->total_ns += work_ns + sync_ns;
}

/* The times of the transfers between blocks of different groups. */
static double transfers_ns(const tsr_model_split *split, const tsr_model_cost *cost)
{
    double ns = 0;
    tsr_device_set here = split->groups[split->embedding_group].devices;
    for (int64_t l = 0; l < split->n_layers; l++) {
        tsr_device_set attention = tsr_model_split_group(split, TSR_BLOCK_ATTENTION, l)->devices;
        tsr_device_set ffn = tsr_model_split_group(split, TSR_BLOCK_FFN, l)->devices;
        ns += cost->transfer_ns(cost->problem.user, here, attention, false);
        ns += cost->transfer_ns(cost->problem.user, attention, ffn, false);
        here = ffn;
    }
    return ns + cost->transfer_ns(cost->problem.user, here, split->groups[split->output_group].devices, true);
}

/* What chunks in flight together save. A device works, or waits for its group, as long as its stage does. */
static double overlap_ns(const tsr_model_split *split, const tsr_goal *goal)
{
    double sum = 0, most = 0, stage_ns[TSR_MAX_DEVICES] = {0}, unused[TSR_MAX_DEVICES] = {0};
    for (int g = 0; g < split->n_groups; g++)
        for (int c = 0; c < TSR_CLASS_COUNT; c++) {
            const int n = count_repeats(split, c, g);
            const double ns =
                n ? n * walk_of(&goal->prompt, &split->groups[g], c, n, split->groups[g].devices, unused)
                            .work_ns
                  : 0;
            sum += ns;
            TSR_FOR_DEVICES(d, split->groups[g].devices)
                stage_ns[d] += ns;
        }
    for (int d = 0; d < split->n_devices; d++)
        most = TSR_MAX(most, stage_ns[d]);
    return tsr_pipeline_saved(goal->chunks, tsr_model_split_n_stages(split), sum, most);
}

/* What all-reduces beside work save. A split of prompts does not run in halves. */
static double hidden_ns(const tsr_plan *plan, const tsr_model_split *split, const tsr_goal *goal)
{
    int64_t counts[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES] = {{0}};
    if (split->n_groups != 1 || plan->split.prompt)
        return 0;
    for (int c = 0; c < TSR_CLASS_COUNT; c++) {
        const tsr_shard_map *map = tsr_split_group_map(&split->groups[0], c);
        for (int d = 0; d < split->n_devices; d++)
            counts[c][d] = map->begin[d + 1] - map->begin[d];
    }
    return tsr_goal_hidden_ns(goal, (const int64_t(*)[TSR_MAX_DEVICES])counts);
}

static void predict_phase(const tsr_model_split *split, const tsr_model_cost *cost, tsr_plan_phase *phase,
                          tsr_plan_walks *walks)
{
    *phase = (tsr_plan_phase){.n_tokens = cost->n_tokens, .transfer_ns = transfers_ns(split, cost)};
    phase->total_ns = phase->transfer_ns;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        predict_class(split, cost, c, phase, walks);
}

static void predict_prompt(const predictor *p, const tsr_model_split *split, tsr_plan_phase *phase,
                           tsr_plan_walks *walks)
{
    predict_phase(split, &p->goal.prompt, phase, walks);
    phase->overlap_ns = overlap_ns(split, &p->goal) + hidden_ns(p->plan, split, &p->goal);
    phase->total_ns -= phase->overlap_ns;
}

/* The phases of the plan itself. */
static tsr_status predict_plan(predictor *p)
{
    tsr_status status = TSR_OK;
    tsr_plan *plan = p->plan;
    size_t n = (size_t)plan->split.n_groups * TSR_CLASS_COUNT;
    TSR_TRY(tsr_mem_array(n, sizeof(tsr_plan_walk), "a prediction", &plan->decode_walks.list));
    TSR_TRY(tsr_mem_array(n, sizeof(tsr_plan_walk), "a prediction", &plan->prompt_walks.list));
    predict_phase(tsr_model_split_of(&plan->split, p->goal.decode.n_tokens), &p->goal.decode,
                  &plan->times.decode, &plan->decode_walks);
    predict_prompt(p, tsr_model_split_of(&plan->split, p->goal.prompt.n_tokens), &plan->times.prompt,
                   &plan->prompt_walks);
out:
    return status;
}

/* Whether some device has too little memory for these parts of the classes. What it needs besides weights and
 * KV is taken to be what the plan measured; of an unused device, the most of any other. */
static bool is_too_large(const predictor *p, double parts[TSR_CLASS_COUNT][TSR_MAX_DEVICES])
{
    const tsr_plan_device *devices = p->plan->devices;
    const bool kv_divided = !p->planner->shape.hparams.kv.whole;
    double kv = 0, most = 0, fixed[TSR_MAX_DEVICES];
    for (int d = 0; d < p->plan->info.n_devices; d++) {
        size_t varies =
            devices[d].bytes[TSR_MEMORY_WEIGHTS] + (kv_divided ? devices[d].bytes[TSR_MEMORY_KV] : 0);
        kv += kv_divided ? (double)devices[d].bytes[TSR_MEMORY_KV] : 0;
        fixed[d] = (double)(devices[d].total_bytes - varies);
        most = TSR_MAX(most, fixed[d]);
    }
    for (int d = 0; d < p->plan->info.n_devices; d++) {
        double bytes = devices[d].used ? fixed[d] : most, all = 0;
        for (int c = 0; c < TSR_CLASS_COUNT; c++) {
            bytes += parts[c][d] * (double)tsr_weights_class_bytes(&p->planner->weights, c);
            all += parts[c][d];
        }
        bytes += parts[TSR_CLASS_ATTENTION][d] * kv;
        if (all > 0 && bytes > (double)tsr_device_props_room(&p->planner->props[d]))
            return true;
    }
    return false;
}

/* -- alternatives -- */

/* The alternative's times, also where it is not listed. */
static tsr_plan_effect add_alternative(predictor *p, const char *text, double decode_ns, double prompt_ns,
                                       double parts[TSR_CLASS_COUNT][TSR_MAX_DEVICES])
{
    const tsr_plan_effect times = {decode_ns, prompt_ns, tsr_goal_ns(&p->goal, decode_ns, prompt_ns)};
    if (!text)
        return times;
    tsr_plan_alternative *a = &p->plan->alternatives[p->plan->n_alternatives++];
    snprintf(a->text, sizeof a->text, "%s", text);
    a->decode_ns = times.decode_ns;
    a->prompt_ns = times.prompt_ns;
    a->workload_ns = times.workload_ns;
    a->too_large = is_too_large(p, parts);
    return times;
}

/* Matrices divided by `counts`, as planner->shape has granules. In a plan of another mode the text says that
 * the alternative is one of tensor mode. `text` NULL: not listed. */
static tsr_plan_effect add_counts(predictor *p, const char *text, const tsr_goal *goal,
                                  const tsr_model_granules *granules, const int64_t counts[][TSR_MAX_DEVICES])
{
    double decode_ns, prompt_ns;
    char labelled[sizeof p->plan->alternatives->text];
    double parts[TSR_CLASS_COUNT][TSR_MAX_DEVICES];
    bool labels = text && p->plan->info.mode != TSR_SPLIT_MODE_TENSOR && !strstr(text, " alone");
    tsr_goal_step_times(goal, counts, &decode_ns, &prompt_ns);
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        for (int d = 0; d < p->plan->info.n_devices; d++)
            parts[c][d] = granules->n[c] ? (double)counts[c][d] / (double)granules->n[c] : 0;
    snprintf(labelled, sizeof labelled, "%s%s", labels ? "tensor: " : "", text ? text : "");
    return add_alternative(p, text ? labelled : NULL, decode_ns, prompt_ns, parts);
}

/* Tensor mode by shares, memory aside. */
static tsr_status add_shares(predictor *p, const char *text, const double *shares, tsr_plan_effect *times_out)
{
    tsr_status status = TSR_OK;
    int64_t counts[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES] = {{0}};
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        TSR_TRY(
            tsr_split_round(shares, p->plan->info.n_devices, p->plan->info.n_granules[c], NULL, counts[c]));
    *times_out = add_counts(p, text, &p->goal, &p->planner->shape.granules, counts);
out:
    return status;
}

/* The fastest shares of other devices than the plan has, memory aside; see add_counts(). */
static tsr_status add_best_of(predictor *p, const char *text, tsr_device_set devices,
                              tsr_plan_effect *times_out)
{
    tsr_status status = TSR_OK;
    tsr_cost_result best;
    p->goal.cost.problem.allowed = devices;
    TSR_TRY(tsr_goal_optimize(&p->goal, &p->goal.cost, &best));
    *times_out = add_counts(p, text, &p->goal, &p->planner->shape.granules, best.counts);
out:
    p->goal.cost.problem.allowed = tsr_device_set_all(TSR_MAX_DEVICES);
    return status;
}

/* A device that got nothing takes part as much as its speed allows. */
static tsr_status add_with(predictor *p, int device)
{
    tsr_status status = TSR_OK;
    double shares[TSR_MAX_DEVICES];
    char text[64];
    for (int d = 0; d < p->plan->info.n_devices; d++)
        shares[d] = p->plan->devices[d].used || d == device
                        ? 1 / p->goal.cost.classes[TSR_CLASS_FFN].granule_ns[d]
                        : 0;
    snprintf(text, sizeof text, "with %s", p->plan->devices[device].name);
    TSR_TRY(add_shares(p, text, shares, &p->plan->effect[device]));
out:
    return status;
}

static tsr_status add_whole_layers(predictor *p)
{
    tsr_status status = TSR_OK;
    double even[TSR_MAX_DEVICES], parts[TSR_CLASS_COUNT][TSR_MAX_DEVICES] = {{0}};
    tsr_shard_map layers;
    int *devices = NULL;
    tsr_model_split split = {0};
    tsr_plan_phase decode, prompt;
    int n_devices = p->plan->info.n_devices;
    for (int d = 0; d < n_devices; d++)
        even[d] = 1;
    int64_t n_items = p->plan->info.n_layers + 1;
    TSR_TRY(tsr_mem_array((size_t)n_items, sizeof *devices, "layers", &devices));
    TSR_TRY(tsr_split_layers(even, n_devices, n_items, NULL, &layers));
    for (int64_t i = 0; i < n_items; i++)
        devices[i] = tsr_shard_map_device(&layers, i);
    TSR_TRY(tsr_model_split_layers(&p->planner->shape.hparams, &p->planner->shape.granules, even, n_devices,
                                   TSR_SPLIT_MODE_LAYER, devices, &split));
    predict_phase(&split, &p->goal.decode, &decode, NULL);
    predict_prompt(p, &split, &prompt, NULL);
    for (int64_t l = 0; l < p->plan->info.n_layers; l++) { /* a group is a device */
        parts[TSR_CLASS_ATTENTION][split.attention_group[l]] += 1 / (double)p->plan->info.n_layers;
        parts[TSR_CLASS_FFN][split.ffn_group[l]] += 1 / (double)p->plan->info.n_layers;
    }
    parts[TSR_CLASS_OUTPUT][split.output_group] = 1;
    add_alternative(p, "whole layers, evenly", decode.total_ns, prompt.total_ns, parts);
out:
    tsr_mem_free(devices);
    tsr_model_split_free(&split);
    return status;
}

static tsr_status add_alternatives(predictor *p)
{
    tsr_status status = TSR_OK;
    tsr_plan *plan = p->plan;
    int n_devices = plan->info.n_devices, fastest = 0, n_used = 0;
    double even[TSR_MAX_DEVICES] = {0};
    char text[64];
    tsr_plan_effect ignored;
    tsr_device_set used = 0;
    for (int d = 0; d < n_devices; d++) {
        const double *ns = p->goal.cost.classes[TSR_CLASS_FFN].granule_ns;
        even[d] = 1;
        fastest = ns[d] < ns[fastest] ? d : fastest;
        used |= plan->devices[d].used ? tsr_device_set_one(d) : 0;
        n_used += plan->devices[d].used;
    }
    TSR_TRY(add_shares(p, "even shares", even, &ignored));
    for (int d = 0; d < n_devices && n_devices <= MAX_SINGLES; d++) {
        snprintf(text, sizeof text, "without %s", plan->devices[d].name);
        if (!plan->devices[d].used)
            TSR_TRY(add_with(p, d));
        else if (n_used > 1) /* without one of two, that is the other one alone */
            TSR_TRY(
                add_best_of(p, n_used > 2 ? text : NULL, used & ~tsr_device_set_one(d), &plan->effect[d]));
    }
    snprintf(text, sizeof text, "%s alone", plan->devices[fastest].name);
    TSR_TRY(add_best_of(p, text, tsr_device_set_one(fastest), &ignored));
    TSR_TRY(add_whole_layers(p));
out:
    return status;
}

/* The FFN of a mixture of experts divided the other way, memory aside: by the requested shares, or by the
 * fastest ones. */
static tsr_status add_other_expert_split(predictor *p)
{
    tsr_status status = TSR_OK;
    const tsr_plan *plan = p->plan;
    int n_devices = plan->info.n_devices;
    tsr_planner other = *p->planner;
    tsr_goal *goal = NULL;
    tsr_cost_result best;
    int64_t counts[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES] = {{0}};
    double shares[TSR_MAX_DEVICES];
    tsr_expert_split_set(&other.shape, !other.shape.hparams.by_expert);
    TSR_TRY(TSR_NEW(&goal, "a prediction"));
    TSR_TRY(tsr_goal_init(&other, goal));
    if (plan->times.automatic) {
        TSR_TRY(tsr_goal_optimize(goal, &goal->cost, &best));
        memcpy(counts, best.counts, sizeof counts);
    } else {
        for (int d = 0; d < n_devices; d++)
            shares[d] = plan->devices[d].requested;
        for (int c = 0; c < TSR_CLASS_COUNT; c++)
            TSR_TRY(tsr_split_round(shares, n_devices, other.shape.granules.n[c], NULL, counts[c]));
    }
    add_counts(p, other.shape.hparams.by_expert ? "whole experts divided" : "columns of experts divided",
               goal, &other.shape.granules, counts);
out:
    tsr_mem_free(goal);
    return status;
}

/* -- the plan -- */

tsr_status tsr_plan_predict_times(const tsr_planner *planner, tsr_plan *plan)
{
    tsr_status status = TSR_OK;
    const tsr_model_config *resolved = &planner->config;
    predictor *p = NULL;
    tsr_plan_times *times = &plan->times;
    int n_devices = plan->info.n_devices;
    times->known = tsr_model_cost_known(planner);
    if (!times->known && !times->automatic)
        return TSR_OK; /* shares that are given need no rates */
    TSR_TRY(TSR_NEW(&p, "a prediction"));
    TSR_TRY(tsr_mem_array(MAX_ALTERNATIVES, sizeof *plan->alternatives, "a prediction", &plan->alternatives));
    p->planner = planner;
    p->plan = plan;
    TSR_TRY(tsr_goal_init(planner, &p->goal));
    times->measured = true;
    for (int d = 0; d < n_devices; d++)
        times->measured = times->measured && resolved->plan.rates[d].measured;
    for (int d = 0; d < n_devices && times->measured; d++) {
        int64_t at = resolved->plan.rates[d].measured_at;
        times->measured_at = d == 0 ? at : TSR_MIN(times->measured_at, at);
        times->load = TSR_MAX(times->load, resolved->plan.rates[d].load);
    }
    TSR_TRY(predict_plan(p));
    times->workload_ns = tsr_goal_ns(&p->goal, times->decode.total_ns, times->prompt.total_ns);
    if (n_devices > 1)
        TSR_TRY(add_alternatives(p));
    bool offloads = resolved->offload.n_gpu_layers >= 0 || resolved->offload.n_cpu_moe > 0 ||
                    resolved->offload.n_rules > 0;
    if (n_devices > 1 && !offloads && plan->info.has_experts && plan->info.runnable &&
        plan->info.mode == TSR_SPLIT_MODE_TENSOR)
        TSR_TRY(add_other_expert_split(p));
    if (n_devices > 1 && !offloads)
        TSR_TRY(tsr_plan_add_modes(planner, &p->goal, plan));
out:
    tsr_mem_free(p);
    return status;
}

void tsr_plan_predict(const tsr_plan *plan, tsr_plan_times *times_out)
{
    *times_out = plan->times;
}

bool tsr_plan_alternative_at(const tsr_plan *plan, int index, tsr_plan_alternative *alternative_out)
{
    if (index < 0 || index >= plan->n_alternatives)
        return false;
    *alternative_out = plan->alternatives[index];
    return true;
}
