/* The first sums between the GPUs of a machine, before any program: every GPU writes into the inbox of every
 * other one, so every pair is tried in both directions, on both sides of the inboxes. A process in which one
 * fails tells the others through the memory that they share, so that none waits for the limit. */
#include <stdio.h>
#include <time.h>

#include "core/event.h"
#include "core/mem.h"
#include "core/quant/fixed.h"
#include "cuda/api/check.h"
#include "cuda/comm/between/state.h"

/* The limit is for loaded machines, and for processes that share a GPU. */
enum { N = 4096, ROUNDS = 3, SLEEP_NS = 50000 };
#define LIMIT_NS 10000000000u

typedef struct probe {
    between_comm *comm;
    int64_t *values; /* [N], then as many floats */
    tsr_device_set held;
} probe;

/* Element i of the part of the device at a place. */
static int64_t value_of(int place, int round, int64_t i)
{
    return (i % 1000 - 500) * (place + 1) * ((int64_t)1 << 33) + i * (place + 7) + round;
}

static float *sums_of(const tsr_cuda_device *cuda)
{
    return (float *)((int64_t *)cuda->base.scratch + N);
}

static tsr_status hold_scratch(probe *p)
{
    for (int i = 0; i < p->comm->n; i++) {
        tsr_cuda_device *cuda = p->comm->devices[i];
        tsr_status status = cuda ? tsr_device_hold_scratch(&cuda->base) : TSR_OK;
        if (status != TSR_OK)
            return status;
        p->held |= cuda ? tsr_device_set_one(i) : 0;
        if (cuda && cuda->base.scratch_bytes < N * (sizeof(int64_t) + sizeof(float)))
            return tsr_fail(TSR_ERR_UNSUPPORTED, "device %s: no scratch memory for a first sum",
                            cuda->base.name);
    }
    return TSR_OK;
}

static tsr_status start(probe *p, tsr_cuda_device *cuda, int place, int round)
{
    tsr_status status = TSR_OK;
    const between_comm *comm = p->comm;
    const tsr_cuda_stream s = {.stream = cuda->stream, .props = &cuda->props};
    for (int64_t i = 0; i < N; i++)
        p->values[i] = value_of(place, round, i);
    TSR_TRY(tsr_device_upload(&cuda->base, cuda->base.scratch, p->values, N * sizeof *p->values));
    TSR_TRY(tsr_cuda_enter(cuda));
    const tsr_cuda_push push = tsr_between_push(comm, cuda->base.index, comm->members, comm->members);
    tsr_cuda_reduction sum = {.type = TSR_REDUCE_EXACT, .n_parts = comm->n, .y = sums_of(cuda), .n = N};
    sum.parts[place] = cuda->base.scratch;
    status = tsr_cuda_push_reduce(&push, &sum, place, NULL, &s);
    tsr_cuda_leave(cuda);
out:
    return status;
}

static tsr_status is_idle(tsr_cuda_device *cuda, bool *idle_out)
{
    tsr_status status = tsr_cuda_enter(cuda);
    if (status != TSR_OK)
        return status;
    const cudaError_t error = cudaStreamQuery(cuda->stream);
    *idle_out = error != cudaErrorNotReady;
    if (error == cudaErrorNotReady)
        (void)cudaGetLastError();
    else
        status = tsr_cuda_result(error, "cudaStreamQuery");
    tsr_cuda_leave(cuda);
    return status;
}

/* Until the device's stream is empty; `failed` NULL: whatever another process says. */
static tsr_status wait_idle(tsr_cuda_device *cuda, const uint32_t *failed, uint64_t deadline_ns)
{
    tsr_status status = TSR_OK;
    bool idle = false;
    for (;;) {
        TSR_TRY(is_idle(cuda, &idle));
        if (idle)
            break;
        if (failed && __atomic_load_n(failed, __ATOMIC_ACQUIRE))
            TSR_TRY(tsr_fail(TSR_ERR_DEVICE, "device %s: a first sum failed in another process",
                             cuda->base.name));
        if (tsr_clock_ns() >= deadline_ns)
            TSR_TRY(tsr_fail(TSR_ERR_TIMEOUT,
                             "device %s: a first sum between processes did not finish in time",
                             cuda->base.name));
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
out:
    return status;
}

static tsr_status compare(probe *p, tsr_cuda_device *cuda, int round)
{
    float *sums = (float *)(p->values + N);
    tsr_status status = tsr_device_download(&cuda->base, sums, sums_of(cuda), N * sizeof *sums);
    for (int64_t i = 0; i < N && status == TSR_OK; i++) {
        int64_t sum = 0;
        for (int place = 0; place < p->comm->n; place++)
            sum += value_of(place, round, i);
        if (sums[i] != tsr_fixed_to_f32(sum))
            status = tsr_fail(TSR_ERR_DEVICE, "device %s: a first sum between processes is wrong",
                              cuda->base.name);
    }
    return status;
}

static tsr_status try_round(probe *p, int round, uint64_t deadline_ns)
{
    tsr_status status = TSR_OK;
    const uint32_t *failed = &tsr_cuda_boxes_state_of(&p->comm->boxes)->failed;
    for (int i = 0; i < p->comm->n; i++)
        if (p->comm->devices[i])
            TSR_TRY(start(p, p->comm->devices[i], i, round));
    for (int i = 0; i < p->comm->n; i++)
        if (p->comm->devices[i])
            TSR_TRY(wait_idle(p->comm->devices[i], failed, deadline_ns));
    for (int i = 0; i < p->comm->n; i++)
        if (p->comm->devices[i])
            TSR_TRY(compare(p, p->comm->devices[i], round));
out:
    return status;
}

/* End the kernels; a device whose kernels go on is given up. */
static tsr_status release(const probe *p, tsr_status status)
{
    char text[512];
    snprintf(text, sizeof text, "%s", tsr_last_error());
    __atomic_store_n(&tsr_cuda_boxes_state_of(&p->comm->boxes)->failed, 1u, __ATOMIC_RELEASE);
    __atomic_store_n(p->comm->aborted, 1u, __ATOMIC_SEQ_CST);
    for (int i = 0; i < p->comm->n; i++) {
        tsr_cuda_device *cuda = p->comm->devices[i];
        if (!cuda || wait_idle(cuda, NULL, tsr_deadline_ns(cuda->grace_ns)) != TSR_ERR_TIMEOUT)
            continue;
        atomic_store(&cuda->hung, true);
        status = TSR_ERR_DEVICE_LOST;
    }
    return tsr_fail(status, "%s", text);
}

tsr_status tsr_between_probe(between_comm *comm)
{
    tsr_status status = TSR_OK;
    probe p = {.comm = comm};
    const uint64_t deadline_ns = tsr_deadline_ns(LIMIT_NS);
    TSR_TRY(tsr_mem_array(N + N / 2, sizeof *p.values, "a first sum", &p.values));
    TSR_TRY(hold_scratch(&p));
    for (int round = 0; round < ROUNDS; round++)
        TSR_TRY(try_round(&p, round, deadline_ns));
out:
    if (status != TSR_OK)
        status = release(&p, status);
    TSR_FOR_DEVICES(i, p.held)
        tsr_device_drop_scratch(&comm->devices[i]->base);
    tsr_mem_free(p.values);
    return status;
}
