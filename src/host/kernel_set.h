/* A table of kernels, one per instruction set.
 *
 * Every thread of a team calls the same kernel with the same op. The kernel divides the work by env->thread,
 * or distributes it in chunks: tsr_kernel_next(), or tsr_kernel_next_piece() for weights. Which thread
 * computes what never changes a bit of the result. The team has a barrier after every op run, each of whose
 * ops has its own counters. ROPE and KV_WRITE must divide (token, head) pairs in the same way, since they may
 * share an op run (host/op_runs.h). */
#ifndef TSR_HOST_KERNEL_SET_H
#define TSR_HOST_KERNEL_SET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/op.h"
#include "host/cpu.h"
#include "host/share.h"

/* Called after a piece of a product, on the thread that computed it: rows [row, row_end) of tokens [token,
 * token_end). */
typedef struct tsr_kernel_epilogue {
    void (*run)(const void *what, int64_t row, int64_t row_end, int64_t token, int64_t token_end);
    const void *what;
} tsr_kernel_epilogue;

typedef struct tsr_kernel_env {
    int thread, n_threads;
    _Atomic int64_t *next;    /* chunk counter shared by the team, 0 when the op starts */
    _Atomic int *range_fault; /* set to 1 when an exact partial is out of range */
    void *scratch;            /* of this thread, 64-byte aligned, scratch_bytes of the kernel set */
    void *shared;             /* of the team, 64-byte aligned, shared_bytes, initially zero; NULL: none */
    void *packed;             /* the op's activations as pack() packed them; NULL: not packed */
    const tsr_kernel_epilogue *epilogue; /* of MUL_MAT; NULL: nothing */
    tsr_cpu_reading reading;             /* how to read weights: tsr_cpu_reads() */
    bool pairs;                          /* as in the kernel set */
    tsr_host_shares *shares;             /* [n_threads]; `place` is the op's word in each */
    int place;
} tsr_kernel_env;

typedef void (*tsr_kernel_fn)(const tsr_op *op, const tsr_kernel_env *env);

typedef struct tsr_kernel_set {
    const char *isa;                 /* the level: "generic", "avx2", ... */
    size_t scratch_bytes;            /* per thread */
    size_t shared_bytes;             /* per team of more than one thread */
    tsr_kernel_fn run[TSR_OP_COUNT]; /* NULL for the collectives, which the communicator runs */
    bool has_epilogue;               /* MUL_MAT calls env->epilogue */
    bool pairs;                      /* the processor multiplies pairs of bfloat16 */

    /* Packing of the activations of a MUL_MAT or of EXPERTS for all threads before the op runs. pack_bytes()
     * returns the bytes (0: not packed), pack() packs to env->packed, 64-byte aligned. The result is the same
     * for MUL_MATs of the same type that read the same activations in the same way. Whether packing pays
     * depends on the number of threads, the packed bytes do not: fewer threads may take part in pack() than
     * pack_bytes() was given. NULL: never packed. */
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
