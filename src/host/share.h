/* How threads divide the pieces of an op whose weights lie along memory.
 *
 * Each thread has a share of neighbouring pieces and takes them first to last, so that it reads one stretch
 * of memory and what it asks for ahead of a piece's end is its own. Who is done takes pieces of the others,
 * last to first: cores do not run at equal speed for long, and one that another process uses may not run at
 * all. Which thread computes a piece changes no bit. */
#ifndef TSR_HOST_SHARE_H
#define TSR_HOST_SHARE_H

#include <stdatomic.h>
#include <stdint.h>

#include "host/op_runs.h"

/* How many pieces of a thread's shares are taken, one word for each op of a stage, on a cache line: from the
 * front in the high half, from the end in the low one. All zero when the stage begins. */
typedef struct tsr_host_shares {
    _Atomic uint64_t taken[TSR_HOST_RUN_OPS];
} tsr_host_shares;

/* Nothing is taken. While nobody takes from it. */
static inline void tsr_host_shares_clear(tsr_host_shares *shares)
{
    for (int op = 0; op < TSR_HOST_RUN_OPS; op++)
        atomic_store_explicit(&shares->taken[op], 0, memory_order_relaxed);
}

/* The next of a share's n pieces, for its owner or for another thread; -1: all are taken. Counts stop
 * meaning anything then, but their sum only grows. */
static inline int64_t tsr_host_share_take(_Atomic uint64_t *taken, int64_t n, bool own)
{
    const uint64_t one = own ? UINT64_C(1) << 32 : 1;
    uint64_t before = atomic_load_explicit(taken, memory_order_relaxed);
    if ((int64_t)(before >> 32) + (int64_t)(uint32_t)before >= n)
        return -1;
    before = atomic_fetch_add_explicit(taken, one, memory_order_relaxed);
    const int64_t front = (int64_t)(before >> 32), end = (int64_t)(uint32_t)before;
    return front + end >= n ? -1 : own ? front : n - 1 - end;
}

/* The next of n pieces (at most 2^31) of the op in place `op` of its stage for one of n_threads threads,
 * whose shares[] these are; -1: none is left. */
static inline int64_t tsr_host_shares_next(tsr_host_shares *shares, int op, int64_t n, int thread,
                                           int n_threads)
{
    for (int i = 0; i < n_threads; i++) {
        const int owner = (thread + i) % n_threads;
        const int64_t begin = n * owner / n_threads, end = n * (owner + 1) / n_threads;
        const int64_t piece = tsr_host_share_take(&shares[owner].taken[op], end - begin, i == 0);
        if (piece >= 0)
            return begin + piece;
    }
    return -1;
}

#endif
