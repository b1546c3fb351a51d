/* A thread team: a fixed set of threads that execute jobs together, one job after another.
 *
 * Threads are created once and pinned by the caller's function. Between jobs they poll for a moment and then
 * sleep. A job is a function that every participating thread calls with its own number; inside it
 * tsr_team_gather() is a barrier. Jobs are queued without blocking and run in order.
 *
 * A thread whose core is also used by another process delays all others at every barrier: the team may be
 * slower with it than without. Such a thread is left out of some jobs and included again now and then
 * (tsr_team_adapt).
 *
 *     tsr_team_submit(team, run_program, program);      any number up to TSR_TEAM_MAX_JOBS
 *     tsr_team_wait(team, tsr_deadline_ns(timeout));
 *
 * Submit and wait from one thread at a time. */
#ifndef TSR_HOST_TEAM_H
#define TSR_HOST_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "core/wait/watch.h"

typedef struct tsr_team tsr_team;

/* `thread` in [0, n_threads), the number of threads of this job. */
typedef void (*tsr_team_fn)(void *argument, int thread, int n_threads);

enum { TSR_TEAM_MAX_JOBS = 64 }; /* submitted and not finished */

typedef struct tsr_team_config {
    const char *name; /* for messages; copied */
    int n_threads;
    tsr_status (*pin)(void *user, int thread); /* called first by every thread; NULL: not pinned */
    void *pin_user;
    tsr_watch *watch; /* over waits for the team; NULL: they have no end but their deadline */
} tsr_team_config;

/* TSR_ERR_MEMORY when the system refuses a thread. Returns after every thread has called `pin`. */
tsr_status tsr_team_create(const tsr_team_config *config, tsr_team **team_out);

/* Finishes the queued jobs first. NULL is fine. If the jobs do not finish (tsr_team_wait), the team is
 * abandoned and its memory remains. False then. */
bool tsr_team_destroy(tsr_team *team);

/* How often a waiting thread polls before it sleeps (0 initially): `polls` at a barrier, `idle_polls` for the
 * next job, and for the submitter until the end of a job. Not while a job runs. */
void tsr_team_set_polls(tsr_team *team, int polls, int idle_polls);

/* Leave out threads for which others had to sleep (not before tsr_team_set_polls(); waits covered by polling
 * do not count). Off initially. For pinned threads with a processor each. */
void tsr_team_adapt(tsr_team *team, bool on);

/* Threads of the last submitted job. Not before the first. */
int tsr_team_n_members(const tsr_team *team);

/* Threads whose pin function failed: they run unpinned. */
int tsr_team_n_unpinned(const tsr_team *team);

/* Queue a job; `argument` must stay valid until it has finished. TSR_ERR_FULL when TSR_TEAM_MAX_JOBS are
 * queued. */
tsr_status tsr_team_submit(tsr_team *team, tsr_team_fn fn, void *argument);

/* Wait until all submitted jobs have finished, the deadline (tsr_clock_ns()) passes, or the watch ends the
 * wait; tsr_team_wait_queue(): until at most n_left of them have not. */
tsr_wait_end tsr_team_wait(tsr_team *team, uint64_t deadline_ns);
tsr_wait_end tsr_team_wait_queue(tsr_team *team, int n_left, uint64_t deadline_ns);

/* Give up waiting for the running job. The threads of the team leave the job at the next barrier and end; a
 * thread that hangs does so if its work ever returns. No job is run any more. */
void tsr_team_abandon(tsr_team *team);
bool tsr_team_is_abandoned(const tsr_team *team);

/* A barrier with a serial part, called by every thread of a job with its number. The last thread to arrive
 * gets true while the others still wait, runs the serial part, and releases them with tsr_team_release(). In
 * an abandoned team all threads get false, and leave the job. */
bool tsr_team_gather(tsr_team *team, int thread);
void tsr_team_release(tsr_team *team);

#endif
