/* A graph of two halves: the nodes of one part of a chunk's tokens, then those of the other part, which are
 * the same ops in the same order. Their instructions are interleaved, so that the sums of one half can travel
 * while the other half computes (docs/design/overlap.md):
 *
 *     first   | segment 0 | sum           | join | segment 1 | sum           | join | ...
 *     second              | segment 0 | sum                  | segment 1 | sum
 *
 * A segment ends with an all-reduce. The first half is a segment ahead, so the second half finds the keys and
 * values that the first has left, as in two chunks. */
#ifndef TSR_GRAPH_LOWER_HALVES_H
#define TSR_GRAPH_LOWER_HALVES_H

#include "graph/lower/lowered.h"

/* Interleave instructions [0, n_first) with the others, mark the sums that others follow before they are
 * read, add their JOINs, and number all collectives in the new order. */
tsr_status tsr_halves_interleave(tsr_lowered *lowered, int n_first);

#endif
