/* Capturing programs of several devices that enqueue collectives together (NCCL's).
 *
 * Each device captures on its own host thread, since a capture may wait for the other devices. Either all
 * or none may replay graphs, so no capture is kept before all are complete. A device whose capture is
 * refused (the driver has no memory for the graph, a tool forbids capture) may leave the others waiting
 * for calls that it will not make, and some ranks of the communicator ahead of others. So the communicator
 * is aborted and recreated, which takes a moment, and no further capture is tried with it. */
#include <stdio.h>

#include "core/comm.h"
#include "core/event.h"

#define LOOK_NS 5000000u /* per device and poll */
/* Limit for a device to stop after its communicator was aborted. */
#define RELEASE_NS 2000000000u

typedef struct preparation {
    tsr_device *const *devices;
    tsr_device_program *const *programs;
    int n_devices;
    tsr_device_set busy; /* devices whose capture has not ended */
    bool refused;
    uint64_t deadline_ns;
    tsr_stall stall;
} preparation;

static tsr_status begin(preparation *p)
{
    tsr_status status = TSR_OK;
    for (int d = 0; d < p->n_devices && status == TSR_OK; d++) {
        if (!p->programs[d] || !p->devices[d]->ops->prepare)
            continue;
        status = p->devices[d]->ops->prepare(p->devices[d], p->programs[d]);
        if (status == TSR_OK)
            p->busy |= tsr_device_set_one(d);
    }
    return status;
}

/* Poll each busy device once. */
static tsr_status look(preparation *p)
{
    TSR_FOR_DEVICES(d, p->busy) {
        tsr_status status = p->devices[d]->ops->synchronize(p->devices[d], LOOK_NS);
        if (status == TSR_ERR_TIMEOUT)
            continue;
        p->busy &= ~tsr_device_set_one(d);
        p->refused |= status == TSR_ERR_UNSUPPORTED;
        if (status != TSR_OK && status != TSR_ERR_UNSUPPORTED)
            return status;
    }
    return TSR_OK;
}

/* TSR_OK: all captures have ended, or one was refused. */
static tsr_status wait_for_all(preparation *p)
{
    tsr_status status = TSR_OK;
    while (p->busy && !p->refused && status == TSR_OK) {
        status = look(p);
        if (status == TSR_OK && p->busy && !p->refused && tsr_clock_ns() >= p->deadline_ns)
            status = tsr_fail(TSR_ERR_TIMEOUT, "device %s: the program was not captured in time",
                              p->devices[tsr_device_set_first(p->busy)]->name);
        if (status == TSR_OK && p->busy && tsr_watch_look(p->devices[0]->watch, &p->stall))
            status =
                tsr_watch_lose(p->devices[0]->watch, "device %s: the capture of a program makes no progress",
                               p->devices[tsr_device_set_first(p->busy)]->name);
    }
    return status;
}

/* Release the devices that wait for missing calls, and drop the captures of the others: a communicator can
 * be destroyed only after the graphs with its operations. */
static void give_up(const preparation *p, tsr_comm *whole)
{
    tsr_comm *comm = whole->gpus ? whole->gpus : whole;
    comm->ops->abort(comm);
    TSR_FOR_DEVICES(d, p->busy)
        if (p->devices[d]->ops->synchronize(p->devices[d], RELEASE_NS) == TSR_ERR_TIMEOUT)
            (void)!p->devices[d]->ops->synchronize(p->devices[d], 0);
    for (int d = 0; d < p->n_devices; d++)
        if (p->programs[d] && p->devices[d]->ops->discard)
            p->devices[d]->ops->discard(p->devices[d], p->programs[d]);
    tsr_comm_reset(comm, p->devices[0]->watch);
    if (whole->gpus)
        whole->epoch++;
}

/* Either all processes replay graphs or none does. */
static tsr_status agree(preparation *p)
{
    tsr_status status = p->refused ? tsr_fail(TSR_ERR_UNSUPPORTED, "the program was not captured") : TSR_OK;
    status = tsr_processes_try(p->devices[0]->processes, status, "capturing programs");
    p->refused = status == TSR_ERR_UNSUPPORTED;
    return p->refused ? TSR_OK : status;
}

tsr_status tsr_comm_prepare(tsr_comm *comm, tsr_device *const *devices, tsr_device_program *const *programs,
                            int n_devices, uint64_t timeout_ns)
{
    char sentence[512];
    preparation p = {.devices = devices,
                     .programs = programs,
                     .n_devices = n_devices,
                     .deadline_ns = tsr_deadline_ns(timeout_ns)};
    tsr_comm *whole = tsr_comm_whole(comm);
    if (whole->no_graphs)
        return TSR_OK;
    tsr_status status = begin(&p);
    if (status == TSR_OK)
        status = wait_for_all(&p);
    if (status == TSR_OK && comm->gpus)
        status = agree(&p);
    if (status == TSR_OK && !p.refused)
        return TSR_OK;
    whole->no_graphs = p.refused;
    snprintf(sentence, sizeof sentence, "%s", tsr_last_error());
    give_up(&p, whole);
    if (status != TSR_OK)
        return tsr_fail(status, "%s", sentence);
    tsr_fail_clear();
    return TSR_OK;
}
