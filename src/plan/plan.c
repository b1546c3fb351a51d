/* Plans as the public sees them: the decision, its bytes, and remarks. */
#include "plan/plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "plan/expert_split.h"
#include "plan/fit/fit.h"
#include "plan/header_only/header.h"

const char *tsr_split_mode_name(tsr_split_mode mode)
{
    switch (mode) {
    case TSR_SPLIT_MODE_NONE:
        return "none";
    case TSR_SPLIT_MODE_LAYER:
        return "layer";
    case TSR_SPLIT_MODE_TENSOR:
        return "tensor";
    case TSR_SPLIT_MODE_AUTO:
        return "auto";
    }
    return "?";
}

tsr_status tsr_split_mode_parse(const char *name, tsr_split_mode *mode_out)
{
    for (tsr_split_mode mode = TSR_SPLIT_MODE_NONE; mode <= TSR_SPLIT_MODE_AUTO; mode++) {
        if (strcmp(name, tsr_split_mode_name(mode)) == 0) {
            *mode_out = mode;
            return TSR_OK;
        }
    }
    return tsr_fail(TSR_ERR_INVALID, "split mode \"%s\": use tensor, layer, none or auto", name);
}

const char *tsr_expert_split_name(tsr_expert_split split)
{
    return split == TSR_EXPERT_SPLIT_COLUMNS   ? "columns"
           : split == TSR_EXPERT_SPLIT_EXPERTS ? "experts"
           : split == TSR_EXPERT_SPLIT_AUTO    ? "auto"
                                               : "?";
}

tsr_status tsr_expert_split_parse(const char *name, tsr_expert_split *split_out)
{
    for (tsr_expert_split split = TSR_EXPERT_SPLIT_COLUMNS; split <= TSR_EXPERT_SPLIT_AUTO; split++) {
        if (strcmp(name, tsr_expert_split_name(split)) == 0) {
            *split_out = split;
            return TSR_OK;
        }
    }
    return tsr_fail(TSR_ERR_INVALID, "expert split \"%s\": use columns, experts or auto", name);
}

const char *tsr_split_class_name(tsr_split_class_id id)
{
    static const char *const names[TSR_CLASS_COUNT] = {"attention", "ffn", "output"};
    return id >= 0 && id < TSR_CLASS_COUNT ? names[id] : "?";
}

/* -- filling in -- */

static tsr_status add_note(tsr_plan *plan, const char *format, ...) TSR_PRINTF(2, 3);

static tsr_status add_note(tsr_plan *plan, const char *format, ...)
{
    char text[320];
    va_list args;
    if (plan->n_notes == TSR_PLAN_MAX_NOTES)
        return TSR_OK;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    plan->notes[plan->n_notes] = tsr_mem_strdup(text);
    if (!plan->notes[plan->n_notes])
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory for the plan's notes");
    plan->n_notes++;
    return TSR_OK;
}

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
        uint64_t devices = 0;
        for (int b = 0; b < 2; b++) {
            int64_t n = granules_in(split, blocks[b], l, ids[b], d);
            device->granules[ids[b]] = TSR_MAX(device->granules[ids[b]], n);
            all[b] += n;
            devices |= tsr_model_split_group(split, blocks[b], l)->devices;
        }
        device->n_layers += devices >> d & 1;
    }
    for (int b = 0; b < 2; b++)
        device->achieved[ids[b]] =
            (double)all[b] / ((double)split->n_layers * (double)plan->info.n_granules[ids[b]]);
}

static void fill_device(const tsr_plan *plan, int d, const tsr_device_traits *traits,
                        const tsr_measurement *m, tsr_plan_device *device)
{
    const tsr_model_split *split = &plan->split;
    memcpy(device->name, traits->name, sizeof device->name);
    device->kind = traits->kind;
    device->requested = split->requested[d];
    device->memory_cap = traits->memory_cap;
    device->margin_bytes = traits->margin;
    device->arena_bound_bytes = m->arena_bound[d];
    device->arena_unordered_bytes = m->arena_unordered[d];
    memcpy(device->bytes, m->used[d], sizeof device->bytes);
    device->total_bytes = tsr_used_total(device->bytes);
    device->kv_windowed_bytes = m->kv_windowed[d];
    device->used = device->total_bytes > 0;
    fill_layers(plan, d, device);
    device->granules[TSR_CLASS_OUTPUT] = granules_in(split, TSR_BLOCK_OUTPUT, 0, TSR_CLASS_OUTPUT, d);
    device->achieved[TSR_CLASS_OUTPUT] =
        (double)device->granules[TSR_CLASS_OUTPUT] / (double)plan->info.n_granules[TSR_CLASS_OUTPUT];
}

/* Devices that the planner did not use: what it would cost to. */
static tsr_status note_left_out(tsr_plan *plan)
{
    tsr_status status = TSR_OK;
    for (int d = 0; d < plan->info.n_devices; d++) {
        if (plan->devices[d].used)
            continue;
        if (plan->with_ns[d] > 0 && plan->info.mode == TSR_SPLIT_MODE_TENSOR)
            TSR_TRY(add_note(plan,
                             "%s is left out: with it a token is predicted to take %.3g ms, without %.3g ms; "
                             "-ts uses it all the same",
                             plan->devices[d].name, plan->with_ns[d] * 1e-6,
                             plan->times.decode.total_ns * 1e-6));
        else
            TSR_TRY(
                add_note(plan, "%s is left out: without it a token takes less time", plan->devices[d].name));
    }
out:
    return status;
}

/* What is pinned to a device. */
static tsr_status note_pinned(tsr_plan *plan, const tsr_pins *pins, int d)
{
    int n_attention = 0, n_ffn = 0;
    char attention[64] = "", ffn[64] = "";
    for (int64_t l = 0; l < pins->n_layers; l++) {
        n_attention += pins->attention[l] == d;
        n_ffn += pins->ffn[l] == d;
    }
    if (n_attention && n_attention != n_ffn)
        snprintf(attention, sizeof attention, ", the attention of %d of %lld layers", n_attention,
                 (long long)pins->n_layers);
    if (n_ffn)
        snprintf(ffn, sizeof ffn, ", %s%d of %lld layers", n_attention == n_ffn ? "" : "the FFN of ", n_ffn,
                 (long long)pins->n_layers);
    const char *embedding = pins->embedding == d ? ", the embedding" : "";
    const char *output = pins->output == d ? ", the output" : "";
    char text[192];
    snprintf(text, sizeof text, "%s%s%s%s", attention, ffn, embedding, output);
    return text[0] ? add_note(plan, "offloaded to %s: %s", plan->devices[d].name, text + 2) : TSR_OK;
}

/* Devices whose shares came to less than they asked for. */
static tsr_status note_shares(tsr_plan *plan, const tsr_pins *pins)
{
    tsr_status status = TSR_OK;
    const bool divided[TSR_CLASS_COUNT] = {tsr_pins_n_free(pins, TSR_CLASS_ATTENTION) > 0,
                                           tsr_pins_n_free(pins, TSR_CLASS_FFN) > 0,
                                           pins->output == TSR_FREE};
    int n_wanted = 0; /* devices with a share */
    for (int d = 0; d < plan->info.n_devices; d++)
        n_wanted += plan->devices[d].requested > 0;
    for (int d = 0; d < plan->info.n_devices; d++) {
        const tsr_plan_device *device = &plan->devices[d];
        if (device->requested > 0 && !device->used)
            TSR_TRY(add_note(plan, "%s gets nothing: its share of %.1f %% rounds to no granule of any class",
                             device->name, 100 * device->requested));
        if (plan->info.mode != TSR_SPLIT_MODE_TENSOR || !device->used || device->requested == 0)
            continue;
        for (int c = 0; c < TSR_CLASS_COUNT; c++)
            if (device->granules[c] == 0 && divided[c])
                TSR_TRY(add_note(plan, "%s gets none of %s: %lld granule%s for %d devices", device->name,
                                 tsr_split_class_name(c), (long long)plan->info.n_granules[c],
                                 plan->info.n_granules[c] == 1 ? "" : "s", n_wanted));
    }
out:
    return status;
}

/* What a user would otherwise wonder about. */
static tsr_status write_notes(tsr_plan *plan, const tsr_pins *pins)
{
    tsr_status status = TSR_OK;
    int64_t n_free = 0;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        n_free += tsr_pins_n_free(pins, c);
    for (int d = 0; d < plan->info.n_devices; d++)
        TSR_TRY(note_pinned(plan, pins, d));
    if (n_free == 0)
        return TSR_OK;
    if (plan->times.automatic)
        TSR_TRY(note_left_out(plan));
    TSR_TRY(note_shares(plan, pins));
out:
    return status;
}

tsr_status tsr_plan_of_decision(const tsr_device_traits *traits, int n_devices, const tsr_model_shape *shape,
                                const tsr_weights *weights, const tsr_model_config *resolved,
                                tsr_decision *decision, tsr_plan **plan_out)
{
    tsr_status status = TSR_OK;
    tsr_plan *plan = NULL;
    const tsr_measurement *m = &decision->measurement;
    const tsr_hparams *hp = &shape->hparams;
    const int64_t n_windowed = llround(hp->kv.windowed * (double)hp->n_layers);
    TSR_TRY(tsr_mem_array(1, sizeof *plan, "a plan", &plan));
    TSR_TRY(tsr_mem_array((size_t)n_devices, sizeof *plan->devices, "a plan", &plan->devices));
    plan->split = decision->split;
    decision->split = (tsr_model_split){0};
    plan->times.automatic = decision->automatic;
    plan->times.proven = decision->proven;
    plan->info = (tsr_plan_info){.n_devices = n_devices,
                                 .mode = plan->split.mode,
                                 .n_ctx = resolved->n_ctx,
                                 .n_seq_max = resolved->n_seq_max,
                                 .n_batch = resolved->n_batch,
                                 .type_k = resolved->type_k,
                                 .type_v = resolved->type_v,
                                 .n_layers = hp->n_layers,
                                 .n_windowed = n_windowed,
                                 .window = n_windowed > 0 ? hp->kv.window : 0,
                                 .n_all_reduces = m->program.n_all_reduces,
                                 .n_handovers = m->program.n_handovers,
                                 .n_moved = m->program.n_moved,
                                 .least_order = m->program.least_order,
                                 .runnable = !shape->arch->planned_only,
                                 .has_experts = hp->n_expert > 0,
                                 .expert_split = tsr_expert_split_of(hp),
                                 .exact_arena = !shape->arch->planned_only};
    for (int c = 0; c < TSR_CLASS_COUNT; c++) {
        plan->info.n_granules[c] = shape->granules.n[c];
        plan->info.granule_size[c] = shape->granules.size[c];
    }
    for (int d = 0; d < n_devices; d++)
        fill_device(plan, d, &traits[d], m, &plan->devices[d]);
    TSR_TRY(tsr_plan_predict_times(plan, shape, weights, resolved));
    for (int i = 0; i < shape->n_remarks; i++)
        TSR_TRY(add_note(plan, "%s", shape->remarks[i]));
    TSR_TRY(write_notes(plan, &decision->pins));
    *plan_out = plan;
    plan = NULL;
out:
    tsr_plan_destroy(plan);
    return status;
}

tsr_status tsr_plan_for_devices(const tsr_device_traits *traits, int n_devices, const tsr_model_shape *shape,
                                const tsr_model_config *resolved, tsr_plan **plan_out)
{
    tsr_status status = TSR_OK;
    tsr_decision decision = {0};
    tsr_weights weights = {0};
    TSR_TRY(tsr_weights_init(&weights, shape->gguf, shape->hparams.n_layers));
    TSR_TRY(tsr_arch_declare(shape->arch, &weights, &shape->hparams));
    TSR_TRY(tsr_plan_decide(traits, n_devices, shape, &weights, resolved, NULL, &decision));
    TSR_TRY(tsr_plan_of_decision(traits, n_devices, shape, &weights, resolved, &decision, plan_out));
out:
    tsr_decision_free(&decision);
    tsr_weights_free(&weights);
    return status;
}

/* -- creation -- */

tsr_status tsr_planning_of_list(const tsr_gguf *gguf, const tsr_device_list *devices,
                                tsr_planning *planning_out)
{
    tsr_status status = TSR_OK;
    tsr_planning planning = {0};
    if (!gguf || !devices || devices->n_devices < 1)
        return tsr_fail(TSR_ERR_INVALID, "planning needs a file and at least one device");
    size_t n = (size_t)devices->n_devices;
    planning.n_devices = devices->n_devices;
    TSR_TRY(tsr_plan_shape_read(gguf, &planning.shape));
    TSR_TRY(tsr_mem_array(n, sizeof *planning.traits, "devices", &planning.traits));
    for (size_t d = 0; d < n; d++)
        tsr_device_traits_of_desc(&devices->devices[d], &planning.traits[d]);
    TSR_TRY(tsr_mem_array(n, sizeof *planning.rates, "rates", &planning.rates));
    tsr_device_rates_guess(devices->devices, devices->n_devices, planning.rates);
    *planning_out = planning;
    planning = (tsr_planning){0};
out:
    tsr_planning_free(&planning);
    return status;
}

void tsr_planning_free(tsr_planning *planning)
{
    tsr_mem_free(planning->traits);
    tsr_mem_free(planning->rates);
    *planning = (tsr_planning){0};
}

/* What the fit decided, without its report. */
static tsr_status plan_fitted(const tsr_gguf *gguf, const tsr_device_list *devices,
                              const tsr_model_config *config, tsr_plan **plan_out)
{
    tsr_fit *fit;
    tsr_status status = tsr_fit_create(gguf, devices, config, &fit);
    if (status != TSR_OK)
        return status;
    *plan_out = tsr_fit_take_plan(fit);
    tsr_fit_destroy(fit);
    return TSR_OK;
}

/* What the host devices of a NUMA node take together, and how many they are; 0 unless `first` is the first of
 * them. */
static uint64_t taken_of_node(const tsr_device_list *devices, const tsr_plan *plan, int first, int *n_out)
{
    uint64_t bytes = 0;
    *n_out = 0;
    for (int d = 0; d < devices->n_devices; d++) {
        const tsr_device_desc *device = &devices->devices[d];
        if (device->kind != TSR_DEVICE_HOST || device->numa_node != devices->devices[first].numa_node)
            continue;
        if (d < first)
            return 0;
        bytes += plan->devices[d].total_bytes;
        ++*n_out;
    }
    return bytes;
}

tsr_status tsr_plan_note_shared_memory(const tsr_device_list *devices, tsr_plan *plan)
{
    tsr_status status = TSR_OK;
    for (int d = 0; d < devices->n_devices; d++) {
        const tsr_device_desc *device = &devices->devices[d];
        char has[TSR_BYTES_TEXT], takes[TSR_BYTES_TEXT];
        int n;
        if (device->kind != TSR_DEVICE_HOST || device->numa_node < 0 || !device->memory_total_bytes)
            continue;
        uint64_t bytes = taken_of_node(devices, plan, d, &n);
        if (n > 1 && bytes > device->memory_total_bytes)
            TSR_TRY(add_note(plan, "%s and %d more share %s of memory and take %s: more than there is",
                             device->name, n - 1, tsr_bytes_text(device->memory_total_bytes, has),
                             tsr_bytes_text(bytes, takes)));
    }
out:
    return status;
}

tsr_status tsr_plan_create(const tsr_gguf *gguf, const tsr_device_list *devices,
                           const tsr_model_config *config, tsr_plan **plan_out)
{
    tsr_status status = TSR_OK;
    tsr_planning planning = {0};
    tsr_model_config resolved;
    tsr_plan *plan = NULL;
    if (!plan_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_plan_create: plan_out must not be NULL");
    TSR_TRY(tsr_planning_of_list(gguf, devices, &planning));
    TSR_TRY(
        tsr_model_shape_divide(&planning.shape, planning.traits, planning.n_devices, planning.rates, config));
    TSR_TRY(tsr_model_config_resolve(&planning.shape, config, &resolved));
    if (resolved.fit) {
        TSR_TRY(plan_fitted(gguf, devices, config, plan_out));
        goto out;
    }
    if (!resolved.rates)
        resolved.rates = planning.rates;
    TSR_TRY(tsr_plan_for_devices(planning.traits, planning.n_devices, &planning.shape, &resolved, &plan));
    TSR_TRY(tsr_plan_note_shared_memory(devices, plan));
    *plan_out = plan;
    plan = NULL;
out:
    tsr_plan_destroy(plan);
    tsr_planning_free(&planning);
    return status;
}

tsr_status tsr_plan_for_runtime(const tsr_runtime *rt, const tsr_model_shape *shape,
                                const tsr_model_config *resolved, tsr_plan **plan_out)
{
    tsr_status status = TSR_OK;
    tsr_model_config config = *resolved;
    tsr_device_traits *traits = NULL;
    TSR_TRY(tsr_mem_array((size_t)rt->n_devices, sizeof *traits, "devices", &traits));
    for (int d = 0; d < rt->n_devices; d++)
        tsr_device_traits_of(rt->devices[d], &traits[d]);
    if (!config.rates)
        config.rates = rt->rates;
    TSR_TRY(tsr_plan_for_devices(traits, rt->n_devices, shape, &config, plan_out));
out:
    tsr_mem_free(traits);
    return status;
}

void tsr_plan_destroy(tsr_plan *plan)
{
    if (!plan)
        return;
    for (int i = 0; i < plan->n_notes; i++)
        tsr_mem_free(plan->notes[i]);
    tsr_model_split_free(&plan->split);
    tsr_mem_free(plan->devices);
    tsr_mem_free(plan->alternatives);
    tsr_mem_free(plan);
}

/* -- queries -- */

const tsr_model_split *tsr_plan_split(const tsr_plan *plan)
{
    return &plan->split;
}

void tsr_plan_describe(const tsr_plan *plan, tsr_plan_info *info_out)
{
    *info_out = plan->info;
}

tsr_status tsr_plan_describe_device(const tsr_plan *plan, int device, tsr_plan_device *device_out)
{
    if (device < 0 || device >= plan->info.n_devices)
        return tsr_fail(TSR_ERR_INVALID, "device %d does not exist; the plan has %d", device,
                        plan->info.n_devices);
    *device_out = plan->devices[device];
    return TSR_OK;
}

const char *tsr_plan_note(const tsr_plan *plan, int index)
{
    return index >= 0 && index < plan->n_notes ? plan->notes[index] : NULL;
}
