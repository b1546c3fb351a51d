/* Alternatives of a plan: the best plan of every mode that fits into the devices' memory, and in this plan's
 * mode the best for each phase alone.
 *
 * The memory that a device needs besides weights and KV depends on the plan. It is assumed to be what this
 * plan measured, and for unused devices the most of any other device. */
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "plan/cost/balance.h"
#include "plan/cost/predict.h"
#include "plan/cost/stages.h"
#include "plan/names.h"

/* What a search minimises. */
typedef enum target { WORKLOAD, DECODE, PROMPT, N_TARGETS } target;

typedef struct modes {
    tsr_plan *plan;
    tsr_goal *goal;
    tsr_model_cost *cost[N_TARGETS]; /* of `goal` */
    tsr_stages_problem stages[N_TARGETS];
    tsr_pipeline pipeline;
    bool no_room;
} modes;

static void find_rooms(modes *m)
{
    size_t most = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int d = 0; d < m->plan->info.n_devices; d++) {
            const tsr_plan_device *device = &m->plan->devices[d];
            size_t fixed =
                device->total_bytes - device->bytes[TSR_MEMORY_WEIGHTS] - device->bytes[TSR_MEMORY_KV];
            const tsr_device_props props = {.memory_cap = device->memory_cap, .margin = device->margin_bytes};
            most = TSR_MAX(most, fixed);
            for (int t = 0; t < N_TARGETS; t++)
                m->cost[t]->rooms[d] = (tsr_split_room){.capacity_bytes = tsr_device_props_room(&props),
                                                        .fixed_bytes = device->used ? fixed : most,
                                                        .name = device->name};
        }
}

static void append_names(const tsr_plan *plan, tsr_device_set devices, char *text, size_t size)
{
    tsr_plan_append_names(plan->devices, plan->info.n_devices, devices, "+", text, size);
}

/* Stages from `first` on that are like it: single devices with names that follow each other, and as many
 * layers. */
static int count_alike(const modes *m, int first)
{
    const tsr_pipeline_stage *stages = &m->pipeline.stages[first];
    int n = 1;
    while (first + n < m->pipeline.n_stages && stages[n].n_layers == stages->n_layers &&
           tsr_device_set_count(stages[n - 1].devices) == 1 && tsr_device_set_count(stages[n].devices) == 1 &&
           tsr_plan_names_follow(m->plan->devices[tsr_device_set_first(stages[n - 1].devices)].name,
                                 m->plan->devices[tsr_device_set_first(stages[n].devices)].name))
        n++;
    return n;
}

/* "cuda0+cuda1 60, cuda2 20", "cuda0-3 20 each": the devices of the stages with their layers. */
static void append_stages(const modes *m, char *text, size_t size)
{
    for (int i = 0, n; i < m->pipeline.n_stages; i += n) {
        tsr_device_set devices = 0;
        n = count_alike(m, i);
        for (int k = 0; k < n; k++)
            devices |= m->pipeline.stages[i + k].devices;
        if (i > 0)
            snprintf(text + strlen(text), size - strlen(text), ", ");
        append_names(m->plan, devices, text, size);
        if (m->pipeline.n_stages > 1)
            snprintf(text + strlen(text), size - strlen(text), " %lld%s",
                     (long long)m->pipeline.stages[i].n_layers, n > 1 ? " each" : "");
    }
}

static void add_alternative(modes *m, const char *text, double decode_ns, double prompt_ns)
{
    tsr_plan_alternative *a = &m->plan->alternatives[m->plan->n_alternatives++];
    snprintf(a->text, sizeof a->text, "%s", text);
    a->decode_ns = decode_ns;
    a->prompt_ns = prompt_ns;
    a->workload_ns = tsr_goal_ns(m->goal, decode_ns, prompt_ns);
    a->in_memory = true;
}

/* A search that found no room is no failure: that mode is not among the alternatives. */
static tsr_status tolerate(modes *m, tsr_status status, bool *found_out)
{
    *found_out = status == TSR_OK;
    bool no_room = m->no_room;
    m->no_room = false;
    return no_room ? TSR_OK : status;
}

static tsr_status add_pipeline(modes *m, const char *name, target what, bool layers)
{
    tsr_status status = TSR_OK;
    tsr_pipeline *best = &m->pipeline;
    const int64_t(*counts)[TSR_MAX_DEVICES] = (const int64_t(*)[TSR_MAX_DEVICES])best->stages[0].counts;
    bool found;
    char text[sizeof m->plan->alternatives->text];
    TSR_TRY(tolerate(m, tsr_stages_find(m->goal, m->cost[what], &m->stages[what], layers, best), &found));
    if (!found)
        return TSR_OK;
    tsr_balance_stages(&m->stages[what], best);
    snprintf(text, sizeof text, "%s: ", name);
    append_stages(m, text, sizeof text);
    add_alternative(m, text, tsr_pipeline_evaluate(&m->stages[DECODE].problem, best),
                    tsr_pipeline_evaluate(&m->stages[PROMPT].problem, best) -
                        (best->n_stages > 1 ? 0 : tsr_goal_hidden_ns(m->goal, counts)));
out:
    return status;
}

/* "cuda0 81.2 %, cuda1 18.8 %": of the bytes, or only the names of many devices. */
static void append_shares(const modes *m, const tsr_cost_result *best, char *text, size_t size)
{
    enum { MOST_SHARES = 4 };
    const tsr_cost_class *classes = m->cost[WORKLOAD]->classes;
    double bytes[TSR_MAX_DEVICES] = {0}, all = 0;
    const char *before = "";
    if (tsr_device_set_count(best->devices) > MOST_SHARES || tsr_device_set_count(best->devices) == 1) {
        append_names(m->plan, best->devices, text, size);
        return;
    }
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        for (int d = 0; d < m->plan->info.n_devices; d++) {
            bytes[d] += (double)best->counts[c][d] * (double)classes[c].granule_bytes;
            all += (double)best->counts[c][d] * (double)classes[c].granule_bytes;
        }
    TSR_FOR_DEVICES(d, best->devices) {
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s %.1f %%", before, m->plan->devices[d].name,
                 100 * bytes[d] / all);
        before = ", ";
    }
}

/* Tensor mode, or the best device alone. */
static tsr_status add_single_stage(modes *m, const char *name, target what, bool alone)
{
    tsr_status status = TSR_OK;
    tsr_cost_problem *p = &m->cost[what]->problem;
    tsr_cost_result best = {.total_ns = 0}, result;
    double decode_ns, prompt_ns;
    char text[sizeof m->plan->alternatives->text];
    for (int d = 0; d < (alone ? p->n_devices : 1); d++) {
        bool found;
        p->allowed = alone ? tsr_device_set_one(d) : tsr_device_set_all(TSR_MAX_DEVICES);
        TSR_TRY(tolerate(m, tsr_goal_optimize(m->goal, m->cost[what], &result), &found));
        if (found && (best.total_ns == 0 || result.total_ns < best.total_ns))
            best = result;
    }
    if (best.total_ns > 0) {
        snprintf(text, sizeof text, "%s: ", name);
        if (what == WORKLOAD)
            append_names(m->plan, best.devices, text, sizeof text);
        else
            append_shares(m, &best, text, sizeof text);
        tsr_goal_step_times(m->goal, (const int64_t(*)[TSR_MAX_DEVICES])best.counts, &decode_ns, &prompt_ns);
        add_alternative(m, text, decode_ns, prompt_ns);
    }
out:
    p->allowed = tsr_device_set_all(TSR_MAX_DEVICES);
    return status;
}

/* What the planner would choose for decoding alone, and for prompts alone. */
static tsr_status add_phases(modes *m, tsr_split_mode mode)
{
    static const char *const names[N_TARGETS] = {
        [DECODE] = TSR_PLAN_FOR_DECODE, [PROMPT] = TSR_PLAN_FOR_PROMPT};
    tsr_status status = TSR_OK;
    for (target what = DECODE; what < N_TARGETS && mode != TSR_SPLIT_MODE_NONE; what++)
        if (mode == TSR_SPLIT_MODE_TENSOR)
            TSR_TRY(add_single_stage(m, names[what], what, false));
        else
            TSR_TRY(add_pipeline(m, names[what], what, mode == TSR_SPLIT_MODE_LAYER));
out:
    return status;
}

tsr_status tsr_plan_add_modes(const tsr_planner *planner, tsr_goal *goal, tsr_plan *plan)
{
    tsr_status status = TSR_OK;
    const tsr_weights *weights = &planner->weights;
    const tsr_split_mode wanted = planner->config.split.mode;
    modes *m = NULL;
    size_t bytes[TSR_CLASS_COUNT];
    bool is_best = plan->times.automatic && !plan->split.prompt;
    const double n_prompts[N_TARGETS] = {[WORKLOAD] = goal->n_prompts, [PROMPT] = 1};
    TSR_TRY(TSR_NEW(&m, "alternatives"));
    *m = (modes){.plan = plan, .goal = goal, .cost = {&goal->cost, &goal->decode, &goal->prompt}};
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        bytes[c] = tsr_weights_class_bytes(weights, c);
    for (int d = 0; d < plan->info.n_devices && !planner->shape.hparams.kv.whole; d++)
        bytes[TSR_CLASS_ATTENTION] += plan->devices[d].bytes[TSR_MEMORY_KV];
    find_rooms(m);
    for (int t = 0; t < N_TARGETS; t++) {
        m->cost[t]->problem.no_room = &m->no_room;
        tsr_stages_problem_init(m->cost[t], weights, &planner->shape.hparams, bytes, &m->stages[t]);
        tsr_stages_problem_chunk(goal, n_prompts[t], &m->stages[t]);
    }
    TSR_TRY(add_single_stage(m, "none", WORKLOAD, true));
    if (!is_best || wanted != TSR_SPLIT_MODE_LAYER)
        TSR_TRY(add_pipeline(m, "layer", WORKLOAD, true));
    if (!is_best || wanted != TSR_SPLIT_MODE_TENSOR)
        TSR_TRY(add_single_stage(m, "tensor", WORKLOAD, false));
    if (!is_best || wanted != TSR_SPLIT_MODE_AUTO)
        TSR_TRY(add_pipeline(m, "auto", WORKLOAD, false));
    TSR_TRY(add_phases(m, wanted));
out:
    for (int t = 0; m && t < N_TARGETS; t++)
        m->cost[t]->problem.no_room = NULL;
    tsr_mem_free(m);
    return status;
}
