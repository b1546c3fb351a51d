/* Alternatives of a plan: the best plan of every mode that fits into the devices' memory.
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

typedef struct modes {
    tsr_plan *plan;
    tsr_goal *goal;
    tsr_stages_problem in_goal, in_decode, in_prompt;
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
            m->goal->cost.rooms[d] = (tsr_split_room){.capacity_bytes = tsr_device_props_room(&props),
                                                      .fixed_bytes = device->used ? fixed : most,
                                                      .name = device->name};
        }
}

/* Tensor mode's classes in the same memory. */
static void find_granule_bytes(modes *m)
{
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        m->goal->cost.classes[c].granule_bytes =
            c == TSR_CLASS_OUTPUT ? m->in_goal.problem.shared_bytes
                                  : m->in_goal.classes[c].granule_bytes * (size_t)m->plan->info.n_layers;
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

static tsr_status add_pipeline(modes *m, const char *mode, bool layers)
{
    tsr_status status = TSR_OK;
    const tsr_pipeline_problem *p = &m->in_goal.problem;
    tsr_pipeline *best = &m->pipeline;
    bool found;
    char text[sizeof m->plan->alternatives->text];
    TSR_TRY(tolerate(m, layers ? tsr_pipeline_layers(p, best) : tsr_pipeline_optimize(p, best), &found));
    if (!found)
        return TSR_OK;
    tsr_balance_stages(&m->in_goal, best);
    snprintf(text, sizeof text, "%s: ", mode);
    append_stages(m, text, sizeof text);
    add_alternative(m, text, tsr_pipeline_evaluate(&m->in_decode.problem, best),
                    tsr_pipeline_evaluate(&m->in_prompt.problem, best));
out:
    return status;
}

/* Tensor mode, or the best device alone. */
static tsr_status add_single_stage(modes *m, const char *mode, bool alone)
{
    tsr_status status = TSR_OK;
    tsr_cost_problem *p = &m->goal->cost.problem;
    tsr_cost_result best = {.total_ns = 0}, result, decode, prompt;
    char text[sizeof m->plan->alternatives->text];
    for (int d = 0; d < (alone ? p->n_devices : 1); d++) {
        bool found;
        p->allowed = alone ? tsr_device_set_one(d) : tsr_device_set_all(TSR_MAX_DEVICES);
        TSR_TRY(tolerate(m, tsr_split_optimize(p, &result), &found));
        if (found && (best.total_ns == 0 || result.total_ns < best.total_ns))
            best = result;
    }
    if (best.total_ns > 0) {
        snprintf(text, sizeof text, "%s: ", mode);
        append_names(m->plan, best.devices, text, sizeof text);
        tsr_cost_evaluate(&m->goal->decode.problem, best.counts, &decode);
        tsr_cost_evaluate(&m->goal->prompt.problem, best.counts, &prompt);
        add_alternative(m, text, decode.total_ns, prompt.total_ns);
    }
out:
    p->allowed = tsr_device_set_all(TSR_MAX_DEVICES);
    return status;
}

tsr_status tsr_plan_add_modes(const tsr_planner *planner, tsr_goal *goal, tsr_plan *plan)
{
    tsr_status status = TSR_OK;
    const tsr_weights *weights = &planner->weights;
    const tsr_split_mode wanted = planner->config.split.mode;
    modes *m = NULL;
    size_t bytes[TSR_CLASS_COUNT];
    bool is_best = plan->times.automatic;
    TSR_TRY(TSR_NEW(&m, "alternatives"));
    m->plan = plan;
    m->goal = goal;
    goal->cost.problem.no_room = &m->no_room;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        bytes[c] = tsr_weights_class_bytes(weights, c);
    for (int d = 0; d < plan->info.n_devices && !planner->shape.hparams.kv.whole; d++)
        bytes[TSR_CLASS_ATTENTION] += plan->devices[d].bytes[TSR_MEMORY_KV];
    find_rooms(m);
    tsr_stages_problem_init(&goal->cost, weights, &planner->shape.hparams, bytes, &m->in_goal);
    tsr_stages_problem_init(&goal->decode, weights, &planner->shape.hparams, bytes, &m->in_decode);
    tsr_stages_problem_init(&goal->prompt, weights, &planner->shape.hparams, bytes, &m->in_prompt);
    find_granule_bytes(m);
    TSR_TRY(add_single_stage(m, "none", true));
    if (!is_best || wanted != TSR_SPLIT_MODE_LAYER)
        TSR_TRY(add_pipeline(m, "layer", true));
    if (!is_best || wanted != TSR_SPLIT_MODE_TENSOR)
        TSR_TRY(add_single_stage(m, "tensor", false));
    if (!is_best || wanted != TSR_SPLIT_MODE_AUTO)
        TSR_TRY(add_pipeline(m, "auto", false));
out:
    goal->cost.problem.no_room = NULL;
    tsr_mem_free(m);
    return status;
}
