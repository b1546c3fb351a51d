/* How a topology learns of GPUs without knowing any kind of them: one function, supplied by src/cuda where
 * the build has it, else by src/runtime with the answer that there are none. Plain values come back. */
#ifndef TSR_CORE_GPU_H
#define TSR_CORE_GPU_H

#include <tsr/topology.h>

#include "core/status.h"

/* Describe the GPUs of this machine that can be used, in topo->gpus, gpu_pairs (peer access, PCIe paths),
 * gpu_note and the versions, all of them zero before. Never fails: a GPU that does not answer is left out and
 * the note says why, a fact that cannot be had stays unknown and a debug line says so. Left to the caller:
 * numa_node (-1), pcie_bytes_per_s, tensor_flops, what the NVLinks mean for pairs, and whatever is unknown.
 *
 * Makes no context on any GPU, so it takes none of their memory. */
void tsr_gpu_probe(tsr_topology *topo, const tsr_logger *logger);

#endif
