/* Transfers between processes; see handover.h.
 *
 * Values go directly from the sender's memory to the voice's, and from there to the other receivers: no
 * memory is added. Therefore the voice waits until all of them have copied, since its next op may write
 * there. This waits for no other op than the same transfer, whose order is the same on all devices. */
#include "comm/handover.h"

#include <string.h>

#include "comm/reduce.h"

/* Tag of a transfer between two devices, whose programs order their transfers equally. */
static int tag_of(const tsr_handover *h, int from, int to)
{
    return tsr_processes_tag(h->processes, from * TSR_MAX_RANKS + to);
}

/* Wait for the started operation. False ends the program of every device in this process. */
static bool finish(const tsr_handover *h, const char *problem, tsr_transfer *transfer)
{
    if (!problem && tsr_processes_wait(h->processes, transfer, h->aborted))
        return true;
    if (problem)
        tsr_processes_break(h->processes, problem);
    atomic_store(h->aborted, true);
    tsr_barrier_notify(h->barrier);
    return false;
}

bool tsr_handover_send(const tsr_handover *h, const tsr_participant *me, const tsr_op_send *op)
{
    const tsr_transport *t = tsr_processes_transport(h->processes);
    int served = -1;
    TSR_FOR_DEVICES(to, me->thread == 0 ? h->desc->participants & ~h->here : 0) {
        const int process = h->devices[to]->process; /* devices are numbered process after process */
        tsr_transfer transfer;
        if (process == served)
            continue;
        served = process;
        const char *problem = t->send(t->user, process, tag_of(h, me->rank, to), op->x,
                                      (size_t)op->n * sizeof(float), &transfer);
        if (!finish(h, problem, &transfer))
            return false;
    }
    return true;
}

static bool receive(tsr_handover *h, const tsr_participant *me, const tsr_op_recv *op, uint64_t phase)
{
    const tsr_transport *t = tsr_processes_transport(h->processes);
    const int from = tsr_device_set_first(h->desc->contributors);
    tsr_transfer transfer;
    atomic_store(&h->begun, phase);
    const char *problem = t->receive(t->user, h->devices[from]->process, tag_of(h, from, me->rank), op->y,
                                     (size_t)op->n * sizeof(float), &transfer);
    h->received = op->y;
    return finish(h, problem, &transfer);
}

/* A phase of the voice ends when it has received, that of another device when it has copied. */
bool tsr_handover_receive(tsr_handover *h, const tsr_participant *me, const tsr_op_recv *op)
{
    const tsr_device_set voice = tsr_device_set_one(h->voice);
    const uint64_t phase = tsr_barrier_next_phase(me);
    if (me->rank == h->voice) {
        if (me->thread == 0 && !receive(h, me, op, phase))
            return false;
        tsr_barrier_arrive(me, phase, voice);
        return tsr_barrier_await(me, h->here, phase);
    }
    if (!tsr_barrier_await(me, voice, phase))
        return false;
    int64_t begin, end;
    tsr_divide_elements(op->n, me->thread, me->n_threads, &begin, &end);
    memcpy(op->y + begin, h->received + begin, (size_t)(end - begin) * sizeof(float));
    tsr_barrier_arrive(me, phase, h->here);
    return true;
}

tsr_device_set tsr_handover_missing(const tsr_handover *h, int index)
{
    const uint64_t phase = atomic_load(&h->barrier->ranks[index].phase);
    if (tsr_device_set_has(h->desc->contributors, index))
        return h->desc->participants & ~h->here;
    if (index != h->voice && atomic_load(&h->begun) <= phase)
        return tsr_device_set_one(h->voice);
    const tsr_device_set behind = tsr_barrier_behind(h->barrier, h->here, phase);
    return index == h->voice && behind ? behind : h->desc->contributors;
}
