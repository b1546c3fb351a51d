/* The processes of a runtime that has several (tsr/transport.h): how they stay in step.
 *
 * Every process makes the same calls and takes the same decisions, so hardly anything has to be said. What
 * can differ is whether something failed, and what is known in one process only. So processes agree on the
 * outcome of every call that may fail in one of them, at its end; until then each goes on by itself, a
 * failure simply returns. And they share what one of them knows: free memory, bytes of a device's memory.
 * Both start with the same exchange, so a process that is ahead and shares something finds out that another
 * has failed and has come to the end of the call: it fails as well, with the other's sentence, and does not
 * ask again at that end. What may fail without the call failing is therefore shared as a value.
 *
 * A runtime of one process has none of this: all functions take NULL for it and do nothing.
 *
 * Threads: those that exchange (agree, share) are called by one thread at a time, that of the runtime's user.
 * tsr_processes_wait() and tsr_processes_lose() are called by devices' threads, too. */
#ifndef TSR_CORE_PROCESSES_H
#define TSR_CORE_PROCESSES_H

#include <stdatomic.h>

#include <tsr/transport.h>

#include "core/status.h"

typedef struct tsr_processes tsr_processes;

/* `transport` is copied, what it leads to is not. timeout_ns: the longest that another process is waited for;
 * 0: for ever. Blocks until every process has come. TSR_ERR_INVALID for a transport that makes no sense,
 * TSR_ERR_MEMORY, TSR_ERR_DEVICE with the transport's words. */
tsr_status tsr_processes_create(const tsr_transport *transport, uint64_t timeout_ns,
                                tsr_processes **processes_out);
void tsr_processes_destroy(tsr_processes *processes); /* NULL is fine */

int tsr_processes_rank(const tsr_processes *processes);
int tsr_processes_count(const tsr_processes *processes);

/* The transport, for those who start operations of their own; what they return goes to tsr_processes_lose()
 * or, what is started, to tsr_processes_wait(). */
const tsr_transport *tsr_processes_transport(const tsr_processes *processes);

/* The end of a call that came to `mine` here: TSR_OK if it did everywhere, else the failure of the first
 * process that failed, with its sentence. `what` names the call, and is the same in every process: where it
 * is not, they are out of step and lost. */
tsr_status tsr_processes_agree(tsr_processes *processes, tsr_status mine, const char *what);

/* The same of a call that must have the same arguments everywhere: `mark` is a checksum of them, where it
 * came to TSR_OK. Where marks differ, all fail with TSR_ERR_INVALID, and nothing is lost. */
tsr_status tsr_processes_agree_on(tsr_processes *processes, tsr_status mine, const char *what, uint64_t mark);

/* `height` rows of `width` bytes of process `root`, where getting them came to `mine`, for all processes. */
tsr_status tsr_processes_share(tsr_processes *processes, int root, tsr_status mine, void *rows, size_t stride,
                               size_t width, size_t height, const char *what);

/* Wait for an operation that was started. False if it, or whatever else, lost the processes, or `*cancelled`
 * became true (NULL: nothing cancels); then the operation is still under way, for ever. */
bool tsr_processes_wait(tsr_processes *processes, tsr_transfer *transfer, const _Atomic bool *cancelled);

/* From now on nothing is exchanged any more; the first reason stays. Any thread. */
void tsr_processes_lose(tsr_processes *processes, const char *reason);

/* TSR_OK, or TSR_ERR_DEVICE_LOST with the reason. Any thread. */
tsr_status tsr_processes_check(const tsr_processes *processes);
bool tsr_processes_are_lost(const tsr_processes *processes);

#endif
