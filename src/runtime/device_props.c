/* Dry-run devices. They are unlimited, so that a plan that does not fit can report the missing bytes. */
#include "runtime/device_props.h"

#include <stdio.h>
#include <string.h>

#include "alloc/buffer/dry_device.h"
#include "comm/local.h"
#include "core/gpu.h"
#include "core/mem.h"
#include "host/device.h"
#include "host/memory.h"

void tsr_device_props_of_desc(const tsr_device_desc *desc, tsr_device_props *props_out)
{
    bool gpu = desc->kind == TSR_DEVICE_CUDA;
    uint64_t cap = desc->mem_cap_bytes ? desc->mem_cap_bytes : desc->memory_total_bytes;
    if (gpu && desc->memory_usable_bytes)
        cap = desc->memory_usable_bytes;
    *props_out = (tsr_device_props){.kind = desc->kind,
                                    .memory_cap = cap && cap < SIZE_MAX ? (size_t)cap : SIZE_MAX,
                                    .alignment = TSR_HOST_ALIGNMENT,
                                    .granularity = tsr_host_page_bytes(),
                                    .max_alloc = SIZE_MAX};
    if (gpu) {
        props_out->alignment = TSR_GPU_ALIGNMENT;
        props_out->granularity = desc->commit_bytes ? (size_t)desc->commit_bytes : TSR_GPU_COMMIT_BYTES;
        props_out->scratch_bytes = TSR_GPU_SCRATCH_BYTES;
        props_out->prefers_copies = !desc->wrap;
    }
    snprintf(props_out->name, sizeof props_out->name, "%s", desc->name);
}

void tsr_device_props_of(const tsr_device *device, tsr_device_props *props_out)
{
    size_t used = tsr_device_used(device), cap = device->memory_cap;
    *props_out = (tsr_device_props){.kind = tsr_device_kind_of(device),
                                    .memory_cap = cap == SIZE_MAX ? SIZE_MAX
                                                  : cap > used    ? cap - used
                                                                  : 0,
                                    .alignment = device->alignment,
                                    .granularity = device->granularity,
                                    .max_alloc = device->max_alloc,
                                    .scratch_bytes = device->scratch_bytes,
                                    .prefers_copies = device->prefers_copies};
    memcpy(props_out->name, device->name, sizeof props_out->name);
}

tsr_status tsr_runtime_open_dry(const tsr_device_props *props, int n_devices, tsr_runtime **rt_out)
{
    tsr_status status = TSR_OK;
    tsr_runtime *rt = NULL;
    TSR_TRY(TSR_NEW(&rt, "a runtime"));
    rt->no_alloc = true;
    TSR_TRY(tsr_mem_array((size_t)n_devices, sizeof *rt->devices, "devices", &rt->devices));
    for (; rt->n_devices < n_devices; rt->n_devices++) {
        const tsr_device_props *t = &props[rt->n_devices];
        TSR_TRY(tsr_measure_device_create(t->name, rt->n_devices, SIZE_MAX, t->alignment, t->max_alloc,
                                          t->granularity, &rt->devices[rt->n_devices]));
        rt->devices[rt->n_devices]->scratch_bytes = t->scratch_bytes;
        rt->devices[rt->n_devices]->prefers_copies = t->prefers_copies;
        rt->devices[rt->n_devices]->is_gpu = t->kind == TSR_DEVICE_CUDA;
    }
    TSR_TRY(tsr_comm_local_create(n_devices, &rt->comm));
    *rt_out = rt;
    rt = NULL;
out:
    tsr_runtime_close(rt);
    return status;
}
