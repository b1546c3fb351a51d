/* Filling in a plan: granules and bytes of every device, times, notes. */
#include "plan/report.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "plan/dry_run.h"
#include "plan/notes.h"
#include "plan/cost/predict.h"

static int64_t granules_in(const tsr_model_split *split, tsr_block block, int64_t layer,
                           tsr_split_class_id id, int d)
{
    const tsr_shard_map *map = tsr_split_group_map(tsr_model_split_group(split, block, layer), id);
    return map->begin[d + 1] - map->begin[d];
}

/* Granules of attention and FFN, over all layers. */
static void fill_layers(const tsr_plan *plan, int d, tsr_plan_device *device)
{
    static const tsr_block blocks[2] = {TSR_BLOCK_ATTENTION, TSR_BLOCK_FFN};
    static const tsr_split_class_id ids[2] = {TSR_CLASS_ATTENTION, TSR_CLASS_FFN};
    const tsr_model_split *split = &plan->split;
    int64_t all[2] = {0};
    for (int64_t l = 0; l < split->n_layers; l++) {
        tsr_device_set devices = 0;
        for (int b = 0; b < 2; b++) {
            int64_t n = granules_in(split, blocks[b], l, ids[b], d);
            device->granules[ids[b]] = TSR_MAX(device->granules[ids[b]], n);
            all[b] += n;
            devices |= tsr_model_split_group(split, blocks[b], l)->devices;
        }
        device->n_layers += tsr_device_set_has(devices, d);
    }
    for (int b = 0; b < 2; b++)
        device->achieved[ids[b]] =
            (double)all[b] / ((double)split->n_layers * (double)plan->info.n_granules[ids[b]]);
}

/* What each device does in steps of the split of prompts, and what that takes: the same split is measured
 * without that of prompts. */
static tsr_status fill_prompt(const tsr_planner *planner, tsr_plan *plan)
{
    tsr_status status = TSR_OK;
    tsr_measurement one = {0};
    tsr_model_split without = plan->split;
    without.prompt = NULL;
    plan->info.prompt_tokens = plan->split.prompt_tokens;
    TSR_TRY(tsr_measurement_create(planner, &without, &one));
    for (int d = 0; d < planner->n_devices; d++) {
        tsr_plan_device *device = &plan->devices[d];
        const size_t bytes = tsr_used_total(one.used[d]);
        device->prompt_bytes = device->total_bytes > bytes ? device->total_bytes - bytes : 0;
        for (int c = 0; c < TSR_CLASS_COUNT; c++)
            device->prompt_granules[c] = granules_in(plan->split.prompt, TSR_BLOCK_OUTPUT, 0, c, d);
    }
out:
    tsr_measurement_free(&one);
    return status;
}

static void fill_device(const tsr_plan *plan, int d, const tsr_device_props *props, const tsr_measurement *m,
                        tsr_plan_device *device)
{
    const tsr_model_split *split = &plan->split;
    memcpy(device->name, props->name, sizeof device->name);
    device->kind = props->kind;
    device->requested = split->requested[d];
    device->memory_cap = props->memory_cap;
    device->margin_bytes = props->margin;
    device->arena_bound_bytes = m->arena_bound[d];
    memcpy(device->bytes, m->used[d], sizeof device->bytes);
    device->total_bytes = tsr_used_total(device->bytes);
    device->missing_bytes = tsr_device_props_missing(props, device->total_bytes);
    device->free_bytes = props->memory_cap == SIZE_MAX             ? SIZE_MAX
                         : props->memory_cap > device->total_bytes ? props->memory_cap - device->total_bytes
                                                                   : 0;
    device->kv_windowed_bytes = m->kv_windowed[d];
    device->used = device->total_bytes > 0;
    fill_layers(plan, d, device);
    device->granules[TSR_CLASS_OUTPUT] = granules_in(split, TSR_BLOCK_OUTPUT, 0, TSR_CLASS_OUTPUT, d);
    device->achieved[TSR_CLASS_OUTPUT] =
        (double)device->granules[TSR_CLASS_OUTPUT] / (double)plan->info.n_granules[TSR_CLASS_OUTPUT];
}

tsr_status tsr_plan_report(const tsr_planner *planner, tsr_plan_choice *choice, tsr_plan **plan_out)
{
    tsr_status status = TSR_OK;
    tsr_plan *plan = NULL;
    const tsr_model_shape *shape = &planner->shape;
    const tsr_model_config *resolved = &planner->config;
    const int n_devices = planner->n_devices;
    const tsr_measurement *m = &choice->measurement;
    const tsr_hparams *hp = &shape->hparams;
    const int64_t n_windowed = llround(hp->kv.windowed * (double)hp->n_layers);
    TSR_TRY(TSR_NEW(&plan, "a plan"));
    TSR_TRY(tsr_mem_array((size_t)n_devices, sizeof *plan->devices, "a plan", &plan->devices));
    plan->split = choice->split;
    choice->split = (tsr_model_split){0};
    plan->times.automatic = choice->automatic;
    plan->times.proven = choice->proven;
    plan->info = (tsr_plan_info){.n_devices = n_devices,
                                 .mode = plan->split.mode,
                                 .n_ctx = resolved->session.n_ctx,
                                 .n_seq_max = resolved->session.n_seq_max,
                                 .n_batch = resolved->session.n_batch,
                                 .type_k = resolved->session.type_k,
                                 .type_v = resolved->session.type_v,
                                 .n_layers = hp->n_layers,
                                 .n_windowed = n_windowed,
                                 .window = n_windowed > 0 ? hp->kv.window : 0,
                                 .n_all_reduces = m->program.n_all_reduces,
                                 .n_transfers = m->program.n_transfers,
                                 .runnable = !shape->arch->header_only,
                                 .has_experts = hp->n_expert > 0,
                                 .expert_split = tsr_expert_split_of(hp),
                                 .exact_arena = !shape->arch->header_only,
                                 .n_prompt = resolved->workload.n_prompt,
                                 .n_new = resolved->workload.n_new,
                                 .n_seq = resolved->workload.n_seq,
                                 .fits = true,
                                 .n_ctx_train = hp->n_ctx_train};
    for (int c = 0; c < TSR_CLASS_COUNT; c++) {
        plan->info.n_granules[c] = shape->granules.n[c];
        plan->info.granule_size[c] = shape->granules.size[c];
    }
    for (int d = 0; d < n_devices; d++) {
        fill_device(plan, d, &planner->props[d], m, &plan->devices[d]);
        plan->info.fits = plan->info.fits && plan->devices[d].missing_bytes == 0;
    }
    if (plan->split.prompt)
        TSR_TRY(fill_prompt(planner, plan));
    TSR_TRY(tsr_plan_predict_times(planner, plan));
    for (int i = 0; i < shape->n_remarks; i++)
        TSR_TRY(tsr_plan_add_note(plan, "%s", shape->remarks[i]));
    TSR_TRY(tsr_plan_write_notes(plan, &choice->map));
    *plan_out = plan;
    plan = NULL;
out:
    tsr_plan_destroy(plan);
    return status;
}
