/* Measuring the rates of a runtime's devices, with the kernels that models use.
 *
 * All devices run concurrently, each driven by a thread of its own for a fixed time. Devices that share a
 * memory bus or a power limit then slow each other down as they do when they share a model. All bytes of
 * the weights are equal. In every type this gives small normal numbers, and no kernel's speed depends on
 * the values. */
#include <tsr/rates.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/mem.h"
#include "core/runtime.h"
#include "runtime/distributed.h"

static const tsr_type types[TSR_RATE_TYPES] = {TSR_TYPE_F32,  TSR_TYPE_F16,  TSR_TYPE_BF16,
                                               TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, TSR_TYPE_Q4_K,
                                               TSR_TYPE_Q5_K, TSR_TYPE_Q6_K, TSR_TYPE_IQ2_XS};

int tsr_rate_index(tsr_type type)
{
    for (int i = 0; i < TSR_RATE_TYPES; i++)
        if (types[i] == type)
            return i;
    return -1;
}

tsr_type tsr_rate_type(int index)
{
    return types[index];
}

enum {
    WEIGHT_BYTE = 0x2c, /* F16 0.065, F32 2.4e-12; scales of blocks are F16 */
    COLUMNS = 4096,
    TOKENS = 64,          /* of a product with many tokens */
    PROMPT_ROWS = 256,    /* its rows */
    N_EMPTY = 64,         /* ops of one element in a program */
    N_SYNCS = 16,         /* all-reduces in a program */
    SYNC_ELEMENTS = 4096, /* of a small all-reduce: the activations of one token */
    LARGE_SYNC = SYNC_ELEMENTS * 64,
    SYNC_LAUNCHES = 12
};
static const size_t HOST_BYTES = (size_t)64 << 20, GPU_BYTES = (size_t)512 << 20; /* beyond the caches */
static const uint64_t WINDOW_NS = 20000000;
static const uint64_t DEADLINE_NS = UINT64_C(60000000000); /* a busy or simulated machine is slow */

/* One device under measurement. */
typedef struct worker {
    tsr_device *device;
    unsigned char *weights; /* [weight_bytes] */
    size_t weight_bytes;
    float *x;         /* [TOKENS][COLUMNS] */
    float *y;         /* the largest result */
    int64_t *partial; /* [2][LARGE_SYNC], NULL for a single device */
    size_t y_bytes;
    tsr_device_program *program; /* NULL: the device has no such kernel */
    int n_launches;              /* number of launches; 0: until WINDOW_NS have passed */
    double program_ns;           /* result: time of one launch */
    pthread_t thread;
    bool started;
    tsr_status status;
    char message[256];
} worker;

typedef struct bench {
    tsr_runtime *rt;
    worker *workers; /* [rt->n_devices] */
} bench;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* -- running -- */

static tsr_status run_once(worker *w)
{
    tsr_status status = w->device->ops->launch(w->device, w->program);
    return status == TSR_OK ? w->device->ops->synchronize(w->device, DEADLINE_NS) : status;
}

static void *drive(void *user)
{
    worker *w = user;
    int n = 0;
    uint64_t start, end;
    w->status = run_once(w); /* warm-up of caches and page tables */
    start = end = now_ns();
    while (w->status == TSR_OK && (w->n_launches ? n < w->n_launches : n < 2 || end - start < WINDOW_NS)) {
        w->status = run_once(w);
        end = now_ns();
        n++;
    }
    w->program_ns = n ? (double)(end - start) / n : 0;
    if (w->status != TSR_OK) /* the error text is stored per thread */
        snprintf(w->message, sizeof w->message, "%s", tsr_last_error());
    return NULL;
}

/* Run the programs of all devices that have one, concurrently. */
static tsr_status run_all(bench *b)
{
    tsr_status status = TSR_OK;
    int n = b->rt->n_devices;
    for (int d = 0; d < n; d++) {
        worker *w = &b->workers[d];
        if (!w->program)
            continue;
        if (pthread_create(&w->thread, NULL, drive, w) != 0) {
            status =
                tsr_fail(TSR_ERR_MEMORY, "device %s: cannot start a thread for measuring", w->device->name);
            b->rt->comm->ops->abort(b->rt->comm); /* other devices may wait for this one */
            break;
        }
        w->started = true;
    }
    for (int d = 0; d < n; d++) {
        worker *w = &b->workers[d];
        if (!w->started)
            continue;
        pthread_join(w->thread, NULL);
        w->started = false;
        if (status == TSR_OK && w->status != TSR_OK)
            status = tsr_fail(w->status, "measuring device %s: %s", w->device->name, w->message);
    }
    if (status != TSR_OK)
        tsr_comm_reset(b->rt->comm, b->rt->watch);
    return status;
}

static void drop_programs(bench *b)
{
    for (int d = 0; d < b->rt->n_devices; d++) {
        worker *w = &b->workers[d];
        if (w->program)
            w->device->ops->program_destroy(w->device, w->program);
        w->program = NULL;
        w->n_launches = 0;
    }
}

/* -- products and empty ops -- */

static tsr_op product(const worker *w, tsr_type type, int64_t n_rows, int64_t n_tokens)
{
    size_t stride = tsr_type_row_bytes(type, COLUMNS);
    return (tsr_op){.kind = TSR_OP_MUL_MAT,
                    .name = "measuring",
                    .mul_mat = {.type = type,
                                .w = w->weights,
                                .w_stride = stride,
                                .n_rows = n_rows,
                                .k = COLUMNS,
                                .x = w->x,
                                .x_stride = COLUMNS,
                                .n_tokens = n_tokens,
                                .y = w->y,
                                .y_stride = n_rows}};
}

/* Rows of a type that fill the weights and whose products for one token fit into y. */
static int64_t rows_of(const worker *w, tsr_type type)
{
    int64_t rows = (int64_t)(w->weight_bytes / tsr_type_row_bytes(type, COLUMNS));
    return TSR_MIN(rows, (int64_t)(w->y_bytes / sizeof(float)));
}

static tsr_status measure_type(bench *b, int index, bool prompt, tsr_device_rates *rates)
{
    tsr_status status = TSR_OK;
    tsr_type type = types[index];
    for (int d = 0; d < b->rt->n_devices; d++) {
        worker *w = &b->workers[d];
        if (w->device->elsewhere)
            continue;
        tsr_op op = product(w, type, prompt ? PROMPT_ROWS : rows_of(w, type), prompt ? TOKENS : 1);
        status = w->device->ops->program_create(w->device, &op, 1, &w->program);
        if (status == TSR_ERR_UNSUPPORTED)
            status = TSR_OK;
        TSR_TRY(status);
    }
    TSR_TRY(run_all(b));
    for (int d = 0; d < b->rt->n_devices; d++) {
        worker *w = &b->workers[d];
        double bytes = (double)rows_of(w, type) * (double)tsr_type_row_bytes(type, COLUMNS);
        if (w->program && prompt)
            rates[d].flops_per_s[index] = 2.0 * PROMPT_ROWS * COLUMNS * TOKENS / w->program_ns * 1e9;
        else if (w->program)
            rates[d].read_bytes_per_s[index] = bytes / w->program_ns * 1e9;
    }
out:
    drop_programs(b);
    return status;
}

static tsr_status measure_empty(bench *b, tsr_device_rates *rates)
{
    tsr_status status = TSR_OK;
    tsr_op ops[N_EMPTY];
    for (int d = 0; d < b->rt->n_devices; d++) {
        worker *w = &b->workers[d];
        if (w->device->elsewhere)
            continue;
        for (int i = 0; i < N_EMPTY; i++)
            ops[i] = (tsr_op){.kind = TSR_OP_SCALE,
                              .name = "measuring",
                              .scale = {.x = w->x, .y = w->y, .n = 1, .factor = 1}};
        TSR_TRY(w->device->ops->program_create(w->device, ops, N_EMPTY, &w->program));
    }
    TSR_TRY(run_all(b));
    for (int d = 0; d < b->rt->n_devices; d++)
        rates[d].op_ns = b->workers[d].program_ns / N_EMPTY;
out:
    drop_programs(b);
    return status;
}

/* -- all-reduces -- */

static tsr_status make_collectives(bench *b, int64_t n, tsr_collective **collectives)
{
    tsr_status status = TSR_OK;
    void *partial[2][TSR_MAX_DEVICES];
    int n_devices = b->rt->n_devices;
    tsr_device_set everyone = tsr_device_set_all(n_devices);
    for (int d = 0; d < n_devices; d++)
        for (int slot = 0; slot < 2; slot++) /* alternating: a slow reader may still read the previous
                                              * one's */
            partial[slot][d] = b->workers[d].partial + slot * LARGE_SYNC;
    for (int i = 0; i < N_SYNCS; i++) {
        tsr_collective_desc desc = {.kind = TSR_OP_ALL_REDUCE,
                                    .participants = everyone,
                                    .contributors = everyone,
                                    .reduce = TSR_REDUCE_EXACT,
                                    .n = n,
                                    .partial = partial[i % 2],
                                    .name = "measuring"};
        TSR_TRY(b->rt->comm->ops->collective_create(b->rt->comm, &desc, &collectives[i]));
    }
out:
    return status;
}

/* Nanoseconds of one all-reduce of n elements, by the slowest device. */
static tsr_status time_sync(bench *b, int64_t n, double *ns_out)
{
    tsr_status status = TSR_OK;
    tsr_collective *collectives[N_SYNCS] = {NULL};
    tsr_device_program *programs[TSR_MAX_DEVICES] = {NULL};
    tsr_op ops[N_SYNCS];
    double slowest = 0;
    TSR_TRY(make_collectives(b, n, collectives));
    for (int d = 0; d < b->rt->n_devices; d++) {
        worker *w = &b->workers[d];
        if (w->device->elsewhere)
            continue;
        for (int i = 0; i < N_SYNCS; i++)
            ops[i] = (tsr_op){.kind = TSR_OP_ALL_REDUCE,
                              .name = "measuring",
                              .all_reduce = {.collective = collectives[i], .y = w->y, .n = n}};
        TSR_TRY(w->device->ops->program_create(w->device, ops, N_SYNCS, &w->program));
        w->n_launches = SYNC_LAUNCHES;
        programs[d] = w->program;
    }
    TSR_TRY(tsr_comm_prepare(b->rt->comm, b->rt->devices, programs, b->rt->n_devices, DEADLINE_NS));
    TSR_TRY(run_all(b));
    for (int d = 0; d < b->rt->n_devices; d++)
        slowest = TSR_MAX(slowest, b->workers[d].program_ns);
    *ns_out = slowest / N_SYNCS;
out:
    drop_programs(b);
    for (int i = 0; i < N_SYNCS; i++)
        tsr_collective_destroy(b->rt->comm, collectives[i], b->rt->watch);
    return status;
}

static tsr_status measure_sync(bench *b, tsr_device_rates *rates)
{
    tsr_status status = TSR_OK;
    double small_ns, large_ns, ns_per_byte;
    TSR_TRY(time_sync(b, SYNC_ELEMENTS, &small_ns));
    TSR_TRY(time_sync(b, LARGE_SYNC, &large_ns));
    ns_per_byte = (large_ns - small_ns) / (double)((LARGE_SYNC - SYNC_ELEMENTS) * sizeof(int64_t));
    ns_per_byte = TSR_MAX(ns_per_byte, 1e-6); /* noise may make it negative; this is a petabyte per second */
    for (int d = 0; d < b->rt->n_devices; d++) {
        rates[d].sync_bytes_per_s = 1e9 / ns_per_byte;
        rates[d].sync_ns = TSR_MAX(small_ns - ns_per_byte * SYNC_ELEMENTS * sizeof(int64_t), 0);
    }
out:
    return status;
}

/* -- memory -- */

static void free_worker(worker *w)
{
    size_t partial = 2 * (size_t)LARGE_SYNC * sizeof(int64_t);
    if (w->weights)
        tsr_device_free(w->device, TSR_MEMORY_OTHER, w->weights, w->weight_bytes);
    if (w->x)
        tsr_device_free(w->device, TSR_MEMORY_OTHER, w->x, TOKENS * COLUMNS * sizeof(float));
    if (w->y)
        tsr_device_free(w->device, TSR_MEMORY_OTHER, w->y, w->y_bytes);
    if (w->partial)
        tsr_device_free(w->device, TSR_MEMORY_COMM, w->partial, partial);
}

/* Fill device memory with copies of chunk[COLUMNS * 4]. */
static tsr_status fill(tsr_device *device, void *memory, size_t bytes, const void *chunk)
{
    tsr_status status = TSR_OK;
    size_t most = COLUMNS * sizeof(float);
    for (size_t at = 0; at < bytes; at += most)
        TSR_TRY(tsr_device_upload(device, (char *)memory + at, chunk, TSR_MIN(most, bytes - at)));
out:
    return status;
}

static tsr_status open_worker(worker *w, tsr_device *device, bool with_partials, const void *chunk)
{
    tsr_status status = TSR_OK;
    const char *what = "measuring";
    size_t partial = 2 * (size_t)LARGE_SYNC * sizeof(int64_t), used = tsr_device_used(device), left;
    w->device = device;
    w->y_bytes = (size_t)LARGE_SYNC * sizeof(float);
    w->weight_bytes = device->n_threads ? HOST_BYTES : GPU_BYTES;
    left = device->memory_cap > used ? device->memory_cap - used : 0;
    w->weight_bytes = TSR_MIN(w->weight_bytes, left / 2) / 4096 * 4096;
    if (w->weight_bytes < (size_t)4 << 20)
        return tsr_fail(TSR_ERR_MEMORY, "device %s: %zu free bytes are too few for measuring", device->name,
                        left);
    TSR_TRY(tsr_device_alloc(device, TSR_MEMORY_OTHER, w->weight_bytes, what, (void **)&w->weights));
    TSR_TRY(
        tsr_device_alloc(device, TSR_MEMORY_OTHER, TOKENS * COLUMNS * sizeof(float), what, (void **)&w->x));
    TSR_TRY(tsr_device_alloc(device, TSR_MEMORY_OTHER, w->y_bytes, what, (void **)&w->y));
    if (with_partials) {
        TSR_TRY(tsr_device_alloc(device, TSR_MEMORY_COMM, partial, what, (void **)&w->partial));
        TSR_TRY(fill(device, w->partial, partial, chunk));
    }
    TSR_TRY(fill(device, w->weights, w->weight_bytes, chunk));
    TSR_TRY(fill(device, w->x, TOKENS * COLUMNS * sizeof(float), chunk));
out:
    return status;
}

/* Processes that measure different types would not make the same steps. */
static tsr_status check_types(const tsr_runtime *rt, const tsr_type *wanted, int n_wanted)
{
    tsr_status status = TSR_OK;
    uint64_t mark = 0;
    for (int i = 0; i < n_wanted && status == TSR_OK; i++) {
        mark = mark * 31 + (uint64_t)wanted[i] + 1;
        if (tsr_rate_index(wanted[i]) < 0)
            status =
                tsr_fail(TSR_ERR_INVALID, "weights of type %s cannot be measured", tsr_type_name(wanted[i]));
    }
    return tsr_processes_agree_on(rt->processes, status, "the start of tsr_runtime_measure", mark);
}

static tsr_status measure(tsr_runtime *rt, const tsr_type *wanted, int n_wanted, tsr_device_rates *rates_out)
{
    tsr_status status = TSR_OK;
    bench b = {.rt = rt};
    tsr_device_rates *rates = NULL;
    unsigned char *chunk = NULL;
    if (!wanted) {
        wanted = types;
        n_wanted = TSR_RATE_TYPES;
    }
    TSR_TRY(check_types(rt, wanted, n_wanted));
    TSR_TRY(tsr_mem_array((size_t)rt->n_devices, sizeof *b.workers, "measuring devices", &b.workers));
    TSR_TRY(tsr_mem_array((size_t)rt->n_devices, sizeof *rates, "measuring devices", &rates));
    TSR_TRY(tsr_mem_array(COLUMNS, sizeof(float), "measuring devices", &chunk));
    memset(chunk, WEIGHT_BYTE, COLUMNS * sizeof(float));
    for (int d = 0; d < rt->n_devices; d++)
        TSR_TRY(open_worker(&b.workers[d], rt->devices[d], rt->n_devices > 1, chunk));
    for (int i = 0; i < n_wanted; i++) {
        TSR_TRY(measure_type(&b, tsr_rate_index(wanted[i]), false, rates));
        TSR_TRY(measure_type(&b, tsr_rate_index(wanted[i]), true, rates));
    }
    TSR_TRY(measure_empty(&b, rates));
    if (rt->n_devices > 1)
        TSR_TRY(measure_sync(&b, rates));
    for (int d = 0; d < rt->n_devices; d++) {
        rates[d].measured = true;
        rates[d].measured_at = (int64_t)time(NULL);
    }
    TSR_TRY(tsr_distributed_share_rates(rt, rates));
    memcpy(rates_out, rates, (size_t)rt->n_devices * sizeof *rates);
out:
    for (int d = 0; b.workers && d < rt->n_devices; d++)
        if (b.workers[d].device)
            free_worker(&b.workers[d]);
    tsr_mem_free(b.workers);
    tsr_mem_free(rates);
    tsr_mem_free(chunk);
    return status;
}

tsr_status tsr_runtime_measure(tsr_runtime *rt, const tsr_type *wanted, int n_wanted,
                               tsr_device_rates *rates_out)
{
    return tsr_processes_agree(rt->processes, measure(rt, wanted, n_wanted, rates_out),
                               "tsr_runtime_measure");
}
