/* A process of an MPI job that is stopped (SIGSTOP), in the middle of a decode, before it loads a model or
 * while a group is made: the others return, name it and end. One that is killed: the others go on without it.
 * The test starts itself under mpirun. */
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
#include "support/leak_check.h"

enum { N_PROCESSES = 3, N_TOKENS = 32, N_BATCH = 8, LIMIT_MS = 2000, SLOWEST_MS = 40000 };
enum { MOST_LOGITS = 1 << 16 };

static const char model_path[] = "examples/models/glossary-7m-Q8_0.gguf";

static char self_path[4096];

/* -- a process of the job -- */

/* What happens to process 1. */
typedef enum fate_of_one {
    STOPPED_IN_DECODE,
    STOPPED_BEFORE_LOADING,
    STOPPED_IN_GROUP,
    KILLED_IN_DECODE,
    KILLED_IN_GROUP
} fate_of_one;

static void stop_in_second_chunk(int64_t n_done, int64_t n_tokens, void *fate)
{
    (void)n_tokens;
    if (n_done == N_BATCH)
        raise(*(const fate_of_one *)fate == KILLED_IN_DECODE ? SIGKILL : SIGSTOP);
}

/* -- stopped where the others wait for it in MPI -- */

static const char *(*create_group)(void *user, const int *ranks, int n_ranks, int tag, void **group_out);
static int n_groups;

static int signal_in_second;

/* The first group is made when the runtime is opened. */
static const char *end_in_second_group(void *user, const int *ranks, int n_ranks, int tag, void **group_out)
{
    if (++n_groups == 2)
        raise(signal_in_second);
    return create_group(user, ranks, n_ranks, tag, group_out);
}

/* The logits of the last token. fate: NULL for those that nothing happens to. */
static tsr_status decode(tsr_runtime *rt, tsr_model *model, fate_of_one *fate, bool goes_on, float *logits)
{
    tsr_status status = TSR_OK;
    tsr_session *session = NULL;
    int32_t tokens[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = 100 + i;
    status = tsr_session_create(model, &session);
    if (status == TSR_OK && fate)
        tsr_session_set_progress(session, stop_in_second_chunk, fate);
    const tsr_batch batch = {.n_tokens = N_TOKENS, .tokens = tokens};
    if (status == TSR_OK)
        status = tsr_session_decode(session, &batch, logits);
    if (status == TSR_ERR_DEVICE_LOST && goes_on)
        status = tsr_runtime_drop_device(rt, TSR_LOST_DEVICES);
    if (status == TSR_OK && tsr_session_length(session, 0) < N_TOKENS)
        status = tsr_session_decode(session, &batch, logits);
    tsr_session_destroy(session);
    return status;
}

static tsr_status load_and_decode(tsr_runtime *rt, int n_devices, fate_of_one *fate, bool goes_on,
                                  float *logits)
{
    tsr_model *model = NULL;
    tsr_model_config config = tsr_model_config_default();
    const float even[N_PROCESSES] = {1, 1, 1};
    config.session.n_ctx = 256;
    config.session.n_batch = N_BATCH;
    config.split.tensor_split = even;
    config.split.n_tensor_split = n_devices;
    if (fate && *fate == STOPPED_BEFORE_LOADING)
        raise(SIGSTOP);
    tsr_status status = tsr_model_open(rt, model_path, &config, &model);
    if (status == TSR_OK)
        status = decode(rt, model, fate, goes_on, logits);
    tsr_model_close(model);
    return status;
}

/* The bits of one device. */
static bool is_expected(const float *logits)
{
    static float expected[MOST_LOGITS];
    tsr_runtime *rt = NULL;
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "host:1,threads=1";
    tsr_status status = tsr_runtime_open(&config, &rt);
    if (status == TSR_OK)
        status = load_and_decode(rt, 1, NULL, false, expected);
    tsr_runtime_close(rt);
    return status == TSR_OK && memcmp(logits, expected, sizeof expected) == 0;
}

/* The others get time to write their sentences before mpirun ends the job. */
static int be_a_process(fate_of_one fate)
{
    static float logits[MOST_LOGITS];
    tsr_transport *mpi = NULL;
    tsr_runtime *rt = NULL;
    const bool goes_on = fate >= KILLED_IN_DECODE;
    const char *problem =
        goes_on ? tsr_mpi_transport_create_surviving(NULL, &mpi) : tsr_mpi_transport_create(NULL, &mpi);
    if (problem) {
        fprintf(stderr, "%s\n", problem);
        return 1;
    }
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "host:1,threads=1";
    config.transport = mpi;
    config.transport_timeout_ns = LIMIT_MS * UINT64_C(1000000);
    const int rank = mpi->rank;
    create_group = mpi->group_create;
    signal_in_second = fate == KILLED_IN_GROUP ? SIGKILL : SIGSTOP;
    if ((fate == STOPPED_IN_GROUP || fate == KILLED_IN_GROUP) && rank == 1)
        mpi->group_create = end_in_second_group;
    tsr_status status = tsr_runtime_open(&config, &rt);
    usleep(LIMIT_MS / 2 * 1000); /* until names are known */
    if (status == TSR_OK)
        status = load_and_decode(rt, N_PROCESSES, rank == 1 ? &fate : NULL, goes_on, logits);
    if (status == TSR_OK)
        fprintf(stderr, "%d: %s\n", rank,
                is_expected(logits) ? "has the bits of one device" : "has other bits");
    if (status != TSR_OK)
        fprintf(stderr, "%d: %s: %s\n", rank, tsr_status_name(status), tsr_last_error());
    if (fate == STOPPED_IN_GROUP || fate == KILLED_IN_GROUP)
        leak_check_abandon(); /* a thread stays in MPI */
    tsr_runtime_close(rt);
    tsr_mpi_transport_destroy(mpi);
    if (status != TSR_OK)
        usleep(LIMIT_MS / 2 * 1000);
    return status == TSR_OK ? 0 : 3;
}

/* -- the test -- */

static FILE *start_job(fate_of_one fate, const char *option)
{
    char line[8192];
    snprintf(line, sizeof line, "%s %d %s '%s' %d 2>&1", TSR_TEST_MPIEXEC, N_PROCESSES, option, self_path,
             (int)fate);
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
    FILE *in_decode = start_job(STOPPED_IN_DECODE, ""), *in_load = start_job(STOPPED_BEFORE_LOADING, ""),
         *in_group = start_job(STOPPED_IN_GROUP, "");
    check_job(in_decode);
    check_job(in_load);
    check_job(in_group);
    assert_true(tsr_clock_ns() - begin < SLOWEST_MS * UINT64_C(1000000));
}

/* The launcher must let them. Where the process ends while a group is made, Open MPI cannot make another one,
 * and the others end. */
static void the_others_go_on_without_a_killed_process(void **state)
{
    (void)state;
    char text[16384];
    FILE *version = popen(TSR_TEST_MPIEXEC " 1 --version 2>&1", "r");
    assert_non_null(version);
    text[fread(text, 1, sizeof text - 1, version)] = '\0';
    pclose(version);
    if (!strstr(text, "(OpenRTE) 4.") && !strstr(text, "(Open MPI) 5.")) {
        print_message("skipped: not Open MPI 4 or 5, which can be told not to end the job\n");
        skip();
    }
    FILE *job = start_job(KILLED_IN_DECODE, "--enable-recovery"),
         *in_group = start_job(KILLED_IN_GROUP, "--enable-recovery");
    text[fread(text, 1, sizeof text - 1, job)] = '\0';
    pclose(job);
    if (!strstr(text, "0: has the bits of one device") || !strstr(text, "2: has the bits of one device"))
        fail_msg("the others did not go on:\n%s", text);
    text[fread(text, 1, sizeof text - 1, in_group)] = '\0';
    pclose(in_group);
    if (!strstr(text, "0: ERR_DEVICE_LOST: ") || !strstr(text, "2: ERR_DEVICE_LOST: "))
        fail_msg("the others did not end:\n%s", text);
}

#else

static void the_others_go_on_without_a_killed_process(void **state)
{
    (void)state;
    print_message("skipped: built without MPI\n");
    skip();
}

static void a_stopped_process_is_lost_and_named(void **state)
{
    (void)state;
    print_message("skipped: built without MPI\n");
    skip();
}

#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_process_is_lost_and_named),
        cmocka_unit_test(the_others_go_on_without_a_killed_process),
    };
#ifdef TSR_TEST_MPIEXEC
    if (argc == 2)
        return be_a_process((fate_of_one)atoi(argv[1]));
    snprintf(self_path, sizeof self_path, "%s", argv[0]);
#else
    (void)argc, (void)argv;
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
