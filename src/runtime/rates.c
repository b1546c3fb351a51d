/* Measuring the rates of a runtime's devices, with the kernels that models use (rates_work.h has the ops).
 *
 * All devices run concurrently, each driven by a thread of its own for a fixed time. Devices that share a
 * memory bus or a power limit then slow each other down as they do when they share a model. */
#include <tsr/rates.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/mem.h"
#include "core/runtime.h"
#include "runtime/distributed.h"
#include "runtime/rates_work.h"

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
    N_NORMS = 64, /* small ops in a program */
    N_SYNCS = 16, /* all-reduces in a program */
    SYNC_LAUNCHES = 12,
    /* The most ops of a program. */
    MOST_OPS = TSR_RATES_LAYERS * TSR_RATES_EXPERT_OPS > TSR_RATES_SLICES
                   ? TSR_RATES_LAYERS *TSR_RATES_EXPERT_OPS
                   : TSR_RATES_SLICES
};
static const uint64_t WINDOW_NS = 20000000;
static const uint64_t DEADLINE_NS = UINT64_C(60000000000); /* a busy or simulated machine is slow */

/* One device under measurement. */
typedef struct worker {
    tsr_rates_work work;
    tsr_device *device;
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

/* -- products, experts and small ops -- */

/* What a program measures. */
typedef enum quantity {
    READING,        /* all weights, one token */
    PROMPT,         /* many tokens */
    PROMPT_PARTIAL, /* many tokens, sums of the exact reduction */
    PROMPT_BYTES,   /* many tokens, activations of 8 bits */
    SLICES,         /* one token, a small matrix after another */
    EXPERTS,        /* one token, a layer of experts after another */
    PROMPT_EXPERTS, /* many tokens, one layer */
    NORMS           /* of one row */
} quantity;

/* The ops of a program; 0: the device is not measured so. */
static int make_ops(const tsr_rates_work *w, quantity what, tsr_type type, tsr_op ops[MOST_OPS])
{
    int n = 1;
    switch (what) {
    case READING:
        ops[0] = tsr_rates_read(w, type);
        break;
    case PROMPT:
    case PROMPT_PARTIAL:
        ops[0] = tsr_rates_prompt(w, type, what == PROMPT_PARTIAL);
        break;
    case PROMPT_BYTES:
        ops[0] = tsr_rates_prompt(w, type, false);
        ops[0].mul_mat.x_bits = 8;
        break;
    case SLICES:
        n = tsr_rates_n_slices(w, type);
        for (int i = 0; i < n; i++)
            ops[i] = tsr_rates_slice(w, type, i);
        break;
    case EXPERTS:
        n = tsr_rates_n_layers(w, type);
        for (int i = 0; i < n; i++)
            tsr_rates_experts(w, type, 1, i, ops + (ptrdiff_t)i * TSR_RATES_EXPERT_OPS);
        return n * TSR_RATES_EXPERT_OPS;
    case PROMPT_EXPERTS:
        if (tsr_rates_n_layers(w, type) == 0)
            return 0;
        tsr_rates_experts(w, type, w->n_tokens, 0, ops);
        return TSR_RATES_EXPERT_OPS;
    default:
        n = N_NORMS;
        for (int i = 0; i < n; i++)
            ops[i] = tsr_rates_norm(w);
    }
    return n;
}

static void note(const worker *w, quantity what, int index, tsr_device_rates *rates)
{
    const tsr_rates_work *work = &w->work;
    const tsr_type type = types[index];
    const tsr_op_mul_mat read = tsr_rates_read(work, type).mul_mat,
                         prompt = tsr_rates_prompt(work, type, false).mul_mat;
    const double row_bytes = (double)read.w_stride, seconds = w->program_ns * 1e-9;
    const double flops = 2.0 * (double)prompt.n_rows * (double)prompt.k * (double)prompt.n_tokens;
    if (what == READING)
        rates->read_bytes_per_s[index] = (double)read.n_rows * row_bytes / seconds;
    else if (what == PROMPT)
        rates->flops_per_s[index] = flops / seconds;
    else if (what == PROMPT_PARTIAL)
        rates->partial_flops_per_s[index] = flops / seconds;
    else if (what == PROMPT_BYTES)
        rates->byte_flops_per_s[index] = flops / seconds;
    else if (what == SLICES)
        rates->product_ns[index] =
            TSR_MAX(w->program_ns / tsr_rates_n_slices(work, type) -
                        TSR_RATES_COLUMNS * row_bytes / rates->read_bytes_per_s[index] * 1e9,
                    0);
    else if (what == EXPERTS)
        rates->expert_bytes_per_s[index] =
            tsr_rates_n_layers(work, type) * tsr_rates_expert_bytes(type) / seconds;
    else if (what == PROMPT_EXPERTS)
        rates->expert_flops_per_s[index] = 2.0 * tsr_rates_expert_elems() * (double)work->n_tokens / seconds;
    else
        rates->op_ns = w->program_ns / N_NORMS;
}

static tsr_status measure_one(bench *b, quantity what, int index, tsr_device_rates *rates)
{
    tsr_status status = TSR_OK;
    tsr_op ops[MOST_OPS];
    for (int d = 0; d < b->rt->n_devices; d++) {
        worker *w = &b->workers[d];
        int n = w->device->elsewhere ? 0 : make_ops(&w->work, what, types[index], ops);
        if (n == 0)
            continue;
        if (what == EXPERTS)
            TSR_TRY(tsr_rates_route(&w->work, types[index]));
        status = w->device->ops->program_create(w->device, ops, n, &w->program);
        if (status == TSR_ERR_UNSUPPORTED) /* the device has no such kernel */
            status = TSR_OK;
        TSR_TRY(status);
    }
    TSR_TRY(run_all(b));
    for (int d = 0; d < b->rt->n_devices; d++)
        if (b->workers[d].program)
            note(&b->workers[d], what, index, &rates[d]);
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
            partial[slot][d] = b->workers[d].work.partial + slot * TSR_RATES_LARGE_SYNC;
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
                              .all_reduce = {.collective = collectives[i], .y = w->work.y, .n = n}};
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
    TSR_TRY(time_sync(b, TSR_RATES_SYNC, &small_ns));
    TSR_TRY(time_sync(b, TSR_RATES_LARGE_SYNC, &large_ns));
    ns_per_byte = (large_ns - small_ns) / (double)((TSR_RATES_LARGE_SYNC - TSR_RATES_SYNC) * sizeof(int64_t));
    ns_per_byte = TSR_MAX(ns_per_byte, 1e-6); /* noise may make it negative; this is a petabyte per second */
    for (int d = 0; d < b->rt->n_devices; d++) {
        rates[d].sync_bytes_per_s = 1e9 / ns_per_byte;
        rates[d].sync_ns = TSR_MAX(small_ns - ns_per_byte * TSR_RATES_SYNC * sizeof(int64_t), 0);
    }
out:
    return status;
}

/* -- all -- */

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
    if (!wanted) {
        wanted = types;
        n_wanted = TSR_RATE_TYPES;
    }
    TSR_TRY(check_types(rt, wanted, n_wanted));
    TSR_TRY(tsr_mem_array((size_t)rt->n_devices, sizeof *b.workers, "measuring devices", &b.workers));
    TSR_TRY(tsr_mem_array((size_t)rt->n_devices, sizeof *rates, "measuring devices", &rates));
    for (int d = 0; d < rt->n_devices; d++) {
        b.workers[d].device = rt->devices[d];
        TSR_TRY(tsr_rates_work_open(&b.workers[d].work, rt->devices[d], rt->n_devices > 1));
    }
    for (int i = 0; i < n_wanted; i++)
        for (quantity what = READING; what < NORMS; what++)
            TSR_TRY(measure_one(&b, what, tsr_rate_index(wanted[i]), rates));
    TSR_TRY(measure_one(&b, NORMS, 0, rates));
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
            tsr_rates_work_close(&b.workers[d].work);
    tsr_mem_free(b.workers);
    tsr_mem_free(rates);
    return status;
}

tsr_status tsr_runtime_measure(tsr_runtime *rt, const tsr_type *wanted, int n_wanted,
                               tsr_device_rates *rates_out)
{
    return tsr_processes_agree(rt->processes, measure(rt, wanted, n_wanted, rates_out),
                               "tsr_runtime_measure");
}
