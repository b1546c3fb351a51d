/* Entering and leaving a device, and waiting for its streams; see context.h. */
#include "cuda/context/context.h"

#include <stdio.h>
#include <time.h>

#include "core/comm.h"
#include "core/event.h"
#include "cuda/api/check.h"

/* A GPU usually finishes within POLLS_BEFORE_SLEEP polls, which take longer than a decode step of a large
 * model: 10 to 20 ms at half a microsecond to one for each query. Then the thread sleeps between polls, and
 * after FEW_POLLS where there are fewer processors than threads, since another device's thread may need this
 * one. Every POLLS_PER_WATCH polls it checks the other devices for faults. */
enum { POLLS_BEFORE_SLEEP = 20000, FEW_POLLS = 64, SLEEP_NS = 20000, POLLS_PER_WATCH = 256 };

static tsr_status fail_hung(const tsr_cuda_device *cuda)
{
    return tsr_fail(TSR_ERR_DEVICE_LOST,
                    "device %s: CUDA device %d does not respond; it is unusable until the process restarts",
                    cuda->base.name, cuda->ordinal);
}

tsr_status tsr_cuda_give_up(tsr_cuda_device *cuda)
{
    const tsr_status status = fail_hung(cuda);
    atomic_store(&cuda->hung, true); /* the host thread's polling loop reads it */
    tsr_watch_lose(cuda->base.watch, "%s", tsr_last_error());
    if (tsr_cuda_worker_wait(cuda->worker, tsr_deadline_ns(cuda->grace_ns)) != TSR_WAIT_DONE)
        tsr_watch_abandon(cuda->base.watch);
    return status;
}

uint64_t tsr_cuda_progress(const void *device)
{
    const tsr_cuda_device *cuda = device;
    return tsr_cuda_worker_n_finished(cuda->worker) +
           atomic_load_explicit(&cuda->n_steps, memory_order_relaxed);
}

/* The runtime creates the context, and not the driver alone: then the runtime keeps the context when this
 * device closes, while another thread uses it. */
tsr_status tsr_cuda_context_open(tsr_cuda_device *cuda)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_cuda_driver_load(&cuda->driver));
    TSR_TRY(tsr_cuda_result_of(cuda->ordinal, cudaInitDevice(cuda->ordinal, 0, 0), "cudaInitDevice"));
    TSR_TRY(TSR_CU(cuda->driver.cuDeviceGet(&cuda->gpu, cuda->ordinal)));
    TSR_TRY(TSR_CU(cuda->driver.cuDevicePrimaryCtxRetain(&cuda->context, cuda->gpu)));
out:
    return status;
}

void tsr_cuda_context_close(tsr_cuda_device *cuda)
{
    if (cuda->context && !atomic_load(&cuda->hung))
        (void)cuda->driver.cuDevicePrimaryCtxRelease(cuda->gpu);
    cuda->context = NULL;
}

tsr_status tsr_cuda_make_current(tsr_cuda_device *cuda)
{
    return tsr_cuda_result_of(cuda->ordinal, (cudaError_t)cuda->driver.cuCtxPushCurrent(cuda->context),
                              "cuCtxPushCurrent");
}

tsr_status tsr_cuda_enter_to_copy(tsr_cuda_device *cuda)
{
    if (atomic_load(&cuda->hung))
        return fail_hung(cuda);
    tsr_status status = tsr_watch_check(cuda->base.watch);
    if (status == TSR_OK && tsr_cuda_worker_wait(cuda->worker, TSR_FOREVER) != TSR_WAIT_DONE)
        status = tsr_cuda_give_up(cuda);
    if (status != TSR_OK)
        return status;
    if (atomic_load(&cuda->hung))
        return fail_hung(cuda);
    status = tsr_cuda_make_current(cuda);
    return status == TSR_OK ? TSR_OK : tsr_fail_in(status, "device %s", cuda->base.name);
}

tsr_status tsr_cuda_join_copies(tsr_cuda_device *cuda)
{
    tsr_status status = TSR_OK;
    if (!atomic_load(&cuda->copies_pending))
        return TSR_OK;
    TSR_TRY(TSR_CUDA(cudaEventRecord(cuda->copied, cuda->copies)));
    TSR_TRY(TSR_CUDA(cudaStreamWaitEvent(cuda->stream, cuda->copied, 0)));
    atomic_store(&cuda->copies_pending, false);
out:
    return status;
}

tsr_status tsr_cuda_enter(tsr_cuda_device *cuda)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_cuda_enter_to_copy(cuda));
    status = tsr_cuda_join_copies(cuda);
    if (status != TSR_OK) {
        tsr_cuda_leave(cuda);
        tsr_fail_in(status, "device %s", cuda->base.name);
    }
out:
    return status;
}

bool tsr_cuda_enter_to_release(tsr_cuda_device *cuda)
{
    if (tsr_watch_is_forked(cuda->base.watch))
        atomic_store(&cuda->hung, true); /* CUDA does not work in a child process */
    else if (cuda->worker && tsr_cuda_worker_wait(cuda->worker, TSR_FOREVER) != TSR_WAIT_DONE &&
             !atomic_load(&cuda->hung))
        (void)!tsr_cuda_give_up(cuda);
    if (atomic_load(&cuda->hung) || !cuda->context)
        return false;
    /* Tried twice, since without it nothing is released. */
    return cuda->driver.cuCtxPushCurrent(cuda->context) == CUDA_SUCCESS ||
           cuda->driver.cuCtxPushCurrent(cuda->context) == CUDA_SUCCESS;
}

void tsr_cuda_leave(tsr_cuda_device *cuda)
{
    CUcontext context;
    (void)cuda->driver.cuCtxPopCurrent(&context);
}

tsr_status tsr_cuda_wait_event(tsr_cuda_device *cuda, cudaEvent_t event)
{
    const bool is_worker = cuda->worker && tsr_cuda_worker_is_current(cuda->worker);
    const int most_polls = cuda->base.polls > 0 ? POLLS_BEFORE_SLEEP : FEW_POLLS;
    tsr_stall stall = {0};
    for (int polls = 0;; polls++) {
        cudaError_t error = cudaEventQuery(event);
        if (error == cudaSuccess)
            return TSR_OK;
        if (error != cudaErrorNotReady)
            return tsr_cuda_result(error, "cudaEventQuery");
        (void)cudaGetLastError(); /* "not ready" counts as an error */
        if (atomic_load(&cuda->hung))
            return fail_hung(cuda);
        if (cuda->watched && polls % POLLS_PER_WATCH == POLLS_PER_WATCH - 1) {
            tsr_status status = cuda->watched->ops->poll(cuda->watched, &cuda->base);
            if (status != TSR_OK)
                return status;
        }
        if (!is_worker && polls % POLLS_PER_WATCH == POLLS_PER_WATCH - 1 &&
            tsr_watch_look(cuda->base.watch, &stall))
            return tsr_cuda_give_up(cuda);
        if (polls >= most_polls)
            nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
        else
            tsr_relax();
    }
}

tsr_status tsr_cuda_drain(tsr_cuda_device *cuda)
{
    tsr_status status = TSR_OK;
    TSR_TRY(TSR_CUDA(cudaEventRecord(cuda->done, cuda->stream)));
    TSR_TRY(tsr_cuda_wait_event(cuda, cuda->done));
out:
    return status;
}

tsr_status tsr_cuda_quiesce(tsr_cuda_device *cuda)
{
    tsr_status status = TSR_OK;
    TSR_TRY(TSR_CUDA(cudaEventRecord(cuda->copied, cuda->copies)));
    TSR_TRY(tsr_cuda_wait_event(cuda, cuda->copied));
    TSR_TRY(tsr_cuda_drain(cuda));
out:
    return status;
}

void tsr_cuda_quiesce_to_release(tsr_cuda_device *cuda)
{
    char sentence[1024];
    snprintf(sentence, sizeof sentence, "%s", tsr_last_error());
    (void)!tsr_cuda_quiesce(cuda);
    tsr_fail_store("%s", sentence);
}
