#include "support/distributed_task.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/status.h"
#include "model/session/session.h"
#include "support/directory.h"
#include "support/random.h"

static int32_t tokens[N_TOKENS];
static float *plain; /* of all tokens, by one device */

int task_set_up_model(void **state)
{
    uint64_t seed = 5;
    if (session_model_write(state))
        return -1;
    session_random_tokens(&seed, tokens, N_TOKENS);
    return 0;
}

int task_set_up(void **state)
{
    if (task_set_up_model(state))
        return -1;
    plain = session_plain_logits(NULL, tokens, N_TOKENS);
    return 0;
}

int task_tear_down(void **state)
{
    (void)state;
    free(plain);
    return 0;
}

static const char *devices_of(const process *self)
{
    return ((const task *)self->user)->devices[self->rank];
}

tsr_status task_open_runtime(process *self, tsr_runtime **rt_out)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = devices_of(self);
    const task *t = self->user;
    config.collectives = t->collectives;
    config.transport = &self->transport;
    config.transport_timeout_ns = t->timeout_ns;
    config.stall_timeout_ns = t->stall_ns;
    config.topology = t->topology;
    config.network = t->network[self->rank];
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
    config.offload.rules = t->rule;
    config.offload.n_rules = t->rule ? 1 : 0;
    config.split.tensor_split = t->n_split ? t->split : NULL;
    config.split.n_tensor_split = t->n_split;
    return tsr_model_open(rt, self->rank == 1 && t->path_of_1 ? t->path_of_1 : path, &config, model_out);
}

tsr_status task_decode(const process *self, tsr_session *session, int begin, int end)
{
    const task *t = self->user;
    tsr_status status = TSR_OK;
    bool wanted[N_TOKENS];
    for (int at = begin, n; at < end && status == TSR_OK; at += n) {
        n = t->chunk && t->chunk < end - at ? t->chunk : end - at;
        tsr_batch batch = {.n_tokens = n, .tokens = tokens + at, .outputs = wanted};
        memset(wanted, !t->last_only, sizeof wanted);
        wanted[n - 1] = true;
        status = tsr_session_decode(session, &batch, t->logits[self->rank] + at * SESSION_VOCAB);
    }
    return status;
}

tsr_status task_decode_on(const process *self, tsr_model *model, tsr_session *session, int *n_losses_out)
{
    enum { STEP = 3 };
    tsr_status status = TSR_OK;
    while (tsr_session_length(session, 0) < N_TOKENS && status == TSR_OK) {
        const int at = (int)tsr_session_length(session, 0);
        status = task_decode(self, session, at, TSR_MIN(at + STEP, N_TOKENS));
        if (status == TSR_ERR_DEVICE_LOST && n_losses_out) {
            status = tsr_runtime_drop_device(model->rt, TSR_LOST_DEVICES);
            ++*n_losses_out;
        }
    }
    return status;
}

void task_with_session(process *self,
                       tsr_status (*use)(process *self, tsr_model *model, tsr_session *session))
{
    task *t = self->user;
    tsr_runtime *rt = NULL;
    tsr_model *model = NULL;
    tsr_session *session = NULL;
    tsr_status status = task_open_runtime(self, &rt);
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
    return task_decode(self, session, 0, N_TOKENS);
}

void task_decode_all(process *self)
{
    task_with_session(self, decode_all);
}

float *task_logits_alone(const char *devices, int n_split)
{
    enum { BYTES = N_TOKENS * SESSION_VOCAB * sizeof(float) };
    process processes[PROCESSES_MAX];
    task t = {.devices = {devices}, .split = {1, 2, 1}, .n_split = n_split, .mode = TSR_SPLIT_MODE_TENSOR};
    float *logits = malloc(BYTES);
    assert_non_null(logits);
    task_run(&t, task_decode_all, NULL, processes);
    task_assert_status(processes, 1, TSR_OK, "");
    memcpy(logits, t.logits[0], BYTES);
    task_free(&t);
    return logits;
}

/* -- a product -- */

/* Values grow with the rows of the input: the first sums fit words, the last are near the end of the
 * range. */
enum { ROWS = 96, COLS = 64, N_ROWS = 2800, PRODUCT_BYTES = ROWS * N_ROWS * sizeof(float) };

static float weights[ROWS * COLS], x[COLS * N_ROWS], products[PROCESSES_MAX][ROWS * N_ROWS];

static void draw_factors(void)
{
    uint64_t seed = 8;
    for (int i = 0; i < ROWS * COLS; i++)
        weights[i] = random_normal(&seed);
    for (int i = 0; i < COLS * N_ROWS; i++) {
        const int row = i / COLS;
        x[i] = random_normal(&seed) * (row < 1000 ? 0.01f : row < 2000 ? 1 : row < 2700 ? 100 : 1e6f);
    }
}

static tsr_status run_product(const process *self, tsr_graph *graph, tsr_tensor *w)
{
    tsr_status status = TSR_OK;
    const task *t = self->user;
    const int n_rows = t->n_rows ? t->n_rows : N_ROWS;
    tsr_program *program = NULL;
    tsr_tensor *in = tsr_graph_input(graph, TSR_TYPE_F32, COLS, n_rows, "x");
    tsr_tensor *y = tsr_graph_output(graph, tsr_mul_mat(graph, w, in));
    TSR_TRY(tsr_program_compile(graph, NULL, &program));
    TSR_TRY(tsr_tensor_set(in, x, 0, (size_t)n_rows * COLS * sizeof *x));
    if (self->rank == 1)
        usleep((useconds_t)t->late_ms * 1000);
    TSR_TRY(tsr_program_run(program));
    TSR_TRY(tsr_tensor_get(y, products[self->rank], 0, (size_t)n_rows * ROWS * sizeof(float)));
out:
    tsr_program_destroy(program);
    return status;
}

static tsr_status multiply(const process *self, tsr_runtime *rt)
{
    tsr_status status = TSR_OK;
    const task *t = self->user;
    tsr_context *context = NULL;
    tsr_buffer *buffer = NULL;
    tsr_graph *graph = NULL;
    tsr_split_buffer_config config = tsr_split_buffer_config_default();
    config.axis = 0;
    config.granule = 8;
    config.tensor_split = t->split;
    config.n_tensor_split = t->n_split;
    TSR_TRY(tsr_context_create(rt, &context));
    tsr_tensor *w = tsr_tensor_2d(context, TSR_TYPE_F32, COLS, ROWS, "w");
    TSR_TRY(tsr_tensors_alloc(context, tsr_split_buffer_type_ex(rt, &config), &buffer));
    TSR_TRY(tsr_tensor_set(w, weights, 0, sizeof weights));
    TSR_TRY(tsr_graph_create(rt, &graph));
    TSR_TRY(run_product(self, graph, w));
out:
    tsr_graph_destroy(graph);
    tsr_buffer_destroy(buffer);
    tsr_context_destroy(context);
    return status;
}

void task_multiply(process *self)
{
    tsr_runtime *rt = NULL;
    tsr_status status = task_open_runtime(self, &rt);
    if (status == TSR_OK)
        status = multiply(self, rt);
    process_note(self, status);
    tsr_runtime_close(rt);
}

void task_assert_product(task *t, task *alone)
{
    process processes[PROCESSES_MAX];
    float *expected = malloc(PRODUCT_BYTES);
    assert_non_null(expected);
    draw_factors();
    memset(products, 0, sizeof products);
    task_assert_status(processes, task_run(alone, task_multiply, NULL, processes), TSR_OK, "");
    memcpy(expected, products[0], PRODUCT_BYTES);
    memset(products, 0, sizeof products);
    const int n = task_run(t, task_multiply, NULL, processes);
    task_assert_status(processes, n, TSR_OK, "");
    for (int r = 0; r < n; r++)
        assert_memory_equal(products[r], expected, PRODUCT_BYTES);
    task_free(t);
    task_free(alone);
    free(expected);
}

/* -- running -- */

int task_run(task *t, void (*body)(process *self), const process_faults *faults, process *processes)
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

void task_free(task *t)
{
    for (int r = 0; r < PROCESSES_MAX; r++) {
        free(t->logits[r]);
        t->logits[r] = NULL;
    }
}

void task_assert_status(const process *processes, int n, tsr_status status, const char *text)
{
    for (int r = 0; r < n; r++)
        if (processes[r].status != status || !strstr(processes[r].text, text))
            fail_msg("process %d: %s: %s", r, tsr_status_name(processes[r].status), processes[r].text);
}

void task_assert_rows(const task *t, int r)
{
    for (int i = 0; i < N_TOKENS; i++)
        session_assert_row(t->logits[r] + i * SESSION_VOCAB, plain, i);
}

void task_assert_same(const task *t, int n)
{
    for (int r = 0; r < n; r++) {
        task_assert_rows(t, r);
        assert_memory_equal(t->used[r], t->used[0], sizeof t->used[0]);
    }
}
