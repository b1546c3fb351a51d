/* Collectives between devices: one interface, several implementations (src/comm: shared memory, and
 * between processes; src/cuda: kernels over peer memory, NCCL).
 *
 * A collective is made when a program is compiled and names its ranks' buffers once; an op in each
 * participating device's program refers to it. All participants must run their collectives equally often
 * and in the same order. */
#ifndef TSR_CORE_COMM_H
#define TSR_CORE_COMM_H

#include <stdint.h>

#include "core/device.h"
#include "core/device_set.h"
#include "core/op.h"

typedef struct tsr_comm tsr_comm;

/* Description of one collective. Arrays are indexed by device index in the runtime.
 *
 * A collective does not report when the other ranks have finished reading a buffer. Its creator must keep
 * the buffer unchanged until every reader is known to have arrived at a subsequent collective
 * (src/graph/lower/slots.h). */
typedef struct tsr_collective_desc {
    tsr_op_kind kind;            /* ALL_REDUCE, ALL_GATHER, or SEND (the pair SEND/RECV shares one) */
    tsr_device_set participants; /* devices whose programs run it */
    tsr_device_set contributors; /* ALL_REDUCE: those with a partial; SEND: the sender's bit */
    tsr_reduce_type reduce;      /* ALL_REDUCE */
    int64_t n;                   /* elements: ALL_REDUCE and SEND in all; ALL_GATHER per row */
    int64_t n_rows;              /* ALL_GATHER */
    int64_t row;          /* ALL_REDUCE: elements of the rows in which a norm reads the sum; 0: none does */
    const int64_t *begin; /* ALL_GATHER: [n_devices + 1] first element of each device's part; copied */
    /* [n_devices] each device's buffer (the sender's staging buffer for SEND); copied */
    void *const *partial;
    const char *name; /* for messages; must outlive the collective */
} tsr_collective_desc;

struct tsr_collective; /* defined by each implementation */
typedef struct tsr_collective tsr_collective;

struct tsr_comm_ops {
    const char *kind; /* "staged", "peer", ...: as tsr/runtime.h names them */
    bool in_shares;   /* each device adds up a share of a sum and reads the other shares, added up; otherwise
                       * each reads all parts */
    void (*destroy)(tsr_comm *comm);
    tsr_status (*collective_create)(tsr_comm *comm, const tsr_collective_desc *desc,
                                    tsr_collective **collective_out);
    void (*collective_destroy)(tsr_comm *comm, tsr_collective *collective);

    /* Whether the communicator can make this collective. NULL: any between its devices. */
    bool (*serves)(const tsr_comm *comm, const tsr_collective_desc *desc);

    /* Whether large sums between these devices pass through the host, which cuts the programs of devices that
     * work in streams. In several processes every process gets the same answer. NULL: unless the communicator
     * enqueues. */
    bool (*stages)(const tsr_comm *comm, tsr_device_set devices);

    /* Run by every thread of a host device's team (thread of n_threads) for an op of a collective kind.
     * Returns when the op is done for this thread; the team's own barrier follows. Returns false if the
     * comm was aborted. No barrier comes before an ALL_REDUCE or ALL_GATHER: the implementation must touch
     * no buffer before every thread of the device's own team has arrived. */
    bool (*run)(tsr_comm *comm, tsr_device *device, const tsr_op *op, int thread, int n_threads);

    /* Elements [begin, end) of an ALL_REDUCE in which no other device takes part, instead of run(); called
     * by the thread that has computed this part of the partial. NULL: only run(). */
    void (*finish)(tsr_comm *comm, const tsr_op *op, int64_t begin, int64_t end);

    /* For devices that work in streams. Such a device uses either enqueue or stage, never both.
     *
     * enqueue: put the op into `stream` (a cudaStream_t of the device, which is current; perhaps being
     * captured) and return. NULL: not supported.
     *
     * stage: from now on device `index` contributes to the collective through `buffer`, host memory of the
     * same size as its partial, as planes (core/quant/wire.h) where tsr_collective_is_narrow(). The device
     * owns and fills the buffer before it calls run() itself, with one thread and with host memory in place
     * of the op's other pointers. Called before anything of the collective runs. NULL: every device must
     * enqueue.
     *
     * enqueue_norm: as enqueue, for an ALL_REDUCE whose sum the RMS_NORM op `norm` reads next, where both
     * together are faster than one after the other: enqueues both and sets *done_out. Otherwise nothing is
     * enqueued. Same bits. The norm may be next on some participants only, which run the collective with the
     * others that do not have it. NULL: never.
     *
     * aborted: whether abort() was called since the last reset(). Read after enqueued work has finished,
     * whose results are meaningless if so. NULL where enqueue is.
     *
     * enqueue_waits: enqueue() may wait until the other participants enqueue the same collective, and
     * either all or none of them must do so inside a capture. Then each device enqueues on a host thread
     * of its own, and its program is captured by tsr_comm_prepare() or not at all.
     *
     * poll: called periodically by a device's host thread while enqueued work runs; a failure means that
     * the work will never finish. NULL: cannot be detected. */
    bool enqueue_waits;
    tsr_status (*enqueue)(tsr_comm *comm, tsr_device *device, const tsr_op *op, void *stream);
    tsr_status (*enqueue_norm)(tsr_comm *comm, tsr_device *device, const tsr_op *op, const tsr_op *norm,
                               void *stream, bool *done_out);
    tsr_status (*poll)(tsr_comm *comm, tsr_device *device);
    bool (*aborted)(tsr_comm *comm);
    void (*stage)(tsr_comm *comm, tsr_collective *collective, int index, void *buffer);

    /* Wake and fail everything that waits inside run(); used when a device of the group failed or a
     * deadline passed. reset() makes the comm usable again once no program runs. */
    void (*abort)(tsr_comm *comm);
    void (*reset)(tsr_comm *comm);

    /* For messages: the devices that device `index` waits for in a collective. Any thread. */
    tsr_device_set (*missing)(tsr_comm *comm, const tsr_collective *collective, int index);
};

struct tsr_comm {
    const struct tsr_comm_ops *ops;
    int n_devices;
    uint64_t epoch;  /* incremented by reset() where work captured before must not be launched again */
    bool no_graphs;  /* tsr_comm_prepare() has found that capture is refused, and does not retry */
    tsr_comm *whole; /* the communicator that has several, including this one; aborted() and abort() are
                      * called on the one that is in no other. NULL: no such communicator */
    /* Of a communicator between processes, NULL: none. `gpus` is between the GPUs of all processes, and
     * captures are its own; that one's `gpus` is NCCL, for what it does not serve itself. */
    tsr_comm *gpus;
    tsr_comm *inside; /* between the GPUs of this process */
};

static inline tsr_comm *tsr_comm_whole(tsr_comm *comm)
{
    while (comm->whole)
        comm = comm->whole;
    return comm;
}

/* As ops->stages(). */
static inline bool tsr_comm_stages(const tsr_comm *comm, tsr_device_set devices)
{
    return comm->ops->stages ? comm->ops->stages(comm, devices) : !comm->ops->enqueue;
}

/* First member of every implementation's collective. */
struct tsr_collective {
    tsr_comm *comm;
    const tsr_collective_desc *desc; /* its description, with arrays of its own */
};

/* Exact sums that travel in fewer bytes. */
enum {
    TSR_NARROW_FROM =
        32768, /* elements from which on bytes count: messages of a few tokens stay as they are */
    TSR_NARROW_BLOCK = 256,   /* between processes: sums that have a flag together (comm/narrow.h) */
    TSR_NARROW_MOST = 1 << 18 /* between processes: sums at a time */
};

/* Whether exact parts of the collective travel in fewer bytes (core/quant/wire.h). */
static inline bool tsr_collective_is_narrow(const tsr_collective_desc *desc)
{
    return desc->kind == TSR_OP_ALL_REDUCE && desc->reduce == TSR_REDUCE_EXACT && desc->n >= TSR_NARROW_FROM;
}

/* The only participant is the device itself: no waiting. */
static inline bool tsr_collective_is_alone(const tsr_collective *collective)
{
    return tsr_device_set_count(collective->desc->participants) <= 1;
}

/* After an abort, once every device is idle: as ops->reset(). In a lost runtime devices may never be idle,
 * and the communicator stays aborted. */
void tsr_comm_reset(tsr_comm *comm, const tsr_watch *watch);

/* NULL is fine. A collective that an abandoned thread may still access remains. */
void tsr_collective_destroy(tsr_comm *comm, tsr_collective *collective, const tsr_watch *watch);

/* For implementations: copy the arrays of a description, which `copy` then names, into new ones that the
 * caller frees, also after a failure. Both pointers are NULL before. */
tsr_status tsr_collective_copy_desc(const tsr_collective_desc *desc, int n_devices, tsr_collective_desc *copy,
                                    int64_t **begin_out, void ***partial_out);

void tsr_comm_destroy(tsr_comm *comm); /* NULL is fine */

/* Capture the programs of all devices that were created together (programs[i] on devices[i], NULL: no
 * program there), where their collectives require a common capture: all or, if one refuses, none. Programs
 * that were not captured run uncaptured. Called once after creation and again whenever the communicator's
 * epoch has changed; no program may run. abort() and reset() are called on `comm`. After a failure (a lost
 * device, a deadline that passes) no work is in flight. */
tsr_status tsr_comm_prepare(tsr_comm *comm, tsr_device *const *devices, tsr_device_program *const *programs,
                            int n_devices, uint64_t timeout_ns);

/* The end of a message: "; device 1 and device 3 did not arrive", for the devices in `missing`;
 * "" for none. Cut after bytes - 1 characters. */
void tsr_comm_describe_missing(tsr_device_set missing, char *text, size_t bytes);

#endif
