/* Trial all-reduces; see trial.h. They go through the devices' programs, so on a GPU what is timed (and found
 * to work) is the captured graph that a model's step is made of. */
#include "comm/trial.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/event.h"
#include "core/fixed.h"
#include "core/mem.h"

enum { MAX_OPS = 8, MAX_DEVICES = 64 };

struct tsr_trial {
    int n_devices;
    tsr_device *const *devices;
    int64_t n;
    void *partial[2][MAX_DEVICES];
    float *sum[MAX_DEVICES];
};

/* What a communicator makes of it. */
typedef struct trial_run {
    tsr_trial *trial;
    tsr_comm *comm;
    int n_ops;
    tsr_collective *collectives[MAX_OPS];
    tsr_device_program *programs[MAX_DEVICES];
} trial_run;

static uint64_t all_of(int n_devices)
{
    return n_devices == 64 ? UINT64_MAX : ((uint64_t)1 << n_devices) - 1;
}

/* ---- buffers --------------------------------------------------------------------------------------------
 */

/* Device d's element i: numbers of both signs, with fractions and beyond 32 bits. */
static int64_t number(int d, int64_t i)
{
    return (i * 7919 - 4 * (int64_t)(d + 1) * (i % 13)) * ((int64_t)1 << 20) + d;
}

static tsr_status fill(tsr_trial *trial, int d, bool zeros, int64_t *scratch)
{
    tsr_status status = TSR_OK;
    for (int64_t i = 0; i < trial->n; i++)
        scratch[i] = zeros ? 0 : number(d, i);
    for (int slot = 0; slot < 2; slot++)
        TSR_TRY(tsr_device_upload(trial->devices[d], trial->partial[slot][d], scratch,
                                  (size_t)trial->n * sizeof(int64_t)));
out:
    return status;
}

tsr_status tsr_trial_create(tsr_device *const *devices, int n_devices, int64_t n, bool zeros,
                            tsr_trial **trial_out)
{
    tsr_status status = TSR_OK;
    tsr_trial *trial = NULL;
    int64_t *scratch = NULL;
    size_t partial_bytes = (size_t)n * sizeof(int64_t), sum_bytes = (size_t)n * sizeof(float);
    TSR_TRY(tsr_mem_array(1, sizeof *trial, "a trial of the collectives", &trial));
    trial->n_devices = n_devices;
    trial->devices = devices;
    trial->n = n;
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *scratch, "a trial of the collectives", &scratch));
    for (int d = 0; d < n_devices; d++) {
        for (int slot = 0; slot < 2; slot++)
            TSR_TRY(devices[d]->ops->alloc(devices[d], partial_bytes, &trial->partial[slot][d]));
        TSR_TRY(devices[d]->ops->alloc(devices[d], sum_bytes, (void **)&trial->sum[d]));
        TSR_TRY(fill(trial, d, zeros, scratch));
    }
    *trial_out = trial;
    trial = NULL;
out:
    tsr_mem_free(scratch);
    tsr_trial_destroy(trial);
    return status;
}

void tsr_trial_destroy(tsr_trial *trial)
{
    if (!trial)
        return;
    for (int d = 0; d < trial->n_devices; d++) {
        tsr_device *device = trial->devices[d];
        for (int slot = 0; slot < 2; slot++)
            if (trial->partial[slot][d])
                device->ops->free(device, trial->partial[slot][d], (size_t)trial->n * sizeof(int64_t));
        if (trial->sum[d])
            device->ops->free(device, trial->sum[d], (size_t)trial->n * sizeof(float));
    }
    tsr_mem_free(trial);
}

/* ---- programs -------------------------------------------------------------------------------------------
 */

static tsr_collective_desc describe(int n_devices, int64_t n, void *const *partial)
{
    return (tsr_collective_desc){.kind = TSR_OP_ALL_REDUCE,
                                 .participants = all_of(n_devices),
                                 .contributors = all_of(n_devices),
                                 .reduce = TSR_REDUCE_EXACT,
                                 .n = n,
                                 .partial = partial,
                                 .name = "trial of the collectives"};
}

bool tsr_trial_serves(const tsr_comm *comm)
{
    const tsr_collective_desc desc = describe(comm->n_devices, 0, NULL);
    return !comm->ops->serves || comm->ops->serves(comm, &desc);
}

static tsr_status start(trial_run *run, tsr_trial *trial, tsr_comm *comm, int n_ops)
{
    tsr_status status = TSR_OK;
    tsr_op ops[MAX_OPS];
    *run = (trial_run){.trial = trial, .comm = comm, .n_ops = n_ops};
    for (int k = 0; k < n_ops; k++) {
        const tsr_collective_desc desc = describe(trial->n_devices, trial->n, trial->partial[k % 2]);
        TSR_TRY(comm->ops->collective_create(comm, &desc, &run->collectives[k]));
    }
    for (int d = 0; d < trial->n_devices; d++) {
        for (int k = 0; k < n_ops; k++)
            ops[k] = (tsr_op){.kind = TSR_OP_ALL_REDUCE,
                              .name = "trial of the collectives",
                              .all_reduce = {run->collectives[k], NULL, trial->sum[d], trial->n}};
        TSR_TRY(trial->devices[d]->ops->program_create(trial->devices[d], ops, n_ops, &run->programs[d]));
    }
out:
    return status;
}

static void stop(trial_run *run)
{
    for (int d = 0; d < run->trial->n_devices; d++)
        if (run->programs[d])
            run->trial->devices[d]->ops->program_destroy(run->trial->devices[d], run->programs[d]);
    for (int k = 0; k < run->n_ops; k++)
        if (run->collectives[k])
            run->comm->ops->collective_destroy(run->comm, run->collectives[k]);
}

enum { CAUSE_BYTES = 512 };

/* After a failure: let go of the devices that wait, and wait for all. A device that turns out to be lost is
 * the true cause. The other communicators of a choice are in nobody's way. */
static tsr_status release(const trial_run *run, uint64_t timeout_ns, tsr_status status,
                          char cause[CAUSE_BYTES])
{
    run->comm->ops->abort(run->comm);
    for (int d = 0; d < run->trial->n_devices; d++) {
        tsr_device *device = run->trial->devices[d];
        tsr_status own = device->ops->synchronize(device, timeout_ns);
        if (own == TSR_ERR_TIMEOUT)
            own = device->ops->synchronize(device, 0);
        if (own != TSR_ERR_DEVICE_LOST || status == TSR_ERR_DEVICE_LOST)
            continue;
        status = own;
        snprintf(cause, CAUSE_BYTES, "%s", tsr_last_error());
    }
    run->comm->ops->reset(run->comm);
    return status;
}

/* All devices, once. On failure all have come to rest again. */
static tsr_status run_once(const trial_run *run, uint64_t timeout_ns)
{
    tsr_status status = TSR_OK;
    const tsr_trial *trial = run->trial;
    char cause[CAUSE_BYTES];
    for (int d = 0; d < trial->n_devices && status == TSR_OK; d++)
        status = trial->devices[d]->ops->launch(trial->devices[d], run->programs[d]);
    for (int d = 0; d < trial->n_devices && status == TSR_OK; d++)
        status = trial->devices[d]->ops->synchronize(trial->devices[d], timeout_ns);
    if (status == TSR_OK)
        return TSR_OK;
    snprintf(cause, sizeof cause, "%s", tsr_last_error());
    status = release(run, timeout_ns, status, cause);
    return tsr_fail(status, "%s", cause);
}

/* ---- what they are for ----------------------------------------------------------------------------------
 */

static tsr_status compare(const tsr_trial *trial, char *problem, size_t problem_bytes)
{
    tsr_status status = TSR_OK;
    float *sums = NULL;
    TSR_TRY(tsr_mem_array((size_t)trial->n, sizeof *sums, "a trial of the collectives", &sums));
    for (int d = 0; d < trial->n_devices && !*problem; d++) {
        TSR_TRY(tsr_device_download(trial->devices[d], sums, trial->sum[d], (size_t)trial->n * sizeof *sums));
        for (int64_t i = 0; i < trial->n && !*problem; i++) {
            int64_t expected = 0;
            for (int r = 0; r < trial->n_devices; r++)
                expected += number(r, i);
            if (sums[i] != tsr_fixed_to_f32(expected))
                snprintf(problem, problem_bytes, "device %s got a wrong sum", trial->devices[d]->name);
        }
    }
out:
    tsr_mem_free(sums);
    return status;
}

tsr_status tsr_trial_check(tsr_trial *trial, tsr_comm *comm, uint64_t timeout_ns, char *problem,
                           size_t problem_bytes)
{
    tsr_status status = TSR_OK;
    trial_run run;
    *problem = '\0';
    TSR_TRY(start(&run, trial, comm, 1));
    status = run_once(&run, timeout_ns);
    if (status == TSR_ERR_TIMEOUT) {
        snprintf(problem, problem_bytes, "%s", tsr_last_error());
        tsr_fail_clear();
        status = TSR_OK;
    } else if (status == TSR_OK) {
        status = compare(trial, problem, problem_bytes);
    }
out:
    stop(&run);
    return status;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

tsr_status tsr_trial_measure(tsr_trial *trial, tsr_comm *comm, int n_ops, uint64_t best_ns, uint64_t *ns_out)
{
    enum { RUNS = 3, FAR = 4 };
    tsr_status status = TSR_OK;
    trial_run run;
    uint64_t ns[RUNS];
    int n = 0;
    TSR_TRY(start(&run, trial, comm, n_ops));
    TSR_TRY(run_once(&run, 0));
    while (n < RUNS) {
        uint64_t begin = tsr_clock_ns();
        TSR_TRY(run_once(&run, 0));
        ns[n++] = (tsr_clock_ns() - begin) / (uint64_t)n_ops;
        if (ns[n - 1] / FAR > best_ns)
            break;
    }
    qsort(ns, (size_t)n, sizeof *ns, ascending);
    *ns_out = ns[n / 2];
out:
    stop(&run);
    return status;
}
