/* The host thread of a CUDA device. It runs jobs one after another, so that launching on many devices costs
 * the caller one queue entry each, and so that a program may wait on the host in its middle (for a collective
 * that is staged through host memory) without stopping the caller.
 *
 * Submit and wait from one thread at a time. */
#ifndef TSR_CUDA_CONTEXT_WORKER_H
#define TSR_CUDA_CONTEXT_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "core/wait/watch.h"

typedef struct tsr_cuda_worker tsr_cuda_worker;

enum { TSR_CUDA_MAX_JOBS = 64 }; /* submitted and not finished */

/* `polls`: how often the thread, and a thread that waits for it, polls before it sleeps. `watch`: over
 * waits for the thread, may be NULL. TSR_ERR_MEMORY. */
tsr_status tsr_cuda_worker_create(int polls, tsr_watch *watch, tsr_cuda_worker **worker_out);

/* Another number of polls; no job is queued. */
void tsr_cuda_worker_set_polls(tsr_cuda_worker *worker, int polls);

/* Finishes the queued jobs first. NULL is fine. False if they do not finish: the thread is abandoned, and the
 * worker's memory remains. */
bool tsr_cuda_worker_destroy(tsr_cuda_worker *worker);

/* `argument` must stay valid until the job has finished. TSR_ERR_FULL. */
tsr_status tsr_cuda_worker_submit(tsr_cuda_worker *worker, void (*job)(void *argument), void *argument);

/* Wait until all submitted jobs have finished, the deadline (tsr_clock_ns()) passes, or the watch ends the
 * wait; tsr_cuda_worker_wait_queue(): until at most n_left of them have not. */
tsr_wait_end tsr_cuda_worker_wait(tsr_cuda_worker *worker, uint64_t deadline_ns);
tsr_wait_end tsr_cuda_worker_wait_queue(tsr_cuda_worker *worker, int n_left, uint64_t deadline_ns);

/* Whether the calling thread is the worker's. */
bool tsr_cuda_worker_is_current(const tsr_cuda_worker *worker);

/* Jobs finished so far. */
uint64_t tsr_cuda_worker_n_finished(const tsr_cuda_worker *worker);

#endif
