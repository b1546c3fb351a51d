/* Groups of devices in a row: the stages, their layers and the division inside each that take the least time.
 *
 * A pipeline is a list of disjoint sets of devices. Each set works on consecutive layers, divided inside it
 * as in split/search/optimize.h, and hands the activations over to the next. The first set has the embedding,
 * too, the last the output matrix (and may have no layer). The stages of a step work one after another: the
 * runtime runs one step at a time and a prompt's chunks do not overlap, so
 *
 *     time = sum over stages of (n_layers * (attention + FFN on this set) + embedding's meeting, if first
 *            + output, if last) + sum of the transfers between them
 *
 * with attention, FFN and output as in tsr_cost_problem: the slowest device of the set, then the meeting. One
 * set is tensor mode, one device mode none, sets of one device in device order layer mode.
 *
 * Why the result is the minimum. Once the devices used so far, the set that was last and the number of layers
 * done are known, what follows does not depend on how one got there. So the best pipelines are the shortest
 * paths over these states (3^n of them times layers), each step one set more with its layers, at the price of
 * a stage. What a stage takes depends on its memory, and costs a search each (tsr_split_optimize); but never
 * less than with unlimited memory, which is linear in its layers and known at once. The paths are therefore
 * found with these bounds as prices; the prices on the shortest path are made exact and the path is sought
 * again, until all prices on it are exact. No path can be shorter than that one, as all prices are bounds.
 * States that cannot beat what was found, and sets that differ from others only in which of several alike
 * devices they have, are left out. */
#ifndef TSR_SPLIT_SEARCH_PIPELINE_H
#define TSR_SPLIT_SEARCH_PIPELINE_H

#include "split/search/pipeline_problem.h"

/* The fastest pipeline; the same problem gives the same everywhere. Proven for up to TSR_PIPELINE_ALL_SETS
 * usable devices (unless memory is so short that stages are not). TSR_ERR_MEMORY when nothing fits,
 * TSR_ERR_INVALID for times out of range. */
tsr_status tsr_pipeline_optimize(const tsr_pipeline_problem *problem, tsr_pipeline *pipeline_out);

/* The fastest among those of single devices in device order, each with whole layers; devices may get none.
 * Always proven. Errors as above. */
tsr_status tsr_pipeline_layers(const tsr_pipeline_problem *problem, tsr_pipeline *pipeline_out);

#endif
