/* A group of the transport that is made by a thread of its own.
 *
 * Making a group blocks until all its members have arrived (tsr/transport.h): MPI has no call that only
 * starts it. A member that is stopped just then would be waited for without a limit. So the call has a
 * thread, and the wait for the thread ends when the processes are lost. Then the thread is left behind, with
 * this memory, since the call may still return.
 *
 *     if (tsr_making_start(m, transport, ranks, n_ranks, tag)) {
 *         while (!tsr_making_is_done(m) && ...)
 *         problem = done ? tsr_making_finish(m, &group) : ...;       (otherwise: tsr_making_abandon(m))
 *     } */
#ifndef TSR_CORE_WAIT_MAKING_H
#define TSR_CORE_WAIT_MAKING_H

#include <pthread.h>
#include <stdatomic.h>

#include <tsr/transport.h>

typedef struct tsr_making {
    tsr_transport transport;
    int ranks[64], n_ranks, tag;
    void *group;
    char problem[512]; /* "": none */
    pthread_t thread;
    _Atomic bool is_done;
} tsr_making;

/* False: the system refused a thread. */
bool tsr_making_start(tsr_making *making, const tsr_transport *transport, const int *ranks, int n_ranks,
                      int tag);

bool tsr_making_is_done(const tsr_making *making);

/* Of one that is done: the transport's sentence, in the memory of `making`, or NULL and the group. */
const char *tsr_making_finish(tsr_making *making, void **group_out);

/* `making` must never be freed. */
void tsr_making_abandon(tsr_making *making);

#endif
