/* Failures of runtimes whose devices are in several processes: what fails in one fails in all, with a
 * sentence in every process and without a wait that does not end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "comm/handover.h"
#include "core/status.h"
#include "model/model.h"
#include "model/session/session.h"
#include "support/directory.h"
#include "support/distributed_task.h"
#include "support/failing_alloc.h"

static void what_one_process_cannot_open_none_opens(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:1,threads=1", "host:1,threads=1"}, .path_of_1 = "/not/there.gguf"};
    task_run(&t, task_decode_all, NULL, processes);
    task_assert_status(processes, 2, TSR_ERR_IO, "/not/there.gguf");
    task_free(&t);
    task bad = {.devices = {"host:1,threads=1", "hosts?", "host:1"}};
    task_run(&bad, task_decode_all, NULL, processes);
    task_assert_status(processes, 3, TSR_ERR_INVALID, "hosts?");
    task_free(&bad);
    task small = {.devices = {"host:1,threads=1,mem=64KiB", "host:1,threads=1,mem=64KiB"}};
    task_run(&small, task_decode_all, NULL, processes);
    task_assert_status(processes, 2, TSR_ERR_MEMORY, "host0@");
    task_free(&small);
    task many = {.devices = {"host:33,threads=1", "host:32,threads=1"}};
    task_run(&many, task_decode_all, NULL, processes);
    task_assert_status(processes, 2, TSR_ERR_INVALID, "65 devices together; a runtime has 64 at most");
    task_free(&many);
    task peer = {.devices = {"host:1,threads=1", "host:1,threads=1"}, .collectives = "peer"};
    task_run(&peer, task_decode_all, NULL, processes);
    task_assert_status(processes, 2, TSR_ERR_UNSUPPORTED, "host devices share their memory: use auto");
    task_free(&peer);
    peer.collectives = "nccl";
    task_run(&peer, task_decode_all, NULL, processes);
    task_assert_status(processes, 2, TSR_ERR_UNSUPPORTED, "'nccl' are between GPUs, and not all devices");
    task_free(&peer);
}

/* Process 1 was compiled for a later version of the library. */
static void open_with_newer_config(process *self)
{
    const task *t = self->user;
    struct {
        tsr_runtime_config config;
        uint64_t later;
    } newer = {tsr_runtime_config_default(), 0};
    tsr_runtime *rt = NULL;
    newer.config.size = self->rank == 1 ? sizeof newer : newer.config.size;
    newer.config.devices = t->devices[self->rank];
    newer.config.transport = &self->transport;
    process_note(self, tsr_runtime_open(&newer.config, &rt));
    tsr_runtime_close(rt);
}

static void a_config_that_one_process_cannot_read_fails_all(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:1,threads=1", "host:1,threads=1"}};
    task_run(&t, open_with_newer_config, NULL, processes);
    task_assert_status(processes, 2, TSR_ERR_INVALID, "the caller is from a newer version of tsr");
    task_free(&t);
}

/* A step of one token that fails as it should in every process, and is all that is lost. */
static tsr_status decode_refused(process *self, tsr_session *session, int32_t token, tsr_status expected,
                                 const char *text)
{
    float row[SESSION_VOCAB];
    tsr_batch batch = {.n_tokens = 1, .tokens = &token};
    tsr_status status = tsr_session_decode(session, &batch, row);
    if (status != expected || !strstr(tsr_last_error(), text))
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s", tsr_status_name(status), tsr_last_error());
    return task_decode(self, session, 0, N_TOKENS);
}

/* Process 1 is given another token, and then the same. */
static tsr_status decode_other_token(process *self, tsr_model *model, tsr_session *session)
{
    (void)model;
    return decode_refused(self, session, self->rank, TSR_ERR_INVALID, "tsr_session_decode: arguments");
}

static void other_token_body(process *self)
{
    task_with_session(self, decode_other_token);
}

static void arguments_that_differ_are_refused(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:1,threads=1", "host:1,threads=1"}, .split = {1, 1}, .n_split = 2};
    const int n = task_run(&t, other_token_body, NULL, processes);
    task_assert_status(processes, n, TSR_OK, "");
    task_assert_same(&t, n);
    task_free(&t);
    task files = {.devices = {"host:1,threads=1", "host:1,threads=1"},
                  .split = {1, 1},
                  .n_split = 2,
                  .path_of_1 = "examples/models/glossary-7m-Q8_0.gguf"};
    task_run(&files, task_decode_all, NULL, processes);
    task_assert_status(processes, n, TSR_ERR_INVALID, "tsr_model_open: arguments");
    task_free(&files);
}

/* No room in process 1, then room of another size in each. */
static tsr_status decode_traced(process *self, tsr_model *model, tsr_session *session)
{
    tsr_runtime *rt = model->rt;
    tsr_device_trace traces[2];
    tsr_status status = tsr_trace_start(rt, self->rank == 1 ? 0 : 1000);
    if (status != TSR_ERR_INVALID || !strstr(tsr_last_error(), "n_spans is 0") || tsr_trace_now(rt) != 0)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s", tsr_status_name(status), tsr_last_error());
    status = tsr_trace_start(rt, 100000 + (size_t)self->rank);
    if (status == TSR_OK)
        status = task_decode(self, session, 0, N_TOKENS);
    for (int d = 0; d < 2 && status == TSR_OK; d++)
        status = tsr_trace_read(rt, d, &traces[d]);
    if (status == TSR_OK && (traces[self->rank].n_spans == 0 || traces[1 - self->rank].n_spans > 0))
        status = tsr_fail(TSR_ERR_FORMAT, "%zu spans of this process, %zu of the other",
                          traces[self->rank].n_spans, traces[1 - self->rank].n_spans);
    tsr_trace_stop(rt);
    return status;
}

static void decode_traced_body(process *self)
{
    task_with_session(self, decode_traced);
}

static void a_trace_is_started_in_all_processes_or_in_none(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:1,threads=1", "host:1,threads=1"},
              .split = {1, 1},
              .n_split = 2,
              .mode = TSR_SPLIT_MODE_TENSOR};
    const int n = task_run(&t, decode_traced_body, NULL, processes);
    task_assert_status(processes, n, TSR_OK, "");
    task_assert_same(&t, n);
    task_free(&t);
}

/* It leaves the range of the exact reduction. */
static tsr_status decode_poisoned(process *self, tsr_model *model, tsr_session *session)
{
    (void)model;
    return decode_refused(self, session, SESSION_POISON, TSR_ERR_RANGE, "");
}

static void poison_body(process *self)
{
    task_with_session(self, decode_poisoned);
}

static void a_failed_step_leaves_every_process_as_it_was(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:1,threads=1", "host:1,threads=1"}, .split = {1, 1}, .n_split = 2};
    const int n = task_run(&t, poison_body, NULL, processes);
    task_assert_status(processes, n, TSR_OK, "");
    task_assert_same(&t, n);
    task_free(&t);
}

static void cancel_in_second_chunk(int64_t n_done, int64_t n_tokens, void *session)
{
    if (n_tokens == N_TOKENS && n_done == 2 * N_BATCH)
        tsr_session_cancel(session);
}

/* One process cancels, first inside the call, then before it. */
static tsr_status decode_cancelled(process *self, tsr_model *model, tsr_session *session)
{
    (void)model;
    if (self->rank == 1)
        tsr_session_set_progress(session, cancel_in_second_chunk, session);
    for (int i = 0; i < 2; i++) {
        tsr_status status = task_decode(self, session, 0, N_TOKENS);
        if (status != TSR_ERR_CANCELLED || tsr_session_length(session, 0) != 0 ||
            tsr_session_withdraw_cancel(session) || !strstr(tsr_last_error(), "tsr_session_cancel"))
            return tsr_fail(TSR_ERR_FORMAT, "%s: %s", tsr_status_name(status), tsr_last_error());
        tsr_session_set_progress(session, NULL, NULL);
        if (self->rank == 1 && i == 0)
            tsr_session_cancel(session);
    }
    return task_decode(self, session, 0, N_TOKENS);
}

static void cancel_body(process *self)
{
    task_with_session(self, decode_cancelled);
}

/* In one process: the call ends in all, with chunks in flight (layer mode) and without, and with
 * transfers. */
static void a_cancelled_decode_ends_in_every_process(void **state)
{
    (void)state;
    static const tsr_split_mode modes[] = {TSR_SPLIT_MODE_TENSOR, TSR_SPLIT_MODE_LAYER,
                                           TSR_SPLIT_MODE_TENSOR};
    for (int i = 0; i < 3; i++) {
        process processes[PROCESSES_MAX];
        task t = {.devices = {i < 2 ? "host:1,threads=1" : "host:2,threads=1", "host:1,threads=1"},
                  .split = {1, 1, 1},
                  .n_split = i < 2 ? 2 : 3,
                  .n_gpu_layers = i < 2 ? 0 : 1, /* handed to two devices */
                  .mode = modes[i]};
        const int n = task_run(&t, cancel_body, NULL, processes);
        task_assert_status(processes, n, TSR_OK, "");
        task_assert_same(&t, n);
        task_free(&t);
    }
}

/* Whichever operation of the network fails, or process stops, the others come to an end,
 * and with an error. */
static void no_process_waits_without_end(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task sums = {.devices = {"host:1,threads=1", "host:2,threads=1"},
                 .split = {1, 1, 1},
                 .n_split = 3,
                 .mode = TSR_SPLIT_MODE_TENSOR,
                 .chunk = 20,
                 .timeout_ns = 100000000};
    task transfers = sums;
    transfers.devices[0] = "host:2,threads=2";
    transfers.devices[1] = "host:1,threads=1";
    transfers.n_gpu_layers = 1;
    transfers.chunk = 4;
    for (int gone = 0; gone < 2; gone++) {
        for (int64_t at = 1; at < 100; at += at < 10 ? 1 : 13) {
            const process_faults faults = {.rank = 1, .fail_at = gone ? 0 : at, .gone_at = gone ? at : 0};
            task *t = at % 2 ? &transfers : &sums;
            task_run(t, task_decode_all, &faults, processes);
            task_free(t);
            assert_true(processes[1].status == TSR_ERR_DEVICE_LOST || processes[1].status == TSR_ERR_DEVICE);
            if (processes[0].status != TSR_ERR_DEVICE_LOST)
                fail_msg("operation %d: %s: %s", (int)at, tsr_status_name(processes[0].status),
                         processes[0].text);
        }
    }
}

/* Device 1 sends to device 0 and to devices 2 to 4, which are here; 2 is their voice. */
static void who_is_missing_in_a_transfer(void **state)
{
    (void)state;
    _Atomic bool aborted = false;
    tsr_barrier barrier = {0};
    const tsr_collective_desc desc = {.kind = TSR_OP_SEND, .participants = 0x1f, .contributors = 0x2};
    tsr_handover receives = {.desc = &desc, .here = 0x1c, .voice = 2, .barrier = &barrier};
    const tsr_handover sends = {.desc = &desc, .here = 0x3, .voice = 0, .barrier = &barrier};
    assert_int_equal(tsr_barrier_init(&barrier, 5, &aborted, "ranks"), TSR_OK);
    assert_int_equal(tsr_handover_missing(&sends, 1), 0x1c);
    assert_int_equal(tsr_handover_missing(&receives, 3), 0x4); /* the voice has not come */
    atomic_store(&receives.begun, 1);
    assert_int_equal(tsr_handover_missing(&receives, 2), 0x2);
    assert_int_equal(tsr_handover_missing(&receives, 3), 0x2);
    atomic_store(&barrier.ranks[2].phase, 1); /* it has received; 3 has copied, 4 has not */
    atomic_store(&barrier.ranks[3].phase, 1);
    assert_int_equal(tsr_handover_missing(&receives, 2), 0x10);
    assert_int_equal(tsr_handover_missing(&receives, 3), 0x4); /* in the next transfer */
    atomic_store(&barrier.ranks[4].phase, 1);
    atomic_store(&receives.begun, 2);
    assert_int_equal(tsr_handover_missing(&receives, 4), 0x2);
    tsr_barrier_free(&barrier);
}

/* -- a process that vanishes -- */

static const char *vanish_in; /* the call that process 1 does not come to */

static void vanish_before(process *self, const char *call)
{
    if (self->rank == 1 && strcmp(call, vanish_in) == 0)
        process_vanish(self);
}

static tsr_status use_session(process *self, tsr_model *model, tsr_session *session)
{
    char path[DIRECTORY_PATH];
    const int file = directory_new(path);
    if (file < 0)
        return tsr_fail(TSR_ERR_IO, "no temporary file");
    close(file);
    vanish_before(self, "resplit");
    tsr_status status = tsr_model_resplit(model, (float[]){1, 2}, 2);
    vanish_before(self, "decode");
    if (status == TSR_OK)
        status = task_decode(self, session, 0, N_TOKENS);
    vanish_before(self, "save");
    if (status == TSR_OK)
        status = tsr_session_save(session, &(int){0}, 1, path);
    unlink(path);
    vanish_before(self, "close");
    return status;
}

static void use_body(process *self)
{
    task_with_session(self, use_session);
}

/* Also in calls that may take as long as they need. Closing returns nothing, and comes to an end. */
static void a_process_that_vanishes_in_any_call_is_named(void **state)
{
    (void)state;
    static const char *const calls[] = {"resplit", "decode", "save", "close"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        process processes[PROCESSES_MAX];
        task t = {.devices = {"host:1,threads=1", "host:1,threads=1"},
                  .split = {1, 1},
                  .n_split = 2,
                  .timeout_ns = 500000000};
        vanish_in = calls[i];
        task_run(&t, use_body, NULL, processes);
        task_free(&t);
        const bool closes = strcmp(calls[i], "close") == 0;
        if (processes[0].status != (closes ? TSR_OK : TSR_ERR_DEVICE_LOST) ||
            !strstr(processes[0].text, closes ? "" : "process 1"))
            fail_msg("%s: %s: %s", calls[i], tsr_status_name(processes[0].status), processes[0].text);
    }
}

/* The n-th allocation of all processes together fails, wherever that is. */
static void decode_short_of_memory(process *self)
{
    const task *t = self->user;
    if (self->rank == 0)
        failing_alloc_set(t->fail_alloc);
    task_decode_all(self);
}

static void report_outcome(const process *processes, int64_t n)
{
    fail_msg("allocation %lld: process 0: %s: %s; process 1: %s: %s", (long long)n,
             tsr_status_name(processes[0].status), processes[0].text, tsr_status_name(processes[1].status),
             processes[1].text);
}

/* Both processes fail, or neither does, and none is lost. */
static void memory_that_one_process_lacks_fails_all(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    int n_failed = 0;
    bool fired = true;
    for (int64_t n = 1; fired; n += 1 + n / 12) {
        task t = {.devices = {"host:1,threads=1", "host:2,threads=1"},
                  .split = {1, 1, 1},
                  .n_split = 3,
                  .mode = TSR_SPLIT_MODE_TENSOR,
                  .copies = n % 2,
                  .chunk = 20,
                  .timeout_ns = 60000000000,
                  .fail_alloc = n};
        const int64_t blocks = failing_alloc_live();
        task_run(&t, decode_short_of_memory, NULL, processes);
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        task_free(&t);
        const tsr_status a = processes[0].status, b = processes[1].status;
        if (a != b || a == TSR_ERR_DEVICE_LOST)
            report_outcome(processes, n);
        n_failed += a != TSR_OK;
        assert_int_equal(failing_alloc_live(), blocks);
    }
    assert_true(n_failed > 20);
}

/* What a process could not compile is compiled by the next call, while the others have it already. */
static tsr_status decode_twice(process *self, tsr_model *model, tsr_session *session)
{
    (void)model;
    const task *t = self->user;
    if (session->memory->layout.n_lanes != 2)
        return tsr_fail(TSR_ERR_FORMAT, "a layer for each process makes two stages");
    if (self->rank == 0)
        failing_alloc_set(t->fail_alloc);
    const tsr_status status = task_decode(self, session, 0, N_TOKENS);
    return status == TSR_ERR_MEMORY ? task_decode(self, session, 0, N_TOKENS) : status;
}

static void decode_twice_body(process *self)
{
    task_with_session(self, decode_twice);
}

static void a_call_of_many_chunks_that_failed_can_be_made_again(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    bool fired = true;
    for (int64_t n = 1; fired; n += 1 + n / 40) {
        task t = {.devices = {"host:1,threads=1", "host:1,threads=1"},
                  .split = {1, 2},
                  .n_split = 2,
                  .mode = TSR_SPLIT_MODE_LAYER,
                  .timeout_ns = 60000000000,
                  .fail_alloc = n};
        task_run(&t, decode_twice_body, NULL, processes);
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (processes[0].status != TSR_OK || processes[1].status != TSR_OK)
            report_outcome(processes, n);
        task_assert_same(&t, 2);
        task_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_one_process_cannot_open_none_opens),
        cmocka_unit_test(a_config_that_one_process_cannot_read_fails_all),
        cmocka_unit_test(arguments_that_differ_are_refused),
        cmocka_unit_test(a_trace_is_started_in_all_processes_or_in_none),
        cmocka_unit_test(a_failed_step_leaves_every_process_as_it_was),
        cmocka_unit_test(a_cancelled_decode_ends_in_every_process),
        cmocka_unit_test(no_process_waits_without_end),
        cmocka_unit_test(who_is_missing_in_a_transfer),
        cmocka_unit_test(a_process_that_vanishes_in_any_call_is_named),
        cmocka_unit_test(memory_that_one_process_lacks_fails_all),
        cmocka_unit_test(a_call_of_many_chunks_that_failed_can_be_made_again),
    };
    return cmocka_run_group_tests(tests, task_set_up, task_tear_down);
}
