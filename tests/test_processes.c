/* How the processes of one runtime stay in step (core/processes.h): they agree on the outcome of calls and
 * share what one of them knows, whichever of them fails, and where; and they notice when they are not in
 * step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "core/processes.h"
#include "support/thread_transport.h"

enum { N = 3, WIDE = (1 << 20) + 40 };

static tsr_processes *join(process *self, uint64_t timeout_ns)
{
    tsr_processes *p = NULL;
    process_note(self, tsr_processes_create(&self->transport, timeout_ns, NULL, TSR_OK, &p));
    return p;
}

static void assert_all(const process *processes, int n, tsr_status status, const char *text)
{
    for (int r = 0; r < n; r++) {
        if (processes[r].status != status || !strstr(processes[r].text, text))
            fail_msg("process %d: %s: %s", r, tsr_status_name(processes[r].status), processes[r].text);
    }
}

/* A call that comes to `status` in process 1. */
static tsr_status call_of(const process *self, tsr_status status)
{
    return self->rank == 1 && status != TSR_OK ? tsr_fail(status, "the disk of one is full") : TSR_OK;
}

static void agree_on_failure(process *self)
{
    tsr_processes *p = join(self, 0);
    process_note(self, tsr_processes_agree(p, call_of(self, TSR_ERR_IO), "a call"));
    tsr_processes_destroy(p);
}

static void agree_after_failure(process *self)
{
    tsr_processes *p = join(self, 0);
    (void)!tsr_processes_agree(p, call_of(self, TSR_ERR_IO), "a call");
    process_note(self, tsr_processes_agree(p, TSR_OK, "another call"));
    tsr_processes_destroy(p);
}

static void all_processes_fail_with_the_sentence_of_one(void **state)
{
    (void)state;
    process processes[N];
    processes_run(N, agree_on_failure, NULL, NULL, processes);
    assert_all(processes, N, TSR_ERR_IO, "the disk of one is full");
    assert_string_equal(processes[1].text, "the disk of one is full");
    assert_string_equal(processes[2].text, "process 1: the disk of one is full");
    processes_run(N, agree_after_failure, NULL, NULL, processes);
    assert_all(processes, N, TSR_OK, "");
}

/* Rows with gaps between them, rows without, a row that is longer than what is passed on at once. */
static const struct {
    size_t stride, width, height;
} shapes[] = {{12, 7, 5}, {7, 7, 5}, {WIDE + 3, WIDE, 3}, {WIDE, WIDE, 2}, {1000, 900, 3000}, {1, 1, 1}};

static unsigned char byte_of(size_t row, size_t at)
{
    return (unsigned char)(row * 31 + at * 7 + 1);
}

static bool has_rows(const unsigned char *rows, size_t stride, size_t width, size_t height)
{
    for (size_t row = 0; row < height; row++)
        for (size_t at = 0; at < stride && row * stride + at < (height - 1) * stride + width; at++)
            if (rows[row * stride + at] != (at < width ? byte_of(row, at) : 0))
                return false;
    return true;
}

static void share_rows(process *self)
{
    tsr_processes *p = join(self, 0);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && self->status == TSR_OK; i++) {
        const size_t stride = shapes[i].stride, width = shapes[i].width, height = shapes[i].height;
        unsigned char *rows = calloc(stride, height);
        for (size_t row = 0; row < height && self->rank == 2; row++)
            for (size_t at = 0; at < width; at++)
                rows[row * stride + at] = byte_of(row, at);
        process_note(self, tsr_processes_share(p, 2, TSR_OK, rows, stride, width, height, "rows"));
        if (self->status == TSR_OK && !has_rows(rows, stride, width, height))
            process_note(self, tsr_fail(TSR_ERR_FORMAT, "shape %zu came as something else", i));
        free(rows);
    }
    tsr_processes_destroy(p);
}

static void what_one_process_knows_all_know(void **state)
{
    (void)state;
    process processes[N];
    processes_run(N, share_rows, NULL, NULL, processes);
    assert_all(processes, N, TSR_OK, "");
}

/* Process 1 fails before the others share something, and has come to the end of the call. */
static void share_after_failure(process *self)
{
    tsr_processes *p = join(self, 0);
    int value = 0;
    tsr_status status = call_of(self, TSR_ERR_MEMORY);
    for (int i = 0; i < 2 && status == TSR_OK; i++)
        status = tsr_processes_share(p, 0, TSR_OK, &value, sizeof value, sizeof value, 1, "a value");
    process_note(self, tsr_processes_agree(p, status, "a call"));
    const tsr_status after = tsr_processes_agree(p, TSR_OK, "the next call");
    if (after != TSR_OK)
        process_note(self, after);
    tsr_processes_destroy(p);
}

/* Process 1 has the value and cannot read it. */
static void share_fails(process *self)
{
    tsr_processes *p = join(self, 0);
    int value = 0;
    tsr_status status = tsr_processes_share(p, 1, call_of(self, TSR_ERR_MEMORY), &value, sizeof value,
                                            sizeof value, 1, "a value");
    process_note(self, tsr_processes_agree(p, status, "a call"));
    const tsr_status after = tsr_processes_agree(p, TSR_OK, "the next call");
    if (after != TSR_OK)
        process_note(self, after);
    tsr_processes_destroy(p);
}

static void who_is_ahead_learns_of_a_failure_by_sharing(void **state)
{
    (void)state;
    process processes[N];
    processes_run(N, share_after_failure, NULL, NULL, processes);
    assert_all(processes, N, TSR_ERR_MEMORY, "the disk of one is full");
    processes_run(N, share_fails, NULL, NULL, processes);
    assert_all(processes, N, TSR_ERR_MEMORY, "the disk of one is full");
}

/* A call inside another: process 1 fails in the outer one before it comes to the inner. */
static void fail_before_inner_call(process *self)
{
    tsr_processes *p = join(self, 0);
    tsr_status status = call_of(self, TSR_ERR_MEMORY);
    if (status == TSR_OK)
        status = tsr_processes_agree(p, TSR_OK, "an inner call");
    process_note(self, tsr_processes_agree(p, status, "an outer call"));
    const tsr_status after = tsr_processes_agree(p, TSR_OK, "the next call");
    if (after != TSR_OK)
        process_note(self, after);
    tsr_processes_destroy(p);
}

static void calls_may_contain_calls(void **state)
{
    (void)state;
    process processes[N];
    processes_run(N, fail_before_inner_call, NULL, NULL, processes);
    assert_all(processes, N, TSR_ERR_MEMORY, "the disk of one is full");
}

static void call_differently(process *self)
{
    tsr_processes *p = join(self, 0);
    const tsr_status status = tsr_processes_agree(p, TSR_OK, self->rank == 2 ? "opening" : "decoding");
    process_note(self, status == TSR_ERR_DEVICE_LOST ? tsr_processes_agree(p, TSR_OK, "decoding") : status);
    tsr_processes_destroy(p);
}

static void processes_out_of_step_are_lost_and_say_so(void **state)
{
    (void)state;
    process processes[N];
    processes_run(N, call_differently, NULL, NULL, processes);
    assert_all(processes, N, TSR_ERR_DEVICE_LOST, "the same calls in the same order");
    assert_non_null(strstr(processes[0].text, " in another call")); /* as it sees it, or another one did */
}

static void agree_with_deadline(process *self)
{
    tsr_processes *p = join(self, 20000000);
    tsr_status status = TSR_OK;
    for (int i = 0; i < 10 && status == TSR_OK; i++)
        status = tsr_processes_agree(p, TSR_OK, "a call");
    process_note(self, status);
    tsr_processes_destroy(p);
}

static void what_the_network_loses_is_noticed(void **state)
{
    (void)state;
    process processes[N];
    processes_run(N, agree_with_deadline, NULL, &(process_faults){.rank = 1, .fail_at = 4}, processes);
    assert_int_equal(processes[1].status, TSR_ERR_DEVICE_LOST);
    assert_non_null(strstr(processes[1].text, "the test's network fails"));
}

/* -- the heartbeat -- */

enum { LIMIT_MS = 400 };

/* What process 1 does in the middle, and the limit. */
typedef struct trouble {
    bool (*in_1)(process *self, tsr_processes *p); /* whether it goes on */
    bool in_step;                                  /* the others wait in a step */
    int limit_ms;
} trouble;

static void wait_in_agreement(process *self)
{
    const trouble *t = self->user;
    tsr_processes *p = join(self, (uint64_t)t->limit_ms * 1000000);
    tsr_status status = tsr_processes_agree(p, TSR_OK, "a call");
    if (t->in_step)
        tsr_processes_step(p, true);
    if (status == TSR_OK && (self->rank != 1 || t->in_1(self, p)))
        status = tsr_processes_agree(p, status, "another call");
    process_note(self, status);
    tsr_processes_destroy(p);
}

/* After its name is known. */
static bool vanish(process *self, tsr_processes *p)
{
    (void)p;
    usleep(LIMIT_MS / 2 * 1000);
    process_vanish(self);
    return false;
}

static bool take_time(process *self, tsr_processes *p)
{
    (void)p;
    usleep((useconds_t)((const trouble *)self->user)->limit_ms * 3000);
    return true;
}

static bool lose(process *self, tsr_processes *p)
{
    (void)self;
    tsr_processes_lose(p, "its disk is on fire");
    return false;
}

static bool leave_early(process *self, tsr_processes *p)
{
    (void)self;
    (void)!tsr_processes_close(p);
    return false;
}

static void assert_others(const trouble *t, tsr_status status, const char *text)
{
    process processes[N];
    processes_run(N, wait_in_agreement, (void *)(uintptr_t)t, NULL, processes);
    for (int r = 0; r < N; r += 2)
        if (processes[r].status != status || !strstr(processes[r].text, text))
            fail_msg("process %d: %s: %s", r, tsr_status_name(processes[r].status), processes[r].text);
}

static void a_process_that_is_lost_is_named(void **state)
{
    (void)state;
    char text[128], host[64] = "";
    (void)!gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "process 1 on %s has not answered for 0.", host);
    assert_others(&(trouble){vanish, false, LIMIT_MS}, TSR_ERR_DEVICE_LOST, text);
    assert_others(&(trouble){vanish, true, LIMIT_MS}, TSR_ERR_DEVICE_LOST, "process 1 on ");
    snprintf(text, sizeof text, "the wait for process 1 on %s ", host);
    assert_others(&(trouble){take_time, true, LIMIT_MS}, TSR_ERR_DEVICE_LOST, text);
    snprintf(text, sizeof text, "lost: process 1 on %s: its disk is on fire", host);
    assert_others(&(trouble){lose, false, 1000}, TSR_ERR_DEVICE_LOST, text);
    snprintf(text, sizeof text, "process 1 on %s (which has closed the runtime)", host);
    assert_others(&(trouble){leave_early, false, LIMIT_MS}, TSR_ERR_DEVICE_LOST, text);
}

/* Outside a step, for longer than the limit. */
static void a_process_that_takes_its_time_is_waited_for(void **state)
{
    (void)state;
    assert_others(&(trouble){take_time, false, 2 * LIMIT_MS}, TSR_OK, "");
}

/* Process 1 is not there when the others close. */
static void close_alone(process *self)
{
    tsr_processes *p = join(self, LIMIT_MS * 1000000);
    (void)!tsr_processes_agree(p, TSR_OK, "a call");
    if (self->rank == 1)
        process_vanish(self);
    else
        usleep(LIMIT_MS / 2 * 1000);
    process_note(self, tsr_processes_close(p));
    tsr_processes_destroy(p);
}

static void closing_does_not_wait_for_a_lost_process(void **state)
{
    (void)state;
    process processes[N];
    processes_run(N, close_alone, NULL, NULL, processes);
    for (int r = 0; r < N; r += 2)
        if (processes[r].status != TSR_ERR_DEVICE_LOST || !strstr(processes[r].text, "process 1"))
            fail_msg("process %d: %s", r, processes[r].text);
}

/* Two different reasons: the first stays. */
static void lose_twice(process *self)
{
    tsr_processes *p = join(self, 0);
    tsr_processes_lose(p, "first");
    tsr_processes_lose(p, "second");
    process_note(self, tsr_processes_check(p));
    tsr_processes_destroy(p);
}

static void alone_there_is_nothing_to_agree_on(void **state)
{
    (void)state;
    process one;
    int value = 5;
    assert_int_equal(tsr_processes_agree(NULL, TSR_ERR_IO, "a call"), TSR_ERR_IO);
    assert_int_equal(tsr_processes_share(NULL, 0, TSR_OK, &value, 4, 4, 1, "a value"), TSR_OK);
    assert_int_equal(tsr_processes_check(NULL), TSR_OK);
    assert_int_equal(tsr_processes_count(NULL), 1);
    tsr_processes_destroy(NULL);
    processes_run(1, lose_twice, NULL, NULL, &one);
    assert_all(&one, 1, TSR_ERR_DEVICE_LOST, "first");
}

static void transports_are_checked(void **state)
{
    (void)state;
    tsr_transport t = tsr_transport_default();
    tsr_processes *p = NULL;
    assert_int_equal(tsr_processes_create(&t, 0, NULL, TSR_OK, &p), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "lacks a function"));
    t.n_ranks = 65;
    assert_int_equal(tsr_processes_create(&t, 0, NULL, TSR_OK, &p), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "process 0 of 65"));
    t.size = 1;
    assert_int_equal(tsr_processes_create(&t, 0, NULL, TSR_OK, &p), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "tsr_transport_default()"));
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_processes_fail_with_the_sentence_of_one),
        cmocka_unit_test(what_one_process_knows_all_know),
        cmocka_unit_test(who_is_ahead_learns_of_a_failure_by_sharing),
        cmocka_unit_test(calls_may_contain_calls),
        cmocka_unit_test(processes_out_of_step_are_lost_and_say_so),
        cmocka_unit_test(what_the_network_loses_is_noticed),
        cmocka_unit_test(a_process_that_is_lost_is_named),
        cmocka_unit_test(a_process_that_takes_its_time_is_waited_for),
        cmocka_unit_test(closing_does_not_wait_for_a_lost_process),
        cmocka_unit_test(alone_there_is_nothing_to_agree_on),
        cmocka_unit_test(transports_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
