/* In which order a lowered graph runs: the graph's own, or one that keeps fewer bytes alive at once.
 *
 * A graph's author writes one order down; what it computes allows many. Which of them is taken never changes
 * a result, since ops only depend on their operands. It changes how many values are alive at the busiest
 * moment, and so what an arena needs. An order is chosen for all devices alike, and
 *
 *   - collectives and transfers keep their order, so that all devices meet in the same one;
 *   - a partial sum is not made before the collective that it followed, so its slot of the workspace is free;
 *   - what one layer does to the KV pages keeps its order;
 *   - ops are moved only where that lowers a device's peak: elsewhere they stay as they were written. */
#ifndef TSR_GRAPH_ORDER_ORDER_H
#define TSR_GRAPH_ORDER_ORDER_H

#include "graph/lower/lowered.h"

typedef struct tsr_order {
    int n_instrs;
    int *instrs; /* [n_instrs] in execution order, numbered as lowered */
    int n_devices;
    size_t *given_bytes; /* [n_devices] most bytes alive at once in the arena, in the order as lowered */
    size_t *peak_bytes;  /* [n_devices] in this order; never more */
    int n_moved;         /* instructions at another place than as lowered */
    bool least;          /* proven: no order lowers a device's peak without raising another's */
} tsr_order;

/* Choose an order. `like` (may be NULL) is that of a program in whose memory this one is to run: where its
 * order is one of this graph's, too, it is taken over, because the same order gives the same lifetimes.
 * Deterministic: the search has a budget of steps, not of time. Owned by the caller. */
tsr_status tsr_order_choose(const tsr_runtime *rt, const tsr_lowered *lowered, const tsr_order *like,
                            tsr_order *order_out);
void tsr_order_free(tsr_order *order); /* a zeroed value is fine */

/* Put the instructions into this order. */
tsr_status tsr_order_apply(const tsr_order *order, tsr_lowered *lowered);

#endif
