/* Devices of a simulated machine with a communicator between them, and one program for each under
 * construction. */
#ifndef TSR_TESTS_NCCL_RUN_H
#define TSR_TESTS_NCCL_RUN_H

#include <stdlib.h>
#include <string.h>

#include <nccl.h>

#include "core/comm.h"
#include "core/quant/fixed.h"
#include "core/quant/half.h"
#include "cuda/device/device.h"
#include "cuda/comm/nccl.h"
#include "cuda/comm/peer.h"
#include "cuda/simulated.h"
#include "support/random.h"

enum { MS = 1000000, MAX_RANKS = 8, MAX_OPS = 16, MAX_BLOCKS = 64 };

typedef struct block {
    int device;
    size_t bytes;
    void *pointer;
} block;

typedef struct group {
    int n;
    tsr_comm *comm;
    tsr_device *devices[MAX_RANKS];
    tsr_device_program *programs[MAX_RANKS];
    tsr_op ops[MAX_RANKS][MAX_OPS];
    int n_ops[MAX_RANKS];
    tsr_collective *collectives[MAX_OPS];
    int n_collectives;
    block blocks[MAX_BLOCKS];
    int n_blocks;
    uint64_t timeout_ns;
    bool is_prepared; /* in this epoch of the communicator */
    uint64_t epoch;
} group;

/* NCCL refuses several ranks on one GPU unless its environment allows them. */
static inline void machine(int n_devices, uint64_t seed)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.memory = 64 << 20;
    config.seed = seed;
    config.may_share = getenv("NCCL_MULTI_RANK_GPU_ENABLE") != NULL;
    cudasim_configure(&config);
}

/* The devices without a communicator; device i is GPU i, or 0 if `shared`. */
static inline group group_of(int n, bool shared)
{
    group g = {.n = n};
    for (int i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "cuda%d", i);
        tsr_cuda_device_config config = {
            .name = name, .index = i, .ordinal = shared ? 0 : cudasim_gpu(i), .grace_ns = 200 * MS};
        ok(tsr_cuda_device_create(&config, &g.devices[i]));
    }
    return g;
}

static inline tsr_status group_connect(group *g)
{
    const tsr_comm_nccl_config config = {.timeout_ns = 10000 * (uint64_t)MS};
    return tsr_comm_nccl_create(g->devices, g->n, &config, &g->comm);
}

static inline group group_open(int n)
{
    group g = group_of(n, false);
    ok(group_connect(&g));
    return g;
}

static inline void *group_put(group *g, int device, const void *from, size_t bytes)
{
    void *pointer = NULL;
    ok(tsr_device_alloc(g->devices[device], TSR_MEMORY_OTHER, bytes, "a test", &pointer));
    assert_true(g->n_blocks < MAX_BLOCKS);
    g->blocks[g->n_blocks++] = (block){device, bytes, pointer};
    if (from && bytes > 0)
        ok(tsr_device_upload(g->devices[device], pointer, from, bytes));
    return pointer;
}

static inline void group_op(group *g, int device, tsr_op op)
{
    assert_true(g->n_ops[device] < MAX_OPS);
    g->ops[device][g->n_ops[device]++] = op;
}

static inline tsr_collective *group_collective(group *g, const tsr_collective_desc *desc)
{
    tsr_collective *collective = NULL;
    ok(g->comm->ops->collective_create(g->comm, desc, &collective));
    return g->collectives[g->n_collectives++] = collective;
}

static inline void group_compile(group *g)
{
    g->is_prepared = false;
    for (int i = 0; i < g->n; i++)
        if (g->n_ops[i] > 0)
            ok(g->devices[i]->ops->program_create(g->devices[i], g->ops[i], g->n_ops[i], &g->programs[i]));
}

/* As tsr_program_run() does it: the first failure's status and sentence, and everything ready for the next
 * run. */
static inline tsr_status group_run(group *g)
{
    tsr_status status = TSR_OK;
    char text[512] = "";
    bool is_cause = true;
    if (!g->is_prepared || g->epoch != g->comm->epoch) {
        status = tsr_comm_prepare(g->comm, g->devices, g->programs, g->n, g->timeout_ns);
        g->is_prepared = true;
        g->epoch = g->comm->epoch;
        if (status != TSR_OK)
            return status;
    }
    for (int i = 0; i < g->n; i++)
        if (g->programs[i])
            ok(g->devices[i]->ops->launch(g->devices[i], g->programs[i]));
    for (int i = 0; i < g->n && status == TSR_OK; i++) {
        status = g->devices[i]->ops->synchronize(g->devices[i], g->timeout_ns);
        is_cause = !g->devices[i]->was_aborted;
    }
    if (status == TSR_OK)
        return TSR_OK;
    snprintf(text, sizeof text, "%s", tsr_last_error());
    g->comm->ops->abort(g->comm);
    for (int i = 0; i < g->n; i++) {
        tsr_status own = g->devices[i]->ops->synchronize(g->devices[i], 500 * MS);
        if (own == TSR_ERR_TIMEOUT)
            own = g->devices[i]->ops->synchronize(g->devices[i], 0);
        if (own == TSR_OK || g->devices[i]->was_aborted || is_cause)
            continue;
        is_cause = true;
        status = own;
        snprintf(text, sizeof text, "%s", tsr_last_error());
    }
    g->comm->ops->reset(g->comm);
    return tsr_fail(status, "%s", text);
}

static inline void group_clear(group *g)
{
    for (int i = 0; i < g->n; i++) {
        g->devices[i]->ops->program_destroy(g->devices[i], g->programs[i]);
        g->programs[i] = NULL;
        g->n_ops[i] = 0;
    }
    while (g->n_collectives > 0)
        g->comm->ops->collective_destroy(g->comm, g->collectives[--g->n_collectives]);
    while (g->n_blocks > 0) {
        const block *b = &g->blocks[--g->n_blocks];
        tsr_device_free(g->devices[b->device], TSR_MEMORY_OTHER, b->pointer, b->bytes);
    }
}

static inline void group_close(group *g)
{
    group_clear(g);
    tsr_comm_destroy(g->comm);
    for (int i = 0; i < g->n; i++)
        tsr_device_destroy(g->devices[i]);
}

static inline uint64_t all_of(int n)
{
    return ((uint64_t)1 << n) - 1;
}

/* -- one all-reduce -- */

typedef struct sum {
    tsr_reduce_type reduce;
    uint64_t participants, contributors;
    int64_t n;
    bool with_residual;
    int64_t row;              /* as tsr_collective_desc has it */
    void *partial[MAX_RANKS]; /* on the devices */
    float *y[MAX_RANKS];
} sum;

static inline size_t sum_bytes(const sum *s)
{
    return (size_t)s->n * tsr_reduce_bytes(s->reduce);
}

static inline float residual_at(int64_t i)
{
    return (float)i * 0.25f - 3;
}

/* What a device adds. f32: integers, whose sums are exact in any order. */
static inline int64_t partial_at(int device, int64_t i, uint64_t seed)
{
    uint64_t state = seed + (uint64_t)device * 7919 + (uint64_t)i * 104729;
    return (int64_t)(random_u64(&state) >> 20) - ((int64_t)1 << 43);
}

static inline float partial_f32_at(int device, int64_t i, uint64_t seed)
{
    return (float)(partial_at(device, i, seed) % 1000);
}

/* bf16: so small that sums of eight devices are exact, too. */
static inline float partial_bf16_at(int device, int64_t i, uint64_t seed)
{
    return (float)(partial_at(device, i, seed) % 32);
}

/* New partials on all contributors, for the next run. */
static inline void sum_fill(group *g, const sum *s, uint64_t seed)
{
    size_t bytes = sum_bytes(s);
    void *values = malloc(bytes);
    for (int d = 0; d < g->n; d++) {
        if (!(s->contributors >> d & 1))
            continue;
        for (int64_t i = 0; i < s->n; i++)
            if (s->reduce == TSR_REDUCE_EXACT)
                ((int64_t *)values)[i] = partial_at(d, i, seed);
            else if (s->reduce == TSR_REDUCE_BF16)
                ((uint16_t *)values)[i] = tsr_f32_to_bf16(partial_bf16_at(d, i, seed));
            else
                ((float *)values)[i] = partial_f32_at(d, i, seed);
        ok(tsr_device_upload(g->devices[d], s->partial[d], values, bytes));
    }
    free(values);
}

/* The collective and an op for each participant. */
static inline void sum_make(group *g, sum *s)
{
    float *residual = malloc((size_t)s->n * sizeof(float));
    for (int64_t i = 0; i < s->n; i++)
        residual[i] = residual_at(i);
    for (int d = 0; d < g->n; d++) /* the others have an address there that is not theirs */
        s->partial[d] = s->contributors >> d & 1 ? group_put(g, d, NULL, sum_bytes(s)) : (void *)(uintptr_t)8;
    tsr_collective *collective = group_collective(g, &(tsr_collective_desc){.kind = TSR_OP_ALL_REDUCE,
                                                                            .participants = s->participants,
                                                                            .contributors = s->contributors,
                                                                            .reduce = s->reduce,
                                                                            .n = s->n,
                                                                            .row = s->row,
                                                                            .partial = s->partial,
                                                                            .name = "a sum"});
    for (int d = 0; d < g->n; d++) {
        if (!(s->participants >> d & 1))
            continue;
        const float *r = s->with_residual ? group_put(g, d, residual, (size_t)s->n * sizeof(float)) : NULL;
        s->y[d] = group_put(g, d, NULL, (size_t)s->n * sizeof(float));
        group_op(
            g, d,
            (tsr_op){.kind = TSR_OP_ALL_REDUCE, .name = "h", .all_reduce = {collective, r, s->y[d], s->n}});
    }
    free(residual);
}

static inline float sum_at(const sum *s, int64_t i, uint64_t seed)
{
    int64_t exact = 0;
    float f32 = 0;
    for (int d = 0; d < MAX_RANKS; d++)
        if (s->contributors >> d & 1) {
            exact += partial_at(d, i, seed);
            f32 += s->reduce == TSR_REDUCE_BF16 ? partial_bf16_at(d, i, seed) : partial_f32_at(d, i, seed);
        }
    float value = s->reduce == TSR_REDUCE_EXACT ? tsr_fixed_to_f32(exact) : f32;
    return s->with_residual ? value + residual_at(i) : value;
}

static inline void sum_check(group *g, const sum *s, uint64_t seed)
{
    float *got = malloc((size_t)s->n * sizeof(float)), *want = malloc((size_t)s->n * sizeof(float));
    for (int64_t i = 0; i < s->n; i++)
        want[i] = sum_at(s, i, seed);
    for (int d = 0; d < g->n; d++)
        if (s->participants >> d & 1) {
            ok(tsr_device_download(g->devices[d], got, s->y[d], (size_t)s->n * sizeof(float)));
            assert_memory_equal(got, want, (size_t)s->n * sizeof(float));
        }
    free(got);
    free(want);
}

/* One all-reduce three times, with other partials each. */
static inline void run_sum(group *g, sum *s)
{
    sum_make(g, s);
    group_compile(g);
    for (uint64_t run = 0; run < 3; run++) {
        sum_fill(g, s, run);
        ok(group_run(g));
        sum_check(g, s, run);
    }
    group_clear(g);
}

#endif
