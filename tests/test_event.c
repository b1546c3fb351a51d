/* Waiting and waking. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/event.h"

enum { MS = 1000000 };

typedef struct ball {
    tsr_event event;
    _Atomic int side; /* who may play */
    int polls, n_rounds;
} ball;

typedef struct player {
    ball *ball;
    int side;
} player;

static bool is_my_turn(void *what)
{
    const player *me = what;
    return atomic_load(&me->ball->side) == me->side;
}

static void *play(void *argument)
{
    player *me = argument;
    for (int i = 0; i < me->ball->n_rounds; i++) {
        tsr_event_wait(&me->ball->event, is_my_turn, me, me->ball->polls, TSR_FOREVER);
        atomic_store(&me->ball->side, 1 - me->side);
        tsr_event_notify(&me->ball->event);
    }
    return NULL;
}

/* Two threads hand a ball to and fro: one lost wake-up and the test never ends. */
static void no_wake_up_is_lost(void **state)
{
    (void)state;
    const int polls[] = {0, 1, 20, 1000};
    for (int p = 0; p < 4; p++) {
        ball the_ball = {.polls = polls[p], .n_rounds = 5000};
        player players[] = {{&the_ball, 0}, {&the_ball, 1}};
        pthread_t threads[2];
        assert_true(tsr_event_init(&the_ball.event));
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, play, &players[i]), 0);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(atomic_load(&the_ball.side), 0);
        tsr_event_destroy(&the_ball.event);
    }
}

static void a_deadline_ends_the_wait(void **state)
{
    (void)state;
    ball the_ball = {.side = 0};
    player me = {&the_ball, 1};
    assert_true(tsr_event_init(&the_ball.event));
    uint64_t start = tsr_clock_ns();
    assert_false(tsr_event_wait(&the_ball.event, is_my_turn, &me, 10, tsr_deadline_ns(20 * MS)));
    assert_true(tsr_clock_ns() - start >= 20 * MS);
    assert_false(tsr_event_wait(&the_ball.event, is_my_turn, &me, 10, start)); /* long past */
    atomic_store(&the_ball.side, 1);
    assert_true(tsr_event_wait(&the_ball.event, is_my_turn, &me, 0, start)); /* already true: no matter */
    tsr_event_destroy(&the_ball.event);
}

static void *wait_two_seconds(void *argument)
{
    player *me = argument;
    const bool in_time = tsr_event_wait(&me->ball->event, is_my_turn, me, 0, tsr_deadline_ns(2000 * MS));
    return in_time ? me : NULL;
}

/* In a process of its own: stopped for longer than its waiter waits, and in time otherwise. */
static _Noreturn void be_stopped(void)
{
    ball the_ball = {.side = 0};
    player me = {&the_ball, 1};
    pthread_t thread;
    void *in_time = NULL;
    if (!tsr_event_init(&the_ball.event) || pthread_create(&thread, NULL, wait_two_seconds, &me) != 0)
        _exit(2);
    usleep(100000);
    raise(SIGSTOP);
    usleep(100000);
    atomic_store(&the_ball.side, 1);
    tsr_event_notify(&the_ball.event);
    pthread_join(thread, &in_time);
    _exit(in_time ? 0 : 1);
}

static void time_in_which_a_process_is_stopped_does_not_count(void **state)
{
    (void)state;
    int how;
    const pid_t child = fork();
    if (child == 0)
        be_stopped();
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &how, WUNTRACED), child);
    assert_true(WIFSTOPPED(how));
    usleep(2500000);
    assert_int_equal(kill(child, SIGCONT), 0);
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
}

static void no_timeout_means_no_deadline(void **state)
{
    (void)state;
    assert_true(tsr_deadline_ns(0) == TSR_FOREVER);
    assert_true(tsr_deadline_ns(UINT64_MAX - 1) == TSR_FOREVER);
    assert_true(tsr_deadline_ns(MS) > tsr_clock_ns());
}

static void polls_grow_with_the_time_asked_for(void **state)
{
    (void)state;
    assert_int_equal(tsr_event_polls(0), 0);
    assert_true(tsr_event_polls(1000 * (uint64_t)MS) > 1000);
    assert_true(tsr_event_polls(UINT64_MAX / 1000) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_wake_up_is_lost),
        cmocka_unit_test(a_deadline_ends_the_wait),
        cmocka_unit_test(time_in_which_a_process_is_stopped_does_not_count),
        cmocka_unit_test(no_timeout_means_no_deadline),
        cmocka_unit_test(polls_grow_with_the_time_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
