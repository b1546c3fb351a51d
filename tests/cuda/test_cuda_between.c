/* GPUs of different processes of a machine have kernels for their sums, with inboxes in their memory or in host
 * memory (cuda/comm/between): the bits are those of one GPU, all processes know the same accounting, what fails
 * in one process fails in all or is done without, and a process that vanishes is named. The processes are
 * threads on one simulated machine, each with GPUs of its own; mpi_gpus has processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/event.h"
#include "core/status.h"
#include "cuda/simulated.h"
#include "model/session/session.h"
#include "support/distributed_task.h"
#include "support/random.h"

enum { N_GPUS = 8, LOGIT_BYTES = N_TOKENS * SESSION_VOCAB * sizeof(float) };

static float *one_gpu; /* [N_TOKENS][SESSION_VOCAB], the logits of one */
static const char *const forms[] = {"peer", "pinned"}, *const kinds[] = {"peer push", "pinned"};

static void configure_with(uint64_t seed, bool ipc)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = N_GPUS;
    config.seed = seed;
    config.threads_are_processes = ipc;
    cudasim_configure(&config);
}

static void configure(uint64_t seed)
{
    configure_with(seed, true);
}

static int set_up(void **state)
{
    process processes[PROCESSES_MAX];
    task t = {.devices = {"cuda:0"}, .split = {1}, .n_split = 1, .mode = TSR_SPLIT_MODE_TENSOR};
    if (task_set_up(state))
        return -1;
    configure(1);
    task_run(&t, task_decode_all, NULL, processes);
    task_assert_status(processes, 1, TSR_OK, "");
    one_gpu = malloc(LOGIT_BYTES);
    assert_non_null(one_gpu);
    memcpy(one_gpu, t.logits[0], LOGIT_BYTES);
    task_free(&t);
    return 0;
}

static int tear_down(void **state)
{
    free(one_gpu);
    return task_tear_down(state);
}

static uint64_t pushed_blocks(void)
{
    return cudasim_blocks_of("push_reduce_kernel") + cudasim_blocks_of("push_norm_kernel") +
           cudasim_blocks_of("push_narrow_kernel");
}

/* -- bits -- */

static size_t runtime_bytes[PROCESSES_MAX][TSR_MAX_DEVICES]; /* that each process knows of every device */
static char between[PROCESSES_MAX][16]; /* what each process says of sums between processes */

static tsr_status look_and_decode(process *self, tsr_model *model, tsr_session *session)
{
    tsr_collectives_row rows[TSR_COLLECTIVES_MAX_ROWS];
    const int n = tsr_runtime_collectives(model->rt, rows);
    snprintf(between[self->rank], sizeof between[0], "%s", n > 0 ? rows[n - 1].implementation : "");
    for (int d = 0; d < model->rt->n_devices; d++)
        runtime_bytes[self->rank][d] = model->rt->devices[d]->accounting.runtime;
    return task_decode(self, session, 0, N_TOKENS);
}

static void look_and_decode_body(process *self)
{
    task_with_session(self, look_and_decode);
}

static void compare(task *t, const char *kind)
{
    process processes[PROCESSES_MAX];
    memset(runtime_bytes, 0, sizeof runtime_bytes);
    const int n = task_run(t, look_and_decode_body, NULL, processes);
    task_assert_status(processes, n, TSR_OK, "");
    for (int r = 0; r < n; r++) {
        assert_string_equal(between[r], kind);
        assert_memory_equal(t->logits[r], one_gpu, LOGIT_BYTES);
        assert_memory_equal(t->used[r], t->used[0], sizeof t->used[0]);
        assert_memory_equal(runtime_bytes[r], runtime_bytes[0], sizeof runtime_bytes[0]);
    }
    task_free(t);
    nothing_is_left();
}

/* Two to four processes with one or two GPUs each, any split, mode and chunks. */
static void splits_have_the_bits_of_one_gpu(void **state)
{
    (void)state;
    const char *rounds = getenv("TSR_TEST_ROUNDS");
    uint64_t seed = 17;
    for (int i = 0, n_rounds = rounds ? atoi(rounds) : 4; i < n_rounds; i++) {
        char devices[PROCESSES_MAX][64];
        const int pinned = i % 2;
        task t = {.chunk = 5 + (int)random_below(&seed, 16), .collectives = forms[pinned]};
        t.mode = random_below(&seed, 3) ? TSR_SPLIT_MODE_TENSOR : TSR_SPLIT_MODE_LAYER;
        for (int r = 0, n = 2 + (int)random_below(&seed, 3); r < n; r++) {
            const bool two = random_below(&seed, 2);
            snprintf(devices[r], sizeof devices[r], two ? "cuda:%d,cuda:%d" : "cuda:%d", 2 * r, 2 * r + 1);
            t.devices[r] = devices[r];
            t.n_split += 1 + two;
        }
        for (int d = 0; d < t.n_split; d++)
            t.split[d] = (float)random_below(&seed, 4);
        t.split[random_below(&seed, (uint64_t)t.n_split)] += 1;
        configure(seed);
        compare(&t, kinds[pinned]);
        assert_int_equal(cudasim_calls_of("ncclGetUniqueId"), 0);
    }
}

/* Sums of many rows, whose words are narrow and go in several rounds. */
static void large_sums_are_pushed(void **state)
{
    (void)state;
    for (int pinned = 0; pinned < 2; pinned++) {
        task alone = {.devices = {"cuda:0"}, .split = {1}, .n_split = 1, .n_rows = 350};
        task t = {.devices = {"cuda:0", "cuda:1,cuda:2"},
                  .split = {1, 2, 3},
                  .n_split = 3,
                  .n_rows = 350,
                  .collectives = forms[pinned]};
        configure(4);
        task_assert_product(&t, &alone);
        assert_true(cudasim_blocks_of("push_narrow_kernel") > 0);
        nothing_is_left();
    }
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

/* -- which of them serves -- */

static void peer_memory_is_preferred_and_host_memory_is_next(void **state)
{
    (void)state;
    task t = small_task(NULL);
    configure(2);
    compare(&t, "peer push");
    configure_with(2, false); /* as CUDA does in one process */
    t = small_task(NULL);
    compare(&t, "pinned");
    configure(2);
    cudasim_forbid_peer(0, 1);
    t = small_task(NULL);
    compare(&t, "pinned");
}

static void more_gpus_than_four_have_nccl_for_large_sums(void **state)
{
    (void)state;
    task t = {.devices = {"cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:4"},
              .split = {1, 1, 1, 1, 1},
              .n_split = 5,
              .chunk = 20,
              .mode = TSR_SPLIT_MODE_TENSOR};
    configure(3);
    compare(&t, "peer push, nccl");
    configure(3);
    task alone = {.devices = {"cuda:0"}, .split = {1}, .n_split = 1, .n_rows = 350};
    t = (task){.devices = {"cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:4"},
               .split = {1, 1, 1, 1, 1},
               .n_split = 5,
               .n_rows = 350};
    const uint64_t opening = 2 * 5; /* NCCL's first sums */
    task_assert_product(&t, &alone);
    assert_true(cudasim_calls_of("ncclAllReduce") > opening);
    assert_int_equal(cudasim_blocks_of("push_narrow_kernel"), 0);
    nothing_is_left();
}

static void a_gpu_that_processes_share_is_used_when_named(void **state)
{
    (void)state;
    task t = small_task(NULL);
    t.devices[1] = "cuda:0";
    configure(5);
    compare(&t, "staged");
    assert_int_equal(pushed_blocks(), 0);
    for (int pinned = 0; pinned < 2; pinned++) {
        t = small_task(forms[pinned]);
        t.devices[1] = "cuda:0";
        configure(5);
        compare(&t, kinds[pinned]);
    }
}

static void a_machine_with_one_gpu_has_nothing_to_name(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"cuda:0", "host:1,threads=1"}, .collectives = "peer"};
    configure(6);
    task_run(&t, task_decode_all, NULL, processes);
    task_assert_status(processes, 2, TSR_ERR_UNSUPPORTED, "no machine has several");
    task_free(&t);
    t = (task){.devices = {"host:1,threads=1", "host:1,threads=1"}, .collectives = "pinned"};
    task_run(&t, task_decode_all, NULL, processes);
    task_assert_status(processes, 2, TSR_ERR_UNSUPPORTED, "host devices share their memory");
    task_free(&t);
    nothing_is_left();
}

/* -- failures -- */

/* Each call that only this needs, in one process: the next way is taken in all, or, where it is named, opening
 * fails in all. */
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
            assert_true(last > 0);
            for (uint64_t at = 1; at <= last; at++) {
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

static void a_late_process_is_named_and_its_waiting_kernels_end(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    for (int pinned = 0; pinned < 2; pinned++) {
        task t = {.devices = {"cuda:0", "cuda:1", "cuda:2"},
                  .split = {1, 1, 1},
                  .n_split = 3,
                  .collectives = forms[pinned],
                  .timeout_ns = 1500000000,
                  .n_rows = 1,
                  .late_ms = 4000};
        configure(7);
        task_run(&t, task_multiply, NULL, processes);
        for (int r = 0; r < 3; r++)
            assert_int_equal(processes[r].status, TSR_ERR_DEVICE_LOST);
        if (!strstr(processes[0].text, "device 1 did not arrive") &&
            !strstr(processes[2].text, "device 1 did not arrive"))
            fail_msg("%s and %s", processes[0].text, processes[2].text);
        task_free(&t);
        assert_int_equal(cudasim_leaks(stderr), 0);
    }
}

static struct {
    int64_t after; /* operations of the transport while decoding */
    int rank;
} vanishing;

static int n_losses[PROCESSES_MAX];
static uint64_t ended_ns[PROCESSES_MAX];

static tsr_status vanish_and_decode(process *self, tsr_model *model, tsr_session *session)
{
    if (self->rank == vanishing.rank)
        process_vanish_after(self, vanishing.after);
    const uint64_t begin = tsr_clock_ns();
    const tsr_status status =
        task_decode_on(self, model, session, self->rank == vanishing.rank ? NULL : &n_losses[self->rank]);
    ended_ns[self->rank] = tsr_clock_ns() - begin;
    return status;
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
        cmocka_unit_test(splits_have_the_bits_of_one_gpu),
        cmocka_unit_test(large_sums_are_pushed),
        cmocka_unit_test(peer_memory_is_preferred_and_host_memory_is_next),
        cmocka_unit_test(more_gpus_than_four_have_nccl_for_large_sums),
        cmocka_unit_test(a_gpu_that_processes_share_is_used_when_named),
        cmocka_unit_test(a_machine_with_one_gpu_has_nothing_to_name),
        cmocka_unit_test(each_call_that_fails_in_one_process),
        cmocka_unit_test(any_call_that_fails_in_one_process),
        cmocka_unit_test(a_late_process_is_named_and_its_waiting_kernels_end),
        cmocka_unit_test(the_others_go_on_without_a_process_that_vanishes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
