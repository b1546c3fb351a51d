/* What the driver's management library, NVML, knows of GPUs and CUDA does not say: PCIe links, NVLinks, free
 * memory without a context, power. It is loaded while it is asked and closed again. Where it is not
 * installed, is too old or refuses a question, the fields concerned stay as they were, and a debug line says
 * which. */
#ifndef TSR_CUDA_LIBS_NVML_H
#define TSR_CUDA_LIBS_NVML_H

#include <tsr/topology.h>

/* Complete topo->gpus, gpu_pairs (path) and driver_version. The GPUs are found by uuid, else by bus_id, never
 * by number: CUDA and NVML count differently. */
void tsr_nvml_describe(tsr_topology *topo, const tsr_logger *logger);

#endif
