/* Properties of a GPU's memory for planning, also in builds without CUDA. src/cuda uses the same
 * constants, so plans agree with execution. */
#ifndef TSR_CORE_GPU_MEMORY_H
#define TSR_CORE_GPU_MEMORY_H

#include <stddef.h>
#include <stdint.h>

enum {
    /* Alignment of every tensor: the guarantee of cudaMalloc ("CUDA C++ Programming Guide", device memory
     * accesses), which exceeds any kernel's widest load. */
    TSR_GPU_ALIGNMENT = 256,

    /* Default unit in which growing memory is committed, for GPUs whose description has none: the result
     * of cuMemGetAllocationGranularity on every card since Pascal. */
    TSR_GPU_COMMIT_BYTES = 2 << 20,

    /* Scratch of kernels: partial results of attention over long contexts, a batch's activations in the
     * form that tensor cores take (512 tokens of 14336 elements: 17 MB; larger products are done in
     * portions). */
    TSR_GPU_SCRATCH_BYTES = 24 << 20
};

/* Bytes of a GPU's memory that its devices can use. The driver allocates some when a process begins to use
 * the GPU and more for kernels and graphs; collectives keep counters there, and every allocation is
 * rounded up to pages of 2 MiB: together 0.2 GiB on small cards to 0.7 GiB on the largest. So a 64th is
 * left to it, at most 1 GiB (an estimate). `free_bytes`: before the process used the GPU, 0 if unknown. */
static inline uint64_t tsr_gpu_usable_bytes(uint64_t total_bytes, uint64_t free_bytes)
{
    uint64_t most = (uint64_t)1 << 30, reserve = total_bytes / 64 < most ? total_bytes / 64 : most;
    uint64_t there = free_bytes ? free_bytes : total_bytes;
    return there > reserve ? there - reserve : 0;
}

#endif
