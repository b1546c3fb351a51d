/* The structure of a host device, shared by device.c (memory, copies, creation) and program.c (launching and
 * running op lists). Inside src/host only. */
#ifndef TSR_HOST_HOST_H
#define TSR_HOST_HOST_H

#include <stdatomic.h>

#include "core/device.h"
#include "core/device_set.h"
#include "host/kernels.h"
#include "host/op_runs.h"
#include "host/team.h"

/* One thread's own state, padded so that no two threads share a cache line. */
typedef struct tsr_host_thread {
    _Atomic int range_fault; /* set by kernels */
    int fault_op;            /* first op of the running program with a range fault; -1 = none */
    bool fault_of_kv;        /* because attention gave no finite number */
    void *scratch;
    uint64_t rest_ns;         /* sleep that is due on a throttled device */
    _Atomic uint64_t n_steps; /* steps of programs and blocks of copies begun so far */
    unsigned char gap[92];
} tsr_host_thread;

/* A 2-D copy that the team divides. */
typedef struct tsr_host_copy {
    char *dst;
    const char *src;
    size_t dst_stride, src_stride, width, height;
} tsr_host_copy;

/* A chunk counter on a cache line of its own. */
typedef struct tsr_host_counter {
    _Atomic int64_t chunk;
    unsigned char gap[56];
} tsr_host_counter;

/* How a program failed. Written by the team before it sets `failed`, and not again until the next
 * synchronize. */
typedef struct tsr_host_outcome {
    tsr_status status; /* TSR_OK, TSR_ERR_RANGE, TSR_ERR_DEVICE or TSR_ERR_CANCELLED */
    tsr_op_kind op_kind;
    bool of_kv; /* tsr_host_thread.fault_of_kv */
    char op_name[64];
    tsr_device_set missing; /* devices that had not arrived at the collective */
} tsr_host_outcome;

/* Room for packed activations (kernels.h) of the products of an op run. 512 tokens of 28672 floats, the
 * activations of the largest matrices of models of 70 billion weights, take 56 MiB. Pages are touched only
 * where an op needs them. Products without room pack for themselves. */
#define TSR_HOST_PACKED_BYTES ((size_t)64 << 20)

typedef struct tsr_host_device {
    tsr_device base;
    const tsr_kernel_set *kernels;
    tsr_team *team;
    int numa_node;
    int duty_percent;         /* share of the time that its threads may work */
    tsr_host_thread *threads; /* [n_threads] */
    void *scratch;            /* one block with the threads' scratch memory and shares */
    size_t scratch_stride;
    tsr_host_shares *shares[2]; /* [n_threads], for one op run and for the next */
    tsr_cpu_reading reading;    /* for tsr_kernel_env */
    void *shared;               /* pages that the team's kernels share; NULL: a team of one has none */
    unsigned char *packed;      /* TSR_HOST_PACKED_BYTES; NULL: the kernels never pack */

    unsigned char gap_0[64];
    tsr_host_counter next[TSR_HOST_RUN_OPS]; /* chunk counters of the ops of the running op run */
    _Atomic bool aborted;                    /* a thread's collective failed */
    bool stop;                               /* the program ends at the last barrier: aborted or cancelled */
    _Atomic(tsr_device_program *) running;   /* the program and op that run, for messages */
    _Atomic int running_op;
    tsr_host_outcome outcome; /* first failure since the last synchronize */
    _Atomic bool failed;      /* `outcome` is one */
    tsr_host_copy copy;       /* the running copy of the team */
} tsr_host_device;

static inline tsr_host_device *tsr_host(tsr_device *device)
{
    return (tsr_host_device *)device; /* base is its first member */
}

/* A thread is at its next step: a relaxed store to a cache line of its own. */
static inline void tsr_host_note_step(tsr_host_thread *self)
{
    const uint64_t n = atomic_load_explicit(&self->n_steps, memory_order_relaxed);
    atomic_store_explicit(&self->n_steps, n + 1, memory_order_relaxed);
}

/* Changes with each step, and with each piece of a step that threads take. */
uint64_t tsr_host_progress(const void *device);

/* Wait until the team is idle, for calls without a deadline: tsr_host_await() fails with
 * TSR_ERR_DEVICE_LOST if the runtime is lost, or is lost by this wait; `what` names the work. */
tsr_status tsr_host_await(tsr_host_device *host, const char *what);

/* The program functions of struct tsr_device_ops. */
tsr_status tsr_host_program_create(tsr_device *device, const tsr_op *ops, int n_ops,
                                   tsr_device_program **program_out);
void tsr_host_program_destroy(tsr_device *device, tsr_device_program *program);
tsr_status tsr_host_program_launch(tsr_device *device, tsr_device_program *program);
tsr_status tsr_host_synchronize(tsr_device *device, uint64_t timeout_ns);
tsr_status tsr_host_wait_queue(tsr_device *device, int n_left, uint64_t timeout_ns);

#endif
