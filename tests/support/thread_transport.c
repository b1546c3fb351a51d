/* See thread_transport.h. One lock for everything: nothing here has to be fast. All of it is memory that
 * forked processes share, at the same addresses, and the lock is one that a killed process gives back.
 *
 * An operation is a slot that the processes taking part find by its key: group or pair, and how many of the
 * same key came before. It has copies of what they send; the last to come carries it out in these, and each
 * takes its result in test(). So memory of a process that is gone is never touched. */
#include "support/thread_transport.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/processes.h"
#include "support/random.h"

enum { MAX_GROUPS = 256, MAX_PAIRS = 1024, MAX_SLOTS = 512 };
enum { SUM, BROADCAST, PASS };
enum { COPY_BYTES = 16 << 20 }; /* the most of an operation; only what is used takes memory */

typedef struct group {
    bool used, lost;
    int tag, n_ranks, ranks[PROCESSES_MAX], n_joined, n_left;
    int64_t n_started[PROCESSES_MAX];
} group;

typedef struct pair {
    int from, to, tag;
    int64_t n_sent, n_received;
} pair;

typedef struct slot {
    bool used, complete, is_heartbeat;
    int kind, root, type, n_here, n_wanted, n_tested;
    const void *key;
    int64_t sequence;
    size_t n;
    void *copies[PROCESSES_MAX]; /* by rank; NULL: has not come */
} slot;

struct process_hub {
    pthread_mutex_t lock;
    pthread_barrier_t all_there; /* what bodies do to the test's own allocations begins behind it */
    int n_ranks;
    group groups[MAX_GROUPS];
    pair pairs[MAX_PAIRS];
    int n_pairs;
    slot slots[MAX_SLOTS];
    process_faults faults;
    int64_t gone_at[PROCESSES_MAX]; /* as process_faults has it; 0: never */
    int64_t n_operations[PROCESSES_MAX];
    uint64_t seed;
    bool broken;           /* a process met its fault */
    unsigned char *copies; /* [MAX_SLOTS][PROCESSES_MAX][COPY_BYTES] */
};

static void lock(process_hub *hub)
{
    if (pthread_mutex_lock(&hub->lock) == EOWNERDEAD)
        (void)pthread_mutex_consistent(&hub->lock);
}

/* -- operations -- */

static void add(int type, void *to, const void *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (type == TSR_TRANSPORT_I32)
            ((uint32_t *)to)[i] += ((const uint32_t *)from)[i];
        else if (type == TSR_TRANSPORT_I64)
            ((uint64_t *)to)[i] += ((const uint64_t *)from)[i];
        else
            ((float *)to)[i] += ((const float *)from)[i];
}

static size_t bytes_of(const slot *s)
{
    return s->kind == SUM ? s->n * (s->type == TSR_TRANSPORT_I64 ? 8 : 4) : s->n;
}

static void carry_out(slot *s)
{
    int first = -1;
    for (int r = 0; r < PROCESSES_MAX && s->kind == SUM; r++) {
        if (!s->copies[r])
            continue;
        if (first >= 0)
            add(s->type, s->copies[first], s->copies[r], s->n);
        else
            first = r;
    }
    if (s->kind != SUM)
        first = s->root;
    for (int r = 0; r < PROCESSES_MAX; r++)
        if (s->copies[r] && r != first)
            memcpy(s->copies[r], s->copies[first], bytes_of(s));
    s->complete = true;
}

/* Whether a process contributes to it, or only takes its result. */
static bool sends(const slot *s, int rank)
{
    return s->kind == SUM || s->root == rank;
}

static void join(process_hub *hub, slot *s, int rank, const void *buffer)
{
    const size_t place = (size_t)(s - hub->slots) * PROCESSES_MAX + (size_t)rank;
    s->copies[rank] = hub->copies + place * COPY_BYTES;
    if (sends(s, rank) && bytes_of(s) > 0)
        memcpy(s->copies[rank], buffer, bytes_of(s));
    if (++s->n_here == s->n_wanted)
        carry_out(s);
}

static void free_slot(slot *s)
{
    *s = (slot){.used = false};
}

/* A fault that this operation meets; "": it is started, and never ends. The heartbeat, which depends on time,
 * is not counted, and meets the faults of the others. */
static const char *fault_of(process_hub *hub, int rank, bool is_heartbeat)
{
    const int64_t n = hub->n_operations[rank] += !is_heartbeat;
    if (hub->gone_at[rank] && n >= hub->gone_at[rank]) {
        hub->broken = true;
        return "";
    }
    if (rank == hub->faults.rank && hub->faults.fail_at && n >= hub->faults.fail_at) {
        hub->broken = true;
        return "the test's network fails";
    }
    return NULL;
}

static const char *start(process *self, const slot *what, void *buffer, tsr_transfer *transfer)
{
    process_hub *hub = self->hub;
    slot *found = NULL;
    const char *problem = NULL;
    lock(hub);
    problem = fault_of(hub, self->rank, what->is_heartbeat);
    for (int i = 0; i < MAX_SLOTS && !problem; i++)
        if (hub->slots[i].used && hub->slots[i].key == what->key && hub->slots[i].sequence == what->sequence)
            found = &hub->slots[i];
    for (int i = 0; i < MAX_SLOTS && !problem && !found; i++)
        if (!hub->slots[i].used) {
            found = &hub->slots[i];
            *found = *what;
            found->used = true;
        }
    if (!problem && !found)
        problem = "the test's transport has too many operations under way";
    else if (!problem && bytes_of(what) > COPY_BYTES)
        problem = "the test's transport has no room for so long a message";
    else if (!problem && (found->kind != what->kind || found->n != what->n || found->root != what->root ||
                          found->type != what->type || found->copies[self->rank]))
        problem = "processes started different operations";
    if (!problem)
        join(hub, found, self->rank, buffer);
    *transfer = (tsr_transfer){{(uintptr_t)found, (uintptr_t)buffer}};
    pthread_mutex_unlock(&hub->lock);
    return problem && *problem ? problem : NULL;
}

static const char *group_start(process *self, group *g, slot what, void *buffer, tsr_transfer *transfer)
{
    lock(self->hub);
    what.sequence = g->n_started[self->rank]++;
    pthread_mutex_unlock(&self->hub->lock);
    what.key = g;
    what.n_wanted = g->n_ranks;
    return start(self, &what, buffer, transfer);
}

static const char *sum(void *user, void *g, void *values, size_t n, tsr_transport_type type,
                       tsr_transfer *transfer)
{
    return group_start(user, g, (slot){.kind = SUM, .type = (int)type, .n = n}, values, transfer);
}

static const char *broadcast(void *user, void *g, int root, void *bytes, size_t n, tsr_transfer *transfer)
{
    return group_start(user, g, (slot){.kind = BROADCAST, .root = root, .n = n}, bytes, transfer);
}

static const char *pass(process *self, int from, int to, int tag, void *bytes, size_t n,
                        tsr_transfer *transfer)
{
    process_hub *hub = self->hub;
    slot what = {.kind = PASS, .root = from, .n = n, .n_wanted = 2};
    what.is_heartbeat = tag % TSR_TAGS == TSR_TAG_HEARTBEAT;
    lock(hub);
    int i = 0;
    while (i < hub->n_pairs &&
           (hub->pairs[i].from != from || hub->pairs[i].to != to || hub->pairs[i].tag != tag))
        i++;
    pair *p = &hub->pairs[i];
    if (i == hub->n_pairs && i < MAX_PAIRS)
        hub->pairs[hub->n_pairs++] = (pair){from, to, tag, 0, 0};
    what.key = p;
    what.sequence = self->rank == from ? p->n_sent++ : p->n_received++;
    pthread_mutex_unlock(&hub->lock);
    return start(self, &what, bytes, transfer);
}

static const char *send_to(void *user, int to, int tag, const void *bytes, size_t n, tsr_transfer *transfer)
{
    process *self = user;
    lock(self->hub);
    self->n_sent += tag % TSR_TAGS != TSR_TAG_HEARTBEAT;
    self->sent_bytes += tag % TSR_TAGS == TSR_TAG_HEARTBEAT ? 0 : (int64_t)n;
    pthread_mutex_unlock(&self->hub->lock);
    return pass(self, self->rank, to, tag, (void *)(uintptr_t)bytes, n, transfer); /* only read */
}

static const char *receive_from(void *user, int from, int tag, void *bytes, size_t n, tsr_transfer *transfer)
{
    process *self = user;
    return pass(self, from, self->rank, tag, bytes, n, transfer);
}

/* Now and then an operation that is done looks as if it were not yet. */
static const char *test(void *user, tsr_transfer *transfer, bool *done_out)
{
    process *self = user;
    slot *s = (slot *)transfer->word[0];
    lock(self->hub);
    *done_out = s && s->complete && random_below(&self->hub->seed, 4) > 0;
    if (*done_out && !(s->root == self->rank && s->kind == PASS) && bytes_of(s) > 0)
        memcpy((void *)transfer->word[1], s->copies[self->rank], bytes_of(s));
    if (*done_out && ++s->n_tested == s->n_wanted)
        free_slot(s);
    pthread_mutex_unlock(&self->hub->lock);
    return NULL;
}

/* -- groups -- */

/* That all members have come is waited for by the first operation, not here. */
static const char *group_create(void *user, const int *ranks, int n_ranks, int tag, void **group_out)
{
    process *self = user;
    process_hub *hub = self->hub;
    group *found = NULL;
    lock(hub);
    for (int i = 0; i < MAX_GROUPS; i++) {
        group *g = &hub->groups[i];
        if (g->used && g->tag == tag && g->n_ranks == n_ranks && g->n_joined < n_ranks &&
            memcmp(g->ranks, ranks, (size_t)n_ranks * sizeof *ranks) == 0)
            found = g;
    }
    for (int i = 0; i < MAX_GROUPS && !found; i++)
        if (!hub->groups[i].used) {
            found = &hub->groups[i];
            *found = (group){.used = true, .tag = tag, .n_ranks = n_ranks};
            memcpy(found->ranks, ranks, (size_t)n_ranks * sizeof *ranks);
        }
    if (found)
        found->n_joined++;
    pthread_mutex_unlock(&hub->lock);
    *group_out = found;
    return found ? NULL : "the test's transport has too many groups";
}

static void group_destroy(void *user, void *what, bool lost)
{
    process *self = user;
    group *g = what;
    lock(self->hub);
    self->hub->broken |= lost;
    g->lost |= lost;
    if (++g->n_left == g->n_ranks && !g->lost) /* operations of a lost one may still have its address */
        g->used = false;
    pthread_mutex_unlock(&self->hub->lock);
}

/* -- processes -- */

void process_vanish_after(process *self, int64_t n)
{
    process_hub *hub = self->hub;
    lock(hub);
    hub->gone_at[self->rank] = TSR_MAX(hub->n_operations[self->rank] + n, (int64_t)1);
    pthread_mutex_unlock(&hub->lock);
}

void process_vanish(process *self)
{
    process_vanish_after(self, 0);
}

void process_note(process *self, tsr_status status)
{
    self->status = status;
    snprintf(self->text, sizeof self->text, "%s", status == TSR_OK ? "" : tsr_last_error());
}

/* -- running -- */

static size_t hub_bytes(void)
{
    return (sizeof(process_hub) + 4095) / 4096 * 4096 + (size_t)MAX_SLOTS * PROCESSES_MAX * COPY_BYTES;
}

static process_hub *make_hub(int n, const process_faults *faults)
{
    pthread_mutexattr_t mutex;
    pthread_barrierattr_t barrier;
    process_hub *hub =
        mmap(NULL, hub_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(hub != MAP_FAILED);
    assert_true(n <= PROCESSES_MAX);
    hub->copies = (unsigned char *)hub + hub_bytes() - (size_t)MAX_SLOTS * PROCESSES_MAX * COPY_BYTES;
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&mutex, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&hub->lock, &mutex);
    pthread_barrierattr_init(&barrier);
    pthread_barrierattr_setpshared(&barrier, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&hub->all_there, &barrier, (unsigned)n);
    hub->n_ranks = n;
    hub->seed = 1;
    if (faults) {
        hub->faults = *faults;
        hub->gone_at[faults->rank] = faults->gone_at;
    }
    return hub;
}

static void free_hub(process_hub *hub)
{
    pthread_barrier_destroy(&hub->all_there);
    pthread_mutex_destroy(&hub->lock);
    munmap(hub, hub_bytes());
}

static void make_process(process_hub *hub, int rank, void *user, process *p)
{
    *p = (process){.rank = rank, .n_ranks = hub->n_ranks, .hub = hub, .user = user};
    p->transport = (tsr_transport){
        sizeof(tsr_transport), rank, hub->n_ranks, p, group_create, group_destroy, sum, broadcast, send_to,
        receive_from,          test, true};
}

typedef struct run {
    process *self;
    void (*body)(process *self);
} run;

static void *run_body(void *argument)
{
    run *r = argument;
    pthread_barrier_wait(&r->self->hub->all_there);
    r->body(r->self);
    return NULL;
}

static void check_left_over(const process_hub *hub)
{
    for (int i = 0; i < MAX_GROUPS && !hub->broken; i++)
        if (hub->groups[i].used)
            fail_msg("a group of %d processes is left over", hub->groups[i].n_ranks);
    for (int i = 0; i < MAX_SLOTS && !hub->broken; i++)
        if (hub->slots[i].used)
            fail_msg("an operation of kind %d is left over", hub->slots[i].kind);
}

int64_t processes_run(int n, void (*body)(process *self), void *user, const process_faults *faults,
                      process *processes)
{
    pthread_t threads[PROCESSES_MAX];
    run runs[PROCESSES_MAX];
    process_hub *hub = make_hub(n, faults);
    for (int r = 0; r < n; r++) {
        make_process(hub, r, user, &processes[r]);
        runs[r] = (run){&processes[r], body};
        assert_int_equal(pthread_create(&threads[r], NULL, run_body, &runs[r]), 0);
    }
    for (int r = 0; r < n; r++)
        pthread_join(threads[r], NULL);
    check_left_over(hub);
    const int64_t n_operations = hub->n_operations[hub->faults.rank];
    free_hub(hub);
    return n_operations;
}

static pid_t start_process(process *self, void (*body)(process *self))
{
    const pid_t child = fork();
    if (child != 0)
        return child;
    pthread_barrier_wait(&self->hub->all_there);
    body(self);
    _exit(0);
}

void processes_fork(int n, void (*body)(process *self), void *user, process *processes, int *endings)
{
    pid_t children[PROCESSES_MAX];
    process_hub *hub = make_hub(n, NULL);
    process *shared =
        mmap(NULL, PROCESSES_MAX * sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    for (int r = 0; r < n; r++) {
        make_process(hub, r, user, &shared[r]);
        shared[r].status = TSR_ERR_DEVICE_LOST; /* until it is noted */
        children[r] = start_process(&shared[r], body);
        assert_true(children[r] > 0);
    }
    for (int r = 0; r < n; r++)
        assert_int_equal(waitpid(children[r], &endings[r], 0), children[r]);
    memcpy(processes, shared, (size_t)n * sizeof *processes);
    munmap(shared, PROCESSES_MAX * sizeof *shared);
    free_hub(hub);
}
