/* Thread teams: every job runs on each of its members once, however many take part; a member that holds
 * the others up sits out for a while and comes back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <cmocka.h>

#include "core/event.h"
#include "host/team.h"

enum { MAX_THREADS = 4 };

typedef struct task {
    tsr_team *team;
    int late;      /* thread that comes last to the barrier; -1: none */
    long late_ns;  /* after the others */
    int n_threads; /* as the job was told; 0 before */
    _Atomic int came, runs[MAX_THREADS];
    int n_phases;
} task;

static void pause_ns(long ns)
{
    const struct timespec time = {0, ns};
    nanosleep(&time, NULL);
}

static void meet_twice(void *argument, int thread, int n_threads)
{
    task *t = argument;
    atomic_fetch_add(&t->runs[thread], 1);
    for (int i = 0; i < 2; i++) {
        if (thread != t->late) {
            atomic_fetch_add(&t->came, 1);
        } else {
            while (atomic_load(&t->came) < (i + 1) * (n_threads - 1))
                pause_ns(100000);
            pause_ns(t->late_ns);
        }
        if (tsr_team_gather(t->team, thread)) {
            t->n_threads = n_threads;
            t->n_phases++;
            tsr_team_release(t->team);
        }
    }
}

static void run(task *t)
{
    assert_int_equal(tsr_team_submit(t->team, meet_twice, t), TSR_OK);
    assert_int_equal(tsr_team_wait(t->team, TSR_FOREVER), TSR_WAIT_DONE);
    assert_int_equal(t->n_threads, tsr_team_n_members(t->team));
    assert_int_equal(t->n_phases, 2);
    for (int i = 0; i < MAX_THREADS; i++)
        assert_int_equal(atomic_load(&t->runs[i]), i < t->n_threads);
}

static tsr_team *create(int n_threads)
{
    tsr_team *team = NULL;
    const tsr_team_config config = {.name = "team", .n_threads = n_threads};
    assert_int_equal(tsr_team_create(&config, &team), TSR_OK);
    tsr_team_set_polls(team, 10, 0);
    return team;
}

/* Tried again where the system itself was late with a thread. */
static void who_is_late_sits_out_and_comes_back(void **state)
{
    (void)state;
    tsr_team *team = create(2);
    tsr_team_adapt(team, true);
    for (int members = 2; members == 2; members = tsr_team_n_members(team)) {
        run(&(task){.team = team, .late = 1, .late_ns = 20000000});
        run(&(task){.team = team, .late = -1});
    }
    assert_int_equal(tsr_team_n_members(team), 1);
    while (tsr_team_n_members(team) == 1) {
        pause_ns(5000000);
        run(&(task){.team = team, .late = -1});
    }
    tsr_team_destroy(team);
}

static void a_team_that_does_not_adapt_stays_whole(void **state)
{
    (void)state;
    tsr_team *team = create(2);
    for (int i = 0; i < 3; i++)
        run(&(task){.team = team, .late = i % 2, .late_ns = 5000000});
    assert_int_equal(tsr_team_n_members(team), 2);
    tsr_team_destroy(team);
}

/* Members come and go; none runs twice, none is forgotten, none waits without end. */
static void every_member_runs_every_job_once(void **state)
{
    (void)state;
    tsr_team *team = create(MAX_THREADS);
    tsr_team_adapt(team, true);
    uint32_t random = 1;
    for (int i = 0; i < 300; i++) {
        random = random * 1664525u + 1013904223u;
        int late = (int)(random >> 20) % (2 * MAX_THREADS);
        run(&(task){.team = team,
                    .late = late < tsr_team_n_members(team) - 1 ? late : -1,
                    .late_ns = late % 2 ? 2000000 : 100000});
    }
    tsr_team_destroy(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_late_sits_out_and_comes_back),
        cmocka_unit_test(a_team_that_does_not_adapt_stays_whole),
        cmocka_unit_test(every_member_runs_every_job_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
