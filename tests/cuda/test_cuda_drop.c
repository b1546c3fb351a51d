/* A GPU that is lost while a session decodes: the runtime goes on without it, and the text is that of a run
 * in which nothing happened. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include <tsr/tsr.h>

#include "cuda/simulated.h"
#include "support/random.h"
#include "support/session_check.h"

enum { N_GPUS = 3, N_TOKENS = 40, FIRST = 13 };

static int32_t tokens[N_TOKENS];
static float expected[2][SESSION_VOCAB]; /* of the last token of each sequence */

typedef struct bench {
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *session;
} bench;

static void configure(uint64_t seed, bool peers)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = N_GPUS;
    config.peer_access = peers;
    config.seed = seed;
    cudasim_configure(&config);
}

static void open_bench(bench *b, const char *devices, const char *collectives, const float *split, int n)
{
    tsr_runtime_config rc = tsr_runtime_config_default();
    tsr_model_config mc = session_config(64, 3, 16, 16);
    rc.devices = devices;
    rc.collectives = collectives;
    mc.split.mode = TSR_SPLIT_MODE_TENSOR;
    mc.split.tensor_split = split;
    mc.split.n_tensor_split = n;
    *b = (bench){0};
    runner_ok(tsr_runtime_open(&rc, &b->rt), "runtime");
    runner_ok(tsr_model_open(b->rt, session_model_path, &mc, &b->model), "model");
    runner_ok(tsr_session_create(b->model, &b->session), "session");
}

static void close_bench(bench *b)
{
    tsr_session_destroy(b->session);
    tsr_model_close(b->model);
    tsr_runtime_close(b->rt);
}

/* The device that is lost; -1: none. */
static int lost_device(const tsr_runtime *rt)
{
    for (int d = 0; d < tsr_runtime_n_devices(rt); d++) {
        tsr_device_info info;
        runner_ok(tsr_runtime_device(rt, d, &info), "info");
        if (info.lost && !info.dropped)
            return d;
    }
    return -1;
}

/* A call that is made again after a device was lost. Returns how many were. */
static int append(bench *b, int seq, int begin, int end, float *logits)
{
    int n_lost = 0;
    for (;;) {
        const tsr_status status = session_append(b->session, seq, tokens + begin, end - begin, logits);
        if (status == TSR_OK)
            return n_lost;
        const int lost = lost_device(b->rt);
        if (lost < 0)
            fail_msg("%s: %s", tsr_status_name(status), tsr_last_error());
        runner_ok(tsr_runtime_drop_device(b->rt, lost), "drop");
        n_lost++;
    }
}

/* Two sequences, the second a fork of the first that goes on with other tokens. */
static int live(bench *b, float logits[2][SESSION_VOCAB])
{
    int n_lost = append(b, 0, 0, FIRST, logits[0]);
    runner_ok(tsr_session_fork(b->session, 0, 1), "fork");
    for (int at = FIRST; at < N_TOKENS - 1; at++)
        n_lost += append(b, 0, at, at + 1, logits[0]);
    n_lost += append(b, 1, FIRST + 1, N_TOKENS, logits[1]);
    assert_int_equal(tsr_session_length(b->session, 0), N_TOKENS - 1);
    assert_int_equal(tsr_session_length(b->session, 1), N_TOKENS - 1);
    return n_lost;
}

static int set_up(void **state)
{
    uint64_t seed = 21;
    bench b;
    if (session_model_write(state))
        return -1;
    session_random_tokens(&seed, tokens, N_TOKENS);
    configure(1, true);
    open_bench(&b, "cuda:0", NULL, NULL, 0);
    live(&b, expected);
    close_bench(&b);
    return 0;
}

static void a_lost_gpu_changes_nothing_but_the_time(void **state)
{
    (void)state;
    const char *rounds = getenv("TSR_TEST_ROUNDS");
    const char *const collectives[] = {NULL, "staged", "nccl", "peer"};
    uint64_t seed = 5;
    int n_lost = 0;
    for (int i = 0, n = rounds ? (atoi(rounds) + 3) / 4 : 3; i < n; i++) {
        const float split[] = {1 + (float)random_below(&seed, 3), 1 + (float)random_below(&seed, 3),
                               (float)random_below(&seed, 3)};
        float logits[2][SESSION_VOCAB];
        bench b;
        configure(seed, i % 4 != 1);
        open_bench(&b, "cuda", collectives[i % 4], split, 3);
        const uint64_t calls = cudasim_calls() + random_below(&seed, 2000);
        cudasim_poison_at(calls, (int)random_below(&seed, N_GPUS), cudaErrorIllegalAddress);
        if (i % 3 == 2) /* another one, perhaps while the first is dropped */
            cudasim_poison_at(calls + random_below(&seed, 1500), (int)random_below(&seed, N_GPUS),
                              cudaErrorIllegalAddress);
        n_lost += live(&b, logits);
        assert_memory_equal(logits, expected, sizeof expected);
        close_bench(&b);
    }
    assert_true(n_lost > 0);
}

/* NCCL does not come up again: sums go through host memory. */
static void without_the_collectives_of_the_config_the_rest_goes_on(void **state)
{
    (void)state;
    const float split[] = {1, 1, 1};
    float logits[2][SESSION_VOCAB];
    bench b;
    configure(9, true);
    open_bench(&b, "cuda", "nccl", split, 3);
    cudasim_fail_named("ncclGetUniqueId", 1, 1);
    runner_ok(tsr_runtime_drop_device(b.rt, 2), "drop");
    assert_int_equal(cudasim_faults_hit(), 1);
    const uint64_t sums = cudasim_calls_of("ncclAllReduce");
    assert_int_equal(live(&b, logits), 0);
    assert_int_equal(cudasim_calls_of("ncclAllReduce"), sums);
    assert_memory_equal(logits, expected, sizeof expected);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_gpu_changes_nothing_but_the_time),
        cmocka_unit_test(without_the_collectives_of_the_config_the_rest_goes_on),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
