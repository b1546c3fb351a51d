/* The shared-memory communicator; see local.h. Synchronisation is in barrier.c. */
#include "comm/local.h"

#include <assert.h>
#include <string.h>

#include "comm/barrier.h"
#include "comm/planes.h"
#include "comm/reduce.h"
#include "core/mem.h"

typedef struct local_comm local_comm;
typedef struct local_collective local_collective;

struct local_collective {
    tsr_collective base;
    local_collective *next, **link; /* in the communicator's list; `link` is the pointer to this one */
    tsr_collective_desc desc;       /* begin and partial are owned copies */
    tsr_reducer reducer;
    const void *parts[TSR_MAX_RANKS]; /* the contributors' partials, in rank order */
    void *own[TSR_MAX_RANKS];         /* the contributors' partials, writable */
    int n_parts;
    bool in_planes[TSR_MAX_RANKS]; /* a part that a GPU stages (planes.h) */
    bool any_in_planes;
    bool in_two_steps;
    int64_t *begin; /* copy of desc.begin */
    void **partial; /* copy of desc.partial */
    tsr_barrier barrier;
};

struct local_comm {
    tsr_comm base;
    local_collective *collectives;
    unsigned char gap[64]; /* `aborted` is polled by all threads and rarely written */
    _Atomic bool aborted;
};

/* One thread of one rank, with its collective. */
typedef struct caller {
    tsr_participant as;
    local_collective *collective;
} caller;

static bool wait_for_all(const caller *me)
{
    return tsr_barrier_wait(&me->as, me->collective->desc.participants);
}

/* -- collectives -- */

/* The sums of all parts, of elements [begin, end) inside a piece (planes.h). */
static void sum_piece(const local_collective *c, int64_t begin, int64_t end, int64_t *sums)
{
    tsr_planes_sum(&c->reducer, c->parts, c->in_planes, c->n_parts, c->desc.n, begin, end, sums);
}

/* y[i] = sum of all parts + residual, for elements [begin, end). */
static void finish_parts(const local_collective *c, const float *residual, float *y, int64_t begin,
                         int64_t end)
{
    int64_t sums[TSR_PLANES_PIECE];
    const void *piece = sums;
    if (!c->any_in_planes) {
        c->reducer.finish(c->parts, c->n_parts, residual, y, begin, end);
        return;
    }
    for (int64_t to; begin < end; begin = to) {
        to = tsr_planes_piece_end(begin, end);
        sum_piece(c, begin, to, sums);
        c->reducer.finish(&piece, 1, residual ? residual + begin : NULL, y + begin, 0, to - begin);
    }
}

/* Store the sums of elements [begin, end) in the partial of contributor j: integers, or f32 in planes. */
static void add_parts(const local_collective *c, int j, int64_t begin, int64_t end)
{
    int64_t sums[TSR_PLANES_PIECE];
    const void *piece = sums;
    if (!c->any_in_planes) {
        c->reducer.add(c->parts, c->n_parts, c->own[j], begin, end);
        return;
    }
    for (int64_t to; begin < end; begin = to) {
        to = tsr_planes_piece_end(begin, end);
        sum_piece(c, begin, to, sums);
        float *y = c->in_planes[j] ? tsr_planes_f32(c->own[j], c->desc.n, begin) : NULL;
        if (y)
            c->reducer.finish(&piece, 1, NULL, y, 0, to - begin);
        else
            memcpy((int64_t *)c->own[j] + begin, sums, (size_t)(to - begin) * sizeof *sums);
    }
}

/* y[i] = sum + residual, for elements [begin, end) whose sums add_parts() has stored. */
static void finish_sums(const local_collective *c, int j, const float *residual, float *y, int64_t begin,
                        int64_t end)
{
    if (!c->in_planes[j])
        c->reducer.finish(&c->parts[j], 1, residual, y, begin, end);
    for (int64_t to; c->in_planes[j] && begin < end; begin = to) {
        to = tsr_planes_piece_end(begin, end);
        const float *sum = tsr_planes_f32(c->own[j], c->desc.n, begin);
        for (int64_t i = begin; sum && i < to; i++)
            y[i] = residual ? sum[i - begin] + residual[i] : sum[i - begin];
        if (!sum)
            c->reducer.finish(&c->parts[j], 1, residual, y, begin, to);
    }
}

/* Reduce-scatter into the contributors' own partials, then all-gather with the conversion. Contributor j
 * owns part j of the elements: only contributor j reads that part of its partial in the first step, so it
 * may write there. */
static bool all_reduce_in_two_steps(const caller *me, const tsr_op_all_reduce *op)
{
    const local_collective *c = me->collective;
    for (int j = 0; j < c->n_parts; j++) {
        if (c->own[j] != c->partial[me->as.rank])
            continue;
        int64_t begin, end, from, to;
        tsr_divide_elements(op->n, j, c->n_parts, &begin, &end);
        tsr_divide_elements(end - begin, me->as.thread, me->as.n_threads, &from, &to);
        add_parts(c, j, begin + from, begin + to);
    }
    if (!wait_for_all(me))
        return false;
    int64_t from, to;
    tsr_divide_elements(op->n, me->as.thread, me->as.n_threads, &from, &to);
    for (int j = 0; j < c->n_parts; j++) {
        int64_t begin, end;
        tsr_divide_elements(op->n, j, c->n_parts, &begin, &end);
        begin = TSR_MAX(begin, from);
        end = TSR_MIN(end, to);
        if (begin < end)
            finish_sums(c, j, op->residual, op->y, begin, end);
    }
    return true;
}

static bool run_all_reduce(const caller *me, const tsr_op_all_reduce *op)
{
    const local_collective *c = me->collective;
    assert(op->n == c->desc.n);
    if (!wait_for_all(me))
        return false;
    if (c->in_two_steps)
        return all_reduce_in_two_steps(me, op);
    int64_t begin, end;
    tsr_divide_elements(op->n, me->as.thread, me->as.n_threads, &begin, &end);
    finish_parts(c, op->residual, op->y, begin, end);
    return true;
}

static bool run_all_gather(const caller *me, const tsr_op_all_gather *op)
{
    const local_collective *c = me->collective;
    assert(op->n == c->desc.n && op->n_rows == c->desc.n_rows);
    if (!wait_for_all(me))
        return false;
    int64_t begin, end;
    tsr_divide_elements(op->n * op->n_rows, me->as.thread, me->as.n_threads, &begin, &end);
    tsr_gather_parts(&c->desc, c->desc.participants, begin, end, op->y);
    return true;
}

/* The staging buffer is free once every receiver has raised its phase to the sender's. */
static bool run_send(const caller *me, const tsr_op_send *op)
{
    const local_collective *c = me->collective;
    assert(op->n == c->desc.n);
    uint64_t phase = tsr_barrier_next_phase(&me->as);
    if (!tsr_barrier_await(&me->as, c->desc.participants & ~c->desc.contributors, phase - 1))
        return false;
    int64_t begin, end;
    tsr_divide_elements(op->n, me->as.thread, me->as.n_threads, &begin, &end);
    memcpy((float *)c->own[0] + begin, op->x + begin, (size_t)(end - begin) * sizeof(float));
    tsr_barrier_arrive(&me->as, phase, 0);
    return true;
}

static bool run_recv(const caller *me, const tsr_op_recv *op)
{
    const local_collective *c = me->collective;
    assert(op->n == c->desc.n);
    uint64_t phase = tsr_barrier_next_phase(&me->as);
    if (!tsr_barrier_await(&me->as, c->desc.contributors, phase))
        return false;
    int64_t begin, end;
    tsr_divide_elements(op->n, me->as.thread, me->as.n_threads, &begin, &end);
    memcpy(op->y + begin, (const float *)c->parts[0] + begin, (size_t)(end - begin) * sizeof(float));
    tsr_barrier_arrive(&me->as, phase, 0);
    return true;
}

static bool local_run(tsr_comm *comm, tsr_device *device, const tsr_op *op, int thread, int n_threads)
{
    if (atomic_load(&((local_comm *)comm)->aborted))
        return false;
    caller me = {.collective = (local_collective *)tsr_op_collective(op)};
    assert(me.collective);
    me.as = tsr_participant_of(&me.collective->barrier, device, thread, n_threads);
    switch (op->kind) {
    case TSR_OP_ALL_REDUCE:
        return run_all_reduce(&me, &op->all_reduce);
    case TSR_OP_ALL_GATHER:
        return run_all_gather(&me, &op->all_gather);
    case TSR_OP_SEND:
        return run_send(&me, &op->send);
    default:
        return run_recv(&me, &op->recv);
    }
}

static void local_finish(tsr_comm *comm, const tsr_op *op, int64_t begin, int64_t end)
{
    (void)comm;
    const local_collective *c = (const local_collective *)op->all_reduce.collective;
    c->reducer.finish(c->parts, c->n_parts, op->all_reduce.residual, op->all_reduce.y, begin, end);
}

/* -- creation -- */

static tsr_status check_desc(const tsr_comm *comm, const tsr_collective_desc *desc)
{
    tsr_device_set all = tsr_device_set_all(comm->n_devices);
    const char *problem = NULL;
    if (desc->kind != TSR_OP_ALL_REDUCE && desc->kind != TSR_OP_ALL_GATHER && desc->kind != TSR_OP_SEND)
        problem = "is not an all-reduce, all-gather or send";
    else if (desc->participants == 0 || desc->participants & ~all)
        problem = "names participants that the communicator does not have";
    else if (desc->contributors & ~desc->participants)
        problem = "has contributors that do not participate";
    else if (desc->kind == TSR_OP_ALL_REDUCE && desc->contributors == 0)
        problem = "has no contributor";
    else if (desc->kind == TSR_OP_SEND && tsr_device_set_count(desc->contributors) != 1)
        problem = "needs exactly one sender";
    else if (desc->n < 0 || (desc->kind == TSR_OP_ALL_GATHER && (desc->n_rows < 0 || !desc->begin)))
        problem = "has a wrong size";
    else if (!desc->partial)
        problem = "has no buffers";
    for (int i = 0; !problem && i < comm->n_devices; i++) {
        bool needs_buffer = desc->kind == TSR_OP_ALL_GATHER ? desc->begin[i] < desc->begin[i + 1]
                                                            : tsr_device_set_has(desc->contributors, i);
        if (needs_buffer && !tsr_device_set_has(desc->participants, i))
            problem = "gathers a part of a device that does not participate";
        else if (needs_buffer && desc->n > 0 && !desc->partial[i])
            problem = "lacks the buffer of a device that contributes";
    }
    if (!problem)
        return TSR_OK;
    return tsr_fail(TSR_ERR_INVALID, "collective '%s' (%s) between %d devices %s",
                    desc->name ? desc->name : "?", tsr_op_kind_name(desc->kind), comm->n_devices, problem);
}

static void local_collective_destroy(tsr_comm *comm, tsr_collective *base)
{
    (void)comm;
    local_collective *collective = (local_collective *)base;
    if (!collective)
        return;
    if (collective->link) { /* complete, and so in the list */
        *collective->link = collective->next;
        if (collective->next)
            collective->next->link = collective->link;
    }
    tsr_barrier_free(&collective->barrier);
    tsr_mem_free(collective->begin);
    tsr_mem_free(collective->partial);
    tsr_mem_free(collective);
}

static void enlist(local_comm *comm, local_collective *collective)
{
    collective->next = comm->collectives;
    collective->link = &comm->collectives;
    if (collective->next)
        collective->next->link = &collective->next;
    comm->collectives = collective;
}

/* Minimum number of elements for two steps. One step reads n_parts partials per rank. Two steps read two
 * (the rank's part of all partials, and all sums) and synchronise once more, which costs as much as
 * reading a few thousand elements; bench/all_reduce.c measures it. */
static bool two_steps_pay(int64_t n, int n_parts)
{
    return n_parts >= 3 && n * (n_parts - 2) >= 16384;
}

static tsr_status local_collective_create(tsr_comm *comm, const tsr_collective_desc *desc,
                                          tsr_collective **collective_out)
{
    tsr_status status = TSR_OK;
    local_collective *collective = NULL;

    TSR_TRY(check_desc(comm, desc));
    TSR_TRY(TSR_NEW(&collective, "a collective"));
    collective->base.comm = comm;
    collective->base.desc = &collective->desc;
    TSR_TRY(tsr_barrier_init(&collective->barrier, comm->n_devices, &((local_comm *)comm)->aborted,
                             "a collective's ranks"));
    TSR_TRY(tsr_collective_copy_desc(desc, comm->n_devices, &collective->desc, &collective->begin,
                                     &collective->partial));
    TSR_FOR_DEVICES(i, desc->contributors) {
        collective->own[collective->n_parts] = desc->partial[i];
        collective->parts[collective->n_parts++] = desc->partial[i];
    }
    (void)tsr_reducer_select(NULL, desc->reduce, &collective->reducer); /* cannot fail: there is always the
                                                                         * generic one */
    collective->in_two_steps = two_steps_pay(desc->n, collective->n_parts);
    enlist((local_comm *)comm, collective);
    *collective_out = &collective->base;
    collective = NULL;
out:
    if (collective)
        local_collective_destroy(comm, &collective->base);
    return status;
}

/* The parts are in rank order, one per contributor. */
static void local_stage(tsr_comm *comm, tsr_collective *base, int index, void *buffer)
{
    (void)comm;
    local_collective *collective = (local_collective *)base;
    collective->partial[index] = buffer;
    if (tsr_device_set_has(collective->desc.contributors, index)) {
        int part = tsr_device_set_place(collective->desc.contributors, index);
        collective->own[part] = buffer;
        collective->parts[part] = buffer;
        collective->in_planes[part] = tsr_collective_is_narrow(&collective->desc);
        collective->any_in_planes |= collective->in_planes[part];
    }
}

static void local_abort(tsr_comm *base)
{
    local_comm *comm = (local_comm *)base;
    atomic_store(&comm->aborted, true);
    for (local_collective *c = comm->collectives; c; c = c->next)
        tsr_barrier_notify(&c->barrier);
}

static void local_reset(tsr_comm *base)
{
    local_comm *comm = (local_comm *)base;
    for (local_collective *c = comm->collectives; c; c = c->next)
        tsr_barrier_reset(&c->barrier);
    atomic_store(&comm->aborted, false);
}

/* A rank waits for those behind it. A receiver increments its phase only after the transfer, so for a
 * receiver ranks at the same phase are behind. */
static tsr_device_set local_missing(tsr_comm *comm, const tsr_collective *base, int index)
{
    (void)comm;
    const local_collective *collective = (const local_collective *)base;
    const tsr_collective_desc *desc = &collective->desc;
    bool receives = desc->kind == TSR_OP_SEND && !tsr_device_set_has(desc->contributors, index);
    uint64_t phase = atomic_load(&collective->barrier.ranks[index].phase) + (receives ? 1 : 0);
    return tsr_barrier_behind(&collective->barrier, desc->participants & ~tsr_device_set_one(index), phase);
}

static void local_destroy(tsr_comm *comm)
{
    assert(!((local_comm *)comm)->collectives);
    tsr_mem_free(comm);
}

static const struct tsr_comm_ops local_ops = {
    .kind = "staged", /* the kind as seen by a GPU */
    .destroy = local_destroy,
    .collective_create = local_collective_create,
    .collective_destroy = local_collective_destroy,
    .run = local_run,
    .finish = local_finish,
    .stage = local_stage,
    .abort = local_abort,
    .reset = local_reset,
    .missing = local_missing,
};

tsr_status tsr_comm_local_create(int n_devices, tsr_comm **comm_out)
{
    local_comm *comm = NULL;
    if (n_devices < 1 || n_devices > TSR_MAX_RANKS)
        return tsr_fail(TSR_ERR_INVALID, "a communicator of %d devices; 1 to %d are supported", n_devices,
                        (int)TSR_MAX_RANKS);
    tsr_status status = TSR_NEW(&comm, "a communicator");
    if (status != TSR_OK)
        return status;
    comm->base.ops = &local_ops;
    comm->base.n_devices = n_devices;
    *comm_out = &comm->base;
    return TSR_OK;
}
