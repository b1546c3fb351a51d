/* Groups of devices in a row: the stages, their layers and the division inside each that take the least time.
 *
 * A pipeline is a list of disjoint sets of devices. Each set works on consecutive layers, divided inside it
 * as in split/search/optimize.h, and hands the activations over to the next. The first set has the embedding,
 * too, the last the output matrix (and may have no layer). The stages of a step work one after another: the
 * runtime runs one step at a time and a prompt's chunks do not overlap, so
 *
 *     time = sum over stages of (n_layers * (attention + FFN on this set) + embedding's meeting, if first
 *            + output, if last) + sum of the hand-overs between them
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
#ifndef TSR_SPLIT_PIPELINE_H
#define TSR_SPLIT_PIPELINE_H

#include "split/search/optimize.h"

enum {
    TSR_PIPELINE_ATTENTION = 0,
    TSR_PIPELINE_FFN,
    TSR_PIPELINE_OUTPUT,
    TSR_PIPELINE_CLASSES,
    /* Up to so many devices every pipeline is looked at; beyond, neighbours stay together. */
    TSR_PIPELINE_ALL_SETS = 8
};

typedef struct tsr_pipeline_problem {
    int n_devices;
    int64_t n_layers; /* all alike; at least 1 */
    /* [TSR_PIPELINE_CLASSES] as for tsr_split_optimize(); of attention and FFN, granule_bytes are of one
     * layer. `repeats` is not looked at. */
    const tsr_cost_class *classes;
    /* Of a granule of the output class: in a first stage, and where one stage is first and last. */
    size_t embedding_bytes, shared_bytes;
    const tsr_split_room *rooms; /* [n_devices] */
    uint64_t allowed;
    /* As in tsr_cost_problem; that of the output class follows the embedding. */
    double (*sync_ns)(void *user, uint64_t devices, int class_index);
    void *user;
    /* [from][to]: a stage's lowest device sends to every device of the next, and the longest copy counts;
     * between layers, and to a stage with the output only. NULL: nothing. */
    const double (*handover_ns)[TSR_MAX_DEVICES], (*output_handover_ns)[TSR_MAX_DEVICES];
    bool *no_room; /* as in tsr_cost_problem */
} tsr_pipeline_problem;

typedef struct tsr_pipeline_stage {
    uint64_t devices; /* that hold something */
    int64_t n_layers;
    /* Of the output class: rows of the embedding or output matrix, whichever the stage has (or both). */
    int64_t counts[TSR_PIPELINE_CLASSES][TSR_MAX_DEVICES];
} tsr_pipeline_stage;

typedef struct tsr_pipeline {
    int n_stages;
    tsr_pipeline_stage stages[TSR_MAX_DEVICES];
    double total_ns; /* of a step */
    bool proven;     /* no pipeline takes less */
} tsr_pipeline;

/* The fastest pipeline; the same problem gives the same everywhere. Proven for up to TSR_PIPELINE_ALL_SETS
 * usable devices (unless memory is so short that stages are not). TSR_ERR_MEMORY when nothing fits,
 * TSR_ERR_INVALID for times out of range. */
tsr_status tsr_pipeline_optimize(const tsr_pipeline_problem *problem, tsr_pipeline *pipeline_out);

/* The fastest among those of single devices in device order, each with whole layers; devices may get none.
 * Always proven. Errors as above. */
tsr_status tsr_pipeline_layers(const tsr_pipeline_problem *problem, tsr_pipeline *pipeline_out);

/* Time of given stages: the definition above. */
double tsr_pipeline_evaluate(const tsr_pipeline_problem *problem, const tsr_pipeline *pipeline);

#endif
