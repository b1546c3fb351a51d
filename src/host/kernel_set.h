/* A table of kernels, one per instruction set.
 *
 * Every thread of a team calls the same kernel with the same op; the kernel divides the work by env->thread,
 * or hands it out in chunks: tsr_kernel_next(), or tsr_kernel_next_piece() for weights. Which thread does
 * what never changes a bit of the result. The team puts a barrier after every stage of independent ops, each
 * of which has counters of its own. ROPE and KV_WRITE must divide (token, head) pairs alike, since they may
 * share a stage (host/op_runs.h).
 */
#ifndef TSR_HOST_KERNEL_SET_H
#define TSR_HOST_KERNEL_SET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/op.h"
#include "host/cpu.h"
#include "host/share.h"

/* What comes after a piece of a product, on the thread that has made it: rows [row, row_end) of tokens
 * [token, token_end). */
typedef struct tsr_kernel_epilogue {
    void (*run)(const void *what, int64_t row, int64_t row_end, int64_t token, int64_t token_end);
    const void *what;
} tsr_kernel_epilogue;

typedef struct tsr_kernel_env {
    int thread, n_threads;
    _Atomic int64_t *next;    /* chunk counter shared by the team, 0 when the op starts */
    _Atomic int *range_fault; /* set to 1 when an exact partial is out of range */
    void *scratch;            /* this thread's, 64-byte aligned, scratch_bytes of the kernel set */
    void *shared;             /* the team's, likewise, shared_bytes, zero before the first op and left to the
                                 kernels since; NULL: none, and kernels do without */
    void *packed;             /* what pack() made of the op's activations; NULL: nothing */
    const tsr_kernel_epilogue *epilogue; /* of MUL_MAT; NULL: nothing */
    tsr_cpu_reading reading;             /* how to read weights: tsr_cpu_reads() */
    bool pairs;                          /* the set's */
    tsr_host_shares *shares;             /* [n_threads], and which of their words is the op's */
    int place;
} tsr_kernel_env;

typedef void (*tsr_kernel_fn)(const tsr_op *op, const tsr_kernel_env *env);

typedef struct tsr_kernel_set {
    const char *isa;                 /* the level: "generic", "avx2", ... */
    size_t scratch_bytes;            /* per thread */
    size_t shared_bytes;             /* per team of more than one thread */
    tsr_kernel_fn run[TSR_OP_COUNT]; /* NULL for the collectives, which the communicator runs */
    bool has_epilogue;               /* MUL_MAT calls env->epilogue */
    bool pairs;                      /* the processor multiplies pairs of bfloat16: for tsr_kernel_env */

    /* What the activations of a MUL_MAT or of EXPERTS become for all threads before it runs: how many bytes
     * (0: nothing), and the making of them at env->packed, 64-byte aligned. The same for MUL_MATs of the same
     * type that read the same activations alike. Whether it pays depends on the number of threads, what is
     * made does not: some of those that pack_bytes() was told of may rest when pack() runs. NULL: nothing
     * ever. */
    size_t (*pack_bytes)(const tsr_op *op, const tsr_kernel_env *env);
    void (*pack)(const tsr_op *op, const tsr_kernel_env *env);

    /* Two products of the same type and shape with the same token, and the GLU of both; NULL: none. */
    void (*products_glu)(const tsr_op *a, const tsr_op *b, const tsr_op *glu, const tsr_kernel_env *env);
} tsr_kernel_set;

/* The next chunk number of this op for the calling thread. */
static inline int64_t tsr_kernel_next(const tsr_kernel_env *env)
{
    return atomic_fetch_add_explicit(env->next, 1, memory_order_relaxed);
}

/* The next of this op's n pieces for the calling thread, -1 when there are no more. An op uses this or
 * tsr_kernel_next(), and always with the same n. */
static inline int64_t tsr_kernel_next_piece(const tsr_kernel_env *env, int64_t n)
{
    return tsr_host_shares_next(env->shares, env->place, n, env->thread, env->n_threads);
}

#endif
