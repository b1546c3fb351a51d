/* See between.h. */
#include "cuda/comm/between/between.h"

#include <stdio.h>
#include <unistd.h>

#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/comm/between/state.h"
#include "cuda/comm/collective.h"

/* -- the ops of a stream -- */

static int place_of(const between_comm *comm, int device)
{
    return tsr_device_set_place(comm->members, device);
}

/* The places of devices. */
static tsr_device_set places_of(const between_comm *comm, tsr_device_set devices)
{
    tsr_device_set places = 0;
    TSR_FOR_DEVICES(d, devices)
        places |= tsr_device_set_one(place_of(comm, d));
    return places;
}

static tsr_device_set devices_at(const between_comm *comm, tsr_device_set places)
{
    tsr_device_set devices = 0;
    TSR_FOR_DEVICES(d, comm->members)
        devices |= tsr_device_set_has(places, place_of(comm, d)) ? tsr_device_set_one(d) : 0;
    return devices;
}

tsr_cuda_push tsr_between_push(const between_comm *comm, int device, tsr_device_set participants,
                               tsr_device_set contributors)
{
    const int self = place_of(comm, device);
    tsr_cuda_push push = {
        .barrier = {.self = self,
                    .n_devices = comm->n,
                    .max_blocks = comm->max_blocks,
                    .participants = places_of(comm, participants),
                    .sent = comm->counters.counts[self],
                    .received = tsr_cuda_boxes_received(&comm->boxes, self, self),
                    .progress = (uint64_t *)comm->boxes.seen[self] + (ptrdiff_t)self * comm->n,
                    .aborted = comm->aborted},
        .contributors = places_of(comm, contributors),
        .region = tsr_cuda_push_region(comm->n)};
    for (int i = 0; i < comm->n; i++) {
        push.barrier.announce[i] = tsr_cuda_boxes_received(&comm->boxes, self, i) + self;
        push.inbox[i] = tsr_cuda_boxes_inbox(&comm->boxes, self, i);
    }
    return push;
}

/* The elements of a round of a pushed sum; 0: as many as suit it. */
static int64_t row_of(const between_comm *comm, const tsr_collective_desc *desc)
{
    return tsr_collective_is_narrow(desc) ? 0 : tsr_cuda_push_row(comm->n, desc->reduce, desc->row);
}

static tsr_status enqueue_all_reduce(const between_comm *comm, tsr_cuda_device *cuda,
                                     const tsr_op_all_reduce *op, const tsr_op_rms_norm *norm,
                                     cudaStream_t stream)
{
    const tsr_collective_desc *desc = op->collective->desc;
    const int self = cuda->base.index;
    const tsr_cuda_stream s = {.stream = stream, .props = &cuda->props};
    tsr_cuda_push push = tsr_between_push(comm, self, desc->participants, desc->contributors);
    tsr_cuda_reduction sum = {.type = desc->reduce, .residual = op->residual, .y = op->y, .n = op->n};
    int part = -1;
    push.row = row_of(comm, desc);
    push.narrow = tsr_collective_is_narrow(desc);
    TSR_FOR_DEVICES(d, desc->contributors) {
        part = d == self ? sum.n_parts : part;
        sum.parts[sum.n_parts++] = desc->partial[d];
    }
    return tsr_cuda_push_reduce(&push, &sum, part, norm, &s);
}

static tsr_status between_enqueue_norm(tsr_comm *base, tsr_device *device, const tsr_op *op,
                                       const tsr_op *norm, void *stream, bool *done_out)
{
    const between_comm *comm = (const between_comm *)base;
    *done_out = norm->rms_norm.n == row_of(comm, op->all_reduce.collective->desc);
    if (!*done_out)
        return TSR_OK;
    return enqueue_all_reduce(comm, tsr_cuda(device), &op->all_reduce, &norm->rms_norm, stream);
}

/* n elements at `x` of device `from` to `y` on every participant. */
static tsr_status enqueue_copy(const between_comm *comm, tsr_cuda_device *cuda, tsr_device_set participants,
                               int from, const float *x, float *y, int64_t n, cudaStream_t stream)
{
    const tsr_cuda_stream s = {.stream = stream, .props = &cuda->props};
    const tsr_cuda_push push =
        tsr_between_push(comm, cuda->base.index, participants, tsr_device_set_one(from));
    const tsr_cuda_reduction sum = {.type = TSR_REDUCE_F32, .n_parts = 1, .parts = {x}, .y = y, .n = n};
    return tsr_cuda_push_reduce(&push, &sum, cuda->base.index == from ? 0 : -1, NULL, &s);
}

/* One device's columns of a gather, as many rows at a time as the scratch takes. */
static tsr_status gather_columns(const between_comm *comm, tsr_cuda_device *cuda, const tsr_op_all_gather *op,
                                 int from, cudaStream_t stream)
{
    tsr_status status = TSR_OK;
    const tsr_collective_desc *desc = op->collective->desc;
    const int64_t begin = desc->begin[from], width = desc->begin[from + 1] - begin;
    const int64_t most = (int64_t)(comm->scratch_bytes / sizeof(float)) / TSR_MAX(width, (int64_t)1);
    for (int64_t row = 0, n; row < op->n_rows && width > 0; row += n) {
        n = op->n_rows == 1 ? 1 : TSR_MIN(op->n_rows - row, TSR_MAX(most, (int64_t)1));
        float *y = op->y + row * op->n + begin, *to = n == 1 ? y : cuda->base.scratch;
        TSR_TRY(enqueue_copy(comm, cuda, desc->participants, from,
                             (const float *)desc->partial[from] + row * width, to, n * width, stream));
        if (to != y)
            TSR_TRY(TSR_CUDA(cudaMemcpy2DAsync(y, (size_t)op->n * sizeof(float), to,
                                               (size_t)width * sizeof(float), (size_t)width * sizeof(float),
                                               (size_t)n, cudaMemcpyDeviceToDevice, stream)));
    }
out:
    return status;
}

static tsr_status enqueue_all_gather(const between_comm *comm, tsr_cuda_device *cuda,
                                     const tsr_op_all_gather *op, cudaStream_t stream)
{
    tsr_status status = TSR_OK;
    TSR_FOR_DEVICES(d, op->collective->desc->participants)
        TSR_TRY(gather_columns(comm, cuda, op, d, stream));
out:
    return status;
}

static tsr_status between_enqueue(tsr_comm *base, tsr_device *device, const tsr_op *op, void *stream)
{
    const between_comm *comm = (const between_comm *)base;
    tsr_cuda_device *cuda = tsr_cuda(device);
    const tsr_collective_desc *desc = tsr_op_collective(op)->desc;
    const int sender = tsr_device_set_first(desc->contributors);
    switch (op->kind) {
    case TSR_OP_ALL_REDUCE:
        return enqueue_all_reduce(comm, cuda, &op->all_reduce, NULL, stream);
    case TSR_OP_ALL_GATHER:
        return enqueue_all_gather(comm, cuda, &op->all_gather, stream);
    case TSR_OP_SEND: /* its own copy, of the sum that it takes part in, is not read */
        return enqueue_copy(comm, cuda, desc->participants, sender, op->send.x, desc->partial[sender],
                            op->send.n, stream);
    case TSR_OP_RECV:
        return enqueue_copy(comm, cuda, desc->participants, sender, NULL, op->recv.y, op->recv.n, stream);
    default:
        return tsr_fail(TSR_ERR_INVALID, "%s is not a collective", tsr_op_kind_name(op->kind));
    }
}

/* -- collectives -- */

/* Whether they are on one machine, this one or another. */
static bool are_together(const between_comm *comm, tsr_device_set devices)
{
    return !(devices & ~comm->neighbours.on[tsr_device_set_first(devices)]);
}

static bool between_stages(const tsr_comm *base, tsr_device_set devices)
{
    return !base->gpus && !are_together((const between_comm *)base, devices);
}

static bool is_for_nccl(const between_comm *comm, const tsr_collective_desc *desc)
{
    return comm->base.gpus && (!are_together(comm, desc->participants) ||
                               (desc->kind == TSR_OP_ALL_REDUCE && desc->n >= TSR_NARROW_FROM &&
                                tsr_device_set_count(desc->participants) > TSR_BETWEEN_MOST));
}

static tsr_status collective_create(tsr_comm *base, const tsr_collective_desc *desc,
                                    tsr_collective **collective_out)
{
    tsr_status status = TSR_OK;
    tsr_cuda_collective *c = NULL;
    if (is_for_nccl((const between_comm *)base, desc))
        return base->gpus->ops->collective_create(base->gpus, desc, collective_out);
    TSR_TRY(TSR_NEW(&c, "a collective"));
    TSR_TRY(tsr_cuda_collective_init(c, base, desc));
    *collective_out = &c->base;
    c = NULL;
out:
    if (c)
        tsr_cuda_collective_destroy(base, &c->base);
    return status;
}

/* -- aborting -- */

static void between_abort(tsr_comm *base)
{
    const between_comm *comm = (const between_comm *)base;
    if (comm->aborted)
        __atomic_store_n(comm->aborted, 1u, __ATOMIC_SEQ_CST);
    if (base->gpus)
        base->gpus->ops->abort(base->gpus);
}

static bool between_aborted(tsr_comm *base)
{
    const between_comm *comm = (const between_comm *)base;
    return (comm->aborted && __atomic_load_n(comm->aborted, __ATOMIC_SEQ_CST) != 0) ||
           (base->gpus && base->gpus->ops->aborted(base->gpus));
}

/* Only where captures of NCCL's operations were given up, in all processes, and no kernel has run: after an
 * abort of work all communicators are made again. */
static void between_reset(tsr_comm *base)
{
    const between_comm *comm = (const between_comm *)base;
    if (base->gpus)
        base->gpus->ops->reset(base->gpus);
    if (comm->aborted)
        __atomic_store_n(comm->aborted, 0u, __ATOMIC_SEQ_CST);
    base->epoch++;
}

static tsr_device_set between_missing(tsr_comm *base, const tsr_collective *collective, int index)
{
    const between_comm *comm = (const between_comm *)base;
    return devices_at(comm, tsr_cuda_counters_missing(&comm->counters,
                                                      places_of(comm, collective->desc->participants),
                                                      place_of(comm, index)));
}

static tsr_status between_poll(tsr_comm *base, tsr_device *device)
{
    between_comm *comm = (between_comm *)base;
    tsr_status status = tsr_processes_check(comm->processes);
    const int place = place_of(comm, device->index);
    const tsr_device_set missing =
        tsr_cuda_counters_missing(&comm->counters, tsr_device_set_all(comm->n), place);
    if (status == TSR_OK && missing)
        status = tsr_cuda_late_check(&comm->late[place], comm->processes, tsr_cuda(device),
                                     tsr_cuda_counters_arrivals(&comm->counters, place),
                                     devices_at(comm, missing));
    if (status == TSR_OK && base->gpus)
        status = base->gpus->ops->poll(base->gpus, device);
    return status;
}

/* -- creation -- */

static void between_destroy(tsr_comm *base)
{
    between_comm *comm = (between_comm *)base;
    tsr_comm_destroy(base->gpus);
    tsr_cuda_boxes_close(&comm->boxes, tsr_cuda_neighbours_processes(&comm->neighbours, comm->members));
    tsr_cuda_counters_destroy(&comm->counters);
    tsr_mem_free(comm);
}

#define BETWEEN_OPS(name)                                                                       \
    {                                                                                           \
        .kind = (name), .destroy = between_destroy, .collective_create = collective_create,     \
        .collective_destroy = tsr_cuda_collective_destroy, .stages = between_stages,            \
        .enqueue = between_enqueue, .enqueue_norm = between_enqueue_norm, .poll = between_poll, \
        .aborted = between_aborted, .abort = between_abort, .reset = between_reset,             \
        .missing = between_missing,                                                             \
    }
static const struct tsr_comm_ops on_devices = BETWEEN_OPS("peer push"),
                                 in_host_memory = BETWEEN_OPS("pinned");

static void enlist(between_comm *comm, tsr_device *const *devices, bool pinned)
{
    const int n_devices = comm->base.n_devices, rank = tsr_processes_rank(comm->processes);
    comm->scratch_bytes = SIZE_MAX;
    for (int d = 0; d < n_devices; d++)
        if (comm->neighbours.on[d] && devices[d]->process == rank) {
            comm->members = comm->neighbours.on[d];
            comm->max_blocks = comm->neighbours.max_blocks[d];
        }
    TSR_FOR_DEVICES(d, comm->members) {
        comm->devices[comm->n++] = devices[d]->elsewhere ? NULL : tsr_cuda(devices[d]);
        comm->scratch_bytes = TSR_MIN(comm->scratch_bytes, devices[d]->scratch_bytes);
    }
    tsr_cuda_boxes_init(&comm->boxes, comm->devices, comm->n, comm->max_blocks, pinned);
}

/* The first process with a GPU on the machine of device d makes the segment. */
static int maker_of(const between_comm *comm, int d)
{
    return comm->neighbours.process[tsr_device_set_first(comm->neighbours.on[d])];
}

/* Share the name of each machine's segment, and keep that of this one. */
static tsr_status share_names(const between_comm *comm, tsr_cuda_segment_name *name)
{
    tsr_status status = TSR_OK;
    tsr_device_set known = 0;
    for (int d = 0; d < comm->base.n_devices; d++) {
        tsr_cuda_segment_name its = *name;
        if (!comm->neighbours.on[d] || tsr_device_set_has(known, d))
            continue;
        TSR_TRY(tsr_processes_share(comm->processes, maker_of(comm, d), TSR_OK, &its, sizeof its, sizeof its,
                                    1, "memory of the machine"));
        if (tsr_device_set_has(comm->members, d))
            *name = its;
        known |= comm->neighbours.on[d];
    }
out:
    return status;
}

static tsr_status open_segment(between_comm *comm)
{
    tsr_status status = TSR_OK;
    tsr_cuda_segment_name name = {0};
    int file = -1;
    const size_t bytes = tsr_cuda_boxes_segment_bytes(&comm->boxes);
    if (comm->members &&
        maker_of(comm, tsr_device_set_first(comm->members)) == tsr_processes_rank(comm->processes))
        status = tsr_cuda_segment_create(bytes, &name, &file);
    TSR_TRY(tsr_processes_try(comm->processes, status, "making memory of a machine"));
    TSR_TRY(share_names(comm, &name));
    if (comm->members)
        status = tsr_cuda_segment_open(&name, bytes, &comm->boxes.segment);
    TSR_TRY(tsr_processes_try(comm->processes, status, "opening memory of a machine"));
out:
    if (file >= 0)
        close(file);
    return status;
}

/* Share the handles of all inboxes, and open those of other processes on this machine. */
static tsr_status open_boxes(between_comm *comm)
{
    tsr_status status = TSR_OK;
    const int rank = tsr_processes_rank(comm->processes);
    cudaIpcMemHandle_t handles[TSR_CUDA_MAX_PEERS];
    TSR_FOR_DEVICES(d, comm->members) {
        const int place = place_of(comm, d);
        if (comm->devices[place] && status == TSR_OK)
            status = tsr_cuda_boxes_handle(&comm->boxes, place, &handles[d]);
    }
    TSR_TRY(tsr_processes_try(comm->processes, status, "handles of inboxes"));
    for (int d = 0; d < comm->base.n_devices; d++)
        if (comm->neighbours.on[d])
            TSR_TRY(tsr_processes_share(comm->processes, comm->neighbours.process[d], TSR_OK, &handles[d],
                                        sizeof *handles, sizeof *handles, 1, "handles of inboxes"));
    TSR_FOR_DEVICES(d, comm->members)
        if (comm->neighbours.process[d] != rank && status == TSR_OK)
            status = tsr_cuda_boxes_open(&comm->boxes, place_of(comm, d), &handles[d]);
    TSR_TRY(tsr_processes_try(comm->processes, status, "opening inboxes"));
out:
    return status;
}

static tsr_status prepare_here(between_comm *comm)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_cuda_counters_create(&comm->counters, comm->devices, comm->n,
                                     (size_t)comm->n * TSR_CUDA_MAX_BARRIER_BLOCKS * sizeof(uint64_t), 1));
    comm->aborted = (uint32_t *)comm->counters.words;
    comm->counters.progress = tsr_cuda_boxes_progress(&comm->boxes); /* of all processes */
    TSR_TRY(tsr_cuda_boxes_make(&comm->boxes));
out:
    return status;
}

static tsr_status connect(between_comm *comm)
{
    tsr_status status = TSR_OK;
    TSR_TRY(open_segment(comm));
    if (comm->members)
        status = prepare_here(comm);
    TSR_TRY(tsr_processes_try(comm->processes, status, "making inboxes"));
    status = tsr_cuda_boxes_address(&comm->boxes);
    TSR_TRY(tsr_processes_try(comm->processes, status, "registering memory of a machine"));
    if (!comm->boxes.pinned)
        TSR_TRY(open_boxes(comm));
    if (comm->members)
        status = tsr_between_probe(comm);
    TSR_TRY(tsr_processes_try(comm->processes, status, "first sums between processes"));
out:
    return status;
}

static tsr_status check(const tsr_cuda_neighbours *neighbours, bool named)
{
    if (neighbours->share_gpu && !named)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "processes share a GPU, where their kernels take turns; name it to use it");
    if (!neighbours->wait)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "the devices of a process are on a GPU where fewer can wait for each other");
    return TSR_OK;
}

static tsr_status create(tsr_device *const *devices, between_comm *comm,
                         const tsr_comm_between_config *config, bool *any_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_cuda_neighbours_find(devices, comm->base.n_devices, comm->processes, &comm->neighbours));
    *any_out = comm->neighbours.several;
    if (!*any_out)
        return TSR_OK;
    TSR_TRY(check(&comm->neighbours, config->named));
    enlist(comm, devices, config->pinned);
    TSR_TRY(connect(comm));
out:
    return status;
}

/* Whether GPUs are on several machines, or there are more than kernels should serve alone without being
 * named. */
static bool needs_nccl(const tsr_cuda_neighbours *neighbours, int n_devices, bool named)
{
    tsr_device_set all = 0;
    for (int d = 0; d < n_devices; d++)
        all |= neighbours->on[d];
    return (tsr_device_set_count(all) > TSR_BETWEEN_MOST && !named) ||
           (all & ~neighbours->on[tsr_device_set_first(all)]);
}

tsr_status tsr_comm_between_create(tsr_device *const *devices, int n_devices,
                                   const tsr_comm_between_config *config, bool *needs_nccl_out,
                                   tsr_comm **comm_out)
{
    tsr_status status = TSR_OK;
    between_comm *comm = NULL;
    bool any = false;
    if (n_devices > TSR_CUDA_MAX_PEERS)
        return tsr_fail(TSR_ERR_INVALID, "kernels between %d devices; at most %d are possible", n_devices,
                        (int)TSR_CUDA_MAX_PEERS);
    TSR_TRY(
        tsr_processes_try(config->processes, TSR_NEW(&comm, "a communicator"), "kernels between processes"));
    comm->base = (tsr_comm){.ops = config->pinned ? &in_host_memory : &on_devices, .n_devices = n_devices};
    comm->processes = config->processes;
    TSR_TRY(create(devices, comm, config, &any));
    *needs_nccl_out = !any || needs_nccl(&comm->neighbours, n_devices, config->named);
    if (!any)
        goto out;
    tsr_log(config->logger, TSR_LOG_INFO, "kernels connect %d GPUs of %d processes, by %s", comm->n,
            tsr_cuda_neighbours_processes(&comm->neighbours, comm->members),
            config->pinned ? "host memory" : "peer memory");
    *comm_out = &comm->base;
    comm = NULL;
out:
    if (comm)
        between_destroy(&comm->base);
    return status;
}

void tsr_comm_between_add(tsr_comm *comm, tsr_comm *nccl)
{
    nccl->whole = comm;
    comm->gpus = nccl;
}
