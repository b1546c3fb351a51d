/* GPUs whose peers map each other's memory through a window that is smaller than the memory (BAR1): what is
 * mapped, and what happens when the window is full. Scaled down: the window has 40 MiB instead of 256. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>

#include <tsr/memory.h>
#include <tsr/runtime.h>

#include "core/device.h"
#include "cuda/comm/peer.h"
#include "cuda/device/device.h"
#include "cuda/simulated.h"
#include "support/directory.h"
#include "support/log_lines.h"
#include "support/random.h"
#include "support/resplit_walk.h"
#include "support/runner.h"
#include "support/synth_model.h"

#define MIB ((size_t)1 << 20)

enum { N = 12, VOCAB = WALK_VOCAB };

/* About 75 MiB of weights, few of which a token needs. */
static char model_path[DIRECTORY_PATH], saved_path[DIRECTORY_PATH];

static void machine_with_nccl(size_t bar1, int nccl_version)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = 2;
    config.bar1 = bar1;
    config.nccl_version = nccl_version ? nccl_version : config.nccl_version;
    cudasim_configure(&config);
}

static void machine(size_t bar1)
{
    machine_with_nccl(bar1, 0);
}

static tsr_model_config small_batches(void)
{
    tsr_model_config config = tsr_model_config_default();
    config.session.n_ctx = 64;
    config.session.n_batch = 8;
    config.session.n_outputs_max = 8;
    return config;
}

static void draw(int32_t *tokens)
{
    uint64_t seed = 5;
    for (int i = 0; i < N; i++)
        tokens[i] = (int32_t)random_below(&seed, VOCAB);
}

static float expected[N * VOCAB]; /* logits of one GPU alone */

static void expect(void)
{
    const tsr_model_config config = small_batches();
    int32_t tokens[N];
    runner r;
    machine(0);
    draw(tokens);
    runner_open(&r, model_path, "cuda:0", NULL, &config);
    runner_decode(&r, tokens, N, 8, true, expected);
    runner_close(&r);
    nothing_is_left();
}

static int write_model(void **state)
{
    (void)state;
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.n_ff = 1536;
    config.n_experts = 16;
    config.n_experts_used = 2;
    config.n_vocab = VOCAB;
    close(directory_new(model_path));
    close(directory_new(saved_path));
    synth_model_write(&config, model_path);
    expect();
    return 0;
}

static void check_decode(runner *r, int first)
{
    int32_t tokens[N];
    float logits[N * VOCAB];
    draw(tokens);
    runner_decode(r, tokens + first, N - first, 8, true, logits);
    assert_memory_equal(logits, expected + first * VOCAB, (size_t)(N - first) * VOCAB * sizeof(float));
}

static size_t used_by(const tsr_runtime *rt, int device, tsr_memory_owner owner)
{
    tsr_device_memory memory;
    runner_ok(tsr_runtime_memory(rt, device, &memory), "memory");
    return memory.used[owner];
}

/* Weights and KV need no window: each GPU's half is larger than that, and all collectives are of peers. */
static void a_model_larger_than_the_window_is_split_over_peers(void **state)
{
    (void)state;
    const tsr_model_config config = small_batches();
    const float three_to_one[] = {3, 1};
    const int seq = 0;
    runner r;
    machine(36 * MIB);
    runner_open_with(&r, model_path, "cuda:0,cuda:1", "peer", "1,1", &config);
    for (int d = 0; d < 2; d++)
        assert_true(used_by(r.rt, d, TSR_MEMORY_WEIGHTS) > 36 * MIB);
    check_decode(&r, 0);
    runner_ok(tsr_session_trim(r.session, 0, N / 2), "trim");
    runner_ok(tsr_model_resplit(r.model, three_to_one, 2), "resplit");
    check_decode(&r, N / 2);
    runner_ok(tsr_session_trim(r.session, 0, N / 2), "trim");
    runner_ok(tsr_session_save(r.session, &seq, 1, saved_path), "save");
    runner_ok(tsr_session_trim(r.session, 0, 0), "remove");
    runner_ok(tsr_session_load(r.session, &seq, 1, saved_path), "load");
    check_decode(&r, N / 2);
    runner_close(&r);
    nothing_is_left();
}

/* -- a full window -- */

static log_lines warnings;

static tsr_status open_all(const char *collectives, runner *r)
{
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = small_batches();
    const float even[] = {1, 1};
    *r = (runner){.n_vocab = VOCAB};
    warnings = (log_lines){0};
    runtime_config.devices = "cuda:0,cuda:1";
    runtime_config.collectives = collectives;
    runtime_config.logger = (tsr_logger){log_lines_note, &warnings, TSR_LOG_WARN};
    config.split.tensor_split = even;
    config.split.n_tensor_split = 2;
    tsr_status status = tsr_runtime_open(&runtime_config, &r->rt);
    if (status == TSR_OK)
        status = tsr_model_open(r->rt, model_path, &config, &r->model);
    if (status == TSR_OK)
        status = tsr_session_create(r->model, &r->session);
    return status;
}

static void a_full_window_ends_peer_access_with_a_warning(void **state)
{
    (void)state;
    /* Too small for a test pattern, and for the kernels' scratch of 24 MiB. */
    static const size_t windows[] = {32 << 10, 20 << 20};
    size_t wide[2][TSR_MEMORY_COUNT];
    runner r;
    machine(0);
    runner_ok(open_all(NULL, &r), "open");
    assert_string_equal(warnings.text, "");
    for (int d = 0; d < 2; d++)
        for (int owner = 0; owner < TSR_MEMORY_COUNT; owner++)
            wide[d][owner] = used_by(r.rt, d, (tsr_memory_owner)owner);
    runner_close(&r);
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        machine(windows[i]);
        runner_ok(open_all(NULL, &r), "open");
        assert_non_null(strstr(warnings.text, "devices cuda"));
        assert_true(strstr(warnings.text, "and cuda0: ") || strstr(warnings.text, "and cuda1: "));
        assert_non_null(strstr(warnings.text, "Resizable BAR"));
        for (int d = 0; d < 2; d++)
            for (int owner = 0; owner < TSR_MEMORY_COUNT; owner++)
                assert_int_equal(used_by(r.rt, d, (tsr_memory_owner)owner), wide[d][owner]);
        check_decode(&r, 0);
        runner_close(&r);
        nothing_is_left();
    }
}

/* cudaMalloc maps its memory for every peer, and fails when the window is full; our own mappings do not. */
static void small_allocations_succeed_when_the_window_is_full(void **state)
{
    (void)state;
    enum { N_SMALL = 40, SMALL = 32 << 10 };
    tsr_device *devices[2] = {NULL};
    tsr_device_set reach[2];
    void *small[N_SMALL];
    machine(MIB);
    for (int d = 0; d < 2; d++) {
        const tsr_cuda_device_config config = {.ordinal = d, .index = d, .name = d ? "cuda1" : "cuda0"};
        runner_ok(tsr_cuda_device_create(&config, &devices[d]), "device");
    }
    runner_ok(tsr_cuda_peers_test(devices, 2, NULL, reach), "peers");
    assert_int_equal(reach[0], 3);
    for (int i = 0; i < N_SMALL; i++)
        runner_ok(tsr_device_alloc(devices[0], TSR_MEMORY_COMM, SMALL, "a test", &small[i]), "alloc");
    void *plain;
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudaMalloc(&plain, SMALL), cudaErrorMapBufferObjectFailed);
    (void)cudaGetLastError();
    for (int i = 0; i < N_SMALL; i++)
        tsr_device_free(devices[0], TSR_MEMORY_COMM, small[i], SMALL);
    for (int d = 0; d < 2; d++)
        tsr_device_destroy(devices[d]);
    nothing_is_left();
}

/* Without NCCL the scratch of 24 MiB needs no window. Where partial sums have no room there is nothing to
 * fall back on. */
static void collectives_that_need_peers_fail_with_the_remedy(void **state)
{
    (void)state;
    runner r;
    machine(20 * MIB);
    runner_ok(open_all("peer", &r), "open");
    assert_string_equal(warnings.text, "");
    check_decode(&r, 0);
    runner_close(&r);
    nothing_is_left();
    machine(32 << 10);
    assert_int_equal(open_all("peer", &r), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "use auto, pinned, nccl or staged"));
    runner_close(&r);
    nothing_is_left();
}

/* This version writes into peers' buffers, and first into the scratch, for which the window has no room. */
static void nccl_does_not_touch_scratch_that_is_closed(void **state)
{
    (void)state;
    runner r;
    machine_with_nccl(20 * MIB, 22105);
    assert_int_equal(open_all("nccl", &r), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "no access to the scratch memory"));
    runner_close(&r);
    nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_larger_than_the_window_is_split_over_peers),
        cmocka_unit_test(a_full_window_ends_peer_access_with_a_warning),
        cmocka_unit_test(small_allocations_succeed_when_the_window_is_full),
        cmocka_unit_test(collectives_that_need_peers_fail_with_the_remedy),
        cmocka_unit_test(nccl_does_not_touch_scratch_that_is_closed),
    };
    return cmocka_run_group_tests(tests, write_model, NULL);
}
