/* Ordered loads and stores, for kernels that communicate with other blocks or GPUs through memory.
 *
 * Their scope is the whole system, peers and host included. The protocol of a flag: one side writes the data
 * with plain stores, then stores the flag with release; the other side loads the flag with acquire until it
 * changes, then reads the data with plain loads (release and acquire patterns, chapter "Memory Consistency
 * Model" of the PTX ISA). Where several threads of a block wrote the data, __syncthreads() precedes the one
 * release store, and follows the one acquire load. Relaxed accesses order nothing, but are never torn, merged
 * or kept in a register.
 *
 * A loop that waits for another block or GPU must load through one of these functions and call
 * tsr_spin_pause(). On a GPU each is one instruction. The simulated machine runs one thread at a time, and
 * switches threads in these functions. */
#ifndef TSR_CUDA_COMM_MEMORY_ORDER_H
#define TSR_CUDA_COMM_MEMORY_ORDER_H

#include <stdint.h>

#include "cuda/api/launch.h"

#ifdef __cplusplus

/* In the simulated machine: a load switches threads if a loop waits for `address`; loads and stores see and
 * change what all kernels share. */
#ifdef TSR_CUDASIM
#define TSR_LOADING(address) cudasim_loading(address, sizeof *(address))
#define TSR_LOADED(address, order) \
    ((order) == __ATOMIC_ACQUIRE ? cudasim_acquire() : (void)0, cudasim_loaded(address))
#define TSR_STORING(order)  ((order) == __ATOMIC_RELEASE ? cudasim_release() : (void)0)
#define TSR_STORED(address) cudasim_stored(address, sizeof *(address))
#else
#define TSR_LOADING(address)       ((void)0)
#define TSR_LOADED(address, order) ((void)0)
#define TSR_STORING(order)         ((void)0)
#define TSR_STORED(address)        ((void)0)
#endif

/* One load and one store function. The second branch is the reference: the host's own atomics, run by the
 * simulated machine (nvcc's host pass compiles it and never calls it). */
#ifdef __CUDA_ARCH__
#define TSR_LOAD_BODY(order, bits, constraint, host_order)      \
    asm volatile("ld." order ".sys.global.u" #bits " %0, [%1];" \
                 : "=" constraint(value)                        \
                 : "l"(address)                                 \
                 : "memory");
#define TSR_STORE_BODY(order, bits, constraint, host_order)     \
    asm volatile("st." order ".sys.global.u" #bits " [%0], %1;" \
                 :                                              \
                 : "l"(address), constraint(value)              \
                 : "memory");
#else
#define TSR_LOAD_BODY(order, bits, constraint, host_order) \
    TSR_LOADING(address);                                  \
    value = __atomic_load_n(address, host_order);          \
    TSR_LOADED(address, host_order);
#define TSR_STORE_BODY(order, bits, constraint, host_order) \
    TSR_STORING(host_order);                                \
    __atomic_store_n(address, value, host_order);           \
    TSR_STORED(address);
#endif

#define TSR_ORDERED_LOAD(order, bits, constraint, host_order)                    \
    static __device__ __forceinline__ uint##bits##_t tsr_load_##order##_u##bits( \
        const uint##bits##_t *address)                                           \
    {                                                                            \
        uint##bits##_t value;                                                    \
        TSR_LOAD_BODY(#order, bits, constraint, host_order)                      \
        return value;                                                            \
    }

#define TSR_ORDERED_STORE(order, bits, constraint, host_order)                                  \
    static __device__ __forceinline__ void tsr_store_##order##_u##bits(uint##bits##_t *address, \
                                                                       uint##bits##_t value)    \
    {                                                                                           \
        TSR_STORE_BODY(#order, bits, constraint, host_order)                                    \
    }

/* uint32_t tsr_load_acquire_u32(const uint32_t *address), and so on. `address` is naturally aligned global
 * memory of this GPU, of a peer, or pinned host memory. */
TSR_ORDERED_LOAD(acquire, 32, "r", __ATOMIC_ACQUIRE)
TSR_ORDERED_LOAD(acquire, 64, "l", __ATOMIC_ACQUIRE)
TSR_ORDERED_LOAD(relaxed, 32, "r", __ATOMIC_RELAXED)
TSR_ORDERED_LOAD(relaxed, 64, "l", __ATOMIC_RELAXED)
TSR_ORDERED_STORE(release, 32, "r", __ATOMIC_RELEASE)
TSR_ORDERED_STORE(release, 64, "l", __ATOMIC_RELEASE)
TSR_ORDERED_STORE(relaxed, 32, "r", __ATOMIC_RELAXED)
TSR_ORDERED_STORE(relaxed, 64, "l", __ATOMIC_RELAXED)

#undef TSR_ORDERED_LOAD
#undef TSR_ORDERED_STORE
#undef TSR_LOAD_BODY
#undef TSR_STORE_BODY
#undef TSR_LOADING
#undef TSR_LOADED
#undef TSR_STORING
#undef TSR_STORED

/* In the body of a waiting loop: leaves memory bandwidth to the awaited threads. */
static __device__ __forceinline__ void tsr_spin_pause()
{
#if defined(__CUDA_ARCH__)
    __nanosleep(32);
#elif defined(TSR_CUDASIM)
    cudasim_yield();
#endif
}

#endif /* __cplusplus */

#endif
