/* The heartbeat between processes; see heartbeat.h.
 *
 * Each round of the thread takes what has come from every process and sends a message to it, at most one of
 * which is in flight. A round costs a call of the transport or two per process; between rounds the thread
 * sleeps. */
#include "core/wait/heartbeat.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/event.h"
#include "core/mem.h"

enum { ROUNDS_PER_LIMIT = 8, SILENT_ROUNDS = 4, PERIOD_MOST_NS = 1000000000, CLOSING_NS = 500000 };
enum { HOST_BYTES = 64, REASON_BYTES = 440 };
typedef enum kind { BEAT, LEFT, LOST } kind; /* the last two are a process's last message */

typedef struct message {
    int32_t kind, waits; /* waits: a thread of the sender waits for other processes */
    char host[HOST_BYTES];
    char reason[REASON_BYTES]; /* LOST */
} message;

typedef struct peer {
    message in, out;
    tsr_transfer receiving, sending;
    bool is_receiving, is_sending;
    bool has_ended; /* its last message has come */
    bool said_last;
    /* for other threads, under the lock: */
    char host[HOST_BYTES];
    bool waits;
    uint64_t silent_ns;
} peer;

struct tsr_heartbeat {
    tsr_transport transport;
    uint64_t processes; /* one bit for each */
    int tag;
    uint64_t limit_ns, period_ns;
    tsr_heartbeat_loser lose;
    void *user;
    char host[HOST_BYTES];
    pthread_t thread;
    bool is_joined;
    tsr_event changed; /* one of the next four */
    _Atomic bool begun, closing, lost;
    _Atomic bool is_mute; /* the transport failed */
    _Atomic bool has_left;
    _Atomic int n_waits;
    pthread_mutex_t lock;
    char reason[REASON_BYTES];
    peer *peers; /* [n_ranks] */
};

static bool is_silent(const tsr_heartbeat *h, const peer *p)
{
    return p->silent_ns > SILENT_ROUNDS * h->period_ns;
}

/* Whether messages are exchanged with this process. */
static bool is_other(const tsr_heartbeat *h, int rank)
{
    return rank != h->transport.rank && (h->processes >> rank & 1);
}

/* -- names -- */

/* Under the lock. */
static int write_name(const tsr_heartbeat *h, int rank, char *text, size_t bytes)
{
    const char *host = h->peers[rank].host;
    return snprintf(text, bytes, "process %d%s%s", rank, *host ? " on " : "", host);
}

static void name_process(tsr_heartbeat *h, int rank, char *text, size_t bytes)
{
    pthread_mutex_lock(&h->lock);
    write_name(h, rank, text, bytes);
    pthread_mutex_unlock(&h->lock);
}

/* Append what is known of a process that is missing, under the lock. */
static size_t append_missing(const tsr_heartbeat *h, int rank, char *text, size_t bytes, size_t used)
{
    const peer *p = &h->peers[rank];
    char name[HOST_BYTES + 32], note[64] = "";
    write_name(h, rank, name, sizeof name);
    if (p->has_ended)
        snprintf(note, sizeof note, " (which has closed the runtime)");
    else if (is_silent(h, p))
        snprintf(note, sizeof note, " (silent for %.3g s)", (double)p->silent_ns / 1e9);
    const int n = snprintf(text + used, bytes - used, "%s%s%s", used ? " and " : "", name, note);
    return n < 0 || (size_t)n >= bytes - used ? used : used + (size_t)n;
}

void tsr_heartbeat_describe_missing(tsr_heartbeat *h, char *text, size_t bytes)
{
    size_t used = 0;
    *text = '\0';
    if (h)
        pthread_mutex_lock(&h->lock);
    for (int r = 0; h && r < h->transport.n_ranks; r++) {
        const peer *p = &h->peers[r];
        if (is_other(h, r) && (!p->waits || p->has_ended || is_silent(h, p)))
            used = append_missing(h, r, text, bytes, used);
    }
    if (h)
        pthread_mutex_unlock(&h->lock);
    if (!used)
        snprintf(text, bytes, "another process");
}

/* -- messages -- */

static void lose_to(tsr_heartbeat *h, int rank, const message *m)
{
    char name[HOST_BYTES + 32], text[REASON_BYTES + HOST_BYTES + 64];
    name_process(h, rank, name, sizeof name);
    if (strncmp(m->reason, "process ", 8) == 0)
        snprintf(text, sizeof text, "%s", m->reason);
    else
        snprintf(text, sizeof text, "%s: %s", name, m->reason);
    h->lose(h->user, text);
}

static void take(tsr_heartbeat *h, int rank)
{
    peer *p = &h->peers[rank];
    message *m = &p->in;
    m->host[HOST_BYTES - 1] = m->reason[REASON_BYTES - 1] = '\0';
    pthread_mutex_lock(&h->lock);
    memcpy(p->host, m->host, sizeof p->host);
    p->waits = m->waits != 0;
    p->silent_ns = 0;
    p->has_ended = m->kind != BEAT;
    pthread_mutex_unlock(&h->lock);
    if (m->kind == LOST && !atomic_load(&h->lost))
        lose_to(h, rank, m);
}

/* Take what has come from a process. `passed_ns`: since the round before. */
static const char *receive_from(tsr_heartbeat *h, int rank, uint64_t passed_ns)
{
    const tsr_transport *t = &h->transport;
    peer *p = &h->peers[rank];
    bool done = true;
    pthread_mutex_lock(&h->lock);
    p->silent_ns += passed_ns;
    pthread_mutex_unlock(&h->lock);
    while (!p->has_ended && done) {
        const char *problem = NULL;
        if (!p->is_receiving)
            problem = t->receive(t->user, rank, h->tag, &p->in, sizeof p->in, &p->receiving);
        p->is_receiving = true;
        if (!problem)
            problem = t->test(t->user, &p->receiving, &done);
        if (problem)
            return problem;
        if (done) {
            p->is_receiving = false;
            take(h, rank);
        }
    }
    return NULL;
}

/* Whether the message before has gone. */
static const char *advance_send(tsr_heartbeat *h, peer *p)
{
    bool done = false;
    const char *problem = p->is_sending ? h->transport.test(h->transport.user, &p->sending, &done) : NULL;
    p->is_sending = p->is_sending && !done;
    return problem;
}

static const char *send_to(tsr_heartbeat *h, int rank, kind what)
{
    const tsr_transport *t = &h->transport;
    peer *p = &h->peers[rank];
    const char *problem = advance_send(h, p);
    if (problem || p->is_sending || p->said_last)
        return problem;
    p->out = (message){.kind = what, .waits = atomic_load(&h->n_waits) > 0};
    memcpy(p->out.host, h->host, sizeof h->host);
    if (what == LOST) {
        pthread_mutex_lock(&h->lock);
        memcpy(p->out.reason, h->reason, sizeof h->reason);
        pthread_mutex_unlock(&h->lock);
    }
    p->said_last = what != BEAT;
    problem = t->send(t->user, rank, h->tag, &p->out, sizeof p->out, &p->sending);
    p->is_sending = true;
    return problem ? problem : advance_send(h, p);
}

/* -- rounds -- */

static void check_silence(tsr_heartbeat *h, int rank)
{
    const peer *p = &h->peers[rank];
    char name[HOST_BYTES + 32], text[HOST_BYTES + 128];
    if (p->has_ended && p->silent_ns >= h->limit_ns)
        atomic_store(&h->has_left, true);
    if ((p->has_ended && !p->is_sending) || p->silent_ns < h->limit_ns || atomic_load(&h->lost))
        return;
    name_process(h, rank, name, sizeof name);
    snprintf(text, sizeof text, "%s has not answered for %.3g s: it ended, or was stopped", name,
             (double)p->silent_ns / 1e9);
    h->lose(h->user, text);
}

static kind next_message(tsr_heartbeat *h, const peer *p)
{
    if (atomic_load(&h->lost))
        return LOST;
    return atomic_load(&h->closing) || p->has_ended ? LEFT : BEAT;
}

/* With one process; false ends the thread. */
static bool meet(tsr_heartbeat *h, int rank, uint64_t passed_ns)
{
    if (atomic_load(&h->is_mute))
        return false;
    const char *problem = receive_from(h, rank, passed_ns);
    check_silence(h, rank);
    if (!problem)
        problem = send_to(h, rank, next_message(h, &h->peers[rank]));
    if (problem) {
        tsr_heartbeat_lose(h, NULL);
        h->lose(h->user, problem);
    }
    return !problem;
}

/* Whether last messages were exchanged with all processes; in a lost runtime, with those that are there. */
static bool is_over(tsr_heartbeat *h)
{
    const bool lost = atomic_load(&h->lost);
    if (!lost && !atomic_load(&h->closing))
        return false;
    for (int r = 0; r < h->transport.n_ranks; r++) {
        const peer *p = &h->peers[r];
        if (!is_other(h, r) || (lost && is_silent(h, p)))
            continue;
        if (!p->said_last || p->is_sending || !p->has_ended)
            return false;
    }
    return true;
}

static bool has_begun(void *what)
{
    tsr_heartbeat *h = what;
    return atomic_load(&h->begun) || atomic_load(&h->closing) || atomic_load(&h->lost);
}

static bool is_urgent(void *what)
{
    tsr_heartbeat *h = what;
    return atomic_load(&h->closing) || atomic_load(&h->lost);
}

static bool never(void *what)
{
    (void)what;
    return false;
}

static void *run(void *what)
{
    tsr_heartbeat *h = what;
    tsr_event_sleep(&h->changed, has_begun, h, TSR_FOREVER);
    if (!atomic_load(&h->begun))
        return NULL;
    uint64_t looked_ns = tsr_clock_ns();
    do {
        const uint64_t now = tsr_clock_ns(), passed_ns = TSR_MIN(now - looked_ns, 2 * h->period_ns);
        looked_ns = now;
        for (int r = 0; r < h->transport.n_ranks; r++)
            if (is_other(h, r) && !meet(h, r, passed_ns))
                return NULL;
        if (is_over(h))
            return NULL;
        if (is_urgent(h))
            tsr_event_sleep(&h->changed, never, h, now + CLOSING_NS);
        else
            tsr_event_sleep(&h->changed, is_urgent, h, now + h->period_ns);
    } while (true);
}

/* -- life -- */

void tsr_heartbeat_begin(tsr_heartbeat *h)
{
    if (!h)
        return;
    atomic_store(&h->begun, true);
    tsr_event_notify(&h->changed);
}

void tsr_heartbeat_lose(tsr_heartbeat *h, const char *reason)
{
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    if (!reason)
        atomic_store(&h->is_mute, true);
    else if (!atomic_load(&h->lost))
        snprintf(h->reason, sizeof h->reason, "%s", reason);
    atomic_store(&h->lost, true);
    pthread_mutex_unlock(&h->lock);
    tsr_event_notify(&h->changed);
}

void tsr_heartbeat_wait(tsr_heartbeat *h, bool begins)
{
    if (h)
        atomic_fetch_add(&h->n_waits, begins ? 1 : -1);
}

bool tsr_heartbeat_has_left(const tsr_heartbeat *h)
{
    return h && atomic_load(&h->has_left);
}

uint64_t tsr_heartbeat_present(const tsr_heartbeat *h)
{
    uint64_t present = h->processes;
    for (int r = 0; r < h->transport.n_ranks; r++)
        if (is_other(h, r) && h->peers[r].silent_ns >= h->limit_ns)
            present &= ~(UINT64_C(1) << r);
    return present;
}

/* With every signal blocked: the application's handlers run on its own threads. */
static bool start(tsr_heartbeat *h)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&h->thread, NULL, run, h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0;
}

static tsr_status allocate(const tsr_transport *transport, tsr_heartbeat **heartbeat_out)
{
    tsr_status status = TSR_OK;
    tsr_heartbeat *h = NULL;
    TSR_TRY(TSR_NEW(&h, "the heartbeat"));
    TSR_TRY(tsr_mem_array((size_t)transport->n_ranks, sizeof *h->peers, "the heartbeat", &h->peers));
    *heartbeat_out = h;
    h = NULL;
out:
    tsr_mem_free(h);
    return status;
}

tsr_status tsr_heartbeat_create(const tsr_transport *transport, uint64_t processes, int tag,
                                uint64_t limit_ns, tsr_heartbeat_loser lose, void *user,
                                tsr_heartbeat **heartbeat_out)
{
    tsr_heartbeat *h = NULL;
    tsr_status status = allocate(transport, &h);
    if (status != TSR_OK)
        return status;
    h->transport = *transport;
    h->processes = processes;
    h->tag = tag;
    h->limit_ns = limit_ns;
    h->period_ns = TSR_MIN(limit_ns / ROUNDS_PER_LIMIT + 1, (uint64_t)PERIOD_MOST_NS);
    h->lose = lose;
    h->user = user;
    (void)gethostname(h->host, sizeof h->host - 1);
    const bool has_lock = pthread_mutex_init(&h->lock, NULL) == 0, has_event = tsr_event_init(&h->changed);
    if (has_lock && has_event && start(h)) {
        *heartbeat_out = h;
        return TSR_OK;
    }
    if (has_lock)
        pthread_mutex_destroy(&h->lock);
    if (has_event)
        tsr_event_destroy(&h->changed);
    tsr_mem_free(h->peers);
    tsr_mem_free(h);
    return tsr_fail(TSR_ERR_MEMORY, "the system refused the thread of the heartbeat between processes");
}

void tsr_heartbeat_end(tsr_heartbeat *h)
{
    if (!h || h->is_joined)
        return;
    atomic_store(&h->closing, true);
    tsr_event_notify(&h->changed);
    pthread_join(h->thread, NULL);
    h->is_joined = true;
}

void tsr_heartbeat_destroy(tsr_heartbeat *h)
{
    if (!h)
        return;
    if (h->is_joined) { /* not in a child process: a thread of the parent may have held them */
        pthread_mutex_destroy(&h->lock);
        tsr_event_destroy(&h->changed);
    }
    tsr_mem_free(h->peers);
    tsr_mem_free(h);
}
