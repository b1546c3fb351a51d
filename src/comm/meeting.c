/* Phases; see meeting.h. */
#include "comm/meeting.h"

#include "core/mem.h"

typedef struct phase_wait {
    const tsr_meeting *meeting;
    uint64_t remaining; /* ranks not seen at `phase` yet */
    uint64_t phase;
} phase_wait;

tsr_status tsr_meeting_init(tsr_meeting *meeting, int n_ranks, const _Atomic bool *aborted, const char *what)
{
    tsr_status status = tsr_mem_array((size_t)n_ranks, sizeof *meeting->ranks, what, &meeting->ranks);
    if (status != TSR_OK)
        return status;
    meeting->n_ranks = n_ranks;
    meeting->aborted = aborted;
    if (tsr_event_init(&meeting->raised))
        return TSR_OK;
    tsr_mem_free(meeting->ranks);
    meeting->ranks = NULL;
    return tsr_fail(TSR_ERR_MEMORY, "%s: the system refused a condition variable", what);
}

void tsr_meeting_free(tsr_meeting *meeting)
{
    if (!meeting->ranks)
        return;
    tsr_event_destroy(&meeting->raised);
    tsr_mem_free(meeting->ranks);
    meeting->ranks = NULL;
}

void tsr_meeting_notify(tsr_meeting *meeting)
{
    tsr_event_notify(&meeting->raised);
}

void tsr_meeting_reset(tsr_meeting *meeting)
{
    for (int i = 0; i < meeting->n_ranks; i++) {
        atomic_store(&meeting->ranks[i].phase, 0);
        atomic_store(&meeting->ranks[i].arrived, 0);
    }
}

tsr_attendee tsr_attendee_of(tsr_meeting *meeting, tsr_device *device, int thread, int n_threads)
{
    return (tsr_attendee){meeting,   device->index, thread,
                          n_threads, device->polls, thread == 0 && device->clock.on ? &device->clock : NULL};
}

/* Whether all of them have come, noting those that have. */
static bool all_there(phase_wait *wait)
{
    while (wait->remaining) {
        int rank = __builtin_ctzll(wait->remaining);
        if (atomic_load(&wait->meeting->ranks[rank].phase) < wait->phase)
            return false;
        wait->remaining &= wait->remaining - 1;
    }
    return true;
}

static bool all_there_or_aborted(void *what)
{
    phase_wait *wait = what;
    return all_there(wait) || atomic_load(wait->meeting->aborted);
}

bool tsr_meeting_await(const tsr_attendee *me, uint64_t ranks, uint64_t phase)
{
    phase_wait wait = {me->meeting, ranks, phase};
    uint64_t begin = me->clock ? tsr_clock_ns() : 0;
    tsr_event_wait(&me->meeting->raised, all_there_or_aborted, &wait, me->polls, TSR_FOREVER);
    if (me->clock)
        me->clock->wait_ns += tsr_clock_ns() - begin;
    return wait.remaining == 0;
}

uint64_t tsr_meeting_next_phase(const tsr_attendee *me)
{
    return atomic_load_explicit(&me->meeting->ranks[me->rank].phase, memory_order_relaxed) + 1;
}

/* When a rank waits for all, only the last rank's call can be the one that matters, and it sees all the
 * others. */
void tsr_meeting_arrive(const tsr_attendee *me, uint64_t phase, uint64_t awaited)
{
    tsr_meeting_rank *rank = &me->meeting->ranks[me->rank];
    if (me->n_threads > 1) {
        if (atomic_fetch_add_explicit(&rank->arrived, 1, memory_order_acq_rel) + 1 < me->n_threads)
            return;
        atomic_store_explicit(&rank->arrived, 0, memory_order_relaxed); /* published by the next line */
    }
    atomic_store(&rank->phase, phase);
    if (atomic_load(&me->meeting->raised.sleepers)) {
        phase_wait all = {me->meeting, awaited, phase};
        if (all_there(&all))
            tsr_event_wake_all(&me->meeting->raised);
    }
}

bool tsr_meet(const tsr_attendee *me, uint64_t ranks)
{
    uint64_t phase = tsr_meeting_next_phase(me);
    tsr_meeting_arrive(me, phase, ranks);
    return tsr_meeting_await(me, ranks, phase);
}

uint64_t tsr_meeting_behind(const tsr_meeting *meeting, uint64_t ranks, uint64_t phase)
{
    uint64_t behind = 0;
    for (; ranks; ranks &= ranks - 1) {
        int rank = __builtin_ctzll(ranks);
        if (atomic_load(&meeting->ranks[rank].phase) < phase)
            behind |= (uint64_t)1 << rank;
    }
    return behind;
}
