/* Latency of the all-reduce by size, for each implementation that serves the devices:
 *
 *     build/bench/all_reduce [--small] [--only KIND] [--devices SPEC]
 *
 * Default: GPUs, or a few shapes of host devices. KIND: one implementation instead of all, as tsr/runtime.h
 * names them: "peer", "peer two-shot", "peer push", "pinned", "nccl", "staged".
 *
 * Devices do nothing but all-reduces, back to back, as many per program as a model of 32 dense layers has,
 * with two buffers in turn as a program has them. Per implementation, kind of sum and size: best, median and
 * slowest tenth (p90) over launches of the time per all-reduce, starting and waiting for the devices
 * included. "op" is what an op costs that does nothing. The largest sum is that of a prompt of 512 tokens and
 * 4096 columns; --small leaves all but the smallest out, to see that it works. Bandwidths are those of
 * nccl-tests: algbw is one partial's bytes over the median, busbw is that times 2 (n - 1) / n. Host devices
 * with more threads than processors wait by sleeping: expect tens of microseconds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/runtime.h>

#include "comm/select.h"
#include "comm/probe.h"
#include "core/event.h"
#include "core/runtime.h"
#include "support/measured.h"
#include "support/opened.h"

enum { MAX_RANKS = 64, PER_PROGRAM = 64, LAUNCHES = 40, WARM_UP = 5, N_SMALL = 2 };

static const int64_t sizes[] = {0, 64, 512, 4096, 16384, 65536, 524288, 2097152};

enum { N_SIZES = sizeof sizes / sizeof *sizes };

typedef struct bench {
    tsr_runtime *rt;
    tsr_comm *comm; /* the implementation that is measured */
    int n_sizes;
    int n_ops;
    tsr_device_program *programs[MAX_RANKS];
    tsr_collective *collectives[PER_PROGRAM];
    void *partial[2][MAX_RANKS];
    float *y[MAX_RANKS];
} bench;

/* -- programs -- */

static void *zeros(tsr_device *device, size_t bytes)
{
    void *there = NULL, *here = calloc(1, bytes);
    if (!here)
        exit(1);
    bench_check(device->ops->alloc(device, TSR_MEMORY_COMM, bytes, &there));
    bench_check(tsr_device_upload(device, there, here, bytes));
    free(here);
    return there;
}

static tsr_collective *make_collective(bench *b, int k, tsr_reduce_type reduce, int64_t n)
{
    uint64_t all = b->rt->n_devices == 64 ? UINT64_MAX : ((uint64_t)1 << b->rt->n_devices) - 1;
    tsr_collective *made = NULL;
    const tsr_collective_desc desc = {.kind = TSR_OP_ALL_REDUCE,
                                      .participants = all,
                                      .contributors = all,
                                      .reduce = reduce,
                                      .n = n,
                                      .partial = b->partial[k % 2],
                                      .name = "sum"};
    bench_check(b->comm->ops->collective_create(b->comm, &desc, &made));
    return made;
}

/* Fewer of the large ones, which need no averaging: a launch takes some 16 MiB at most. */
static int ops_for(const bench *b, int64_t n)
{
    if (b->n_sizes == N_SMALL)
        return 2;
    int64_t fit = n > 0 ? ((int64_t)16 << 20) / (n * (int64_t)sizeof(int64_t)) : PER_PROGRAM;
    return (int)(fit < 1 ? 1 : fit < PER_PROGRAM ? fit : PER_PROGRAM);
}

/* All-reduces of n elements; n 0: ops that do nothing. */
static void compile(bench *b, tsr_reduce_type reduce, int64_t n)
{
    tsr_op ops[PER_PROGRAM];
    b->n_ops = ops_for(b, n);
    for (int d = 0; d < b->rt->n_devices; d++) {
        for (int slot = 0; slot < 2; slot++)
            b->partial[slot][d] = zeros(b->rt->devices[d], (size_t)(n + 1) * sizeof(int64_t));
        b->y[d] = zeros(b->rt->devices[d], (size_t)(n + 1) * sizeof(float));
    }
    for (int k = 0; k < b->n_ops; k++)
        b->collectives[k] = n > 0 ? make_collective(b, k, reduce, n) : NULL;
    for (int d = 0; d < b->rt->n_devices; d++) {
        for (int k = 0; k < b->n_ops; k++) {
            if (n == 0)
                ops[k] = (tsr_op){.kind = TSR_OP_SCALE, .name = "nothing", .scale = {b->y[d], b->y[d], 0, 1}};
            else
                ops[k] = (tsr_op){.kind = TSR_OP_ALL_REDUCE,
                                  .name = "sum",
                                  .all_reduce = {b->collectives[k], NULL, b->y[d], n}};
        }
        bench_check(
            b->rt->devices[d]->ops->program_create(b->rt->devices[d], ops, b->n_ops, &b->programs[d]));
    }
}

static void discard(bench *b, int64_t n)
{
    size_t partial_bytes = (size_t)(n + 1) * sizeof(int64_t), y_bytes = (size_t)(n + 1) * sizeof(float);
    for (int d = 0; d < b->rt->n_devices; d++) {
        tsr_device *device = b->rt->devices[d];
        device->ops->program_destroy(device, b->programs[d]);
        for (int slot = 0; slot < 2; slot++)
            device->ops->free(device, b->partial[slot][d], partial_bytes);
        device->ops->free(device, b->y[d], y_bytes);
    }
    for (int k = 0; k < b->n_ops && n > 0; k++)
        b->comm->ops->collective_destroy(b->comm, b->collectives[k]);
}

/* -- measuring -- */

/* Microseconds per op, sorted. */
static void measure(bench *b, double us[LAUNCHES])
{
    for (int i = -WARM_UP; i < LAUNCHES; i++) {
        uint64_t start = tsr_clock_ns();
        for (int d = 0; d < b->rt->n_devices; d++)
            bench_check(b->rt->devices[d]->ops->launch(b->rt->devices[d], b->programs[d]));
        for (int d = 0; d < b->rt->n_devices; d++)
            bench_check(b->rt->devices[d]->ops->synchronize(b->rt->devices[d], 0));
        if (i >= 0)
            us[i] = (double)(tsr_clock_ns() - start) / 1000.0 / b->n_ops;
    }
    (void)bench_median(us, LAUNCHES);
}

static void measure_sizes(bench *b, tsr_reduce_type reduce)
{
    bool exact = reduce == TSR_REDUCE_EXACT;
    int ranks = b->rt->n_devices;
    for (int s = exact ? 0 : 1; s < b->n_sizes; s++) {
        double us[LAUNCHES];
        double bytes = (double)sizes[s] * (exact ? sizeof(int64_t) : sizeof(float));
        compile(b, reduce, sizes[s]);
        measure(b, us);
        discard(b, sizes[s]);
        double algbw = bytes / us[LAUNCHES / 2] / 1000.0;
        printf("%-14s %5d %6s %8lld %9.2f %9.2f %9.2f %9.2f %9.2f\n", b->comm->ops->kind, ranks,
               sizes[s] == 0 ? "op"
               : exact       ? "exact"
                             : "f32",
               (long long)sizes[s], us[0], us[LAUNCHES / 2], us[LAUNCHES * 9 / 10], algbw,
               algbw * 2 * (ranks - 1) / ranks);
    }
}

static void warn(tsr_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == TSR_LOG_WARN)
        fprintf(stderr, "all_reduce: %s\n", text);
}

/* Each implementation by itself, or `only` one. One that serves only some of the devices together is left
 * out. */
static void bench_devices(const char *spec, const char *only, int n_sizes)
{
    int n_measured = 0;
    tsr_runtime_config config = tsr_runtime_config_default();
    bench b = {.n_sizes = n_sizes};
    tsr_comm *members[TSR_COMM_MAX_MEMBERS];
    config.devices = spec;
    config.logger.fn = warn;
    bench_check(tsr_runtime_open(&config, &b.rt));
    printf("\ndevices: %s\n%-14s %5s %6s %8s %9s %9s %9s %9s %9s\n", spec, "kind", "ranks", "type", "n",
           "us best", "us median", "us p90", "algbw GB/s", "busbw");
    int n = tsr_comm_select_members(b.rt->comm, members);
    for (int m = 0; m < n; m++) {
        b.comm = members[m];
        if (!tsr_probe_serves(b.comm, tsr_device_set_all(b.comm->n_devices)) ||
            (only && strcmp(only, b.comm->ops->kind) != 0))
            continue;
        n_measured++;
        measure_sizes(&b, TSR_REDUCE_EXACT);
        measure_sizes(&b, TSR_REDUCE_F32);
    }
    if (only && n_measured == 0)
        fprintf(stderr, "all_reduce: no implementation '%s' serves devices %s\n", only, spec);
    tsr_runtime_close(b.rt);
}

static bool has_gpus(void)
{
    tsr_topology *topo = NULL;
    tsr_device_list *list = NULL;
    bool has = tsr_topology_discover(NULL, &topo) == TSR_OK &&
               tsr_device_list_create(topo, "cuda", NULL, &list) == TSR_OK && list->n_devices > 1;
    tsr_device_list_destroy(list);
    tsr_topology_destroy(topo);
    return has;
}

int main(int argc, char **argv)
{
    static const char *const shapes[] = {"host:1,threads=1", "host:2,threads=1", "host:1,threads=2",
                                         "host:4,threads=1"};
    const char *only = NULL, *devices = NULL;
    int n_sizes = N_SIZES;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0) {
            n_sizes = N_SMALL;
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            only = argv[++i];
        } else if (strcmp(argv[i], "--devices") == 0 && i + 1 < argc) {
            devices = argv[++i];
        } else {
            fprintf(stderr, "usage: %s [--small] [--only KIND] [--devices SPEC]\n", argv[0]);
            return 2;
        }
    }
    if (devices || has_gpus()) {
        bench_devices(devices ? devices : "cuda", only, n_sizes);
    } else {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            bench_devices(shapes[s], only, n_sizes);
    }
    return 0;
}
