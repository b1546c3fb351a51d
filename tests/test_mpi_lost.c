/* A process of an MPI job that is stopped (SIGSTOP), in the middle of a decode or before it loads a model:
 * the others return, name it and end. The test starts itself under mpirun. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <unistd.h>

#ifdef TSR_TEST_MPIEXEC
#include <tsr/mpi.h>
#include <tsr/tsr.h>

#include "core/event.h"

enum { N_PROCESSES = 3, N_TOKENS = 32, N_BATCH = 8, LIMIT_MS = 2000, SLOWEST_MS = 40000 };

static char self_path[4096];

/* -- a process of the job -- */

static void stop_in_second_chunk(int64_t n_done, int64_t n_tokens, void *user)
{
    (void)n_tokens, (void)user;
    if (n_done == N_BATCH)
        raise(SIGSTOP);
}

static tsr_status decode(tsr_model *model, bool stops)
{
    tsr_status status = TSR_OK;
    tsr_session *session = NULL;
    int32_t tokens[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = 100 + i;
    status = tsr_session_create(model, &session);
    if (status == TSR_OK && stops)
        tsr_session_set_progress(session, stop_in_second_chunk, NULL);
    const bool outputs[N_TOKENS] = {false};
    tsr_batch batch = {.n_tokens = N_TOKENS, .tokens = tokens, .outputs = outputs};
    if (status == TSR_OK)
        status = tsr_session_decode(session, &batch, NULL);
    tsr_session_destroy(session);
    return status;
}

static tsr_status load_and_decode(tsr_runtime *rt, const char *point, bool stops)
{
    tsr_model *model = NULL;
    tsr_model_config config = tsr_model_config_default();
    const float even[N_PROCESSES] = {1, 1, 1};
    config.session.n_ctx = 256;
    config.session.n_batch = N_BATCH;
    config.split.tensor_split = even;
    config.split.n_tensor_split = N_PROCESSES;
    if (stops && strcmp(point, "load") == 0)
        raise(SIGSTOP);
    tsr_status status = tsr_model_open(rt, "examples/models/glossary-7m-Q8_0.gguf", &config, &model);
    if (status == TSR_OK)
        status = decode(model, stops);
    tsr_model_close(model);
    return status;
}

/* The others get time to write their sentences before mpirun ends the job. */
static int be_a_process(const char *point)
{
    tsr_transport *mpi = NULL;
    tsr_runtime *rt = NULL;
    const char *problem = tsr_mpi_transport_create(NULL, &mpi);
    if (problem) {
        fprintf(stderr, "%s\n", problem);
        return 1;
    }
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "host:1,threads=1";
    config.transport = mpi;
    config.transport_timeout_ns = LIMIT_MS * UINT64_C(1000000);
    const int rank = mpi->rank;
    tsr_status status = tsr_runtime_open(&config, &rt);
    usleep(LIMIT_MS / 2 * 1000); /* until names are known */
    if (status == TSR_OK)
        status = load_and_decode(rt, point, rank == 1);
    if (status != TSR_OK)
        fprintf(stderr, "%d: %s: %s\n", rank, tsr_status_name(status), tsr_last_error());
    tsr_runtime_close(rt);
    tsr_mpi_transport_destroy(mpi);
    if (status != TSR_OK)
        usleep(LIMIT_MS / 2 * 1000);
    return status == TSR_OK ? 0 : 3;
}

/* -- the test -- */

static FILE *start_job(const char *point)
{
    char line[8192];
    snprintf(line, sizeof line, "%s %d '%s' %s 2>&1", TSR_TEST_MPIEXEC, N_PROCESSES, self_path, point);
    FILE *job = popen(line, "r");
    assert_non_null(job);
    return job;
}

static void check_job(FILE *job)
{
    static const char *const lines[] = {"0: ERR_DEVICE_LOST: process 0 of 3",
                                        "2: ERR_DEVICE_LOST: process 2 of 3"};
    char text[16384], host[64] = "", name[128];
    const size_t used = fread(text, 1, sizeof text - 1, job);
    text[used] = '\0';
    assert_true(pclose(job) != 0);
    (void)!gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "process 1 on %s", host);
    for (int i = 0; i < 2; i++) {
        const char *line = strstr(text, lines[i]);
        if (!line || !strstr(line, name))
            fail_msg("'%s' with '%s' is missing in\n%s", lines[i], name, text);
    }
}

static void a_stopped_process_is_lost_and_named(void **state)
{
    (void)state;
    const uint64_t begin = tsr_clock_ns();
    FILE *in_decode = start_job("decode"), *in_load = start_job("load");
    check_job(in_decode);
    check_job(in_load);
    assert_true(tsr_clock_ns() - begin < SLOWEST_MS * UINT64_C(1000000));
}

#else

static void a_stopped_process_is_lost_and_named(void **state)
{
    (void)state;
    print_message("skipped: built without MPI\n");
    skip();
}

#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_stopped_process_is_lost_and_named)};
#ifdef TSR_TEST_MPIEXEC
    if (argc == 2)
        return be_a_process(argv[1]);
    snprintf(self_path, sizeof self_path, "%s", argv[0]);
#else
    (void)argc, (void)argv;
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
