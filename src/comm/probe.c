/* Probe collectives; see probe.h. They run in programs of the devices, so on a GPU the captured graph, the
 * form in which a model's step runs, is tested and timed. */
#include "comm/probe.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/event.h"
#include "core/quant/fixed.h"
#include "core/mem.h"

enum { MAX_DEVICES = 64 };

struct tsr_probe {
    tsr_probe_config config;
    void *partial[2][MAX_DEVICES];
    float *sum[MAX_DEVICES];
    uint64_t run_ns;
};

/* The collectives and programs of one communicator. */
typedef struct probe_run {
    tsr_probe *probe;
    tsr_comm *comm;
    int n_ops;
    tsr_collective *collectives[TSR_PROBE_MAX_OPS];
    tsr_device_program *programs[MAX_DEVICES];
} probe_run;

static bool takes_part(const tsr_probe *probe, int device)
{
    return tsr_device_set_has(probe->config.participants, device);
}

/* -- buffers -- */

/* Element i of device d: numbers of both signs, with fractions and beyond 32 bits. */
static int64_t number(int d, int64_t i)
{
    return (i * 7919 - 4 * (int64_t)(d + 1) * (i % 13)) * ((int64_t)1 << 20) + d;
}

static tsr_status fill(tsr_probe *probe, int d, int64_t *scratch)
{
    tsr_status status = TSR_OK;
    const tsr_probe_config *c = &probe->config;
    for (int64_t i = 0; i < c->n; i++)
        scratch[i] = c->zeros ? 0 : number(d, i);
    for (int slot = 0; slot < 2; slot++)
        TSR_TRY(tsr_device_upload(c->devices[d], probe->partial[slot][d], scratch,
                                  (size_t)c->n * sizeof(int64_t)));
    TSR_TRY(tsr_device_upload(c->devices[d], probe->sum[d], scratch, (size_t)c->n * sizeof(float)));
out:
    return status;
}

tsr_status tsr_probe_create(const tsr_probe_config *config, tsr_probe **probe_out)
{
    tsr_status status = TSR_OK;
    tsr_probe *probe = NULL;
    int64_t *scratch = NULL;
    size_t partial_bytes = (size_t)config->n * sizeof(int64_t), sum_bytes = (size_t)config->n * sizeof(float);
    TSR_TRY(TSR_NEW(&probe, "a probe of the collectives"));
    probe->config = *config;
    if (!config->participants)
        probe->config.participants = tsr_device_set_all(config->n_devices);
    TSR_TRY(tsr_mem_array((size_t)config->n, sizeof *scratch, "a probe of the collectives", &scratch));
    for (int d = 0; d < config->n_devices; d++) {
        tsr_device *device = config->devices[d];
        if (!takes_part(probe, d))
            continue;
        for (int slot = 0; slot < 2; slot++)
            TSR_TRY(device->ops->alloc(device, TSR_MEMORY_COMM, partial_bytes, &probe->partial[slot][d]));
        TSR_TRY(device->ops->alloc(device, TSR_MEMORY_ARENA, sum_bytes, (void **)&probe->sum[d]));
        TSR_TRY(fill(probe, d, scratch));
    }
    *probe_out = probe;
    probe = NULL;
out:
    tsr_mem_free(scratch);
    tsr_probe_destroy(probe);
    return status;
}

void tsr_probe_destroy(tsr_probe *probe)
{
    if (!probe)
        return;
    const tsr_probe_config *c = &probe->config;
    for (int d = 0; d < c->n_devices; d++) {
        for (int slot = 0; slot < 2; slot++)
            tsr_device_free_uncharged(c->devices[d], probe->partial[slot][d], (size_t)c->n * sizeof(int64_t));
        tsr_device_free_uncharged(c->devices[d], probe->sum[d], (size_t)c->n * sizeof(float));
    }
    tsr_mem_free(probe);
}

/* -- programs -- */

/* The k-th collective. A transfer reverses the direction of the previous one, so each waits for the
 * previous one and a staging buffer has been read long before it is filled again. */
static tsr_collective_desc describe(const tsr_probe *probe, int k)
{
    const tsr_probe_config *c = &probe->config;
    tsr_device_set first = tsr_device_set_one(tsr_device_set_first(c->participants));
    bool sends = c->kind == TSR_OP_SEND;
    return (tsr_collective_desc){.kind = c->kind,
                                 .participants = c->participants,
                                 .contributors = !sends      ? c->participants
                                                 : k % 2 > 0 ? c->participants & ~first
                                                             : first,
                                 .reduce = TSR_REDUCE_EXACT,
                                 .n = c->n,
                                 .partial = probe->partial[(sends ? k / 2 : k) % 2],
                                 .name = "probe of the collectives"};
}

bool tsr_probe_serves(const tsr_comm *comm, tsr_device_set participants)
{
    const tsr_probe probe = {.config = {.kind = TSR_OP_ALL_REDUCE, .participants = participants}};
    const tsr_collective_desc desc = describe(&probe, 0);
    return !comm->ops->serves || comm->ops->serves(comm, &desc);
}

/* The op of device d in a collective. */
static tsr_op make_op(const tsr_probe *probe, tsr_collective *collective, int k, int d)
{
    const tsr_probe_config *c = &probe->config;
    tsr_op op = {.kind = c->kind, .name = "probe of the collectives"};
    if (c->kind == TSR_OP_ALL_REDUCE) {
        op.all_reduce = (tsr_op_all_reduce){collective, NULL, probe->sum[d], c->n};
    } else if (tsr_device_set_has(describe(probe, k).contributors, d)) {
        op.send = (tsr_op_send){collective, probe->sum[d], c->n};
    } else {
        op.kind = TSR_OP_RECV;
        op.recv = (tsr_op_recv){collective, probe->sum[d], c->n};
    }
    return op;
}

static tsr_status start(probe_run *run, tsr_probe *probe, tsr_comm *comm, int n_ops, uint64_t timeout_ns)
{
    tsr_status status = TSR_OK;
    const tsr_probe_config *c = &probe->config;
    tsr_op ops[TSR_PROBE_MAX_OPS];
    *run = (probe_run){.probe = probe, .comm = comm, .n_ops = n_ops};
    for (int k = 0; k < n_ops; k++) {
        const tsr_collective_desc desc = describe(probe, k);
        TSR_TRY(comm->ops->collective_create(comm, &desc, &run->collectives[k]));
    }
    for (int d = 0; d < c->n_devices; d++) {
        if (!takes_part(probe, d))
            continue;
        for (int k = 0; k < n_ops; k++)
            ops[k] = make_op(probe, run->collectives[k], k, d);
        TSR_TRY(c->devices[d]->ops->program_create(c->devices[d], ops, n_ops, &run->programs[d]));
    }
    TSR_TRY(tsr_comm_prepare(comm, c->devices, run->programs, c->n_devices, timeout_ns));
out:
    return status;
}

static void stop(probe_run *run)
{
    for (int d = 0; d < run->probe->config.n_devices; d++)
        if (run->programs[d])
            run->probe->config.devices[d]->ops->program_destroy(run->probe->config.devices[d],
                                                                run->programs[d]);
    for (int k = 0; k < run->n_ops; k++)
        tsr_collective_destroy(run->comm, run->collectives[k], run->probe->config.devices[0]->watch);
}

enum { CAUSE_BYTES = 512 };

/* After a failure of `culprit`: release the waiting devices and wait for all. If a device turns out to be
 * lost, the failure is its own; the same holds if a device failed while the culprit was only aborted. A
 * device that fails aborts all communicators of a selection, so all of them are reset. */
static tsr_status release(const probe_run *run, uint64_t timeout_ns, const tsr_device *culprit,
                          tsr_status status, char cause[CAUSE_BYTES])
{
    bool is_cause = !(status == TSR_ERR_DEVICE && culprit->was_aborted);
    run->comm->ops->abort(run->comm);
    for (int d = 0; d < run->probe->config.n_devices; d++) {
        tsr_device *device = run->probe->config.devices[d];
        tsr_status own = device->ops->synchronize(device, timeout_ns);
        if (own == TSR_ERR_TIMEOUT)
            own = device->ops->synchronize(device, 0);
        bool lost = own == TSR_ERR_DEVICE_LOST && status != TSR_ERR_DEVICE_LOST;
        if (own == TSR_OK || device->was_aborted || (is_cause && !lost))
            continue;
        is_cause = true;
        status = own;
        snprintf(cause, CAUSE_BYTES, "%s", tsr_last_error());
    }
    tsr_comm_reset(tsr_comm_whole(run->comm), run->probe->config.devices[0]->watch);
    return status;
}

/* Run the programs of all devices once. On failure no work is in flight. */
static tsr_status run_once(const probe_run *run, uint64_t timeout_ns)
{
    tsr_status status = TSR_OK;
    const tsr_probe_config *c = &run->probe->config;
    const tsr_device *culprit = NULL;
    char cause[CAUSE_BYTES];
    for (int d = 0; d < c->n_devices && status == TSR_OK; d++) {
        culprit = c->devices[d];
        if (run->programs[d])
            status = c->devices[d]->ops->launch(c->devices[d], run->programs[d]);
    }
    for (int d = 0; d < c->n_devices && status == TSR_OK; d++) {
        culprit = c->devices[d];
        if (run->programs[d])
            status = c->devices[d]->ops->synchronize(c->devices[d], timeout_ns);
    }
    if (status == TSR_OK)
        return TSR_OK;
    snprintf(cause, sizeof cause, "%s", tsr_last_error());
    status = release(run, timeout_ns, culprit, status, cause);
    return tsr_fail(status, "%s", cause);
}

/* -- checks and timing -- */

static tsr_status compare(const tsr_probe *probe, char *problem, size_t problem_bytes)
{
    tsr_status status = TSR_OK;
    const tsr_probe_config *c = &probe->config;
    float *sums = NULL;
    TSR_TRY(tsr_mem_array((size_t)c->n, sizeof *sums, "a probe of the collectives", &sums));
    for (int d = 0; d < c->n_devices && !*problem; d++) {
        if (!takes_part(probe, d))
            continue;
        TSR_TRY(tsr_device_download(c->devices[d], sums, probe->sum[d], (size_t)c->n * sizeof *sums));
        for (int64_t i = 0; i < c->n && !*problem; i++) {
            int64_t expected = 0;
            for (int r = 0; r < c->n_devices; r++)
                expected += takes_part(probe, r) ? number(r, i) : 0;
            if (sums[i] != tsr_fixed_to_f32(expected))
                snprintf(problem, problem_bytes, "device %s got a wrong sum", c->devices[d]->name);
        }
    }
out:
    tsr_mem_free(sums);
    return status;
}

tsr_status tsr_probe_check(tsr_probe *probe, tsr_comm *comm, uint64_t timeout_ns, char *problem,
                           size_t problem_bytes)
{
    tsr_status status = TSR_OK;
    probe_run run;
    *problem = '\0';
    status = start(&run, probe, comm, 1, timeout_ns);
    if (status == TSR_OK)
        status = run_once(&run, timeout_ns);
    if (status == TSR_ERR_TIMEOUT) {
        snprintf(problem, problem_bytes, "%s", tsr_last_error());
        tsr_fail_clear();
        status = TSR_OK;
    } else if (status == TSR_OK) {
        status = compare(probe, problem, problem_bytes);
    }
    stop(&run);
    return status;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* *ns_out: the duration. */
static tsr_status time_run(const probe_run *run, uint64_t *ns_out)
{
    uint64_t begin = tsr_clock_ns();
    tsr_status status = run_once(run, run->probe->config.timeout_ns);
    *ns_out = TSR_MAX(tsr_clock_ns() - begin, (uint64_t)1);
    run->probe->run_ns += *ns_out;
    return status;
}

tsr_status tsr_probe_measure(tsr_probe *probe, tsr_comm *comm, int n_ops, uint64_t best_ns, uint64_t *ns_out)
{
    enum { RUNS = 3, FAR = 4 };
    tsr_status status = TSR_OK;
    probe_run run;
    uint64_t ns[RUNS],
        enough = probe->config.enough_ns ? probe->run_ns + probe->config.enough_ns : UINT64_MAX;
    int n = 0;
    TSR_TRY(start(&run, probe, comm, n_ops, probe->config.timeout_ns));
    TSR_TRY(time_run(&run, &ns[0]));
    do {
        TSR_TRY(time_run(&run, &ns[n]));
        ns[n] = TSR_MAX(ns[n] / (uint64_t)n_ops, (uint64_t)1);
        n++;
    } while (n < RUNS && ns[n - 1] / FAR <= best_ns && probe->run_ns < enough);
    qsort(ns, (size_t)n, sizeof *ns, ascending);
    *ns_out = ns[n / 2];
out:
    stop(&run);
    return status;
}

uint64_t tsr_probe_run_ns(const tsr_probe *probe)
{
    return probe->run_ns;
}
