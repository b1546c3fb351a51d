/* How a topology learns of GPUs without knowing any kind of them: one function, supplied by src/cuda where
 * the build has it, else by src/runtime with the answer that there are none. Plain values come back. */
#ifndef TSR_CORE_GPU_H
#define TSR_CORE_GPU_H

#include <tsr/topology.h>

#include "core/status.h"

/* Describe the first `max` GPUs that can be used (numa_node is left to the caller). Not one:
 * TSR_ERR_UNSUPPORTED or TSR_ERR_NOT_FOUND, and the sentence says why, without a full stop. */
tsr_status tsr_gpu_probe(tsr_gpu *gpus, int max, int *n_out);

#endif
