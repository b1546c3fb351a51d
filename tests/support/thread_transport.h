/* Processes that are threads of a test, or forked, and a transport between them (tsr/transport.h): what a
 * runtime of several processes does is tested without MPI, with operations that end in a random order, fail
 * when they are told to, or never end because a process is gone. It checks what a transport may expect:
 * operations of a group agree on kind, size and root.
 *
 * A test's assertions belong to its main thread, so bodies note what they see and the test asserts it after
 * processes_run(). */
#ifndef TSR_TESTS_THREAD_TRANSPORT_H
#define TSR_TESTS_THREAD_TRANSPORT_H

#include <tsr/status.h>
#include <tsr/transport.h>

enum { PROCESSES_MAX = 8 };

typedef struct process_hub process_hub;

/* One of them, as its body sees it. */
typedef struct process {
    int rank, n_ranks;
    process_hub *hub;
    tsr_transport transport;
    void *user;     /* the test's */
    int64_t n_sent; /* messages to other processes, without the heartbeat's */
    int64_t sent_bytes;
    tsr_status status; /* what the body notes */
    char text[512];
} process;

/* When things go wrong. All zeros: they do not. */
typedef struct process_faults {
    int rank;        /* this process's */
    int64_t fail_at; /* n-th operation fails, counted from 1; and all after it */
    int64_t gone_at; /* from the n-th on it starts nothing: others wait for it in vain */
} process_faults;

/* Run `body` in n processes at once and wait for all of them; processes[n] are what they left. Fails the test
 * if a group or an operation is left over in a process that met no fault. Returns how many operations the
 * process of `faults` (NULL: process 0) started. */
int64_t processes_run(int n, void (*body)(process *self), void *user, const process_faults *faults,
                      process *processes);

/* The same in forked processes, of which one may be killed; endings[n] as waitpid() has them. `user` and what
 * it points to are copies in each process, except memory that is shared (MAP_SHARED). A process that does not
 * note its status has TSR_ERR_DEVICE_LOST. */
void processes_fork(int n, void (*body)(process *self), void *user, process *processes, int *endings);

/* From now on, or after n more operations, nothing that this process starts ends, as if it had ended or been
 * stopped. The heartbeat's operations do not count. */
void process_vanish(process *self);
void process_vanish_after(process *self, int64_t n);

/* Note the status and, if it is none, the library's sentence. */
void process_note(process *self, tsr_status status);

#endif
