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
 * Programs in one lane (layout.h) of a memory must not be in flight together, and each program overwrites the
 * others' activations. */
typedef struct tsr_program_memory {
    tsr_runtime *rt;
    tsr_tracked tracked;
    tsr_program_info info; /* of the graph that the memory was made for */
    tsr_layout layout;     /* its sizes are those of the memory */
    tsr_layout halves;     /* of programs of two halves (lower/halves.h); n_devices 0: none are compiled */
    struct {
        void **chunks;              /* [layout.devices[d].n_chunks] */
        unsigned char *lane_inputs; /* of lanes other than the first; NULL: none */
        void *comm;
        tsr_pool_block *pinned; /* for the inputs of all lanes; NULL: none */
        bool holds_scratch;
    } * devices; /* [n_devices] */
} tsr_program_memory;

/* Pack `graph`, the largest shape that will be compiled into this memory, and allocate for n_lanes >= 1
 * lanes. `halves`: the largest graph of two halves, with a single lane; NULL: none is compiled. */
tsr_status tsr_program_memory_create(const tsr_graph *graph, const tsr_graph *halves,
                                     const tsr_program_config *config, int n_lanes,
                                     tsr_program_memory **memory_out);
void tsr_program_memory_destroy(tsr_program_memory *memory); /* NULL is fine */

/* The bytes of a lane's inputs in the pinned block of a device; 0: inputs are uploaded. */
size_t tsr_program_memory_pinned_bytes(const tsr_layout *layout, const tsr_device *device);

/* The parts of creating and using a memory: allocate for a packed layout, and for one of halves that may be
 * empty (takes ownership of both, also on failure), and check that another packed layout fits. */
tsr_status tsr_program_memory_allocate(tsr_runtime *rt, tsr_layout *layout, tsr_layout *halves,
                                       tsr_program_memory **memory_out);
tsr_status tsr_program_memory_check(const tsr_program_memory *memory, const tsr_layout *layout);

#endif
