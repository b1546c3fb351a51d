/* The shared-memory communicator; see local.h.
 *
 * Synchronisation. Each rank of a collective has a phase number that only grows: the last thread of its team
 * to come to a collective raises it by one, which publishes everything the team wrote before. Waiting means
 * waiting until the phases of all participants have reached one's own. Since a rank raises its phase only
 * after it has finished the collective before, a rank that has passed collective k + 1 knows that nobody
 * reads the buffers of collective k any more: that is what lets graph/slots.c reuse them without a second
 * barrier. Phases also tell who has not come, when a deadline passes.
 *
 * A phase is written by one rank and read by the others, so it has a cache line of its own; the counter that
 * the threads of one team use among themselves lies on the next. */
#include "comm/local.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "comm/reduce.h"
#include "core/event.h"
#include "core/mem.h"

typedef struct local_comm local_comm;
typedef struct local_collective local_collective;

typedef struct local_rank {
    _Atomic uint64_t phase;
    unsigned char gap_0[56];
    _Atomic int arrived; /* threads of this rank's team, in the current phase */
    unsigned char gap_1[60];
} local_rank;

struct local_collective {
    tsr_collective base;
    local_collective *next, **link; /* in the communicator's list: what points to this one */
    tsr_collective_desc desc;       /* begin and partial are ours */
    tsr_reducer reducer;
    const void *parts[TSR_MAX_RANKS]; /* the contributors' partials, in rank order */
    void *own[TSR_MAX_RANKS];         /* the same, to write to */
    int n_parts;
    bool in_two_steps;
    int64_t *begin;    /* copy of desc.begin */
    void **partial;    /* copy of desc.partial */
    local_rank *ranks; /* [n_devices] */
    unsigned char gap[64];
    tsr_event phase_raised;
};

struct local_comm {
    tsr_comm base;
    local_collective *collectives;
    unsigned char gap[64]; /* `aborted` is polled by everybody and hardly ever written */
    _Atomic bool aborted;
};

/* Who calls: one thread of one rank. */
typedef struct caller {
    local_comm *comm;
    local_collective *collective;
    int rank, thread, n_threads, polls;
    tsr_device_clock *clock; /* NULL: time is not counted, or not by this thread */
} caller;

/* Elements [begin, end) of n for part `index` of `count`; boundaries on cache lines of f32. */
static void divide(int64_t n, int index, int count, int64_t *begin_out, int64_t *end_out)
{
    enum { LINE = 16 };
    int64_t n_lines = (n + LINE - 1) / LINE;
    *begin_out = TSR_MIN(n_lines * index / count * LINE, n);
    *end_out = TSR_MIN(n_lines * (index + 1) / count * LINE, n);
}

/* ------------------------------------------------------------------------------------- phases */

typedef struct phase_wait {
    local_comm *comm;
    local_collective *collective;
    uint64_t remaining; /* ranks not seen at `phase` yet */
    uint64_t phase;
} phase_wait;

/* Whether all of them have come, noting those that have. */
static bool all_there(phase_wait *wait)
{
    while (wait->remaining) {
        int rank = __builtin_ctzll(wait->remaining);
        if (atomic_load(&wait->collective->ranks[rank].phase) < wait->phase)
            return false;
        wait->remaining &= wait->remaining - 1;
    }
    return true;
}

static bool all_there_or_aborted(void *what)
{
    phase_wait *wait = what;
    return all_there(wait) || atomic_load(&wait->comm->aborted);
}

/* Wait until the ranks in `ranks` have reached `phase`; false if the communicator was aborted. */
static bool await(const caller *me, uint64_t ranks, uint64_t phase)
{
    phase_wait wait = {me->comm, me->collective, ranks, phase};
    uint64_t begin = me->clock ? tsr_clock_ns() : 0;
    tsr_event_wait(&me->collective->phase_raised, all_there_or_aborted, &wait, me->polls, TSR_FOREVER);
    if (me->clock)
        me->clock->wait_ns += tsr_clock_ns() - begin;
    return wait.remaining == 0;
}

/* The phase that the caller's rank will have when its whole team has come. It cannot rise before that, since
 * the caller has not come yet. */
static uint64_t next_phase(const caller *me)
{
    return atomic_load_explicit(&me->collective->ranks[me->rank].phase, memory_order_relaxed) + 1;
}

/* Come to `phase`. The last thread of the team publishes it, and wakes sleepers if they can go on: when a
 * rank waits for all, only the last rank's call can be the one that matters, and it sees all the others. */
static void arrive(const caller *me, uint64_t phase)
{
    local_collective *collective = me->collective;
    local_rank *rank = &collective->ranks[me->rank];
    if (me->n_threads > 1) {
        if (atomic_fetch_add_explicit(&rank->arrived, 1, memory_order_acq_rel) + 1 < me->n_threads)
            return;
        atomic_store_explicit(&rank->arrived, 0, memory_order_relaxed); /* published by the next line */
    }
    atomic_store(&rank->phase, phase);
    if (atomic_load(&collective->phase_raised.sleepers)) {
        phase_wait all = {me->comm, collective, collective->desc.participants, phase};
        if (collective->desc.kind == TSR_OP_SEND || all_there(&all))
            tsr_event_wake_all(&collective->phase_raised);
    }
}

static bool meet(const caller *me)
{
    uint64_t phase = next_phase(me);
    arrive(me, phase);
    return await(me, me->collective->desc.participants, phase);
}

/* ------------------------------------------------------------------------------------- collectives */

/* Reduce-scatter into the contributors' own partials, then all-gather with the conversion. Contributor j owns
 * share j of the elements: only it reads that part of its partial in the first step, so it may write
 * there. */
static bool all_reduce_in_two_steps(const caller *me, const tsr_op_all_reduce *op)
{
    const local_collective *c = me->collective;
    for (int j = 0; j < c->n_parts; j++) {
        if (c->own[j] != c->partial[me->rank])
            continue;
        int64_t begin, end, from, to;
        divide(op->n, j, c->n_parts, &begin, &end);
        divide(end - begin, me->thread, me->n_threads, &from, &to);
        c->reducer.add(c->parts, c->n_parts, c->own[j], begin + from, begin + to);
    }
    if (!meet(me))
        return false;
    int64_t from, to;
    divide(op->n, me->thread, me->n_threads, &from, &to);
    for (int j = 0; j < c->n_parts; j++) {
        int64_t begin, end;
        divide(op->n, j, c->n_parts, &begin, &end);
        begin = TSR_MAX(begin, from);
        end = TSR_MIN(end, to);
        if (begin < end)
            c->reducer.finish(&c->parts[j], 1, op->residual, op->y, begin, end);
    }
    return true;
}

static bool run_all_reduce(const caller *me, const tsr_op_all_reduce *op)
{
    const local_collective *c = me->collective;
    assert(op->n == c->desc.n);
    if (!meet(me))
        return false;
    if (c->in_two_steps)
        return all_reduce_in_two_steps(me, op);
    int64_t begin, end;
    divide(op->n, me->thread, me->n_threads, &begin, &end);
    c->reducer.finish(c->parts, c->n_parts, op->residual, op->y, begin, end);
    return true;
}

/* This thread's share of the whole [n_rows][n] result, row piece by row piece. */
static bool run_all_gather(const caller *me, const tsr_op_all_gather *op)
{
    const local_collective *c = me->collective;
    assert(op->n == c->desc.n && op->n_rows == c->desc.n_rows);
    if (!meet(me))
        return false;
    int64_t at, end;
    divide(op->n * op->n_rows, me->thread, me->n_threads, &at, &end);
    while (at < end) {
        int64_t row = at / op->n, row_begin = row * op->n;
        int64_t from = at - row_begin, to = TSR_MIN(end - row_begin, op->n);
        for (int r = 0; r < me->comm->base.n_devices; r++) {
            int64_t begin = TSR_MAX(from, c->begin[r]), stop = TSR_MIN(to, c->begin[r + 1]);
            int64_t width = c->begin[r + 1] - c->begin[r];
            if (begin < stop)
                memcpy(op->y + row_begin + begin,
                       (const float *)c->partial[r] + row * width + (begin - c->begin[r]),
                       (size_t)(stop - begin) * sizeof(float));
        }
        at = row_begin + to;
    }
    return true;
}

/* The staging buffer is free once every receiver has raised its phase to the sender's. */
static bool run_send(const caller *me, const tsr_op_send *op)
{
    const local_collective *c = me->collective;
    assert(op->n == c->desc.n);
    uint64_t phase = next_phase(me);
    if (!await(me, c->desc.participants & ~c->desc.contributors, phase - 1))
        return false;
    int64_t begin, end;
    divide(op->n, me->thread, me->n_threads, &begin, &end);
    memcpy((float *)c->own[0] + begin, op->x + begin, (size_t)(end - begin) * sizeof(float));
    arrive(me, phase);
    return true;
}

static bool run_recv(const caller *me, const tsr_op_recv *op)
{
    const local_collective *c = me->collective;
    assert(op->n == c->desc.n);
    uint64_t phase = next_phase(me);
    if (!await(me, c->desc.contributors, phase))
        return false;
    int64_t begin, end;
    divide(op->n, me->thread, me->n_threads, &begin, &end);
    memcpy(op->y + begin, (const float *)c->parts[0] + begin, (size_t)(end - begin) * sizeof(float));
    arrive(me, phase);
    return true;
}

static bool local_run(tsr_comm *comm, tsr_device *device, const tsr_op *op, int thread, int n_threads)
{
    caller me = {(local_comm *)comm,
                 NULL,
                 device->index,
                 thread,
                 n_threads,
                 device->polls,
                 thread == 0 && device->clock.on ? &device->clock : NULL};
    if (atomic_load(&me.comm->aborted))
        return false;
    switch (op->kind) {
    case TSR_OP_ALL_REDUCE:
        me.collective = (local_collective *)op->all_reduce.collective;
        return run_all_reduce(&me, &op->all_reduce);
    case TSR_OP_ALL_GATHER:
        me.collective = (local_collective *)op->all_gather.collective;
        return run_all_gather(&me, &op->all_gather);
    case TSR_OP_SEND:
        me.collective = (local_collective *)op->send.collective;
        return run_send(&me, &op->send);
    case TSR_OP_RECV:
        me.collective = (local_collective *)op->recv.collective;
        return run_recv(&me, &op->recv);
    default:
        assert(!"not a collective");
        return false;
    }
}

static void local_finish(tsr_comm *comm, const tsr_op *op, int64_t begin, int64_t end)
{
    (void)comm;
    const local_collective *c = (const local_collective *)op->all_reduce.collective;
    c->reducer.finish(c->parts, c->n_parts, op->all_reduce.residual, op->all_reduce.y, begin, end);
}

/* ------------------------------------------------------------------------------------- creation */

static tsr_status check_desc(const tsr_comm *comm, const tsr_collective_desc *desc)
{
    uint64_t all = comm->n_devices == 64 ? UINT64_MAX : ((uint64_t)1 << comm->n_devices) - 1;
    const char *problem = NULL;
    if (desc->kind != TSR_OP_ALL_REDUCE && desc->kind != TSR_OP_ALL_GATHER && desc->kind != TSR_OP_SEND)
        problem = "is no all-reduce, all-gather or send";
    else if (desc->participants == 0 || desc->participants & ~all)
        problem = "names participants that the communicator does not have";
    else if (desc->contributors & ~desc->participants)
        problem = "has contributors that do not participate";
    else if (desc->kind == TSR_OP_ALL_REDUCE && desc->contributors == 0)
        problem = "has no contributor";
    else if (desc->kind == TSR_OP_SEND && __builtin_popcountll(desc->contributors) != 1)
        problem = "needs exactly one sender";
    else if (desc->n < 0 || (desc->kind == TSR_OP_ALL_GATHER && (desc->n_rows < 0 || !desc->begin)))
        problem = "has a wrong size";
    else if (!desc->partial)
        problem = "has no buffers";
    for (int i = 0; !problem && i < comm->n_devices; i++) {
        bool needs_buffer = desc->kind == TSR_OP_ALL_GATHER ? desc->begin[i] < desc->begin[i + 1]
                                                            : desc->contributors >> i & 1;
        if (needs_buffer && !(desc->participants >> i & 1))
            problem = "needs a part of a device that does not participate";
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
    if (collective->link) { /* complete, hence in the list */
        *collective->link = collective->next;
        if (collective->next)
            collective->next->link = collective->link;
        tsr_event_destroy(&collective->phase_raised);
    }
    tsr_mem_free(collective->begin);
    tsr_mem_free(collective->partial);
    tsr_mem_free(collective->ranks);
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

/* From how many elements on two steps beat one. One step reads n_parts partials per rank, two steps read two
 * (its share of all, and all sums) and synchronise once more, which costs as much as reading a few thousand
 * elements; bench/all_reduce.c measures it. */
static bool two_steps_pay(int64_t n, int n_parts)
{
    return n_parts >= 3 && n * (n_parts - 2) >= 16384;
}

static tsr_status local_collective_create(tsr_comm *comm, const tsr_collective_desc *desc,
                                          tsr_collective **collective_out)
{
    tsr_status status = TSR_OK;
    local_collective *collective = NULL;
    size_t n = (size_t)comm->n_devices;

    TSR_TRY(check_desc(comm, desc));
    TSR_TRY(tsr_mem_array(1, sizeof *collective, "a collective", &collective));
    collective->base.comm = comm;
    collective->base.desc = &collective->desc;
    collective->desc = *desc;
    TSR_TRY(tsr_mem_array(n, sizeof *collective->ranks, "a collective's ranks", &collective->ranks));
    TSR_TRY(tsr_mem_array(n, sizeof *collective->partial, "a collective's buffers", &collective->partial));
    memcpy(collective->partial, desc->partial, n * sizeof *collective->partial);
    if (desc->begin) {
        TSR_TRY(tsr_mem_array(n + 1, sizeof *collective->begin, "a collective's shards", &collective->begin));
        memcpy(collective->begin, desc->begin, (n + 1) * sizeof *collective->begin);
    }
    collective->desc.begin = collective->begin;
    collective->desc.partial = collective->partial;
    for (int i = 0; i < comm->n_devices; i++) {
        if (!(desc->contributors >> i & 1))
            continue;
        collective->own[collective->n_parts] = desc->partial[i];
        collective->parts[collective->n_parts++] = desc->partial[i];
    }
    (void)tsr_reducer_select(NULL, desc->reduce, &collective->reducer); /* there is always the generic one */
    collective->in_two_steps = two_steps_pay(desc->n, collective->n_parts);
    if (!tsr_event_init(&collective->phase_raised))
        TSR_TRY(tsr_fail(TSR_ERR_MEMORY, "collective '%s': the system refused a condition variable",
                         desc->name ? desc->name : "?"));
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
    uint64_t bit = (uint64_t)1 << index;
    collective->partial[index] = buffer;
    if (collective->desc.contributors & bit) {
        int part = __builtin_popcountll(collective->desc.contributors & (bit - 1));
        collective->own[part] = buffer;
        collective->parts[part] = buffer;
    }
}

static void local_abort(tsr_comm *base)
{
    local_comm *comm = (local_comm *)base;
    atomic_store(&comm->aborted, true);
    for (local_collective *c = comm->collectives; c; c = c->next)
        tsr_event_notify(&c->phase_raised);
}

/* Ranks that were aborted at different places have different phases: start over. */
static void local_reset(tsr_comm *base)
{
    local_comm *comm = (local_comm *)base;
    for (local_collective *c = comm->collectives; c; c = c->next) {
        for (int i = 0; i < base->n_devices; i++) {
            atomic_store(&c->ranks[i].phase, 0);
            atomic_store(&c->ranks[i].arrived, 0);
        }
    }
    atomic_store(&comm->aborted, false);
}

/* A rank waits for those behind it; a receiver raises its phase only after the hand-over, so for it those at
 * the same phase are behind. */
static uint64_t local_missing(tsr_comm *comm, const tsr_collective *base, int index)
{
    (void)comm;
    const local_collective *collective = (const local_collective *)base;
    const tsr_collective_desc *desc = &collective->desc;
    bool receives = desc->kind == TSR_OP_SEND && !(desc->contributors >> index & 1);
    uint64_t phase = atomic_load(&collective->ranks[index].phase) + (receives ? 1 : 0);
    uint64_t missing = 0;
    for (uint64_t rest = desc->participants & ~((uint64_t)1 << index); rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        if (atomic_load(&collective->ranks[rank].phase) < phase)
            missing |= (uint64_t)1 << rank;
    }
    return missing;
}

static void local_destroy(tsr_comm *comm)
{
    assert(!((local_comm *)comm)->collectives);
    tsr_mem_free(comm);
}

static const struct tsr_comm_ops local_ops = {
    .kind = "staged", /* what a GPU sees of it */
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
        return tsr_fail(TSR_ERR_INVALID, "a communicator between %d devices; 1 to %d are possible", n_devices,
                        (int)TSR_MAX_RANKS);
    tsr_status status = tsr_mem_array(1, sizeof *comm, "a communicator", &comm);
    if (status != TSR_OK)
        return status;
    comm->base.ops = &local_ops;
    comm->base.n_devices = n_devices;
    *comm_out = &comm->base;
    return TSR_OK;
}
