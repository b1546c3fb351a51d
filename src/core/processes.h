/* Agreement between the processes of a runtime that has several (tsr/transport.h).
 *
 * Every process makes the same calls and takes the same decisions, so little is exchanged. Two things can
 * differ: whether something failed, and data of one process. So processes agree on the outcome of every
 * call that may fail in one of them, at its end; until then each continues by itself, and a failure simply
 * returns. And they share data of one process: free memory, bytes of a device's memory. Both start with
 * the same exchange. So a process that shares something while another has failed, and is at the end of the
 * call, fails as well, with the other's sentence, and skips the exchange at that end. An outcome that does
 * not fail the call is therefore shared as a value.
 *
 * A runtime of one process passes NULL: all functions then do nothing.
 *
 * Threads: functions that exchange (agree, share) are called by one thread at a time, that of the
 * runtime's user. tsr_processes_wait() and tsr_processes_lose() are called by devices' threads, too, and a
 * thread of the processes' own sends and receives (core/wait/heartbeat.h). */
#ifndef TSR_CORE_PROCESSES_H
#define TSR_CORE_PROCESSES_H

#include <stdatomic.h>

#include <tsr/transport.h>

#include "core/status.h"
#include "core/wait/watch.h"

typedef struct tsr_processes tsr_processes;

/* `transport` is copied, the memory it points to is not. timeout_ns: the longest silence of another process,
 * and the longest wait for one in a step; 0: 60 s, see tsr_processes_step_limit_ns(). `watch`: of the
 * runtime, may be NULL. `mine`: the outcome, with its sentence, of what this
 * process did before: a failure fails all processes, so that no process waits for one that cannot join.
 * Blocks until every process has arrived. TSR_ERR_INVALID for an inconsistent transport, TSR_ERR_MEMORY,
 * TSR_ERR_DEVICE with the transport's words. */
tsr_status tsr_processes_create(const tsr_transport *transport, uint64_t timeout_ns, tsr_watch *watch,
                                tsr_status mine, tsr_processes **processes_out);
void tsr_processes_destroy(tsr_processes *processes); /* NULL is fine */

/* End the heartbeat: the transport has no thread of this library any more. TSR_ERR_DEVICE_LOST with the
 * reason if the processes are lost only now. NULL is fine. */
tsr_status tsr_processes_close(tsr_processes *processes);

int tsr_processes_rank(const tsr_processes *processes);
int tsr_processes_count(const tsr_processes *processes); /* those that are gone, too */

/* The others went on without it. Sharing what it has, as `root`, is no exchange: the rows stay the same. */
bool tsr_processes_is_gone(const tsr_processes *processes, int rank);
int tsr_processes_first(const tsr_processes *processes); /* the first that is not gone */

/* Tags of the transport. Those of transfers between devices are below TSR_TAG_HEARTBEAT. Processes that went
 * on after a loss use others, because messages from before may still be in flight. */
enum { TSR_TAG_HEARTBEAT = 4096, TSR_TAG_SURVIVORS, TSR_TAGS = 4352, TSR_EPOCHS = 7 };
int tsr_processes_tag(const tsr_processes *processes, int tag);

/* The transport, for callers that start their own operations. Their failures go to tsr_processes_break(),
 * started operations to tsr_processes_wait(). */
const tsr_transport *tsr_processes_transport(const tsr_processes *processes);

/* Ends a call whose local outcome is `mine`: TSR_OK if every process succeeded, otherwise the failure of
 * the first process that failed, with its sentence. `what` names the call and must be the same in every
 * process; otherwise the processes are out of step and lost. */
tsr_status tsr_processes_agree(tsr_processes *processes, tsr_status mine, const char *what);

/* As tsr_processes_agree(), for a call that must have the same arguments everywhere: `mark` is a checksum
 * of them, used if `mine` is TSR_OK. Where marks differ, all fail with TSR_ERR_INVALID, and nothing is
 * lost. */
tsr_status tsr_processes_agree_on(tsr_processes *processes, tsr_status mine, const char *what, uint64_t mark);

/* Share `height` rows of `width` bytes of process `root` with all processes; `mine` is the outcome of
 * getting them. Where sizes differ, all fail with TSR_ERR_INVALID. */
tsr_status tsr_processes_share(tsr_processes *processes, int root, tsr_status mine, void *rows, size_t stride,
                               size_t width, size_t height, const char *what);

/* Whether something that a call can do without has worked in every process: TSR_OK, or the failure of
 * the first process in which it has not, with its sentence, the same in all. The call may go on. */
tsr_status tsr_processes_try(tsr_processes *processes, tsr_status mine, const char *what);

/* Ends a call that shares, and does not agree on its outcome: another process's failure of this call, which
 * sharing has reported, does not belong to the next call. Returns `mine`. */
tsr_status tsr_processes_end(tsr_processes *processes, tsr_status mine);

/* Wait for an operation that was started. False if the processes were lost or `*cancelled` became true
 * (NULL: not cancellable); then the operation stays in flight indefinitely. */
bool tsr_processes_wait(tsr_processes *processes, tsr_transfer *transfer, const _Atomic bool *cancelled);

/* The longest wait for another process inside a step: transport_timeout_ns, or where none was given 60 s
 * and not less than the stall timeout. A step is what runs between two calls of tsr_processes_step(),
 * and may have steps as its parts; other calls take as long as the slowest process needs to load or to
 * measure, while its heartbeat (core/wait/heartbeat.h) goes on. */
uint64_t tsr_processes_step_limit_ns(const tsr_processes *processes);
void tsr_processes_step(tsr_processes *processes, bool begins);

/* Stop all further exchanges, here and in the other processes; the first reason is kept. Any thread. */
void tsr_processes_lose(tsr_processes *processes, const char *reason);

/* The same after a function of the transport failed: no other is called. */
void tsr_processes_break(tsr_processes *processes, const char *problem);

/* After they were lost: go on with those that are still there (core/wait/survivors.h), at most TSR_EPOCHS - 1
 * times. Called in all of these, with no thread in a call. `said`: bits; *said_by_all_out has those of any
 * process. Groups of before must be left first. TSR_ERR_UNSUPPORTED if the transport cannot,
 * TSR_ERR_DEVICE_LOST if the others go on without this process or if a function of the transport has failed;
 * then they stay lost. */
tsr_status tsr_processes_go_on(tsr_processes *processes, uint64_t said, uint64_t *said_by_all_out);

bool tsr_processes_are_lost(const tsr_processes *processes); /* any thread */

/* TSR_OK, or TSR_ERR_DEVICE_LOST with the reason. Any thread. */
tsr_status tsr_processes_check(const tsr_processes *processes);

/* Make a group of the transport, of ranks[n_ranks], in the processes of it, which have been in one exchange
 * just before. A failure loses the processes; so does one that does not arrive: one that is stopped by its
 * heartbeat, another after the limit of a step. */
tsr_status tsr_processes_make_group(tsr_processes *processes, const int *ranks, int n_ranks, int tag,
                                    void **group_out);

/* Destroy a group of the transport; NULL is fine. In a child process nothing is done: the group is the
 * parent's, and leaving it may wait for the other processes. */
void tsr_processes_leave(tsr_processes *processes, void *group);

#endif
