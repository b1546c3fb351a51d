/* The heartbeat between the processes of a runtime (tsr/transport.h): which of them are still there.
 *
 * A thread of each process sends a small message to every other process about once a second, by the
 * transport's point-to-point operations under a tag of their own. So a process that loads for minutes is
 * told from one that ended or was stopped: from the latter nothing comes. A process from which nothing came
 * for the limit is lost, and with it the runtime, with its name. Time for which this process itself was
 * stopped does not count.
 *
 * A process that loses the runtime sends the reason as its last message. One that closes the runtime says so
 * in its last message, and every process answers with a last message of its own. So closing leaves no
 * operation in flight, and waits for the threads of the others only, not for their calls. */
#ifndef TSR_CORE_WAIT_HEARTBEAT_H
#define TSR_CORE_WAIT_HEARTBEAT_H

#include <tsr/transport.h>

#include "core/status.h"

typedef struct tsr_heartbeat tsr_heartbeat;

/* Called by the heartbeat's thread when the runtime is lost, with a sentence that names a process. It must
 * call tsr_heartbeat_lose(), possibly with an earlier reason. */
typedef void (*tsr_heartbeat_loser)(void *user, const char *reason);

/* Start the thread, which does nothing yet. `processes`: one bit for each that has a heartbeat, the same in
 * all of them, as is `tag`. limit_ns: the longest silence of a process; UINT64_MAX: none. TSR_ERR_MEMORY. */
tsr_status tsr_heartbeat_create(const tsr_transport *transport, uint64_t processes, int tag,
                                uint64_t limit_ns, tsr_heartbeat_loser lose, void *user,
                                tsr_heartbeat **heartbeat_out);

/* All processes have arrived: send and expect messages. */
void tsr_heartbeat_begin(tsr_heartbeat *heartbeat);

/* The runtime is lost: the thread tells the others and ends. NULL: a function of the transport failed, so
 * none is called any more. The first reason counts. Any thread. */
void tsr_heartbeat_lose(tsr_heartbeat *heartbeat, const char *reason);

/* End the thread: exchange last messages with the other processes, for the limit at most. Not in a child
 * process, by fork(), which has no thread. */
void tsr_heartbeat_end(tsr_heartbeat *heartbeat);

/* Free the memory. NULL is fine. */
void tsr_heartbeat_destroy(tsr_heartbeat *heartbeat);

/* A thread of this process begins or ends to wait for other processes. */
void tsr_heartbeat_wait(tsr_heartbeat *heartbeat, bool begins);

/* Whether a process has closed the runtime longer ago than the limit: what it began before has arrived, so
 * waiting for it is in vain. */
bool tsr_heartbeat_has_left(const tsr_heartbeat *heartbeat);

/* After the thread has ended (tsr_heartbeat_end()): the processes that were not silent for the limit. */
uint64_t tsr_heartbeat_present(const tsr_heartbeat *heartbeat);

/* Write the processes that another one, which waits, may be waiting for: those that do not wait themselves,
 * are silent or have left. "process 1 on alpha and process 2 on beta (silent for 3 s)"; "another process" if
 * none is known. */
void tsr_heartbeat_describe_missing(tsr_heartbeat *heartbeat, char *text, size_t bytes);

#endif
