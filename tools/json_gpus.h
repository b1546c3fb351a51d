/* GPUs as JSON: the fields of tsr_gpu and tsr_gpu_pair under their own names, null where unknown. */
#ifndef TSR_TOOLS_JSON_GPUS_H
#define TSR_TOOLS_JSON_GPUS_H

#include <jansson.h>

#include <tsr/topology.h>

/* New references; NULL when out of memory. */
json_t *tool_json_gpus(const tsr_topology *topo);

/* An array per GPU, with an object for each reachable GPU, itself included. */
json_t *tool_json_gpu_pairs(const tsr_topology *topo);

#endif
