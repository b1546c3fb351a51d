/* Pipelines: the stages, their layers and the division inside each stage that take the least time.
 *
 * A pipeline is a list of disjoint sets of devices. Each set works on consecutive layers, divided inside the
 * set as in split/search/optimize.h, and transfers the activations to the next set. The first set also has
 * the embedding, and the last set the output matrix (it may have no layer). The stages of a step work one
 * after another, so
 *
 *     time = sum over stages of (n_layers * (attention + FFN on this set) + embedding's all-reduce, if first
 *            + output, if last) + sum of the transfers between them
 *
 * with attention, FFN and output as in tsr_cost_problem: the slowest device of the set, then the all-reduce.
 * A prompt in C chunks, with a part P of this in each stage, takes f (sum of P + (C - 1) * largest P) / C,
 * because chunks are in flight together; f is what chunks take longer than larger steps. C and f depend on
 * the number of stages. No more than TSR_PIPELINE_LANES chunks are in flight, so the largest P is at least
 * the sum divided by this number. All-reduces and transfers count in full.
 *
 * One set is tensor mode, one device is mode "none", sets of one device each in device order are layer mode.
 *
 * Why the result is the minimum. The state after some stages is the set of devices used, the last set, and
 * the number of layers done; the rest of a pipeline depends on this state only. So the best pipelines are the
 * shortest paths over these states (3^n times the number of layers), where each step adds one set with its
 * layers, at the price of a stage. The time of a stage depends on its memory, and takes a search
 * (tsr_split_optimize). It is never less than with unlimited memory, which is linear in the layers and known
 * immediately. The paths are therefore found with these bounds as prices. The prices on the shortest path are
 * made exact and the shortest path is found again, until all prices on it are exact. No path can be shorter
 * than that path, since all prices are bounds. States that cannot beat the best pipeline are left out, and so
 * are sets that differ from others only by equal devices. */
#ifndef TSR_SPLIT_SEARCH_PIPELINE_H
#define TSR_SPLIT_SEARCH_PIPELINE_H

#include "split/search/pipeline_problem.h"

/* The fastest pipeline; the same problem gives the same everywhere. Proven for up to TSR_PIPELINE_ALL_SETS
 * usable devices, unless memory is so short that stages are not, or there is walk_ns. TSR_ERR_MEMORY:
 * nothing fits. TSR_ERR_INVALID: times out of range. */
tsr_status tsr_pipeline_optimize(const tsr_pipeline_problem *problem, tsr_pipeline *pipeline_out);

/* The fastest pipeline whose stages are single devices in device order, each with whole layers; devices may
 * get no layer. Proven without chunks; with them, unless the search took too long or another number of stages
 * would be faster with the chunks of this one. Errors are those of tsr_pipeline_optimize(). */
tsr_status tsr_pipeline_layers(const tsr_pipeline_problem *problem, tsr_pipeline *pipeline_out);

#endif
