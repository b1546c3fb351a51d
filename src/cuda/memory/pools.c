/* See pools.h. */
#include "cuda/memory/pools.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/context/context.h"

/* -- points in streams -- */

/* A point is an event. The pool is used by the thread that has entered the device, or by a program's end. */

static cudaStream_t stream_of(const tsr_cuda_device *cuda, int stream)
{
    return stream == TSR_STREAM_COPIES ? cuda->copies : cuda->stream;
}

tsr_status tsr_cuda_stream_mark(tsr_device *device, int stream, void **point)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    cudaEvent_t event = *point;
    tsr_status status = tsr_cuda_enter_to_copy(cuda);
    if (status != TSR_OK)
        return status;
    if (!event)
        TSR_TRY(TSR_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
    *point = event;
    TSR_TRY(TSR_CUDA(cudaEventRecord(event, stream_of(cuda, stream))));
out:
    tsr_cuda_leave(cuda);
    return status == TSR_OK ? TSR_OK : tsr_fail_in(status, "device %s", device->name);
}

bool tsr_cuda_stream_passed(tsr_device *device, void *point)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    if (tsr_cuda_make_current(cuda) != TSR_OK)
        return false;
    bool is = cudaEventQuery(point) == cudaSuccess;
    if (!is)
        (void)cudaGetLastError(); /* "not ready" counts as an error */
    tsr_cuda_leave(cuda);
    return is;
}

tsr_status tsr_cuda_stream_wait(tsr_device *device, int stream, void *point)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    tsr_status status = tsr_cuda_enter_to_copy(cuda);
    if (status != TSR_OK)
        return status;
    status = stream == TSR_POOL_HOST ? tsr_cuda_wait_event(cuda, point)
                                     : TSR_CUDA(cudaStreamWaitEvent(stream_of(cuda, stream), point, 0));
    tsr_cuda_leave(cuda);
    return status == TSR_OK ? TSR_OK : tsr_fail_in(status, "device %s", device->name);
}

void tsr_cuda_stream_drop(tsr_device *device, void *point)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    if (!tsr_cuda_enter_to_release(cuda))
        return;
    (void)cudaEventDestroy(point);
    (void)cudaGetLastError();
    tsr_cuda_leave(cuda);
}

/* -- pinned memory -- */

static tsr_status pin(void *user, size_t bytes, const char *what, void **data_out)
{
    tsr_cuda_device *cuda = user;
    tsr_accounting *accounting = &cuda->base.accounting;
    tsr_status status = TSR_CUDA(cudaHostAlloc(data_out, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    if (status != TSR_OK)
        return tsr_fail_in(status, "%s needs %zu bytes", what, bytes);
    accounting->pinned += bytes;
    accounting->pinned_peak = TSR_MAX(accounting->pinned_peak, accounting->pinned);
    return TSR_OK;
}

static void unpin(void *user, void *data, size_t bytes)
{
    tsr_cuda_device *cuda = user;
    cuda->base.accounting.pinned -= bytes;
    if (atomic_load(&cuda->hung)) /* a call would wait for the device */
        return;
    (void)cudaFreeHost(data);
    (void)cudaGetLastError();
}

static const tsr_pool_source pinned_source = {.get = pin, .put = unpin};

tsr_status tsr_cuda_pinned_open(tsr_cuda_device *cuda)
{
    snprintf(cuda->pinned_name, sizeof cuda->pinned_name, "device %s: pinned host memory", cuda->base.name);
    return tsr_pool_create(&pinned_source, cuda, cuda->pinned_name, SIZE_MAX, &cuda->pinned);
}

void tsr_cuda_pinned_close(tsr_cuda_device *cuda)
{
    tsr_pool_destroy(cuda->pinned);
    cuda->pinned = NULL;
}

/* Zeros, so that a program may run before all its inputs are set. */
tsr_status tsr_cuda_pin(tsr_device *device, size_t bytes, tsr_pool_block **block_out)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    tsr_status status = tsr_cuda_enter_to_copy(cuda);
    if (status != TSR_OK)
        return status;
    status = tsr_pool_take(cuda->pinned, bytes, TSR_POOL_HOST, "inputs of programs", block_out);
    tsr_cuda_leave(cuda);
    if (status == TSR_OK)
        memset((*block_out)->data, 0, (*block_out)->bytes);
    return status;
}

/* Nothing is released that a thread that never returned may still read. */
void tsr_cuda_unpin(tsr_device *device, tsr_pool_block *block)
{
    if (!tsr_watch_has_abandoned(device->watch))
        tsr_pool_give(tsr_cuda(device)->pinned, block, TSR_POOL_HOST);
}

void tsr_cuda_trim(tsr_device *device)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    if (!tsr_cuda_enter_to_release(cuda))
        return;
    tsr_pool_trim(cuda->pinned, 0);
    tsr_cuda_leave(cuda);
}
