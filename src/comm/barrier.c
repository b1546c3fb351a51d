/* Phases; see barrier.h. */
#include "comm/barrier.h"

#include "core/mem.h"

typedef struct phase_wait {
    const tsr_barrier *barrier;
    tsr_device_set remaining; /* ranks not yet seen at `phase` */
    uint64_t phase;
} phase_wait;

tsr_status tsr_barrier_init(tsr_barrier *barrier, int n_ranks, const _Atomic bool *aborted, const char *what)
{
    tsr_status status = tsr_mem_array((size_t)n_ranks, sizeof *barrier->ranks, what, &barrier->ranks);
    if (status != TSR_OK)
        return status;
    barrier->n_ranks = n_ranks;
    barrier->aborted = aborted;
    if (tsr_event_init(&barrier->raised))
        return TSR_OK;
    tsr_mem_free(barrier->ranks);
    barrier->ranks = NULL;
    return tsr_fail(TSR_ERR_MEMORY, "%s: the system refused a condition variable", what);
}

void tsr_barrier_free(tsr_barrier *barrier)
{
    if (!barrier->ranks)
        return;
    tsr_event_destroy(&barrier->raised);
    tsr_mem_free(barrier->ranks);
    barrier->ranks = NULL;
}

void tsr_barrier_notify(tsr_barrier *barrier)
{
    tsr_event_notify(&barrier->raised);
}

void tsr_barrier_reset(tsr_barrier *barrier)
{
    for (int i = 0; i < barrier->n_ranks; i++) {
        atomic_store(&barrier->ranks[i].phase, 0);
        atomic_store(&barrier->ranks[i].arrived, 0);
    }
}

tsr_participant tsr_participant_of(tsr_barrier *barrier, tsr_device *device, int thread, int n_threads)
{
    return (tsr_participant){
        barrier,   device->index, thread,
        n_threads, device->polls, thread == 0 && tsr_clock_runs(&device->clock) ? &device->clock : NULL};
}

/* Whether all awaited ranks have arrived; records those that have. */
static bool all_there(phase_wait *wait)
{
    while (wait->remaining) {
        int rank = tsr_device_set_first(wait->remaining);
        if (atomic_load(&wait->barrier->ranks[rank].phase) < wait->phase)
            return false;
        wait->remaining &= ~tsr_device_set_one(rank);
    }
    return true;
}

static bool all_there_or_aborted(void *what)
{
    phase_wait *wait = what;
    return all_there(wait) || atomic_load(wait->barrier->aborted);
}

bool tsr_barrier_await(const tsr_participant *me, tsr_device_set ranks, uint64_t phase)
{
    phase_wait wait = {me->barrier, ranks, phase};
    uint64_t begin = me->clock ? tsr_clock_ns() : 0;
    tsr_event_wait(&me->barrier->raised, all_there_or_aborted, &wait, me->polls, TSR_FOREVER);
    if (me->clock)
        tsr_clock_note_wait(me->clock, begin);
    return wait.remaining == 0;
}

uint64_t tsr_barrier_next_phase(const tsr_participant *me)
{
    return atomic_load_explicit(&me->barrier->ranks[me->rank].phase, memory_order_relaxed) + 1;
}

/* When a rank waits for all, only the last rank's notification matters, and the last rank sees all others. */
void tsr_barrier_arrive(const tsr_participant *me, uint64_t phase, tsr_device_set awaited)
{
    tsr_barrier_rank *rank = &me->barrier->ranks[me->rank];
    if (me->n_threads > 1) {
        if (atomic_fetch_add_explicit(&rank->arrived, 1, memory_order_acq_rel) + 1 < me->n_threads)
            return;
        atomic_store_explicit(&rank->arrived, 0, memory_order_relaxed); /* published by the next line */
    }
    atomic_store(&rank->phase, phase);
    if (atomic_load(&me->barrier->raised.sleepers)) {
        phase_wait all = {me->barrier, awaited, phase};
        if (all_there(&all))
            tsr_event_wake_all(&me->barrier->raised);
    }
}

bool tsr_barrier_wait(const tsr_participant *me, tsr_device_set ranks)
{
    uint64_t phase = tsr_barrier_next_phase(me);
    tsr_barrier_arrive(me, phase, ranks);
    return tsr_barrier_await(me, ranks, phase);
}

tsr_device_set tsr_barrier_behind(const tsr_barrier *barrier, tsr_device_set ranks, uint64_t phase)
{
    tsr_device_set behind = 0;
    TSR_FOR_DEVICES(rank, ranks)
        if (atomic_load(&barrier->ranks[rank].phase) < phase)
            behind |= tsr_device_set_one(rank);
    return behind;
}
