/* What memory and launches of a GPU cost:
 *
 *     build/bench/cuda_memory [DEVICE] [GIB]             (default: cuda:0, 2 GiB)
 *
 * Upload: weights of GIB in host memory, as a model's file has them when it is cached, to the GPU: by the
 * loader with all its threads, and by one thread, whole tensors and the first columns of every row, as a
 * split by columns has them. KV growth: committing granules one by one and 32 at once, zeroing waited for; a
 * granule holds what the line says of an 8B-shaped model's KV in F16. Launch: a captured program of one, and
 * of 400 empty-handed ops (about a decode step's), from launch to its end.
 *
 * Medians and the middle half over ROUNDS. On a machine without a usable GPU it says so and succeeds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/runtime.h>

#include "alloc/buffer/buffer.h"
#include "alloc/buffer/tensor.h"
#include "core/event.h"
#include "core/mem.h"
#include "core/runtime.h"
#include "support/measured.h"
#include "support/opened.h"

enum { ROUNDS = 31, UPLOAD_ROUNDS = 5, ROWS = 4096, COLUMNS = 8192, MAX_TENSORS = 4096, MANY_OPS = 400 };

/* Sorts the times. */
static void report(const char *what, double *values, int n, const char *unit)
{
    const double middle = bench_median(values, n);
    printf("%-44s %9.2f %-4s [%.2f, %.2f]\n", what, middle, unit, values[n / 4], values[3 * n / 4]);
}

static double seconds_since(uint64_t start)
{
    return 1e-9 * (double)(tsr_clock_ns() - start);
}

/* A download waits for what was put on the device before. */
static void settle(tsr_device *device, const void *there)
{
    unsigned char byte;
    bench_check(tsr_device_download(device, &byte, there, 1));
}

/* -- upload -- */

/* F16 tensors over one host buffer. */
typedef struct weights {
    int n;
    size_t bytes; /* of a tensor */
    unsigned char *data;
    tsr_tensor tensors[MAX_TENSORS], *pointers[MAX_TENSORS];
    tsr_placement placements[MAX_TENSORS];
    const void *sources[MAX_TENSORS];
} weights;

static void make_weights(weights *w, tsr_runtime *rt, double gib)
{
    const int64_t ne[4] = {COLUMNS, ROWS, 1, 1};
    w->bytes = (size_t)ROWS * COLUMNS * 2;
    w->n = (int)(gib * 0x1p30 / (double)w->bytes);
    w->n = TSR_MIN(TSR_MAX(w->n, 1), MAX_TENSORS);
    w->data = malloc((size_t)w->n * w->bytes);
    if (!w->data) {
        fprintf(stderr, "cuda_memory: no host memory for %d tensors of %zu bytes\n", w->n, w->bytes);
        exit(1);
    }
    memset(w->data, 0x3c, (size_t)w->n * w->bytes);
    for (int i = 0; i < w->n; i++) {
        bench_check(tsr_tensor_init(&w->tensors[i], rt, TSR_TYPE_F16, ne, "weight"));
        w->pointers[i] = &w->tensors[i];
        w->sources[i] = w->data + (size_t)i * w->bytes;
    }
}

/* The loader's way: all tensors into one allocation, which is part of the time. */
static void time_loader(tsr_runtime *rt, weights *w)
{
    double rates[UPLOAD_ROUNDS];
    for (int i = 0; i < w->n; i++)
        w->placements[i] = (tsr_placement){.sharding = TSR_SHARDING_REPLICATED, .devices = 1};
    for (int r = -1; r < UPLOAD_ROUNDS; r++) { /* the first one warms up */
        tsr_buffer *buffer;
        uint64_t start = tsr_clock_ns();
        const tsr_buffer_load_config config = {.flags = TSR_LOAD_COPY, .owner = TSR_MEMORY_WEIGHTS};
        bench_check(tsr_buffer_load(rt, w->pointers, w->placements, w->sources, w->n, &config, &buffer));
        settle(rt->devices[0], w->tensors[w->n - 1].shards[0].data);
        rates[r < 0 ? 0 : r] = 1e-9 * (double)w->n * (double)w->bytes / seconds_since(start);
        tsr_buffer_destroy(buffer);
    }
    report("upload by the loader", rates, UPLOAD_ROUNDS, "GB/s");
}

/* One thread, the first width bytes of the first n_rows rows of each tensor. */
static void time_part(tsr_device *device, const weights *w, const char *what, size_t width, size_t n_rows)
{
    double rates[UPLOAD_ROUNDS];
    void *there;
    bench_check(tsr_device_alloc(device, TSR_MEMORY_OTHER, width * n_rows, "a part", &there));
    for (int r = -1; r < UPLOAD_ROUNDS; r++) {
        uint64_t start = tsr_clock_ns();
        for (int i = 0; i < w->n; i++)
            bench_check(device->ops->upload(device, there, width, w->sources[i], COLUMNS * 2, width, n_rows));
        settle(device, there);
        rates[r < 0 ? 0 : r] = 1e-9 * (double)w->n * (double)(width * n_rows) / seconds_since(start);
    }
    tsr_device_free(device, TSR_MEMORY_OTHER, there, width * n_rows);
    report(what, rates, UPLOAD_ROUNDS, "GB/s");
}

/* -- growth -- */

static void time_commits(tsr_device *device, size_t n_granules)
{
    char what[80];
    double us[ROUNDS];
    size_t bytes = n_granules * device->granularity;
    unsigned char *base;
    bench_check(device->ops->reserve(device, (ROUNDS + 1) * bytes, (void **)&base));
    for (int r = -1; r < ROUNDS; r++) {
        size_t offset = (size_t)(r + 1) * bytes;
        uint64_t start = tsr_clock_ns();
        bench_check(device->ops->commit(device, base, offset, bytes));
        settle(device, base + offset);
        us[r < 0 ? 0 : r] = 1e6 * seconds_since(start);
    }
    device->ops->release(device, base, (ROUNDS + 1) * bytes);
    /* 32 layers x 8 KV heads x 128 elements x 2 bytes, keys and values. */
    snprintf(what, sizeof what, "commit %zu KiB (%.0f tokens of 8B)", bytes >> 10,
             (double)bytes / (32 * 8 * 128 * 2 * 2));
    report(what, us, ROUNDS, "us");
}

/* -- launches -- */

static void time_launches(tsr_device *device, int n_ops)
{
    char what[80];
    double us[ROUNDS];
    tsr_op ops[MANY_OPS];
    tsr_device_program *program;
    float *x;
    bench_check(tsr_device_alloc(device, TSR_MEMORY_OTHER, 4096, "a vector", (void **)&x));
    for (int i = 0; i < n_ops; i++)
        ops[i] = (tsr_op){.kind = TSR_OP_SCALE, .name = "one", .scale = {x, x, 1, 1.0f}};
    uint64_t begin = tsr_clock_ns();
    bench_check(device->ops->program_create(device, ops, n_ops, &program));
    double create_ms = 1e3 * seconds_since(begin);
    for (int r = -3; r < ROUNDS; r++) {
        uint64_t start = tsr_clock_ns();
        bench_check(device->ops->launch(device, program));
        bench_check(device->ops->synchronize(device, 0));
        us[r < 0 ? 0 : r] = 1e6 * seconds_since(start);
    }
    device->ops->program_destroy(device, program);
    tsr_device_free(device, TSR_MEMORY_OTHER, x, 4096);
    snprintf(what, sizeof what, "launch of %d op%s (captured in %.1f ms)", n_ops, n_ops == 1 ? "" : "s",
             create_ms);
    report(what, us, ROUNDS, "us");
}

int main(int argc, char **argv)
{
    static weights w;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt;
    tsr_device_info info;
    config.devices = argc > 1 ? argv[1] : "cuda:0";
    tsr_status status = tsr_runtime_open(&config, &rt);
    if (status == TSR_ERR_UNSUPPORTED || status == TSR_ERR_NOT_FOUND) {
        printf("cuda_memory: nothing measured: %s\n", tsr_last_error());
        return 0;
    }
    bench_check(status);
    bench_check(tsr_runtime_device(rt, 0, &info));
    printf("%s, %zu bytes may be used, growth in %zu bytes\n", info.name, info.memory_cap,
           rt->devices[0]->granularity);
    make_weights(&w, rt, argc > 2 ? atof(argv[2]) : 2);
    time_loader(rt, &w);
    time_part(rt->devices[0], &w, "one thread, whole tensors", COLUMNS * 2, ROWS);
    time_part(rt->devices[0], &w, "one thread, a quarter of the columns", COLUMNS / 2, ROWS);
    time_part(rt->devices[0], &w, "one thread, 64 columns", 128, ROWS);
    time_commits(rt->devices[0], 1);
    time_commits(rt->devices[0], 32);
    time_launches(rt->devices[0], 1);
    time_launches(rt->devices[0], MANY_OPS);
    free(w.data);
    tsr_runtime_close(rt);
    return 0;
}
