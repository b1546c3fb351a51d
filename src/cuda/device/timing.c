/* Times of programs by events (timing.h). */
#include "cuda/device/timing.h"

#include <string.h>

#include "core/comm.h"
#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/comm/staged.h"

/* Graphs keep the events that they record, so events are only added. */
static tsr_status make_room(tsr_cuda_timing *timing, int n)
{
    cudaEvent_t *events;
    const tsr_status status =
        tsr_mem_array((size_t)n, sizeof *events, "the events of a device's times", &events);
    if (status != TSR_OK)
        return status;
    if (timing->n_events > 0)
        memcpy(events, timing->events, (size_t)timing->n_events * sizeof *events);
    tsr_mem_free(timing->events);
    timing->events = events;
    timing->capacity = n;
    return TSR_OK;
}

tsr_status tsr_cuda_timing_reserve(tsr_cuda_device *cuda, int n_waits)
{
    tsr_status status = TSR_OK;
    tsr_cuda_timing *timing = &cuda->timing;
    const int n = TSR_CUDA_WAITS + 2 * n_waits;
    if (n > timing->capacity)
        TSR_TRY(make_room(timing, n));
    for (; timing->n_events < n; timing->n_events++)
        TSR_TRY(TSR_CUDA(cudaEventCreate(&timing->events[timing->n_events])));
out:
    return status;
}

void tsr_cuda_timing_close(tsr_cuda_device *cuda)
{
    for (int i = 0; i < cuda->timing.n_events; i++)
        (void)cudaEventDestroy(cuda->timing.events[i]);
    cuda->timing.n_events = 0;
}

bool tsr_cuda_waits(const tsr_op *op)
{
    const tsr_collective *collective = tsr_op_collective(op);
    if (!collective)
        return op->kind == TSR_OP_JOIN;
    return !tsr_collective_is_alone(collective) && !tsr_cuda_is_staged(op);
}

tsr_status tsr_cuda_timing_record(tsr_cuda_device *cuda, int event)
{
    tsr_status status = TSR_OK;
    enum cudaStreamCaptureStatus capture;
    TSR_TRY(TSR_CUDA(cudaStreamIsCapturing(cuda->stream, &capture)));
    const unsigned flags =
        capture == cudaStreamCaptureStatusActive ? cudaEventRecordExternal : cudaEventRecordDefault;
    TSR_TRY(TSR_CUDA(cudaEventRecordWithFlags(cuda->timing.events[event], cuda->stream, flags)));
out:
    return status;
}

void tsr_cuda_timing_begin_marks(tsr_cuda_device *cuda)
{
    cuda->timing.next = TSR_CUDA_WAITS;
}

void tsr_cuda_timing_end_marks(tsr_cuda_device *cuda)
{
    cuda->timing.next = 0;
}

tsr_status tsr_cuda_timing_mark(tsr_cuda_device *cuda)
{
    return cuda->timing.next ? tsr_cuda_timing_record(cuda, cuda->timing.next++) : TSR_OK;
}

static tsr_status elapsed_ns(const tsr_cuda_timing *timing, int begin, uint64_t *ns_out)
{
    float ms = 0;
    const tsr_status status =
        TSR_CUDA(cudaEventElapsedTime(&ms, timing->events[begin], timing->events[begin + 1]));
    *ns_out = status == TSR_OK && ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
    return status;
}

tsr_status tsr_cuda_timing_add(tsr_cuda_device *cuda, int n_waits)
{
    tsr_status status = TSR_OK;
    tsr_device_clock *clock = &cuda->base.clock;
    uint64_t part_ns, waits_ns = 0;
    TSR_TRY(elapsed_ns(&cuda->timing, TSR_CUDA_PART_BEGIN, &part_ns));
    for (int i = 0; i < n_waits; i++) {
        uint64_t ns;
        TSR_TRY(elapsed_ns(&cuda->timing, TSR_CUDA_WAITS + 2 * i, &ns));
        waits_ns += ns;
    }
    clock->program_ns += part_ns;
    clock->collective_ns += TSR_MIN(waits_ns, part_ns);
out:
    return status;
}
