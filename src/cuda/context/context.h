/* The structure of a CUDA device, and how a call enters and leaves the device. Inside src/cuda only. Every
 * part of a device (memory, programs, communicators) works on this struct, so this file includes none of
 * them.
 *
 * There are two streams. `stream` is for programs, which the device's own host thread enqueues; sums may run
 * beside it, in a branch that ends before a program does (device/sums.h). Any other thread that enqueues on
 * `stream` waits for it (tsr_cuda_drain) before it leaves. `copies` is for everything else:
 * uploads, downloads, zeroing. A call from outside first waits until the host thread has no jobs, which
 * implies that `stream` is empty, so work that is then enqueued on `copies` follows all programs; and
 * `stream` waits for `copies` before the next program (copies_pending). Hence no two host threads use a
 * device's CUDA objects at the same time, except for the uploads of struct tsr_device's n_uploaders. */
#ifndef TSR_CUDA_CONTEXT_CONTEXT_H
#define TSR_CUDA_CONTEXT_CONTEXT_H

#include <stdatomic.h>

#include <cuda_runtime.h>

#include "core/device.h"
#include "cuda/api/driver.h"
#include "cuda/context/ring.h"
#include "cuda/context/worker.h"
#include "cuda/context/wrapping.h"
#include "cuda/kernels/kernels.h"

struct tsr_comm;
struct tsr_cublas;
struct tsr_cuda_range;

/* Sums that may be in flight beside other ops. */
enum { TSR_CUDA_SUMS = 4 };

/* The stream of sums that run beside other ops of a program (device/sums.h); made when it is first needed. */
typedef struct tsr_cuda_sums {
    cudaStream_t stream;
    cudaEvent_t forked;                                  /* what a sum waits for */
    cudaEvent_t ended[TSR_CUDA_SUMS];                    /* of the last sums */
    const struct tsr_collective *running[TSR_CUDA_SUMS]; /* their collectives; NULL: waited for */
    uint64_t n; /* sums that have been enqueued, in captures or not */
} tsr_cuda_sums;

/* Events that tell how long programs work and wait (device/timing.h). */
typedef struct tsr_cuda_timing {
    cudaEvent_t *events; /* [capacity], of which n_events were made; NULL: nothing was timed */
    int n_events, capacity;
    int next; /* the event that is recorded next around what waits; 0: none is */
} tsr_cuda_timing;

/* With more GPUs than this in one machine, the others get no peer access. */
enum { TSR_CUDA_MAX_GPUS = 64 };

/* Why programs launched since the last synchronize failed; the first failure stays. Written by the host
 * thread before it sets `status`. */
typedef struct tsr_cuda_outcome {
    _Atomic tsr_status status;
    bool aborted; /* only because the communicator was aborted: another device has the cause */
    char text[512];
} tsr_cuda_outcome;

typedef struct tsr_cuda_device {
    tsr_device base;
    int ordinal;
    CUdevice gpu;      /* the driver's handle of it */
    CUcontext context; /* the GPU's primary context, retained; NULL: not yet */
    bool managed;      /* allocations are managed memory, which may exceed the GPU's */
    uint64_t grace_ns;
    tsr_logger logger;
    tsr_cuda_props props;
    tsr_cuda_driver driver;
    bool has_vmm;                  /* virtual memory management; without it a reservation is plain memory */
    struct tsr_cuda_range *ranges; /* mapped memory, and reservations (memory/vmm.h) */
    uint64_t peers;                /* GPUs that may use shared ranges, one bit per ordinal */
    uint64_t lost_peers;           /* GPUs that may use none of the newer ones (memory/vmm.h) */
    bool nccl_writes;              /* its arenas and scratch are shared ranges, for NCCL */
    tsr_cuda_wrapping wrapping;
    int64_t library_tokens;    /* from this number on cuBLASLt may multiply (libs/cublas.h); 0: never */
    struct tsr_cublas *cublas; /* NULL: not requested yet */

    cudaStream_t stream;
    cudaEvent_t done; /* for waiting until `stream` is empty */
    tsr_cuda_sums sums;
    tsr_cuda_timing timing;
    cudaStream_t copies;
    cudaEvent_t copied; /* for waiting until `copies` is empty */
    _Atomic bool copies_pending;
    tsr_cuda_words *words;
    int *fault_copy; /* pinned */
    tsr_pool_block *fault_block;
    tsr_pool *pinned; /* host memory that the GPU's copies and kernels can access */
    char pinned_name[64];
    tsr_cuda_ring ring;
    tsr_cuda_worker *worker;

    struct tsr_comm *watched;  /* polled for failures while enqueued work is waited for; NULL = none */
    uint64_t watched_since_ns; /* when its program began */
    _Atomic bool hung;         /* the device was given up: only its host memory is still released */
    _Atomic uint64_t n_steps;  /* parts of programs launched so far */
    bool overdue;              /* a deadline has passed since the device was last quiescent */
    _Atomic(tsr_device_program *) running; /* the running program and the op that it waits for */
    _Atomic int running_op;
    tsr_cuda_outcome outcome; /* what ended a program */
    tsr_cuda_outcome range;   /* a range fault, after which programs go on */
    struct {
        bool graphs, fusions;
    } without; /* what bench/cuda_steps.c leaves out, to compare */
} tsr_cuda_device;

static inline tsr_cuda_device *tsr_cuda(tsr_device *device)
{
    return (tsr_cuda_device *)device; /* base is its first member */
}

/* Create the GPU's primary context, unless the process has it, and retain it; release it. CUDA's runtime
 * keeps the context, since other code of the process may use it by then. */
tsr_status tsr_cuda_context_open(tsr_cuda_device *cuda);
void tsr_cuda_context_close(tsr_cuda_device *cuda);

/* Make the device's context the current one of the calling thread; tsr_cuda_leave() makes the previous one
 * current again, or none. CUDA's runtime works on the current context ("CUDA Runtime API", "Interactions with
 * the CUDA Driver API"). Not cudaSetDevice(): a thread without a context would be left with that of GPU 0,
 * which setting GPU 0 creates, however little the process has to do with that GPU. */
tsr_status tsr_cuda_make_current(tsr_cuda_device *cuda);

/* The start of every call from outside: wait for the device's host thread, make the device current, and let
 * `stream` wait for `copies`. Ends with tsr_cuda_leave(), which is not called when this fails. */
tsr_status tsr_cuda_enter(tsr_cuda_device *cuda);
void tsr_cuda_leave(tsr_cuda_device *cuda);

/* tsr_cuda_enter() for calls that enqueue nothing on `stream`. */
tsr_status tsr_cuda_enter_to_copy(tsr_cuda_device *cuda);

/* Let `stream` wait for pending work on `copies`. */
tsr_status tsr_cuda_join_copies(tsr_cuda_device *cuda);

/* tsr_cuda_enter() for calls that only release: they continue after failures where possible, and store no
 * sentence, since they often run after a failure whose sentence is still needed. False for a device that was
 * given up: releasing would wait for it. */
bool tsr_cuda_enter_to_release(tsr_cuda_device *cuda);

/* tsr_cuda_quiesce() for calls that only release: failures are ignored, and the stored sentence stays. */
void tsr_cuda_quiesce_to_release(tsr_cuda_device *cuda);

/* Poll until the event has happened; TSR_ERR_DEVICE_LOST once `hung` is set. */
tsr_status tsr_cuda_wait_event(tsr_cuda_device *cuda, cudaEvent_t event);

/* Give up the device, lose the runtime, and wait for the device's host thread, which notices within grace_ns
 * unless it hangs in a call of CUDA; it is then abandoned. TSR_ERR_DEVICE_LOST. */
tsr_status tsr_cuda_give_up(tsr_cuda_device *cuda);

/* Of the device's watch: changes with each step of its host thread. */
uint64_t tsr_cuda_progress(const void *device);

/* Wait until all work on `stream` has finished; on both streams. */
tsr_status tsr_cuda_drain(tsr_cuda_device *cuda);
tsr_status tsr_cuda_quiesce(tsr_cuda_device *cuda);

#endif
