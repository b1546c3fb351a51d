/* What planning must know of a GPU's memory, whether or not the build has the CUDA device: planning and
 * src/cuda both take it from here, so that they agree. */
#ifndef TSR_CORE_GPU_MEMORY_H
#define TSR_CORE_GPU_MEMORY_H

#include <stddef.h>
#include <stdint.h>

enum {
    /* Of every tensor: what cudaMalloc guarantees ("CUDA C++ Programming Guide", device memory accesses), and
     * more than any kernel's widest load. */
    TSR_GPU_ALIGNMENT = 256,

    /* Unit in which growing memory is backed, of a GPU whose description does not say: what
     * cuMemGetAllocationGranularity answers on every card since Pascal. */
    TSR_GPU_COMMIT_BYTES = 2 << 20,

    /* What kernels find to work in: partial results of attention over long contexts, a batch's activations in
     * the form that tensor cores take (512 tokens of 14336 elements: 17 MB; larger products are done in
     * portions). */
    TSR_GPU_SCRATCH_BYTES = 24 << 20
};

/* Of a GPU's memory, what devices on it can count on. The driver takes some when a process begins to use the
 * GPU, more as kernels are loaded and graphs made, collectives keep counters there, and every allocation is
 * rounded up to pages of 2 MiB: from 0.2 GiB on small cards to 0.7 GiB on the largest, so a 64th is left to
 * it, at most 1 GiB (an estimate). `free_bytes`: as it was before, 0 if unknown. */
static inline uint64_t tsr_gpu_usable_bytes(uint64_t total_bytes, uint64_t free_bytes)
{
    uint64_t most = (uint64_t)1 << 30, reserve = total_bytes / 64 < most ? total_bytes / 64 : most;
    uint64_t there = free_bytes ? free_bytes : total_bytes;
    return there > reserve ? there - reserve : 0;
}

#endif
