/* GPUs in several processes (tsr/transport.h): the logits have the bits of one GPU in one process, in every
 * process, and all processes have the same accounting of all devices; what fails in one process fails in all.
 * The processes are threads on one simulated machine, each with GPUs of its own. Kernels between processes
 * have tests of their own (test_cuda_between). */
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

enum { N_GPUS = 5, LOGIT_BYTES = N_TOKENS * SESSION_VOCAB * sizeof(float) };

static float *one_gpu; /* [N_TOKENS][SESSION_VOCAB], the logits of one */

static void configure_any(uint64_t seed, bool may_share)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = N_GPUS;
    config.seed = seed;
    config.may_share = may_share;
    config.threads_are_processes = CUDASIM_SIMULATED;
    cudasim_configure(&config);
}

static void configure(uint64_t seed)
{
    configure_any(seed, false);
}

/* For what does not depend on distinct GPUs. */
static void configure_shared(uint64_t seed)
{
    configure_any(seed, true);
}

/* What `t` computes has these logits in every process. */
static void compare(task *t, const float *expected)
{
    process processes[PROCESSES_MAX];
    const int n = task_run(t, task_decode_all, NULL, processes);
    task_assert_status(processes, n, TSR_OK, "");
    for (int r = 0; r < n; r++) {
        assert_memory_equal(t->logits[r], expected, LOGIT_BYTES);
        assert_memory_equal(t->used[r], t->used[0], sizeof t->used[0]);
    }
    task_free(t);
    nothing_is_left();
}

static int set_up(void **state)
{
    if (task_set_up(state))
        return -1;
    configure_shared(1);
    one_gpu = task_logits_alone("cuda:0", 1);
    return 0;
}

static int tear_down(void **state)
{
    free(one_gpu);
    return task_tear_down(state);
}

/* -- bits -- */

/* How many GPUs each process has, the split with zeros, the mode, the chunks: anything. */
static void splits_have_the_bits_of_one_gpu(void **state)
{
    (void)state;
    const char *rounds = getenv("TSR_TEST_ROUNDS");
    uint64_t seed = 17;
    for (int i = 0, n_rounds = rounds ? (atoi(rounds) + 9) / 10 : 3; i < n_rounds; i++) {
        char devices[PROCESSES_MAX][64];
        task t = {.chunk = 5 + (int)random_below(&seed, 16)};
        t.mode = random_below(&seed, 3) ? TSR_SPLIT_MODE_TENSOR : TSR_SPLIT_MODE_LAYER;
        for (int r = 0, n = 2 + (int)random_below(&seed, 2); r < n; r++) {
            size_t used = 0;
            for (int d = (int)random_below(&seed, 2); d >= 0; d--)
                used += (size_t)snprintf(devices[r] + used, sizeof devices[r] - used, "%scuda:%d",
                                         used ? "," : "", t.n_split++ % N_GPUS);
            t.devices[r] = devices[r];
        }
        for (int d = 0; d < t.n_split; d++)
            t.split[d] = (float)random_below(&seed, 4);
        t.split[random_below(&seed, (uint64_t)t.n_split)] += 1;
        t.collectives = t.n_split > N_GPUS || random_below(&seed, 3) == 0 ? "staged"
                        : CUDASIM_SIMULATED                               ? "nccl"
                                                                          : NULL;
        configure_shared(seed);
        compare(&t, one_gpu);
    }
}

/* -- transfers -- */

enum { WIDTH = 96, N_WIDE = 5 };

static float w[WIDTH * WIDTH], x[WIDTH * N_WIDE];

typedef struct chained {
    task task; /* comes first; its split is that of the second product */
    float first[4];
    float y[PROCESSES_MAX][WIDTH * N_WIDE];
} chained;

/* Two products, one after the other, each by its own split. */
static tsr_status multiply_twice(tsr_runtime *rt, const chained *c, float *y_out)
{
    tsr_status status = TSR_OK;
    const float *const splits[] = {c->first, c->task.split};
    tsr_context *contexts[2] = {NULL};
    tsr_buffer *buffers[2] = {NULL};
    tsr_graph *graph = NULL;
    tsr_program *program = NULL;
    TSR_TRY(tsr_graph_create(rt, &graph));
    tsr_tensor *in = tsr_graph_input(graph, TSR_TYPE_F32, WIDTH, N_WIDE, "x"), *y = in;
    for (int i = 0; i < 2; i++) {
        TSR_TRY(tsr_context_create(rt, &contexts[i]));
        tsr_tensor *weights = tsr_tensor_2d(contexts[i], TSR_TYPE_F32, WIDTH, WIDTH, i ? "w1" : "w0");
        TSR_TRY(tsr_tensors_alloc(contexts[i], tsr_split_buffer_type(rt, 0, splits[i], c->task.n_split),
                                  &buffers[i]));
        TSR_TRY(tsr_tensor_set(weights, w, 0, sizeof w));
        y = tsr_mul_mat(graph, weights, y);
    }
    y = tsr_graph_output(graph, tsr_softmax(graph, y, 1));
    TSR_TRY(tsr_program_compile(graph, NULL, &program));
    TSR_TRY(tsr_tensor_set(in, x, 0, sizeof x));
    for (int i = 0; i < 3; i++)
        TSR_TRY(tsr_program_run(program));
    TSR_TRY(tsr_tensor_get(y, y_out, 0, sizeof x));
out:
    tsr_program_destroy(program);
    tsr_graph_destroy(graph);
    for (int i = 0; i < 2; i++) {
        tsr_buffer_destroy(buffers[i]);
        tsr_context_destroy(contexts[i]);
    }
    return status;
}

static void multiply_twice_body(process *self)
{
    chained *c = self->user;
    tsr_runtime *rt = NULL;
    tsr_status status = task_open_runtime(self, &rt);
    if (status == TSR_OK)
        status = multiply_twice(rt, c, c->y[self->rank]);
    process_note(self, status);
    tsr_runtime_close(rt);
}

/* What the last GPU computes goes to the three GPUs of the other process: the first of them receives and
 * sends to its neighbours. */
static void a_transfer_crosses_once_to_each_process(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    static chained alone = {.task = {.devices = {"cuda:0"}, .split = {1}, .n_split = 1}, .first = {1}};
    static chained c = {.task = {.devices = {"cuda:0,cuda:1,cuda:2", "cuda:3"},
                                 .split = {1, 1, 1, 0},
                                 .n_split = 4,
                                 .collectives = "nccl"},
                        .first = {0, 0, 0, 1}};
    uint64_t seed = 2;
    for (int i = 0; i < WIDTH * WIDTH; i++)
        w[i] = random_normal(&seed) / 8;
    for (int i = 0; i < WIDTH * N_WIDE; i++)
        x[i] = random_normal(&seed);
    configure(2);
    task_run(&alone.task, multiply_twice_body, NULL, processes);
    task_assert_status(processes, 1, TSR_OK, "");
    configure(2);
    task_run(&c.task, multiply_twice_body, NULL, processes);
    task_assert_status(processes, 2, TSR_OK, "");
    for (int r = 0; r < 2; r++)
        assert_memory_equal(c.y[r], alone.y[0], sizeof alone.y[0]);
    assert_true(cudasim_messages(3, 0) > 0);
    assert_int_equal(cudasim_messages(3, 1) + cudasim_messages(3, 2), 0);
    assert_int_equal(cudasim_messages(0, 1), cudasim_messages(3, 0));
    assert_int_equal(cudasim_messages(0, 2), cudasim_messages(3, 0));
    task_free(&alone.task);
    task_free(&c.task);
    nothing_is_left();
}

/* -- GPUs and host devices -- */

/* GPUs and host devices round differently, so the devices of one process are the same as those of several. */
static void gpus_and_host_devices_go_together(void **state)
{
    (void)state;
    configure_shared(1);
    float *expected = task_logits_alone("cuda:0,host:1,threads=1,cuda:1", 3);
    task t = {.devices = {"cuda:0,host:1,threads=1", "cuda:1"},
              .split = {1, 2, 1},
              .n_split = 3,
              .mode = TSR_SPLIT_MODE_TENSOR,
              .chunk = 20};
    configure_shared(3);
    compare(&t, expected);
    free(expected);
}

/* A GPU stages large sums as planes. */
static void large_sums_are_staged(void **state)
{
    (void)state;
    task alone = {.devices = {"cuda:0"}, .split = {1}, .n_split = 1, .n_rows = 350};
    task t = {.devices = {"cuda:0", "cuda:1,cuda:2"},
              .split = {1, 2, 3},
              .n_split = 3,
              .n_rows = 350,
              .collectives = "staged"};
    configure_shared(4);
    task_assert_product(&t, &alone);
    nothing_is_left();
}

static uint64_t sums_of_nccl(void)
{
    return cudasim_calls_of("ncclAllReduce");
}

/* -- sums inside a process -- */

static uint64_t blocks_of_sums(void)
{
    static const char *const names[] = {"reduce_kernel", "reduce_norm_kernel", "reduce_share_kernel",
                                        "push_reduce_kernel", "push_norm_kernel"};
    uint64_t n = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        n += cudasim_blocks_of(names[i]);
    return n;
}

static size_t runtime_bytes[2][4]; /* that each process knows of every device */

/* One process has the divided layer, and counts the blocks of its sums. */
static tsr_status count_sums(process *self, tsr_model *model, tsr_session *session)
{
    enum { LEAST_BLOCKS = 2 * 2 }; /* sums of a program, GPUs */
    const task *t = self->user;
    const uint64_t before = blocks_of_sums();
    tsr_collectives_row rows[TSR_COLLECTIVES_MAX_ROWS];
    const int n = tsr_runtime_collectives(model->rt, rows);
    if (n < 2 || strncmp(rows[0].implementation, t->collectives, strlen(t->collectives)) != 0 ||
        rows[n - 1].bytes != 0 || strncmp(rows[n - 1].implementation, t->collectives, 4) != 0)
        return tsr_fail(TSR_ERR_INVALID, "%d rows, from %s to %s", n, rows[0].implementation,
                        rows[n - 1].implementation);
    for (int d = 0; d < 4; d++) {
        runtime_bytes[self->rank][d] = model->rt->devices[d]->accounting.runtime;
        if (model->rt->devices[d]->watch != model->rt->watch)
            return tsr_fail(TSR_ERR_INVALID, "device %d is not watched", d);
    }
    const tsr_status status = task_decode(self, session, 0, N_TOKENS);
    if (status == TSR_OK && t->split[2 * self->rank] > 0 && blocks_of_sums() - before < LEAST_BLOCKS)
        return tsr_fail(TSR_ERR_INVALID, "%d blocks of sums", (int)(blocks_of_sums() - before));
    return status;
}

static void count_sums_body(process *self)
{
    task_with_session(self, count_sums);
}

/* A layer is divided between the GPUs of a process, and the other layer is in the other process. */
static void sums_inside_a_process_are_its_kernels(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    const tsr_offload_rule rules[] = {{"blk.1", "cuda2@1"}, {"blk.0", "cuda1@0"}};
    for (int i = 0; i < 2; i++) {
        task t = {.devices = {"cuda:0,cuda:1", "cuda:2,cuda:3"},
                  .split = {i == 0, i == 0, i == 1, i == 1},
                  .n_split = 4,
                  .mode = TSR_SPLIT_MODE_TENSOR,
                  .collectives = i == 0 ? "peer" : "pinned",
                  .rule = &rules[i]};
        configure(9);
        task_run(&t, count_sums_body, NULL, processes);
        task_assert_status(processes, 2, TSR_OK, "");
        assert_memory_equal(t.logits[0], one_gpu, LOGIT_BYTES);
        assert_memory_equal(t.logits[1], one_gpu, LOGIT_BYTES);
        assert_memory_equal(t.used[0], t.used[1], sizeof t.used[0]);
        assert_memory_equal(runtime_bytes[0], runtime_bytes[1], sizeof runtime_bytes[0]);
        assert_int_equal(sums_of_nccl(), 0);
        task_free(&t);
        nothing_is_left();
    }
}

static int64_t first_half[PROCESSES_MAX]; /* of a full chunk, in each process */

static tsr_status decode_in_halves(process *self, tsr_model *model, tsr_session *session)
{
    tsr_status status = TSR_OK;
    (void)session;
    model->half_tokens = N_BATCH / 2;
    TSR_TRY(tsr_session_create(model, &session));
    first_half[self->rank] = tsr_session_first_half(session, N_BATCH);
    status = task_decode(self, session, 0, N_TOKENS);
    tsr_session_destroy(session);
out:
    return status;
}

static void decode_in_halves_body(process *self)
{
    task_with_session(self, decode_in_halves);
}

/* Without NCCL: every process knows whether the sums of another's GPUs are kernels. */
static void processes_agree_on_halves(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    for (int staged = 0; staged < 2; staged++) {
        task t = {.devices = {"cuda:0,cuda:1", "cuda:2"},
                  .split = {1, 1, 0},
                  .n_split = 3,
                  .mode = TSR_SPLIT_MODE_TENSOR,
                  .collectives = staged ? "staged" : "pinned",
                  .last_only = true};
        configure(10);
        cudasim_fail_named("ncclGetUniqueId", 1, 1);
        task_run(&t, decode_in_halves_body, NULL, processes);
        task_assert_status(processes, 2, TSR_OK, "");
        for (int r = 0; r < 2; r++) {
            assert_int_equal(first_half[r], staged ? 0 : N_BATCH / 2);
            assert_memory_equal(t.logits[r], one_gpu + (N_TOKENS - 1) * SESSION_VOCAB,
                                SESSION_VOCAB * sizeof(float));
        }
        task_free(&t);
        nothing_is_left();
    }
}

/* -- what one process lacks -- */

static void without_nccl_in_one_process_all_stage(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"cuda:0", "cuda:1"},
              .split = {1, 2},
              .n_split = 2,
              .mode = TSR_SPLIT_MODE_TENSOR,
              .chunk = 20};
    configure(5);
    cudasim_fail_named("ncclGetUniqueId", 1, 1);
    cudasim_fail_named("cudaHostRegister", 1, 0); /* of kernels over peer memory, then over pinned memory */
    cudasim_fail_named("cudaHostRegister", 2, 0);
    compare(&t, one_gpu);
    assert_int_equal(cudasim_faults_hit(), 3);
    assert_int_equal(sums_of_nccl(), 0);
    configure(5);
    cudasim_fail_named("ncclGetUniqueId", 1, 1);
    t.collectives = "nccl";
    task_run(&t, task_decode_all, NULL, processes);
    task_assert_status(processes, 2, TSR_ERR_DEVICE, "collectives 'nccl'");
    task_free(&t);
    nothing_is_left();
}

static void devices_of_one_process_on_one_gpu_keep_all_from_nccl(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"cuda:0", "cuda:1,cuda:1"}, .collectives = "nccl"};
    configure(5);
    task_run(&t, task_decode_all, NULL, processes);
    task_assert_status(processes, 2, TSR_ERR_UNSUPPORTED, "devices cuda1@1 and");
    task_free(&t);
    nothing_is_left();
}

static void weights_are_not_read_in_place(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"cuda:0", "cuda:1,wrap=1"}, .split = {1, 2}, .n_split = 2};
    configure_shared(5);
    task_run(&t, task_decode_all, NULL, processes);
    task_assert_status(processes, 2, TSR_ERR_UNSUPPORTED, "'wrap=1' reads weights in place");
    task_free(&t);
    nothing_is_left();
}

static void where_one_process_refuses_capture_none_has_graphs(void **state)
{
    (void)state;
    task t = {.devices = {"cuda:0", "cuda:1"},
              .split = {1, 2},
              .n_split = 2,
              .mode = TSR_SPLIT_MODE_TENSOR,
              .collectives = "nccl",
              .chunk = 20};
    configure(6);
    cudasim_fail_named("cudaStreamBeginCapture", 2, 0);
    compare(&t, one_gpu);
    assert_true(sums_of_nccl() > 0);
}

/* Whichever call of CUDA or NCCL fails, all processes fail or none does, and nothing is left. */
static void what_fails_in_one_process_fails_in_all(void **state)
{
    (void)state;
    const char *rounds = getenv("TSR_TEST_ROUNDS");
    const uint64_t most = rounds ? (uint64_t)(atoi(rounds) + 1) / 2 : 5;
    process processes[PROCESSES_MAX];
    static const char *const collectives[] = {"nccl", "staged", "pinned"};
    for (int c = 0; c < 3; c++) {
        const bool inside = c == 2;
        task t = {.devices = {inside ? "cuda:0,cuda:2" : "cuda:0", "cuda:1"},
                  .split = {1, inside, 1 - inside},
                  .n_split = 2 + inside,
                  .collectives = collectives[c],
                  .timeout_ns = 1000000000,
                  .n_rows = 1};
        configure(8);
        task_run(&t, task_multiply, NULL, processes);
        task_free(&t);
        const uint64_t n_calls = cudasim_calls();
        for (uint64_t i = 0; i < most; i++) {
            const uint64_t call = n_calls * (2 * i + 1) / (2 * most);
            configure(8);
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

/* A GPU that waits in a kernel for another of its process is released when that one fails. */
static void a_failed_launch_releases_the_other_gpu(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"cuda:0,cuda:2", "cuda:1"},
              .split = {1, 1, 0},
              .n_split = 3,
              .collectives = "pinned",
              .n_rows = 1};
    configure(11);
    task_run(&t, task_multiply, NULL, processes);
    task_assert_status(processes, 2, TSR_OK, "");
    task_free(&t);
    const uint64_t last = cudasim_calls_of("cudaGraphLaunch");
    configure(11);
    cudasim_fail_named("cudaGraphLaunch", last, 0);
    task_run(&t, task_multiply, NULL, processes);
    assert_int_equal(cudasim_faults_hit(), 1);
    for (int r = 0; r < 2; r++)
        if (processes[r].status == TSR_OK || !strstr(processes[r].text, "cudaGraphLaunch"))
            fail_msg("process %d: %s", r, processes[r].text);
    task_free(&t);
    nothing_is_left();
}

/* -- a process that does not come -- */

static void a_late_process_is_lost_and_named(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    const uint64_t limit_ns = 800000000; /* connecting has it, too */
    for (int staged = 0; staged < 2; staged++) {
        task t = {.devices = {"cuda:0", "cuda:1"},
                  .split = {1, 1},
                  .n_split = 2,
                  .collectives = staged ? "staged" : "nccl",
                  .timeout_ns = limit_ns,
                  .n_rows = 1,
                  .late_ms = 2000};
        configure(7);
        task_run(&t, task_multiply, NULL, processes);
        assert_int_equal(processes[0].status, TSR_ERR_DEVICE_LOST);
        assert_non_null(
            strstr(processes[0].text, staged ? "the wait for process 1 " : "device 1 did not arrive"));
        assert_int_equal(processes[1].status, TSR_ERR_DEVICE_LOST);
        task_free(&t);
    }
}

/* -- a GPU that is lost -- */

static struct {
    uint64_t after; /* calls of CUDA while decoding */
    int gpu;
} lost;

static int n_losses[PROCESSES_MAX];

static tsr_status lose_gpu(process *self, tsr_model *model, tsr_session *session)
{
    if (self->rank == 0)
        cudasim_poison_at(cudasim_calls() + lost.after, lost.gpu, cudaErrorIllegalAddress);
    return task_decode_on(self, model, session, &n_losses[self->rank]);
}

static void lose_gpu_body(process *self)
{
    task_with_session(self, lose_gpu);
}

/* By the process that has it; the others drop it, too, and all go on. */
static void a_gpu_that_one_process_lost_is_dropped_in_all(void **state)
{
    (void)state;
    const char *rounds = getenv("TSR_TEST_ROUNDS");
    uint64_t seed = 23;
    int n_lost = 0;
    process processes[PROCESSES_MAX];
    for (int i = 0, n = rounds ? (atoi(rounds) + 9) / 10 : 3; i < n; i++) {
        task t = {.devices = {"cuda:0,cuda:1", "cuda:2"},
                  .split = {1, 2, 1},
                  .n_split = 3,
                  .mode = TSR_SPLIT_MODE_TENSOR,
                  .collectives = i % 2 ? "staged" : NULL,
                  .timeout_ns = UINT64_C(20000000000)};
        lost.after = 1 + random_below(&seed, 800);
        lost.gpu = (int)random_below(&seed, 3);
        memset(n_losses, 0, sizeof n_losses);
        configure(seed);
        const int n_processes = task_run(&t, lose_gpu_body, NULL, processes);
        task_assert_status(processes, n_processes, TSR_OK, "");
        assert_int_equal(n_losses[0], n_losses[1]);
        n_lost += n_losses[0];
        for (int r = 0; r < n_processes; r++)
            assert_memory_equal(t.logits[r], one_gpu, LOGIT_BYTES);
        task_free(&t);
    }
    assert_true(n_lost > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_have_the_bits_of_one_gpu),
        cmocka_unit_test(a_transfer_crosses_once_to_each_process),
        cmocka_unit_test(gpus_and_host_devices_go_together),
        cmocka_unit_test(large_sums_are_staged),
        cmocka_unit_test(sums_inside_a_process_are_its_kernels),
        cmocka_unit_test(processes_agree_on_halves),
        cmocka_unit_test(without_nccl_in_one_process_all_stage),
        cmocka_unit_test(devices_of_one_process_on_one_gpu_keep_all_from_nccl),
        cmocka_unit_test(weights_are_not_read_in_place),
        cmocka_unit_test(where_one_process_refuses_capture_none_has_graphs),
        cmocka_unit_test(what_fails_in_one_process_fails_in_all),
        cmocka_unit_test(a_failed_launch_releases_the_other_gpu),
        cmocka_unit_test(a_late_process_is_lost_and_named),
        cmocka_unit_test(a_gpu_that_one_process_lost_is_dropped_in_all),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
