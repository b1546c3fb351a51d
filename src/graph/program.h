/* Compiled programs. */
#ifndef TSR_GRAPH_PROGRAM_H
#define TSR_GRAPH_PROGRAM_H

#include <stdatomic.h>

#include "graph/graph.h"
#include "graph/memory.h"

/* Compile into a lane of `memory` (borrowed, must outlive the program); TSR_ERR_MEMORY if it does not fit. */
tsr_status tsr_program_compile_into(tsr_graph *graph, const tsr_program_config *config,
                                    tsr_program_memory *memory, int lane, tsr_program **program_out);

/* Prepare the device programs: before the first run, and again after a reset of the communicator has
 * invalidated the captured graphs. Nothing may run. */
tsr_status tsr_program_prepare(tsr_program *program);

struct tsr_program {
    tsr_runtime *rt;
    tsr_tracked tracked;
    tsr_graph *graph; /* its inputs and outputs are stored in this program's memory */
    uint64_t timeout_ns;
    tsr_program_memory *own_memory; /* NULL: compiled into shared memory */
    tsr_program_info info;
    tsr_program_device_info *device_infos; /* [n_devices] */
    tsr_device_program **programs;         /* [n_devices], NULL: the device has nothing to do */
    _Atomic bool cancelled;                /* set by any thread; cleared by the run that it ends */
    uint64_t epoch;                        /* the communicator's epoch when the programs were prepared */
    bool timed;                            /* they were prepared for a clock that says `timed` */
    tsr_collective **collectives;          /* [n_collectives], NULL: it moves nothing */
    int n_collectives;
    tsr_shard_map **maps; /* [n_maps] of values, for outputs */
    int n_maps;
};

#endif
