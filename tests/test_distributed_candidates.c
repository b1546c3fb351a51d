/* The likeliest tokens where devices are in several processes: every process has those of all devices, and
 * all must want as many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/status.h"
#include "support/distributed_task.h"
#include "support/top_k_reference.h"

enum { K = 9, N_OUTPUTS = 2 };

static const int32_t prompt[] = {3, 1, 4, 1, 5};
static const bool outputs[] = {false, true, false, false, true};
static const tsr_batch batch = {.n_tokens = 5, .tokens = prompt, .outputs = outputs};

static tsr_status compare(process *self, tsr_model *model, tsr_session *session)
{
    tsr_status status = TSR_OK;
    float logits[N_OUTPUTS][SESSION_VOCAB];
    tsr_candidate found[N_OUTPUTS][K], expected[K];
    (void)self;
    (void)model;
    TSR_TRY(tsr_session_decode(session, &batch, logits[0]));
    TSR_TRY(tsr_session_trim(session, 0, 0));
    TSR_TRY(tsr_session_decode_candidates(session, &batch, K, found[0]));
    for (int i = 0; i < N_OUTPUTS; i++) {
        top_k_reference(logits[i], SESSION_VOCAB, K, 0, expected);
        if (memcmp(found[i], expected, sizeof expected) != 0)
            return tsr_fail(TSR_ERR_FORMAT, "output %d: candidates are not those of the logits", i);
    }
out:
    return status;
}

static void compare_body(process *self)
{
    task_with_session(self, compare);
}

static void every_process_has_the_candidates_of_all_devices(void **state)
{
    (void)state;
    task tasks[] = {{.devices = {"host:1,threads=1", "host:2,threads=1"}, .split = {1, 2, 1}, .n_split = 3},
                    {.devices = {"host:1,threads=1", "host:1,threads=1", "host:1,threads=1"},
                     .split = {3, 0, 1},
                     .n_split = 3}};
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
        process processes[PROCESSES_MAX];
        const int n = task_run(&tasks[i], compare_body, NULL, processes);
        task_assert_status(processes, n, TSR_OK, "");
        task_free(&tasks[i]);
    }
}

/* Process 1 wants another number, and then the same. */
static tsr_status want_other_number(process *self, tsr_model *model, tsr_session *session)
{
    tsr_candidate found[N_OUTPUTS * (K + 1)];
    const tsr_status status =
        tsr_session_decode_candidates(session, &batch, self->rank == 1 ? K + 1 : K, found);
    if (status != TSR_ERR_INVALID || !strstr(tsr_last_error(), "tsr_session_decode: arguments"))
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s", tsr_status_name(status), tsr_last_error());
    return compare(self, model, session);
}

static void want_other_number_body(process *self)
{
    task_with_session(self, want_other_number);
}

static void numbers_that_differ_are_refused(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:1,threads=1", "host:1,threads=1"}, .split = {1, 1}, .n_split = 2};
    const int n = task_run(&t, want_other_number_body, NULL, processes);
    task_assert_status(processes, n, TSR_OK, "");
    task_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_process_has_the_candidates_of_all_devices),
        cmocka_unit_test(numbers_that_differ_are_refused),
    };
    return cmocka_run_group_tests(tests, task_set_up, task_tear_down);
}
