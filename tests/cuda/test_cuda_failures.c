/* A model's whole life on two simulated GPUs (open, load, decode, grow the KV region, close), once for every
 * call of CUDA and its driver that it makes, with that call failing. Each time: either the right logits or a
 * status whose sentence names call and device; no hang; nothing left behind in device, pinned or host memory;
 * and, once for every function, a second life on the same machine goes well. Then the troubles that are no
 * single call: a lost device, a device that never comes, memory that others took.
 *
 * Every function fails in its first call and its last, and without peer access between GPUs in the middle
 * one; with TSR_TEST_LONG=1 it fails in each, and each is followed by a second life. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>

#include <tsr/runtime.h>

#include "cuda/simulated.h"
#include "core/status.h"
#include "support/child.h"
#include "support/directory.h"
#include "support/failing_alloc.h"
#include "support/runner.h"
#include "support/sanitized.h"
#include "support/synth_model.h"

/* Tokens per decode; a KV page has 32. */
enum { PROMPT = 5, GROWTH = 30, N_TOKENS = PROMPT + GROWTH, N_VOCAB = 264, LIMIT_S = 300 };

static char model_path[DIRECTORY_PATH];
static const float halves[] = {1, 1};
static char under_test[256]; /* said if it hangs */
static float clean[N_VOCAB];

static int set_up(void **state)
{
    (void)state;
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.n_layers = 1;
    config.n_embd = 64;
    config.n_heads = config.n_kv_heads = 2;
    config.n_ff = 128;
    config.n_vocab = N_VOCAB;
    close(directory_new(model_path));
    synth_model_write(&config, model_path);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(model_path);
    return 0;
}

static void on_alarm(int number)
{
    (void)number;
    static const char text[] = "hangs: ";
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0 ||
        write(STDERR_FILENO, under_test, strlen(under_test)) < 0 || write(STDERR_FILENO, "\n", 1) < 0)
        _exit(3);
    _exit(2);
}

/* A hang ends the program after LIMIT_S seconds, with these words. */
static void deadline(const char *what, uint64_t nth)
{
    snprintf(under_test, sizeof under_test, "%s, number %llu", what, (unsigned long long)nth);
    signal(SIGALRM, on_alarm);
    alarm(LIMIT_S);
}

/* Measuring which collectives are fastest would make many more calls; tests of those have them fail. */
static const char *collectives_of_machine = "peer";

static void machine(int n_devices, bool peer_access)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.memory = (size_t)64 << 20;
    config.peer_access = peer_access;
    collectives_of_machine = peer_access ? "peer" : "staged";
    config.eager = true;
    config.vmm_granularity = 4096; /* so that GROWTH needs another piece */
    cudasim_configure(&config);
}

static tsr_status open_all(runner *r)
{
    tsr_status status = TSR_OK;
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config model_config = tsr_model_config_default();
    runtime_config.devices = "cuda:0,cuda:1";
    runtime_config.collectives = collectives_of_machine;
    model_config.session.n_ctx = 64;
    model_config.split.tensor_split = halves;
    model_config.split.n_tensor_split = 2;
    model_config.session.n_batch = N_TOKENS;
    *r = (runner){.n_vocab = N_VOCAB};
    TSR_TRY(tsr_runtime_open(&runtime_config, &r->rt));
    TSR_TRY(tsr_model_open(r->rt, model_path, &model_config, &r->model));
    TSR_TRY(tsr_session_create(r->model, &r->session));
out:
    return status;
}

static tsr_status decode(runner *r, int n, float *logits)
{
    int32_t tokens[N_TOKENS];
    for (int i = 0; i < n; i++)
        tokens[i] = (i * 97 + 11) % (N_VOCAB - 1);
    tsr_batch batch = {.n_tokens = n, .tokens = tokens};
    return tsr_session_decode(r->session, &batch, logits);
}

/* The logits of the last token. The sentence of a failure outlasts the closing. */
static tsr_status live(float *logits)
{
    tsr_status status = TSR_OK;
    char sentence[1024];
    runner r;
    TSR_TRY(open_all(&r));
    TSR_TRY(decode(&r, PROMPT, logits));
    TSR_TRY(decode(&r, GROWTH, logits));
out:
    snprintf(sentence, sizeof sentence, "%s", tsr_last_error());
    runner_close(&r);
    return status == TSR_OK ? TSR_OK : tsr_fail(status, "%s", sentence);
}

static bool any_device_lost(void)
{
    int before = 0, n = 0;
    bool lost = false;
    if (cudaGetDeviceCount(&n) != cudaSuccess || cudaGetDevice(&before) != cudaSuccess)
        return true;
    for (int d = 0; d < n; d++) {
        cudaEvent_t event;
        lost = lost || cudaSetDevice(d) != cudaSuccess || cudaEventCreate(&event) != cudaSuccess ||
               cudaEventDestroy(event) != cudaSuccess;
    }
    return cudaSetDevice(before) != cudaSuccess || lost;
}

/* -- one call fails -- */

static void check_sentence(const char *name, uint64_t nth, tsr_status status)
{
    const char *text = tsr_last_error();
    /* Found out while looking for GPUs, or for access between them: the reason is in plain words (and the
     * call in the log). */
    if (strstr(text, "no GPU is usable") || strstr(text, "cannot access each other's memory"))
        return;
    bool named = strstr(text, name) != NULL;
    if (strcmp(name, "cudaLaunchKernel") == 0) /* named by its kernel, or by what it is part of */
        named = strstr(text, "_kernel") || strstr(text, "op '");
    if (!named || !strstr(text, "CUDA device "))
        fail_msg("%s, number %llu, fails with %s and names not both device and call: '%s'", name,
                 (unsigned long long)nth, tsr_status_name(status), text);
}

/* What every failed life must leave: nothing. */
static void check_rest(const char *what, uint64_t nth, int64_t blocks)
{
    if (cudasim_leaks(stderr) != 0 || failing_alloc_live() != blocks)
        fail_msg("%s, number %llu: something is left behind; %lld blocks of host memory", what,
                 (unsigned long long)nth, (long long)(failing_alloc_live() - blocks));
    if (cudasim_violations() != 0)
        fail_msg("%s, number %llu: %s", what, (unsigned long long)nth, cudasim_violation());
}

/* After a failure: another life on the same machine, unless a device is lost. */
static void check_second_life(const char *name, uint64_t nth, int64_t blocks)
{
    float logits[N_VOCAB] = {0};
    if (any_device_lost())
        return;
    tsr_status status = live(logits);
    if (status != TSR_OK || memcmp(logits, clean, sizeof clean) != 0)
        fail_msg("after %s, number %llu, a second life: %s: %s", name, (unsigned long long)nth,
                 tsr_status_name(status), tsr_last_error());
    check_rest("a second life", nth, blocks);
}

/* Returns whether the call failed the life rather than being made up for. */
static bool fail_one(const char *name, uint64_t nth, bool peer_access, bool second_life)
{
    float logits[N_VOCAB] = {0};
    int64_t blocks = failing_alloc_live();
    machine(2, peer_access);
    cudasim_fail_named(name, nth, 0);
    deadline(name, nth);
    tsr_status status = live(logits);
    if (cudasim_faults_hit() == 0) /* polls vary in number */
        assert_int_equal(status, TSR_OK);
    if (status != TSR_OK)
        check_sentence(name, nth, status);
    else if (memcmp(logits, clean, sizeof clean) != 0)
        fail_msg("%s, number %llu, fails unnoticed: other logits", name, (unsigned long long)nth);
    check_rest(name, nth, blocks);
    cudasim_clear_faults();
    if (second_life)
        check_second_life(name, nth, blocks);
    alarm(0);
    return status != TSR_OK;
}

/* Which of `count` calls of a function fail; returns how many. */
static int positions(uint64_t count, bool peer_access, uint64_t nth[2])
{
    nth[0] = peer_access ? 1 : (count + 1) / 2;
    nth[1] = count;
    return peer_access && count > 1 ? 2 : 1;
}

/* Under a sanitizer, and where few rounds are asked for, every fourth position is tried. */
static void check_every_call(bool peer_access)
{
    enum { MAX_NAMES = 200 };
    const char *names[MAX_NAMES];
    uint64_t counts[MAX_NAMES], some[2], tried = 0, total = 0, failed = 0;
    const bool all = getenv("TSR_TEST_LONG") != NULL;
    const uint64_t step = all ? 1 : (uint64_t)TSR_TEST_EVERY(4);
    uint64_t position = all ? 0 : (uint64_t)TSR_TEST_FIRST(4);
    deadline("a life without faults", 0);
    machine(2, peer_access);
    assert_int_equal(live(clean), TSR_OK);
    int n_names = distinct_calls(0, names, MAX_NAMES);
    for (int i = 0; i < n_names; i++)
        counts[i] = cudasim_calls_of(names[i]);
    for (int i = 0; i < n_names; i++) {
        uint64_t n = all ? counts[i] : (uint64_t)positions(counts[i], peer_access, some);
        total += counts[i];
        for (uint64_t k = 0; k < n; k++) {
            if (position++ % step != 0)
                continue;
            tried++;
            failed += fail_one(names[i], all ? k + 1 : some[k], peer_access, all || (peer_access && k == 0));
        }
    }
    print_message("%llu of %llu calls were made to fail, of %d functions; %llu of them ended a life\n",
                  (unsigned long long)tried, (unsigned long long)total, n_names, (unsigned long long)failed);
    assert_true(failed > (peer_access ? 30u : 15u) / (step == 1 ? 1 : 2 * step));
}

static void every_call_may_fail_once(void **state)
{
    (void)state;
    check_every_call(true);
}

static void every_call_may_fail_once_without_peer_access(void **state)
{
    (void)state;
    check_every_call(false);
}

/* -- other trouble -- */

static void assert_says(const char *words)
{
    if (!strstr(tsr_last_error(), words))
        fail_msg("'%s' is not in '%s'", words, tsr_last_error());
}

static void a_poisoned_context_is_a_lost_device(void **state)
{
    (void)state;
    for (int peer_access = 0; peer_access < 2; peer_access++) {
        float logits[N_VOCAB];
        runner r;
        int64_t blocks = failing_alloc_live();
        deadline("a poisoned context", 0);
        machine(2, peer_access);
        runner_ok(open_all(&r), "open");
        runner_ok(decode(&r, PROMPT, logits), "decode");
        cudasim_poison_device(1, cudaErrorIllegalAddress);
        assert_int_equal(decode(&r, GROWTH, logits), TSR_ERR_DEVICE_LOST);
        assert_says("cuda1");
        assert_says("illegal memory access");
        assert_int_not_equal(decode(&r, 1, logits), TSR_OK);
        runner_close(&r);
        assert_int_equal(failing_alloc_live(), blocks);
    }
    alarm(0);
}

static void *wake_up_later(void *delay_us)
{
    usleep(*(const useconds_t *)delay_us);
    cudasim_stall_device(1, false);
    return NULL;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Time enough for any step, however slow and busy this machine is: several times what a whole life takes.
 * Less than the ten seconds after which a device is given up, so that one that wakes up after twice as long
 * is not. */
static uint64_t time_enough_ns(void)
{
    float logits[N_VOCAB];
    uint64_t begin = now_ns();
    runner_ok(live(logits), "a life to measure");
    uint64_t enough = 300000000 + 4 * (now_ns() - begin);
    return enough < 9000000000 ? enough : 9000000000;
}

/* The device is back before its grace is over, or never. */
static void check_stalled(bool peer_access, bool comes_back)
{
    float logits[N_VOCAB];
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    runner r = {.n_vocab = N_VOCAB};
    pthread_t waker;
    int64_t blocks = failing_alloc_live();
    deadline(comes_back ? "a device that comes late" : "a device that never comes", 0);
    machine(2, peer_access);
    runtime_config.devices = "cuda:0,cuda:1";
    runtime_config.collectives = collectives_of_machine;
    config.session.n_ctx = 64;
    config.split.tensor_split = halves;
    config.split.n_tensor_split = 2;
    config.compute.timeout_ns = time_enough_ns();
    useconds_t delay_us = (useconds_t)(2 * config.compute.timeout_ns / 1000);
    runner_ok(tsr_runtime_open(&runtime_config, &r.rt), "open");
    runner_ok(tsr_model_open(r.rt, model_path, &config, &r.model), "open");
    runner_ok(tsr_session_create(r.model, &r.session), "open");
    runner_ok(decode(&r, PROMPT, logits), "decode");
    cudasim_stall_device(1, true);
    if (comes_back)
        assert_int_equal(pthread_create(&waker, NULL, wake_up_later, &delay_us), 0);
    assert_int_equal(decode(&r, GROWTH, logits), comes_back ? TSR_ERR_TIMEOUT : TSR_ERR_DEVICE_LOST);
    assert_says(comes_back ? "device 1" : "CUDA device 1 does not respond");
    if (comes_back) {
        pthread_join(waker, NULL);
        runner_ok(decode(&r, GROWTH, logits), "decode after the stall");
        assert_memory_equal(logits, clean, sizeof clean);
    }
    runner_close(&r);
    cudasim_stall_device(1, false);
    assert_int_equal(failing_alloc_live(), blocks);
    if (comes_back)
        assert_int_equal(cudasim_leaks(stderr), 0);
    alarm(0);
}

static void a_stalled_device_is_named_and_the_rest_goes_on(void **state)
{
    (void)state;
    check_stalled(true, true);
    check_stalled(false, true);
}

static void a_device_that_never_comes_is_given_up(void **state)
{
    (void)state;
    check_stalled(true, false);
    check_stalled(false, false);
}

/* Without a deadline the step ends as soon as nothing makes progress, and so does every later step. A GPU
 * that stops leaves its host thread polling; a driver that hangs keeps the thread and what it may access. */
typedef struct silence {
    bool peer_access;
    const char *hanging_call; /* NULL: the GPU stops */
} silence;

static void go_silent(void *argument)
{
    const silence *s = argument;
    float logits[N_VOCAB];
    char sentence[512];
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    runner r = {.n_vocab = N_VOCAB};
    machine(2, s->peer_access);
    runtime_config.devices = "cuda:0,cuda:1";
    runtime_config.collectives = collectives_of_machine;
    runtime_config.stall_timeout_ns = time_enough_ns();
    config.session.n_ctx = 64;
    config.split.tensor_split = halves;
    config.split.n_tensor_split = 2;
    CHECK(tsr_runtime_open(&runtime_config, &r.rt) == TSR_OK);
    CHECK(tsr_model_open(r.rt, model_path, &config, &r.model) == TSR_OK);
    CHECK(tsr_session_create(r.model, &r.session) == TSR_OK);
    CHECK(decode(&r, PROMPT, logits) == TSR_OK);
    if (s->hanging_call)
        cudasim_hang_named(s->hanging_call);
    else
        cudasim_stall_device(1, true);
    CHECK(decode(&r, PROMPT, logits) == TSR_ERR_DEVICE_LOST);
    CHECK(strstr(tsr_last_error(), "device cuda"));
    CHECK(s->hanging_call || strstr(tsr_last_error(), "CUDA device 1 does not respond"));
    snprintf(sentence, sizeof sentence, "%s", tsr_last_error());
    CHECK(decode(&r, PROMPT, logits) == TSR_ERR_DEVICE_LOST);
    CHECK(strcmp(sentence, tsr_last_error()) == 0);
    runner_close(&r);
    CHECK((failing_alloc_live() > 0) == (s->hanging_call != NULL));
    cudasim_hang_named(NULL);
    usleep(50000); /* the threads end */
}

static void without_a_deadline_a_device_that_is_silent_is_given_up(void **state)
{
    (void)state;
    silence peer = {true, NULL}, staged = {false, NULL}, driver = {true, "cudaGraphLaunch"};
    assert_true(child_succeeds(go_silent, &peer, LIMIT_S));
    assert_true(child_succeeds(go_silent, &staged, LIMIT_S));
    assert_true(child_succeeds(go_silent, &driver, LIMIT_S));
}

static void memory_that_others_took_is_missed_by_name(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    void *taken = NULL;
    size_t left, total;
    runner r;
    deadline("memory taken", 0);
    machine(2, true);
    runner_ok(open_all(&r), "open");
    runner_ok(decode(&r, PROMPT, logits), "decode");
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    assert_int_equal(cudaMemGetInfo(&left, &total), cudaSuccess);
    assert_int_equal(cudaMalloc(&taken, left / 512 * 512), cudaSuccess);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(decode(&r, GROWTH, logits), TSR_ERR_MEMORY);
    assert_says("cuda1");
    assert_int_equal(cudaFree(taken), cudaSuccess);
    runner_ok(decode(&r, GROWTH, logits), "decode with the memory back");
    assert_memory_equal(logits, clean, sizeof clean);
    runner_close(&r);
    assert_int_equal(cudasim_leaks(stderr), 0);
    alarm(0);
}

static void too_small_a_cap_is_refused_before_anything_is_loaded(void **state)
{
    (void)state;
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    tsr_runtime *rt = NULL;
    tsr_model *model = NULL;
    deadline("a small cap", 0);
    machine(1, true);
    runtime_config.devices = "cuda:0,mem=64KiB";
    tsr_status status = tsr_runtime_open(&runtime_config, &rt);
    if (status == TSR_OK)
        status = tsr_model_open(rt, model_path, &config, &model);
    assert_int_equal(status, TSR_ERR_MEMORY);
    assert_says("cuda0");
    tsr_model_close(model);
    tsr_runtime_close(rt);
    assert_int_equal(cudasim_leaks(stderr), 0);
    alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* First: the simulated machine's threads do not survive fork(). */
        cmocka_unit_test(without_a_deadline_a_device_that_is_silent_is_given_up),
        cmocka_unit_test(every_call_may_fail_once_without_peer_access),
        cmocka_unit_test(every_call_may_fail_once),
        cmocka_unit_test(a_poisoned_context_is_a_lost_device),
        cmocka_unit_test(a_stalled_device_is_named_and_the_rest_goes_on),
        cmocka_unit_test(a_device_that_never_comes_is_given_up),
        cmocka_unit_test(memory_that_others_took_is_missed_by_name),
        cmocka_unit_test(too_small_a_cap_is_refused_before_anything_is_loaded),
    };
    return cmocka_run_group_tests_name("failing GPUs under a model", tests, set_up, tear_down);
}
