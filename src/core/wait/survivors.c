/* Which processes are there; see survivors.h. */
#include "core/wait/survivors.h"

#include <time.h>

#include "core/event.h"
#include "core/mem.h"

enum { MOST = 64 };

typedef struct message {
    uint64_t survivors, said;
} message;

/* One process, in one round. */
typedef struct peer {
    message in, out;
    tsr_transfer receiving, sending;
    bool has_come, has_gone; /* the message from it; the one to it */
} peer;

typedef struct agreement {
    const tsr_transport *transport;
    int tag;
    uint64_t candidates, survivors, said;
    peer peers[MOST];
} agreement;

static uint64_t bit(int rank)
{
    return UINT64_C(1) << rank;
}

static bool is_expected(const agreement *m, int rank)
{
    return rank != m->transport->rank && (m->survivors & bit(rank));
}

static tsr_status check(const char *problem)
{
    return problem ? tsr_fail(TSR_ERR_DEVICE_LOST, "%s", problem) : TSR_OK;
}

/* Start the operations of a round. A process that was struck out is told so. */
static tsr_status begin_round(agreement *m)
{
    tsr_status status = TSR_OK;
    const tsr_transport *t = m->transport;
    for (int r = 0; r < t->n_ranks; r++) {
        peer *p = &m->peers[r];
        *p = (peer){.out = {m->survivors, m->said}};
        if (is_expected(m, r))
            TSR_TRY(check(t->receive(t->user, r, m->tag, &p->in, sizeof p->in, &p->receiving)));
        if (r != t->rank && (m->candidates & bit(r)))
            TSR_TRY(check(t->send(t->user, r, m->tag, &p->out, sizeof p->out, &p->sending)));
    }
out:
    return status;
}

/* Look at the operations with a process. */
static tsr_status look(agreement *m, int rank)
{
    tsr_status status = TSR_OK;
    const tsr_transport *t = m->transport;
    peer *p = &m->peers[rank];
    if (!p->has_gone)
        TSR_TRY(check(t->test(t->user, &p->sending, &p->has_gone)));
    if (p->has_come)
        return TSR_OK;
    TSR_TRY(check(t->test(t->user, &p->receiving, &p->has_come)));
    if (p->has_come) {
        m->survivors &= p->in.survivors;
        m->said |= p->in.said;
    }
out:
    return status;
}

/* Whether messages with a process on the list are missing. */
static bool is_waiting(const agreement *m)
{
    for (int r = 0; r < m->transport->n_ranks; r++)
        if (is_expected(m, r) && !(m->peers[r].has_come && m->peers[r].has_gone))
            return true;
    return false;
}

static tsr_status finish_round(agreement *m, uint64_t limit_ns)
{
    tsr_status status = TSR_OK;
    const uint64_t begin_ns = tsr_clock_ns();
    const struct timespec nap = {0, 50000};
    while (is_waiting(m) && tsr_clock_ns() - begin_ns < limit_ns) {
        for (int r = 0; r < m->transport->n_ranks; r++)
            if (is_expected(m, r))
                TSR_TRY(look(m, r));
        if (is_waiting(m))
            nanosleep(&nap, NULL);
    }
    for (int r = 0; r < m->transport->n_ranks; r++)
        if (is_expected(m, r) && !m->peers[r].has_come)
            m->survivors &= ~bit(r);
out:
    return status;
}

/* Whether all had the same at the start of the round. */
static bool is_agreed(const agreement *m)
{
    const message *mine = &m->peers[m->transport->rank].out;
    bool same = m->survivors == mine->survivors && m->said == mine->said;
    for (int r = 0; r < m->transport->n_ranks; r++)
        if (is_expected(m, r))
            same = same && m->peers[r].in.survivors == mine->survivors && m->peers[r].in.said == mine->said;
    return same;
}

static tsr_status meet(agreement *m, uint64_t limit_ns)
{
    tsr_status status = TSR_OK;
    for (uint64_t round = 1; status == TSR_OK; round++) {
        TSR_TRY(begin_round(m));
        TSR_TRY(finish_round(m, limit_ns == UINT64_MAX ? limit_ns : round * limit_ns));
        if (!(m->survivors & bit(m->transport->rank)))
            return tsr_fail(TSR_ERR_DEVICE_LOST,
                            "the other processes go on without process %d, which did not answer in time",
                            m->transport->rank);
        if (round > 1 && is_agreed(m))
            break;
    }
out:
    return status;
}

tsr_status tsr_survivors_agree(const tsr_transport *transport, int tag, uint64_t limit_ns,
                               uint64_t candidates, uint64_t said, uint64_t *survivors_out,
                               uint64_t *said_by_all_out)
{
    tsr_status status = TSR_OK;
    agreement *m = NULL;
    TSR_TRY(TSR_NEW(&m, "the processes that are there"));
    m->transport = transport;
    m->tag = tag;
    m->candidates = m->survivors = candidates;
    m->said = said;
    TSR_TRY(meet(m, limit_ns));
    *survivors_out = m->survivors;
    *said_by_all_out = m->said;
out:
    tsr_mem_free(m);
    return status;
}
