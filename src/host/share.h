/* How threads divide the pieces of an op that reads weights from memory.
 *
 * Each thread has a share of neighbouring pieces and takes them first to last, so that it reads one stretch
 * of memory and its prefetches past a piece's end are of use to itself. A thread that has finished its share
 * takes pieces of the others, last to first: cores do not run at equal speed for long, and a core that
 * another process uses may not run at all. Which thread computes a piece changes no bit. */
#ifndef TSR_HOST_SHARE_H
#define TSR_HOST_SHARE_H

#include <stdatomic.h>
#include <stdint.h>

#include "host/op_runs.h"

/* The number of pieces taken from a thread's shares, one word for each op of an op run, on a cache line: from
 * the front in the high half, from the end in the low half. All zero when the op run begins. */
typedef struct tsr_host_shares {
    _Atomic uint64_t taken[TSR_HOST_RUN_OPS];
} tsr_host_shares;

/* Reset all shares. Not while a thread takes from them. */
static inline void tsr_host_shares_clear(tsr_host_shares *shares)
{
    for (int op = 0; op < TSR_HOST_RUN_OPS; op++)
        atomic_store_explicit(&shares->taken[op], 0, memory_order_relaxed);
}

/* The next of a share's n pieces, for its owner or for another thread; -1: all are taken. After that the
 * counts have no meaning, but their sum only grows. */
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

/* The next of n pieces (at most 2^31) of the op in place `op` of its op run for one of n_threads threads,
 * with their shares[]; -1: none is left. */
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
