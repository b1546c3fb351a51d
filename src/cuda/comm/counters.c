/* See counters.h. */
#include "cuda/comm/counters.h"

#include <stdio.h>
#include <string.h>

#include "core/comm.h"
#include "core/event.h"
#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/memory/memory.h"

/* -- creation -- */

/* Allocate the memory that the host and all GPUs access. */
static tsr_status make_shared(tsr_cuda_counters *c, tsr_cuda_device *cuda, int n_words)
{
    size_t bytes = ((size_t)c->n_devices * (size_t)c->n_devices + (size_t)n_words) * sizeof *c->progress;
    tsr_status status = tsr_cuda_enter(cuda);
    if (status != TSR_OK)
        return status;
    TSR_TRY(tsr_pool_take(cuda->pinned, bytes, TSR_POOL_HOST, "the progress of collectives", &c->shared));
    c->keeper = cuda;
    c->progress = c->shared->data;
    c->words = c->progress + (size_t)c->n_devices * (size_t)c->n_devices;
    memset(c->progress, 0, bytes);
out:
    tsr_cuda_leave(cuda);
    return status;
}

static tsr_status make_counts(tsr_cuda_counters *c, int i)
{
    tsr_cuda_device *cuda = c->devices[i];
    tsr_status status = tsr_cuda_enter(cuda);
    if (status != TSR_OK)
        return status;
    TSR_TRY(tsr_cuda_alloc_own(cuda, c->bytes, (void **)&c->counts[i]));
    TSR_TRY(TSR_CUDA(cudaMemsetAsync(c->counts[i], 0, c->bytes, cuda->stream)));
    TSR_TRY(tsr_cuda_drain(cuda));
out:
    tsr_cuda_leave(cuda);
    return status == TSR_OK ? TSR_OK
                            : tsr_fail_in(status, "device %s: counters of the collectives", cuda->base.name);
}

tsr_status tsr_cuda_counters_create(tsr_cuda_counters *counters, tsr_cuda_device *const *devices,
                                    int n_devices, size_t bytes, int n_words)
{
    tsr_status status = TSR_OK;
    *counters = (tsr_cuda_counters){.devices = devices, .n_devices = n_devices, .bytes = bytes};
    for (int i = 0; i < n_devices; i++) {
        if (!devices[i])
            continue;
        if (!counters->progress)
            TSR_TRY(make_shared(counters, devices[i], n_words));
        TSR_TRY(make_counts(counters, i));
    }
out:
    return status;
}

void tsr_cuda_counters_destroy(tsr_cuda_counters *counters)
{
    for (int i = 0; i < counters->n_devices; i++) {
        if (!counters->counts[i] || !tsr_cuda_enter_to_release(counters->devices[i]))
            continue;
        tsr_cuda_free_own(counters->devices[i], counters->counts[i], counters->bytes);
        (void)cudaGetLastError();
        tsr_cuda_leave(counters->devices[i]);
    }
    if (counters->keeper)
        tsr_pool_give(counters->keeper->pinned, counters->shared, TSR_POOL_HOST);
}

/* -- use -- */

const tsr_cuda_device *tsr_cuda_counters_reset(tsr_cuda_counters *counters)
{
    const tsr_cuda_device *lost = NULL;
    for (int i = 0; i < counters->n_devices; i++) {
        tsr_cuda_device *cuda = counters->devices[i];
        if (!cuda)
            continue;
        if (tsr_cuda_enter(cuda) != TSR_OK) {
            lost = lost ? lost : cuda;
            continue;
        }
        if (cudaMemsetAsync(counters->counts[i], 0, counters->bytes, cuda->stream) != cudaSuccess ||
            tsr_cuda_drain(cuda) != TSR_OK)
            lost = lost ? lost : cuda;
        (void)cudaGetLastError();
        tsr_cuda_leave(cuda);
    }
    for (int i = 0; i < counters->n_devices * counters->n_devices; i++)
        __atomic_store_n(&counters->progress[i], 0, __ATOMIC_SEQ_CST);
    return lost;
}

uint64_t tsr_cuda_counters_arrivals(const tsr_cuda_counters *counters, int index)
{
    uint64_t arrivals = 0;
    for (int i = 0; i < counters->n_devices; i++)
        arrivals += __atomic_load_n(&counters->progress[index * counters->n_devices + i], __ATOMIC_SEQ_CST);
    return arrivals;
}

tsr_device_set tsr_cuda_counters_missing(const tsr_cuda_counters *counters, tsr_device_set participants,
                                         int index)
{
    const int n = counters->n_devices;
    tsr_device_set missing = 0, unknown = 0; /* of another process, whose counts are not here */
    for (int i = 0; i < n; i++) {
        uint64_t to = __atomic_load_n(&counters->progress[index * n + i], __ATOMIC_SEQ_CST);
        uint64_t from = __atomic_load_n(&counters->progress[i * n + index], __ATOMIC_SEQ_CST);
        if (tsr_device_set_has(participants, i) && from < to)
            *(counters->devices[i] ? &missing : &unknown) |= tsr_device_set_one(i);
    }
    return missing ? missing : unknown;
}

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
