/* Deciding every sharding of a graph. */
#ifndef TSR_GRAPH_LOWER_LOWER_H
#define TSR_GRAPH_LOWER_LOWER_H

#include "graph/lower/lowered.h"

/* TSR_ERR_INVALID names the tensor whose shardings cannot meet. */
tsr_status tsr_lower(const tsr_graph *graph, tsr_lowered *lowered_out);

#endif
