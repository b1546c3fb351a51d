/* Thread pinning through hwloc, which supports all operating systems. hwloc binds through a loaded
 * topology, so a pinner keeps a minimal one. The topology is only read once loaded, so threads may share
 * it. */
#include "topo/pin.h"

#include <errno.h>
#include <hwloc.h>
#include <string.h>

#include "core/mem.h"
#include "topo/topo.h"

struct tsr_topo_pinner {
    hwloc_topology_t hw;
};

static tsr_status load_for_binding(hwloc_topology_t hw)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_topo_hwloc_configure(hw));
    tsr_topo_hwloc_avoid_noise(hw);
    if (hwloc_topology_set_all_types_filter(hw, HWLOC_TYPE_FILTER_KEEP_NONE) < 0 ||
        tsr_topo_hwloc_load(hw) < 0)
        status = tsr_fail(TSR_ERR_UNSUPPORTED, "hwloc cannot describe this machine for pinning: %s",
                          strerror(errno));
out:
    return status;
}

tsr_status tsr_topo_pinner_create(tsr_topo_pinner **pinner_out)
{
    tsr_status status = TSR_OK;
    tsr_topo_pinner *pinner = NULL;
    TSR_TRY(TSR_NEW(&pinner, "the thread pinner"));
    if (hwloc_topology_init(&pinner->hw) < 0) {
        pinner->hw = NULL;
        status = tsr_fail(TSR_ERR_MEMORY, "hwloc could not start: %s", strerror(errno));
        goto out;
    }
    TSR_TRY(load_for_binding(pinner->hw));
    *pinner_out = pinner;
    pinner = NULL;
out:
    tsr_topo_pinner_destroy(pinner);
    return status;
}

void tsr_topo_pinner_destroy(tsr_topo_pinner *pinner)
{
    if (!pinner)
        return;
    if (pinner->hw)
        hwloc_topology_destroy(pinner->hw);
    tsr_mem_free(pinner);
}

tsr_status tsr_topo_pin_thread(const tsr_topo_pinner *pinner, const int *pus, int n_pus)
{
    tsr_status status = TSR_OK;
    hwloc_cpuset_t set = hwloc_bitmap_alloc();
    if (!set)
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory for a processor set");
    for (int i = 0; i < n_pus && status == TSR_OK; i++)
        if (pus[i] < 0 || pus[i] >= TSR_TOPO_MAX_OBJECTS || hwloc_bitmap_set(set, (unsigned)pus[i]) < 0)
            status = tsr_fail(TSR_ERR_INVALID, "cannot pin to CPU %d: no such CPU", pus[i]);
    if (status == TSR_OK && hwloc_set_cpubind(pinner->hw, set, HWLOC_CPUBIND_THREAD) < 0)
        status = tsr_fail(TSR_ERR_UNSUPPORTED, "cannot pin a thread to CPU %d%s: %s", n_pus ? pus[0] : -1,
                          n_pus > 1 ? " and others" : "", strerror(errno));
    hwloc_bitmap_free(set);
    return status;
}

tsr_status tsr_topo_pin_team_thread(void *team_pins, int thread)
{
    const tsr_topo_team_pins *pins = team_pins;
    const tsr_device_desc *desc = pins->desc;
    if (desc->kind == TSR_DEVICE_CUDA && thread == 0)
        return tsr_topo_pin_thread(pins->pinner, desc->pus, desc->n_pus);
    if (thread < 0 || thread >= desc->n_threads)
        return tsr_fail(TSR_ERR_INVALID, "%s has no thread %d", desc->name, thread);
    if (desc->thread_pus[thread] < 0)
        return tsr_topo_pin_thread(pins->pinner, desc->pus, desc->n_pus);
    return tsr_topo_pin_thread(pins->pinner, &desc->thread_pus[thread], 1);
}
