/* Detection of GPUs behind one function, so that src/topo depends on no kind of GPU. src/cuda implements
 * it; in a build without CUDA src/runtime implements it and reports none. Results are plain values. */
#ifndef TSR_CORE_GPU_H
#define TSR_CORE_GPU_H

#include <stdbool.h>
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

/* Bytes that the driver takes when a process begins to use a GPU, an estimate from above: for each thread
 * that can be resident, 2 KiB of stack and the like, and a few MiB. Seen: 534 MiB on an H100 of 132
 * multiprocessors (meta-pytorch/torchcomms, pull request 777), 107 MiB on an RTX 4060 Ti of 34, 555 MiB on an
 * RTX PRO 6000 of 188 (ggml-org/llama.cpp, pull request 23604). Multiprocessors of data centre GPUs hold 2048
 * threads, others 1536 ("CUDA C++ Programming Guide", technical specifications per compute capability). */
static inline uint64_t tsr_gpu_context_bytes(const tsr_gpu *gpu)
{
    const int major = gpu->compute_capability / 10, minor = gpu->compute_capability % 10;
    const bool wide = major == 10 || (minor == 0 && major < 10);
    return ((uint64_t)gpu->n_sms * (wide ? 2048 : 1536) << 11) + ((uint64_t)8 << 20);
}

/* Bytes of a GPU's memory that its devices can use. The driver takes some for the context, and some for
 * kernels, graphs and the counters of collectives, where every allocation is rounded up to pages of 2 MiB: a
 * 64th of the memory, at most 128 MiB, on top of the context. Cards with much memory have more to spare: a
 * 64th in all, at most 1 GiB (estimates). A context that the process has already is not free any more. */
static inline uint64_t tsr_gpu_usable_bytes(const tsr_gpu *gpu)
{
    const uint64_t part = gpu->memory_bytes / 64, context = tsr_gpu_context_bytes(gpu), mib = 1 << 20;
    const uint64_t least = context + (part < 128 * mib ? part : 128 * mib);
    const uint64_t most = part < 1024 * mib ? part : 1024 * mib;
    const uint64_t reserve =
        (least > most ? least : most) - (gpu->has_context && gpu->memory_free_bytes ? context : 0);
    const uint64_t there = gpu->memory_free_bytes ? gpu->memory_free_bytes : gpu->memory_bytes;
    return there > reserve ? there - reserve : 0;
}

#endif
