/* Going on without a process, or without a device of one, in a runtime of several processes
 * (tsr_runtime_drop_device()): those that are left compute the bits of one device, wherever it was lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/runtime.h"
#include "model/session/session.h"
#include "support/distributed_task.h"
#include "support/random.h"
#include "support/sanitized.h"

enum { LIMIT_MS = TSR_TEST_SANITIZED ? 2000 : 1000, HALF = N_TOKENS / 2 };

/* What happens, to which process, and after how many more operations of the transport. */
static struct {
    int rank;
    int64_t after;
} lost[2];

/* Each takes as long as it takes to notice a loss. TSR_TEST_ROUNDS (300 by default) for one in `every`. */
static int n_rounds(int every)
{
    const char *text = getenv("TSR_TEST_ROUNDS");
    return TSR_MAX((text ? atoi(text) : 300) / every, 1);
}

static task three_processes(void)
{
    return (task){.devices = {"host:1,threads=1", "host:2,threads=1", "host:1,threads=1"},
                  .split = {2, 1, 1, 1},
                  .n_split = 4,
                  .mode = TSR_SPLIT_MODE_TENSOR,
                  .timeout_ns = UINT64_C(1000000) * LIMIT_MS};
}

/* -- a device that works -- */

static tsr_status drop_between(process *self, tsr_model *model, tsr_session *session)
{
    tsr_status status = task_decode(self, session, 0, HALF);
    if (status == TSR_OK)
        status = tsr_runtime_drop_device(model->rt, 1);
    return status == TSR_OK ? task_decode(self, session, HALF, N_TOKENS) : status;
}

static void drop_between_body(process *self)
{
    task_with_session(self, drop_between);
}

static tsr_status drop_different(process *self, tsr_model *model, tsr_session *session)
{
    if (tsr_runtime_drop_device(model->rt, self->rank) != TSR_ERR_INVALID)
        return tsr_fail(TSR_ERR_FORMAT, "processes drop different devices");
    if (tsr_runtime_drop_device(model->rt, TSR_LOST_DEVICES) != TSR_ERR_INVALID)
        return tsr_fail(TSR_ERR_FORMAT, "a device is dropped where none is lost");
    return task_decode(self, session, 0, N_TOKENS);
}

static void drop_different_body(process *self)
{
    task_with_session(self, drop_different);
}

static void a_device_that_works_is_taken_out(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    void (*const bodies[])(process *) = {drop_between_body, drop_different_body};
    for (int i = 0; i < 2; i++) {
        task t = three_processes();
        const int n = task_run(&t, bodies[i], NULL, processes);
        task_assert_status(processes, n, TSR_OK, "");
        task_assert_same(&t, n);
        assert_true((t.used[0][1][TSR_MEMORY_KV] == 0) == (i == 0));
        task_free(&t);
    }
}

/* -- a device of a process that is there -- */

/* Process 1 loses a device, in the middle of its text, or nothing but the runtime. */
static tsr_status lose_device(process *self, tsr_model *model, tsr_session *session)
{
    int n_drops = 0;
    tsr_device_info info;
    tsr_status status = task_decode(self, session, 0, HALF);
    if (status == TSR_OK && self->rank == 1) {
        model->rt->devices[2]->lost = lost[0].after > 0;
        tsr_processes_lose(model->rt->processes, "a device fell off the bus");
    }
    if (status == TSR_OK)
        status = task_decode_on(self, model, session, &n_drops);
    if (status == TSR_OK && n_drops != 1)
        return tsr_fail(TSR_ERR_FORMAT, "%d losses instead of 1", n_drops);
    if (status == TSR_OK)
        status = tsr_runtime_device(model->rt, 2, &info);
    if (status == TSR_OK && (info.dropped != (lost[0].after > 0) || info.gone))
        return tsr_fail(TSR_ERR_FORMAT, "device %s: dropped %d, gone %d", info.name, info.dropped, info.gone);
    return status;
}

static void lose_device_body(process *self)
{
    task_with_session(self, lose_device);
}

static void a_device_that_one_process_lost_is_dropped_in_all(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    for (int loses = 0; loses < 2; loses++) {
        task t = three_processes();
        lost[0].after = loses;
        const int n = task_run(&t, lose_device_body, NULL, processes);
        task_assert_status(processes, n, TSR_OK, "");
        task_assert_same(&t, n);
        task_free(&t);
    }
}

static void process_without_devices_body(process *self)
{
    task_with_session(self, lose_device);
}

/* Its only device is lost. It goes on to agree with the others, and gets the same results. */
static void a_process_can_go_on_without_devices(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:2,threads=1", "host:1,threads=1"},
              .split = {1, 1, 1},
              .n_split = 3,
              .mode = TSR_SPLIT_MODE_TENSOR};
    lost[0].after = 1;
    const int n = task_run(&t, process_without_devices_body, NULL, processes);
    task_assert_status(processes, n, TSR_OK, "");
    task_assert_same(&t, n);
    task_free(&t);
}

/* -- a process -- */

/* The processes of lost[] are gone after some operations; the others go on. */
static tsr_status lose_processes(process *self, tsr_model *model, tsr_session *session)
{
    int n_drops = 0;
    for (int i = 0; i < 2; i++)
        if (lost[i].after > 0 && lost[i].rank == self->rank) {
            process_vanish_after(self, lost[i].after);
            return task_decode_on(self, model, session, NULL);
        }
    tsr_status status = task_decode_on(self, model, session, &n_drops);
    for (int d = 0; d < tsr_runtime_n_devices(model->rt) && status == TSR_OK && n_drops > 0; d++) {
        tsr_device_info info;
        status = tsr_runtime_device(model->rt, d, &info);
        if (status == TSR_OK && info.process == lost[0].rank && !(info.dropped && info.gone))
            return tsr_fail(TSR_ERR_FORMAT, "device %s is not gone", info.name);
    }
    return status;
}

static void lose_processes_body(process *self)
{
    task_with_session(self, lose_processes);
}

/* Those that are left have the bits of one device. Returns how many were lost before they had finished. */
static int check_survivors(const process *processes, task *t, int n)
{
    int n_lost = 0;
    for (int r = 0; r < n; r++) {
        const bool may_be_lost = lost[0].rank == r || (lost[1].after > 0 && lost[1].rank == r);
        if (may_be_lost && processes[r].status == TSR_ERR_DEVICE_LOST) {
            n_lost++;
            continue;
        }
        task_assert_status(&processes[r], 1, TSR_OK, "");
        task_assert_rows(t, r);
    }
    return n_lost;
}

static void text_goes_on_without_a_process(void **state)
{
    (void)state;
    const tsr_split_mode modes[] = {TSR_SPLIT_MODE_TENSOR, TSR_SPLIT_MODE_LAYER, TSR_SPLIT_MODE_NONE};
    uint64_t seed = 17;
    int n_lost = 0;
    process processes[PROCESSES_MAX];
    for (int i = 0; i < n_rounds(40); i++) {
        task t = three_processes();
        t.mode = modes[i % 3];
        lost[0].rank = (int)random_below(&seed, 3);
        lost[0].after = 1 + (int64_t)random_below(&seed, 150);
        lost[1].after = 0;
        const int n = task_run(&t, lose_processes_body, NULL, processes);
        n_lost += check_survivors(processes, &t, n);
        task_free(&t);
    }
    assert_true(n_lost > 0);
}

/* The second is lost while the others go on, or after it. */
static void text_goes_on_without_a_second_process(void **state)
{
    (void)state;
    uint64_t seed = 19;
    process processes[PROCESSES_MAX];
    for (int i = 0; i < n_rounds(100); i++) {
        task t = three_processes();
        lost[0].rank = 0;
        lost[0].after = 40;
        lost[1].rank = 2;
        lost[1].after = 41 + (int64_t)random_below(&seed, 150);
        const int n = task_run(&t, lose_processes_body, NULL, processes);
        assert_int_equal(check_survivors(processes, &t, n), 2);
        task_free(&t);
    }
}

/* It makes its call when the others have given it up. */
static tsr_status come_late(process *self, tsr_model *model, tsr_session *session)
{
    int n_drops = 0;
    tsr_status status = task_decode(self, session, 0, HALF);
    if (self->rank == 1)
        tsr_processes_lose(model->rt->processes, "nothing is lost but time");
    if (self->rank != 2)
        return status == TSR_OK ? task_decode_on(self, model, session, &n_drops) : status;
    status = task_decode_on(self, model, session, NULL);
    usleep(3 * LIMIT_MS * 1000);
    return status == TSR_ERR_DEVICE_LOST ? tsr_runtime_drop_device(model->rt, TSR_LOST_DEVICES) : TSR_OK;
}

static void come_late_body(process *self)
{
    task_with_session(self, come_late);
}

static void a_process_that_comes_late_is_told(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = three_processes();
    lost[0].rank = 2;
    lost[1].after = 0;
    const int n = task_run(&t, come_late_body, NULL, processes);
    assert_int_equal(check_survivors(processes, &t, n), 1);
    assert_non_null(strstr(processes[2].text, "the other processes go on without process 2"));
    task_free(&t);
}

static tsr_status lose_for_good(process *self, tsr_model *model, tsr_session *session)
{
    int n_drops = 0;
    tsr_processes_lose(model->rt->processes, "a device fell off the bus");
    return task_decode_on(self, model, session, &n_drops);
}

static void plain_transport_body(process *self)
{
    self->transport.survives = false;
    task_with_session(self, lose_for_good);
}

/* Nothing but the runtime is lost, again and again. */
static tsr_status lose_often(process *self, tsr_model *model, tsr_session *session)
{
    for (int i = 0; i < TSR_EPOCHS; i++) {
        tsr_processes_lose(model->rt->processes, "nothing is lost but time");
        const tsr_status status = tsr_runtime_drop_device(model->rt, TSR_LOST_DEVICES);
        if (status != TSR_OK || i + 1 == TSR_EPOCHS)
            return status;
        if (i == 0 && task_decode(self, session, 0, N_TOKENS) != TSR_OK)
            return TSR_ERR_FORMAT;
        usleep(i == 0 ? 100000 : 0); /* until all have decoded */
    }
    return TSR_OK;
}

static void lose_often_body(process *self)
{
    task_with_session(self, lose_often);
}

static void after_six_losses_the_next_one_is_the_last(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = three_processes();
    const int n = task_run(&t, lose_often_body, NULL, processes);
    task_assert_status(processes, n, TSR_ERR_DEVICE_LOST, "after 6 losses, and can do so no more");
    task_assert_same(&t, n);
    task_free(&t);
}

static void a_transport_that_does_not_survive_is_named(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = three_processes();
    const int n = task_run(&t, plain_transport_body, NULL, processes);
    task_assert_status(processes, n, TSR_ERR_UNSUPPORTED, "tsr_transport.survives");
    task_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_works_is_taken_out),
        cmocka_unit_test(a_device_that_one_process_lost_is_dropped_in_all),
        cmocka_unit_test(a_process_can_go_on_without_devices),
        cmocka_unit_test(text_goes_on_without_a_process),
        cmocka_unit_test(text_goes_on_without_a_second_process),
        cmocka_unit_test(a_process_that_comes_late_is_told),
        cmocka_unit_test(after_six_losses_the_next_one_is_the_last),
        cmocka_unit_test(a_transport_that_does_not_survive_is_named),
    };
    return cmocka_run_group_tests(tests, task_set_up, task_tear_down);
}
