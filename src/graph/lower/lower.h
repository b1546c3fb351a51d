/* Deciding every sharding of a graph. */
#ifndef TSR_GRAPH_LOWER_LOWER_H
#define TSR_GRAPH_LOWER_LOWER_H

#include "graph/lower/lowered.h"

/* TSR_ERR_INVALID names a tensor whose sharding does not fit the op. */
tsr_status tsr_lower(const tsr_graph *graph, tsr_lowered *lowered_out);

#endif
