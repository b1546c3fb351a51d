/* Where a device's time goes: counters of its time in collectives, and spans for a trace (tsr/trace.h).
 *
 * The thread that runs a device's programs writes here while a program runs, other threads while none does;
 * of a host device it is the first thread of the team, or, between two barriers, the one that runs ops for
 * the whole team. Only copies of a GPU may be noted by the calling thread at the same time: a place for a
 * span is taken atomically. */
#ifndef TSR_CORE_TIME_CLOCK_H
#define TSR_CORE_TIME_CLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/trace.h>

#include "core/op.h"

/* The spans of a device. */
typedef struct tsr_trace {
    uint64_t start_ns; /* tsr_clock_ns() at the start of the trace */
    size_t capacity;
    _Atomic size_t n; /* spans so far, dropped ones included */
    tsr_span *spans;  /* [capacity] */
} tsr_trace;

typedef struct tsr_device_clock {
    bool on;                /* the counters are wanted */
    bool timed;             /* GPUs run programs with events, which tell how long they work and wait */
    uint64_t program_ns;    /* in programs; of a GPU: in timed ones */
    uint64_t collective_ns; /* in all-reduces, all-gathers and transfers; in a GPU's stream if timed */
    uint64_t wait_ns;       /* part of collective_ns before all others had arrived */
    tsr_trace *trace;       /* NULL: no trace is recorded */
    const tsr_op *op;       /* the collective that runs */
    uint64_t begin_ns;      /* of the collective that runs */
    uint64_t since_ns;      /* end of its last wait; begin_ns before */
    uint64_t arrived_ns;    /* when the first thread of a host device's team has reached the barrier */
} tsr_device_clock;

static inline bool tsr_clock_runs(const tsr_device_clock *clock)
{
    return clock->on || clock->trace;
}

/* Store a span, with times of tsr_clock_ns(); there must be a trace. */
void tsr_trace_add(tsr_trace *trace, tsr_span_kind kind, const char *op, const char *name, uint64_t begin_ns,
                   uint64_t end_ns);
void tsr_trace_add_op(tsr_trace *trace, tsr_span_kind kind, const tsr_op *op, uint64_t begin_ns,
                      uint64_t end_ns);

/* Around a collective, on a clock that runs. A wait is noted by the barrier inside: the first wait counts
 * from the beginning of the collective, and what is no wait is reducing. */
void tsr_clock_begin_collective(tsr_device_clock *clock, const tsr_op *op);
void tsr_clock_note_wait(tsr_device_clock *clock, uint64_t begin_ns);
void tsr_clock_end_collective(tsr_device_clock *clock);

#endif
