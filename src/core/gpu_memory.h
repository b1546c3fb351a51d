/* What planning must know of a GPU's memory, whether or not the build has the CUDA device: planning and
 * src/cuda both take it from here, so that they agree. */
#ifndef TSR_CORE_GPU_MEMORY_H
#define TSR_CORE_GPU_MEMORY_H

#include <stddef.h>

enum {
    /* Of every tensor: what cudaMalloc guarantees ("CUDA C++ Programming Guide", device memory accesses), and
     * more than any kernel's widest load. */
    TSR_GPU_ALIGNMENT = 256,

    /* Unit in which growing memory is backed, of a GPU whose description does not say: what
     * cuMemGetAllocationGranularity answers on every card since Pascal. */
    TSR_GPU_COMMIT_BYTES = 2 << 20,

    /* What kernels find to work in: partial results of attention over long contexts, dequantized tiles. */
    TSR_GPU_SCRATCH_BYTES = 4 << 20
};

#endif
