/* fork() in a program whose runtime spans several processes: in the child every call that would wait returns
 * TSR_ERR_DEVICE_LOST, and the child closes its copy of the runtime without the transport, which is the
 * parent's. The processes of the runtime go on with the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/tsr.h>

#include "core/status.h"
#include "support/child.h"
#include "support/session_check.h"
#include "support/thread_transport.h"

enum { N_PROCESSES = 2, N_TOKENS = 12, PART = 4, N_STEPS = 3, LIMIT_S = 10 };

static const int32_t tokens[N_TOKENS] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

typedef struct bench {
    process *self;
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *session;
} bench;

/* The i-th part of the tokens, and the logits of its last one. */
static tsr_status step(const bench *b, int i, float *logits)
{
    return session_append(b->session, 0, tokens + i * PART, PART, logits + i * SESSION_VOCAB);
}

static void use_and_close(void *argument)
{
    const bench *b = argument;
    tsr_session *second = NULL;
    static float logits[N_STEPS * SESSION_VOCAB];
    b->self->hub = NULL; /* any use of the transport crashes */
    CHECK(step(b, 1, logits) == TSR_ERR_DEVICE_LOST);
    CHECK(strstr(tsr_last_error(), "fork()"));
    CHECK(tsr_session_create(b->model, &second) == TSR_ERR_DEVICE_LOST);
    CHECK(tsr_model_resplit(b->model, (float[]){1, 1, 2}, 3) == TSR_ERR_DEVICE_LOST);
    CHECK(tsr_session_save(b->session, &(int){0}, 1, "/dev/null") == TSR_ERR_DEVICE_LOST);
    tsr_session_destroy(b->session);
    tsr_model_close(b->model);
    tsr_runtime_close(b->rt);
}

/* Process 0 forks between two steps; the others wait for it in the second one. */
static tsr_status fork_between_steps(bench *b, float *logits)
{
    tsr_status status = step(b, 0, logits);
    if (status == TSR_OK && b->self->rank == 0 && !child_succeeds(use_and_close, b, LIMIT_S))
        return tsr_fail(TSR_ERR_FORMAT, "the child failed");
    for (int i = 1; i < N_STEPS && status == TSR_OK; i++)
        status = step(b, i, logits);
    return status;
}

static void body(process *self)
{
    bench b = {.self = self};
    float **logits = self->user;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_model_config model = session_config(64, 1, 16, 16);
    config.devices = self->rank == 0 ? "host:2,threads=2" : "host:1,threads=1";
    config.transport = &self->transport;
    config.transport_timeout_ns = UINT64_C(2) * LIMIT_S * 1000000000;
    model.split.mode = TSR_SPLIT_MODE_TENSOR;
    tsr_status status = tsr_runtime_open(&config, &b.rt);
    if (status == TSR_OK)
        status = tsr_model_open(b.rt, session_model_path, &model, &b.model);
    if (status == TSR_OK)
        status = tsr_session_create(b.model, &b.session);
    if (status == TSR_OK)
        status = fork_between_steps(&b, logits[self->rank]);
    process_note(self, status);
    tsr_session_destroy(b.session);
    tsr_model_close(b.model);
    tsr_runtime_close(b.rt);
}

static void a_child_does_not_use_the_parents_transport(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    float *logits[N_PROCESSES], *plain = session_plain_logits(NULL, tokens, N_TOKENS);
    for (int r = 0; r < N_PROCESSES; r++)
        assert_non_null(logits[r] = calloc(N_STEPS * SESSION_VOCAB, sizeof(float)));
    processes_run(N_PROCESSES, body, logits, NULL, processes);
    for (int r = 0; r < N_PROCESSES; r++) {
        if (processes[r].status != TSR_OK)
            fail_msg("process %d: %s", r, processes[r].text);
        for (int i = 0; i < N_STEPS; i++)
            session_assert_row(logits[r] + i * SESSION_VOCAB, plain, i * PART + PART - 1);
        free(logits[r]);
    }
    free(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_child_does_not_use_the_parents_transport)};
    return cmocka_run_group_tests(tests, session_model_write, NULL);
}
