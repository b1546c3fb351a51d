/* Counting times and storing spans (clock.h). */
#include "core/time/clock.h"

#include <stdio.h>

#include "core/event.h"

void tsr_trace_add(tsr_trace *trace, tsr_span_kind kind, const char *op, const char *name, uint64_t begin_ns,
                   uint64_t end_ns)
{
    const size_t at = atomic_fetch_add_explicit(&trace->n, 1, memory_order_relaxed);
    if (at >= trace->capacity)
        return;
    tsr_span *span = &trace->spans[at];
    span->begin_ns = begin_ns - trace->start_ns;
    span->end_ns = end_ns - trace->start_ns;
    span->op = op;
    span->kind = kind;
    snprintf(span->name, sizeof span->name, "%s", name ? name : "");
}

void tsr_trace_add_op(tsr_trace *trace, tsr_span_kind kind, const tsr_op *op, uint64_t begin_ns,
                      uint64_t end_ns)
{
    tsr_trace_add(trace, kind, tsr_op_kind_name(op->kind), op->name, begin_ns, end_ns);
}

void tsr_clock_begin_collective(tsr_device_clock *clock, const tsr_op *op)
{
    clock->op = op;
    clock->begin_ns = clock->since_ns = tsr_clock_ns();
}

/* The time since the last wait, if there was one. */
static void add_reducing(tsr_device_clock *clock, uint64_t end_ns)
{
    if (clock->trace && end_ns > clock->since_ns)
        tsr_trace_add_op(clock->trace, TSR_SPAN_REDUCE, clock->op, clock->since_ns, end_ns);
}

void tsr_clock_note_wait(tsr_device_clock *clock, uint64_t begin_ns)
{
    const uint64_t end_ns = tsr_clock_ns();
    if (clock->since_ns == clock->begin_ns)
        begin_ns = clock->begin_ns;
    else
        add_reducing(clock, begin_ns);
    if (clock->trace)
        tsr_trace_add_op(clock->trace, TSR_SPAN_WAIT, clock->op, begin_ns, end_ns);
    clock->wait_ns += clock->on ? end_ns - begin_ns : 0;
    clock->since_ns = end_ns;
}

void tsr_clock_end_collective(tsr_device_clock *clock)
{
    const uint64_t end_ns = tsr_clock_ns();
    add_reducing(clock, end_ns);
    clock->collective_ns += clock->on ? end_ns - clock->begin_ns : 0;
}
