/* Runtimes whose devices are in several processes (tsr/transport.h): whatever is divided among them, and
 * however, the logits have the bits of one device in one process, in every process; plans, accounting and
 * saved sequences are the same in all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include <tsr/links.h>
#include <tsr/machine.h>
#include <tsr/plan.h>

#include "core/runtime.h"
#include "core/status.h"
#include "support/directory.h"
#include "support/distributed_task.h"
#include "support/random.h"

/* Replaces libc's in this program: a test may put each process on a host of its own. */
static bool own_hosts;
static _Thread_local int host_number;

int gethostname(char *name, size_t size)
{
    snprintf(name, size, "host%d", own_hosts ? host_number : 0);
    return 0;
}

static void run_and_compare(task *t)
{
    process processes[PROCESSES_MAX];
    const int n = task_run(t, task_decode_all, NULL, processes);
    task_assert_status(processes, n, TSR_OK, "");
    task_assert_same(t, n);
    task_free(t);
}

/* -- bits -- */

static void devices_of_all_processes_are_listed(process *self)
{
    tsr_runtime *rt = NULL;
    tsr_device_info info[3];
    char text[200];
    tsr_status status = task_open_runtime(self, &rt);
    for (int d = 0; d < 3 && status == TSR_OK; d++)
        status = tsr_runtime_device(rt, d, &info[d]);
    if (status == TSR_OK) {
        snprintf(text, sizeof text, "%d: %s of %d with %d, %s of %d with %d, %s of %d with %d; %s",
                 tsr_runtime_n_devices(rt), info[0].name, info[0].process, info[0].n_threads, info[1].name,
                 info[1].process, info[1].n_threads, info[2].name, info[2].process, info[2].n_threads,
                 strcmp(info[0].isa, "generic") == 0 && strcmp(info[2].isa, info[1].isa) == 0 ? "isa"
                                                                                              : "no isa");
        status = tsr_fail(TSR_ERR_NOT_FOUND, "%s", text);
    }
    process_note(self, status);
    tsr_runtime_close(rt);
}

static void every_process_sees_the_devices_of_all(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:1,threads=2,isa=generic", "host:2,threads=1"}};
    assert_int_equal(task_run(&t, devices_of_all_processes_are_listed, NULL, processes), 2);
    task_assert_status(processes, 2, TSR_ERR_NOT_FOUND,
                       "3: host0@0 of 0 with 2, host0@1 of 1 with 1, host1@1 of 1 with 1; isa");
    task_free(&t);
}

static void one_process_of_a_transport_is_as_good_as_none(void **state)
{
    (void)state;
    task t = {.devices = {"host:2,threads=1"}, .split = {1, 1}, .n_split = 2};
    run_and_compare(&t);
}

static void split_modes_give_the_same_bits(void **state)
{
    (void)state;
    const tsr_split_mode modes[] = {TSR_SPLIT_MODE_TENSOR, TSR_SPLIT_MODE_LAYER, TSR_SPLIT_MODE_NONE,
                                    TSR_SPLIT_MODE_AUTO};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        task t = {.devices = {"host:1,threads=2", "host:2,threads=1"},
                  .split = {2, 1, 1},
                  .n_split = 3,
                  .mode = modes[i],
                  .chunk = 7};
        run_and_compare(&t);
        t.n_split = 0; /* the planner's */
        run_and_compare(&t);
    }
}

/* How many devices each process has, the split with zeros, the mode, the chunks: anything. */
static void random_splits_give_the_same_bits(void **state)
{
    (void)state;
    const char *const sets[] = {"host:1,threads=1", "host:2,threads=1", "host:3,threads=1",
                                "host:1,threads=3"};
    const int sizes[] = {1, 2, 3, 1};
    const char *rounds = getenv("TSR_TEST_ROUNDS");
    uint64_t seed = 11;
    for (int i = 0, n_rounds = rounds ? atoi(rounds) : 40; i < n_rounds; i++) {
        task t = {.mode = random_below(&seed, 3) ? TSR_SPLIT_MODE_TENSOR : TSR_SPLIT_MODE_LAYER,
                  .copies = random_below(&seed, 2),
                  .n_gpu_layers = random_below(&seed, 3) ? 0 : 1,
                  .chunk = 1 + (int)random_below(&seed, 20)};
        float sum = 0;
        for (int r = 0, n = 2 + (int)random_below(&seed, 3); r < n; r++) {
            const size_t which = random_below(&seed, 4);
            t.devices[r] = sets[which];
            for (int d = 0; d < sizes[which]; d++)
                sum += t.split[t.n_split++] = (float)random_below(&seed, 4);
        }
        t.split[0] += sum == 0 ? 1 : 0;
        run_and_compare(&t);
    }
}

/* Layers on the last device, whose results go to the devices of the other process: as many messages and bytes
 * to three of them as to one, and the bits of one device. */
static void transfers_are_sent_once_to_each_process(void **state)
{
    (void)state;
    static const char *const receivers[] = {"host:1,threads=1", "host:3,threads=1", "host:2,threads=2"};
    static const int n_receivers[] = {1, 3, 2};
    process processes[PROCESSES_MAX];
    int64_t n_sent = 0, sent_bytes = 0;
    for (int i = 0; i < 3; i++) {
        task t = {.devices = {receivers[i], "host:1,threads=1"},
                  .split = {1, 1, 1, 1},
                  .n_split = n_receivers[i] + 1,
                  .mode = TSR_SPLIT_MODE_TENSOR,
                  .n_gpu_layers = 1,
                  .chunk = 20};
        assert_int_equal(task_run(&t, task_decode_all, NULL, processes), 2);
        task_assert_status(processes, 2, TSR_OK, "");
        task_assert_same(&t, 2);
        task_free(&t);
        n_sent = i == 0 ? processes[1].n_sent : n_sent;
        sent_bytes = i == 0 ? processes[1].sent_bytes : sent_bytes;
        assert_int_equal(processes[1].n_sent, n_sent);
        assert_int_equal(processes[1].sent_bytes, sent_bytes);
        assert_true(processes[1].n_sent > 0 && processes[1].sent_bytes > 0);
    }
}

/* A sum of floats may differ in the last bits from one device's, never between processes. */
static void sums_of_floats_are_the_same_in_every_process(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:1,threads=1", "host:2,threads=1"},
              .split = {1, 1, 1},
              .n_split = 3,
              .mode = TSR_SPLIT_MODE_TENSOR,
              .reduction = TSR_REDUCTION_F32};
    assert_int_equal(task_run(&t, task_decode_all, NULL, processes), 2);
    task_assert_status(processes, 2, TSR_OK, "");
    assert_memory_equal(t.logits[0], t.logits[1], N_TOKENS * SESSION_VOCAB * sizeof(float));
    task_free(&t);
    t.reduction = TSR_REDUCTION_BF16;
    task_run(&t, task_decode_all, NULL, processes);
    task_assert_status(processes, 2, TSR_ERR_UNSUPPORTED, "bf16 sums are not supported between processes");
    task_free(&t);
}

/* -- sessions -- */

static tsr_status decode_resplit(process *self, tsr_model *model, tsr_session *session)
{
    const float other[] = {0, 3, 1};
    tsr_status status = task_decode(self, session, 0, N_TOKENS / 2);
    if (status == TSR_OK)
        status = tsr_model_resplit(model, other, 3);
    return status == TSR_OK ? task_decode(self, session, N_TOKENS / 2, N_TOKENS) : status;
}

static void resplit_body(process *self)
{
    task_with_session(self, decode_resplit);
}

static void the_split_changes_in_the_middle_of_a_text(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    for (int copies = 0; copies < 2; copies++) {
        task t = {.devices = {"host:1,threads=1", "host:2,threads=1"},
                  .split = {3, 1, 0},
                  .n_split = 3,
                  .mode = TSR_SPLIT_MODE_TENSOR,
                  .copies = copies};
        const int n = task_run(&t, resplit_body, NULL, processes);
        task_assert_status(processes, n, TSR_OK, "");
        task_assert_same(&t, n);
        task_free(&t);
    }
}

/* Where processes see one file, all of them write it. */
static tsr_status save_and_load(process *self, tsr_model *model, tsr_session *session)
{
    const task *t = self->user;
    char path[300];
    snprintf(path, sizeof path, "%s/saved%s", directory_path(),
             t->copies && self->rank == 1 ? "/not/there" : "");
    (void)model;
    tsr_status status = task_decode(self, session, 0, N_TOKENS / 2);
    if (status == TSR_OK)
        status = tsr_session_save(session, NULL, 0, path);
    if (status == TSR_OK)
        status = tsr_session_trim(session, 0, 0);
    if (status == TSR_OK)
        status = tsr_session_load(session, NULL, 0, path);
    return status == TSR_OK ? task_decode(self, session, N_TOKENS / 2, N_TOKENS) : status;
}

static void save_body(process *self)
{
    task_with_session(self, save_and_load);
}

static void saved_sequences_go_on_with_the_same_bits(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:2,threads=1", "host:1,threads=1"}, .split = {1, 1, 1}, .n_split = 3};
    const int n = task_run(&t, save_body, NULL, processes);
    task_assert_status(processes, n, TSR_OK, "");
    task_assert_same(&t, n);
    task_free(&t);
    t.copies = true;
    task_run(&t, save_body, NULL, processes);
    task_assert_status(processes, n, TSR_ERR_IO, "/not/there");
    task_free(&t);
}

/* -- the graph interface -- */

enum { ROWS = 96, COLS = 64, N_ROWS = 3, RESULT_BYTES = ROWS * N_ROWS * sizeof(float) };

static float weights[ROWS * COLS], x[COLS * N_ROWS];

/* Compile and run a graph with one input, `late_ms` after its program is ready. */
static tsr_status run_graph(tsr_graph *graph, tsr_tensor *in, const void *x_data, size_t x_bytes, int late_ms,
                            tsr_tensor *out_tensor, void *y_out, size_t y_bytes)
{
    tsr_status status = TSR_OK;
    tsr_program *program = NULL;
    TSR_TRY(tsr_program_compile(graph, NULL, &program));
    TSR_TRY(tsr_tensor_set(in, x_data, 0, x_bytes));
    usleep((useconds_t)late_ms * 1000);
    TSR_TRY(tsr_program_run(program));
    TSR_TRY(tsr_tensor_get(out_tensor, y_out, 0, y_bytes));
out:
    tsr_program_destroy(program);
    return status;
}

static tsr_status multiply(tsr_runtime *rt, const float *split, int n, int late_ms, float *y_out)
{
    tsr_status status = TSR_OK;
    tsr_context *context = NULL;
    tsr_buffer *buffer = NULL;
    tsr_graph *graph = NULL;
    TSR_TRY(tsr_context_create(rt, &context));
    tsr_tensor *w = tsr_tensor_2d(context, TSR_TYPE_F32, COLS, ROWS, "w");
    TSR_TRY(tsr_tensors_alloc(context, tsr_split_buffer_type(rt, 0, split, n), &buffer));
    TSR_TRY(tsr_tensor_set(w, weights, 0, sizeof weights));
    TSR_TRY(tsr_graph_create(rt, &graph));
    tsr_tensor *in = tsr_graph_input(graph, TSR_TYPE_F32, COLS, N_ROWS, "x");
    /* A softmax needs whole rows: the divided product is gathered. */
    tsr_tensor *y = tsr_graph_output(graph, tsr_softmax(graph, tsr_mul_mat(graph, w, in), 1));
    TSR_TRY(run_graph(graph, in, x, sizeof x, late_ms, y, y_out, RESULT_BYTES));
out:
    tsr_graph_destroy(graph);
    tsr_buffer_destroy(buffer);
    tsr_context_destroy(context);
    return status;
}

static void multiply_body(process *self)
{
    const task *t = self->user;
    tsr_runtime *rt = NULL;
    tsr_status status = task_open_runtime(self, &rt);
    if (status == TSR_OK)
        status = multiply(rt, t->split, t->n_split, self->rank == 1 ? t->late_ms : 0, t->logits[self->rank]);
    process_note(self, status);
    tsr_runtime_close(rt);
}

static void graphs_of_ones_own_run_over_processes(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    uint64_t seed = 3;
    task alone = {.devices = {"host:1,threads=1"}, .split = {1}, .n_split = 1};
    task t = {.devices = {"host:1,threads=1", "host:2,threads=1"}, .split = {1, 3, 2}, .n_split = 3};
    for (int i = 0; i < ROWS * COLS; i++)
        weights[i] = random_normal(&seed);
    for (int i = 0; i < COLS * N_ROWS; i++)
        x[i] = random_normal(&seed);
    task_assert_status(processes, task_run(&alone, multiply_body, NULL, processes), TSR_OK, "");
    task_assert_status(processes, task_run(&t, multiply_body, NULL, processes), TSR_OK, "");
    for (int r = 0; r < 2; r++)
        assert_memory_equal(t.logits[r], alone.logits[0], RESULT_BYTES);
    task_free(&t);
    task_free(&alone);
}

/* Some so large that they do not fit words of 32 bits. */
static void large_sums_have_the_bits_of_one_device(void **state)
{
    (void)state;
    task alone = {.devices = {"host:1,threads=1"}, .split = {1}, .n_split = 1};
    task tasks[] = {
        {.devices = {"host:1,threads=1", "host:2,threads=2"}, .split = {1, 3, 2}, .n_split = 3},
        {.devices = {"host:2,threads=1", "host:1,threads=1", "host:1,threads=1"},
         .split = {1, 2, 0, 2},
         .n_split = 4},
    };
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++)
        task_assert_product(&tasks[i], &alone);
}

/* The stall timeout is for devices of the own process. */
static void a_process_that_is_late_is_waited_for(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:1,threads=1", "host:2,threads=1"},
              .split = {1, 3, 2},
              .n_split = 3,
              .stall_ns = 800000000,
              .late_ms = 2000};
    task_assert_status(processes, task_run(&t, multiply_body, NULL, processes), TSR_OK, "");
    task_free(&t);
}

/* -- measuring -- */

typedef struct measured {
    task task;
    tsr_device_rates rates[PROCESSES_MAX][2];
} measured;

static void measure_body(process *self)
{
    measured *m = self->user; /* the task comes first */
    const tsr_type type = TSR_TYPE_F16;
    tsr_runtime *rt = NULL;
    tsr_status status = task_open_runtime(self, &rt);
    if (status == TSR_OK)
        status = tsr_runtime_measure(rt, &type, 1, m->rates[self->rank]);
    process_note(self, status);
    tsr_runtime_close(rt);
}

static void every_process_knows_the_rates_of_all_devices(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    measured m = {.task = {.devices = {"host:1,threads=1,mem=64MiB", "host:1,threads=1,mem=64MiB"}}};
    task_run(&m.task, measure_body, NULL, processes);
    task_assert_status(processes, 2, TSR_OK, "");
    assert_memory_equal(m.rates[0], m.rates[1], sizeof m.rates[0]);
    for (int d = 0; d < 2; d++) {
        assert_true(m.rates[0][d].measured);
        assert_true(m.rates[0][d].read_bytes_per_s[tsr_rate_index(TSR_TYPE_F16)] > 0);
        assert_true(m.rates[0][d].op_ns > 0);
        assert_true(m.rates[0][d].sync_ns >= 0); /* 0: less than what the clock can tell */
    }
    task_free(&m.task);
}

/* -- machines -- */

typedef struct planned {
    task task;
    tsr_link link[PROCESSES_MAX]; /* between two devices of different processes */
    tsr_plan_times times[PROCESSES_MAX];
    tsr_plan_info info[PROCESSES_MAX];
} planned;

static tsr_status note_plan(process *self, tsr_model *model, tsr_session *session)
{
    (void)session;
    planned *p = self->user; /* the task comes first */
    tsr_plan_predict(tsr_model_plan(model), &p->times[self->rank]);
    tsr_plan_get_info(tsr_model_plan(model), &p->info[self->rank]);
    return TSR_OK;
}

static void plan_body(process *self)
{
    planned *p = self->user;
    tsr_runtime *rt = NULL;
    host_number = self->rank;
    tsr_status status = task_open_runtime(self, &rt);
    if (status == TSR_OK)
        status = tsr_links_pair(rt->links, 0, 1, &p->link[self->rank]);
    tsr_runtime_close(rt);
    process_note(self, status);
    if (status == TSR_OK)
        task_with_session(self, note_plan);
}

static void ok(tsr_status status)
{
    if (status != TSR_OK)
        fail_msg("%s: %s", tsr_status_name(status), tsr_last_error());
}

/* The times of `p` are those of a plan for the text of all machines. */
static void assert_as_described(const planned *p, const char *machines)
{
    tsr_topology *topo = NULL;
    tsr_device_list *list = NULL;
    tsr_links *links = NULL;
    tsr_gguf *gguf = NULL;
    tsr_plan *plan = NULL;
    tsr_plan_times times;
    tsr_plan_info info;
    tsr_model_config config = session_config(N_CTX, 2, N_BATCH, N_BATCH);
    config.split.mode = p->task.mode;
    ok(tsr_topology_parse(machines, NULL, &topo));
    ok(tsr_device_list_create(topo, NULL, NULL, &list));
    ok(tsr_links_create(topo, list, &links));
    ok(tsr_gguf_open(session_model_path, NULL, &gguf));
    config.plan.links = links;
    config.split.tensor_split = p->task.n_split ? p->task.split : NULL;
    config.split.n_tensor_split = p->task.n_split;
    ok(tsr_plan_create(gguf, list, &config, &plan));
    tsr_plan_predict(plan, &times);
    tsr_plan_get_info(plan, &info);
    for (int r = 0; r < 2; r++) {
        assert_true(times.known && p->times[r].known);
        assert_true(p->times[r].decode.total_ns == times.decode.total_ns);
        assert_true(p->times[r].prompt.total_ns == times.prompt.total_ns);
        assert_int_equal(p->info[r].n_devices, info.n_devices);
        assert_int_equal(p->info[r].mode, info.mode);
    }
    tsr_plan_destroy(plan);
    tsr_gguf_close(gguf);
    tsr_links_destroy(links);
    tsr_device_list_destroy(list);
    tsr_topology_destroy(topo);
}

static void plans_are_those_of_described_machines(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    tsr_topology *topo = NULL;
    planned p = {.task = {.devices = {"host", "host"},
                          .network = {"ib 100Gb/s 5us", "ib 100Gb/s 5us"},
                          .mode = TSR_SPLIT_MODE_TENSOR,
                          .split = {1, 1},
                          .n_split = 2}};
    ok(tsr_topology_parse("host 1 cores 4GiB 20GB/s", NULL, &topo));
    p.task.topology = topo;
    own_hosts = true;
    task_run(&p.task, plan_body, NULL, processes);
    own_hosts = false;
    task_assert_status(processes, 2, TSR_OK, "");
    assert_true(p.link[0].kind == TSR_LINK_NETWORK && p.link[1].kind == TSR_LINK_NETWORK);
    assert_true(p.link[0].latency_ns == 5000);
    assert_as_described(&p, "2 nodes of host 1 cores 4GiB 20GB/s, ib 100Gb/s 5us");
    const double on_two_ns = p.times[0].decode.total_ns;
    task_free(&p.task);

    /* The same on one machine. */
    task_run(&p.task, plan_body, NULL, processes);
    task_assert_status(processes, 2, TSR_OK, "");
    assert_true(p.link[0].kind == TSR_LINK_STAGED && p.link[0].latency_ns < 5000);
    assert_true(p.times[0].decode.total_ns < on_two_ns);
    task_free(&p.task);

    /* The planner chooses. */
    p.task.n_split = 0;
    p.task.mode = TSR_SPLIT_MODE_AUTO;
    own_hosts = true;
    task_run(&p.task, plan_body, NULL, processes);
    own_hosts = false;
    task_assert_status(processes, 2, TSR_OK, "");
    assert_as_described(&p, "2 nodes of host 1 cores 4GiB 20GB/s, ib 100Gb/s 5us");
    task_free(&p.task);
    tsr_topology_destroy(topo);
}

static void open_body(process *self)
{
    tsr_runtime *rt = NULL;
    process_note(self, task_open_runtime(self, &rt));
    tsr_runtime_close(rt);
}

static void processes_agree_on_the_network(void **state)
{
    (void)state;
    static const struct {
        const char *first, *second;
        tsr_status status;
        const char *text;
    } cases[] = {
        {"ib 100Gb/s", "1x ib 100Gb/s", TSR_OK, ""},
        {"ib 100Gb/s", "ib 200Gb/s", TSR_ERR_INVALID,
         "the network of the config is 'ib 100Gb/s' in process 0 and 'ib 200Gb/s' in process 1; give all "
         "processes the same, or none"},
        {"ib 100Gb/s", NULL, TSR_ERR_INVALID, "'ib 100Gb/s' in process 0 and not given in process 1"},
        {NULL, "ib 100 Gb/s", TSR_ERR_INVALID, "network, column 4: '100' is not the rate"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        process processes[PROCESSES_MAX];
        task t = {.devices = {"host:1,threads=1", "host:1,threads=1"},
                  .network = {cases[i].first, cases[i].second}};
        task_run(&t, open_body, NULL, processes);
        task_assert_status(processes, 2, cases[i].status, cases[i].text);
        task_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_process_sees_the_devices_of_all),
        cmocka_unit_test(one_process_of_a_transport_is_as_good_as_none),
        cmocka_unit_test(split_modes_give_the_same_bits),
        cmocka_unit_test(random_splits_give_the_same_bits),
        cmocka_unit_test(transfers_are_sent_once_to_each_process),
        cmocka_unit_test(sums_of_floats_are_the_same_in_every_process),
        cmocka_unit_test(the_split_changes_in_the_middle_of_a_text),
        cmocka_unit_test(saved_sequences_go_on_with_the_same_bits),
        cmocka_unit_test(graphs_of_ones_own_run_over_processes),
        cmocka_unit_test(large_sums_have_the_bits_of_one_device),
        cmocka_unit_test(a_process_that_is_late_is_waited_for),
        cmocka_unit_test(every_process_knows_the_rates_of_all_devices),
        cmocka_unit_test(plans_are_those_of_described_machines),
        cmocka_unit_test(processes_agree_on_the_network),
    };
    return cmocka_run_group_tests(tests, task_set_up, task_tear_down);
}
