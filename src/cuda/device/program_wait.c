/* Waiting for the programs of a CUDA device: the caller's thread. */
#include <stdio.h>

#include "core/event.h"
#include "cuda/context/context.h"
#include "cuda/context/worker.h"
#include "cuda/device/program.h"

static tsr_status fail_timeout(tsr_cuda_device *cuda, uint64_t timeout_ns)
{
    char running[TSR_CUDA_RUNNING_BYTES], problem[64];
    cuda->overdue = true;
    snprintf(problem, sizeof problem, "did not finish within %.3g ms", (double)timeout_ns / 1e6);
    tsr_cuda_describe_running(cuda, problem, running);
    return tsr_fail(TSR_ERR_TIMEOUT, "device %s: %s", cuda->base.name, running);
}

/* The communicator was aborted at the timeout. A stream still busy now means that the GPU hangs. After the
 * grace time the device is given up. */
static tsr_status wait_overdue(tsr_cuda_device *cuda)
{
    const uint64_t deadline_ns = tsr_deadline_ns(cuda->grace_ns);
    return tsr_cuda_worker_wait(cuda->worker, deadline_ns) == TSR_WAIT_DONE ? TSR_OK : tsr_cuda_give_up(cuda);
}

/* The device makes no progress. It may only wait for another one, which is known once the communicator is
 * aborted. */
static tsr_status fail_stalled(tsr_cuda_device *cuda)
{
    char running[TSR_CUDA_RUNNING_BYTES], problem[64];
    cuda->overdue = true;
    snprintf(problem, sizeof problem, "made no progress for %.3g s",
             (double)tsr_watch_stall_ns(cuda->base.watch) / 1e9);
    tsr_cuda_describe_running(cuda, problem, running);
    return tsr_watch_lose(cuda->base.watch, "device %s: %s; the runtime is lost until it is closed",
                          cuda->base.name, running);
}

static tsr_status wait_for_programs(tsr_cuda_device *cuda, int n_left, uint64_t timeout_ns)
{
    if (tsr_watch_is_forked(cuda->base.watch))
        return tsr_watch_check(cuda->base.watch);
    if (timeout_ns == 0 && (cuda->overdue || tsr_watch_is_lost(cuda->base.watch)))
        return wait_overdue(cuda);
    const tsr_wait_end end = tsr_cuda_worker_wait_queue(cuda->worker, n_left, tsr_deadline_ns(timeout_ns));
    if (end == TSR_WAIT_DONE)
        return TSR_OK;
    return end == TSR_WAIT_LATE ? fail_timeout(cuda, timeout_ns) : fail_stalled(cuda);
}

/* As wait_for_programs(), and how they ended. */
static tsr_status wait_for_outcome(tsr_cuda_device *cuda, int n_left, uint64_t timeout_ns, bool *waited_out)
{
    const tsr_status status = wait_for_programs(cuda, n_left, timeout_ns);
    cuda->base.was_aborted = false;
    *waited_out = status == TSR_OK;
    if (status != TSR_OK)
        return status;
    const tsr_cuda_outcome *outcome = cuda->outcome.status == TSR_OK ? &cuda->range : &cuda->outcome;
    cuda->base.was_aborted = outcome->status != TSR_OK && outcome->aborted;
    return outcome->status == TSR_OK ? TSR_OK : tsr_fail(outcome->status, "%s", outcome->text);
}

tsr_status tsr_cuda_wait_queue(tsr_device *device, int n_left, uint64_t timeout_ns)
{
    bool waited;
    return wait_for_outcome(tsr_cuda(device), n_left, timeout_ns, &waited);
}

tsr_status tsr_cuda_synchronize(tsr_device *device, uint64_t timeout_ns)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    bool waited;
    const tsr_status status = wait_for_outcome(cuda, 0, timeout_ns, &waited);
    if (!waited)
        return status;
    cuda->overdue = false;
    cuda->outcome.status = cuda->range.status = TSR_OK;
    cuda->outcome.aborted = false;
    return status;
}
