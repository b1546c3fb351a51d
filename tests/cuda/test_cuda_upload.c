/* Weights on their way to simulated GPUs: all devices at once, several threads per device, progress, what is
 * found when a copy arrives changed, and what is left when a call fails. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>

#include <tsr/split.h>

#include "alloc/buffer/buffer.h"
#include "alloc/buffer/tensor.h"
#include "core/mem.h"
#include "cuda/device/device.h"
#include "cuda/simulated.h"
#include "support/failing_alloc.h"

enum { MIB = 1 << 20, MAX_GPUS = 8, N_TENSORS = 4 };

/* GPUs without anything between them. */
typedef struct gpus {
    tsr_runtime rt;
    tsr_device *devices[MAX_GPUS];
} gpus;

static void open_gpus(gpus *g, int n)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n;
    cudasim_configure(&config);
    *g = (gpus){.rt = {.n_devices = n}};
    g->rt.devices = g->devices;
    for (int d = 0; d < n; d++) {
        char name[16];
        snprintf(name, sizeof name, "cuda%d", d);
        tsr_cuda_device_config device = {
            .name = name, .ordinal = d, .index = d, .sibling = d > 0 ? g->devices[0] : NULL};
        ok(tsr_cuda_device_create(&device, &g->devices[d]));
    }
}

static void close_gpus(gpus *g)
{
    for (int d = 0; d < g->rt.n_devices; d++) {
        assert_int_equal(tsr_device_used(g->devices[d]), 0);
        tsr_device_destroy(g->devices[d]);
    }
    nothing_is_left();
}

/* One tensor divided by rows, one by columns (narrow ones), one on every device and one in a single row that
 * is longer than a pinned buffer. */
typedef struct weights {
    tsr_tensor tensors[N_TENSORS], *pointers[N_TENSORS];
    tsr_placement placements[N_TENSORS];
    const void *sources[N_TENSORS];
    tsr_shard_map maps[2];
} weights;

static void even(int64_t extent, int64_t granule, int n, tsr_shard_map *map)
{
    int64_t counts[MAX_GPUS] = {0}, n_granules = extent / granule;
    for (int64_t i = 0; i < n_granules; i++)
        counts[i % n]++;
    ok(tsr_shard_map_init(extent, granule, n, counts, map));
}

static void make_weights(weights *w, tsr_runtime *rt, int64_t n_rows)
{
    const int64_t ne[N_TENSORS][4] = {
        {1000, n_rows, 1, 1}, {64 * 32, n_rows, 1, 1}, {77, n_rows / 4 + 1, 1, 1}, {n_rows * 700, 1, 1, 1}};
    static const char *const names[N_TENSORS] = {"ffn_up", "ffn_down", "norm", "bias"};
    int n = rt->n_devices;
    memset(w, 0, sizeof *w);
    even(n_rows, 1, n, &w->maps[0]);
    even(64 * 32, 64, n, &w->maps[1]);
    for (int i = 0; i < N_TENSORS; i++) {
        ok(tsr_tensor_init(&w->tensors[i], rt, TSR_TYPE_F32, ne[i], names[i]));
        w->pointers[i] = &w->tensors[i];
        w->placements[i] = (tsr_placement){.sharding = i < 2 ? TSR_SHARDING_SPLIT : TSR_SHARDING_REPLICATED,
                                           .axis = i == 0,
                                           .devices = ((uint64_t)1 << n) - 1,
                                           .map = i < 2 ? &w->maps[i] : NULL};
        size_t bytes = tsr_tensor_bytes(&w->tensors[i]);
        unsigned char *data = malloc(bytes);
        for (size_t b = 0; b < bytes; b++)
            data[b] = (unsigned char)((b * 2654435761u) >> 13 ^ (size_t)i);
        w->sources[i] = data;
    }
}

static void free_weights(weights *w)
{
    for (int i = 0; i < N_TENSORS; i++)
        free((void *)(uintptr_t)w->sources[i]);
}

typedef struct progress_log {
    pthread_t thread;
    int n_calls;
    size_t done, total;
} progress_log;

static void note_progress(size_t done, size_t total, void *user)
{
    progress_log *log = user;
    assert_true(pthread_equal(pthread_self(), log->thread));
    assert_true(done >= log->done && done <= total);
    assert_true(log->n_calls == 0 || total == log->total);
    log->n_calls++;
    log->done = done;
    log->total = total;
}

static tsr_status load(gpus *g, weights *w, unsigned flags, progress_log *log, tsr_buffer **buffer_out)
{
    const tsr_buffer_load_config config = {
        .flags = flags, .owner = TSR_MEMORY_WEIGHTS, .progress = log ? note_progress : NULL, .user = log};
    return tsr_buffer_load(&g->rt, w->pointers, w->placements, w->sources, N_TENSORS, &config, buffer_out);
}

static void trim(gpus *g)
{
    for (int d = 0; d < g->rt.n_devices; d++)
        tsr_device_trim(g->rt.devices[d]);
}

static void check_contents(const weights *w)
{
    for (int i = 0; i < N_TENSORS; i++) {
        size_t bytes = tsr_tensor_bytes(&w->tensors[i]);
        unsigned char *got = malloc(bytes);
        ok(tsr_tensor_get(&w->tensors[i], got, 0, bytes));
        assert_memory_equal(got, w->sources[i], bytes);
        free(got);
    }
}

static void all_devices_get_their_parts(void **state)
{
    (void)state;
    static const int counts[] = {1, 2, 3, 5, 8};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (unsigned flags = 0; flags <= TSR_LOAD_VERIFY; flags += TSR_LOAD_VERIFY) {
            gpus g;
            static weights w;
            tsr_buffer *buffer = NULL;
            progress_log log = {.thread = pthread_self()};
            size_t total = 0;
            open_gpus(&g, counts[c]);
            make_weights(&w, &g.rt, 2000);
            ok(load(&g, &w, flags, &log, &buffer));
            for (int d = 0; d < g.rt.n_devices; d++)
                for (int i = 0; i < N_TENSORS; i++)
                    total += tsr_tensor_device_bytes(&w.tensors[i], d);
            assert_int_equal(log.done, total);
            assert_int_equal(log.total, total);
            check_contents(&w);
            tsr_buffer_destroy(buffer);
            free_weights(&w);
            close_gpus(&g);
        }
}

/* Many pieces, so that several threads serve a device where there are processors for them. */
static void several_threads_fill_one_device(void **state)
{
    (void)state;
    gpus g;
    static weights w;
    tsr_buffer *buffer = NULL;
    progress_log log = {.thread = pthread_self()};
    open_gpus(&g, 1);
    assert_true(g.devices[0]->n_uploaders > 1);
    make_weights(&w, &g.rt, 8000);
    ok(load(&g, &w, 0, &log, &buffer));
    assert_true(log.done > 96 * MIB && log.done == log.total);
    check_contents(&w);
    tsr_buffer_destroy(buffer);
    free_weights(&w);
    close_gpus(&g);
}

static void a_copy_that_arrives_changed_is_found(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++)
        for (uint64_t nth = 1; nth <= 3; nth++) {
            gpus g;
            static weights w;
            tsr_buffer *buffer = NULL;
            char name[16];
            open_gpus(&g, 3);
            make_weights(&w, &g.rt, 2000);
            ok(load(&g, &w, TSR_LOAD_VERIFY, NULL, &buffer)); /* pools are made, and some buffers kept */
            check_contents(&w);
            trim(&g);
            tsr_buffer_destroy(buffer);
            buffer = NULL;
            int64_t blocks = failing_alloc_live();
            cudasim_corrupt_copy(d, nth, 1000);
            assert_int_equal(load(&g, &w, TSR_LOAD_VERIFY, NULL, &buffer), TSR_ERR_DEVICE);
            snprintf(name, sizeof name, "cuda%d", d);
            assert_non_null(strstr(tsr_last_error(), name));
            assert_non_null(strstr(tsr_last_error(), "was read back changed"));
            assert_null(buffer);
            assert_null(w.tensors[0].shards);
            assert_int_equal(failing_alloc_live(), blocks);
            cudasim_corrupt_copy(d, nth, 1000);
            ok(load(&g, &w, 0, NULL, &buffer)); /* without verification */
            tsr_buffer_destroy(buffer);
            free_weights(&w);
            close_gpus(&g);
        }
}

/* Each call of CUDA made to fail once: the load says which device, and nothing stays behind; the next load
 * works. */
static void every_call_may_fail(void **state)
{
    (void)state;
    gpus g;
    static weights w;
    tsr_buffer *buffer = NULL;
    uint64_t n_failed = 0;
    open_gpus(&g, 2);
    make_weights(&w, &g.rt, 300);
    ok(load(&g, &w, TSR_LOAD_VERIFY, NULL, &buffer)); /* pools are made, and some buffers kept */
    check_contents(&w);
    trim(&g);
    tsr_buffer_destroy(buffer);
    int left = cudasim_leaks(NULL);
    int64_t blocks = failing_alloc_live();
    for (uint64_t call = 0;; call++) {
        uint64_t before = cudasim_calls();
        cudasim_fail_call(before + call, cudaErrorNotSupported); /* not one that ends the device */
        buffer = NULL;
        tsr_status status = load(&g, &w, TSR_LOAD_VERIFY, NULL, &buffer);
        bool past = cudasim_calls() - before <= call;
        cudasim_clear_faults();
        if (status != TSR_OK) {
            n_failed++;
            assert_null(buffer);
            if (!strstr(tsr_last_error(), "device cuda"))
                fail_msg("call %llu: '%s'", (unsigned long long)call, tsr_last_error());
        }
        tsr_buffer_destroy(buffer);
        assert_int_equal(failing_alloc_live(), blocks);
        if (cudasim_leaks(NULL) != left)
            fail_msg("call %llu leaves something behind: '%s'", (unsigned long long)call, tsr_last_error());
        if (past)
            break;
    }
    assert_true(n_failed > 20);
    ok(load(&g, &w, TSR_LOAD_VERIFY, NULL, &buffer));
    check_contents(&w);
    tsr_buffer_destroy(buffer);
    free_weights(&w);
    close_gpus(&g);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    gpus g;
    static weights w;
    tsr_buffer *buffer = NULL;
    open_gpus(&g, 3);
    make_weights(&w, &g.rt, 300);
    ok(load(&g, &w, TSR_LOAD_VERIFY, NULL, &buffer)); /* pools are made, and some buffers kept */
    check_contents(&w);
    trim(&g);
    tsr_buffer_destroy(buffer);
    buffer = NULL;
    int left = cudasim_leaks(NULL);
    int64_t blocks = failing_alloc_live();
    for (int n = 1, fired = 1; fired; n++) {
        failing_alloc_set(n);
        tsr_status status = load(&g, &w, TSR_LOAD_VERIFY, NULL, &buffer);
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (status == TSR_OK) { /* or an allocation of the simulation's own */
            tsr_buffer_destroy(buffer);
            buffer = NULL;
        }
        /* The simulation maps memory for its kernels, too, and does without where it gets none. */
        bool its_own = status == TSR_ERR_DEVICE && strstr(tsr_last_error(), "was read back unchanged");
        if (status != TSR_OK && status != TSR_ERR_MEMORY && !its_own)
            fail_msg("allocation %d: %s", n, tsr_last_error());
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(cudasim_leaks(NULL), left);
    }
    free_weights(&w);
    close_gpus(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_devices_get_their_parts),
        cmocka_unit_test(several_threads_fill_one_device),
        cmocka_unit_test(a_copy_that_arrives_changed_is_found),
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("upload to CUDA devices", tests, NULL, NULL);
}
