/* Running programs (flight.h). */
#include "graph/flight.h"

#include "graph/kv_inputs.h"

#include <stdio.h>

/* -- after a failure -- */

/* Time for a device to become quiescent after an abort of its communicator. After this deadline a device may
 * report that its GPU has stopped. */
#define RELEASE_NS 2000000000u

/* Wait for one device after an abort, until it has finished or makes no progress any more. Returns the
 * device's own failure; TSR_OK if it was only aborted. */
static tsr_status wait_released(tsr_device *device)
{
    tsr_status status = device->ops->synchronize(device, RELEASE_NS);
    if (status == TSR_ERR_TIMEOUT)
        status = device->ops->synchronize(device, 0);
    return status == TSR_ERR_RANGE || device->was_aborted ? TSR_OK : status;
}

/* A device that is lost, unless the failure may be that of a wait: then the device is asked later
 * (tsr_device_is_lost()). */
static void note_lost(const tsr_runtime *rt, tsr_device *device, tsr_status status)
{
    const bool waited = tsr_watch_is_lost(rt->watch) || tsr_processes_are_lost(rt->processes);
    device->lost |= status == TSR_ERR_DEVICE_LOST && !waited;
}

/* The devices on which a program is in flight. */
static tsr_device_set busy_devices(const tsr_flight *flight)
{
    tsr_device_set busy = 0;
    for (int i = 0; i < flight->n; i++)
        busy |= flight->runs[i].launched;
    return busy;
}

/* After `culprit` has failed with `status`, other devices wait in a collective: abort it and wait for all
 * devices. Returns, with its message, the first failure: another device's if the culprit was itself only
 * aborted, or that of a device that is lost. */
static tsr_status release_waiting(tsr_flight *flight, tsr_device *culprit, tsr_status status)
{
    tsr_runtime *rt = flight->rt;
    char cause[512];
    bool is_cause = !(status == TSR_ERR_DEVICE && culprit->was_aborted), is_lost = false;
    snprintf(cause, sizeof cause, "%s", tsr_last_error());
    rt->comm->ops->abort(rt->comm);
    note_lost(rt, culprit, status);
    TSR_FOR_DEVICES(d, busy_devices(flight)) {
        tsr_status own = wait_released(rt->devices[d]);
        rt->devices[d]->lost |= own == TSR_ERR_DEVICE_LOST && !tsr_processes_are_lost(rt->processes);
        if (own == TSR_OK || is_lost || (is_cause && own != TSR_ERR_DEVICE_LOST))
            continue;
        is_cause = true;
        is_lost = own == TSR_ERR_DEVICE_LOST;
        status = own;
        snprintf(cause, sizeof cause, "%s", tsr_last_error());
    }
    flight->n = 0;
    if (rt->processes) /* the others cannot be rolled back, and get to know why */
        tsr_processes_lose(rt->processes, cause);
    tsr_comm_reset(rt->comm, rt->watch);
    if (!tsr_watch_is_lost(rt->watch))
        return tsr_fail(status, "%s", cause);
    return tsr_watch_lose(rt->watch, "%s", cause);
}

/* -- waiting -- */

/* Wait until a device has finished all programs but the n_left newest ones, and so all that it will run
 * before those. */
static tsr_status wait_for_device(tsr_flight *flight, int d, int n_left)
{
    tsr_device *device = flight->rt->devices[d];
    const uint64_t timeout_ns = flight->runs[0].program->timeout_ns;
    int n_queued = 0;
    for (int i = flight->n - n_left; i < flight->n; i++)
        n_queued += tsr_device_set_has(flight->runs[i].launched, d);
    return n_queued > 0 ? device->ops->wait_queue(device, n_queued, timeout_ns)
                        : device->ops->synchronize(device, timeout_ns);
}

/* After TSR_ERR_RANGE, with its sentence: devices go on, and are waited for. */
static tsr_status end_after_range(tsr_flight *flight)
{
    char cause[512];
    snprintf(cause, sizeof cause, "%s", tsr_last_error());
    tsr_status status = tsr_flight_end(flight);
    return status == TSR_OK || status == TSR_ERR_RANGE ? tsr_fail(TSR_ERR_RANGE, "%s", cause) : status;
}

static tsr_status wait_for_devices(tsr_flight *flight, tsr_device_set devices, int n_left)
{
    TSR_FOR_DEVICES(d, devices) {
        tsr_status status = wait_for_device(flight, d, n_left);
        if (status == TSR_ERR_RANGE)
            return end_after_range(flight);
        if (status != TSR_OK)
            return release_waiting(flight, flight->rt->devices[d], status);
    }
    return TSR_OK;
}

tsr_status tsr_flight_wait_on(tsr_flight *flight, tsr_device_set devices)
{
    return wait_for_devices(flight, devices & busy_devices(flight), 0);
}

tsr_status tsr_flight_wait(tsr_flight *flight, int n_left)
{
    const int n_done = flight->n - n_left;
    tsr_device_set devices = 0;
    if (n_done <= 0)
        return TSR_OK;
    for (int i = 0; i < n_done; i++)
        devices |= flight->runs[i].launched;
    const tsr_status status = wait_for_devices(flight, devices, n_left);
    if (status != TSR_OK)
        return status;
    for (int i = 0; i < n_left; i++)
        flight->runs[i] = flight->runs[n_done + i];
    flight->n = n_left;
    return TSR_OK;
}

/* -- launching -- */

tsr_status tsr_program_prepare(tsr_program *program)
{
    tsr_runtime *rt = program->rt;
    tsr_status status =
        tsr_comm_prepare(rt->comm, rt->devices, program->programs, rt->n_devices, program->timeout_ns);
    program->epoch = rt->comm->epoch;
    program->timed = rt->devices[0]->clock.timed;
    return status;
}

static bool is_prepared(const tsr_program *program)
{
    const tsr_runtime *rt = program->rt;
    return program->epoch == rt->comm->epoch && (program->timed || !rt->devices[0]->clock.timed);
}

tsr_status tsr_flight_begin(tsr_flight *flight, tsr_program *program)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_watch_check(flight->rt->watch));
    if (!is_prepared(program)) {
        TSR_TRY(tsr_flight_wait(flight, 0));
        TSR_TRY(tsr_program_prepare(program));
    }
    flight->runs[flight->n].program = program;
    flight->runs[flight->n++].launched = 0;
out:
    return status;
}

tsr_status tsr_flight_launch(tsr_flight *flight, tsr_device_set devices)
{
    tsr_program *program = flight->runs[flight->n - 1].program;
    tsr_device_set *launched = &flight->runs[flight->n - 1].launched;
    TSR_FOR_DEVICES(d, devices & ~*launched & tsr_device_set_all(flight->rt->n_devices)) {
        tsr_device *device = flight->rt->devices[d];
        if (!program->programs[d])
            continue;
        tsr_status status = device->ops->launch(device, program->programs[d]);
        if (status != TSR_OK)
            return release_waiting(flight, device, status);
        *launched |= tsr_device_set_one(d);
    }
    return TSR_OK;
}

tsr_status tsr_flight_end(tsr_flight *flight)
{
    tsr_status status = TSR_OK, range = TSR_OK;
    if (flight->n == 0)
        return TSR_OK;
    TSR_TRY(tsr_flight_launch(flight, ~(tsr_device_set)0));
    TSR_FOR_DEVICES(d, busy_devices(flight)) {
        status = wait_for_device(flight, d, 0);
        if (status == TSR_ERR_RANGE) { /* the device has finished, and the others will */
            range = status;
            status = TSR_OK;
        }
        if (status != TSR_OK)
            return release_waiting(flight, flight->rt->devices[d], status);
    }
    flight->n = 0;
    return range;
out:
    return status;
}

/* -- cancelling -- */

void tsr_flight_cancel_by(tsr_runtime *rt, const _Atomic bool *cancelled)
{
    int n_gpus = 0;
    for (int d = 0; d < rt->n_devices; d++)
        n_gpus += rt->devices[d]->is_gpu;
    if (rt->processes || n_gpus > 1)
        return;
    for (int d = 0; d < rt->n_devices; d++)
        atomic_store_explicit(&rt->devices[d]->cancelled, cancelled, memory_order_relaxed);
}

/* -- one program -- */

static tsr_status check_cancelled(const tsr_program *program)
{
    return atomic_load(&program->cancelled)
               ? tsr_fail(TSR_ERR_CANCELLED, "tsr_program_run: cancelled by tsr_program_cancel()")
               : TSR_OK;
}

/* Run on the devices of this process; stand-ins have empty programs. */
static tsr_status run_here(tsr_program *program)
{
    tsr_status status = TSR_OK;
    tsr_flight flight = {.rt = program->rt};
    tsr_flight_cancel_by(program->rt, &program->cancelled);
    TSR_TRY(check_cancelled(program));
    TSR_TRY(tsr_flight_begin(&flight, program));
    TSR_TRY(tsr_flight_launch(&flight, ~(tsr_device_set)0));
    TSR_TRY(tsr_flight_end(&flight));
    TSR_TRY(check_cancelled(program)); /* by devices that do not read the flag themselves */
    for (tsr_kv_inputs *inputs = program->graph->kv_inputs; inputs; inputs = inputs->next) {
        tsr_kv_finish_step(inputs->kv);
        tsr_kv_begin_call(inputs->kv); /* a run is a call: states can go back to those before it */
    }
out:
    tsr_flight_cancel_by(program->rt, NULL);
    if (status == TSR_ERR_CANCELLED)
        atomic_store(&program->cancelled, false);
    return status;
}

/* After a failure in one process the collectives of the processes are out of step, so later runs are
 * refused. */
tsr_status tsr_program_run(tsr_program *program)
{
    tsr_processes *processes = program->rt->processes;
    tsr_status status = tsr_processes_check(processes);
    tsr_processes_step(processes, true);
    if (status == TSR_OK)
        status = tsr_processes_agree(processes, run_here(program), "tsr_program_run");
    tsr_processes_step(processes, false);
    if (processes && status != TSR_OK && status != TSR_ERR_RANGE)
        tsr_processes_lose(processes, tsr_last_error());
    return status;
}

tsr_status tsr_program_cancel(tsr_program *program)
{
    if (program->rt->processes)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "tsr_program_cancel: the devices of the program are in several processes, which would "
            "wait for this one; let the run end, or set timeout_ns");
    atomic_store(&program->cancelled, true);
    return TSR_OK;
}

bool tsr_program_withdraw_cancel(tsr_program *program)
{
    return atomic_exchange(&program->cancelled, false);
}
