/* First sums; see nccl_probe.h. They are computed in the devices' scratch, with 64-bit integers that use the
 * upper half. NCCL sends small and large messages by different protocols, over connections of their own, so
 * there is a sum of each kind: the large one is beyond 4 MiB, where NCCL writes into the peers' buffers. */
#include "cuda/comm/nccl_probe.h"

#include <stdio.h>
#include <time.h>

#include "core/event.h"
#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/comm/collective.h"

enum { SMALL = 4096, LARGE = (4 << 20) / sizeof(int64_t) + 5, SLEEP_NS = 20000 };

typedef struct probe {
    tsr_nccl_clique *clique;
    tsr_cuda_device *const *devices;
    tsr_device_set members, here; /* `here`: those of this process */
    tsr_device_set held;          /* devices whose scratch is held */
    int64_t *values;              /* [n] */
    size_t n;
} probe;

/* Element i of the contribution of device `index`. */
static int64_t value_of(int index, int64_t i)
{
    return (i % SMALL - SMALL / 2) * (index + 1) * ((int64_t)1 << 33) + i + index;
}

static tsr_status fill(probe *t)
{
    tsr_status status = TSR_OK;
    TSR_FOR_DEVICES(d, t->here) {
        tsr_device *device = &t->devices[d]->base;
        for (size_t i = 0; i < t->n; i++)
            t->values[i] = value_of(d, (int64_t)i);
        TSR_TRY(tsr_device_upload(device, device->scratch, t->values, t->n * sizeof *t->values));
        TSR_TRY(tsr_cuda_enter(t->devices[d])); /* its stream waits for the upload */
        tsr_cuda_leave(t->devices[d]);
    }
out:
    return status;
}

static tsr_status call_sum(const tsr_nccl_library *nccl, ncclComm_t comm, int index, void *what)
{
    const probe *t = what;
    void *buffer = t->devices[index]->base.scratch;
    return TSR_NCCL_ON(
        nccl, comm, ncclAllReduce(buffer, buffer, t->n, ncclInt64, ncclSum, comm, t->devices[index]->stream));
}

/* Whether all work on the device's stream has finished. */
static tsr_status is_idle(tsr_cuda_device *cuda, bool *idle_out)
{
    cudaError_t error = cudaStreamQuery(cuda->stream);
    *idle_out = error != cudaErrorNotReady;
    if (error == cudaErrorNotReady)
        (void)cudaGetLastError();
    return *idle_out ? tsr_cuda_result(error, "cudaStreamQuery") : TSR_OK;
}

/* TSR_ERR_TIMEOUT once the deadline has passed. `clique` NULL: NCCL's state is ignored. */
static tsr_status wait_idle(tsr_cuda_device *cuda, tsr_nccl_clique *clique, uint64_t deadline_ns)
{
    bool idle = false;
    tsr_status status = tsr_cuda_enter(cuda);
    if (status != TSR_OK)
        return status;
    for (;;) {
        TSR_TRY(is_idle(cuda, &idle));
        if (idle)
            break;
        if (clique)
            TSR_TRY(tsr_nccl_clique_poll(clique, cuda->base.index));
        if (tsr_clock_ns() >= deadline_ns)
            TSR_TRY(tsr_fail(TSR_ERR_TIMEOUT, "device %s: a first sum by NCCL did not finish in time",
                             cuda->base.name));
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
out:
    tsr_cuda_leave(cuda);
    return status;
}

static tsr_status compare(probe *t)
{
    tsr_status status = TSR_OK;
    TSR_FOR_DEVICES(d, t->here) {
        tsr_device *device = &t->devices[d]->base;
        TSR_TRY(tsr_device_download(device, t->values, device->scratch, t->n * sizeof *t->values));
        for (size_t i = 0; i < t->n; i++) {
            int64_t sum = 0;
            TSR_FOR_DEVICES(other, t->members)
                sum += value_of(other, (int64_t)i);
            if (t->values[i] != sum)
                return tsr_fail(
                    TSR_ERR_DEVICE,
                    "device %s: NCCL's sum over %d devices is wrong at element %zu of %zu; do not "
                    "use NCCL on this machine",
                    device->name, tsr_device_set_count(t->members), i, t->n);
        }
    }
out:
    return status;
}

/* Give up devices that do not become quiescent: releasing their memory would wait for them. The first of
 * them; NULL: none. */
static const tsr_cuda_device *give_up(probe *t)
{
    const tsr_cuda_device *first = NULL;
    tsr_nccl_clique_abort(t->clique);
    TSR_FOR_DEVICES(d, t->here)
        if (wait_idle(t->devices[d], NULL, tsr_deadline_ns(t->devices[d]->grace_ns)) == TSR_ERR_TIMEOUT) {
            atomic_store(&t->devices[d]->hung, true);
            first = first ? first : t->devices[d];
        }
    return first;
}

static tsr_status try_sum(probe *t, size_t n, uint64_t deadline_ns)
{
    tsr_status status = TSR_OK;
    t->n = n;
    TSR_TRY(fill(t));
    TSR_TRY(tsr_nccl_clique_issue(t->clique, t->here, call_sum, t, deadline_ns));
    TSR_FOR_DEVICES(d, t->here)
        TSR_TRY(wait_idle(t->devices[d], t->clique, deadline_ns));
    TSR_TRY(compare(t));
out:
    return status;
}

/* *room_out: elements that fit into the smallest. */
static tsr_status hold_scratch(probe *t, size_t *room_out)
{
    *room_out = SIZE_MAX;
    TSR_FOR_DEVICES(d, t->here) {
        tsr_device *device = &t->devices[d]->base;
        tsr_status status = tsr_device_hold_scratch(device);
        if (status != TSR_OK)
            return status;
        t->held |= tsr_device_set_one(d);
        *room_out = TSR_MIN(*room_out, device->scratch_bytes / sizeof(int64_t));
    }
    return TSR_OK;
}

tsr_status tsr_nccl_probe(tsr_nccl_clique *clique, tsr_cuda_device *const *devices, tsr_device_set members,
                          uint64_t timeout_ns)
{
    tsr_status status = TSR_OK;
    probe t = {
        .clique = clique, .devices = devices, .members = members, .here = tsr_nccl_clique_here(clique)};
    uint64_t deadline_ns = tsr_deadline_ns(timeout_ns);
    size_t room;
    char text[512];
    const tsr_cuda_device *hung = NULL;
    TSR_TRY(tsr_mem_array(LARGE, sizeof *t.values, "a first sum", &t.values));
    TSR_TRY(hold_scratch(&t, &room));
    if (!tsr_cuda_collective_reaches(devices, t.here))
        TSR_TRY(tsr_fail(TSR_ERR_UNSUPPORTED,
                         "NCCL has no access to the scratch memory of all of its devices; use auto or staged "
                         "collectives"));
    TSR_TRY(try_sum(&t, TSR_MIN((size_t)SMALL, room), deadline_ns));
    TSR_TRY(try_sum(&t, TSR_MIN((size_t)LARGE, room), deadline_ns));
out:
    if (status != TSR_OK) {
        snprintf(text, sizeof text, "%s", tsr_last_error());
        hung = give_up(&t);
    }
    TSR_FOR_DEVICES(d, t.held)
        tsr_device_drop_scratch(&devices[d]->base);
    tsr_mem_free(t.values);
    if (hung)
        return tsr_fail(
            TSR_ERR_DEVICE_LOST,
            "device %s: NCCL's first sum hangs CUDA device %d, which is unusable until the process "
            "restarts (%s)",
            hung->base.name, hung->ordinal, text);
    return status == TSR_OK ? TSR_OK : tsr_fail(status, "%s", text);
}
