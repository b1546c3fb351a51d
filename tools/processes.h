/* tsr as one of several processes of an MPI job (--mpi): the transport between them, and the process that
 * prints.
 *
 * Processes join in two steps. Before anything is read, main() looks for --mpi and connects the processes;
 * output of all but the first is suppressed from then on, since it is the same. What each then does alone,
 * reading options and files and discovering its machine, may fail in one of them. All processes, those that
 * have failed as well, come to one exchange, and end with the message and the exit code of the first that
 * failed. Afterwards failures are reported by the library (tsr/transport.h), or shared as below. */
#ifndef TSR_TOOLS_PROCESSES_H
#define TSR_TOOLS_PROCESSES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tsr/transport.h>

enum { TOOL_MOST_PROCESSES = 64 }; /* of a runtime */

typedef struct tool_processes {
    const char *command;      /* for messages */
    tsr_transport *transport; /* NULL: single process */
    uint64_t gone;            /* one bit for each process that is left out */
} tool_processes;

/* First and last in main(). With --survive in `argv` the processes can go on without one that ends. The end
 * returns the exit code of the process, which is `code` unless another process failed before all had joined;
 * it blocks until all have arrived. */
void tool_processes_begin(int argc, char **argv);
int tool_processes_end(const char *command, int code);

/* Join the other processes if `wanted`; blocks until each has arrived, or has failed before. TOOL_GO_ON, or
 * an exit code after a message of one process. */
int tool_processes_join(const char *command, bool wanted, tool_processes *processes_out);

/* Destination of this process's warnings. */
FILE *tool_processes_log(void);

/* No message goes to this process, or comes from it, any more. */
void tool_processes_leave_out(tool_processes *processes, int rank);
bool tool_processes_is_gone(const tool_processes *processes, int rank);

int tool_processes_count(const tool_processes *processes); /* 1: a single process, too */
int tool_processes_rank(const tool_processes *processes);  /* 0: a single process, too */

/* Whether this process is the one that reads, prints and writes files; a single process is. */
bool tool_processes_is_first(const tool_processes *processes);

/* Replace bytes[n] by those of process `root`, however long that process takes; no effect in a single
 * process. Called in all processes. False after an error message. */
bool tool_processes_share(const tool_processes *processes, int root, void *bytes, size_t n);

/* A message from this process to another, however long that takes to receive it, and the other end. False
 * after an error message. */
bool tool_processes_send(const tool_processes *processes, int to, const void *bytes, size_t n);
bool tool_processes_receive(const tool_processes *processes, int from, void *bytes, size_t n);

/* tool_processes_share() for all processes: each has filled its own part of parts[count][n]; then all are
 * filled. */
bool tool_processes_gather(const tool_processes *processes, void *parts, size_t n);

/* Replace an outcome and a text, NULL for none, by those of the first process. The text is the caller's to
 * free, in all processes; what *text was before in the others is freed. False after an error message; *text
 * can be freed then, too. */
bool tool_processes_share_text(const tool_processes *processes, int *outcome, char **text, size_t *n);

/* Write errors in this process, too: the one that writes them may be lost. */
void tool_processes_speak(void);

#endif
