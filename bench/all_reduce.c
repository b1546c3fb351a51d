/* Latency of the local all-reduce: host devices that do nothing but all-reduces, back to back, as many per
 * program as a model of 32 dense layers has.
 *
 *     bench/all_reduce [max_ranks]
 *
 * Per number of ranks, threads per rank and size: best, median and slowest tenth (p90) over launches of the
 * time per all-reduce, waking and waiting for the devices included. "op" is what an op costs that does
 * nothing, the team's barrier included. Bandwidth is that of the algorithm as nccl-tests define it: the
 * partial's bytes over the median. Where there are more threads than processors, waiting means sleeping:
 * expect tens of microseconds. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/local.h"
#include "core/event.h"
#include "core/mem.h"
#include "host/device.h"

enum { MAX_RANKS = 16, PER_PROGRAM = 64, LAUNCHES = 60, WARM_UP = 10 };

typedef struct bench {
    int n_ranks;
    tsr_device *devices[MAX_RANKS];
    tsr_device_program *programs[MAX_RANKS];
    tsr_comm *comm;
    tsr_collective *collectives[PER_PROGRAM];
    int64_t *partial[2][MAX_RANKS];
    float *y[MAX_RANKS];
} bench;

static void check(tsr_status status)
{
    if (status == TSR_OK)
        return;
    fprintf(stderr, "all_reduce: %s: %s\n", tsr_status_name(status), tsr_last_error());
    exit(1);
}

static void nothing(const tsr_op *op, const tsr_kernel_env *env)
{
    (void)op;
    (void)env;
}

static const tsr_kernel_set no_kernels = {.isa = "none", .run = {[TSR_OP_SCALE] = nothing}};

/* Thread `thread` of the devices so far goes to the next processor that this process may use. */
static tsr_status pin(void *user, int thread)
{
    const int *first = user;
    cpu_set_t allowed, one;
    if (sched_getaffinity(getpid(), sizeof allowed, &allowed) != 0)
        return TSR_ERR_UNSUPPORTED;
    int number = (*first + thread) % CPU_COUNT(&allowed), cpu = 0;
    for (; !CPU_ISSET(cpu, &allowed) || number-- > 0; cpu++)
        continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0 ? TSR_OK : TSR_ERR_UNSUPPORTED;
}

static void open_devices(bench *b, int n_ranks, int n_threads)
{
    b->n_ranks = n_ranks;
    check(tsr_comm_local_create(n_ranks, &b->comm));
    for (int r = 0; r < n_ranks; r++) {
        int first = r * n_threads;
        tsr_host_device_config config = {.name = "host",
                                         .index = r,
                                         .n_threads = n_threads,
                                         .total_threads = n_ranks * n_threads,
                                         .numa_node = -1,
                                         .pin = pin,
                                         .pin_user = &first,
                                         .kernels = &no_kernels};
        check(tsr_host_device_create(&config, &b->devices[r]));
    }
}

static void close_devices(bench *b)
{
    tsr_comm_destroy(b->comm);
    for (int r = 0; r < b->n_ranks; r++)
        tsr_device_destroy(b->devices[r]);
}

/* All-reduces of n elements; n 0: ops that do nothing. */
static void compile(bench *b, tsr_reduce_type reduce, int64_t n)
{
    static tsr_op ops[MAX_RANKS][PER_PROGRAM];
    for (int r = 0; r < b->n_ranks; r++) {
        for (int slot = 0; slot < 2; slot++)
            b->partial[slot][r] = calloc((size_t)n + 1, sizeof(int64_t));
        b->y[r] = calloc((size_t)n + 1, sizeof(float));
    }
    for (int k = 0; k < PER_PROGRAM; k++) {
        tsr_collective_desc desc = {.kind = TSR_OP_ALL_REDUCE,
                                    .participants = (1u << b->n_ranks) - 1,
                                    .contributors = (1u << b->n_ranks) - 1,
                                    .reduce = reduce,
                                    .n = n,
                                    .partial = (void *const *)b->partial[k % 2],
                                    .name = "sum"};
        check(b->comm->ops->collective_create(b->comm, &desc, &b->collectives[k]));
        for (int r = 0; r < b->n_ranks; r++) {
            if (n == 0)
                ops[r][k] = (tsr_op){.kind = TSR_OP_SCALE, .name = "nothing"};
            else
                ops[r][k] = (tsr_op){.kind = TSR_OP_ALL_REDUCE,
                                     .name = "sum",
                                     .all_reduce = {b->collectives[k], NULL, b->y[r], n}};
        }
    }
    for (int r = 0; r < b->n_ranks; r++)
        check(b->devices[r]->ops->program_create(b->devices[r], ops[r], PER_PROGRAM, &b->programs[r]));
}

static void discard(bench *b)
{
    for (int r = 0; r < b->n_ranks; r++) {
        b->devices[r]->ops->program_destroy(b->devices[r], b->programs[r]);
        free(b->partial[0][r]);
        free(b->partial[1][r]);
        free(b->y[r]);
    }
    for (int k = 0; k < PER_PROGRAM; k++)
        b->comm->ops->collective_destroy(b->comm, b->collectives[k]);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds per op, sorted. */
static void measure(bench *b, double us[LAUNCHES])
{
    for (int i = -WARM_UP; i < LAUNCHES; i++) {
        uint64_t start = tsr_clock_ns();
        for (int r = 0; r < b->n_ranks; r++)
            check(b->devices[r]->ops->launch(b->devices[r], b->programs[r]));
        for (int r = 0; r < b->n_ranks; r++)
            check(b->devices[r]->ops->synchronize(b->devices[r], 0));
        if (i >= 0)
            us[i] = (double)(tsr_clock_ns() - start) / 1000.0 / PER_PROGRAM;
    }
    qsort(us, LAUNCHES, sizeof *us, ascending);
}

static void measure_sizes(bench *b, tsr_reduce_type reduce, int n_threads)
{
    static const int64_t sizes[] = {0, 64, 1024, 4096, 16384, 65536, 524288};
    bool exact = reduce == TSR_REDUCE_EXACT;
    for (size_t s = exact ? 0 : 1; s < sizeof sizes / sizeof *sizes; s++) {
        double us[LAUNCHES];
        double bytes = (double)sizes[s] * (exact ? sizeof(int64_t) : sizeof(float));
        compile(b, reduce, sizes[s]);
        measure(b, us);
        discard(b);
        printf("%5d %7d %6s %8lld %9.2f %9.2f %9.2f %8.2f\n", b->n_ranks, n_threads,
               sizes[s] == 0 ? "op"
               : exact       ? "exact"
                             : "f32",
               (long long)sizes[s], us[0], us[LAUNCHES / 2], us[LAUNCHES * 9 / 10],
               bytes / us[LAUNCHES / 2] / 1000.0);
    }
}

int main(int argc, char **argv)
{
    static const int shapes[][2] = {{1, 1}, {2, 1}, {1, 2}, {4, 1}, {2, 2}, {8, 1}, {16, 1}};
    int max_ranks = argc > 1 ? atoi(argv[1]) : 4;
    if (max_ranks < 1 || max_ranks > MAX_RANKS) {
        fprintf(stderr, "usage: %s [max_ranks, 1 to %d]\n", argv[0], MAX_RANKS);
        return 2;
    }
    printf("%5s %7s %6s %8s %9s %9s %9s %8s\n", "ranks", "threads", "type", "n", "us best", "us median",
           "us p90", "GB/s");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        bench b = {0};
        if (shapes[i][0] > max_ranks)
            continue;
        open_devices(&b, shapes[i][0], shapes[i][1]);
        measure_sizes(&b, TSR_REDUCE_EXACT, shapes[i][1]);
        measure_sizes(&b, TSR_REDUCE_F32, shapes[i][1]);
        close_devices(&b);
    }
    return 0;
}
