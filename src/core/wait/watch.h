/* What all waits for a runtime's threads have in common: they end when no thread makes progress any more, and
 * in a child process, where none of the threads exists.
 *
 * Every device adds a source, a number that changes with each step of its work: an op, a piece of an op, a
 * block of a copy. A wait that lasts compares the numbers of all devices now and then, since the device that
 * is waited for may itself wait for another. If none of them changes for the stall timeout, the waiting call
 * loses the runtime (tsr_watch_lose): later calls that would wait fail with the same sentence. Time for which
 * the process was stopped does not count.
 *
 * Threads that do not return even then are abandoned (tsr_watch_abandon): memory that they may access is
 * never released.
 *
 * NULL is a watch that never ends a wait: devices without a runtime, in tests and plans. */
#ifndef TSR_CORE_WAIT_WATCH_H
#define TSR_CORE_WAIT_WATCH_H

#include "core/event.h"
#include "core/status.h"

typedef struct tsr_watch tsr_watch;

#define TSR_STALL_DEFAULT_NS UINT64_C(60000000000)

/* stall_timeout_ns 0: the default; UINT64_MAX: waits end in a child process only. TSR_ERR_MEMORY. */
tsr_status tsr_watch_create(uint64_t stall_timeout_ns, tsr_watch **watch_out);
void tsr_watch_destroy(tsr_watch *watch); /* NULL is fine */

/* A number that changes with each step of the work of `user`; called by any waiting thread. */
typedef uint64_t (*tsr_progress)(const void *user);

/* Add and remove sources, at most TSR_MAX_DEVICES. Not while a thread waits. */
void tsr_watch_add(tsr_watch *watch, tsr_progress progress, const void *user);
void tsr_watch_remove(tsr_watch *watch, const void *user);

/* Progress of a thread that waits for another process, whose waits have a limit of their own. Any thread. */
void tsr_watch_note(tsr_watch *watch);

/* TSR_OK, or TSR_ERR_DEVICE_LOST with the reason. */
tsr_status tsr_watch_check(tsr_watch *watch);
bool tsr_watch_is_lost(const tsr_watch *watch);

/* Whether this process is a child, by fork(), of the process that created the watch. */
bool tsr_watch_is_forked(const tsr_watch *watch);

/* Lose the runtime with this sentence; a later call replaces the sentence. Returns TSR_ERR_DEVICE_LOST with
 * the sentence as the error. */
tsr_status tsr_watch_lose(tsr_watch *watch, const char *format, ...) TSR_PRINTF(2, 3);

/* The runtime goes on without the devices that lost it. No thread waits. */
void tsr_watch_revive(tsr_watch *watch);

/* A thread that never returned keeps its access to the runtime's memory. Each kind of object that such a
 * thread may access has one function that releases it, and that function checks: memory of devices
 * (core/device.c), collectives (core/comm.c), programs (each device), the mapping of a model's file
 * (engine/open.c), and the runtime's own objects (runtime/runtime.c). No single place could: what remains
 * differs, and accounting goes on. */
void tsr_watch_abandon(tsr_watch *watch);
bool tsr_watch_has_abandoned(const tsr_watch *watch);

/* A device may work for this long without progress: the default stall timeout grows to it; one that the
 * caller chose stays. Not while a thread waits. */
void tsr_watch_allow(tsr_watch *watch, uint64_t ns);

/* The stall timeout; UINT64_MAX: none, or no watch. */
uint64_t tsr_watch_stall_ns(const tsr_watch *watch);

/* How a wait ended: the condition holds; the deadline has passed; nothing makes progress, or the runtime was
 * lost before, or the process is a child. */
typedef enum tsr_wait_end { TSR_WAIT_DONE, TSR_WAIT_LATE, TSR_WAIT_STALLED } tsr_wait_end;

/* As tsr_event_wait(). In a lost runtime a wait with a deadline lasts until the deadline, and a wait without
 * one ends immediately. */
tsr_wait_end tsr_watch_wait(tsr_watch *watch, tsr_event *event, tsr_condition condition, void *what,
                            int polls, uint64_t deadline_ns);

/* For loops that poll: all zeros at the start of a wait. tsr_watch_look() returns true if there was no
 * progress for the stall timeout. */
typedef struct tsr_stall {
    uint64_t seen;      /* the devices' progress */
    uint64_t looked_ns; /* when they were last compared; 0: never */
    uint64_t idle_ns;   /* time without progress */
} tsr_stall;
bool tsr_watch_look(const tsr_watch *watch, tsr_stall *stall);

#endif
