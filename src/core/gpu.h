/* Detection of GPUs behind one function, so that src/topo depends on no kind of GPU. src/cuda implements
 * it; in a build without CUDA src/runtime implements it and reports none. Results are plain values. */
#ifndef TSR_CORE_GPU_H
#define TSR_CORE_GPU_H

#include <stddef.h>
#include <stdint.h>

#include <tsr/topology.h>

#include "core/status.h"

/* Describe the usable GPUs of this machine, in topo->gpus, gpu_pairs (peer access, PCIe paths), gpu_note
 * and the versions, all of them initially zero. Never fails: a GPU that does not answer is left out and
 * the note gives the reason; an unavailable fact stays unknown and is reported at debug level. Left to the
 * caller: numa_node (-1), pcie_bytes_per_s, tensor_flops, the effect of NVLinks on pairs, and unknown
 * facts.
 *
 * No context is created, so no GPU memory is used. */
void tsr_gpu_probe(tsr_topology *topo, const tsr_logger *logger);

/* -- memory of a GPU, for planning in builds without CUDA too; src/cuda uses the same constants -- */

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
