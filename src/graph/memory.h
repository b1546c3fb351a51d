/* The memory of compiled programs; several programs can share one. */
#ifndef TSR_GRAPH_MEMORY_H
#define TSR_GRAPH_MEMORY_H

#include "graph/emit/layout.h"
#include "graph/graph.h"

/* Inputs of up to this many bytes are copied by each run of a program from pinned host memory; larger ones
 * when they are set, because a program may run often between two settings. The inputs of a decode step are a
 * few KiB: a row of a rotary table, and 4 bytes for each 32 tokens of the context. */
enum { TSR_PINNED_INPUT_BYTES = 1 << 20 };

/* Arenas and collective workspaces on every device, and the packed layout that determined their sizes.
 * Programs in one memory must not run at the same time, and each program overwrites the others'
 * activations. */
typedef struct tsr_program_memory {
    tsr_runtime *rt;
    tsr_tracked tracked;
    tsr_program_info info; /* of the graph that the memory was made for */
    tsr_layout layout;
    struct {
        void **chunks; /* [layout.devices[d].n_chunks] */
        void *comm;
        tsr_pool_block *pinned; /* for inputs; NULL: none */
        bool holds_scratch;
    } * devices; /* [n_devices] */
} tsr_program_memory;

/* Pack `graph` and allocate for it: the largest shape that will be compiled into this memory. */
tsr_status tsr_program_memory_create(const tsr_graph *graph, const tsr_program_config *config,
                                     tsr_program_memory **memory_out);
void tsr_program_memory_destroy(tsr_program_memory *memory); /* NULL is fine */

/* The parts of creating and using a memory: allocate for a packed layout (takes ownership, also on failure),
 * and check that another packed layout fits. */
tsr_status tsr_program_memory_allocate(tsr_runtime *rt, tsr_layout *layout, tsr_program_memory **memory_out);
tsr_status tsr_program_memory_check(const tsr_program_memory *memory, const tsr_layout *layout);

#endif
