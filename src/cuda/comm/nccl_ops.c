/* The ops of a stream by NCCL: a device's part of a collective.
 *
 * An all-reduce is NCCL's sum, in place in the device's partial, and our own kernel that converts it and adds
 * the residual. A device without a partial contributes zeros from its scratch, piece by piece where the
 * scratch is smaller; the other devices cut the same pieces.
 *
 * An all-gather is a broadcast by each device of its part, all in one group. The parts of one row are
 * received side by side in place. The parts of several rows go through the scratch and are copied to their
 * columns.
 *
 * A transfer crosses once to each other process; the GPU that receives it there sends it to the others of
 * that process. */
#include "cuda/comm/nccl_ops.h"

#include "core/event.h"
#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/comm/nccl_announce.h"
#include "cuda/comm/nccl_comm.h"
#include "cuda/kernels/kernels.h"

/* An op on its way to a stream. */
typedef struct enqueueing {
    nccl_comm *comm;
    const nccl_collective *collective;
    tsr_cuda_device *cuda;
    cudaStream_t stream;
    /* arguments of the calls in one group */
    const void *from;
    void *to;
    size_t count; /* elements of the reduction; rows of a gather */
} enqueueing;

static tsr_status announce(const enqueueing *e, tsr_device_set participants)
{
    int self = e->cuda->base.index;
    return tsr_cuda_nccl_announce(participants & ~tsr_device_set_one(self), e->comm->counters.counts[self],
                                  e->comm->counters.progress + self * e->comm->base.n_devices, e->stream);
}

static tsr_status issue(enqueueing *e, tsr_nccl_calls calls)
{
    if (!e->collective->group->clique)
        return tsr_fail(e->comm->broken, "%s", e->comm->broken_text);
    return tsr_nccl_clique_issue(e->collective->group->clique, tsr_device_set_one(e->cuda->base.index), calls,
                                 e, TSR_FOREVER);
}

static tsr_status call_all_reduce(const tsr_nccl_library *nccl, ncclComm_t comm, int index, void *what)
{
    const enqueueing *e = what;
    static const ncclDataType_t types[] = {[TSR_REDUCE_EXACT] = ncclInt64,
                                           [TSR_REDUCE_F32] = ncclFloat32,
                                           [TSR_REDUCE_BF16] = TSR_NCCL_BFLOAT16};
    ncclDataType_t type = types[e->collective->as.desc.reduce];
    (void)index;
    return TSR_NCCL_ON(nccl, comm, ncclAllReduce(e->from, e->to, e->count, type, ncclSum, comm, e->stream));
}

/* Whether the sum is computed in one piece. */
static bool is_whole(const tsr_collective_desc *desc)
{
    return desc->contributors == desc->participants;
}

/* `norm` may be NULL; given only where the sum is whole. */
static tsr_status enqueue_all_reduce(enqueueing *e, const tsr_op_all_reduce *op, const tsr_op_rms_norm *norm)
{
    tsr_status status = TSR_OK;
    const tsr_collective_desc *desc = &e->collective->as.desc;
    const tsr_cuda_stream s = {.stream = e->stream, .props = &e->cuda->props};
    size_t size = tsr_reduce_bytes(desc->reduce);
    bool contributes = tsr_device_set_has(desc->contributors, e->cuda->base.index);
    int64_t piece = op->n;
    if (!is_whole(desc))
        piece = TSR_MIN(piece, (int64_t)(e->comm->scratch_bytes / size));
    TSR_TRY(announce(e, desc->participants));
    for (int64_t begin = 0; begin < op->n; begin += piece) {
        e->count = (size_t)TSR_MIN(piece, op->n - begin);
        e->to = contributes ? (unsigned char *)desc->partial[e->cuda->base.index] + (size_t)begin * size
                            : e->cuda->base.scratch;
        e->from = e->to;
        if (!contributes)
            TSR_TRY(TSR_CUDA(cudaMemsetAsync(e->to, 0, e->count * size, e->stream)));
        TSR_TRY(issue(e, call_all_reduce));
        const tsr_cuda_reduction reduction = {.type = desc->reduce,
                                              .n_parts = 1,
                                              .parts = {e->to},
                                              .residual = op->residual ? op->residual + begin : NULL,
                                              .y = op->y + begin,
                                              .n = (int64_t)e->count};
        TSR_TRY(tsr_cuda_reduce(&reduction, norm, &s));
    }
out:
    return status;
}

/* Broadcast e->count rows of every participant's part, from e->from of this device's own, to consecutive
 * blocks at e->to. */
static tsr_status call_broadcasts(const tsr_nccl_library *nccl, ncclComm_t comm, int index, void *what)
{
    tsr_status status = TSR_OK;
    const enqueueing *e = what;
    const tsr_collective_desc *desc = &e->collective->as.desc;
    (void)index;
    for (int i = 0; i < e->comm->base.n_devices; i++) {
        size_t n = (size_t)(desc->begin[i + 1] - desc->begin[i]) * e->count;
        float *to = (float *)e->to + (size_t)desc->begin[i] * e->count;
        if (n > 0)
            TSR_TRY(TSR_NCCL_ON(nccl, comm,
                                ncclBroadcast(e->from, to, n, ncclFloat32,
                                              tsr_nccl_clique_rank(e->collective->group->clique, i), comm,
                                              e->stream)));
    }
out:
    return status;
}

/* Copy blocks in the scratch to columns. */
static tsr_status copy_columns(const enqueueing *e, float *y, int64_t n)
{
    tsr_status status = TSR_OK;
    const tsr_collective_desc *desc = &e->collective->as.desc;
    for (int i = 0; i < e->comm->base.n_devices; i++) {
        size_t width = (size_t)(desc->begin[i + 1] - desc->begin[i]) * sizeof(float);
        if (width > 0)
            TSR_TRY(TSR_CUDA(cudaMemcpy2DAsync(y + desc->begin[i], (size_t)n * sizeof(float),
                                               (const float *)e->to + (size_t)desc->begin[i] * e->count,
                                               width, width, e->count, cudaMemcpyDeviceToDevice, e->stream)));
    }
out:
    return status;
}

static tsr_status enqueue_all_gather(enqueueing *e, const tsr_op_all_gather *op)
{
    tsr_status status = TSR_OK;
    const tsr_collective_desc *desc = &e->collective->as.desc;
    int self = e->cuda->base.index;
    int64_t width = desc->begin[self + 1] - desc->begin[self];
    int64_t fit = (int64_t)(e->comm->scratch_bytes / sizeof(float)) / TSR_MAX(op->n, 1);
    int64_t piece = TSR_MAX(TSR_MIN(op->n_rows, fit), 1);
    TSR_TRY(announce(e, desc->participants));
    for (int64_t row = 0; row < op->n_rows; row += piece) {
        float *y = op->y + row * op->n;
        e->count = (size_t)TSR_MIN(piece, op->n_rows - row);
        e->from = width > 0 ? (const float *)desc->partial[self] + row * width : NULL;
        e->to = piece > 1 ? e->cuda->base.scratch : y;
        TSR_TRY(issue(e, call_broadcasts));
        if (piece > 1)
            TSR_TRY(copy_columns(e, y, op->n));
    }
out:
    return status;
}

/* The device from which receiver i of a transfer gets the values: the first receiver of another process than
 * the sender's gets them from the sender, and the others of that process from the first. */
static int source_of(const enqueueing *e, int i)
{
    const tsr_collective_desc *desc = &e->collective->as.desc;
    const int sender = tsr_device_set_first(desc->contributors), *process = e->comm->process;
    TSR_FOR_DEVICES(first, process[i] == process[sender] ? 0 : desc->participants)
        if (process[first] == process[i])
            return first == i ? sender : first;
    return sender;
}

/* The receivers that get the values from device `index`. */
static tsr_device_set served_by(const enqueueing *e, int index)
{
    const tsr_collective_desc *desc = &e->collective->as.desc;
    tsr_device_set served = 0;
    TSR_FOR_DEVICES(i, desc->participants & ~desc->contributors)
        served |= source_of(e, i) == index ? tsr_device_set_one(i) : 0;
    return served;
}

static tsr_status call_sends(const tsr_nccl_library *nccl, ncclComm_t comm, int index, void *what)
{
    tsr_status status = TSR_OK;
    const enqueueing *e = what;
    const tsr_nccl_clique *clique = e->collective->group->clique;
    TSR_FOR_DEVICES(i, served_by(e, index))
        TSR_TRY(TSR_NCCL_ON(
            nccl, comm,
            ncclSend(e->from, e->count, ncclFloat32, tsr_nccl_clique_rank(clique, i), comm, e->stream)));
out:
    return status;
}

static tsr_status call_recv(const tsr_nccl_library *nccl, ncclComm_t comm, int index, void *what)
{
    const enqueueing *e = what;
    const tsr_nccl_clique *clique = e->collective->group->clique;
    return TSR_NCCL_ON(nccl, comm,
                       ncclRecv(e->to, e->count, ncclFloat32,
                                tsr_nccl_clique_rank(clique, source_of(e, index)), comm, e->stream));
}

static tsr_status enqueue_send(enqueueing *e, const tsr_op_send *op)
{
    tsr_status status = TSR_OK;
    e->from = op->x;
    e->count = (size_t)op->n;
    TSR_TRY(announce(e, e->collective->as.desc.participants));
    status = issue(e, call_sends);
out:
    return status;
}

/* All receivers are announced to the sender, which is then known to be missing. */
static tsr_status enqueue_recv(enqueueing *e, const tsr_op_recv *op)
{
    tsr_status status = TSR_OK;
    const int self = e->cuda->base.index;
    const tsr_device_set next = served_by(e, self);
    e->to = op->y;
    e->from = op->y;
    e->count = (size_t)op->n;
    TSR_TRY(announce(e, e->collective->as.desc.contributors | tsr_device_set_one(source_of(e, self)) | next));
    TSR_TRY(issue(e, call_recv));
    if (next)
        status = issue(e, call_sends);
out:
    return status;
}

tsr_status tsr_nccl_enqueue(tsr_comm *base, tsr_device *device, const tsr_op *op, void *stream)
{
    enqueueing e = {.comm = (nccl_comm *)base, .cuda = tsr_cuda(device), .stream = stream};
    switch (op->kind) {
    case TSR_OP_ALL_REDUCE:
        e.collective = (const nccl_collective *)op->all_reduce.collective;
        return enqueue_all_reduce(&e, &op->all_reduce, NULL);
    case TSR_OP_ALL_GATHER:
        e.collective = (const nccl_collective *)op->all_gather.collective;
        return enqueue_all_gather(&e, &op->all_gather);
    case TSR_OP_SEND:
        e.collective = (const nccl_collective *)op->send.collective;
        return enqueue_send(&e, &op->send);
    case TSR_OP_RECV:
        e.collective = (const nccl_collective *)op->recv.collective;
        return enqueue_recv(&e, &op->recv);
    default:
        return tsr_fail(TSR_ERR_INVALID, "%s is not a collective", tsr_op_kind_name(op->kind));
    }
}

/* The kernel that converts the sum also normalises it. */
tsr_status tsr_nccl_enqueue_norm(tsr_comm *base, tsr_device *device, const tsr_op *op, const tsr_op *norm,
                                 void *stream, bool *done_out)
{
    const nccl_collective *collective = (const nccl_collective *)op->all_reduce.collective;
    enqueueing e = {
        .comm = (nccl_comm *)base, .collective = collective, .cuda = tsr_cuda(device), .stream = stream};
    *done_out = is_whole(&collective->as.desc);
    return *done_out ? enqueue_all_reduce(&e, &op->all_reduce, &norm->rms_norm) : TSR_OK;
}
