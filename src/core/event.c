/* Sleeping and waking; event.h has the protocol. */
#include "core/event.h"

#include <errno.h>
#include <limits.h>
#include <time.h>

#ifndef TSR_EVENT_CONDVAR
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { NS_PER_S = 1000000000 };

uint64_t tsr_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t tsr_deadline_ns(uint64_t timeout_ns)
{
    uint64_t deadline;
    if (timeout_ns == 0 || __builtin_add_overflow(tsr_clock_ns(), timeout_ns, &deadline))
        return TSR_FOREVER;
    return deadline;
}

static bool is_set(void *what)
{
    return atomic_load((_Atomic bool *)what);
}

int tsr_event_polls(uint64_t ns)
{
    enum { SAMPLE = 200, TRIES = 3 };
    _Atomic bool flag = false;
    uint64_t best = UINT64_MAX;
    for (int try = 0; try < TRIES; try++) { /* a minimum, since interrupts can only lengthen a try */
        uint64_t start = tsr_clock_ns();
        for (int i = 0; i < SAMPLE && !is_set(&flag); i++)
            tsr_relax();
        uint64_t took = tsr_clock_ns() - start;
        best = took < best ? took : best;
    }
    uint64_t polls = ns * SAMPLE / (best ? best : 1);
    return polls < INT_MAX / 2 ? (int)polls : INT_MAX / 2;
}

#ifndef TSR_EVENT_CONDVAR

bool tsr_event_init(tsr_event *event)
{
    atomic_init(&event->sequence, 0);
    atomic_init(&event->sleepers, 0);
    return true;
}

void tsr_event_destroy(tsr_event *event)
{
    (void)event;
}

/* Sleep while the word equals `seen`; false when the deadline has passed. */
static bool sleep_once(tsr_event *event, uint32_t seen, uint64_t deadline_ns)
{
    struct timespec until = {(time_t)(deadline_ns / NS_PER_S), (long)(deadline_ns % NS_PER_S)};
    /* WAIT_BITSET is the variant that takes an absolute, monotonic deadline. */
    long result = syscall(SYS_futex, &event->sequence, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, seen,
                          deadline_ns == TSR_FOREVER ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY);
    return !(result == -1 && errno == ETIMEDOUT);
}

void tsr_event_wake_all(tsr_event *event)
{
    atomic_fetch_add(&event->sequence, 1);
    syscall(SYS_futex, &event->sequence, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, NULL, NULL, 0);
}

#else

bool tsr_event_init(tsr_event *event)
{
    atomic_init(&event->sequence, 0);
    atomic_init(&event->sleepers, 0);
    if (pthread_mutex_init(&event->mutex, NULL) != 0)
        return false;
    if (pthread_cond_init(&event->changed, NULL) != 0) {
        pthread_mutex_destroy(&event->mutex);
        return false;
    }
    return true;
}

void tsr_event_destroy(tsr_event *event)
{
    pthread_cond_destroy(&event->changed);
    pthread_mutex_destroy(&event->mutex);
}

/* Condition variables use wall-clock time by default, and some systems allow no other clock. Waiting in
 * short steps limits the effect of a clock change to one step. */
static bool sleep_once(tsr_event *event, uint32_t seen, uint64_t deadline_ns)
{
    enum { STEP_NS = 100000000 };
    pthread_mutex_lock(&event->mutex);
    while (atomic_load(&event->sequence) == seen && tsr_clock_ns() < deadline_ns) {
        uint64_t left = deadline_ns - tsr_clock_ns();
        uint64_t step = left < STEP_NS ? left : STEP_NS;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        uint64_t ns = (uint64_t)until.tv_nsec + step;
        until.tv_sec += (time_t)(ns / NS_PER_S);
        until.tv_nsec = (long)(ns % NS_PER_S);
        pthread_cond_timedwait(&event->changed, &event->mutex, &until);
    }
    bool woken = atomic_load(&event->sequence) != seen;
    pthread_mutex_unlock(&event->mutex);
    return woken;
}

void tsr_event_wake_all(tsr_event *event)
{
    pthread_mutex_lock(&event->mutex);
    atomic_fetch_add(&event->sequence, 1);
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->mutex);
}

#endif

/* Sleep until the deadline, but at most for slice_ns. Waking late by STOPPED_NS means that the process was
 * stopped (from a terminal, or with its virtual machine); the deadline is extended by this time, in which
 * the other threads made no progress either. False when the deadline has passed. */
static bool sleep_awhile(tsr_event *event, uint32_t seen, uint64_t *deadline_ns, uint64_t slice_ns)
{
    enum { STOPPED_NS = NS_PER_S / 10 };
    const uint64_t began = tsr_clock_ns();
    if (began >= *deadline_ns)
        return false;
    const uint64_t until = *deadline_ns - began > slice_ns ? began + slice_ns : *deadline_ns;
    if (sleep_once(event, seen, until))
        return true;
    const uint64_t woke = tsr_clock_ns();
    if (woke - until >= STOPPED_NS && *deadline_ns != TSR_FOREVER)
        *deadline_ns += woke - until;
    return woke < *deadline_ns;
}

bool tsr_event_sleep_watched(tsr_event *event, tsr_condition condition, void *what, uint64_t deadline_ns,
                             const tsr_event_look *look)
{
    const uint64_t slice_ns = look ? look->interval_ns : NS_PER_S;
    bool holds;
    atomic_fetch_add(&event->sleepers, 1);
    for (;;) {
        uint32_t seen = atomic_load(&event->sequence);
        holds = condition(what);
        if (holds || (look && !look->go_on(look->user)))
            break;
        if (!look && deadline_ns == TSR_FOREVER) {
            sleep_once(event, seen, TSR_FOREVER);
        } else if (!sleep_awhile(event, seen, &deadline_ns, slice_ns)) {
            holds = condition(what);
            break;
        }
    }
    atomic_fetch_sub(&event->sleepers, 1);
    return holds;
}

bool tsr_event_sleep(tsr_event *event, tsr_condition condition, void *what, uint64_t deadline_ns)
{
    return tsr_event_sleep_watched(event, condition, what, deadline_ns, NULL);
}
