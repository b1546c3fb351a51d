/* tsr as one of several processes of an MPI job (--mpi): the transport between them, and who speaks. */
#ifndef TSR_TOOLS_PROCESSES_H
#define TSR_TOOLS_PROCESSES_H

#include <stdbool.h>
#include <stdio.h>

#include <tsr/transport.h>

typedef struct tool_processes {
    tsr_transport *transport; /* NULL: this process is alone */
    FILE *log;                /* where this one's warnings go; NULL: stderr */
} tool_processes;

/* Join the others, where `wanted`; blocks until all have come. All but the first fall silent: they print the
 * same as it does. False after saying why not, naming `command`. */
bool tool_processes_join(const char *command, bool wanted, tool_processes *processes_out);
void tool_processes_leave(tool_processes *processes);

#endif
