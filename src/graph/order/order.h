/* The order in which a lowered graph runs: as lowered, or an order with fewer live bytes at the busiest
 * step.
 *
 * A graph is built in one order, but its dependencies allow many. The order never changes a result, since
 * ops depend only on their operands. It changes the live bytes at the busiest step, and so the size of an
 * arena. All devices use the same order, and
 *
 *   - collectives and transfers keep their order, so that all devices run the same one;
 *   - a partial sum stays behind the collective that it followed, so its slot of the workspace is free;
 *   - ops of one layer on the KV pages keep their order;
 *   - ops are moved only if that lowers a device's peak, and otherwise keep their places. */
#ifndef TSR_GRAPH_ORDER_ORDER_H
#define TSR_GRAPH_ORDER_ORDER_H

#include "graph/lower/lowered.h"

typedef struct tsr_order {
    int n_instrs;
    int *instrs; /* [n_instrs] in execution order, numbered as lowered */
    int n_devices;
    size_t *given_bytes; /* [n_devices] peak of live bytes in the arena, in the order as lowered */
    size_t *peak_bytes;  /* [n_devices] peak in this order; never more than given_bytes */
    int n_moved;         /* instructions that moved from their place as lowered */
    bool least;          /* proven: no order lowers a device's peak without raising another's */
} tsr_order;

/* Choose an order. `like` (may be NULL) is the order of a program whose memory this program will use. If
 * that order is valid for this graph, it is adopted, because the same order gives the same lifetimes.
 * Deterministic: the search has a budget of steps, not of time. Owned by the caller. */
tsr_status tsr_order_choose(const tsr_runtime *rt, const tsr_lowered *lowered, const tsr_order *like,
                            tsr_order *order_out);
void tsr_order_free(tsr_order *order); /* a zeroed value is fine */

/* Put the instructions into this order. */
tsr_status tsr_order_apply(const tsr_order *order, tsr_lowered *lowered);

#endif
