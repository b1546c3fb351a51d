/* Where the threads of several devices of one process meet: the synchronisation of collectives, without what
 * they compute.
 *
 * Each rank (a device, with a team of threads) has a phase number that only grows: the last thread of its
 * team to arrive raises it by one, which publishes everything the team wrote before. Waiting means waiting
 * until the phases of others have reached one's own. Since a rank raises its phase only after it has finished
 * the collective before, a rank that has passed collective k + 1 knows that nobody reads the buffers of
 * collective k any more: that is what lets graph/lower/slots.c reuse them without a second barrier. Phases
 * also tell who has not come, when a deadline passes.
 *
 *     static bool all_reduce(const tsr_participant *me) { return tsr_barrier_wait(me, participants) && ...; }
 * */
#ifndef TSR_COMM_BARRIER_H
#define TSR_COMM_BARRIER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/device.h"
#include "core/event.h"

/* A phase is written by one rank and read by the others, so it has a cache line of its own; the counter that
 * the threads of one team use among themselves lies on the next. */
typedef struct tsr_barrier_rank {
    _Atomic uint64_t phase;
    unsigned char gap_0[56];
    _Atomic int arrived; /* threads of this rank's team, in the current phase */
    unsigned char gap_1[60];
} tsr_barrier_rank;

typedef struct tsr_barrier {
    tsr_barrier_rank *ranks; /* [n_ranks] */
    int n_ranks;
    const _Atomic bool *aborted; /* the communicator's: nobody waits any more */
    unsigned char gap[64];
    tsr_event raised; /* a phase has */
} tsr_barrier;

/* Who calls: one thread of one rank. */
typedef struct tsr_participant {
    tsr_barrier *barrier;
    int rank, thread, n_threads, polls;
    tsr_device_clock *clock; /* NULL: time is not counted, or not by this thread */
} tsr_participant;

/* Between ranks 0..n_ranks - 1; `aborted` outlives it. TSR_ERR_MEMORY, naming `what`. */
tsr_status tsr_barrier_init(tsr_barrier *barrier, int n_ranks, const _Atomic bool *aborted, const char *what);
void tsr_barrier_free(tsr_barrier *barrier); /* all zeros is fine */

/* Let those that wait look at `aborted`. */
void tsr_barrier_notify(tsr_barrier *barrier);

/* All phases are 0 again: ranks that were aborted at different places have different ones. Nobody waits. */
void tsr_barrier_reset(tsr_barrier *barrier);

/* Thread `thread` of n_threads of a device, whose index is its rank. */
tsr_participant tsr_participant_of(tsr_barrier *barrier, tsr_device *device, int thread, int n_threads);

/* The phase that the caller's rank will have when its whole team has come. It cannot rise before that, since
 * the caller has not come yet. */
uint64_t tsr_barrier_next_phase(const tsr_participant *me);

/* Come to `phase`. Who sleeps is woken once all of `awaited` have come to it; 0: at once. */
void tsr_barrier_arrive(const tsr_participant *me, uint64_t phase, uint64_t awaited);

/* Wait until `ranks` have reached `phase`; false if the communicator was aborted. */
bool tsr_barrier_await(const tsr_participant *me, uint64_t ranks, uint64_t phase);

/* Arrive and wait for all of `ranks`, the caller's own among them. */
bool tsr_barrier_wait(const tsr_participant *me, uint64_t ranks);

/* Which of `ranks` are behind `phase`; any thread. */
uint64_t tsr_barrier_behind(const tsr_barrier *barrier, uint64_t ranks, uint64_t phase);

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
