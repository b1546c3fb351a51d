/* Several devices on one simulated GPU: its hardware queues start work in the order in which it was enqueued,
 * and a launch that finds a thousand before it waits with a lock that other launches need. Devices that wait
 * for each other in kernels must get past both, or be refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>

#include <tsr/runtime.h>

#include "cuda/comm/peer.h"
#include "cuda/device/device.h"
#include "cuda/simulated.h"
#include "support/directory.h"
#include "support/log_lines.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { MIB = 1 << 20, N_VOCAB = 512, N_TOKENS = 3 };

static char model_path[DIRECTORY_PATH];
static const char queues[] = "CUDA_DEVICE_MAX_CONNECTIONS";

static int set_up(void **state)
{
    (void)state;
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    unsetenv(queues);
    close(directory_new(model_path));
    synth_model_write(&config, model_path);
    return 0;
}

static void machine(void)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_sms = 32;
    config.memory = 512 * MIB;
    config.hang_ms = 5000;
    cudasim_configure(&config);
}

/* -- hardware queues -- */

static tsr_status open_n(int n, const char *collectives, log_lines *t, tsr_runtime **rt_out)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    char devices[128] = "cuda:0";
    for (int d = 1; d < n; d++)
        strcat(devices, ",cuda:0");
    *t = (log_lines){0};
    config.devices = devices;
    config.collectives = collectives;
    config.logger = (tsr_logger){log_lines_note, t, TSR_LOG_WARN};
    return tsr_runtime_open(&config, rt_out);
}

static void run_n(int n, const char *collectives, log_lines *t, float *logits)
{
    float equal[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    runner r = {.n_vocab = N_VOCAB};
    tsr_model_config config = tsr_model_config_default();
    int32_t tokens[N_TOKENS] = {1, 2, 3};
    config.split.tensor_split = equal;
    config.split.n_tensor_split = n;
    machine();
    runner_ok(open_n(n, collectives, t, &r.rt), collectives);
    runner_ok(tsr_model_open(r.rt, model_path, &config, &r.model), "load");
    runner_ok(tsr_session_create(r.model, &r.session), "session");
    for (int i = 0; i < 2; i++)
        runner_decode(&r, tokens, N_TOKENS, 0, false, logits);
    runner_close(&r);
    nothing_is_left();
}

static void as_many_devices_wait_for_each_other_as_have_queues(void **state)
{
    (void)state;
    static const char *const ways[] = {"peer", "auto"};
    float alone[N_VOCAB], logits[N_VOCAB];
    log_lines t;
    tsr_runtime *rt = NULL;
    run_n(1, "auto", &t, alone);
    for (int w = 0; w < 2; w++) {
        run_n(4, ways[w], &t, logits);
        assert_memory_equal(logits, alone, sizeof alone);
        assert_null(strstr(t.text, queues));
    }

    /* One more: none is left waiting, and what would help is said. */
    machine();
    assert_int_equal(open_n(5, "peer", &t, &rt), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "CUDA_DEVICE_MAX_CONNECTIONS=32"));
    assert_non_null(strstr(tsr_last_error(), "at most 4"));
    nothing_is_left();
    run_n(5, "auto", &t, logits);
    assert_memory_equal(logits, alone, sizeof alone);
    assert_non_null(strstr(t.text, "device cuda0: 5 devices are on its GPU"));
    assert_non_null(strstr(t.text, "CUDA_DEVICE_MAX_CONNECTIONS=32"));

    /* It does help. What is no number of queues is ignored, as by the driver. */
    setenv(queues, "32", 1);
    run_n(8, "peer", &t, logits);
    assert_memory_equal(logits, alone, sizeof alone);
    assert_null(strstr(t.text, queues));
    setenv(queues, "33", 1);
    machine();
    assert_int_equal(open_n(5, "peer", &t, &rt), TSR_ERR_UNSUPPORTED);
    unsetenv(queues);
}

/* -- launches one by one -- */

/* A sum of two devices, and then more ops than a stream holds launches. */
enum { N_DEVICES = 2, N_ELEMENTS = 64, N_SCALES = 1500 };

typedef struct pair {
    tsr_device *devices[N_DEVICES];
    tsr_device_set reach[N_DEVICES];
    tsr_comm *comm;
    tsr_collective *sum;
    void *partials[N_DEVICES];
    float *y[N_DEVICES];
    tsr_device_program *programs[N_DEVICES];
} pair;

static void make_program(pair *p, int d)
{
    tsr_device *device = p->devices[d];
    tsr_op *ops = calloc(N_SCALES + 1, sizeof *ops);
    ops[0] =
        (tsr_op){.kind = TSR_OP_ALL_REDUCE, .name = "sum", .all_reduce = {p->sum, NULL, p->y[d], N_ELEMENTS}};
    for (int i = 1; i <= N_SCALES; i++)
        ops[i] =
            (tsr_op){.kind = TSR_OP_SCALE, .name = "negated", .scale = {p->y[d], p->y[d], N_ELEMENTS, -1}};
    runner_ok(device->ops->program_create(device, ops, N_SCALES + 1, &p->programs[d]), "program");
    free(ops);
}

static void make_pair(pair *p)
{
    static const char *const names[N_DEVICES] = {"cuda0", "cuda0.1"};
    float values[N_ELEMENTS];
    for (int i = 0; i < N_ELEMENTS; i++)
        values[i] = (float)(i + 1);
    for (int d = 0; d < N_DEVICES; d++) {
        tsr_cuda_device_config config = {.name = names[d], .index = d, .memory_cap = 64 * MIB};
        runner_ok(tsr_cuda_device_create(&config, &p->devices[d]), names[d]);
        tsr_device *device = p->devices[d];
        runner_ok(device->ops->alloc(device, TSR_MEMORY_COMM, sizeof values, &p->partials[d]), "partial");
        runner_ok(device->ops->alloc(device, TSR_MEMORY_ARENA, sizeof values, (void **)&p->y[d]), "sum");
        runner_ok(tsr_device_upload(device, p->partials[d], values, sizeof values), "partial");
    }
    runner_ok(tsr_cuda_peers_test(p->devices, N_DEVICES, NULL, p->reach), "peers");
    runner_ok(tsr_comm_peer_create(p->devices, N_DEVICES, p->reach, TSR_PEER_ONE_SHOT, &p->comm), "peer");
    const tsr_collective_desc desc = {.kind = TSR_OP_ALL_REDUCE,
                                      .participants = 3,
                                      .contributors = 3,
                                      .reduce = TSR_REDUCE_F32,
                                      .n = N_ELEMENTS,
                                      .partial = p->partials,
                                      .name = "sum"};
    runner_ok(p->comm->ops->collective_create(p->comm, &desc, &p->sum), "sum");
    for (int d = 0; d < N_DEVICES; d++) {
        cudasim_fail_named("cudaStreamBeginCapture", 1, 0);
        make_program(p, d);
    }
    assert_int_equal(cudasim_faults_hit(), N_DEVICES);
}

static void drop_pair(pair *p)
{
    for (int d = 0; d < N_DEVICES; d++) {
        tsr_device *device = p->devices[d];
        device->ops->program_destroy(device, p->programs[d]);
        device->ops->free(device, p->partials[d], 0);
        device->ops->free(device, p->y[d], 0);
    }
    p->comm->ops->collective_destroy(p->comm, p->sum);
    tsr_comm_destroy(p->comm);
    for (int d = 0; d < N_DEVICES; d++)
        tsr_device_destroy(p->devices[d]);
}

/* The first device has long since launched what it may when the second begins. */
static void uncaptured_programs_leave_room_for_the_other_devices_launches(void **state)
{
    (void)state;
    pair p = {0};
    float y[N_ELEMENTS];
    machine();
    make_pair(&p);
    for (int d = 0; d < N_DEVICES; d++) {
        runner_ok(p.devices[d]->ops->launch(p.devices[d], p.programs[d]), "launch");
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    }
    for (int d = 0; d < N_DEVICES; d++)
        runner_ok(p.devices[d]->ops->synchronize(p.devices[d], 0), "run");
    assert_true(cudasim_calls_of("cudaLaunchKernel") > (uint64_t)N_DEVICES * N_SCALES);
    for (int d = 0; d < N_DEVICES; d++) {
        runner_ok(tsr_device_download(p.devices[d], y, p.y[d], sizeof y), "sum");
        for (int i = 0; i < N_ELEMENTS; i++)
            assert_true(y[i] == (float)(N_DEVICES * (i + 1)));
    }
    drop_pair(&p);
    nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_many_devices_wait_for_each_other_as_have_queues),
        cmocka_unit_test(uncaptured_programs_leave_room_for_the_other_devices_launches),
    };
    return cmocka_run_group_tests_name("devices on one simulated GPU", tests, set_up, NULL);
}
