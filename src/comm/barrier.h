/* The barrier between the threads of several devices of one process: the synchronisation of collectives,
 * without their arithmetic.
 *
 * Each rank (a device, with a team of threads) has a phase number that only grows. The last thread of its
 * team to arrive increments it, which publishes everything the team wrote before. A rank waits until the
 * phases of the others have reached its own. A rank increments its phase only after it has finished the
 * previous collective. So once a rank has passed collective k + 1, no rank reads the buffers of collective
 * k any more, and graph/lower/slots.c reuses them without a second barrier. After a timeout the phases
 * identify the ranks that did not arrive.
 *
 *     static bool all_reduce(const tsr_participant *me) { return tsr_barrier_wait(me, participants) && ...; }
 * */
#ifndef TSR_COMM_BARRIER_H
#define TSR_COMM_BARRIER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/device.h"
#include "core/device_set.h"
#include "core/event.h"

/* A phase is written by one rank and read by the others, so it has a cache line of its own; the counter
 * shared by the threads of one team is on the next. */
typedef struct tsr_barrier_rank {
    _Atomic uint64_t phase;
    unsigned char gap_0[56];
    _Atomic int arrived; /* threads of this rank's team, in the current phase */
    unsigned char gap_1[60];
} tsr_barrier_rank;

typedef struct tsr_barrier {
    tsr_barrier_rank *ranks; /* [n_ranks] */
    int n_ranks;
    const _Atomic bool *aborted; /* of the communicator: ends all waits */
    unsigned char gap[64];
    tsr_event raised; /* notified when a phase rises */
} tsr_barrier;

/* The caller: one thread of one rank. */
typedef struct tsr_participant {
    tsr_barrier *barrier;
    int rank, thread, n_threads, polls;
    tsr_device_clock *clock; /* NULL: time is not counted, or not by this thread */
} tsr_participant;

/* Between ranks 0..n_ranks - 1; `aborted` must outlive the barrier. TSR_ERR_MEMORY, naming `what`. */
tsr_status tsr_barrier_init(tsr_barrier *barrier, int n_ranks, const _Atomic bool *aborted, const char *what);
void tsr_barrier_free(tsr_barrier *barrier); /* all zeros is fine */

/* Make all waiting threads check `aborted`. */
void tsr_barrier_notify(tsr_barrier *barrier);

/* Set all phases to 0: ranks aborted at different places have different phases. No thread may wait. */
void tsr_barrier_reset(tsr_barrier *barrier);

/* Thread `thread` of n_threads of a device, whose index is its rank. */
tsr_participant tsr_participant_of(tsr_barrier *barrier, tsr_device *device, int thread, int n_threads);

/* The phase of the caller's rank once its whole team has arrived. It cannot rise earlier, since the caller
 * has not arrived yet. */
uint64_t tsr_barrier_next_phase(const tsr_participant *me);

/* Arrive at `phase`; wakes sleepers when all `awaited` ranks have arrived (0: immediately). */
void tsr_barrier_arrive(const tsr_participant *me, uint64_t phase, tsr_device_set awaited);

/* Wait until `ranks` have reached `phase`; false if the communicator was aborted. */
bool tsr_barrier_await(const tsr_participant *me, tsr_device_set ranks, uint64_t phase);

/* Arrive and wait for all of `ranks`, including the caller's own. */
bool tsr_barrier_wait(const tsr_participant *me, tsr_device_set ranks);

/* Those of `ranks` that are behind `phase`; any thread. */
tsr_device_set tsr_barrier_behind(const tsr_barrier *barrier, tsr_device_set ranks, uint64_t phase);

/* Elements [begin, end) of n for part `index` of `count`; boundaries on cache lines of f32. */
static inline void tsr_divide_elements(int64_t n, int index, int count, int64_t *begin_out, int64_t *end_out)
{
    enum { LINE = 16 };
    int64_t n_lines = (n + LINE - 1) / LINE;
    int64_t begin = n_lines * index / count * LINE, end = n_lines * (index + 1) / count * LINE;
    *begin_out = begin < n ? begin : n;
    *end_out = end < n ? end : n;
}

#endif
