/* Collectives by kernels; see peer.h. Barriers are in device_barrier.cu, sums in reduce.cu, two_shot.cu and
 * push/, counters in counters.c. */
#include "cuda/comm/peer.h"

#include <string.h>

#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/comm/collective.h"
#include "cuda/comm/counters.h"
#include "cuda/comm/device_barrier.h"
#include "cuda/comm/push/inbox.h"
#include "cuda/comm/push/push.h"
#include "cuda/context/context.h"

typedef struct peer_comm {
    tsr_comm base;
    tsr_peer_form form;
    int max_blocks;                               /* of a kernel with a barrier */
    int first, n;                                 /* kernels number the devices [first, first + n) from 0 */
    tsr_cuda_device *devices[TSR_CUDA_MAX_PEERS]; /* NULL: no access to any other */
    tsr_device_set reach[TSR_CUDA_MAX_PEERS];     /* the devices that device i has access to */
    tsr_cuda_counters counters;                   /* of barriers: [block][n] sent, then received */
    uint32_t *aborted;                            /* pinned, after the counters' progress */
    tsr_cuda_inboxes inboxes;                     /* of the forms that push */
} peer_comm;

typedef struct peer_collective {
    tsr_cuda_collective as;
    bool two_shot;
    tsr_pool_block
        *pinned; /* gathers and transfers of TSR_PEER_PINNED: a copy of the buffers that others read */
} peer_collective;

/* A row that one block adds up and normalises is loaded by 512 threads, eight bytes each per part and step.
 * Beyond this number of loads it is faster to let more blocks add up and one normalise afterwards. */
enum { MAX_ROW_LOADS = 16384 };

/* -- the ops of a stream -- */

static bool pushes(const peer_comm *comm)
{
    return comm->form == TSR_PEER_PUSH || comm->form == TSR_PEER_PINNED;
}

static size_t n_counts(int n_devices)
{
    return (size_t)n_devices * TSR_CUDA_MAX_BARRIER_BLOCKS;
}

/* What the others announce to device i, as kernels number it: in its own memory or, if they have no access to
 * that, in pinned memory, after the word of aborts. */
static uint64_t *received_by(const peer_comm *comm, int i)
{
    const size_t n = n_counts(comm->n);
    return comm->form == TSR_PEER_PINNED ? comm->counters.words + 1 + (size_t)i * n
                                         : comm->counters.counts[i] + n;
}

/* Counts in pinned memory. */
static size_t n_received(const peer_comm *comm)
{
    return comm->form == TSR_PEER_PINNED ? (size_t)comm->n * n_counts(comm->n) : 0;
}

static tsr_cuda_barrier barrier_of(const peer_comm *comm, int self, tsr_device_set participants)
{
    const int own = self - comm->first;
    tsr_cuda_barrier m = {.self = own,
                          .n_devices = comm->n,
                          .max_blocks = comm->max_blocks,
                          .participants = participants >> comm->first,
                          .sent = comm->counters.counts[own],
                          .received = received_by(comm, own),
                          .progress = comm->counters.progress + (ptrdiff_t)own * comm->n,
                          .aborted = comm->aborted};
    for (int i = 0; i < comm->n; i++)
        if (comm->counters.counts[i])
            m.announce[i] = received_by(comm, i) + own;
    return m;
}

static tsr_status wait_at_barrier(const peer_comm *comm, int self, tsr_device_set participants,
                                  cudaStream_t stream)
{
    const tsr_cuda_barrier barrier = barrier_of(comm, self, participants);
    return tsr_cuda_barrier_wait(&barrier, stream);
}

static tsr_cuda_reduction reduction_of(const tsr_op_all_reduce *op)
{
    const tsr_collective_desc *desc = op->collective->desc;
    tsr_cuda_reduction reduction = {.type = desc->reduce, .residual = op->residual, .y = op->y, .n = op->n};
    TSR_FOR_DEVICES(d, desc->contributors)
        reduction.parts[reduction.n_parts++] = desc->partial[d];
    return reduction;
}

/* The index of this device's part; -1: none. */
static int part_of(const tsr_collective_desc *desc, int device)
{
    return tsr_device_set_has(desc->contributors, device) ? tsr_device_set_place(desc->contributors, device)
                                                          : -1;
}

/* The elements of a round of a pushed message; 0: as many as suit it. */
static int64_t row_of(const peer_comm *comm, const tsr_collective_desc *desc)
{
    return tsr_collective_is_narrow(desc) ? 0 : tsr_cuda_push_row(comm->n, desc->reduce, desc->row);
}

static tsr_cuda_push push_of(const peer_comm *comm, int self, const tsr_collective_desc *desc)
{
    tsr_cuda_push push = {.barrier = barrier_of(comm, self, desc->participants),
                          .contributors = desc->contributors >> comm->first,
                          .region = tsr_cuda_push_region(comm->n),
                          .row = row_of(comm, desc),
                          .narrow = tsr_collective_is_narrow(desc)};
    for (int i = 0; i < comm->n; i++)
        push.inbox[i] = comm->inboxes.at[i];
    return push;
}

static tsr_status enqueue_all_reduce(const peer_comm *comm, int self, const tsr_op_all_reduce *op,
                                     const tsr_op_rms_norm *norm, cudaStream_t stream)
{
    tsr_status status = TSR_OK;
    const tsr_collective_desc *desc = op->collective->desc;
    const tsr_cuda_stream s = {.stream = stream, .props = &comm->devices[self]->props};
    const tsr_cuda_barrier barrier = barrier_of(comm, self, desc->participants);
    const tsr_cuda_reduction reduction = reduction_of(op);
    if (pushes(comm)) {
        const tsr_cuda_push push = push_of(comm, self, desc);
        return tsr_cuda_push_reduce(&push, &reduction, part_of(desc, self), norm, &s);
    }
    if (((const peer_collective *)op->collective)->two_shot) {
        TSR_TRY(tsr_cuda_barrier_reduce_share(&barrier, &reduction, part_of(desc, self), &s));
        TSR_TRY(tsr_cuda_barrier_gather_shares(&barrier, &reduction, &s));
    } else {
        TSR_TRY(tsr_cuda_barrier_reduce(&barrier, &reduction, norm, &s));
    }
out:
    return status;
}

static tsr_status peer_enqueue_norm(tsr_comm *base, tsr_device *device, const tsr_op *op, const tsr_op *norm,
                                    void *stream, bool *done_out)
{
    const peer_comm *comm = (const peer_comm *)base;
    const tsr_collective_desc *desc = op->all_reduce.collective->desc;
    int n_parts = tsr_device_set_count(desc->contributors);
    if (pushes(comm))
        *done_out = norm->rms_norm.n == row_of(comm, desc);
    else
        *done_out = !((const peer_collective *)op->all_reduce.collective)->two_shot &&
                    norm->rms_norm.n <= MAX_ROW_LOADS / n_parts;
    if (!*done_out)
        return TSR_OK;
    return enqueue_all_reduce(comm, device->index, &op->all_reduce, &norm->rms_norm, stream);
}

/* Where the other devices read device i's part of a gather, or a sender's data. */
static void *readable_part(const tsr_collective *collective, int i)
{
    const tsr_collective_desc *desc = collective->desc;
    const tsr_pool_block *pinned = ((const peer_collective *)collective)->pinned;
    const int64_t before = desc->kind == TSR_OP_ALL_GATHER ? desc->begin[i] * desc->n_rows : 0;
    return pinned ? (float *)pinned->data + before : desc->partial[i];
}

/* In pinned memory a gather has a second barrier: its parts are written again when it is run again. */
static tsr_status enqueue_all_gather(const peer_comm *comm, int self, const tsr_op_all_gather *op,
                                     cudaStream_t stream)
{
    tsr_status status = TSR_OK;
    const tsr_collective_desc *desc = op->collective->desc;
    const size_t mine = (size_t)((desc->begin[self + 1] - desc->begin[self]) * op->n_rows) * sizeof(float);
    void *readable = readable_part(op->collective, self);
    const bool copied = readable != desc->partial[self];
    if (copied && mine > 0)
        TSR_TRY(TSR_CUDA(cudaMemcpyAsync(readable, desc->partial[self], mine, cudaMemcpyDefault, stream)));
    TSR_TRY(wait_at_barrier(comm, self, desc->participants, stream));
    for (int i = 0; i < comm->base.n_devices; i++) {
        size_t width = (size_t)(desc->begin[i + 1] - desc->begin[i]) * sizeof(float);
        if (width > 0 && op->n_rows > 0)
            TSR_TRY(TSR_CUDA(cudaMemcpy2DAsync(op->y + desc->begin[i], (size_t)op->n * sizeof(float),
                                               readable_part(op->collective, i), width, width,
                                               (size_t)op->n_rows, cudaMemcpyDefault, stream)));
    }
    if (copied)
        TSR_TRY(wait_at_barrier(comm, self, desc->participants, stream));
out:
    return status;
}

/* A transfer is two barriers: one when the staging buffer holds the data, one when it may be overwritten. */
static tsr_status enqueue_send(const peer_comm *comm, int self, const tsr_op_send *op, cudaStream_t stream)
{
    tsr_status status = TSR_OK;
    const tsr_collective_desc *desc = op->collective->desc;
    TSR_TRY(TSR_CUDA(cudaMemcpyAsync(readable_part(op->collective, self), op->x,
                                     (size_t)op->n * sizeof(float), cudaMemcpyDefault, stream)));
    TSR_TRY(wait_at_barrier(comm, self, desc->participants, stream));
    TSR_TRY(wait_at_barrier(comm, self, desc->participants, stream));
out:
    return status;
}

static tsr_status enqueue_recv(const peer_comm *comm, int self, const tsr_op_recv *op, cudaStream_t stream)
{
    tsr_status status = TSR_OK;
    const tsr_collective_desc *desc = op->collective->desc;
    int sender = tsr_device_set_first(desc->contributors);
    TSR_TRY(wait_at_barrier(comm, self, desc->participants, stream));
    TSR_TRY(TSR_CUDA(cudaMemcpyAsync(op->y, readable_part(op->collective, sender),
                                     (size_t)op->n * sizeof(float), cudaMemcpyDefault, stream)));
    TSR_TRY(wait_at_barrier(comm, self, desc->participants, stream));
out:
    return status;
}

static tsr_status peer_enqueue(tsr_comm *base, tsr_device *device, const tsr_op *op, void *stream)
{
    const peer_comm *comm = (const peer_comm *)base;
    switch (op->kind) {
    case TSR_OP_ALL_REDUCE:
        return enqueue_all_reduce(comm, device->index, &op->all_reduce, NULL, stream);
    case TSR_OP_ALL_GATHER:
        return enqueue_all_gather(comm, device->index, &op->all_gather, stream);
    case TSR_OP_SEND:
        return enqueue_send(comm, device->index, &op->send, stream);
    case TSR_OP_RECV:
        return enqueue_recv(comm, device->index, &op->recv, stream);
    default:
        return tsr_fail(TSR_ERR_INVALID, "%s is not a collective", tsr_op_kind_name(op->kind));
    }
}

/* -- collectives -- */

/* Whether all pairs of participants reach each other. */
static bool peer_serves(const tsr_comm *base, const tsr_collective_desc *desc)
{
    const peer_comm *comm = (const peer_comm *)base;
    TSR_FOR_DEVICES(d, desc->participants)
        if (desc->participants & ~comm->reach[d])
            return false;
    return comm->form == TSR_PEER_PINNED || tsr_cuda_collective_reaches(comm->devices, desc->participants);
}

/* Two devices that add up half each read less than two that add up all. Partials are aligned wherever they
 * are in a program's workspace. */
static bool goes_in_two_shots(const peer_comm *comm, const tsr_collective_desc *desc)
{
    bool can = comm->form == TSR_PEER_TWO_SHOT && desc->kind == TSR_OP_ALL_REDUCE &&
               tsr_device_set_count(desc->contributors) > 1;
    TSR_FOR_DEVICES(d, desc->contributors)
        can = can && (uintptr_t)desc->partial[d] % 16 == 0;
    return can;
}

static void collective_destroy(tsr_comm *comm, tsr_collective *collective)
{
    const tsr_cuda_device *keeper = ((const peer_comm *)comm)->inboxes.keeper;
    if (keeper)
        tsr_pool_give(keeper->pinned, ((peer_collective *)collective)->pinned, TSR_POOL_HOST);
    tsr_cuda_collective_destroy(comm, collective);
}

static tsr_status refuse(const peer_comm *comm, const tsr_collective_desc *desc)
{
    return tsr_cuda_collective_refuse(desc,
                                      comm->form == TSR_PEER_PINNED
                                          ? "not all of its devices can wait for each other in kernels; use "
                                            "auto or staged collectives"
                                          : "not all of its devices have peer access to each other; use "
                                            "auto, pinned, nccl or staged collectives");
}

/* Pinned memory for the data of a gather or a transfer. */
static tsr_status take_pinned(const peer_comm *comm, peer_collective *c)
{
    const tsr_collective_desc *desc = c->as.base.desc;
    const int64_t n = desc->kind == TSR_OP_ALL_GATHER ? desc->n * desc->n_rows : desc->n;
    tsr_cuda_device *keeper = comm->inboxes.keeper;
    tsr_status status = tsr_cuda_enter(keeper);
    if (status != TSR_OK)
        return status;
    status = tsr_pool_take(keeper->pinned, (size_t)TSR_MAX(n, (int64_t)1) * sizeof(float), TSR_POOL_HOST,
                           "a collective's data", &c->pinned);
    tsr_cuda_leave(keeper);
    return status;
}

static tsr_status collective_create(tsr_comm *base, const tsr_collective_desc *desc,
                                    tsr_collective **collective_out)
{
    tsr_status status = TSR_OK;
    const peer_comm *comm = (const peer_comm *)base;
    peer_collective *c = NULL;
    if (!peer_serves(base, desc))
        return refuse(comm, desc);
    TSR_TRY(TSR_NEW(&c, "a collective"));
    TSR_TRY(tsr_cuda_collective_init(&c->as, base, desc));
    c->two_shot = goes_in_two_shots(comm, desc);
    if (comm->form == TSR_PEER_PINNED && desc->kind != TSR_OP_ALL_REDUCE)
        TSR_TRY(take_pinned(comm, c));
    *collective_out = &c->as.base;
    c = NULL;
out:
    if (c)
        collective_destroy(base, &c->as.base);
    return status;
}

/* -- aborting -- */

static void peer_abort(tsr_comm *base)
{
    __atomic_store_n(((peer_comm *)base)->aborted, 1u, __ATOMIC_SEQ_CST);
}

static bool peer_aborted(tsr_comm *base)
{
    return __atomic_load_n(((peer_comm *)base)->aborted, __ATOMIC_SEQ_CST) != 0;
}

static void peer_reset(tsr_comm *base)
{
    peer_comm *comm = (peer_comm *)base;
    (void)tsr_cuda_counters_reset(&comm->counters); /* programs of a lost device will not run again */
    if (comm->form == TSR_PEER_PINNED)
        memset(received_by(comm, 0), 0, n_received(comm) * sizeof(uint64_t));
    if (pushes(comm))
        tsr_cuda_inboxes_reset(&comm->inboxes);
    __atomic_store_n(comm->aborted, 0u, __ATOMIC_SEQ_CST);
}

static tsr_device_set peer_missing(tsr_comm *base, const tsr_collective *collective, int index)
{
    const peer_comm *comm = (const peer_comm *)base;
    return tsr_cuda_counters_missing(&comm->counters, collective->desc->participants >> comm->first,
                                     index - comm->first)
           << comm->first;
}

/* -- creation -- */

static void peer_destroy(tsr_comm *base)
{
    peer_comm *comm = (peer_comm *)base;
    tsr_cuda_inboxes_destroy(&comm->inboxes);
    tsr_cuda_counters_destroy(&comm->counters);
    tsr_mem_free(comm);
}

#define PEER_OPS(name, shares)                                                                      \
    {                                                                                               \
        .kind = (name), .in_shares = (shares), .destroy = peer_destroy,                             \
        .collective_create = collective_create, .collective_destroy = collective_destroy,           \
        .serves = peer_serves, .enqueue = peer_enqueue, .enqueue_norm = peer_enqueue_norm,          \
        .aborted = peer_aborted, .abort = peer_abort, .reset = peer_reset, .missing = peer_missing, \
    }
static const struct tsr_comm_ops form_ops[] = {
    [TSR_PEER_ONE_SHOT] = PEER_OPS("peer", false),
    [TSR_PEER_TWO_SHOT] = PEER_OPS("peer two-shot", true),
    [TSR_PEER_PUSH] = PEER_OPS("peer push", false),
    [TSR_PEER_PINNED] = PEER_OPS("pinned", false),
};

/* The devices that reach any. */
static void enlist(peer_comm *comm, tsr_device *const *devices, const tsr_device_set *reach)
{
    int end = 0;
    comm->first = comm->base.n_devices;
    for (int i = 0; i < comm->base.n_devices; i++) {
        comm->reach[i] = reach[i];
        if (!reach[i])
            continue;
        comm->devices[i] = tsr_cuda(devices[i]);
        comm->first = TSR_MIN(comm->first, i);
        end = i + 1;
    }
    comm->n = TSR_MAX(end - comm->first, 0);
}

/* Waiting blocks of all devices on a GPU take at most half of its multiprocessors; device_barrier.h says
 * why. */
static int barrier_blocks(const peer_comm *comm)
{
    int most = TSR_CUDA_MAX_BARRIER_BLOCKS;
    for (int i = 0; i < comm->base.n_devices; i++) {
        int sharers = 0;
        for (int j = 0; j < comm->base.n_devices && comm->devices[i]; j++)
            sharers += comm->devices[j] && comm->devices[j]->ordinal == comm->devices[i]->ordinal;
        if (comm->devices[i])
            most = TSR_MIN(most, comm->devices[i]->props.n_sms / 2 / sharers);
    }
    return TSR_MAX(most, 1);
}

tsr_status tsr_comm_peer_create(tsr_device *const *devices, int n_devices, const tsr_device_set *reach,
                                tsr_peer_form form, tsr_comm **comm_out)
{
    tsr_status status = TSR_OK;
    peer_comm *comm = NULL;
    if (n_devices < 1 || n_devices > TSR_CUDA_MAX_PEERS)
        return tsr_fail(TSR_ERR_INVALID, "a communicator between %d devices; 1 to %d are possible", n_devices,
                        (int)TSR_CUDA_MAX_PEERS);
    TSR_TRY(TSR_NEW(&comm, "a communicator"));
    comm->base = (tsr_comm){.ops = &form_ops[form], .n_devices = n_devices};
    comm->form = form;
    enlist(comm, devices, reach);
    if (comm->n == 0)
        TSR_TRY(tsr_fail(TSR_ERR_UNSUPPORTED, "no device reaches another"));
    comm->max_blocks = barrier_blocks(comm);
    TSR_TRY(tsr_cuda_counters_create(&comm->counters, comm->devices + comm->first, comm->n,
                                     2 * n_counts(comm->n) * sizeof(uint64_t), 1 + (int)n_received(comm)));
    comm->aborted = (uint32_t *)comm->counters.words;
    if (pushes(comm))
        TSR_TRY(
            tsr_cuda_inboxes_create(&comm->inboxes, comm->devices + comm->first, comm->n,
                                    (size_t)tsr_cuda_push_inbox(comm->n, comm->max_blocks) * sizeof(uint64_t),
                                    form == TSR_PEER_PINNED));
    *comm_out = &comm->base;
    comm = NULL;
out:
    if (comm)
        peer_destroy(&comm->base);
    return status;
}
