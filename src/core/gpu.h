/* Detection of GPUs behind one function, so that src/topo depends on no kind of GPU. src/cuda implements
 * it; in a build without CUDA src/runtime implements it and reports none. Results are plain values. */
#ifndef TSR_CORE_GPU_H
#define TSR_CORE_GPU_H

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

#endif
