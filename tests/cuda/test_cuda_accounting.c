/* The memory of simulated GPUs in the accounting: what libraries and the runtime take beside what is planned,
 * pinned host memory, blocks of the scratch pool between streams, checksums, and memory that others
 * takes between opening and loading. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>

#include "core/checksum.h"
#include "core/runtime.h"
#include "cuda/context/context.h"
#include "cuda/simulated.h"
#include "graph/memory.h"
#include "support/directory.h"
#include "support/log_lines.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { MIB = 1 << 20 };

static void machine(int n_devices, size_t memory)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.memory = memory;
    cudasim_configure(&config);
}

static tsr_runtime *open_runtime(const char *devices, const char *collectives, log_lines *t)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt = NULL;
    config.devices = devices;
    config.collectives = collectives;
    if (t)
        config.logger = (tsr_logger){log_lines_note, t, TSR_LOG_WARN};
    runner_ok(tsr_runtime_open(&config, &rt), devices);
    return rt;
}

static void model_file(char *path, int n_ctx)
{
    struct synth_model_config synth = SYNTH_MODEL_CONFIG_INIT;
    synth.n_ctx = n_ctx;
    close(directory_new(path));
    synth_model_write(&synth, path);
}

/* -- everything is in the accounting -- */

static void collectives_and_libraries_are_in_the_books(void **state)
{
    (void)state;
    static const char *const kinds[] = {"peer", "nccl", "staged"};
    for (int k = 0; k < 3; k++) {
        tsr_device_memory m;
        machine(2, 256 * MIB);
        tsr_runtime *rt = open_runtime("cuda", kinds[k], NULL);
        for (int d = 0; d < 2; d++) {
            runner_ok(tsr_runtime_memory(rt, d, &m), "memory");
            assert_int_equal(m.used_total, 0);
            assert_true(m.runtime > 0 && m.taken >= m.runtime);
            assert_true((m.library > 0) == (k == 1));
            assert_true(m.pinned > 0 && m.pinned_peak >= m.pinned);
            /* The simulated driver has no use for memory of its own but for contexts. */
            assert_int_equal(m.taken + m.library, cudasim_used(d));
            assert_true(cudasim_context(d) > 0);
            assert_int_equal(m.elsewhere, m.library + cudasim_context(d));
            assert_int_equal(m.device_total - m.device_free, cudasim_used(d) + cudasim_context(d));
            assert_int_equal(m.free_at_open, m.device_free);
        }
        tsr_runtime_close(rt);
        nothing_is_left();
    }
}

/* Pinning takes a lock of the context, so it happens when a device is opened, and for the inputs of a session
 * when that is created, not while steps run. */
static void memory_is_pinned_at_opening_and_never_by_steps(void **state)
{
    (void)state;
    char path[DIRECTORY_PATH];
    runner r = {.n_vocab = 512};
    tsr_device_memory m, opened, ready;
    float logits[512];
    int32_t tokens[3] = {1, 2, 3};
    model_file(path, 256);
    machine(1, 256 * MIB);
    r.rt = open_runtime("cuda:0", NULL, NULL);
    runner_ok(tsr_runtime_memory(r.rt, 0, &opened), "opened");
    assert_in_range(opened.pinned, TSR_CUDA_RING_SLOTS * TSR_CUDA_SLOT_BYTES,
                    TSR_CUDA_RING_SLOTS * TSR_CUDA_SLOT_BYTES + MIB);
    const uint64_t n_pinned = cudasim_calls_of("cudaHostAlloc");
    runner_ok(tsr_model_open(r.rt, path, NULL, &r.model), "load");
    runner_ok(tsr_session_create(r.model, &r.session), "session");
    runner_ok(tsr_runtime_memory(r.rt, 0, &ready), "ready");
    assert_in_range(ready.pinned - opened.pinned, 1, TSR_PINNED_INPUT_BYTES);
    for (int i = 0; i < 20; i++)
        runner_decode(&r, tokens, 3, 0, false, logits);
    tsr_device_trim(r.rt->devices[0]);
    runner_ok(tsr_runtime_memory(r.rt, 0, &m), "after steps");
    assert_int_equal(cudasim_calls_of("cudaHostAlloc"), n_pinned + 1);
    assert_int_equal(m.pinned, ready.pinned);
    assert_int_equal(m.pinned_peak, ready.pinned);
    runner_close(&r);
    nothing_is_left();
    unlink(path);
}

/* -- the scratch pool -- */

/* Random fills by two streams, each through a block that it gives back before the fill has happened: what it
 * is copied to afterwards must be its own value, also after the block went to another owner. */
static void blocks_go_from_stream_to_stream_in_order(void **state)
{
    (void)state;
    enum { N_ROUNDS = 200, BYTES = 8192 };
    for (uint64_t seed = 1; seed <= 4; seed++) {
        uint64_t random = seed;
        unsigned char results[N_ROUNDS];
        void *out;
        cudasim_config config = CUDASIM_CONFIG_INIT;
        config.seed = seed;
        cudasim_configure(&config);
        tsr_runtime *rt = open_runtime("cuda:0", NULL, NULL);
        tsr_device *device = rt->devices[0];
        tsr_cuda_device *cuda = tsr_cuda(device);
        assert_int_equal(cudaMalloc(&out, N_ROUNDS), cudaSuccess);
        for (int i = 0; i < N_ROUNDS; i++) {
            int stream = random_below(&random, 2) ? TSR_STREAM_COPIES : TSR_STREAM_PROGRAMS;
            cudaStream_t s = stream == TSR_STREAM_COPIES ? cuda->copies : cuda->stream;
            tsr_pool_block *block = NULL;
            runner_ok(tsr_device_scratch_take(device, BYTES, stream, "a test", &block), "take");
            assert_int_equal(cudaMemsetAsync(block->data, i % 251, BYTES, s), cudaSuccess);
            assert_int_equal(cudaMemcpyAsync((char *)out + i, (char *)block->data + BYTES - 1, 1,
                                             cudaMemcpyDeviceToDevice, s),
                             cudaSuccess);
            tsr_device_scratch_give(device, block, stream);
        }
        assert_true(tsr_pool_stats_of(device->scratch_pool).n_blocks < N_ROUNDS);
        assert_int_equal(device->used[TSR_MEMORY_SCRATCH], tsr_pool_stats_of(device->scratch_pool).held);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        assert_int_equal(cudaMemcpy(results, out, N_ROUNDS, cudaMemcpyDeviceToHost), cudaSuccess);
        for (int i = 0; i < N_ROUNDS; i++)
            assert_int_equal(results[i], i % 251);
        tsr_device_trim(device);
        assert_int_equal(device->used[TSR_MEMORY_SCRATCH], 0);
        assert_int_equal(cudaFree(out), cudaSuccess);
        tsr_runtime_close(rt);
        nothing_is_left();
    }
}

/* A block in use is never handed out a second time to a stalled stream's successor: it waits, or gets
 * another. */
static void a_full_device_makes_the_other_stream_wait(void **state)
{
    (void)state;
    machine(1, 256 * MIB);
    tsr_runtime *rt = open_runtime("cuda:0,mem=4MiB", NULL, NULL);
    tsr_device *device = rt->devices[0];
    tsr_pool_block *a = NULL, *b = NULL;
    runner_ok(tsr_device_scratch_take(device, 3 * MIB, TSR_STREAM_PROGRAMS, "a test", &a), "a");
    assert_int_equal(tsr_device_scratch_take(device, 3 * MIB, TSR_STREAM_COPIES, "a test", &b),
                     TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "device cuda0: a test needs 3145728 bytes"));
    tsr_device_scratch_give(device, a, TSR_STREAM_PROGRAMS);
    runner_ok(tsr_device_scratch_take(device, 3 * MIB, TSR_STREAM_COPIES, "a test", &b), "b");
    assert_ptr_equal(a, b);
    tsr_device_scratch_give(device, b, TSR_STREAM_COPIES);
    tsr_runtime_close(rt);
    nothing_is_left();
}

/* -- checksums -- */

static void checksums_are_the_hosts(void **state)
{
    (void)state;
    enum { MOST = 70000 };
    unsigned char *bytes = malloc(MOST);
    uint64_t seed = 5;
    void *there;
    machine(1, 256 * MIB);
    tsr_runtime *rt = open_runtime("cuda:0", NULL, NULL);
    tsr_device *device = rt->devices[0];
    runner_ok(tsr_device_alloc(device, TSR_MEMORY_OTHER, MOST, "a test", &there), "alloc");
    for (int i = 0; i < MOST; i++)
        bytes[i] = (unsigned char)random_below(&seed, 256);
    for (int i = 0; i < 60; i++) {
        size_t at = random_below(&seed, 17), n = 1 + random_below(&seed, i < 30 ? 40 : MOST - 17), cut;
        uint64_t sum = 0, changed = 0;
        tsr_checksum here = {0}, other = {0};
        runner_ok(tsr_device_upload(device, (char *)there + at, bytes, n), "upload");
        runner_ok(device->ops->checksum(device, (char *)there + at, n, &sum), "checksum");
        for (size_t done = 0; done < n; done += cut) { /* in pieces of any size */
            cut = 1 + random_below(&seed, n - done);
            tsr_checksum_add(&here, bytes + done, cut);
        }
        assert_true(sum == tsr_checksum_end(&here));
        cut = random_below(&seed, n);
        bytes[cut] ^= (unsigned char)(1 + random_below(&seed, 255));
        tsr_checksum_add(&other, bytes, n);
        changed = tsr_checksum_end(&other);
        assert_true(changed != sum);
    }
    tsr_device_free(device, TSR_MEMORY_OTHER, there, MOST);
    free(bytes);
    tsr_runtime_close(rt);
    nothing_is_left();
}

/* Verified by checksums, nothing but what differs comes back over the bus. */
static void verified_uploads_read_nothing_back(void **state)
{
    (void)state;
    char path[DIRECTORY_PATH];
    tsr_model_config config = tsr_model_config_default();
    tsr_model *model = NULL;
    model_file(path, 256);
    machine(2, 256 * MIB);
    config.load.verify_upload = true;
    tsr_runtime *rt = open_runtime("cuda", "staged", NULL);
    uint64_t launched = cudasim_calls_of("cudaLaunchKernel"), copied = cudasim_calls_of("cudaMemcpy2DAsync");
    runner_ok(tsr_model_open(rt, path, &config, &model), "open");
    assert_true(cudasim_calls_of("cudaLaunchKernel") > launched);
    assert_int_equal(cudasim_calls_of("cudaMemcpy2DAsync"), copied);
    for (int d = 0; d < 2; d++)
        assert_int_equal(rt->devices[d]->used[TSR_MEMORY_SCRATCH], 0);
    tsr_model_close(model);
    tsr_runtime_close(rt);
    nothing_is_left();
    unlink(path);
}

/* -- others' use -- */

static void memory_that_others_took_before_loading_is_noticed(void **state)
{
    (void)state;
    char path[DIRECTORY_PATH];
    log_lines t = {0};
    tsr_model_config config = tsr_model_config_default();
    tsr_model *model = NULL;
    const float split[] = {1, 1};
    void *others, *more;
    config.split.tensor_split = split;
    config.split.n_tensor_split = 2;
    model_file(path, 32768);
    machine(2, 128 * MIB);
    tsr_runtime *rt = open_runtime("cuda", "staged", &t);

    /* It still fits: a warning. */
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    assert_int_equal(cudaMalloc(&others, 30 * MIB), cudaSuccess);
    runner_ok(tsr_model_open(rt, path, &config, &model), "with some of it taken");
    assert_non_null(strstr(t.text, "device cuda1: "));
    assert_non_null(strstr(t.text, "another program uses its memory"));
    assert_null(strstr(t.text, "device cuda0: "));
    tsr_model_close(model);
    model = NULL;

    /* It does not, so nothing is allocated. */
    assert_int_equal(cudaMalloc(&more, 86 * MIB), cudaSuccess);
    size_t used[2] = {cudasim_used(0), cudasim_used(1)};
    uint64_t mapped = cudasim_calls_of("cuMemMap"), allocated = cudasim_calls_of("cudaMalloc");
    assert_int_equal(tsr_model_open(rt, path, &config, &model), TSR_ERR_MEMORY);
    assert_null(model);
    assert_non_null(strstr(tsr_last_error(), "device cuda1: the plan needs "));
    assert_non_null(strstr(tsr_last_error(), " were free when it was opened; "));
    for (int d = 0; d < 2; d++)
        assert_int_equal(cudasim_used(d), used[d]);
    assert_int_equal(cudasim_calls_of("cuMemMap"), mapped);
    assert_int_equal(cudasim_calls_of("cudaMalloc"), allocated);

    /* And when they have gone, it is as before. */
    assert_int_equal(cudaFree(more), cudaSuccess);
    assert_int_equal(cudaFree(others), cudaSuccess);
    runner_ok(tsr_model_open(rt, path, &config, &model), "with all of it back");
    tsr_model_close(model);
    tsr_runtime_close(rt);
    nothing_is_left();
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_and_libraries_are_in_the_books),
        cmocka_unit_test(memory_is_pinned_at_opening_and_never_by_steps),
        cmocka_unit_test(blocks_go_from_stream_to_stream_in_order),
        cmocka_unit_test(a_full_device_makes_the_other_stream_wait),
        cmocka_unit_test(checksums_are_the_hosts),
        cmocka_unit_test(verified_uploads_read_nothing_back),
        cmocka_unit_test(memory_that_others_took_before_loading_is_noticed),
    };
    return cmocka_run_group_tests_name("accounting of simulated GPUs", tests, NULL, NULL);
}
