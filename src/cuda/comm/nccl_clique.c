/* NCCL communicators of devices; see nccl_clique.h. */
#include "cuda/comm/nccl_clique.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "core/event.h"
#include "core/mem.h"
#include "cuda/api/check.h"

enum { MAX_RANKS = 64 };

/* Waiting for a call to take effect: NCCL starts a thread for it, which takes some microseconds. Calls that
 * wait for other ranks take longer, and are polled less often. */
enum { POLLS_BEFORE_SLEEP = 2000, SLEEP_NS = 20000 };

/* The first to leave sets FINISHED (the thread) or ABANDONED (the owner); the second frees the clique. */
enum { RUNNING, FINISHED, ABANDONED };

/* The last abort first stops the calls that have not taken effect, in far less than this time. */
#define STOPPING_NS 100000000u

typedef struct clique_rank {
    tsr_cuda_device *cuda; /* NULL: not a member of this process */
    pthread_mutex_t lock;
    ncclComm_t comm; /* NULL: not yet, or no more */
    CUcontext context;
} clique_rank;

struct tsr_nccl_clique {
    tsr_nccl_clique *next; /* for the owner's use */
    tsr_nccl_library nccl; /* a copy, as `driver`: the thread may outlive the owner */
    tsr_cuda_driver driver;
    tsr_device_set members, here; /* `here`: those of this process */
    clique_rank ranks[MAX_RANKS]; /* by device */
    pthread_t thread;
    _Atomic bool asked;     /* abort requested */
    _Atomic bool last_call; /* the last rank's abort has begun */
    _Atomic int state;      /* of the thread: RUNNING, FINISHED, ABANDONED */
    tsr_event changed;      /* one of the three has changed */
};

static tsr_status fail_aborted(const clique_rank *rank)
{
    return tsr_fail(TSR_ERR_DEVICE, "device %s: the communicator was aborted", rank->cuda->base.name);
}

/* -- aborting -- */

static bool is_asked(void *what)
{
    return atomic_load(&((tsr_nccl_clique *)what)->asked);
}

static bool is_finished(void *what)
{
    return atomic_load(&((tsr_nccl_clique *)what)->state) == FINISHED;
}

static bool is_stopping(void *what)
{
    return atomic_load(&((tsr_nccl_clique *)what)->last_call) || is_finished(what);
}

static void free_clique(tsr_nccl_clique *clique)
{
    for (int i = 0; i < MAX_RANKS; i++)
        pthread_mutex_destroy(&clique->ranks[i].lock);
    tsr_event_destroy(&clique->changed);
    tsr_mem_free(clique);
}

static ncclComm_t take(clique_rank *rank)
{
    pthread_mutex_lock(&rank->lock);
    ncclComm_t comm = rank->comm;
    rank->comm = NULL;
    pthread_mutex_unlock(&rank->lock);
    return comm;
}

/* NCCL sets the device to the thread's current one when it is done, which for a thread without any creates a
 * context on GPU 0. So the rank's own is current. */
static void abort_one(tsr_nccl_clique *clique, int index, ncclComm_t comm)
{
    CUcontext context;
    const bool is_current = clique->driver.cuCtxPushCurrent(clique->ranks[index].context) == CUDA_SUCCESS;
    (void)clique->nccl.ncclCommAbort(comm);
    if (is_current)
        (void)clique->driver.cuCtxPopCurrent(&context);
}

/* Each abort but the last only makes that rank's kernels end; the last may wait for graphs. */
static void *abort_when_asked(void *argument)
{
    tsr_nccl_clique *clique = argument;
    tsr_event_wait(&clique->changed, is_asked, clique, 0, TSR_FOREVER);
    for (int i = 0; i < MAX_RANKS; i++) {
        ncclComm_t comm = take(&clique->ranks[i]);
        if (clique->here >> i == 1) {
            atomic_store(&clique->last_call, true);
            tsr_event_notify(&clique->changed);
        }
        if (comm)
            abort_one(clique, i, comm);
    }
    if (atomic_exchange(&clique->state, FINISHED) == ABANDONED)
        free_clique(clique);
    else
        tsr_event_notify(&clique->changed);
    return NULL;
}

void tsr_nccl_clique_abort(tsr_nccl_clique *clique)
{
    atomic_store(&clique->asked, true);
    tsr_event_notify(&clique->changed);
}

void tsr_nccl_clique_stop(tsr_nccl_clique *clique, uint64_t timeout_ns)
{
    tsr_nccl_clique_abort(clique);
    tsr_event_wait(&clique->changed, is_stopping, clique, 0, tsr_deadline_ns(timeout_ns));
    tsr_event_wait(&clique->changed, is_finished, clique, 0, tsr_deadline_ns(STOPPING_NS));
}

void tsr_nccl_clique_destroy(tsr_nccl_clique *clique, uint64_t timeout_ns)
{
    if (!clique)
        return;
    pthread_t thread = clique->thread;
    tsr_nccl_clique_abort(clique);
    if (!tsr_event_wait(&clique->changed, is_finished, clique, 0, tsr_deadline_ns(timeout_ns)) &&
        atomic_exchange(&clique->state, ABANDONED) == RUNNING) {
        pthread_detach(thread);
        return;
    }
    pthread_join(thread, NULL);
    free_clique(clique);
}

/* -- waiting -- */

/* NCCL's state of a rank's last call and of its running operations; `call` is the name for the message. */
static tsr_status ask(tsr_nccl_clique *clique, int index, const char *call, bool *in_progress_out)
{
    const tsr_nccl_library *nccl = &clique->nccl;
    clique_rank *rank = &clique->ranks[index];
    ncclResult_t state = ncclSuccess;
    tsr_status status = TSR_OK;
    pthread_mutex_lock(&rank->lock);
    if (!rank->comm) {
        status = fail_aborted(rank);
    } else {
        status = TSR_NCCL_ON(nccl, rank->comm, ncclCommGetAsyncError(rank->comm, &state));
        if (status == TSR_OK)
            status = tsr_nccl_result(nccl, rank->comm, state, call);
        if (status != TSR_OK)
            tsr_fail_in(status, "device %s", rank->cuda->base.name);
    }
    pthread_mutex_unlock(&rank->lock);
    *in_progress_out = state == ncclInProgress;
    return status;
}

static tsr_status fail_late(const tsr_nccl_clique *clique, tsr_device_set late, const char *call)
{
    char names[256] = "";
    size_t used = 0;
    for (int i = 0; i < MAX_RANKS && used < sizeof names; i++)
        if (tsr_device_set_has(late, i))
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                                     clique->ranks[i].cuda->base.name);
    return tsr_fail(TSR_ERR_TIMEOUT, "%s did not finish in time on %s", call, names);
}

/* Wait until the last call of each of the devices has taken effect. */
static tsr_status wait_until_done(tsr_nccl_clique *clique, tsr_device_set devices, const char *call,
                                  uint64_t deadline_ns)
{
    for (int looks = 0;; looks++) {
        TSR_FOR_DEVICES(i, devices) {
            bool in_progress;
            tsr_status status = ask(clique, i, call, &in_progress);
            if (status != TSR_OK)
                return status;
            if (!in_progress)
                devices &= ~tsr_device_set_one(i);
        }
        if (devices == 0)
            return TSR_OK;
        if (tsr_clock_ns() >= deadline_ns)
            return fail_late(clique, devices, call);
        if (looks >= POLLS_BEFORE_SLEEP)
            nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
        else
            tsr_relax();
    }
}

tsr_status tsr_nccl_clique_poll(tsr_nccl_clique *clique, int index)
{
    bool in_progress;
    if (atomic_load(&clique->asked))
        return TSR_OK;
    tsr_status status = ask(clique, index, "an NCCL operation", &in_progress);
    return atomic_load(&clique->asked) ? TSR_OK : status;
}

/* -- calls -- */

tsr_nccl_clique **tsr_nccl_clique_next(tsr_nccl_clique *clique)
{
    return &clique->next;
}

int tsr_nccl_clique_rank(const tsr_nccl_clique *clique, int index)
{
    return tsr_device_set_place(clique->members, index);
}

tsr_device_set tsr_nccl_clique_here(const tsr_nccl_clique *clique)
{
    return clique->here;
}

/* Call with the locks of all `devices` held, and a device current (see abort_one). */
static tsr_status call_in_group(tsr_nccl_clique *clique, tsr_device_set devices, tsr_nccl_calls calls,
                                void *what)
{
    const tsr_nccl_library *nccl = &clique->nccl;
    tsr_status status = TSR_OK;
    TSR_FOR_DEVICES(i, devices)
        if (!clique->ranks[i].comm)
            return fail_aborted(&clique->ranks[i]);
    status = TSR_NCCL(nccl, ncclGroupStart());
    if (status != TSR_OK)
        return status;
    for (int i = 0; i < MAX_RANKS && status == TSR_OK; i++)
        if (tsr_device_set_has(devices, i)) {
            status = calls(nccl, clique->ranks[i].comm, i, what);
            if (status != TSR_OK)
                tsr_fail_in(status, "device %s", clique->ranks[i].cuda->base.name);
        }
    ncclResult_t ended = nccl->ncclGroupEnd(); /* also after a failure */
    return status == TSR_OK ? tsr_nccl_result(nccl, NULL, ended, "ncclGroupEnd") : status;
}

tsr_status tsr_nccl_clique_issue(tsr_nccl_clique *clique, tsr_device_set devices, tsr_nccl_calls calls,
                                 void *what, uint64_t deadline_ns)
{
    TSR_FOR_DEVICES(i, devices)
        pthread_mutex_lock(&clique->ranks[i].lock);
    tsr_cuda_device *first = clique->ranks[tsr_device_set_first(devices)].cuda;
    tsr_status status = tsr_cuda_make_current(first);
    if (status == TSR_OK) {
        status = call_in_group(clique, devices, calls, what);
        tsr_cuda_leave(first);
    }
    TSR_FOR_DEVICES(i, devices)
        pthread_mutex_unlock(&clique->ranks[i].lock);
    return status == TSR_OK ? wait_until_done(clique, devices, "an NCCL operation", deadline_ns) : status;
}

/* -- creation -- */

static tsr_status make_clique(const tsr_nccl_library *nccl, tsr_cuda_device *const *devices,
                              tsr_device_set members, tsr_nccl_clique **clique_out)
{
    tsr_nccl_clique *clique = NULL;
    tsr_status status = TSR_NEW(&clique, "NCCL communicators");
    if (status != TSR_OK)
        return status;
    clique->nccl = *nccl;
    clique->members = members;
    bool usable = tsr_event_init(&clique->changed);
    for (int i = 0; i < MAX_RANKS; i++) {
        pthread_mutex_init(&clique->ranks[i].lock, NULL); /* cannot fail on Linux */
        if (tsr_device_set_has(members, i) && devices[i]) {
            clique->here |= tsr_device_set_one(i);
            clique->ranks[i].cuda = devices[i];
            clique->ranks[i].context = devices[i]->context;
            clique->driver = devices[i]->driver;
        }
    }
    if (usable && pthread_create(&clique->thread, NULL, abort_when_asked, clique) == 0) {
        *clique_out = clique;
        return TSR_OK;
    }
    if (usable)
        tsr_event_destroy(&clique->changed);
    tsr_mem_free(clique);
    return tsr_fail(TSR_ERR_MEMORY, "the system refused the thread that ends NCCL communicators");
}

static tsr_status join_one(tsr_nccl_clique *clique, int index, const ncclUniqueId *id)
{
    tsr_status status = TSR_OK;
    clique_rank *rank = &clique->ranks[index];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    TSR_TRY(tsr_cuda_make_current(rank->cuda));
    status =
        TSR_NCCL(&clique->nccl, ncclCommInitRankConfig(&rank->comm, tsr_device_set_count(clique->members),
                                                       *id, tsr_nccl_clique_rank(clique, index), &config));
    tsr_cuda_leave(rank->cuda);
out:
    return status == TSR_OK ? TSR_OK : tsr_fail_in(status, "device %s", rank->cuda->base.name);
}

/* Start connecting all ranks, in the background. A device is current (see abort_one). */
static tsr_status join_all(tsr_nccl_clique *clique, const ncclUniqueId *id)
{
    tsr_status status = TSR_OK;
    const tsr_nccl_library *nccl = &clique->nccl;
    TSR_TRY(TSR_NCCL(nccl, ncclGroupStart()));
    for (int i = 0; i < MAX_RANKS && status == TSR_OK; i++)
        if (tsr_device_set_has(clique->here, i))
            status = join_one(clique, i, id);
    ncclResult_t ended = nccl->ncclGroupEnd(); /* also after a failure */
    if (status == TSR_OK)
        status = tsr_nccl_result(nccl, NULL, ended, "ncclGroupEnd");
out:
    return status;
}

tsr_status tsr_nccl_clique_id(const tsr_nccl_library *nccl, ncclUniqueId *id_out)
{
    return TSR_NCCL(nccl, ncclGetUniqueId(id_out));
}

tsr_status tsr_nccl_clique_create(const tsr_nccl_library *nccl, tsr_cuda_device *const *devices,
                                  tsr_device_set members, const ncclUniqueId *id, uint64_t timeout_ns,
                                  tsr_nccl_clique **clique_out)
{
    tsr_nccl_clique *clique = NULL;
    tsr_status status = make_clique(nccl, devices, members, &clique);
    if (status != TSR_OK)
        return status;
    tsr_cuda_device *first = clique->ranks[tsr_device_set_first(clique->here)].cuda;
    TSR_TRY(tsr_cuda_make_current(first));
    status = join_all(clique, id);
    tsr_cuda_leave(first);
    TSR_TRY(status);
    TSR_TRY(wait_until_done(clique, clique->here, "ncclCommInitRankConfig", tsr_deadline_ns(timeout_ns)));
    *clique_out = clique;
    clique = NULL;
out:
    tsr_nccl_clique_destroy(clique, timeout_ns);
    return status;
}
