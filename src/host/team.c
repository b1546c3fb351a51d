/* Thread teams; see team.h.
 *
 * Three things are waited for, each with its own event: the next job (`submitted` grows), the end of a job
 * (`finished` grows) and the other threads at a barrier (`phase` changes). The counters that one side writes
 * often and the other side polls lie on cache lines of their own. A team of one thread has nobody to meet, so
 * its barriers are free. */
#include "host/team.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/event.h"
#include "core/mem.h"

typedef struct job {
    tsr_team_fn fn;
    void *argument;
} job;

typedef struct worker {
    tsr_team *team;
    pthread_t thread;
    int index;
    bool unpinned;
} worker;

/* Keeps what is on either side of it on different cache lines, wherever the structure starts. */
#define LINE_GAP(name) unsigned char name[64]

struct tsr_team {
    tsr_team_config config; /* name replaced by the copy below */
    char name[32];
    worker *workers; /* [n_threads] */
    int n_started;
    bool events_ready;
    _Atomic int polls, idle_polls;

    LINE_GAP(gap_0);
    _Atomic int arrived; /* at the barrier */
    LINE_GAP(gap_1);
    _Atomic uint32_t phase; /* of the barrier */
    tsr_event phase_changed;
    LINE_GAP(gap_2);
    _Atomic uint64_t submitted;
    _Atomic bool stop;
    tsr_event job_submitted;
    job jobs[TSR_TEAM_MAX_JOBS]; /* job n lies at n % TSR_TEAM_MAX_JOBS */
    LINE_GAP(gap_3);
    _Atomic uint64_t finished;
    tsr_event job_finished;
    LINE_GAP(gap_4);
};

typedef struct phase_wait {
    tsr_team *team;
    uint32_t phase;
} phase_wait;

static bool phase_has_changed(void *what)
{
    const phase_wait *wait = what;
    return atomic_load(&wait->team->phase) != wait->phase;
}

bool tsr_team_gather(tsr_team *team)
{
    int n_threads = team->config.n_threads;
    if (n_threads == 1)
        return true;
    phase_wait wait = {team, atomic_load_explicit(&team->phase, memory_order_relaxed)};
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) == n_threads - 1)
        return true;
    tsr_event_wait(&team->phase_changed, phase_has_changed, &wait,
                   atomic_load_explicit(&team->polls, memory_order_relaxed), TSR_FOREVER);
    return false;
}

void tsr_team_release(tsr_team *team)
{
    if (team->config.n_threads == 1)
        return;
    atomic_store_explicit(&team->arrived, 0, memory_order_relaxed); /* published by the next line */
    atomic_fetch_add(&team->phase, 1);
    tsr_event_notify(&team->phase_changed);
}

typedef struct job_wait {
    tsr_team *team;
    uint64_t count;
} job_wait;

static bool has_job_or_stops(void *what)
{
    const job_wait *wait = what;
    return atomic_load(&wait->team->submitted) > wait->count || atomic_load(&wait->team->stop);
}

static bool has_finished(void *what)
{
    const job_wait *wait = what;
    return atomic_load(&wait->team->finished) >= wait->count;
}

static void *worker_main(void *argument)
{
    worker *self = argument;
    tsr_team *team = self->team;
    if (team->config.pin && team->config.pin(team->config.pin_user, self->index) != TSR_OK)
        self->unpinned = true;
    job_wait next = {team, 0};
    for (;; next.count++) {
        tsr_event_wait(&team->job_submitted, has_job_or_stops, &next,
                       atomic_load_explicit(&team->idle_polls, memory_order_relaxed), TSR_FOREVER);
        if (atomic_load(&team->submitted) <= next.count)
            return NULL; /* stopped, and the queue is empty */
        const job *current = &team->jobs[next.count % TSR_TEAM_MAX_JOBS];
        current->fn(current->argument, self->index);
        if (tsr_team_gather(team)) {
            atomic_store(&team->finished, next.count + 1);
            tsr_event_notify(&team->job_finished);
            tsr_team_release(team);
        }
    }
}

tsr_status tsr_team_submit(tsr_team *team, tsr_team_fn fn, void *argument)
{
    uint64_t n = atomic_load(&team->submitted);
    if (n - atomic_load(&team->finished) >= TSR_TEAM_MAX_JOBS)
        return tsr_fail(TSR_ERR_FULL, "%s: %d launches are queued already; synchronize before the next",
                        team->name, (int)TSR_TEAM_MAX_JOBS);
    team->jobs[n % TSR_TEAM_MAX_JOBS] = (job){fn, argument};
    atomic_store(&team->submitted, n + 1);
    tsr_event_notify(&team->job_submitted);
    return TSR_OK;
}

bool tsr_team_wait(tsr_team *team, uint64_t deadline_ns)
{
    job_wait all = {team, atomic_load(&team->submitted)};
    return tsr_event_wait(&team->job_finished, has_finished, &all,
                          atomic_load_explicit(&team->idle_polls, memory_order_relaxed), deadline_ns);
}

void tsr_team_set_polls(tsr_team *team, int polls, int idle_polls)
{
    atomic_store_explicit(&team->polls, polls, memory_order_relaxed);
    atomic_store_explicit(&team->idle_polls, idle_polls, memory_order_relaxed);
}

int tsr_team_n_unpinned(const tsr_team *team)
{
    int n = 0;
    for (int i = 0; i < team->config.n_threads; i++)
        n += team->workers[i].unpinned;
    return n;
}

static void do_nothing(void *argument, int thread)
{
    (void)argument;
    (void)thread;
}

/* Start the threads with every signal blocked: the application's handlers run on its own threads. */
static tsr_status start_workers(tsr_team *team)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    for (int i = 0; i < team->config.n_threads && error == 0; i++) {
        team->workers[i].team = team;
        team->workers[i].index = i;
        error = pthread_create(&team->workers[i].thread, NULL, worker_main, &team->workers[i]);
        team->n_started += error == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return tsr_fail(TSR_ERR_MEMORY, "%s: the system refused thread %d of %d (%s); ask for fewer threads",
                        team->name, team->n_started + 1, team->config.n_threads, strerror(error));
    return TSR_OK;
}

static bool init_events(tsr_team *team)
{
    if (!tsr_event_init(&team->phase_changed))
        return false;
    if (tsr_event_init(&team->job_submitted)) {
        if (tsr_event_init(&team->job_finished))
            return true;
        tsr_event_destroy(&team->job_submitted);
    }
    tsr_event_destroy(&team->phase_changed);
    return false;
}

tsr_status tsr_team_create(const tsr_team_config *config, tsr_team **team_out)
{
    tsr_status status = TSR_OK;
    tsr_team *team = NULL;

    if (config->n_threads < 1)
        return tsr_fail(TSR_ERR_INVALID, "%s: %d threads; a team needs at least one", config->name,
                        config->n_threads);
    TSR_TRY(tsr_mem_array(1, sizeof *team, "a thread team", &team));
    team->config = *config;
    snprintf(team->name, sizeof team->name, "%s", config->name);
    team->config.name = team->name;
    TSR_TRY(tsr_mem_array((size_t)config->n_threads, sizeof *team->workers, "the threads of a team",
                          &team->workers));
    team->events_ready = init_events(team);
    if (!team->events_ready)
        TSR_TRY(tsr_fail(TSR_ERR_MEMORY, "%s: the system refused a condition variable", team->name));
    TSR_TRY(start_workers(team));
    TSR_TRY(tsr_team_submit(team, do_nothing, NULL)); /* once it is done everybody has started and pinned */
    tsr_team_wait(team, TSR_FOREVER);
    *team_out = team;
    team = NULL;
out:
    tsr_team_destroy(team);
    return status;
}

void tsr_team_destroy(tsr_team *team)
{
    if (!team)
        return;
    if (team->events_ready) {
        atomic_store(&team->stop, true);
        tsr_event_notify(&team->job_submitted);
        for (int i = 0; i < team->n_started; i++)
            pthread_join(team->workers[i].thread, NULL);
        tsr_event_destroy(&team->job_finished);
        tsr_event_destroy(&team->job_submitted);
        tsr_event_destroy(&team->phase_changed);
    }
    tsr_mem_free(team->workers);
    tsr_mem_free(team);
}
