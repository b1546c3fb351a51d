/* What goes wrong between GPUs of different processes that have kernels (cuda/comm/between): what fails in
 * one process fails in all or is done without, and a process that vanishes is named. The processes are
 * threads on one simulated machine, each with a GPU of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>
#include <unistd.h>

#include "core/status.h"
#include "cuda/simulated.h"
#include "model/session/session.h"
#include "support/distributed_task.h"
#include "support/random.h"

enum { N_GPUS = 3, LOGIT_BYTES = N_TOKENS * SESSION_VOCAB * sizeof(float) };

static float *one_gpu; /* [N_TOKENS][SESSION_VOCAB], the logits of one */
static const char *const forms[] = {"peer", "pinned"};

static void configure(uint64_t seed)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = N_GPUS;
    config.seed = seed;
    config.threads_are_processes = true;
    cudasim_configure(&config);
}

static int set_up(void **state)
{
    if (task_set_up(state))
        return -1;
    configure(1);
    one_gpu = task_logits_alone("cuda:0", 1);
    return 0;
}

static int tear_down(void **state)
{
    free(one_gpu);
    return task_tear_down(state);
}

static task small_task(const char *collectives)
{
    return (task){.devices = {"cuda:0", "cuda:1"},
                  .split = {1, 2},
                  .n_split = 2,
                  .mode = TSR_SPLIT_MODE_TENSOR,
                  .chunk = 20,
                  .collectives = collectives};
}

/* -- failures -- */

/* Each call that only this needs, in one process: the next way is taken in all, or, where one is named,
 * opening fails in all. */
static void each_call_that_fails_in_one_process(void **state)
{
    (void)state;
    static const struct {
        const char *call;
        bool pinned;
        int error;
    } calls[] = {{"cudaIpcGetMemHandle", false, cudaErrorUnknown},
                 {"cudaIpcOpenMemHandle", false, cudaErrorUnknown},
                 {"cudaHostRegister", true, 0},
                 {"cudaHostGetDevicePointer", true, 0},
                 {"cudaGetDeviceProperties", true, 0},
                 {"cudaDeviceGetPCIBusId", true, 0}};
    process processes[PROCESSES_MAX];
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
        for (int named = 0; named < 2; named++) {
            task t = small_task(named ? forms[calls[c].pinned] : NULL);
            t.n_rows = 1;
            configure(8);
            task_run(&t, task_multiply, NULL, processes);
            task_assert_status(processes, 2, TSR_OK, "");
            const uint64_t last = cudasim_calls_of(calls[c].call);
            assert_true(last > 1);
            for (uint64_t at = last - 1; at <= last; at++) { /* one of each process */
                configure(8);
                cudasim_fail_named(calls[c].call, at, calls[c].error);
                task_free(&t);
                task_run(&t, task_multiply, NULL, processes);
                assert_int_equal(cudasim_faults_hit(), 1);
                if (processes[0].status != processes[1].status)
                    fail_msg("%s: %s and %s", calls[c].call, processes[0].text, processes[1].text);
                nothing_is_left();
            }
            task_free(&t);
        }
}

/* Any call of all: nothing hangs, and the processes have one outcome. */
static void any_call_that_fails_in_one_process(void **state)
{
    (void)state;
    const char *rounds = getenv("TSR_TEST_ROUNDS");
    const uint64_t most = rounds ? (uint64_t)atoi(rounds) : 6;
    process processes[PROCESSES_MAX];
    for (int pinned = 0; pinned < 2; pinned++) {
        task t = small_task(forms[pinned]);
        t.n_rows = 1;
        t.timeout_ns = 2000000000;
        configure(9);
        task_run(&t, task_multiply, NULL, processes);
        task_assert_status(processes, 2, TSR_OK, "");
        task_free(&t);
        const uint64_t n_calls = cudasim_calls();
        for (uint64_t i = 0; i < most; i++) {
            const uint64_t call = n_calls * (2 * i + 1) / (2 * most);
            configure(9);
            cudasim_fail_call(call, 0);
            task_run(&t, task_multiply, NULL, processes);
            task_free(&t);
            if ((processes[0].status == TSR_OK) != (processes[1].status == TSR_OK))
                fail_msg("call %d of %d (%s): %s and %s", (int)call, (int)n_calls, cudasim_call_name(call),
                         processes[0].text, processes[1].text);
            assert_string_equal(cudasim_violation(), "");
        }
    }
}

/* -- a process that does not come -- */

static _Atomic int n_ended; /* calls of the processes that are not late */

/* Process 1 comes when the others have returned; its heartbeat goes on. */
static tsr_status decode_late(process *self, tsr_model *model, tsr_session *session)
{
    enum { MOST_MS = 60000 };
    (void)model;
    for (int ms = 0; self->rank == 1 && n_ended < 2 && ms < MOST_MS; ms++)
        usleep(1000);
    const tsr_status status = task_decode(self, session, 0, N_TOKENS);
    n_ended += self->rank != 1;
    return status;
}

static void decode_late_body(process *self)
{
    task_with_session(self, decode_late);
}

static void a_late_process_is_named_and_its_waiting_kernels_end(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    for (int pinned = 0; pinned < 2; pinned++) {
        task t = {.devices = {"cuda:0", "cuda:1", "cuda:2"},
                  .split = {1, 1, 1},
                  .n_split = 3,
                  .mode = TSR_SPLIT_MODE_TENSOR,
                  .collectives = forms[pinned],
                  .timeout_ns = 1000000000};
        n_ended = 0;
        configure(7);
        task_run(&t, decode_late_body, NULL, processes);
        task_assert_status(processes, 3, TSR_ERR_DEVICE_LOST, "");
        for (int r = 0; r < 3; r += 2)
            if (!strstr(processes[r].text, "device 1 did not arrive") &&
                !strstr(processes[r].text, "process 1 "))
                fail_msg("process %d: %s", r, processes[r].text);
        task_free(&t);
        assert_int_equal(cudasim_leaks(stderr), 0);
    }
}

static struct {
    int64_t after; /* operations of the transport while decoding */
    int rank;
} vanishing;

static int n_losses[PROCESSES_MAX];

static tsr_status vanish_and_decode(process *self, tsr_model *model, tsr_session *session)
{
    if (self->rank == vanishing.rank)
        process_vanish_after(self, vanishing.after);
    return task_decode_on(self, model, session, self->rank == vanishing.rank ? NULL : &n_losses[self->rank]);
}

static void vanish_body(process *self)
{
    task_with_session(self, vanish_and_decode);
}

/* The others go on with the same text, by kernels between those that are left. */
static void the_others_go_on_without_a_process_that_vanishes(void **state)
{
    (void)state;
    const char *rounds = getenv("TSR_TEST_ROUNDS");
    uint64_t seed = 23;
    process processes[PROCESSES_MAX];
    for (int i = 0, n = rounds ? (atoi(rounds) + 4) / 5 : 2; i < n; i++) {
        task t = {.devices = {"cuda:0", "cuda:1", "cuda:2"},
                  .split = {1, 2, 1},
                  .n_split = 3,
                  .mode = TSR_SPLIT_MODE_TENSOR,
                  .collectives = forms[i % 2],
                  .timeout_ns = UINT64_C(1500000000)};
        vanishing.after = 1 + (int64_t)random_below(&seed, 20);
        vanishing.rank = (int)random_below(&seed, 3);
        memset(n_losses, 0, sizeof n_losses);
        configure(seed);
        task_run(&t, vanish_body, NULL, processes);
        for (int r = 0; r < 3; r++) {
            if (r == vanishing.rank)
                continue;
            if (processes[r].status != TSR_OK)
                fail_msg("process %d: %s", r, processes[r].text);
            assert_int_equal(n_losses[r], 1);
            assert_memory_equal(t.logits[r], one_gpu, LOGIT_BYTES);
        }
        task_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_that_fails_in_one_process),
        cmocka_unit_test(any_call_that_fails_in_one_process),
        cmocka_unit_test(a_late_process_is_named_and_its_waiting_kernels_end),
        cmocka_unit_test(the_others_go_on_without_a_process_that_vanishes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
