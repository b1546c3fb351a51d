/* Contexts on simulated GPUs: a process has one on every GPU that it opens and on no other, whatever it does,
 * in which threads, and whichever way the collectives go; and the context that was current in a thread is
 * current after every call. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cudasim.h>

#include <tsr/runtime.h>
#include <tsr/session.h>
#include <tsr/topology.h>

#include "cuda/api/check.h"
#include "cuda/simulated.h"
#include "support/directory.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { MIB = 1 << 20, N_VOCAB = 512, N_TOKENS = 3 };

static char model_path[DIRECTORY_PATH];

static int set_up(void **state)
{
    (void)state;
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    close(directory_new(model_path));
    synth_model_write(&config, model_path);
    return 0;
}

static void machine(int n_devices, uint32_t owned)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.owned = owned;
    cudasim_configure(&config);
}

static void expect_contexts(uint32_t devices, int n_devices)
{
    for (int d = 0; d < n_devices; d++) {
        if ((cudasim_context(d) > 0) != (devices >> d & 1))
            fail_msg("GPU %d has %s", d, cudasim_context(d) > 0 ? "a context" : "no context");
        if (!(devices >> d & 1))
            assert_int_equal(cudasim_peak(d), 0);
    }
}

/* Each in a thread that has never used CUDA. */
static void in_a_thread(void *(*function)(void *argument), void *argument)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, function, argument), 0);
    pthread_join(thread, NULL);
}

/* A model's life in calls that may be made in any thread. What fails is kept: only the test's own thread may
 * end the test. */
typedef struct life {
    const char *devices, *collectives;
    tsr_status status;
    char text[512];
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *session;
    float logits[N_VOCAB];
} life;

static void keep(life *l, tsr_status status)
{
    if (status != TSR_OK && l->status == TSR_OK) {
        l->status = status;
        snprintf(l->text, sizeof l->text, "%s", tsr_last_error());
    }
}

static void *open_it(void *argument)
{
    life *l = argument;
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = l->devices;
    config.collectives = l->collectives;
    keep(l, tsr_runtime_open(&config, &l->rt));
    return NULL;
}

static void *load_it(void *argument)
{
    static const float equal[] = {1, 1};
    life *l = argument;
    tsr_model_config config = tsr_model_config_default();
    if (l->status != TSR_OK)
        return NULL;
    config.split.tensor_split = equal;
    config.split.n_tensor_split = tsr_runtime_n_devices(l->rt);
    keep(l, tsr_model_open(l->rt, model_path, &config, &l->model));
    if (l->status == TSR_OK)
        keep(l, tsr_session_create(l->model, &l->session));
    return NULL;
}

static void *decode_it(void *argument)
{
    life *l = argument;
    int32_t tokens[N_TOKENS] = {1, 2, 3};
    tsr_batch batch = {.n_tokens = N_TOKENS, .tokens = tokens};
    if (l->status == TSR_OK)
        keep(l, tsr_session_decode(l->session, &batch, l->logits));
    return NULL;
}

static void *close_it(void *argument)
{
    life *l = argument;
    tsr_session_destroy(l->session);
    tsr_model_close(l->model);
    tsr_runtime_close(l->rt);
    l->session = NULL;
    l->model = NULL;
    l->rt = NULL;
    return NULL;
}

static void expect_ok(const life *l)
{
    if (l->status != TSR_OK)
        fail_msg("%s by %s: %s", l->devices, l->collectives ? l->collectives : "any", l->text);
}

static void live(life *l)
{
    in_a_thread(open_it, l);
    in_a_thread(load_it, l);
    for (int i = 0; i < 3; i++)
        in_a_thread(decode_it, l);
    in_a_thread(close_it, l);
    expect_ok(l);
    nothing_is_left();
}

static void a_gpu_that_was_not_named_has_no_context(void **state)
{
    (void)state;
    life alone = {.devices = "cuda:1"}, first = {.devices = "cuda:0"};
    machine(2, 0);
    live(&alone);
    expect_contexts(2, 2);
    live(&first);
    expect_contexts(3, 2);
    assert_memory_equal(alone.logits, first.logits, sizeof alone.logits);
}

static void collectives_make_no_other_context(void **state)
{
    (void)state;
    static const char *const kinds[] = {"peer", "nccl", "staged", NULL};
    for (int k = 0; k < 4; k++) {
        life l = {.devices = "cuda:1,cuda:3", .collectives = kinds[k]};
        machine(4, 0);
        live(&l);
        expect_contexts(1 << 1 | 1 << 3, 4);
    }
}

static void a_gpu_of_another_process_is_left_alone(void **state)
{
    (void)state;
    life l = {.devices = "cuda:1"}, refused = {.devices = "cuda:0"};
    machine(2, 1);
    live(&l);
    expect_contexts(2, 2);
    in_a_thread(open_it, &refused);
    assert_int_equal(refused.status, TSR_ERR_DEVICE);
    assert_non_null(strstr(refused.text, "device cuda0: CUDA device 0: "));
    assert_non_null(strstr(refused.text, "exclusive mode"));
    expect_contexts(2, 2);
    nothing_is_left();
}

static void discovery_makes_no_context(void **state)
{
    (void)state;
    machine(3, 0);
    tsr_topology *topo;
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    assert_int_equal(topo->n_gpus, 3);
    tsr_topology_destroy(topo);
    expect_contexts(0, 3);
    /* Nor where a call fails with the error that may mean a lost GPU. */
    static const char *const calls[] = {"cudaGetDeviceProperties", "cuDeviceGet", "cuDeviceGetAttribute",
                                        "cuMemGetAllocationGranularity"};
    for (int c = 0; c < 4; c++) {
        machine(3, 0);
        cudasim_fail_named(calls[c], 1, cudaErrorUnknown);
        runner_ok(tsr_topology_discover(NULL, &topo), "topology");
        assert_int_equal(topo->n_gpus, 2);
        assert_int_equal(cudasim_faults_hit(), 1);
        tsr_topology_destroy(topo);
        expect_contexts(0, 3);
    }
}

/* The calls of a life in one thread, which has a context of GPU 2 or none. */
typedef struct caller {
    life *l;
    bool has_context;
    const char *changed; /* the call after which another context was current */
} caller;

static bool is_as_before(const caller *c)
{
    int current = -1;
    CUresult (*get_current)(CUcontext *) = NULL; /* programs are not linked with the driver */
    CUcontext context = NULL;
    return cudaGetDevice(&current) == cudaSuccess && current == (c->has_context ? 2 : 0) &&
           tsr_cuda_entry_point("cuCtxGetCurrent", (void **)&get_current) == cudaSuccess &&
           get_current(&context) == CUDA_SUCCESS && (context != NULL) == c->has_context;
}

static void *call_all(void *argument)
{
    static const struct {
        const char *name;
        void *(*function)(void *argument);
    } calls[] = {{"opening", open_it}, {"loading", load_it}, {"decoding", decode_it}, {"closing", close_it}};
    caller *c = argument;
    if (c->has_context && cudaSetDevice(2) != cudaSuccess)
        c->changed = "cudaSetDevice";
    for (int i = 0; i < 4; i++) {
        calls[i].function(c->l);
        if (!is_as_before(c) && !c->changed)
            c->changed = calls[i].name;
    }
    return NULL;
}

static void the_callers_context_stays_current(void **state)
{
    (void)state;
    static const char *const kinds[] = {"peer", "nccl", "staged"};
    for (int k = 0; k < 3; k++) {
        life l = {.devices = "cuda:1,cuda:3", .collectives = kinds[k]};
        machine(4, 0);
        for (int has = 0; has < 2; has++) {
            caller c = {&l, has, NULL};
            in_a_thread(call_all, &c);
            expect_ok(&l);
            if (c.changed)
                fail_msg("another context is current after %s with %s", c.changed, kinds[k]);
            expect_contexts(has ? 1 << 1 | 1 << 2 | 1 << 3 : 1 << 1 | 1 << 3, 4);
            nothing_is_left();
        }
    }
}

/* Runtimes that come and go beside each other, one with the GPU that another closes. */
static void runtimes_share_a_context(void **state)
{
    (void)state;
    enum { N = 3 };
    life lives[N];
    pthread_t threads[N];
    machine(2, 0);
    for (int i = 0; i < N; i++) {
        lives[i] = (life){.devices = "cuda:1"};
        in_a_thread(open_it, &lives[i]);
        expect_ok(&lives[i]);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, load_it, &lives[i]), 0);
    for (int i = 0; i < N; i++)
        pthread_join(threads[i], NULL);
    in_a_thread(close_it, &lives[0]);
    for (int i = 1; i < N; i++) {
        in_a_thread(decode_it, &lives[i]);
        in_a_thread(close_it, &lives[i]);
        expect_ok(&lives[i]);
    }
    assert_memory_equal(lives[1].logits, lives[2].logits, sizeof lives[1].logits);
    expect_contexts(2, 2);
    nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpu_that_was_not_named_has_no_context),
        cmocka_unit_test(collectives_make_no_other_context),
        cmocka_unit_test(a_gpu_of_another_process_is_left_alone),
        cmocka_unit_test(discovery_makes_no_context),
        cmocka_unit_test(the_callers_context_stays_current),
        cmocka_unit_test(runtimes_share_a_context),
    };
    return cmocka_run_group_tests_name("contexts of simulated GPUs", tests, set_up, NULL);
}
