/* Agreement between processes; see processes.h. */
#include "core/processes.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/config.h"
#include "core/event.h"
#include "core/mem.h"
#include "core/wait/heartbeat.h"
#include "core/wait/making.h"
#include "core/wait/survivors.h"

enum { SENTENCE_BYTES = 512, CHUNK_BYTES = 1 << 20, MAX_PROCESSES = 64 };
enum { POLLS = 1000 }; /* of a waiting thread, before it yields */

/* The contribution of a process to an exchange. */
typedef struct report {
    int32_t status, call; /* status, and a number of the call, derived from its name */
    int32_t mark;         /* fingerprint of its arguments; 0: none */
} report;

struct tsr_processes {
    tsr_transport transport;
    uint64_t present;    /* one bit for each process that is not gone */
    int epoch;           /* how often the others went on without one */
    void *all;           /* the group of the present processes, for the exchanges of this file */
    uint64_t timeout_ns; /* 0: the default */
    tsr_heartbeat *heartbeat;
    bool is_watched;     /* the heartbeat has begun */
    _Atomic int n_steps; /* that have begun and not ended; one is part of another */
    tsr_watch *watch;
    report reports[MAX_PROCESSES];
    char sentence[SENTENCE_BYTES];
    tsr_status pending; /* another process's failure seen before the end of the call, with its `sentence` */
    pthread_mutex_t lock;
    _Atomic bool lost;      /* `reason` is written once before, under the lock */
    _Atomic bool is_broken; /* a function of the transport failed */
    char reason[SENTENCE_BYTES];
    unsigned char *chunk;          /* [CHUNK_BYTES] */
    tsr_making making[TSR_EPOCHS]; /* one at a time; the last of an epoch may be abandoned */
    bool has_abandoned;            /* a thread may still write there: this object stays */
};

/* -- waiting and losing the processes -- */

void tsr_processes_lose(tsr_processes *p, const char *reason)
{
    pthread_mutex_lock(&p->lock);
    if (!atomic_load(&p->lost)) {
        snprintf(p->reason, sizeof p->reason, "%s", reason);
        atomic_store(&p->lost, true);
    }
    pthread_mutex_unlock(&p->lock);
    tsr_heartbeat_lose(p->heartbeat, p->reason);
}

void tsr_processes_break(tsr_processes *p, const char *problem)
{
    atomic_store(&p->is_broken, true);
    tsr_heartbeat_lose(p->heartbeat, NULL);
    tsr_processes_lose(p, problem);
}

static void lose_by_heartbeat(void *user, const char *reason)
{
    tsr_processes_lose(user, reason);
}

bool tsr_processes_are_lost(const tsr_processes *p)
{
    return p && atomic_load(&p->lost);
}

tsr_status tsr_processes_check(const tsr_processes *p)
{
    if (p && tsr_watch_is_forked(p->watch))
        return tsr_watch_check(p->watch);
    if (!tsr_processes_are_lost(p))
        return TSR_OK;
    return tsr_fail(TSR_ERR_DEVICE_LOST,
                    "process %d of %d: the runtime is lost: %s; close it and restart all processes",
                    p->transport.rank, p->transport.n_ranks, p->reason);
}

uint64_t tsr_processes_step_limit_ns(const tsr_processes *p)
{
    return p->timeout_ns ? p->timeout_ns : TSR_MAX(tsr_watch_stall_ns(p->watch), TSR_STALL_DEFAULT_NS);
}

void tsr_processes_step(tsr_processes *p, bool begins)
{
    if (p)
        atomic_fetch_add(&p->n_steps, begins ? 1 : -1);
}

/* Yield the processor at first. Long waits are mostly large sums, which many MPI libraries advance only while
 * they are polled: the thread sleeps only after longer waits. */
static void pause_before_look(uint64_t waited_ns)
{
    enum { LONG_NS = 100000000, NAP_NS = 50000 };
    const struct timespec nap = {0, NAP_NS};
    if (waited_ns < LONG_NS)
        sched_yield();
    else
        nanosleep(&nap, NULL);
}

/* A process whose heartbeat goes on may take as long as it needs in calls that load, save or measure. */
static uint64_t wait_limit_ns(const tsr_processes *p)
{
    if (!p->is_watched && p->epoch == 0)
        return p->timeout_ns ? p->timeout_ns : UINT64_MAX;
    return !p->is_watched || atomic_load(&p->n_steps) > 0 || tsr_heartbeat_has_left(p->heartbeat)
               ? tsr_processes_step_limit_ns(p)
               : UINT64_MAX;
}

static void lose_late(tsr_processes *p, uint64_t waited_ns)
{
    char missing[SENTENCE_BYTES - 96], text[SENTENCE_BYTES];
    tsr_heartbeat_describe_missing(p->heartbeat, missing, sizeof missing);
    snprintf(text, sizeof text, "the wait for %s exceeded %s: %.3g s", missing,
             p->timeout_ns ? "transport_timeout_ns" : "the default", (double)waited_ns / 1e9);
    tsr_processes_lose(p, text);
}

/* Look at an operation: true if the wait for it ends. */
static bool has_ended(tsr_processes *p, tsr_transfer *transfer, const _Atomic bool *cancelled, bool *done_out)
{
    if (atomic_load(&p->lost))
        return true;
    const char *problem = p->transport.test(p->transport.user, transfer, done_out);
    if (problem)
        tsr_processes_break(p, problem);
    tsr_watch_note(p->watch);
    return problem || *done_out || (cancelled && atomic_load(cancelled));
}

static bool wait_long(tsr_processes *p, tsr_transfer *transfer, const _Atomic bool *cancelled,
                      uint64_t begin_ns)
{
    bool done = false;
    tsr_heartbeat_wait(p->heartbeat, true);
    while (!has_ended(p, transfer, cancelled, &done)) {
        const uint64_t waited_ns = tsr_clock_ns() - begin_ns;
        if (waited_ns >= wait_limit_ns(p))
            lose_late(p, waited_ns);
        pause_before_look(waited_ns);
    }
    tsr_heartbeat_wait(p->heartbeat, false);
    return done;
}

/* Other processes mostly arrive within microseconds. */
bool tsr_processes_wait(tsr_processes *p, tsr_transfer *transfer, const _Atomic bool *cancelled)
{
    const uint64_t begin_ns = tsr_clock_ns();
    bool done = false;
    for (int i = 0; i < POLLS; i++) {
        if (has_ended(p, transfer, cancelled, &done))
            return done;
        tsr_relax();
    }
    return wait_long(p, transfer, cancelled, begin_ns);
}

/* All members have been in one exchange before, so they arrive within the limit of a step. False: lost. */
static bool wait_for_making(tsr_processes *p, const tsr_making *making)
{
    const uint64_t begin_ns = tsr_clock_ns();
    tsr_heartbeat_wait(p->heartbeat, true);
    while (!tsr_making_is_done(making) && !atomic_load(&p->lost)) {
        const uint64_t waited_ns = tsr_clock_ns() - begin_ns;
        tsr_watch_note(p->watch);
        if (waited_ns >= tsr_processes_step_limit_ns(p))
            lose_late(p, waited_ns);
        pause_before_look(waited_ns);
    }
    tsr_heartbeat_wait(p->heartbeat, false);
    return tsr_making_is_done(making);
}

/* False: lost. *problem_out: the transport's sentence; NULL: the group is made. */
static bool make_group(tsr_processes *p, const int *ranks, int n_ranks, int tag, void **group_out,
                       const char **problem_out)
{
    tsr_making *making = &p->making[p->epoch];
    *problem_out = NULL;
    if (!tsr_making_start(making, &p->transport, ranks, n_ranks, tag))
        *problem_out = "the system refused a thread";
    else if (wait_for_making(p, making))
        *problem_out = tsr_making_finish(making, group_out);
    else {
        tsr_making_abandon(making);
        p->has_abandoned = true;
        return false;
    }
    return true;
}

tsr_status tsr_processes_make_group(tsr_processes *p, const int *ranks, int n_ranks, int tag,
                                    void **group_out)
{
    const char *problem;
    if (make_group(p, ranks, n_ranks, tag, group_out, &problem) && problem)
        tsr_processes_break(p, problem);
    return tsr_processes_check(p);
}

/* Wait for the transfer that was just started. */
static tsr_status finish(tsr_processes *p, const char *problem, tsr_transfer *transfer)
{
    if (problem)
        tsr_processes_break(p, problem);
    else if (tsr_processes_wait(p, transfer, NULL))
        return TSR_OK;
    return tsr_processes_check(p);
}

/* -- exchanging -- */

/* FNV-1a (isthe.com/chongo/tech/comp/fnv). */
static int32_t number_of(const char *name)
{
    uint32_t hash = 2166136261u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return (int32_t)(hash & INT32_MAX);
}

static tsr_status broadcast(tsr_processes *p, int root, void *bytes, size_t n)
{
    tsr_transfer transfer;
    return finish(p, p->transport.broadcast(p->transport.user, p->all, root, bytes, n, &transfer), &transfer);
}

/* Gather the reports of all processes: a sum in which each has zeros in the others' places. */
static tsr_status gather_reports(tsr_processes *p, report mine)
{
    tsr_transfer transfer;
    memset(p->reports, 0, sizeof p->reports);
    p->reports[p->transport.rank] = mine;
    size_t n = (size_t)p->transport.n_ranks * sizeof(report) / sizeof(int32_t);
    return finish(p, p->transport.sum(p->transport.user, p->all, p->reports, n, TSR_TRANSPORT_I32, &transfer),
                  &transfer);
}

static tsr_status fetch_sentence(tsr_processes *p, int failed)
{
    if (failed == p->transport.rank)
        snprintf(p->sentence, sizeof p->sentence, "%s", tsr_last_error());
    tsr_status status = broadcast(p, failed, p->sentence, sizeof p->sentence);
    p->sentence[SENTENCE_BYTES - 1] = '\0';
    return status;
}

bool tsr_processes_is_gone(const tsr_processes *p, int rank)
{
    return p && !(p->present >> rank & 1);
}

int tsr_processes_first(const tsr_processes *p)
{
    int rank = 0;
    while (tsr_processes_is_gone(p, rank))
        rank++;
    return rank;
}

/* The next process from `rank` on that is not gone; n_ranks: none. */
static int next_present(const tsr_processes *p, int rank)
{
    while (rank < p->transport.n_ranks && tsr_processes_is_gone(p, rank))
        rank++;
    return rank;
}

#define FOR_PRESENT(r, p) \
    for (int r = next_present(p, 0); r < (p)->transport.n_ranks; r = next_present(p, r + 1))

/* One exchange. *failed_out: the first process that has failed, -1 if none; its sentence is in
 * p->sentence. */
static tsr_status exchange(tsr_processes *p, tsr_status mine, const char *what, uint64_t mark,
                           int *failed_out)
{
    tsr_status status = tsr_processes_check(p);
    const report own = {mine, number_of(what), (int32_t)(mark ^ mark >> 32)};
    *failed_out = -1;
    if (status == TSR_OK)
        status = gather_reports(p, own);
    if (status != TSR_OK)
        return status;
    FOR_PRESENT(r, p)
    {
        if (p->reports[r].status != TSR_OK) {
            *failed_out = r;
            return fetch_sentence(p, r);
        }
    }
    FOR_PRESENT(r, p)
    {
        if (p->reports[r].call == own.call)
            continue;
        char text[SENTENCE_BYTES];
        snprintf(
            text, sizeof text,
            "process %d is in %s, process %d in another call; all must make the same calls in the same order",
            p->transport.rank, what, r);
        tsr_processes_lose(p, text);
        return tsr_processes_check(p);
    }
    FOR_PRESENT(r, p)
    if (p->reports[r].mark != own.mark)
        return tsr_fail(TSR_ERR_INVALID,
                        "%s: arguments or files of processes %d and %d differ; they must be the same in "
                        "every process",
                        what, p->transport.rank, r);
    return TSR_OK;
}

/* The sentence of another process's failure names this process. */
static tsr_status failure_of(const tsr_processes *p, int failed)
{
    const tsr_status status = (tsr_status)p->reports[failed].status;
    if (failed == p->transport.rank || strncmp(p->sentence, "process ", 8) == 0)
        return tsr_fail(status, "%s", p->sentence);
    return tsr_fail(status, "process %d: %s", failed, p->sentence);
}

/* As failure_of(), before the end of the call in which the other process failed: that process has already
 * done its final exchange of this call. */
static tsr_status failure_met(tsr_processes *p, int failed)
{
    p->pending = failure_of(p, failed);
    snprintf(p->sentence, sizeof p->sentence, "%s", tsr_last_error());
    return p->pending;
}

tsr_status tsr_processes_agree(tsr_processes *p, tsr_status mine, const char *what)
{
    return tsr_processes_agree_on(p, mine, what, 0);
}

tsr_status tsr_processes_agree_on(tsr_processes *p, tsr_status mine, const char *what, uint64_t mark)
{
    int failed;
    if (!p)
        return mine;
    if (tsr_watch_is_forked(p->watch))
        return tsr_processes_check(p);
    if (atomic_load(&p->lost)) /* an aborted device is only a consequence of it */
        return mine == TSR_OK || mine == TSR_ERR_DEVICE ? tsr_processes_check(p) : mine;
    if (p->pending != TSR_OK) {
        const tsr_status pending = p->pending;
        p->pending = TSR_OK;
        return tsr_fail(pending, "%s", p->sentence);
    }
    tsr_status status = exchange(p, mine, what, mark, &failed);
    if (status != TSR_OK || failed < 0)
        return status;
    return p->reports[failed].call == number_of(what) ? failure_of(p, failed) : failure_met(p, failed);
}

/* -- sharing -- */

static tsr_status broadcast_all(tsr_processes *p, int root, unsigned char *bytes, size_t n)
{
    enum { MOST = 1 << 28 }; /* MPI counts in int */
    tsr_status status = TSR_OK;
    for (size_t at = 0; at < n && status == TSR_OK; at += MOST)
        status = broadcast(p, root, bytes + at, TSR_MIN(n - at, (size_t)MOST));
    return status;
}

static void copy_rows(unsigned char *to, size_t to_stride, const unsigned char *from, size_t from_stride,
                      size_t width, size_t height)
{
    for (size_t row = 0; row < height; row++)
        memcpy(to + row * to_stride, from + row * from_stride, width);
}

/* Rows that are not contiguous go through the chunk, as many at a time as fit. */
static tsr_status broadcast_rows(tsr_processes *p, int root, unsigned char *rows, size_t stride, size_t width,
                                 size_t height)
{
    tsr_status status = TSR_OK;
    const bool mine = root == p->transport.rank;
    if (stride == width)
        return broadcast_all(p, root, rows, width * height);
    for (size_t row = 0, n; row < height && status == TSR_OK; row += n) {
        unsigned char *part = rows + row * stride;
        n = width > CHUNK_BYTES ? 1 : TSR_MIN(CHUNK_BYTES / width, height - row);
        if (width > CHUNK_BYTES) {
            status = broadcast_all(p, root, part, width);
            continue;
        }
        if (mine)
            copy_rows(p->chunk, width, part, stride, width, n);
        status = broadcast(p, root, p->chunk, n * width);
        if (status == TSR_OK && !mine)
            copy_rows(part, stride, p->chunk, width, width, n);
    }
    return status;
}

tsr_status tsr_processes_share(tsr_processes *p, int root, tsr_status mine, void *rows, size_t stride,
                               size_t width, size_t height, const char *what)
{
    int failed;
    if (!p || tsr_processes_is_gone(p, root))
        return mine;
    if (p->pending != TSR_OK)
        return tsr_fail(p->pending, "%s", p->sentence);
    const uint64_t mark = ((uint64_t)width * UINT64_C(0x9e3779b97f4a7c15)) ^ (uint64_t)height;
    tsr_status status = exchange(p, mine, what, mark, &failed);
    if (status == TSR_OK && failed >= 0)
        return failure_met(p, failed);
    if (status == TSR_OK && width > 0)
        status = broadcast_rows(p, root, rows, stride, width, height);
    return status;
}

/* The outcomes are values of the exchanges, whose own outcome is TSR_OK. */
tsr_status tsr_processes_try(tsr_processes *p, tsr_status mine, const char *what)
{
    struct {
        int32_t status;
        char sentence[SENTENCE_BYTES];
    } first = {TSR_OK, ""};
    int failed = -1;
    if (!p)
        return mine;
    char sentence[SENTENCE_BYTES];
    snprintf(sentence, sizeof sentence, "%s", mine == TSR_OK ? "" : tsr_last_error());
    FOR_PRESENT(r, p)
    {
        if (failed >= 0)
            break;
        if (r == p->transport.rank) {
            first.status = mine;
            memcpy(first.sentence, sentence, sizeof sentence);
        }
        tsr_status status = tsr_processes_share(p, r, TSR_OK, &first, sizeof first, sizeof first, 1, what);
        if (status != TSR_OK)
            return status;
        failed = first.status == TSR_OK ? -1 : r;
    }
    if (failed < 0)
        return TSR_OK;
    if (failed == p->transport.rank)
        return tsr_fail((tsr_status)first.status, "%s", first.sentence);
    return tsr_fail((tsr_status)first.status, "process %d: %s", failed, first.sentence);
}

tsr_status tsr_processes_end(tsr_processes *p, tsr_status mine)
{
    if (p)
        p->pending = TSR_OK;
    return mine;
}

/* -- creation -- */

int tsr_processes_rank(const tsr_processes *p)
{
    return p ? p->transport.rank : 0;
}

int tsr_processes_count(const tsr_processes *p)
{
    return p ? p->transport.n_ranks : 1;
}

const tsr_transport *tsr_processes_transport(const tsr_processes *p)
{
    return &p->transport;
}

int tsr_processes_tag(const tsr_processes *p, int tag)
{
    return p->epoch * TSR_TAGS + tag;
}

size_t tsr_transport_init(tsr_transport *transport_out, size_t size)
{
    const tsr_transport defaults = {.n_ranks = 1};
    return tsr_config_write(&defaults, sizeof defaults, transport_out, size);
}

static tsr_status check_transport(const tsr_transport *t)
{
    if (t->n_ranks < 1 || t->n_ranks > MAX_PROCESSES || t->rank < 0 || t->rank >= t->n_ranks)
        return tsr_fail(TSR_ERR_INVALID, "the transport is process %d of %d; a runtime has 1 to %d", t->rank,
                        t->n_ranks, (int)MAX_PROCESSES);
    if (!t->group_create || !t->group_destroy || !t->sum || !t->broadcast || !t->send || !t->receive ||
        !t->test)
        return tsr_fail(TSR_ERR_INVALID, "the transport lacks a function; all of tsr_transport's are needed");
    return TSR_OK;
}

void tsr_processes_leave(tsr_processes *p, void *group)
{
    if (group && !tsr_watch_is_forked(p->watch))
        p->transport.group_destroy(p->transport.user, group, atomic_load(&p->lost));
}

tsr_status tsr_processes_close(tsr_processes *p)
{
    if (!p || tsr_watch_is_forked(p->watch))
        return TSR_OK;
    const bool was_lost = atomic_load(&p->lost);
    tsr_heartbeat_end(p->heartbeat);
    return was_lost ? TSR_OK : tsr_processes_check(p);
}

/* Memory of the object itself remains. */
static void leave(tsr_processes *p)
{
    (void)!tsr_processes_close(p);
    tsr_processes_leave(p, p->all);
    tsr_heartbeat_destroy(p->heartbeat); /* in a lost runtime the transport uses its memory until then */
    p->all = NULL;
    pthread_mutex_destroy(&p->lock);
    tsr_mem_free(p->chunk);
}

static tsr_status allocate(tsr_processes **p_out)
{
    tsr_status status = TSR_OK;
    tsr_processes *p = NULL;
    TSR_TRY(TSR_NEW(&p, "the processes of a runtime"));
    TSR_TRY(tsr_mem_array(CHUNK_BYTES, 1, "the processes of a runtime", &p->chunk));
    *p_out = p;
    p = NULL;
out:
    tsr_mem_free(p);
    return status;
}

static int count_present(const tsr_processes *p)
{
    int n = 0;
    FOR_PRESENT(r, p)
    n++;
    return n;
}

/* Created before the processes agree, so that none is without a heartbeat. */
static tsr_status create_heartbeat(tsr_processes *p)
{
    const uint64_t limit_ns = p->timeout_ns ? p->timeout_ns : TSR_STALL_DEFAULT_NS;
    if (count_present(p) == 1)
        return TSR_OK;
    return tsr_heartbeat_create(&p->transport, p->present, tsr_processes_tag(p, TSR_TAG_HEARTBEAT), limit_ns,
                                lose_by_heartbeat, p, &p->heartbeat);
}

static tsr_status join(tsr_processes *p, tsr_status mine, const char *what)
{
    int ranks[MAX_PROCESSES], n = 0;
    const tsr_transport *t = &p->transport;
    FOR_PRESENT(r, p)
    ranks[n++] = r;
    const char *problem;
    if (p->epoch == 0) /* others may need any time until they open the runtime */
        problem = t->group_create(t->user, ranks, n, tsr_processes_tag(p, 0), &p->all);
    else if (!make_group(p, ranks, n, tsr_processes_tag(p, 0), &p->all, &problem))
        return tsr_processes_check(p);
    if (problem)
        return tsr_fail(TSR_ERR_DEVICE, "process %d of %d cannot reach the others: %s", t->rank, t->n_ranks,
                        problem);
    return tsr_processes_agree(p, mine, what);
}

static void begin_watching(tsr_processes *p)
{
    tsr_heartbeat_begin(p->heartbeat);
    p->is_watched = true;
}

/* A process that cannot go on joins nevertheless, without memory of its own, to report its failure. */
tsr_status tsr_processes_create(const tsr_transport *transport, uint64_t timeout_ns, tsr_watch *watch,
                                tsr_status mine, tsr_processes **processes_out)
{
    tsr_status status = TSR_OK;
    tsr_processes failing = {.pending = TSR_OK}, *p = NULL;
    tsr_transport own = tsr_transport_default();
    TSR_TRY(tsr_config_read("tsr_transport", transport, sizeof own, &own, sizeof own));
    TSR_TRY(check_transport(&own));
    status = mine == TSR_OK ? allocate(&p) : mine;
    tsr_processes *joining = p ? p : &failing;
    if (pthread_mutex_init(&joining->lock, NULL) != 0) {
        if (p)
            tsr_mem_free(p->chunk);
        tsr_mem_free(p);
        return tsr_fail(TSR_ERR_MEMORY, "the system refused a lock");
    }
    joining->transport = own;
    joining->present = own.n_ranks == MAX_PROCESSES ? UINT64_MAX : (UINT64_C(1) << own.n_ranks) - 1;
    joining->timeout_ns = timeout_ns;
    joining->watch = watch;
    if (status == TSR_OK)
        status = create_heartbeat(p);
    status = join(joining, status, "joining the processes of a runtime");
    if (status == TSR_OK) {
        begin_watching(p);
        *processes_out = p;
    } else {
        leave(joining);
        tsr_mem_free(p);
    }
out:
    return status;
}

/* -- going on without a process -- */

static tsr_status check_can_go_on(const tsr_processes *p)
{
    if (!p->transport.survives)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "the processes cannot go on without one of them, because their transport cannot "
                        "(tsr_transport.survives): %s",
                        p->reason);
    if (atomic_load(&p->is_broken))
        return tsr_processes_check(p);
    if (p->epoch + 1 == TSR_EPOCHS)
        return tsr_fail(TSR_ERR_DEVICE_LOST,
                        "the processes went on after %d losses, and can do so no more; close the runtime in "
                        "all of them and open it anew",
                        p->epoch);
    return TSR_OK;
}

/* The present processes begin anew. */
static tsr_status begin_epoch(tsr_processes *p, uint64_t present)
{
    tsr_processes_leave(p, p->all); /* while it is lost */
    tsr_heartbeat_destroy(p->heartbeat);
    p->all = NULL;
    p->heartbeat = NULL;
    p->is_watched = false;
    p->present = present;
    p->epoch++;
    p->pending = TSR_OK;
    atomic_store(&p->lost, false);
    const tsr_status status = join(p, create_heartbeat(p), "going on without a process");
    if (status == TSR_OK)
        begin_watching(p);
    else
        tsr_processes_lose(p, tsr_last_error());
    return status;
}

tsr_status tsr_processes_go_on(tsr_processes *p, uint64_t said, uint64_t *said_by_all_out)
{
    tsr_status status = TSR_OK;
    uint64_t present = p->present;
    TSR_TRY(check_can_go_on(p));
    tsr_heartbeat_end(p->heartbeat);
    if (p->heartbeat)
        present = tsr_heartbeat_present(p->heartbeat);
    TSR_TRY(tsr_survivors_agree(&p->transport, tsr_processes_tag(p, TSR_TAG_SURVIVORS),
                                tsr_processes_step_limit_ns(p), present, said, &present, said_by_all_out));
    TSR_TRY(begin_epoch(p, present));
out:
    return status;
}

void tsr_processes_destroy(tsr_processes *p)
{
    if (!p)
        return;
    leave(p);
    if (!p->has_abandoned)
        tsr_mem_free(p);
}
