/* Calls of a runtime of several processes that are invalid in one of them: all processes fail with its
 * sentence, without waiting for transport_timeout_ns, and the runtime can be used as before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/tsr.h>

#include "core/event.h"
#include "core/status.h"
#include "support/directory.h"
#include "support/session_check.h"
#include "support/thread_transport.h"

/* TIMEOUT_NS is what a process would wait in vain. */
enum { MOST = 4, NS_PER_S = 1000000000, SOON_S = 10 };
static const uint64_t TIMEOUT_NS = UINT64_C(120) * NS_PER_S;

/* What a process has, and whether its arguments are the bad ones. */
typedef struct bench {
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *session;
    bool bad;
} bench;

typedef struct trial {
    const char *name;
    tsr_status (*call)(bench *b);
    const char *sentence; /* part of all processes' errors */
} trial;

/* -- calls -- */

static tsr_status decode(const bench *b, int32_t token, int n)
{
    const int32_t tokens[] = {token, 1, 1};
    float row[SESSION_VOCAB];
    const tsr_batch batch = {.n_tokens = n, .tokens = tokens};
    return tsr_session_decode(b->session, &batch, row);
}

static tsr_status decode_bad_token(bench *b)
{
    return decode(b, b->bad ? -5 : 1, 1);
}

static tsr_status decode_no_batch(bench *b)
{
    return b->bad ? tsr_session_decode(b->session, NULL, NULL) : decode(b, 1, 1);
}

static tsr_status decode_too_much(bench *b)
{
    const int32_t tokens[200] = {0};
    float row[SESSION_VOCAB];
    const tsr_batch batch = {.n_tokens = b->bad ? 200 : 3, .tokens = tokens};
    return tsr_session_decode(b->session, &batch, row);
}

static tsr_status decode_while_others_have_nothing(bench *b)
{
    return decode(b, b->bad ? -5 : 1, b->bad ? 1 : 0);
}

static tsr_status decode_other_number(bench *b)
{
    return decode(b, 1, b->bad ? 3 : 2);
}

static tsr_status decode_after_trim(bench *b)
{
    tsr_status status = decode(b, 1, 2);
    if (status == TSR_OK)
        status = tsr_session_trim(b->session, 0, b->bad ? 1 : 2);
    if (status == TSR_OK)
        status = decode(b, 1, 1);
    return tsr_session_trim(b->session, 0, 1) == TSR_OK ? status : TSR_ERR_FORMAT;
}

static tsr_status create_session(bench *b)
{
    tsr_session *session = NULL;
    const tsr_status status = tsr_session_create(b->model, b->bad ? NULL : &session);
    tsr_session_destroy(session);
    return status;
}

static tsr_status open_model(bench *b)
{
    tsr_model *model = NULL;
    const tsr_status status = tsr_model_open(b->rt, b->bad ? NULL : session_model_path, NULL, &model);
    tsr_model_close(model);
    return status;
}

static tsr_status save_without_path(bench *b)
{
    char path[300];
    snprintf(path, sizeof path, "%s/saved", directory_path());
    return tsr_session_save(b->session, NULL, 0, b->bad ? NULL : path);
}

static tsr_status save_other_sequences(bench *b)
{
    char path[300];
    const int first = 0, second = 1;
    snprintf(path, sizeof path, "%s/saved", directory_path());
    return tsr_session_save(b->session, b->bad ? &second : &first, 1, path);
}

static tsr_status load_without_path(bench *b)
{
    return tsr_session_load(b->session, NULL, 0, b->bad ? NULL : "/not/there");
}

static tsr_status resplit_negative(bench *b)
{
    const float good[MOST] = {1, 1}, bad[MOST] = {-1, 1};
    return tsr_model_resplit(b->model, b->bad ? bad : good, tsr_runtime_n_devices(b->rt));
}

static tsr_status resplit_all_without_split(bench *b)
{
    const float good[MOST] = {1, 1};
    return tsr_runtime_resplit(b->rt, b->bad ? NULL : good, tsr_runtime_n_devices(b->rt));
}

static tsr_status resplit_otherwise(bench *b)
{
    const float one[MOST] = {1, 1}, other[MOST] = {1, 2};
    return tsr_model_resplit(b->model, b->bad ? other : one, tsr_runtime_n_devices(b->rt));
}

static tsr_status ask_memory(bench *b)
{
    tsr_device_memory memory;
    return tsr_runtime_memory(b->rt, b->bad ? 99 : 0, &memory);
}

static tsr_status measure_bad_type(bench *b)
{
    const tsr_type type = b->bad ? TSR_TYPE_I32 : TSR_TYPE_F16;
    tsr_device_rates rates[MOST];
    return tsr_runtime_measure(b->rt, &type, 1, rates);
}

static tsr_status wrap_on_no_device(bench *b)
{
    static const float memory[64];
    tsr_buffer *buffer = NULL;
    const tsr_status status = tsr_buffer_from_ptr(b->rt, b->bad ? -1 : 0, memory, sizeof memory, &buffer);
    tsr_buffer_destroy(buffer);
    return status;
}

/* Tensors and a program of one's own; `bad_at` is where the arguments are bad. */
enum { ALLOC, COMPILE, GET };
static tsr_status multiply(const bench *b, int bad_at)
{
    enum { N = 8 };
    const float split[MOST] = {1, 1};
    float values[N * N] = {0};
    tsr_status status = TSR_OK;
    tsr_context *context = NULL;
    tsr_buffer *buffer = NULL;
    tsr_graph *graph = NULL;
    tsr_program *program = NULL;
    TSR_TRY(tsr_context_create(b->rt, &context));
    tsr_tensor *w = tsr_tensor_2d(context, TSR_TYPE_F32, N, N, "w");
    const tsr_buffer_type *type = tsr_split_buffer_type(b->rt, 0, split, tsr_runtime_n_devices(b->rt));
    TSR_TRY(tsr_tensors_alloc(context, b->bad && bad_at == ALLOC ? NULL : type, &buffer));
    TSR_TRY(tsr_tensor_set(w, values, 0, sizeof values));
    TSR_TRY(tsr_graph_create(b->rt, &graph));
    tsr_tensor *x = tsr_graph_input(graph, TSR_TYPE_F32, N, 1, "x");
    tsr_tensor *y = tsr_graph_output(graph, tsr_mul_mat(graph, w, x));
    tsr_program_config config = tsr_program_config_default();
    config.activation_bits = b->bad && bad_at == COMPILE ? 5 : 16;
    TSR_TRY(tsr_program_compile(graph, &config, &program));
    TSR_TRY(tsr_tensor_set(x, values, 0, N * sizeof(float)));
    TSR_TRY(tsr_program_run(program));
    TSR_TRY(tsr_tensor_get(y, values, 0, (b->bad && bad_at == GET ? 2 * N : N) * sizeof(float)));
out:
    tsr_program_destroy(program);
    tsr_graph_destroy(graph);
    tsr_buffer_destroy(buffer);
    tsr_context_destroy(context);
    return status;
}

static tsr_status allocate_without_type(bench *b)
{
    return multiply(b, ALLOC);
}

static tsr_status compile_bad_config(bench *b)
{
    return multiply(b, COMPILE);
}

static tsr_status read_too_much(bench *b)
{
    return multiply(b, GET);
}

static const trial trials[] = {
    {"decode a bad token", decode_bad_token, "token 0 is -5"},
    {"decode no batch", decode_no_batch, "batch must not be NULL"},
    {"decode more than the context", decode_too_much, "larger n_ctx"},
    {"decode while others have nothing", decode_while_others_have_nothing, "token 0 is -5"},
    {"decode another number", decode_other_number, "tsr_session_decode: arguments"},
    {"decode from another position", decode_after_trim, "tsr_session_decode: arguments"},
    {"create a session", create_session, "session_out must not be NULL"},
    {"open a model", open_model, "path and model_out must not be NULL"},
    {"save without a path", save_without_path, "path must not be NULL"},
    {"save other sequences", save_other_sequences, "saving sequences: arguments"},
    {"load without a path", load_without_path, "path must not be NULL"},
    {"resplit by a negative share", resplit_negative, "-1"},
    {"resplit all without a split", resplit_all_without_split, "tsr_runtime_resplit: a tensor_split"},
    {"resplit otherwise", resplit_otherwise, "change of split: arguments"},
    {"memory of no device", ask_memory, "device 99 does not exist"},
    {"measure a type without products", measure_bad_type, "cannot be measured"},
    {"wrap memory on no device", wrap_on_no_device, "there is no device -1"},
    {"allocate without a type", allocate_without_type, "buffer type is NULL"},
    {"compile a bad config", compile_bad_config, "activation_bits is 5"},
    {"read too much", read_too_much, "exceed tensor"},
};

/* -- processes -- */

typedef struct task {
    const trial *trial;
    int victim;
    const char *devices_of_victim;
    bool no_place; /* the victim has no place for the runtime */
    uint64_t took_ns[MOST];
} task;

static tsr_status open_bench(process *self, bench *b)
{
    const task *t = self->user;
    const float split[MOST] = {1, 1, 1, 1};
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_model_config model = session_config(64, 2, 8, 8);
    const bool victim = self->rank == t->victim;
    config.devices = victim && t->devices_of_victim ? t->devices_of_victim : "host:1,threads=1,mem=256MiB";
    config.transport = &self->transport;
    config.transport_timeout_ns = TIMEOUT_NS;
    tsr_status status = tsr_runtime_open(&config, victim && t->no_place ? NULL : &b->rt);
    if (status != TSR_OK)
        return status;
    model.split.tensor_split = split;
    model.split.n_tensor_split = tsr_runtime_n_devices(b->rt);
    status = tsr_model_open(b->rt, session_model_path, &model, &b->model);
    return status == TSR_OK ? tsr_session_create(b->model, &b->session) : status;
}

static void try_call(process *self)
{
    task *t = self->user;
    bench b = {.bad = self->rank == t->victim};
    uint64_t begin = tsr_clock_ns();
    tsr_status status = open_bench(self, &b);
    if (status == TSR_OK && t->trial) {
        begin = tsr_clock_ns();
        status = t->trial->call(&b);
    }
    t->took_ns[self->rank] = tsr_clock_ns() - begin;
    process_note(self, status);
    if (t->trial && status != TSR_OK && decode(&b, 1, 1) != TSR_OK) /* all is as it was */
        process_note(self, tsr_fail(TSR_ERR_FORMAT, "then: %s", tsr_last_error()));
    tsr_session_destroy(b.session);
    tsr_model_close(b.model);
    tsr_runtime_close(b.rt);
}

static void assert_all_fail(task *t, int n, const char *name, const char *sentence)
{
    process processes[PROCESSES_MAX];
    processes_run(n, try_call, t, NULL, processes);
    for (int r = 0; r < n; r++) {
        if (processes[r].status != TSR_ERR_INVALID && processes[r].status != TSR_ERR_FULL)
            fail_msg("%s: process %d of %d: %s: %s", name, r, n, tsr_status_name(processes[r].status),
                     processes[r].text);
        if (!strstr(processes[r].text, sentence))
            fail_msg("%s: process %d of %d: %s", name, r, n, processes[r].text);
        if (t->took_ns[r] > (uint64_t)SOON_S * NS_PER_S)
            fail_msg("%s: process %d of %d took %g s", name, r, n, (double)t->took_ns[r] / NS_PER_S);
    }
}

static void what_is_invalid_in_one_process_fails_in_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        const int n = 2 + (int)i % 3;
        task t = {.trial = &trials[i], .victim = (int)i % n};
        assert_all_fail(&t, n, trials[i].name, trials[i].sentence);
    }
}

static void a_runtime_that_one_process_cannot_open_no_process_opens(void **state)
{
    (void)state;
    task no_place = {.victim = 1, .no_place = true}, devices = {.victim = 0, .devices_of_victim = "hosts?"};
    assert_all_fail(&no_place, 3, "no place for the runtime", "rt_out must not be NULL");
    assert_all_fail(&devices, 2, "bad devices", "hosts?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_invalid_in_one_process_fails_in_all),
        cmocka_unit_test(a_runtime_that_one_process_cannot_open_no_process_opens),
    };
    return cmocka_run_group_tests(tests, session_model_write, NULL);
}
