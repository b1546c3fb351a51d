/* Thread pinning by the system call. hwloc can pin, too, but only through a loaded topology: milliseconds and
 * another look at all of /sys for one mask. */
#include "topo/pin.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include "topo/topo.h"

tsr_status tsr_topo_pin_thread(const int *pus, int n_pus)
{
    tsr_status status = TSR_OK;
    cpu_set_t *set = CPU_ALLOC(TSR_TOPO_MAX_OBJECTS);
    size_t bytes = CPU_ALLOC_SIZE(TSR_TOPO_MAX_OBJECTS);
    if (!set)
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory for a processor set");
    CPU_ZERO_S(bytes, set);
    for (int i = 0; i < n_pus && status == TSR_OK; i++) {
        if (pus[i] < 0 || pus[i] >= TSR_TOPO_MAX_OBJECTS)
            status = tsr_fail(TSR_ERR_INVALID, "cannot pin to CPU %d: no such CPU", pus[i]);
        else
            CPU_SET_S(pus[i], bytes, set);
    }
    if (status == TSR_OK && sched_setaffinity(0, bytes, set) < 0)
        status = tsr_fail(TSR_ERR_UNSUPPORTED, "cannot pin a thread to CPU %d%s: %s", n_pus ? pus[0] : -1,
                          n_pus > 1 ? " and others" : "", strerror(errno));
    CPU_FREE(set);
    return status;
}

tsr_status tsr_topo_pin_team_thread(void *device, int thread)
{
    const tsr_device_desc *desc = device;
    if (desc->kind == TSR_DEVICE_CUDA && thread == 0)
        return tsr_topo_pin_thread(desc->pus, desc->n_pus);
    if (thread < 0 || thread >= desc->n_threads)
        return tsr_fail(TSR_ERR_INVALID, "%s has no thread %d", desc->name, thread);
    if (desc->thread_pus[thread] < 0)
        return tsr_topo_pin_thread(desc->pus, desc->n_pus);
    return tsr_topo_pin_thread(&desc->thread_pus[thread], 1);
}
