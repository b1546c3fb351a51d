/* Traces: giving devices room for spans, and reading them. Devices store spans while programs run, so a trace
 * is attached and detached only when no program runs. */
#include <tsr/trace.h>

#include "core/event.h"
#include "core/mem.h"
#include "core/runtime.h"
#include "core/status.h"
#include "runtime/trace.h"

const char *tsr_span_kind_name(tsr_span_kind kind)
{
    switch (kind) {
    case TSR_SPAN_COMPUTE:
        return "compute";
    case TSR_SPAN_REDUCE:
        return "reduce";
    case TSR_SPAN_WAIT:
        return "wait";
    case TSR_SPAN_COPY:
        return "copy";
    }
    return "?";
}

/* A program's failure is reported to its owner; here only its end matters. */
static void wait_idle(tsr_device *device)
{
    (void)!device->ops->synchronize(device, 0);
}

/* The spans of a device that a thread may still use are left behind, as the rest of its memory. */
void tsr_runtime_drop_trace(tsr_runtime *rt)
{
    for (int d = 0; rt->devices && d < rt->n_devices; d++) {
        tsr_device *device = rt->devices[d];
        if (!device || !device->clock.trace || tsr_watch_has_abandoned(rt->watch))
            continue;
        tsr_mem_free(device->clock.trace->spans);
        tsr_mem_free(device->clock.trace);
        device->clock.trace = NULL;
    }
}

void tsr_trace_stop(tsr_runtime *rt)
{
    for (int d = 0; d < rt->n_devices; d++)
        wait_idle(rt->devices[d]);
    tsr_runtime_drop_trace(rt);
}

static tsr_status add_trace(tsr_device *device, size_t n_spans)
{
    tsr_status status = TSR_OK;
    tsr_trace *trace = NULL;
    TSR_TRY(TSR_NEW(&trace, "a trace"));
    trace->capacity = n_spans;
    TSR_TRY(tsr_mem_array(n_spans, sizeof *trace->spans, "the spans of a trace", &trace->spans));
    device->clock.trace = trace;
    trace = NULL;
out:
    tsr_mem_free(trace);
    return status;
}

static tsr_status add_traces(tsr_runtime *rt, size_t n_spans)
{
    tsr_status status = TSR_OK;
    if (n_spans == 0)
        return tsr_fail(TSR_ERR_INVALID, "tsr_trace_start: n_spans is 0; give room for at least one span");
    TSR_TRY(tsr_watch_check(rt->watch)); /* a thread of a lost runtime may still use the last trace */
    for (int d = 0; d < rt->n_devices; d++)
        TSR_TRY(add_trace(rt->devices[d], n_spans));
out:
    return status;
}

/* Times begin behind the exchange, which ends in all processes at about the same moment. */
tsr_status tsr_trace_start(tsr_runtime *rt, size_t n_spans)
{
    tsr_trace_stop(rt);
    const tsr_status status = tsr_processes_agree(rt->processes, add_traces(rt, n_spans), "tsr_trace_start");
    const uint64_t start_ns = tsr_clock_ns();
    if (status != TSR_OK)
        tsr_runtime_drop_trace(rt);
    for (int d = 0; d < rt->n_devices && status == TSR_OK; d++)
        rt->devices[d]->clock.trace->start_ns = start_ns;
    return status;
}

uint64_t tsr_trace_now(const tsr_runtime *rt)
{
    const tsr_trace *trace = rt->devices[0]->clock.trace;
    return trace ? tsr_clock_ns() - trace->start_ns : 0;
}

tsr_status tsr_trace_read(const tsr_runtime *rt, int device, tsr_device_trace *trace_out)
{
    if (device < 0 || device >= rt->n_devices)
        return tsr_fail(TSR_ERR_INVALID, "device %d does not exist; the runtime has %d", device,
                        rt->n_devices);
    wait_idle(rt->devices[device]);
    tsr_trace *trace = rt->devices[device]->clock.trace;
    if (!trace)
        return tsr_fail(TSR_ERR_INVALID, "tsr_trace_read: no trace is recorded; call tsr_trace_start()");
    const size_t n = atomic_load(&trace->n), n_stored = TSR_MIN(n, trace->capacity);
    *trace_out = (tsr_device_trace){.spans = trace->spans, .n_spans = n_stored, .n_dropped = n - n_stored};
    return TSR_OK;
}
