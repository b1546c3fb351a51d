/* Thread teams; see team.h.
 *
 * Threads wait for three events: the next job (`submitted` grows), the end of a job (`finished` grows) and
 * the other threads at a barrier (`phase` changes). Counters that one side writes often and the other side
 * polls are on cache lines of their own. The barriers of a team of one thread return immediately.
 *
 * The submitter decides which threads take part in a job, while no job runs. Between two jobs it reads how
 * long the others slept for each thread at the barriers of the last job. A thread that costs more than it can
 * contribute is left out, first for a moment, and for longer each time that it is no better afterwards. It
 * skips jobs until `first_job` names one again. */
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
    _Atomic uint64_t first_job; /* the first job that it takes part in again; RESTS: none yet */
    int rank;                   /* in the running job */
    uint64_t late_ns;           /* time that others slept for it in the last job */
    uint64_t rest_ns;           /* how long it is left out next time */
    uint64_t back_ns;           /* end of the time it is left out */
} worker;

#define RESTS UINT64_MAX

/* The shortest time that a thread is left out is a few times a scheduler's slice. The longest still notices
 * within seconds that a core is free again, and costs under a percent where it is not. */
enum { REST_MIN_MS = 50, REST_MAX_MS = 1600, NS_PER_MS = 1000000 };

/* Keeps the fields on either side on different cache lines, wherever the structure starts. */
#define LINE_GAP(name) unsigned char name[64]

struct tsr_team {
    tsr_team_config config; /* name replaced by the copy below */
    char name[32];
    worker *workers;  /* [n_threads] */
    worker **members; /* [n_members], by rank */
    int n_members;    /* threads of the running job */
    bool adapts;
    uint64_t job_began_ns, job_ended_ns;
    int n_started;
    bool events_ready;
    _Atomic int polls, idle_polls;

    LINE_GAP(gap_0);
    _Atomic int arrived;           /* arrived at the barrier */
    _Atomic uint64_t asleep_since; /* when the first thread stopped polling there; 0: none has */
    LINE_GAP(gap_1);
    _Atomic uint32_t phase; /* of the barrier */
    _Atomic bool abandoned;
    tsr_event phase_changed;
    LINE_GAP(gap_2);
    _Atomic uint64_t submitted;
    _Atomic bool stop;
    tsr_event job_submitted;
    job jobs[TSR_TEAM_MAX_JOBS]; /* job n is stored at n % TSR_TEAM_MAX_JOBS */
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
    return atomic_load(&wait->team->phase) != wait->phase || atomic_load(&wait->team->abandoned);
}

/* Add to `last` the time that others slept for it. */
static void note_lateness(tsr_team *team, worker *last)
{
    uint64_t since = atomic_load_explicit(&team->asleep_since, memory_order_relaxed);
    if (since == 0)
        return;
    uint64_t now = tsr_clock_ns();
    last->late_ns += now > since ? now - since : 0;
    atomic_store_explicit(&team->asleep_since, 0, memory_order_relaxed);
}

static bool gather(tsr_team *team, worker *self, int n_members)
{
    if (tsr_team_is_abandoned(team))
        return false;
    if (n_members == 1)
        return true;
    phase_wait wait = {team, atomic_load_explicit(&team->phase, memory_order_relaxed)};
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) == n_members - 1) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed); /* published with the phase */
        note_lateness(team, self);
        return true;
    }
    int polls = atomic_load_explicit(&team->polls, memory_order_relaxed);
    if (tsr_event_poll(phase_has_changed, &wait, polls))
        return false;
    uint64_t none = 0, now = tsr_clock_ns();
    if (polls > 0)
        atomic_compare_exchange_strong(&team->asleep_since, &none, now);
    tsr_event_sleep(&team->phase_changed, phase_has_changed, &wait, TSR_FOREVER);
    atomic_compare_exchange_strong(&team->asleep_since, &now,
                                   0); /* still set if the last thread did not see it */
    return false;
}

static void release(tsr_team *team, int n_members)
{
    if (n_members == 1)
        return;
    atomic_fetch_add(&team->phase, 1);
    tsr_event_notify(&team->phase_changed);
}

bool tsr_team_gather(tsr_team *team, int thread)
{
    return gather(team, team->members[thread], team->n_members);
}

void tsr_team_release(tsr_team *team)
{
    release(team, team->n_members);
}

typedef struct job_wait {
    tsr_team *team;
    uint64_t count;
} job_wait;

static bool has_job_or_stops(void *what)
{
    const job_wait *wait = what;
    return atomic_load(&wait->team->submitted) > wait->count || atomic_load(&wait->team->stop) ||
           atomic_load(&wait->team->abandoned);
}

static bool has_finished(void *what)
{
    const job_wait *wait = what;
    return atomic_load(&wait->team->finished) >= wait->count;
}

/* Run a job as a member. Once the job counts as finished its barrier is no longer used: the next job may have
 * other members. */
static void run_job(worker *self, uint64_t number)
{
    tsr_team *team = self->team;
    const job *current = &team->jobs[number % TSR_TEAM_MAX_JOBS];
    int n_members = team->n_members;
    current->fn(current->argument, self->rank, n_members);
    if (gather(team, self, n_members)) {
        if (team->adapts)
            team->job_ended_ns = tsr_clock_ns();
        release(team, n_members);
        atomic_store(&team->finished, number + 1);
        tsr_event_notify(&team->job_finished);
    }
}

static void *worker_main(void *argument)
{
    worker *self = argument;
    tsr_team *team = self->team;
    if (team->config.pin && team->config.pin(team->config.pin_user, self->index) != TSR_OK)
        self->unpinned = true;
    job_wait next = {team, 0};
    for (;;) {
        tsr_event_wait(&team->job_submitted, has_job_or_stops, &next,
                       atomic_load_explicit(&team->idle_polls, memory_order_relaxed), TSR_FOREVER);
        /* In this order: `first_job` is set before that job is submitted. */
        uint64_t submitted = atomic_load(&team->submitted), first = atomic_load(&self->first_job);
        if (submitted <= next.count || tsr_team_is_abandoned(team))
            return NULL; /* stopped, and the queue is empty; or abandoned */
        if (first <= next.count)
            run_job(self, next.count++);
        else
            next.count = TSR_MIN(first, submitted);
    }
}

/* The member that cost the others more in the last job than it can have contributed; NULL if there is none.
 * Without it the job would take n / (n - 1) as long, less the time that others waited for it: more than 1 / n
 * of the time is too much. Only waits at the team's own barriers are measured, which are about half of them:
 * hence half as much. */
static worker *find_burden(const tsr_team *team)
{
    uint64_t took = team->job_ended_ns - team->job_began_ns;
    worker *worst = team->members[0];
    for (int i = 1; i < team->n_members; i++)
        if (team->members[i]->late_ns > worst->late_ns)
            worst = team->members[i];
    bool is_one = worst->late_ns > took / (2 * (uint64_t)team->n_members) && worst->late_ns > NS_PER_MS;
    return is_one && team->n_members > 1 ? worst : NULL;
}

/* Choose the members from job `number` on. Not while a job runs. */
static void choose_members(tsr_team *team, uint64_t number)
{
    const uint64_t min = REST_MIN_MS * (uint64_t)NS_PER_MS, max = REST_MAX_MS * (uint64_t)NS_PER_MS;
    uint64_t now = tsr_clock_ns();
    worker *burden = find_burden(team);
    int n = 0;
    for (int i = 0; i < team->config.n_threads; i++) {
        worker *one = &team->workers[i];
        bool rests = atomic_load_explicit(&one->first_job, memory_order_relaxed) == RESTS;
        if (one == burden) {
            one->back_ns = now + one->rest_ns;
            one->rest_ns = TSR_MIN(2 * one->rest_ns, max);
            atomic_store(&one->first_job, RESTS);
            rests = true;
        } else if (!rests) {
            one->rest_ns = TSR_MAX(one->rest_ns / 2, min);
        } else if (now >= one->back_ns) {
            atomic_store(&one->first_job, number);
            rests = false;
        }
        one->late_ns = 0;
        one->rank = n;
        if (!rests)
            team->members[n++] = one;
    }
    team->n_members = n;
    team->job_began_ns = team->job_ended_ns = now;
}

tsr_status tsr_team_submit(tsr_team *team, tsr_team_fn fn, void *argument)
{
    uint64_t n = atomic_load(&team->submitted);
    if (n - atomic_load(&team->finished) >= TSR_TEAM_MAX_JOBS)
        return tsr_fail(TSR_ERR_FULL, "%s: %d launches are queued already; synchronize before the next",
                        team->name, (int)TSR_TEAM_MAX_JOBS);
    if (team->adapts && n == atomic_load(&team->finished))
        choose_members(team, n);
    team->jobs[n % TSR_TEAM_MAX_JOBS] = (job){fn, argument};
    atomic_store(&team->submitted, n + 1);
    tsr_event_notify(&team->job_submitted);
    return TSR_OK;
}

tsr_wait_end tsr_team_wait_queue(tsr_team *team, int n_left, uint64_t deadline_ns)
{
    const uint64_t submitted = atomic_load(&team->submitted);
    job_wait wait = {team, submitted > (uint64_t)n_left ? submitted - (uint64_t)n_left : 0};
    return tsr_watch_wait(team->config.watch, &team->job_finished, has_finished, &wait,
                          atomic_load_explicit(&team->idle_polls, memory_order_relaxed), deadline_ns);
}

tsr_wait_end tsr_team_wait(tsr_team *team, uint64_t deadline_ns)
{
    return tsr_team_wait_queue(team, 0, deadline_ns);
}

bool tsr_team_is_abandoned(const tsr_team *team)
{
    return atomic_load_explicit(&team->abandoned, memory_order_relaxed);
}

void tsr_team_abandon(tsr_team *team)
{
    if (tsr_team_is_abandoned(team))
        return;
    for (int i = 0; i < team->n_started; i++)
        pthread_detach(team->workers[i].thread);
    tsr_watch_abandon(team->config.watch);
    atomic_store(&team->abandoned, true);
    tsr_event_wake_all(&team->phase_changed);
    tsr_event_wake_all(&team->job_submitted);
}

void tsr_team_set_polls(tsr_team *team, int polls, int idle_polls)
{
    atomic_store_explicit(&team->polls, polls, memory_order_relaxed);
    atomic_store_explicit(&team->idle_polls, idle_polls, memory_order_relaxed);
}

void tsr_team_adapt(tsr_team *team, bool on)
{
    team->adapts = on && team->config.n_threads > 1;
}

int tsr_team_n_members(const tsr_team *team)
{
    return team->n_members;
}

int tsr_team_n_unpinned(const tsr_team *team)
{
    int n = 0;
    for (int i = 0; i < team->config.n_threads; i++)
        n += team->workers[i].unpinned;
    return n;
}

static void do_nothing(void *argument, int thread, int n_threads)
{
    (void)argument, (void)thread, (void)n_threads;
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
        team->workers[i].index = team->workers[i].rank = i;
        team->workers[i].rest_ns = REST_MIN_MS * (uint64_t)NS_PER_MS;
        team->members[i] = &team->workers[i];
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
    TSR_TRY(TSR_NEW(&team, "a thread team"));
    team->config = *config;
    snprintf(team->name, sizeof team->name, "%s", config->name);
    team->config.name = team->name;
    TSR_TRY(tsr_mem_array((size_t)config->n_threads, sizeof *team->workers, "the threads of a team",
                          &team->workers));
    TSR_TRY(
        tsr_mem_array((size_t)config->n_threads, sizeof(worker *), "the members of a team", &team->members));
    team->n_members = config->n_threads;
    team->events_ready = init_events(team);
    if (!team->events_ready)
        TSR_TRY(tsr_fail(TSR_ERR_MEMORY, "%s: the system refused a condition variable", team->name));
    TSR_TRY(start_workers(team));
    TSR_TRY(tsr_team_submit(team, do_nothing, NULL)); /* ends when all threads are pinned */
    if (tsr_team_wait(team, TSR_FOREVER) != TSR_WAIT_DONE)
        TSR_TRY(tsr_watch_lose(team->config.watch, "%s: its threads do not start", team->name));
    *team_out = team;
    team = NULL;
out:
    (void)tsr_team_destroy(team);
    return status;
}

/* End the threads; a child process has none. False: they were abandoned. */
static bool join_workers(tsr_team *team)
{
    if (tsr_watch_is_forked(team->config.watch))
        return true;
    if (tsr_team_wait(team, TSR_FOREVER) != TSR_WAIT_DONE)
        tsr_team_abandon(team);
    if (tsr_team_is_abandoned(team))
        return false;
    atomic_store(&team->stop, true);
    tsr_event_notify(&team->job_submitted);
    for (int i = 0; i < team->n_started; i++)
        pthread_join(team->workers[i].thread, NULL);
    return true;
}

bool tsr_team_destroy(tsr_team *team)
{
    if (!team)
        return true;
    if (team->events_ready) {
        if (!join_workers(team))
            return false;
        tsr_event_destroy(&team->job_finished);
        tsr_event_destroy(&team->job_submitted);
        tsr_event_destroy(&team->phase_changed);
    }
    tsr_mem_free(team->members);
    tsr_mem_free(team->workers);
    tsr_mem_free(team);
    return true;
}
