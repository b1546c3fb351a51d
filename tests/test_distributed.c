/* Runtimes whose devices are in several processes (tsr/transport.h): whatever is divided among them, and
 * however, the logits have the bits of one device in one process, in every process; plans, accounting and
 * saved sequences are the same in all; and what fails in one fails in all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include <tsr/tsr.h>

#include "core/status.h"

#include "support/directory.h"
#include "support/failing_alloc.h"
#include "support/random.h"
#include "support/session_check.h"
#include "support/thread_transport.h"

enum { N_TOKENS = 40, N_CTX = 128, N_BATCH = 8 };

static int32_t tokens[N_TOKENS];
static float *plain; /* of all tokens, by one device */

static int set_up(void **state)
{
    uint64_t seed = 5;
    if (session_model_write(state) || directory_make(state))
        return -1;
    session_random_tokens(&seed, tokens, N_TOKENS);
    plain = session_plain_logits(NULL, tokens, N_TOKENS);
    return 0;
}

static int tear_down(void **state)
{
    free(plain);
    return session_model_remove(state) || directory_remove(state);
}

/* What all processes of a test do. */
typedef struct task {
    const char *devices[PROCESSES_MAX]; /* of each */
    const char *path;                   /* NULL: the sessions' model */
    const char *path_of_1;              /* NULL: the same */
    float split[TSR_MAX_DEVICES];
    int n_split;
    tsr_split_mode mode;
    tsr_reduction reduction;
    bool copies;
    const char *collectives;
    int n_gpu_layers; /* 0: all; the others go to the last device,
                         from which many are handed what it computed */
    int chunk;
    uint64_t timeout_ns;
    int64_t fail_alloc;
    uint64_t stall_ns;
    int late_ms;                  /* process 1 runs its program later than the others */
    float *logits[PROCESSES_MAX]; /* [N_TOKENS][SESSION_VOCAB], what came of it */
    size_t used[PROCESSES_MAX][TSR_MAX_DEVICES][TSR_MEMORY_COUNT];
} task;

static const char *devices_of(const process *self)
{
    return ((const task *)self->user)->devices[self->rank];
}

static tsr_status open_runtime(process *self, tsr_runtime **rt_out)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = devices_of(self);
    config.collectives = ((const task *)self->user)->collectives;
    config.transport = &self->transport;
    config.transport_timeout_ns = ((const task *)self->user)->timeout_ns;
    config.stall_timeout_ns = ((const task *)self->user)->stall_ns;
    return tsr_runtime_open(&config, rt_out);
}

static tsr_status open_model(process *self, tsr_runtime *rt, tsr_model **model_out)
{
    const task *t = self->user;
    tsr_model_config config = session_config(N_CTX, 2, N_BATCH, N_BATCH);
    const char *path = t->path ? t->path : session_model_path;
    config.split.mode = t->mode;
    config.compute.reduction = t->reduction;
    config.load.copy_weights = t->copies;
    config.offload.n_gpu_layers = t->n_gpu_layers ? t->n_gpu_layers : config.offload.n_gpu_layers;
    config.split.tensor_split = t->n_split ? t->split : NULL;
    config.split.n_tensor_split = t->n_split;
    return tsr_model_open(rt, self->rank == 1 && t->path_of_1 ? t->path_of_1 : path, &config, model_out);
}

/* Tokens [begin, end) with all their logits. */
static tsr_status decode(const process *self, tsr_session *session, int begin, int end)
{
    const task *t = self->user;
    tsr_status status = TSR_OK;
    bool all[N_TOKENS];
    memset(all, true, sizeof all);
    for (int at = begin, n; at < end && status == TSR_OK; at += n) {
        n = t->chunk && t->chunk < end - at ? t->chunk : end - at;
        tsr_batch batch = {.n_tokens = n, .tokens = tokens + at, .outputs = all};
        status = tsr_session_decode(session, &batch, t->logits[self->rank] + at * SESSION_VOCAB);
    }
    return status;
}

/* A session of a model of a runtime, and what is done with it. */
static void with_session(process *self,
                         tsr_status (*use)(process *self, tsr_model *model, tsr_session *session))
{
    task *t = self->user;
    tsr_runtime *rt = NULL;
    tsr_model *model = NULL;
    tsr_session *session = NULL;
    tsr_status status = open_runtime(self, &rt);
    if (status == TSR_OK)
        status = open_model(self, rt, &model);
    if (status == TSR_OK)
        status = tsr_session_create(model, &session);
    if (status == TSR_OK)
        status = use(self, model, session);
    process_note(self, status);
    for (int d = 0; rt && d < tsr_runtime_n_devices(rt); d++) {
        tsr_device_info info;
        if (tsr_runtime_device(rt, d, &info) == TSR_OK)
            memcpy(t->used[self->rank][d], info.used, sizeof info.used);
    }
    tsr_session_destroy(session);
    tsr_model_close(model);
    tsr_runtime_close(rt);
}

static tsr_status decode_all(process *self, tsr_model *model, tsr_session *session)
{
    (void)model;
    return decode(self, session, 0, N_TOKENS);
}

static void decode_body(process *self)
{
    with_session(self, decode_all);
}

static int run_task(task *t, void (*body)(process *self), const process_faults *faults, process *processes)
{
    int n = 0;
    while (n < PROCESSES_MAX && t->devices[n])
        n++;
    for (int r = 0; r < n; r++) {
        t->logits[r] = calloc(N_TOKENS * SESSION_VOCAB, sizeof(float));
        assert_non_null(t->logits[r]);
    }
    processes_run(n, body, t, faults, processes);
    return n;
}

static void free_task(task *t)
{
    for (int r = 0; r < PROCESSES_MAX; r++) {
        free(t->logits[r]);
        t->logits[r] = NULL;
    }
}

static void assert_status(const process *processes, int n, tsr_status status, const char *text)
{
    for (int r = 0; r < n; r++)
        if (processes[r].status != status || !strstr(processes[r].text, text))
            fail_msg("process %d: %s: %s", r, tsr_status_name(processes[r].status), processes[r].text);
}

/* Every process has the bits of one device, and they have the same accounting of all devices. */
static void assert_same(const task *t, int n)
{
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < N_TOKENS; i++)
            session_assert_row(t->logits[r] + i * SESSION_VOCAB, plain, i);
        assert_memory_equal(t->used[r], t->used[0], sizeof t->used[0]);
    }
}

static void run_and_compare(task *t)
{
    process processes[PROCESSES_MAX];
    const int n = run_task(t, decode_body, NULL, processes);
    assert_status(processes, n, TSR_OK, "");
    assert_same(t, n);
    free_task(t);
}

/* -- bits -- */

static void devices_of_all_processes_are_listed(process *self)
{
    tsr_runtime *rt = NULL;
    tsr_device_info info[3];
    char text[200];
    tsr_status status = open_runtime(self, &rt);
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
    assert_int_equal(run_task(&t, devices_of_all_processes_are_listed, NULL, processes), 2);
    assert_status(processes, 2, TSR_ERR_NOT_FOUND,
                  "3: host0@0 of 0 with 2, host0@1 of 1 with 1, host1@1 of 1 with 1; isa");
    free_task(&t);
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
    assert_int_equal(run_task(&t, decode_body, NULL, processes), 2);
    assert_status(processes, 2, TSR_OK, "");
    assert_memory_equal(t.logits[0], t.logits[1], N_TOKENS * SESSION_VOCAB * sizeof(float));
    free_task(&t);
    t.reduction = TSR_REDUCTION_BF16;
    run_task(&t, decode_body, NULL, processes);
    assert_status(processes, 2, TSR_ERR_UNSUPPORTED, "bf16 sums are not supported between processes");
    free_task(&t);
}

/* -- sessions -- */

static tsr_status decode_resplit(process *self, tsr_model *model, tsr_session *session)
{
    const float other[] = {0, 3, 1};
    tsr_status status = decode(self, session, 0, N_TOKENS / 2);
    if (status == TSR_OK)
        status = tsr_model_resplit(model, other, 3);
    return status == TSR_OK ? decode(self, session, N_TOKENS / 2, N_TOKENS) : status;
}

static void resplit_body(process *self)
{
    with_session(self, decode_resplit);
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
        const int n = run_task(&t, resplit_body, NULL, processes);
        assert_status(processes, n, TSR_OK, "");
        assert_same(&t, n);
        free_task(&t);
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
    tsr_status status = decode(self, session, 0, N_TOKENS / 2);
    if (status == TSR_OK)
        status = tsr_session_save(session, NULL, 0, path);
    if (status == TSR_OK)
        status = tsr_session_trim(session, 0, 0);
    if (status == TSR_OK)
        status = tsr_session_load(session, NULL, 0, path);
    return status == TSR_OK ? decode(self, session, N_TOKENS / 2, N_TOKENS) : status;
}

static void save_body(process *self)
{
    with_session(self, save_and_load);
}

static void saved_sequences_go_on_with_the_same_bits(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:2,threads=1", "host:1,threads=1"}, .split = {1, 1, 1}, .n_split = 3};
    const int n = run_task(&t, save_body, NULL, processes);
    assert_status(processes, n, TSR_OK, "");
    assert_same(&t, n);
    free_task(&t);
    t.copies = true;
    run_task(&t, save_body, NULL, processes);
    assert_status(processes, n, TSR_ERR_IO, "/not/there");
    free_task(&t);
}

/* -- failures -- */

static void what_one_process_cannot_open_none_opens(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:1,threads=1", "host:1,threads=1"}, .path_of_1 = "/not/there.gguf"};
    run_task(&t, decode_body, NULL, processes);
    assert_status(processes, 2, TSR_ERR_IO, "/not/there.gguf");
    free_task(&t);
    task bad = {.devices = {"host:1,threads=1", "hosts?", "host:1"}};
    run_task(&bad, decode_body, NULL, processes);
    assert_status(processes, 3, TSR_ERR_INVALID, "hosts?");
    free_task(&bad);
    task small = {.devices = {"host:1,threads=1,mem=64KiB", "host:1,threads=1,mem=64KiB"}};
    run_task(&small, decode_body, NULL, processes);
    assert_status(processes, 2, TSR_ERR_MEMORY, "host0@");
    free_task(&small);
    task many = {.devices = {"host:33,threads=1", "host:32,threads=1"}};
    run_task(&many, decode_body, NULL, processes);
    assert_status(processes, 2, TSR_ERR_INVALID, "65 devices together; a runtime has 64 at most");
    free_task(&many);
    task staged = {.devices = {"host:1,threads=1", "host:1,threads=1"}, .collectives = "staged"};
    run_task(&staged, decode_body, NULL, processes);
    assert_status(processes, 2, TSR_ERR_UNSUPPORTED, "processes have their transport: use auto");
    free_task(&staged);
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
    return decode(self, session, 0, N_TOKENS);
}

/* Process 1 is given another token, and then the same. */
static tsr_status decode_other_token(process *self, tsr_model *model, tsr_session *session)
{
    (void)model;
    return decode_refused(self, session, self->rank, TSR_ERR_INVALID, "tsr_session_decode: arguments");
}

static void other_token_body(process *self)
{
    with_session(self, decode_other_token);
}

static void arguments_that_differ_are_refused(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:1,threads=1", "host:1,threads=1"}, .split = {1, 1}, .n_split = 2};
    const int n = run_task(&t, other_token_body, NULL, processes);
    assert_status(processes, n, TSR_OK, "");
    assert_same(&t, n);
    free_task(&t);
    task files = {.devices = {"host:1,threads=1", "host:1,threads=1"},
                  .split = {1, 1},
                  .n_split = 2,
                  .path_of_1 = "examples/models/glossary-7m-Q8_0.gguf"};
    run_task(&files, decode_body, NULL, processes);
    assert_status(processes, n, TSR_ERR_INVALID, "tsr_model_open: arguments");
    free_task(&files);
}

/* It leaves the range of the exact reduction. */
static tsr_status decode_poisoned(process *self, tsr_model *model, tsr_session *session)
{
    (void)model;
    return decode_refused(self, session, SESSION_POISON, TSR_ERR_RANGE, "");
}

static void poison_body(process *self)
{
    with_session(self, decode_poisoned);
}

static void a_failed_step_leaves_every_process_as_it_was(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:1,threads=1", "host:1,threads=1"}, .split = {1, 1}, .n_split = 2};
    const int n = run_task(&t, poison_body, NULL, processes);
    assert_status(processes, n, TSR_OK, "");
    assert_same(&t, n);
    free_task(&t);
}

/* Whichever operation of the network fails, or process stops, the others come to an end,
 * and with an error. */
static void nobody_waits_for_ever(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:1,threads=1", "host:2,threads=1"},
              .split = {1, 1, 1},
              .n_split = 3,
              .mode = TSR_SPLIT_MODE_TENSOR,
              .chunk = 20,
              .timeout_ns = 100000000};
    for (int gone = 0; gone < 2; gone++) {
        for (int64_t at = 1; at < 100; at += at < 10 ? 1 : 13) {
            const process_faults faults = {.rank = 1, .fail_at = gone ? 0 : at, .gone_at = gone ? at : 0};
            run_task(&t, decode_body, &faults, processes);
            free_task(&t);
            assert_true(processes[1].status == TSR_ERR_DEVICE_LOST || processes[1].status == TSR_ERR_DEVICE);
            if (processes[0].status != TSR_ERR_DEVICE_LOST)
                fail_msg("operation %d: %s: %s", (int)at, tsr_status_name(processes[0].status),
                         processes[0].text);
        }
    }
}

/* The n-th allocation of all processes together fails, wherever that is. */
static void decode_short_of_memory(process *self)
{
    const task *t = self->user;
    if (self->rank == 0)
        failing_alloc_set(t->fail_alloc);
    with_session(self, decode_all);
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
        run_task(&t, decode_short_of_memory, NULL, processes);
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        free_task(&t);
        const tsr_status a = processes[0].status, b = processes[1].status;
        if (a != b || a == TSR_ERR_DEVICE_LOST)
            report_outcome(processes, n);
        n_failed += a != TSR_OK;
        assert_int_equal(failing_alloc_live(), blocks);
    }
    assert_true(n_failed > 20);
}

/* -- the graph interface -- */

enum { ROWS = 96, COLS = 64, N_ROWS = 3, RESULT_BYTES = ROWS * N_ROWS * sizeof(float) };

static float weights[ROWS * COLS], x[COLS * N_ROWS];

static tsr_status multiply(tsr_runtime *rt, const float *split, int n, int late_ms, float *y_out)
{
    tsr_status status = TSR_OK;
    tsr_context *context = NULL;
    tsr_buffer *buffer = NULL;
    tsr_graph *graph = NULL;
    tsr_program *program = NULL;
    TSR_TRY(tsr_context_create(rt, &context));
    tsr_tensor *w = tsr_tensor_2d(context, TSR_TYPE_F32, COLS, ROWS, "w");
    TSR_TRY(tsr_tensors_alloc(context, tsr_split_buffer_type(rt, 0, split, n), &buffer));
    TSR_TRY(tsr_tensor_set(w, weights, 0, sizeof weights));
    TSR_TRY(tsr_graph_create(rt, &graph));
    tsr_tensor *in = tsr_graph_input(graph, TSR_TYPE_F32, COLS, N_ROWS, "x");
    /* A softmax needs whole rows: the divided product is gathered. */
    tsr_tensor *y = tsr_graph_output(graph, tsr_softmax(graph, tsr_mul_mat(graph, w, in), 1));
    TSR_TRY(tsr_program_compile(graph, NULL, &program));
    TSR_TRY(tsr_tensor_set(in, x, 0, sizeof x));
    usleep((useconds_t)late_ms * 1000);
    TSR_TRY(tsr_program_run(program));
    TSR_TRY(tsr_tensor_get(y, y_out, 0, RESULT_BYTES));
out:
    tsr_program_destroy(program);
    tsr_graph_destroy(graph);
    tsr_buffer_destroy(buffer);
    tsr_context_destroy(context);
    return status;
}

static void multiply_body(process *self)
{
    const task *t = self->user;
    tsr_runtime *rt = NULL;
    tsr_status status = open_runtime(self, &rt);
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
    assert_status(processes, run_task(&alone, multiply_body, NULL, processes), TSR_OK, "");
    assert_status(processes, run_task(&t, multiply_body, NULL, processes), TSR_OK, "");
    for (int r = 0; r < 2; r++)
        assert_memory_equal(t.logits[r], alone.logits[0], RESULT_BYTES);
    free_task(&t);
    free_task(&alone);
}

/* The stall timeout is for devices of the own process. */
static void a_process_that_is_late_is_waited_for(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    task t = {.devices = {"host:1,threads=1", "host:2,threads=1"},
              .split = {1, 3, 2},
              .n_split = 3,
              .stall_ns = 300000000,
              .late_ms = 1000};
    assert_status(processes, run_task(&t, multiply_body, NULL, processes), TSR_OK, "");
    free_task(&t);
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
    tsr_status status = open_runtime(self, &rt);
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
    run_task(&m.task, measure_body, NULL, processes);
    assert_status(processes, 2, TSR_OK, "");
    assert_memory_equal(m.rates[0], m.rates[1], sizeof m.rates[0]);
    for (int d = 0; d < 2; d++) {
        assert_true(m.rates[0][d].measured);
        assert_true(m.rates[0][d].read_bytes_per_s[tsr_rate_index(TSR_TYPE_F16)] > 0);
        assert_true(m.rates[0][d].op_ns > 0);
        assert_true(m.rates[0][d].sync_ns > 0);
    }
    free_task(&m.task);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_process_sees_the_devices_of_all),
        cmocka_unit_test(one_process_of_a_transport_is_as_good_as_none),
        cmocka_unit_test(split_modes_give_the_same_bits),
        cmocka_unit_test(random_splits_give_the_same_bits),
        cmocka_unit_test(sums_of_floats_are_the_same_in_every_process),
        cmocka_unit_test(the_split_changes_in_the_middle_of_a_text),
        cmocka_unit_test(saved_sequences_go_on_with_the_same_bits),
        cmocka_unit_test(what_one_process_cannot_open_none_opens),
        cmocka_unit_test(arguments_that_differ_are_refused),
        cmocka_unit_test(a_failed_step_leaves_every_process_as_it_was),
        cmocka_unit_test(nobody_waits_for_ever),
        cmocka_unit_test(memory_that_one_process_lacks_fails_all),
        cmocka_unit_test(graphs_of_ones_own_run_over_processes),
        cmocka_unit_test(a_process_that_is_late_is_waited_for),
        cmocka_unit_test(every_process_knows_the_rates_of_all_devices),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
