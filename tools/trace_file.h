/* --trace FILE: a trace of the runtime (tsr/trace.h) as trace events, which ui.perfetto.dev and
 * chrome://tracing show. Each device is a process with a thread of its programs and one of its copies; the
 * phases of the command (a prompt, a token, a test) are a process before them. Of several processes (--mpi)
 * the first writes the file, with the spans of all by its own clock (trace_processes.h). */
#ifndef TSR_TOOLS_TRACE_FILE_H
#define TSR_TOOLS_TRACE_FILE_H

#include <tsr/trace.h>

#include "trace_processes.h"

typedef struct tool_trace_phase {
    char name[64];
    uint64_t begin_ns, end_ns;
} tool_trace_phase;

typedef struct tool_trace {
    const char *command, *path; /* path NULL: no trace is wanted, and every call does nothing */
    const tool_processes *processes;
    tsr_runtime *rt;                            /* NULL: not begun */
    tool_trace_part parts[TOOL_MOST_PROCESSES]; /* of the other processes, in the first */
    bool is_alone;                              /* the others are lost: their spans are left out */
    int failed_process, failed_errno;           /* the process that could not store its events; 0: none */
    tool_trace_phase *phases;
    size_t n_phases, capacity;
} tool_trace;

/* Before anything is opened, in the process that will write the file: whether it can be written. TOOL_GO_ON,
 * or an exit code after an error message. */
int tool_trace_check(const tool_trace *trace);

/* Record from now on. Every process makes this call, and that of the end. */
tsr_status tool_trace_begin(tool_trace *trace, tsr_runtime *rt);

/* Around a phase. A phase without room is left out of the file. */
uint64_t tool_trace_now(const tool_trace *trace);
void tool_trace_add_phase(tool_trace *trace, uint64_t begin_ns, const char *name);

/* End the trace, if it was begun, and write the file; `quiet`: without a line on stderr about it.
 * TOOL_EXIT_OK, or an exit code after an error message. */
int tool_trace_end(tool_trace *trace, bool quiet);

#endif
