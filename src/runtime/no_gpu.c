/* tsr_gpu_probe() of a build without the CUDA device: no GPUs. */
#include <stdio.h>

#include "core/gpu.h"

#ifndef TSR_WITH_CUDA
void tsr_gpu_probe(tsr_topology *topo, const tsr_logger *logger)
{
    (void)logger;
    snprintf(topo->gpu_note, sizeof topo->gpu_note, "this build has no CUDA; build it with a CUDA toolkit");
}
#endif
