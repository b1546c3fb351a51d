/* Packing one device's activations: as a problem of the general packer (alloc/pack/pack.h). */
#include "alloc/pack/pack.h"
#include "core/mem.h"
#include "graph/emit/layout.h"

tsr_status tsr_layout_pack_device(const tsr_device *device, tsr_device_layout *layout)
{
    tsr_status status = TSR_OK;
    tsr_pack_item *items = NULL;
    tsr_pack_solution solution = {0};
    TSR_TRY(tsr_mem_array((size_t)layout->n_items, sizeof *items, "activations to pack", &items));
    for (int i = 0; i < layout->n_items; i++)
        items[i] = (tsr_pack_item){.lower = layout->items[i].lower,
                                   .upper = layout->items[i].upper,
                                   .size = layout->items[i].bytes,
                                   .alignment = device->alignment,
                                   .fixed_offset = TSR_PACK_FREE,
                                   .share = layout->items[i].over < 0 ? TSR_PACK_APART : TSR_PACK_MAY_SHARE,
                                   .partner = layout->items[i].over,
                                   .name = "an activation"};
    tsr_pack_problem problem = {.items = items,
                                .n_items = layout->n_items,
                                .max_chunk_bytes = device->max_alloc == SIZE_MAX ? 0 : device->max_alloc};
    TSR_TRY(tsr_pack_solve(&problem, NULL, &solution));
    for (int i = 0; i < layout->n_items; i++) {
        layout->items[i].chunk = solution.places[i].chunk;
        layout->items[i].offset = solution.places[i].offset;
    }
    layout->n_chunks = solution.n_chunks;
    layout->chunk_bytes = solution.chunk_bytes;
    layout->bound_bytes = solution.bound_bytes;
    solution.chunk_bytes = NULL;
out:
    tsr_pack_solution_free(&solution);
    tsr_mem_free(items);
    if (status != TSR_OK)
        tsr_fail_in(status, "arena of device %s", device->name);
    return status;
}
