/* A queue of jobs with one writer and one reader; see worker.h. */
#include "cuda/context/worker.h"

#include <pthread.h>
#include <stdatomic.h>

#include "core/event.h"
#include "core/mem.h"

struct tsr_cuda_worker {
    pthread_t thread;
    _Atomic int polls;
    tsr_watch *watch;
    struct {
        void (*run)(void *argument);
        void *argument;
    } jobs[TSR_CUDA_MAX_JOBS];
    _Atomic uint64_t submitted; /* jobs in total; written by the submitter */
    _Atomic uint64_t finished;  /* written by the thread */
    _Atomic bool quit;
    tsr_event more, less; /* submitted (or quit) and finished have changed */
};

static bool has_work(void *what)
{
    tsr_cuda_worker *worker = what;
    return atomic_load(&worker->submitted) != atomic_load(&worker->finished) || atomic_load(&worker->quit);
}

typedef struct queue_wait {
    tsr_cuda_worker *worker;
    uint64_t n_left;
} queue_wait;

static bool has_caught_up(void *what)
{
    const queue_wait *wait = what;
    return atomic_load(&wait->worker->submitted) - atomic_load(&wait->worker->finished) <= wait->n_left;
}

static void *work(void *argument)
{
    tsr_cuda_worker *worker = argument;
    for (;;) {
        tsr_event_wait(&worker->more, has_work, worker, worker->polls, TSR_FOREVER);
        uint64_t next = atomic_load(&worker->finished);
        if (next == atomic_load(&worker->submitted))
            return NULL; /* asked to quit, and the queue is empty */
        worker->jobs[next % TSR_CUDA_MAX_JOBS].run(worker->jobs[next % TSR_CUDA_MAX_JOBS].argument);
        atomic_store(&worker->finished, next + 1);
        tsr_event_notify(&worker->less);
    }
}

tsr_status tsr_cuda_worker_create(int polls, tsr_watch *watch, tsr_cuda_worker **worker_out)
{
    tsr_cuda_worker *worker = NULL;
    tsr_status status = TSR_NEW(&worker, "the host thread of a CUDA device");
    if (status != TSR_OK)
        return status;
    worker->polls = polls;
    worker->watch = watch;
    bool more = tsr_event_init(&worker->more);
    bool less = tsr_event_init(&worker->less);
    if (more && less && pthread_create(&worker->thread, NULL, work, worker) == 0) {
        *worker_out = worker;
        return TSR_OK;
    }
    if (more)
        tsr_event_destroy(&worker->more);
    if (less)
        tsr_event_destroy(&worker->less);
    tsr_mem_free(worker);
    return tsr_fail(TSR_ERR_MEMORY, "the system refused the host thread of a CUDA device");
}

void tsr_cuda_worker_set_polls(tsr_cuda_worker *worker, int polls)
{
    atomic_store(&worker->polls, polls);
}

/* A child process has no thread to end. */
bool tsr_cuda_worker_destroy(tsr_cuda_worker *worker)
{
    if (!worker)
        return true;
    atomic_store(&worker->quit, true);
    tsr_event_notify(&worker->more);
    if (!tsr_watch_is_forked(worker->watch)) {
        if (tsr_cuda_worker_wait(worker, TSR_FOREVER) != TSR_WAIT_DONE) {
            tsr_watch_abandon(worker->watch);
            pthread_detach(worker->thread);
            return false;
        }
        pthread_join(worker->thread, NULL);
    }
    tsr_event_destroy(&worker->more);
    tsr_event_destroy(&worker->less);
    tsr_mem_free(worker);
    return true;
}

tsr_status tsr_cuda_worker_submit(tsr_cuda_worker *worker, void (*job)(void *argument), void *argument)
{
    uint64_t next = atomic_load(&worker->submitted);
    if (next - atomic_load(&worker->finished) == TSR_CUDA_MAX_JOBS)
        return tsr_fail(TSR_ERR_FULL, "%d programs are queued already; synchronize first", TSR_CUDA_MAX_JOBS);
    worker->jobs[next % TSR_CUDA_MAX_JOBS].run = job;
    worker->jobs[next % TSR_CUDA_MAX_JOBS].argument = argument;
    atomic_store(&worker->submitted, next + 1);
    tsr_event_notify(&worker->more);
    return TSR_OK;
}

tsr_wait_end tsr_cuda_worker_wait_queue(tsr_cuda_worker *worker, int n_left, uint64_t deadline_ns)
{
    queue_wait wait = {worker, (uint64_t)n_left};
    return tsr_watch_wait(worker->watch, &worker->less, has_caught_up, &wait, worker->polls, deadline_ns);
}

tsr_wait_end tsr_cuda_worker_wait(tsr_cuda_worker *worker, uint64_t deadline_ns)
{
    return tsr_cuda_worker_wait_queue(worker, 0, deadline_ns);
}

bool tsr_cuda_worker_is_current(const tsr_cuda_worker *worker)
{
    return pthread_equal(pthread_self(), worker->thread);
}

uint64_t tsr_cuda_worker_n_finished(const tsr_cuda_worker *worker)
{
    return atomic_load_explicit(&worker->finished, memory_order_relaxed);
}
