/* Arenas and collective workspaces of programs. */
#include "graph/memory.h"

#include "core/mem.h"

/* With several lanes all inputs are pinned: an upload would wait for the programs in flight. */
size_t tsr_program_memory_pinned_bytes(const tsr_layout *layout, const tsr_device *device)
{
    const size_t bytes = layout->devices[device->index].input_bytes;
    if (!device->ops->pin)
        return 0;
    return layout->n_lanes > 1 ? bytes : TSR_MIN(bytes, (size_t)TSR_PINNED_INPUT_BYTES);
}

static tsr_status allocate_device(tsr_program_memory *memory, int d)
{
    tsr_status status = TSR_OK;
    const tsr_device_layout *layout = &memory->layout.devices[d];
    tsr_device *device = memory->rt->devices[d];
    const size_t pinned = tsr_program_memory_pinned_bytes(&memory->layout, device);
    if (tsr_layout_arena_bytes(&memory->layout, d) == 0 && tsr_layout_comm_bytes(&memory->layout, d) == 0)
        return TSR_OK; /* the device runs nothing */
    TSR_TRY(tsr_device_hold_scratch(device));
    memory->devices[d].holds_scratch = true;
    TSR_TRY(
        tsr_mem_array((size_t)layout->n_chunks, sizeof(void *), "arena chunks", &memory->devices[d].chunks));
    for (int c = 0; c < layout->n_chunks; c++)
        TSR_TRY(tsr_device_alloc(device, TSR_MEMORY_ARENA, layout->chunk_bytes[c], "the arena",
                                 &memory->devices[d].chunks[c]));
    TSR_TRY(tsr_device_alloc(device, TSR_MEMORY_COMM, tsr_layout_comm_bytes(&memory->layout, d),
                             "the collectives' workspace", &memory->devices[d].comm));
    TSR_TRY(tsr_device_alloc(device, TSR_MEMORY_ARENA, tsr_layout_lane_bytes(&memory->layout, d),
                             "the inputs of further lanes", (void **)&memory->devices[d].lane_inputs));
    if (pinned > 0)
        TSR_TRY(
            device->ops->pin(device, (size_t)memory->layout.n_lanes * pinned, &memory->devices[d].pinned));
out:
    return status;
}

static size_t live_bytes(const tsr_tracked *tracked, int device)
{
    const tsr_layout *layout = &TSR_TRACKED_OBJECT(tracked, tsr_program_memory)->layout;
    return tsr_layout_arena_bytes(layout, device) + tsr_layout_comm_bytes(layout, device);
}

static const tsr_tracked_kind memory_kind = {"memory of programs", NULL, live_bytes};

/* Make room on a device for the programs of a layout of halves, in one lane. */
static tsr_status widen(const tsr_device *device, const tsr_layout *halves, tsr_layout *layout)
{
    tsr_status status = TSR_OK;
    const int d = device->index;
    const tsr_device_layout *half = &halves->devices[d];
    tsr_device_layout *whole = &layout->devices[d];
    const size_t comm_bytes = tsr_layout_comm_bytes(halves, d), have = tsr_layout_comm_bytes(layout, d);
    size_t *chunks = NULL;
    const int n_chunks = TSR_MAX(half->n_chunks, whole->n_chunks);
    TSR_TRY(tsr_mem_array((size_t)n_chunks, sizeof *chunks, "arena chunks", &chunks));
    for (int c = 0; c < n_chunks; c++)
        chunks[c] = TSR_MAX(c < half->n_chunks ? half->chunk_bytes[c] : 0,
                            c < whole->n_chunks ? whole->chunk_bytes[c] : 0);
    tsr_mem_free(whole->chunk_bytes);
    whole->chunk_bytes = chunks;
    whole->n_chunks = n_chunks;
    whole->bound_bytes = TSR_MAX(whole->bound_bytes, half->bound_bytes);
    whole->input_bytes = TSR_MAX(whole->input_bytes, half->input_bytes);
    if (comm_bytes > have)
        whole->staging_bytes += comm_bytes - have;
out:
    return status;
}

tsr_status tsr_program_memory_allocate(tsr_runtime *rt, tsr_layout *layout, tsr_layout *halves,
                                       tsr_program_memory **memory_out)
{
    tsr_status status = TSR_OK;
    tsr_program_memory *memory = NULL;
    for (int d = 0; d < halves->n_devices; d++)
        TSR_TRY(widen(rt->devices[d], halves, layout));
    TSR_TRY(TSR_NEW(&memory, "program memory"));
    memory->rt = rt;
    memory->layout = *layout;
    memory->halves = *halves;
    *layout = *halves = (tsr_layout){0};
    TSR_TRY(
        tsr_mem_array((size_t)rt->n_devices, sizeof *memory->devices, "program memory", &memory->devices));
    for (int d = 0; d < rt->n_devices; d++)
        TSR_TRY(allocate_device(memory, d));
    tsr_track(&rt->tracked, &memory->tracked, &memory_kind);
    *memory_out = memory;
    memory = NULL;
out:
    tsr_layout_free(layout);
    tsr_layout_free(halves);
    tsr_program_memory_destroy(memory);
    return status;
}

void tsr_program_memory_destroy(tsr_program_memory *memory)
{
    if (!memory)
        return;
    tsr_untrack(&memory->tracked);
    for (int d = 0; memory->devices && d < memory->rt->n_devices; d++) {
        const tsr_device_layout *layout = &memory->layout.devices[d];
        for (int c = 0; memory->devices[d].chunks && c < layout->n_chunks; c++)
            tsr_device_free(memory->rt->devices[d], TSR_MEMORY_ARENA, memory->devices[d].chunks[c],
                            layout->chunk_bytes[c]);
        tsr_device_free(memory->rt->devices[d], TSR_MEMORY_ARENA, memory->devices[d].lane_inputs,
                        tsr_layout_lane_bytes(&memory->layout, d));
        tsr_device_free(memory->rt->devices[d], TSR_MEMORY_COMM, memory->devices[d].comm,
                        tsr_layout_comm_bytes(&memory->layout, d));
        if (memory->devices[d].pinned)
            tsr_device_own_ops(memory->rt->devices[d])
                ->unpin(memory->rt->devices[d], memory->devices[d].pinned);
        if (memory->devices[d].holds_scratch)
            tsr_device_drop_scratch(memory->rt->devices[d]);
        tsr_mem_free(memory->devices[d].chunks);
    }
    tsr_mem_free(memory->devices);
    tsr_layout_free(&memory->layout);
    tsr_layout_free(&memory->halves);
    tsr_mem_free(memory);
}

/* Lanes divide the workspace alike; in a single one every program divides it for itself. */
static bool workspace_fits(const tsr_layout *have, const tsr_layout *want, int d)
{
    const tsr_device_layout *has = &have->devices[d], *wants = &want->devices[d];
    if (want->n_lanes == 1)
        return tsr_layout_comm_bytes(want, d) <= tsr_layout_comm_bytes(have, d);
    return wants->slot_bytes <= has->slot_bytes && wants->n_slots <= has->n_slots &&
           wants->staging_bytes <= has->staging_bytes && wants->input_bytes <= has->input_bytes;
}

/* Whether a packed layout fits this memory; the message names the device and the bytes. */
tsr_status tsr_program_memory_check(const tsr_program_memory *memory, const tsr_layout *layout)
{
    for (int d = 0; d < layout->n_devices; d++) {
        const tsr_device_layout *have = &memory->layout.devices[d], *want = &layout->devices[d];
        bool fits = workspace_fits(&memory->layout, layout, d) && want->n_chunks <= have->n_chunks;
        for (int c = 0; fits && c < want->n_chunks; c++)
            fits = want->chunk_bytes[c] <= have->chunk_bytes[c];
        if (!fits)
            return tsr_fail(
                TSR_ERR_MEMORY,
                "device %s: the program needs %zu + %zu bytes (arena + workspace), %zu + %zu are reserved; "
                "use a smaller batch",
                memory->rt->devices[d]->name, tsr_layout_arena_bytes(layout, d),
                tsr_layout_comm_bytes(layout, d), tsr_layout_arena_bytes(&memory->layout, d),
                tsr_layout_comm_bytes(&memory->layout, d));
    }
    return TSR_OK;
}
