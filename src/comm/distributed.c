/* The communicator between processes; see distributed.h.
 *
 * Collectives between GPUs only are those of their process, or of kernels or NCCL where these connect GPUs
 * of processes (cuda/comm/between, cuda/comm/nccl.h). In others a GPU stages (core/comm.h), and its host
 * thread takes part as a host device of one thread does. The participants of one process pass a barrier
 * (barrier.h) before the partials are read, before the sum is sent, and after it is received. The first of
 * them is the process's voice: its first thread exchanges while the others wait. Collectives of the same
 * devices run in the same order everywhere and use a group of their own (groups.h), so collectives
 * of other devices may be in flight at the same time.
 *
 * A small sum is computed in the partial of the process's first contributor. Only its own process reads
 * it, and it is written again only when all of them are known to have arrived at a subsequent collective.
 * A process without a contributor, and every all-gather, has memory of its own for the sum. An all-gather
 * is a sum too, of words that are zero in all processes but one. Its traffic is twice that of sending
 * rows, but no transformer gathers per layer, and no second kind of operation is needed.
 *
 * Large exact sums travel in words of 32 bits (narrow.h), TSR_NARROW_MOST at a time. The collectives of
 * the same devices share the memory of the words: none runs before all threads have left the previous one. */
#include "comm/distributed.h"

#include <assert.h>
#include <string.h>

#include "comm/local.h"
#include "comm/barrier.h"
#include "comm/groups.h"
#include "comm/handover.h"
#include "comm/narrow.h"
#include "comm/planes.h"
#include "comm/reduce.h"
#include "core/mem.h"

typedef struct distributed_comm distributed_comm;
typedef struct shared_collective shared_collective;

struct shared_collective {
    tsr_collective base;
    shared_collective *next, **link;
    tsr_collective_desc desc; /* begin and partial are owned copies */
    tsr_reducer reducer;
    tsr_device_set here;              /* participants in this process */
    int voice;                        /* the first of them; -1: none */
    const void *parts[TSR_MAX_RANKS]; /* the partials in this process */
    bool in_planes[TSR_MAX_RANKS];    /* a part that a GPU stages (planes.h) */
    int n_parts;
    void *sum;        /* of the local partials, then of all; or the gathered values. NULL: sums in words */
    void *own_sum;    /* memory of `sum` if allocated */
    size_t own_bytes; /* of own_sum */
    void *group;
    uint32_t *words;            /* of the group; NULL: sums travel as they are */
    int log2_processes;         /* as narrow.h needs it */
    tsr_collective *local_part; /* of a transfer: from its sender to receivers in this process; NULL: none */
    tsr_handover handover;      /* of a transfer, to other processes */
    int64_t *begin;
    void **partial;
    tsr_barrier barrier;
};

struct distributed_comm {
    tsr_comm base;
    tsr_comm *local; /* between the devices of this process, through host memory */
    tsr_device_set all_gpus;
    tsr_device_set inside; /* GPUs whose collectives with others of their process are that process's own,
                            * and not staged; the same in every process */
    tsr_processes *processes;
    tsr_device *const *devices;
    tsr_device_set here; /* devices of this process */
    shared_collective *collectives;
    tsr_groups groups;
    unsigned char gap[64];
    _Atomic bool aborted; /* permanent: other processes may have continued */
};

/* One thread of one device, with its collective. */
typedef struct caller {
    tsr_participant as;
    tsr_device *device;
    distributed_comm *comm;
    shared_collective *collective;
} caller;

static bool wait_for_all(const caller *me)
{
    return tsr_barrier_wait(&me->as, me->collective->here);
}

static bool is_voice(const caller *me)
{
    return me->as.rank == me->collective->voice && me->as.thread == 0;
}

/* -- exchanging -- */

/* Wait for the started transfer, or lose the processes with `problem`. */
static bool finish(const caller *me, const char *problem, tsr_transfer *transfer)
{
    if (!problem)
        return tsr_processes_wait(me->comm->processes, transfer, &me->comm->aborted);
    tsr_processes_break(me->comm->processes, problem);
    return false;
}

/* Sum n values over all processes, in place. False ends the program of every device in this process. */
static bool sum_over_processes(const caller *me, void *values, size_t n, tsr_transport_type type)
{
    const tsr_transport *t = tsr_processes_transport(me->comm->processes);
    const shared_collective *c = me->collective;
    tsr_transfer transfer;
    if (is_voice(me) && !finish(me, t->sum(t->user, c->group, values, n, type, &transfer), &transfer)) {
        atomic_store(&me->comm->aborted, true);
        tsr_barrier_notify(&me->collective->barrier);
    }
    return wait_for_all(me) && !atomic_load(&me->comm->aborted);
}

/* -- collectives -- */

/* This thread's part of n elements, divided first over the participants of this process. */
static void my_share(const caller *me, int64_t n, int64_t *begin_out, int64_t *end_out)
{
    int64_t begin, end, from, to;
    const tsr_device_set here = me->collective->here;
    const int index = tsr_device_set_place(here, me->as.rank);
    tsr_divide_elements(n, index, tsr_device_set_count(here), &begin, &end);
    tsr_divide_elements(end - begin, me->as.thread, me->as.n_threads, &from, &to);
    *begin_out = begin + from;
    *end_out = begin + to;
}

static size_t element_bytes(tsr_reduce_type type)
{
    return type == TSR_REDUCE_EXACT ? sizeof(int64_t) : sizeof(float);
}

/* Add the partials of this process into c->sum. */
static void add_here(const caller *me, int64_t n)
{
    const shared_collective *c = me->collective;
    const size_t bytes = element_bytes(c->desc.reduce);
    int64_t begin, end;
    my_share(me, n, &begin, &end);
    if (c->n_parts > 1)
        c->reducer.add(c->parts, c->n_parts, c->sum, begin, end);
    else if (c->n_parts == 0)
        memset((unsigned char *)c->sum + (size_t)begin * bytes, 0, (size_t)(end - begin) * bytes);
}

/* y = sum + residual of elements [at, at + n), whose words have been added up. */
static void finish_narrow(const caller *me, const tsr_op_all_reduce *op, int64_t at, int64_t n)
{
    enum { PIECE = 512 };
    const shared_collective *c = me->collective;
    int64_t begin, end, sums[PIECE];
    const void *piece = sums;
    tsr_divide_elements(n, me->as.thread, me->as.n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i += PIECE) {
        const int64_t some = TSR_MIN(end - i, (int64_t)PIECE);
        tsr_narrow_sums(c->words, c->words + TSR_NARROW_WORDS, n, c->log2_processes, i, i + some, sums);
        c->reducer.finish(&piece, 1, op->residual ? op->residual + at + i : NULL, op->y + at + i, 0, some);
    }
}

/* The sums of this process of elements [begin, end) inside a piece: where they are, or `piece`. */
static const int64_t *sums_here(const shared_collective *c, int64_t begin, int64_t end,
                                int64_t piece[TSR_PLANES_PIECE])
{
    if (c->n_parts == 1 && !c->in_planes[0])
        return (const int64_t *)c->parts[0] + begin;
    tsr_planes_sum(&c->reducer, c->parts, c->in_planes, c->n_parts, c->desc.n, begin, end, piece);
    return piece;
}

/* This thread's share of the words, or high words, of n elements from `at` on. */
static void write_words(const caller *me, int64_t at, int64_t n, bool high)
{
    enum { PIECE_BLOCKS = TSR_PLANES_PIECE / TSR_NARROW_BLOCK };
    const shared_collective *c = me->collective;
    uint32_t *words = c->words, *highs = words + TSR_NARROW_WORDS;
    int64_t piece[TSR_PLANES_PIECE], from, to;
    my_share(me, tsr_narrow_blocks(n), &from, &to);
    for (int64_t b = from, next; b < to; b = next) {
        next = TSR_MIN((b / PIECE_BLOCKS + 1) * PIECE_BLOCKS, to);
        const int64_t end = TSR_MIN(next * TSR_NARROW_BLOCK, n);
        const int64_t *sums = sums_here(c, at + b * TSR_NARROW_BLOCK, at + end, piece);
        if (high)
            tsr_narrow_high(sums, words, n, c->log2_processes, b, next, highs);
        else
            tsr_narrow_low(sums, n, c->log2_processes, b, next, words);
    }
}

/* The sum of all processes to y. */
static bool reduce_narrow(const caller *me, const tsr_op_all_reduce *op)
{
    const shared_collective *c = me->collective;
    for (int64_t at = 0; at < op->n; at += TSR_NARROW_MOST) {
        const int64_t n = TSR_MIN(op->n - at, (int64_t)TSR_NARROW_MOST);
        if (at > 0 && !wait_for_all(me)) /* all have read the words */
            return false;
        write_words(me, at, n, false);
        if (!wait_for_all(me) ||
            !sum_over_processes(me, c->words, (size_t)tsr_narrow_words(n), TSR_TRANSPORT_I32))
            return false;
        const int64_t n_wide = tsr_narrow_wide(c->words, n, tsr_narrow_blocks(n));
        if (n_wide > 0) {
            write_words(me, at, n, true);
            if (!wait_for_all(me) ||
                !sum_over_processes(me, c->words + TSR_NARROW_WORDS, (size_t)(n_wide * TSR_NARROW_BLOCK),
                                    TSR_TRANSPORT_I32))
                return false;
        }
        finish_narrow(me, op, at, n);
    }
    return true;
}

static bool run_all_reduce(const caller *me, const tsr_op_all_reduce *op)
{
    const shared_collective *c = me->collective;
    const bool exact = c->desc.reduce == TSR_REDUCE_EXACT;
    assert(op->n == c->desc.n);
    if (!wait_for_all(me))
        return false;
    if (c->words)
        return reduce_narrow(me, op);
    if (c->n_parts != 1) {
        add_here(me, op->n);
        if (!wait_for_all(me))
            return false;
    }
    if (!sum_over_processes(me, c->sum, (size_t)op->n, exact ? TSR_TRANSPORT_I64 : TSR_TRANSPORT_F32))
        return false;
    int64_t begin, end;
    const void *sum = c->sum;
    tsr_divide_elements(op->n, me->as.thread, me->as.n_threads, &begin, &end);
    c->reducer.finish(&sum, 1, op->residual, op->y, begin, end);
    return true;
}

static bool run_all_gather(const caller *me, const tsr_op_all_gather *op)
{
    const shared_collective *c = me->collective;
    const int64_t n = op->n * op->n_rows;
    int64_t begin, end;
    assert(op->n == c->desc.n && op->n_rows == c->desc.n_rows);
    if (!wait_for_all(me))
        return false;
    my_share(me, n, &begin, &end);
    memset((float *)c->sum + begin, 0, (size_t)(end - begin) * sizeof(float));
    tsr_gather_parts(&c->desc, c->here, begin, end, c->sum);
    if (!wait_for_all(me) || !sum_over_processes(me, c->sum, (size_t)n, TSR_TRANSPORT_I32))
        return false;
    tsr_divide_elements(n, me->as.thread, me->as.n_threads, &begin, &end);
    memcpy(op->y + begin, (const float *)c->sum + begin, (size_t)(end - begin) * sizeof(float));
    return true;
}

/* The part of a transfer inside the sender's process. */
static bool run_here(const caller *me, const tsr_op *op)
{
    tsr_comm *local = me->comm->local;
    tsr_op here = *op;
    if (op->kind == TSR_OP_SEND)
        here.send.collective = me->collective->local_part;
    else
        here.recv.collective = me->collective->local_part;
    return local->ops->run(local, me->device, &here, me->as.thread, me->as.n_threads);
}

/* Receivers in other processes get the values directly from x. */
static bool run_send(const caller *me, const tsr_op *op)
{
    const shared_collective *c = me->collective;
    return (!c->local_part || run_here(me, op)) && tsr_handover_send(&c->handover, &me->as, &op->send);
}

static bool run_recv(const caller *me, const tsr_op *op)
{
    shared_collective *c = me->collective;
    return c->local_part ? run_here(me, op) : tsr_handover_receive(&c->handover, &me->as, &op->recv);
}

static bool distributed_run(tsr_comm *base, tsr_device *device, const tsr_op *op, int thread, int n_threads)
{
    distributed_comm *comm = (distributed_comm *)base;
    if (atomic_load(&comm->aborted))
        return false;
    caller me = {.device = device, .comm = comm, .collective = (shared_collective *)tsr_op_collective(op)};
    assert(me.collective);
    me.as = tsr_participant_of(&me.collective->barrier, device, thread, n_threads);
    switch (op->kind) {
    case TSR_OP_ALL_REDUCE:
        return run_all_reduce(&me, &op->all_reduce);
    case TSR_OP_ALL_GATHER:
        return run_all_gather(&me, &op->all_gather);
    case TSR_OP_SEND:
        return run_send(&me, op);
    default:
        return run_recv(&me, op);
    }
}

/* -- creation -- */

static void enlist(distributed_comm *comm, shared_collective *c)
{
    c->next = comm->collectives;
    c->link = &comm->collectives;
    if (c->next)
        c->next->link = &c->next;
    comm->collectives = c;
}

static void distributed_collective_destroy(tsr_comm *base, tsr_collective *collective)
{
    distributed_comm *comm = (distributed_comm *)base;
    shared_collective *c = (shared_collective *)collective;
    if (!c)
        return;
    if (collective->comm != base) {
        collective->comm->ops->collective_destroy(collective->comm, collective);
        return;
    }
    if (c->link) {
        *c->link = c->next;
        if (c->next)
            c->next->link = c->link;
    }
    comm->local->ops->collective_destroy(comm->local, c->local_part);
    if (c->own_sum)
        tsr_device_forget_runtime(comm->devices[c->voice], c->own_bytes);
    tsr_barrier_free(&c->barrier);
    tsr_mem_free(c->own_sum);
    tsr_mem_free(c->begin);
    tsr_mem_free(c->partial);
    tsr_mem_free(c);
}

/* The partials of this process, and the memory of their sum. */
static tsr_status find_parts(distributed_comm *comm, shared_collective *c)
{
    tsr_status status = TSR_OK;
    const tsr_collective_desc *desc = &c->desc;
    const bool gathers = desc->kind == TSR_OP_ALL_GATHER;
    size_t n = (size_t)desc->n, bytes;
    TSR_FOR_DEVICES(d, gathers ? 0 : desc->contributors & c->here)
        c->parts[c->n_parts++] = desc->partial[d];
    if (c->n_parts > 0)
        c->sum = desc->partial[tsr_device_set_first(desc->contributors & c->here)];
    if (c->n_parts > 0 || c->voice < 0 || desc->kind == TSR_OP_SEND || tsr_collective_is_narrow(desc))
        return TSR_OK;
    if ((gathers && !tsr_mul_size(n, (size_t)desc->n_rows, &n)) ||
        !tsr_mul_size(n, gathers ? sizeof(float) : element_bytes(desc->reduce), &bytes))
        return tsr_fail(TSR_ERR_MEMORY, "collective '%s': its elements exceed the address space", desc->name);
    TSR_TRY(tsr_mem_array(bytes, 1, "a sum between processes", &c->own_sum));
    c->sum = c->own_sum;
    c->own_bytes = bytes;
    tsr_device_note_runtime(comm->devices[c->voice], bytes);
out:
    return status;
}

/* The receivers of a transfer that are in the sender's process, and the other processes. */
static tsr_status create_transfer(distributed_comm *comm, shared_collective *c)
{
    tsr_collective_desc desc = c->desc;
    c->handover = (tsr_handover){.desc = &c->desc,
                                 .here = c->here,
                                 .voice = c->voice,
                                 .devices = comm->devices,
                                 .processes = comm->processes,
                                 .barrier = &c->barrier,
                                 .aborted = &comm->aborted};
    desc.participants = c->here;
    if (!(c->here & desc.contributors) || c->here == desc.contributors)
        return TSR_OK;
    return comm->local->ops->collective_create(comm->local, &desc, &c->local_part);
}

/* The group of an all-reduce or all-gather, and how sums travel in it. */
static tsr_status join_group(distributed_comm *comm, shared_collective *c)
{
    tsr_status status = TSR_OK;
    const tsr_collective_desc *desc = &c->desc;
    const tsr_group *group;
    int ranks[TSR_MAX_RANKS];
    TSR_TRY(tsr_groups_find(&comm->groups, desc->participants, &group));
    c->group = group->handle;
    if (tsr_collective_is_narrow(desc))
        c->words = group->words;
    c->log2_processes = tsr_narrow_log2(tsr_groups_processes(&comm->groups, desc->participants, ranks));
out:
    return status;
}

static tsr_status create_shared(distributed_comm *comm, const tsr_collective_desc *desc,
                                tsr_collective **collective_out)
{
    tsr_status status = TSR_OK;
    shared_collective *c = NULL;
    TSR_TRY(TSR_NEW(&c, "a collective"));
    c->base.comm = &comm->base;
    c->base.desc = &c->desc;
    c->here = desc->participants & comm->here;
    c->voice = c->here ? tsr_device_set_first(c->here) : -1;
    TSR_TRY(tsr_barrier_init(&c->barrier, comm->base.n_devices, &comm->aborted, "a collective's ranks"));
    TSR_TRY(tsr_collective_copy_desc(desc, comm->base.n_devices, &c->desc, &c->begin, &c->partial));
    (void)tsr_reducer_select(NULL, desc->reduce, &c->reducer); /* cannot fail: there is always the generic
                                                                * one */
    TSR_TRY(find_parts(comm, c));
    if (desc->kind == TSR_OP_SEND)
        TSR_TRY(create_transfer(comm, c));
    else
        TSR_TRY(join_group(comm, c));
    enlist(comm, c);
    *collective_out = &c->base;
    c = NULL;
out:
    if (c)
        distributed_collective_destroy(&comm->base, &c->base);
    return status;
}

/* Whether all of them belong to one process, this one or another. */
static bool is_of_one_process(const distributed_comm *comm, tsr_device_set devices)
{
    int ranks[TSR_MAX_RANKS];
    return tsr_groups_processes(&comm->groups, devices, ranks) <= 1;
}

/* The communicator of a collective; NULL: one between processes. One without participants in this process is
 * never run, so any can make it that needs no other process. */
static tsr_comm *choose(const distributed_comm *comm, tsr_device_set participants)
{
    tsr_comm *gpus = comm->base.gpus, *inside = comm->base.inside;
    const bool of_gpus = !(participants & ~comm->all_gpus) && tsr_device_set_count(participants) > 1,
               of_one = is_of_one_process(comm, participants);
    if (of_gpus && gpus && !tsr_comm_stages(gpus, participants) &&
        !(of_one && !(participants & ~comm->inside)))
        return gpus;
    if (!of_one)
        return NULL;
    return of_gpus && inside && (participants & comm->here) ? inside : comm->local;
}

static tsr_status distributed_collective_create(tsr_comm *base, const tsr_collective_desc *desc,
                                                tsr_collective **collective_out)
{
    distributed_comm *comm = (distributed_comm *)base;
    tsr_comm *chosen = choose(comm, desc->participants);
    if (chosen)
        return chosen->ops->collective_create(chosen, desc, collective_out);
    if (desc->kind == TSR_OP_ALL_REDUCE && desc->reduce == TSR_REDUCE_BF16)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "collective '%s': bf16 sums are not supported between processes; use the exact reduction or f32",
            desc->name ? desc->name : "?");
    return create_shared(comm, desc, collective_out);
}

static bool distributed_stages(const tsr_comm *base, tsr_device_set devices)
{
    const distributed_comm *comm = (const distributed_comm *)base;
    if (devices & ~comm->all_gpus)
        return true;
    return (!base->gpus || tsr_comm_stages(base->gpus, devices)) &&
           ((devices & ~comm->inside) || !is_of_one_process(comm, devices));
}

/* A GPU's part of a sum, or of a gather; of a transfer, the place from which receivers here copy. */
static void distributed_stage(tsr_comm *base, tsr_collective *collective, int index, void *buffer)
{
    tsr_comm *local = ((distributed_comm *)base)->local;
    shared_collective *c = (shared_collective *)collective;
    const tsr_device_set here = c->desc.contributors & c->here;
    c->partial[index] = buffer;
    if (c->local_part)
        local->ops->stage(local, c->local_part, index, buffer);
    if (c->n_parts == 0 || !tsr_device_set_has(here, index))
        return;
    const int part = tsr_device_set_place(here, index);
    c->parts[part] = buffer;
    c->in_planes[part] = tsr_collective_is_narrow(&c->desc);
    if (part == 0)
        c->sum = buffer;
}

static void distributed_abort(tsr_comm *base)
{
    distributed_comm *comm = (distributed_comm *)base;
    atomic_store(&comm->aborted, true);
    for (shared_collective *c = comm->collectives; c; c = c->next)
        tsr_barrier_notify(&c->barrier);
    comm->local->ops->abort(comm->local);
    if (base->gpus)
        base->gpus->ops->abort(base->gpus);
    if (base->inside)
        base->inside->ops->abort(base->inside);
}

static bool distributed_aborted(tsr_comm *base)
{
    return atomic_load(&((distributed_comm *)base)->aborted) ||
           (base->gpus && base->gpus->ops->aborted(base->gpus));
}

static tsr_status distributed_poll(tsr_comm *base, tsr_device *device)
{
    return base->gpus ? base->gpus->ops->poll(base->gpus, device) : TSR_OK;
}

/* Other processes cannot be rolled back, so neither can this one. */
static void distributed_reset(tsr_comm *base)
{
    tsr_processes_lose(((distributed_comm *)base)->processes, "a step was aborted in this process");
}

/* The missing participants of this process; if all have arrived, those of other processes. */
static tsr_device_set distributed_missing(tsr_comm *comm, const tsr_collective *collective, int index)
{
    tsr_comm *local = ((distributed_comm *)comm)->local;
    const shared_collective *c = (const shared_collective *)collective;
    if (c->local_part)
        return local->ops->missing(local, c->local_part, index);
    if (c->desc.kind == TSR_OP_SEND)
        return tsr_handover_missing(&c->handover, index);
    const tsr_device_set others = c->here & ~tsr_device_set_one(index);
    const uint64_t phase = atomic_load(&c->barrier.ranks[index].phase);
    const tsr_device_set behind = tsr_barrier_behind(&c->barrier, others, phase);
    return behind ? behind : c->desc.participants & ~c->here;
}

static void distributed_destroy(tsr_comm *base)
{
    distributed_comm *comm = (distributed_comm *)base;
    assert(!comm->collectives);
    tsr_groups_free(&comm->groups);
    tsr_comm_destroy(comm->local);
    tsr_comm_destroy(base->gpus);
    tsr_comm_destroy(base->inside);
    tsr_mem_free(comm);
}

static const struct tsr_comm_ops distributed_ops = {
    .kind = "processes",
    .destroy = distributed_destroy,
    .collective_create = distributed_collective_create,
    .collective_destroy = distributed_collective_destroy,
    .stages = distributed_stages,
    .run = distributed_run,
    .stage = distributed_stage,
    .poll = distributed_poll,
    .aborted = distributed_aborted,
    .abort = distributed_abort,
    .reset = distributed_reset,
    .missing = distributed_missing,
};

/* The GPUs of all processes that have a communicator inside their process which does not stage large sums. */
static tsr_status share_inside(distributed_comm *comm, const tsr_comm *inside)
{
    tsr_status status = TSR_OK;
    const int n = tsr_device_set_count(comm->all_gpus) > 1 ? tsr_processes_count(comm->processes) : 0;
    for (int r = 0; r < n; r++) {
        tsr_device_set own = comm->all_gpus & comm->here;
        if (!inside || tsr_comm_stages(inside, own))
            own = 0;
        TSR_TRY(tsr_processes_share(comm->processes, r, TSR_OK, &own, sizeof own, sizeof own, 1,
                                    "collectives inside the processes"));
        comm->inside |= own;
    }
out:
    return status;
}

tsr_status tsr_comm_distributed_create(tsr_processes *processes, tsr_device *const *devices, int n_devices,
                                       tsr_comm *gpus, tsr_comm *inside, tsr_comm **comm_out)
{
    tsr_status status = TSR_OK;
    distributed_comm *comm = NULL;
    TSR_TRY(TSR_NEW(&comm, "a communicator"));
    comm->base = (tsr_comm){.ops = &distributed_ops, .n_devices = n_devices};
    comm->processes = processes;
    comm->devices = devices;
    for (int d = 0; d < n_devices; d++) {
        comm->here |= devices[d]->elsewhere ? 0 : tsr_device_set_one(d);
        comm->all_gpus |= devices[d]->is_gpu ? tsr_device_set_one(d) : 0;
    }
    comm->groups = (tsr_groups){.processes = processes, .devices = devices, .here = comm->here};
    TSR_TRY(share_inside(comm, inside));
    TSR_TRY(tsr_comm_local_create(n_devices, &comm->local));
    comm->local->whole = &comm->base;
    if (gpus && !(comm->inside & comm->here)) {
        tsr_comm_destroy(inside);
        inside = NULL;
    }
    if (gpus)
        gpus->whole = &comm->base;
    if (inside)
        inside->whole = &comm->base;
    comm->base.gpus = gpus;
    comm->base.inside = inside;
    *comm_out = &comm->base;
    comm = NULL;
    gpus = inside = NULL;
out:
    tsr_comm_destroy(gpus);
    tsr_comm_destroy(inside);
    tsr_mem_free(comm);
    return status;
}
