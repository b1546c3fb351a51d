/* tsr as one of several processes of an MPI job (--mpi): the transport between them, and the process that
 * prints. */
#ifndef TSR_TOOLS_PROCESSES_H
#define TSR_TOOLS_PROCESSES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tsr/transport.h>

typedef struct tool_processes {
    const char *command;      /* for messages */
    tsr_transport *transport; /* NULL: single process */
    FILE *log;                /* destination of this process's warnings; NULL: stderr */
    uint64_t gone;            /* one bit for each process that is left out */
} tool_processes;

/* How the others are joined. */
typedef enum tool_joining {
    TOOL_ALONE,    /* not at all */
    TOOL_TOGETHER, /* all end with the first that ends */
    TOOL_SURVIVING /* they can go on without one that ends */
} tool_joining;

/* Join the other processes; blocks until all have arrived. Output of all but the first is suppressed, since
 * it is the same. False after an error message that names `command`. */
bool tool_processes_join(const char *command, tool_joining joining, tool_processes *processes_out);

/* No message goes to this process, or comes from it, any more. */
void tool_processes_leave_out(tool_processes *processes, int rank);

int tool_processes_count(const tool_processes *processes); /* 1: a single process, too */
int tool_processes_rank(const tool_processes *processes);  /* 0: a single process, too */

/* Whether this process is the one that reads, prints and writes files; a single process is. */
bool tool_processes_is_first(const tool_processes *processes);

/* Replace bytes[n] by those of process `root`, however long that process takes; no effect in a single
 * process. Called in all processes. False after an error message. */
bool tool_processes_share(const tool_processes *processes, int root, void *bytes, size_t n);

/* The same for all processes: each has filled its own part of parts[count][n]; then all are filled. */
bool tool_processes_gather(const tool_processes *processes, void *parts, size_t n);

/* Replace an outcome and a text, NULL for none, by those of the first process. The text is the caller's to
 * free, in all processes; what *text was before in the others is freed. False after an error message; *text
 * can be freed then, too. */
bool tool_processes_share_text(const tool_processes *processes, int *outcome, char **text, size_t *n);

/* Write errors in this process, too: the one that writes them may be lost. */
void tool_processes_speak(void);

void tool_processes_leave(tool_processes *processes);

#endif
