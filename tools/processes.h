/* tsr as one of several processes of an MPI job (--mpi): the transport between them, and the process that
 * prints. */
#ifndef TSR_TOOLS_PROCESSES_H
#define TSR_TOOLS_PROCESSES_H

#include <stdbool.h>
#include <stdio.h>

#include <tsr/transport.h>

typedef struct tool_processes {
    tsr_transport *transport; /* NULL: single process */
    FILE *log;                /* destination of this process's warnings; NULL: stderr */
} tool_processes;

/* Join the other processes if `wanted`; blocks until all have arrived. Output of all but the first is
 * suppressed, since it is the same. False after an error message that names `command`. */
bool tool_processes_join(const char *command, bool wanted, tool_processes *processes_out);

/* Replace bytes[n] by those of the first process. False after an error message that names `command`. */
bool tool_processes_share(const char *command, const tool_processes *processes, void *bytes, size_t n);

void tool_processes_leave(tool_processes *processes);

#endif
