/* GPUs of different processes of a machine have kernels for their sums, with inboxes in their memory or in
 * host memory (cuda/comm/between): the bits are those of one GPU, and all processes know the same accounting.
 * The processes are threads on one simulated machine, each with GPUs of its own; test_cuda_between_forked has
 * processes, and test_cuda_between_failures what goes wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

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
    for (int i = 0, n_rounds = rounds ? atoi(rounds) : 3; i < n_rounds; i++) {
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

/* It takes part in what all find out together. */
static void a_process_without_gpus_is_beside_them(void **state)
{
    (void)state;
    for (int pinned = 0; pinned < 2; pinned++) {
        task t = small_task(forms[pinned]);
        t.devices[1] = "host:1,threads=1";
        t.devices[2] = "cuda:1";
        t.split[1] = 0;
        t.split[2] = 2;
        t.n_split = 3;
        configure(7);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_have_the_bits_of_one_gpu),
        cmocka_unit_test(large_sums_are_pushed),
        cmocka_unit_test(peer_memory_is_preferred_and_host_memory_is_next),
        cmocka_unit_test(more_gpus_than_four_have_nccl_for_large_sums),
        cmocka_unit_test(a_gpu_that_processes_share_is_used_when_named),
        cmocka_unit_test(a_process_without_gpus_is_beside_them),
        cmocka_unit_test(a_machine_with_one_gpu_has_nothing_to_name),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
