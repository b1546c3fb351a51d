/* What src/host/device.c needs of the kernels: a table of functions per instruction set.
 *
 * Every thread of a team calls the same kernel with the same op; the kernel divides the work by env->thread,
 * or hands it out in chunks through tsr_kernel_next(). Which thread does what never changes a bit of the
 * result. The team puts a barrier after every stage of independent ops, each of which has a counter of its
 * own. ROPE and KV_WRITE must divide (token, head) pairs alike, since they may share a stage (host/stages.h).
 */
#ifndef TSR_HOST_KERNELS_H
#define TSR_HOST_KERNELS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "core/op.h"

typedef struct tsr_kernel_env {
    int thread, n_threads;
    _Atomic int64_t *next;    /* chunk counter shared by the team, 0 when the op starts */
    _Atomic int *range_fault; /* set to 1 when an exact partial is out of range */
    void *scratch;            /* this thread's, 64-byte aligned, scratch_bytes of the kernel set */
    void *shared;             /* the team's, likewise, shared_bytes, zero before the first op and left to the
                                 kernels since; NULL: none, and kernels do without */
} tsr_kernel_env;

typedef void (*tsr_kernel_fn)(const tsr_op *op, const tsr_kernel_env *env);

typedef struct tsr_kernel_set {
    const char *isa;                 /* "generic", "avx2", "avx512", "avx512vnni" */
    size_t scratch_bytes;            /* per thread */
    size_t shared_bytes;             /* per team of more than one thread */
    tsr_kernel_fn run[TSR_OP_COUNT]; /* NULL for the collectives, which the communicator runs */
} tsr_kernel_set;

/* The best set for this machine, or the named one; NULL when the name is unknown or the machine lacks it. Any
 * thread. */
const tsr_kernel_set *tsr_kernel_set_select(const char *isa);

/* The next chunk number of this op for the calling thread. */
static inline int64_t tsr_kernel_next(const tsr_kernel_env *env)
{
    return atomic_fetch_add_explicit(env->next, 1, memory_order_relaxed);
}

#endif
