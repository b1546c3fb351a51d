/* A plan's notes: sentences that explain decisions which may surprise. */
#include "plan/notes.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <tsr/bytes.h>

#include "core/mem.h"
#include "plan/names.h"

tsr_status tsr_plan_add_note(tsr_plan *plan, const char *format, ...)
{
    char text[320];
    va_list args;
    if (plan->n_notes == TSR_PLAN_MAX_NOTES)
        return TSR_OK;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tsr_clean_text(text, strlen(text), ""); /* notes quote names from the file */
    plan->notes[plan->n_notes] = tsr_mem_strdup(text);
    if (!plan->notes[plan->n_notes])
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory for the plan's notes");
    plan->n_notes++;
    return TSR_OK;
}

/* Devices that the planner left out, with the time with them. */
static tsr_status note_left_out(tsr_plan *plan)
{
    tsr_status status = TSR_OK;
    char workload[TSR_PLAN_WORKLOAD_BYTES], with[TSR_PLAN_TIME_BYTES], without[TSR_PLAN_TIME_BYTES];
    tsr_plan_name_workload(&plan->info, workload);
    for (int d = 0; d < plan->info.n_devices; d++) {
        if (plan->devices[d].used)
            continue;
        if (plan->effect[d].workload_ns > 0 && plan->info.mode == TSR_SPLIT_MODE_TENSOR)
            TSR_TRY(tsr_plan_add_note(plan,
                                      "%s is left out: with it %s are predicted to take %s, without it %s; "
                                      "-ts uses it all the same",
                                      plan->devices[d].name, workload,
                                      tsr_plan_time_text(plan->effect[d].workload_ns, with),
                                      tsr_plan_time_text(plan->times.workload_ns, without)));
        else
            TSR_TRY(tsr_plan_add_note(plan, "%s is left out: mode %s is faster without it",
                                      plan->devices[d].name, tsr_split_mode_name(plan->info.mode)));
    }
out:
    return status;
}

/* The blocks that are offloaded to a device. */
static tsr_status note_offloaded(tsr_plan *plan, const tsr_offload_map *map, int d)
{
    int n_attention = 0, n_ffn = 0;
    char attention[64] = "", ffn[64] = "";
    for (int64_t l = 0; l < map->n_layers; l++) {
        n_attention += map->attention[l] == d;
        n_ffn += map->ffn[l] == d;
    }
    if (n_attention && n_attention != n_ffn)
        snprintf(attention, sizeof attention, ", the attention of %d of %lld layers", n_attention,
                 (long long)map->n_layers);
    if (n_ffn)
        snprintf(ffn, sizeof ffn, ", %s%d of %lld layers", n_attention == n_ffn ? "" : "the FFN of ", n_ffn,
                 (long long)map->n_layers);
    const char *embedding = map->embedding == d ? ", the embedding" : "";
    const char *output = map->output == d ? ", the output" : "";
    char text[192];
    snprintf(text, sizeof text, "%s%s%s%s", attention, ffn, embedding, output);
    return text[0] ? tsr_plan_add_note(plan, "offloaded to %s: %s", plan->devices[d].name, text + 2) : TSR_OK;
}

/* Devices whose requested shares were rounded to nothing. */
static tsr_status note_shares(tsr_plan *plan, const tsr_offload_map *map)
{
    tsr_status status = TSR_OK;
    const bool divided[TSR_CLASS_COUNT] = {tsr_offload_n_free(map, TSR_CLASS_ATTENTION) > 0,
                                           tsr_offload_n_free(map, TSR_CLASS_FFN) > 0,
                                           map->output == TSR_FREE};
    int n_wanted = 0; /* devices with a share */
    for (int d = 0; d < plan->info.n_devices; d++)
        n_wanted += plan->devices[d].requested > 0;
    for (int d = 0; d < plan->info.n_devices; d++) {
        const tsr_plan_device *device = &plan->devices[d];
        if (device->requested > 0 && !device->used)
            TSR_TRY(tsr_plan_add_note(
                plan, "%s gets nothing: its share of %.1f %% rounds to no granule of any class", device->name,
                100 * device->requested));
        if (plan->info.mode != TSR_SPLIT_MODE_TENSOR || !device->used || device->requested == 0)
            continue;
        for (int c = 0; c < TSR_CLASS_COUNT; c++)
            if (device->granules[c] == 0 && divided[c])
                TSR_TRY(tsr_plan_add_note(plan, "%s gets none of %s: %lld granule%s for %d devices",
                                          device->name, tsr_split_class_name(c),
                                          (long long)plan->info.n_granules[c],
                                          tsr_plural(plan->info.n_granules[c]), n_wanted));
    }
out:
    return status;
}

tsr_status tsr_plan_write_notes(tsr_plan *plan, const tsr_offload_map *map)
{
    tsr_status status = TSR_OK;
    int64_t n_free = 0;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        n_free += tsr_offload_n_free(map, c);
    for (int d = 0; d < plan->info.n_devices; d++)
        TSR_TRY(note_offloaded(plan, map, d));
    if (n_free == 0)
        return TSR_OK;
    if (plan->times.automatic)
        TSR_TRY(note_left_out(plan));
    TSR_TRY(note_shares(plan, map));
out:
    return status;
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

static tsr_status note_shared_memory(const tsr_device_list *devices, tsr_plan *plan)
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
            TSR_TRY(tsr_plan_add_note(
                plan, "%s and %d more share %s of memory and take %s: more than there is", device->name,
                n - 1, tsr_bytes_text(device->memory_total_bytes, has), tsr_bytes_text(bytes, takes)));
    }
out:
    return status;
}

static bool in_host_memory(const tsr_device_desc *desc)
{
    return desc->kind == TSR_DEVICE_HOST || desc->integrated;
}

/* Of the GPUs without memory of their own, each once. */
static size_t contexts_in_host_memory(const tsr_device_list *devices)
{
    size_t bytes = 0;
    for (int d = 0; d < devices->n_devices; d++) {
        const tsr_device_desc *desc = &devices->devices[d];
        bool is_first = true;
        for (int i = 0; i < d; i++)
            is_first = is_first && devices->devices[i].gpu != desc->gpu;
        if (desc->integrated && is_first)
            bytes += (size_t)desc->context_bytes;
    }
    return bytes;
}

static tsr_status limit_free(const tsr_device_list *devices, tsr_plan *plan)
{
    size_t taken = contexts_in_host_memory(devices), available = 0;
    char has[TSR_BYTES_TEXT], takes[TSR_BYTES_TEXT];
    for (int d = 0; d < devices->n_devices; d++)
        if (in_host_memory(&devices->devices[d])) {
            taken += plan->devices[d].total_bytes;
            available = TSR_MAX(available, (size_t)devices->devices[d].memory_available_bytes);
        }
    if (available == 0)
        return TSR_OK;
    for (int d = 0; d < devices->n_devices; d++) {
        size_t *free_bytes = &plan->devices[d].free_bytes;
        size_t left = available > taken ? available - taken : 0;
        if (in_host_memory(&devices->devices[d]))
            *free_bytes = TSR_MIN(*free_bytes, left);
    }
    if (taken <= available)
        return TSR_OK;
    return tsr_plan_add_note(plan, "the plan takes %s of host memory, of which %s are available now",
                             tsr_bytes_text(taken, takes), tsr_bytes_text(available, has));
}

/* For the summary: by which speeds of memory the times were predicted without knowing them. */
static void mark_assumed_speed(const tsr_device_list *devices, tsr_plan *plan)
{
    for (int d = 0; d < devices->n_devices; d++)
        if (devices->devices[d].memory_rate_assumed && plan->devices[d].used && !plan->times.measured)
            plan->assumed_bytes_per_s[d] = devices->devices[d].memory_bytes_per_s;
}

tsr_status tsr_plan_note_devices(const tsr_device_list *devices, tsr_plan *plan)
{
    tsr_status status = note_shared_memory(devices, plan);
    if (status == TSR_OK)
        status = limit_free(devices, plan);
    mark_assumed_speed(devices, plan);
    return status;
}
