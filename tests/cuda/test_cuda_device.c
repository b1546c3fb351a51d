/* The CUDA device on a simulated machine: memory, copies, growing memory, programs, and what is said when a
 * call of CUDA fails, whichever it is. */
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

#include <tsr/types.h>

#include "core/comm.h"
#include "core/mem.h"
#include "core/quant/fixed.h"
#include "core/quant/quant.h"
#include "cuda/api/check.h"
#include "cuda/device/device.h"
#include "cuda/simulated.h"
#include "support/failing_alloc.h"

enum { MS = 1000000 };

static void machine(int n_devices, size_t memory)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.memory = memory;
    cudasim_configure(&config);
}

static tsr_device *open_device(int ordinal, size_t cap)
{
    tsr_cuda_device_config config = {
        .name = "cuda0", .ordinal = ordinal, .memory_cap = cap, .grace_ns = 100 * MS};
    tsr_device *device = NULL;
    ok(tsr_cuda_device_create(&config, &device));
    return device;
}

static void *alloc(tsr_device *device, size_t bytes)
{
    void *pointer = NULL;
    ok(tsr_device_alloc(device, TSR_MEMORY_OTHER, bytes, "a test", &pointer));
    return pointer;
}

static void fill(unsigned char *bytes, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)((i * 131 + seed) >> 3 ^ i);
}

static void bytes_come_back_as_they_went(void **state)
{
    (void)state;
    machine(2, 64 << 20);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    tsr_device *device = open_device(1, 0);
    /* one piece, several pieces, an odd tail */
    static const size_t sizes[] = {1, 4096, (9 << 20) + 7};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *there = alloc(device, sizes[i]);
        unsigned char *from = malloc(sizes[i]), *to = calloc(1, sizes[i]);
        fill(from, sizes[i], (unsigned)i);
        assert_int_equal((uintptr_t)there % device->alignment, 0);
        ok(tsr_device_upload(device, there, from, sizes[i]));
        ok(tsr_device_download(device, to, there, sizes[i]));
        assert_memory_equal(from, to, sizes[i]);
        tsr_device_free(device, TSR_MEMORY_OTHER, there, sizes[i]);
        free(from);
        free(to);
    }
    int current = -1;
    assert_int_equal(cudaGetDevice(&current), cudaSuccess);
    assert_int_equal(current, 0); /* as it was */
    tsr_device_destroy(device);
    nothing_is_left();
}

static void columns_are_gathered_and_scattered(void **state)
{
    (void)state;
    machine(1, 64 << 20);
    tsr_device *device = open_device(0, 0);
    static const struct {
        size_t width, height, host_stride, device_stride;
    } cases[] = {{34, 100, 340, 34},
                 {34, 100, 34, 64},
                 {100, 3, 101, 128},
                 {5 << 20, 2, (5 << 20) + 3, 5 << 20},
                 {3000, 3000, 6000, 3000}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t w = cases[c].width, h = cases[c].height, hs = cases[c].host_stride,
               ds = cases[c].device_stride;
        unsigned char *from = malloc(hs * h), *to = calloc(hs, h), *there = alloc(device, ds * h);
        fill(from, hs * h, (unsigned)c);
        ok(device->ops->upload(device, there, ds, from, hs, w, h));
        ok(device->ops->download(device, to, hs, there, ds, w, h));
        for (size_t row = 0; row < h; row++) {
            assert_memory_equal(from + row * hs, to + row * hs, w);
            for (size_t i = w; i < hs; i++)
                assert_int_equal(to[row * hs + i], 0); /* the gaps are not touched */
        }
        tsr_device_free(device, TSR_MEMORY_OTHER, there, ds * h);
        free(from);
        free(to);
    }
    ok(device->ops->upload(device, NULL, 0, NULL, 0, 0, 0));
    tsr_device_destroy(device);
    nothing_is_left();
}

static void memory_grows_by_granules_and_reads_as_zero(void **state)
{
    (void)state;
    machine(1, 64 << 20);
    tsr_device *device = open_device(0, 0);
    size_t g = device->granularity, before = cudasim_used(0);
    unsigned char *base = NULL, byte = 0xee, seen = 1, *page = malloc(g);
    ok(device->ops->reserve(device, 4096 * g, (void **)&base)); /* more than the device has */
    assert_int_equal(cudasim_used(0), before);
    ok(device->ops->commit(device, base, 4 * g, 2 * g));
    assert_int_equal(cudasim_used(0), before + 2 * g);
    memset(page, 0xff, g);
    ok(tsr_device_download(device, page, base + 4 * g, g));
    for (size_t i = 0; i < g; i++)
        assert_int_equal(page[i], 0);
    ok(tsr_device_upload(device, base + 5 * g, &byte, 1));
    ok(device->ops->commit(device, base, 5 * g, 2 * g)); /* overlaps: kept */
    ok(tsr_device_download(device, &seen, base + 5 * g, 1));
    assert_int_equal(seen, byte);
    ok(device->ops->decommit(device, base, 4 * g, g));
    assert_int_equal(cudasim_used(0), before + 2 * g);
    ok(device->ops->decommit(device, base, 0, 16 * g)); /* what is not there may go too */
    assert_int_equal(cudasim_used(0), before);
    ok(device->ops->commit(device, base, 5 * g, g));
    ok(tsr_device_download(device, &seen, base + 5 * g, 1));
    assert_int_equal(seen, 0);
    assert_int_equal(device->ops->commit(device, base, 1, g), TSR_ERR_INVALID);
    assert_int_equal(device->ops->commit(device, base, 0, 4097 * g), TSR_ERR_INVALID);
    assert_int_equal(device->ops->commit(device, base, 0, 4096 * g), TSR_ERR_MEMORY); /* and then as before */
    assert_non_null(strstr(tsr_last_error(), "cuda0"));
    assert_int_equal(cudasim_used(0), before + g);
    device->ops->release(device, base, 4096 * g);
    free(page);
    tsr_device_destroy(device);
    nothing_is_left();
}

static void host_memory_is_wrapped_only_where_it_is_fast(void **state)
{
    (void)state;
    static unsigned char weights[3 << 16];
    const void *a = NULL, *b = NULL;
    machine(1, 64 << 20);
    tsr_device *device = open_device(0, 0);
    assert_int_equal(device->ops->wrap(device, weights, 100, &a), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "over the bus"));
    tsr_device_destroy(device);
    nothing_is_left();

    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.integrated = true;
    for (int read_only = 0; read_only < 2; read_only++) {
        config.register_read_only = read_only;
        cudasim_configure(&config);
        device = open_device(0, 0);
        /* Neighbours share a page. */
        ok(device->ops->wrap(device, weights, 5000, &a));
        ok(device->ops->wrap(device, weights + 5000, 60000, &b));
        fill(weights, sizeof weights, 9);
        unsigned char *copy = alloc(device, 60000), *back = malloc(60000);
        ok(tsr_device_copy(device, copy, b, 60000));
        ok(tsr_device_download(device, back, copy, 60000));
        assert_memory_equal(back, weights + 5000, 60000);
        tsr_device_free(device, TSR_MEMORY_OTHER, copy, 60000);
        free(back);
        device->ops->unwrap(device, a, 5000);
        device->ops->unwrap(device, b, 60000);
        tsr_device_destroy(device);
        nothing_is_left();
    }
}

/* -- programs -- */

typedef struct scaling {
    float *x, *y;
    tsr_device_program *program;
} scaling;

static tsr_status make_scaling(tsr_device *device, scaling *s, int n)
{
    tsr_status status = TSR_OK;
    tsr_op ops[2];
    TSR_TRY(tsr_device_alloc(device, TSR_MEMORY_OTHER, (size_t)n * 4, "x", (void **)&s->x));
    TSR_TRY(tsr_device_alloc(device, TSR_MEMORY_OTHER, (size_t)n * 4, "y", (void **)&s->y));
    ops[0] = (tsr_op){.kind = TSR_OP_SCALE, .name = "doubled", .scale = {s->x, s->y, n, 2.0f}};
    ops[1] = (tsr_op){.kind = TSR_OP_ADD, .name = "tripled", .add = {s->y, s->x, s->y, n, 1, false}};
    TSR_TRY(device->ops->program_create(device, ops, 2, &s->program));
out:
    return status;
}

static void drop_scaling(tsr_device *device, scaling *s, int n)
{
    device->ops->program_destroy(device, s->program);
    tsr_device_free(device, TSR_MEMORY_OTHER, s->x, (size_t)n * 4);
    tsr_device_free(device, TSR_MEMORY_OTHER, s->y, (size_t)n * 4);
}

static tsr_status run_scaling(tsr_device *device, const scaling *s, float *values, int n)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_device_upload(device, s->x, values, (size_t)n * 4));
    TSR_TRY(device->ops->launch(device, s->program));
    TSR_TRY(device->ops->synchronize(device, 0));
    TSR_TRY(tsr_device_download(device, values, s->y, (size_t)n * 4));
out:
    return status;
}

static void check_scaling(tsr_device *device, const scaling *s)
{
    float values[300];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 300; i++)
            values[i] = (float)(i - 100 * round);
        ok(run_scaling(device, s, values, 300));
        for (int i = 0; i < 300; i++)
            assert_true(values[i] == 3.0f * (float)(i - 100 * round));
    }
}

static void a_program_is_captured_once_and_replayed(void **state)
{
    (void)state;
    machine(1, 64 << 20);
    tsr_device *device = open_device(0, 0);
    scaling s = {0};
    ok(make_scaling(device, &s, 300));
    uint64_t launches = cudasim_calls_of("cudaLaunchKernel"), graphs = cudasim_calls_of("cudaGraphLaunch");
    check_scaling(device, &s);
    assert_int_equal(cudasim_late_loads(), 0); /* all kernels were loaded before */
    assert_int_equal(cudasim_calls_of("cudaLaunchKernel"), launches);
    assert_int_equal(cudasim_calls_of("cudaGraphLaunch"), graphs + 3);
    drop_scaling(device, &s, 300);
    tsr_device_destroy(device);
    nothing_is_left();
}

static void without_capture_a_program_runs_all_the_same(void **state)
{
    (void)state;
    static const char *const calls[] = {"cudaStreamBeginCapture", "cudaStreamEndCapture",
                                        "cudaGraphInstantiate", "cudaGraphUpload"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        machine(1, 64 << 20);
        tsr_device *device = open_device(0, 0);
        scaling s = {0};
        cudasim_fail_named(calls[i], 1, 0);
        ok(make_scaling(device, &s, 300));
        assert_int_equal(cudasim_faults_hit(), 1);
        check_scaling(device, &s);
        assert_int_equal(cudasim_calls_of("cudaGraphLaunch"), 0);
        drop_scaling(device, &s, 300);
        tsr_device_destroy(device);
        assert_int_equal(cudasim_leaks(stderr), 0);
    }
}

static void a_sum_out_of_range_names_the_op(void **state)
{
    (void)state;
    machine(1, 64 << 20);
    tsr_device *device = open_device(0, 0);
    enum { K = 256 };
    float w[K], x[K];
    for (int i = 0; i < K; i++)
        w[i] = x[i] = 1000.0f;
    float *dw = alloc(device, sizeof w), *dx = alloc(device, sizeof x);
    int64_t *dy = alloc(device, sizeof *dy);
    const tsr_op op = {.kind = TSR_OP_MUL_MAT,
                       .name = "attn_output-3",
                       .mul_mat = {.type = TSR_TYPE_F32,
                                   .w = dw,
                                   .w_stride = sizeof w,
                                   .n_rows = 1,
                                   .k = K,
                                   .x = dx,
                                   .x_stride = K,
                                   .n_tokens = 1,
                                   .partial = true,
                                   .granule = K,
                                   .reduce = TSR_REDUCE_EXACT,
                                   .limit = tsr_fixed_limit(112),
                                   .y = dy,
                                   .y_stride = 1}};
    tsr_device_program *program = NULL;
    ok(tsr_device_upload(device, dw, w, sizeof w));
    ok(tsr_device_upload(device, dx, x, sizeof x));
    ok(device->ops->program_create(device, &op, 1, &program));
    for (int round = 0; round < 2; round++) {
        ok(device->ops->launch(device, program));
        assert_int_equal(device->ops->synchronize(device, 0), TSR_ERR_RANGE);
        assert_non_null(strstr(tsr_last_error(), "cuda0"));
        assert_non_null(strstr(tsr_last_error(), "attn_output-3"));
    }
    x[0] = w[0] = 0;
    for (int i = 1; i < K; i++)
        x[i] = w[i] = 1;
    int64_t sum = 0;
    ok(tsr_device_upload(device, dw, w, sizeof w));
    ok(tsr_device_upload(device, dx, x, sizeof x));
    ok(device->ops->launch(device, program));
    ok(device->ops->synchronize(device, 0));
    ok(tsr_device_download(device, &sum, dy, sizeof sum));
    assert_true(tsr_fixed_to_f32(sum) == 255.0f);
    device->ops->program_destroy(device, program);
    tsr_device_free(device, TSR_MEMORY_OTHER, dw, sizeof w);
    tsr_device_free(device, TSR_MEMORY_OTHER, dx, sizeof x);
    tsr_device_free(device, TSR_MEMORY_OTHER, dy, sizeof *dy);
    tsr_device_destroy(device);
    nothing_is_left();
}

/* Run ops in `parts` programs of as many ops each, and read the result. */
static void run_in_parts(tsr_device *device, const tsr_op *ops, int n_ops, int parts, const float *from,
                         float *result, size_t bytes)
{
    for (int i = 0; i < n_ops; i += n_ops / parts) {
        tsr_device_program *program = NULL;
        ok(device->ops->program_create(device, ops + i, n_ops / parts, &program));
        ok(device->ops->launch(device, program));
        ok(device->ops->synchronize(device, 0));
        device->ops->program_destroy(device, program);
    }
    ok(tsr_device_download(device, result, from, bytes));
}

static tsr_status not_alone(tsr_comm *comm, tsr_device *device, const tsr_op *op, void *stream)
{
    (void)comm;
    (void)device;
    (void)op;
    (void)stream;
    fail_msg("a collective of one device needs no communicator");
    return TSR_OK;
}

/* One with a weight for each of several rows, before a product that would take another, and the sum. */
static void a_norm_that_no_product_takes_is_computed_alone(void **state)
{
    (void)state;
    enum { K = 64, ROWS = 8, N_OPS = 3 };
    float values[3 * K], apart[ROWS], together[ROWS];
    tsr_block_q8_0 w[ROWS * K / TSR_QUANT_BLOCK];
    machine(1, 64 << 20);
    tsr_device *device = open_device(0, 0);
    float *x = alloc(device, sizeof values), *y = alloc(device, sizeof apart);
    void *dw = alloc(device, sizeof w), *parts[] = {alloc(device, sizeof apart)};
    for (int i = 0; i < 3 * K; i++)
        values[i] = (float)(i % 7 - 3);
    for (int r = 0; r < ROWS; r++)
        ok(tsr_type_from_f32(TSR_TYPE_Q8_0, values + r, w + r * K / TSR_QUANT_BLOCK, K));
    ok(tsr_device_upload(device, x, values, sizeof values));
    ok(tsr_device_upload(device, dw, w, sizeof w));
    tsr_collective_desc desc = {.kind = TSR_OP_ALL_REDUCE,
                                .participants = tsr_device_set_one(0),
                                .reduce = TSR_REDUCE_F32,
                                .partial = parts};
    tsr_comm comm = {.ops = &(struct tsr_comm_ops){.kind = "none", .enqueue = not_alone}};
    tsr_collective collective = {.comm = &comm, .desc = &desc};
    const tsr_op ops[N_OPS] = {
        {.kind = TSR_OP_RMS_NORM,
         .rms_norm = {.x = x, .weight = x + K, .n_weights = 2, .y = x + 2 * K, .n = K / 2, .n_rows = 2}},
        {.kind = TSR_OP_MUL_MAT,
         .mul_mat = {.type = TSR_TYPE_Q8_0,
                     .w = dw,
                     .w_stride = sizeof w / ROWS,
                     .n_rows = ROWS,
                     .k = K,
                     .x = x + 2 * K,
                     .x_stride = K,
                     .n_tokens = 1,
                     .partial = true,
                     .reduce = TSR_REDUCE_F32,
                     .y = parts[0],
                     .y_stride = ROWS}},
        {.kind = TSR_OP_ALL_REDUCE, .all_reduce = {.collective = &collective, .y = y, .n = ROWS}}};
    run_in_parts(device, ops, N_OPS, N_OPS, y, apart, sizeof apart);
    run_in_parts(device, ops, N_OPS, 1, y, together, sizeof together);
    assert_memory_equal(together, apart, sizeof apart);
    assert_true(apart[0] != 0.0f);
    tsr_device_free(device, TSR_MEMORY_OTHER, x, sizeof values);
    tsr_device_free(device, TSR_MEMORY_OTHER, y, sizeof apart);
    tsr_device_free(device, TSR_MEMORY_OTHER, dw, sizeof w);
    tsr_device_free(device, TSR_MEMORY_OTHER, parts[0], sizeof apart);
    tsr_device_destroy(device);
    nothing_is_left();
}

/* -- trouble -- */

static void a_cap_is_a_device_of_that_size(void **state)
{
    (void)state;
    cudasim_required("memory of a given size");
    machine(1, 64 << 20);
    tsr_device *device = open_device(0, 10 << 20);
    void *pointer = NULL;
    size_t left, total;
    assert_int_equal(tsr_device_alloc(device, TSR_MEMORY_KV, 11 << 20, "the cache", &pointer),
                     TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "cuda0"));
    assert_null(pointer);
    pointer = alloc(device, 9 << 20);
    ok(tsr_device_memory_info(device, &left, &total));
    assert_int_equal(left, 1 << 20);
    assert_int_equal(total, 10 << 20);
    tsr_device_free(device, TSR_MEMORY_OTHER, pointer, 9 << 20);
    tsr_device_destroy(device);
    device = open_device(0, 0); /* no cap: what is free */
    assert_int_equal(device->ops->alloc(device, TSR_MEMORY_OTHER, 65 << 20, &pointer), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "cuMemCreate"));
    tsr_device_destroy(device);
    nothing_is_left();
}

static void a_stopped_gpu_is_given_up_after_its_grace(void **state)
{
    (void)state;
    machine(1, 64 << 20);
    tsr_device *device = open_device(0, 0);
    scaling s = {0};
    ok(make_scaling(device, &s, 300));
    cudasim_stall_device(0, true);
    ok(device->ops->launch(device, s.program));
    assert_int_equal(device->ops->synchronize(device, 20 * MS), TSR_ERR_TIMEOUT);
    assert_non_null(strstr(tsr_last_error(), "cuda0"));
    assert_int_equal(device->ops->synchronize(device, 0), TSR_ERR_DEVICE_LOST);
    assert_non_null(strstr(tsr_last_error(), "does not respond"));
    float value = 0;
    assert_int_equal(tsr_device_upload(device, s.x, &value, 4), TSR_ERR_DEVICE_LOST);
    drop_scaling(device, &s, 300); /* must not wait either */
    tsr_device_destroy(device);
    cudasim_stall_device(0, false);
}

static void a_poisoned_context_is_a_lost_device(void **state)
{
    (void)state;
    machine(2, 64 << 20);
    tsr_device *device = open_device(0, 0), *other = open_device(1, 0);
    scaling s = {0}, t = {0};
    float values[300] = {0};
    ok(make_scaling(device, &s, 300));
    ok(make_scaling(other, &t, 300));
    cudasim_poison_device(0, cudaErrorIllegalAddress);
    assert_int_equal(run_scaling(device, &s, values, 300), TSR_ERR_DEVICE_LOST);
    assert_non_null(strstr(tsr_last_error(), "device 0"));
    check_scaling(other, &t); /* its context is another one */
    drop_scaling(other, &t, 300);
    drop_scaling(device, &s, 300);
    tsr_device_destroy(device);
    tsr_device_destroy(other);
}

/* Whatever a GPU's context died of; an unknown error is asked about. */
static void every_error_that_poisons_a_context_loses_the_device(void **state)
{
    (void)state;
    static const cudaError_t errors[] = {cudaErrorECCUncorrectable,
                                         cudaErrorNvlinkUncorrectable,
                                         (cudaError_t)226 /* contained */,
                                         cudaErrorIllegalAddress,
                                         cudaErrorLaunchTimeout,
                                         cudaErrorContextIsDestroyed,
                                         cudaErrorAssert,
                                         cudaErrorHardwareStackError,
                                         cudaErrorIllegalInstruction,
                                         cudaErrorMisalignedAddress,
                                         cudaErrorInvalidAddressSpace,
                                         cudaErrorInvalidPc,
                                         cudaErrorLaunchFailure,
                                         (cudaError_t)721 /* leak */,
                                         (cudaError_t)810 /* MPS */,
                                         (cudaError_t)911 /* external device */,
                                         cudaErrorUnknown};
    float bytes[4] = {0};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        machine(1, 64 << 20);
        tsr_device *device = open_device(0, 0);
        float *memory = alloc(device, sizeof bytes);
        assert_int_equal(cudaSetDevice(0), cudaSuccess); /* whose context is queried */
        cudasim_poison_device(0, (int)errors[i]);
        assert_int_equal(tsr_device_upload(device, memory, bytes, sizeof bytes), TSR_ERR_DEVICE_LOST);
        assert_int_equal(tsr_cuda_result(errors[i], "cudaMalloc"), TSR_ERR_DEVICE_LOST);
        assert_int_equal(tsr_cu_result((CUresult)errors[i], "cuMemMap"), TSR_ERR_DEVICE_LOST);
        cudasim_poison_device(0, 0);
        assert_int_equal(tsr_cuda_result(cudaErrorUnknown, "cudaMalloc"), TSR_ERR_DEVICE);
        device->ops->free(device, memory, sizeof bytes);
        tsr_device_destroy(device);
        nothing_is_left();
    }
}

/* The whole life of a device. */
static tsr_status live(void)
{
    tsr_status status = TSR_OK;
    tsr_cuda_device_config config = {.name = "cuda0", .ordinal = 0, .grace_ns = 100 * MS};
    tsr_device *device = NULL;
    scaling s = {0};
    float values[300] = {0};
    void *base = NULL;
    TSR_TRY(tsr_cuda_device_create(&config, &device));
    TSR_TRY(make_scaling(device, &s, 300));
    TSR_TRY(run_scaling(device, &s, values, 300));
    TSR_TRY(device->ops->reserve(device, 16 * device->granularity, &base));
    TSR_TRY(device->ops->commit(device, base, 0, 4 * device->granularity));
    TSR_TRY(tsr_device_copy(device, base, s.x, 300 * 4));
    TSR_TRY(device->ops->decommit(device, base, 0, 2 * device->granularity));
out:
    if (device) {
        char first[512];
        snprintf(first, sizeof first, "%s", tsr_last_error());
        if (base)
            device->ops->release(device, base, 16 * device->granularity);
        drop_scaling(device, &s, 300);
        tsr_device_destroy(device);
        if (status != TSR_OK)
            return tsr_fail(status, "%s", first);
    }
    return status;
}

static void every_call_may_fail(void **state)
{
    (void)state;
    machine(1, 64 << 20);
    ok(live());
    uint64_t n_calls = cudasim_calls(), failed = 0;
    nothing_is_left();
    for (uint64_t call = 0; call < n_calls; call++) {
        machine(1, 64 << 20);
        cudasim_fail_call(call, 0);
        int64_t blocks = failing_alloc_live();
        tsr_status status = live();
        if (status != TSR_OK) {
            failed++;
            const char *text = tsr_last_error(), *name = cudasim_call_name(call);
            if (strcmp(name, "cudaLaunchKernel") == 0)
                name = "_kernel"; /* a launch is named by its kernel */
            if (!strstr(text, "cuda0") || !strstr(text, name))
                fail_msg("call %llu, %s: '%s'", (unsigned long long)call, name, text);
        }
        if (cudasim_leaks(stderr) != 0)
            fail_msg("call %llu, %s, leaves something behind", (unsigned long long)call,
                     cudasim_call_name(call));
        assert_int_equal(failing_alloc_live(), blocks);
    }
    assert_true(failed > 20);
}

static void failing_allocations_leave_nothing_behind(void **state)
{
    (void)state;
    for (int n = 1;; n++) {
        machine(1, 64 << 20);
        int64_t blocks = failing_alloc_live();
        failing_alloc_set(n);
        tsr_status status = live();
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(cudasim_leaks(stderr), 0);
        if (!fired) {
            ok(status);
            assert_true(n > 3);
            break;
        }
        assert_true(status == TSR_ERR_MEMORY || status == TSR_OK); /* OK: the simulation's own */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_come_back_as_they_went),
        cmocka_unit_test(columns_are_gathered_and_scattered),
        cmocka_unit_test(memory_grows_by_granules_and_reads_as_zero),
        cmocka_unit_test(host_memory_is_wrapped_only_where_it_is_fast),
        cmocka_unit_test(a_program_is_captured_once_and_replayed),
        cmocka_unit_test(without_capture_a_program_runs_all_the_same),
        cmocka_unit_test(a_sum_out_of_range_names_the_op),
        cmocka_unit_test(a_norm_that_no_product_takes_is_computed_alone),
        cmocka_unit_test(a_cap_is_a_device_of_that_size),
        cmocka_unit_test(a_stopped_gpu_is_given_up_after_its_grace),
        cmocka_unit_test(a_poisoned_context_is_a_lost_device),
        cmocka_unit_test(every_error_that_poisons_a_context_loses_the_device),
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(failing_allocations_leave_nothing_behind),
    };
    return cmocka_run_group_tests_name("the CUDA device", tests, NULL, NULL);
}
