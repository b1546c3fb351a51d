/* How one thread waits for another: poll for a while, then sleep until notified.
 *
 * A thread waits for any condition on sequentially consistent atomics ("the phase has changed", "every
 * rank has arrived or the communicator was aborted"). The thread that makes a condition true stores to
 * those atomics and then calls tsr_event_notify(), which costs one load while no thread sleeps. No wake-up
 * is lost: a sleeper first announces itself and then checks again, a notifier first stores and then checks
 * for sleepers. All four are in one total order, so at least one sees the other.
 *
 *     static bool is_open(void *what) { return atomic_load(&((door *)what)->open); }
 *     waiter:   tsr_event_wait(&door->event, is_open, door, polls, TSR_FOREVER);
 *     opener:   atomic_store(&door->open, true);  tsr_event_notify(&door->event);
 *
 * Sleeping is a futex on Linux and a condition variable elsewhere (or with TSR_EVENT_CONDVAR defined). */
#ifndef TSR_CORE_EVENT_H
#define TSR_CORE_EVENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#if !defined(__linux__) && !defined(TSR_EVENT_CONDVAR)
#define TSR_EVENT_CONDVAR 1
#endif
#ifdef TSR_EVENT_CONDVAR
#include <pthread.h>
#endif

/* All zero is the initial state on Linux; tsr_event_init() works everywhere. */
typedef struct tsr_event {
    _Atomic uint32_t sequence; /* changes with every wake-up; the futex word */
    _Atomic uint32_t sleepers;
#ifdef TSR_EVENT_CONDVAR
    pthread_mutex_t mutex;
    pthread_cond_t changed;
#endif
} tsr_event;

/* A condition. It may record its progress in `what`, which belongs to one waiter. */
typedef bool (*tsr_condition)(void *what);

#define TSR_FOREVER UINT64_MAX /* as a deadline */

bool tsr_event_init(tsr_event *event); /* false when the system refuses */
void tsr_event_destroy(tsr_event *event);

/* Sleep until the condition holds; it is evaluated after every notification. False if it does not hold
 * once deadline_ns (tsr_clock_ns(), TSR_FOREVER for none) has passed. Time for which the process was
 * stopped does not count. */
bool tsr_event_sleep(tsr_event *event, tsr_condition condition, void *what, uint64_t deadline_ns);

/* As tsr_event_sleep(), but call go_on() about every interval_ns while the condition does not hold, and end
 * the wait when it returns false. NULL: as tsr_event_sleep(). */
typedef struct tsr_event_look {
    uint64_t interval_ns; /* at most 1 s */
    bool (*go_on)(void *user);
    void *user;
} tsr_event_look;
bool tsr_event_sleep_watched(tsr_event *event, tsr_condition condition, void *what, uint64_t deadline_ns,
                             const tsr_event_look *look);

void tsr_event_wake_all(tsr_event *event);

/* Monotonic nanoseconds. */
uint64_t tsr_clock_ns(void);

/* now + timeout; 0: no deadline. */
uint64_t tsr_deadline_ns(uint64_t timeout_ns);

/* Polls of tsr_event_wait() that take about `ns`, measured: a pause instruction takes from 1 to 140 cycles
 * depending on the processor. */
int tsr_event_polls(uint64_t ns);

/* Hint to the processor: a polling loop. */
static inline void tsr_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* `yield` is a no-op on most cores */
#endif
}

/* Evaluate a condition polls + 1 times. */
static inline bool tsr_event_poll(tsr_condition condition, void *what, int polls)
{
    for (int i = 0; i <= polls; i++) {
        if (condition(what))
            return true;
        tsr_relax();
    }
    return false;
}

/* As tsr_event_sleep(), but poll `polls` times before sleeping. */
static inline bool tsr_event_wait(tsr_event *event, tsr_condition condition, void *what, int polls,
                                  uint64_t deadline_ns)
{
    return tsr_event_poll(condition, what, polls) || tsr_event_sleep(event, condition, what, deadline_ns);
}

/* Call after the stores that make a condition true. */
static inline void tsr_event_notify(tsr_event *event)
{
    if (atomic_load(&event->sleepers))
        tsr_event_wake_all(event);
}

#endif
