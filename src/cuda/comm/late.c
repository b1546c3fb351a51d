/* See late.h. */
#include "cuda/comm/late.h"

#include <stdio.h>

#include "core/comm.h"
#include "core/event.h"
#include "core/mem.h"

tsr_status tsr_cuda_late_check(tsr_cuda_late *late, tsr_processes *processes, const tsr_cuda_device *cuda,
                               uint64_t arrivals, tsr_device_set missing)
{
    const tsr_device *device = &cuda->base;
    const uint64_t now = tsr_clock_ns();
    char names[256], text[512];
    tsr_status status = tsr_processes_check(processes);
    if (status != TSR_OK)
        return status;
    tsr_watch_note(device->watch);
    if (arrivals != late->arrivals)
        *late = (tsr_cuda_late){arrivals, now};
    const uint64_t since = TSR_MAX(late->since_ns, cuda->watched_since_ns);
    if (now - since < tsr_processes_step_limit_ns(processes))
        return TSR_OK;
    tsr_comm_describe_missing(missing, names, sizeof names);
    snprintf(text, sizeof text, "device %s: a collective between processes was not complete in %.3g s%s",
             device->name, (double)(now - since) / 1e9, names);
    tsr_processes_lose(processes, text);
    return tsr_processes_check(processes);
}
