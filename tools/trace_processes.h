/* The parts of a trace that other processes have (--trace with --mpi). The first process asks, the others
 * answer: for the time of their clock, when a trace begins and when it ends, and for their events as text.
 *
 * A clock is compared by messages that go to and fro: half a round trip is the most by which the difference
 * is wrong, and the shortest of many round trips counts. Clocks of two machines drift apart, so times between
 * the two comparisons are moved by an amount between the two differences.
 *
 *     first:  for each other process   tool_trace_ask_clock(), tool_trace_ask_events(), tool_trace_release()
 *     others: tool_trace_answer()      until they are released
 *
 * The calls return false after an error message; messages go through tool_processes_send(). */
#ifndef TSR_TOOLS_TRACE_PROCESSES_H
#define TSR_TOOLS_TRACE_PROCESSES_H

#include <stdio.h>

#include <tsr/trace.h>

#include "processes.h"

/* From times of a process to those of the first: t + offset_ns + drift t. Zeros: the first process. */
typedef struct tool_trace_shift {
    double offset_ns, drift;
} tool_trace_shift;

/* What the first process knows of another. */
typedef struct tool_trace_part {
    struct {
        int64_t at_ns, offset_ns; /* by the clock of the process; to be added to it */
        uint64_t error_ns;        /* of offset_ns, at most */
    } clock[2];                   /* when the trace begins, and when it ends */
    uint64_t n_spans, n_dropped;  /* as tool_trace_count(); with its events */
} tool_trace_part;

/* Spans that are stored, and spans without room, of all devices of this process. */
void tool_trace_count(const tsr_runtime *rt, uint64_t *n_out, uint64_t *n_dropped_out);

bool tool_trace_ask_clock(const tool_processes *processes, int rank, const tsr_runtime *rt, int when,
                          tool_trace_part *part);

/* Copy the events to `out`; an error of `out` is the caller's to find. *error_out: errno of the other
 * process, which could not store them; 0: it could. */
bool tool_trace_ask_events(const tool_processes *processes, int rank, tool_trace_part *part, FILE *out,
                           int *error_out);

bool tool_trace_release(const tool_processes *processes, int rank);

/* Write the events of this process. False, with errno, on failure. */
typedef bool tool_trace_write(FILE *out, const tsr_runtime *rt, const tool_trace_shift *shift, int rank);

bool tool_trace_answer(const tool_processes *processes, const tsr_runtime *rt, tool_trace_write *write);

#endif
