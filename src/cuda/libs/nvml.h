/* Facts about GPUs that CUDA does not report, from the driver's management library NVML: PCIe links, NVLinks,
 * free memory without a context, power. NVML is loaded for the queries and closed afterwards. Where it is not
 * installed, is too old or refuses a query, the fields concerned keep their values, and a debug line names
 * them. */
#ifndef TSR_CUDA_LIBS_NVML_H
#define TSR_CUDA_LIBS_NVML_H

#include <tsr/topology.h>

/* Complete topo->gpus, gpu_pairs (path) and driver_version. The GPUs are found by uuid, otherwise by bus_id,
 * never by number: CUDA and NVML count differently. */
void tsr_nvml_describe(tsr_topology *topo, const tsr_logger *logger);

#endif
