/* A pipeline problem and its solution, as values. */
#ifndef TSR_SPLIT_SEARCH_PIPELINE_PROBLEM_H
#define TSR_SPLIT_SEARCH_PIPELINE_PROBLEM_H

#include "core/mem.h"
#include "split/search/cost.h"

enum {
    TSR_PIPELINE_ATTENTION = 0,
    TSR_PIPELINE_FFN,
    TSR_PIPELINE_OUTPUT,
    TSR_PIPELINE_CLASSES,
    /* With at most this number of devices every pipeline is considered; with more, neighbours stay
     * together. */
    TSR_PIPELINE_ALL_SETS = 8,
    TSR_PIPELINE_LANES = 8 /* the most chunks in flight together, however many stages there are */
};

/* A prompt in chunks. */
typedef struct tsr_pipeline_chunks {
    double n;      /* chunks; at most 1: the prompt is one */
    double slower; /* their time on one stage, as a multiple of the prompt's in steps of its own */
} tsr_pipeline_chunks;

typedef struct tsr_pipeline_problem {
    int n_devices;
    int64_t n_layers;   /* all alike; at least 1 */
    int64_t n_together; /* the last layers that one stage has, 0..n_layers; 0 or 1: stages may end anywhere */
    /* [TSR_PIPELINE_CLASSES] as for tsr_split_optimize(); of attention and FFN, granule_bytes are of one
     * layer. `repeats` is not used. */
    const tsr_cost_class *classes;
    /* Bytes of a granule of the output class in the first stage, and in a stage that is first and last. */
    size_t embedding_bytes, shared_bytes;
    const tsr_split_room *rooms; /* [n_devices] */
    tsr_device_set allowed;
    /* As in tsr_cost_problem; for the output class, the all-reduce after the embedding. */
    double (*sync_ns)(void *user, tsr_device_set devices, int class_index);
    /* As in tsr_cost_problem. Pipelines are then not proven. */
    double (*walk_ns)(void *user, int class_index, const int64_t *counts);
    void *user;
    /* [from][to] times of copies, of which transfers consist (transfer.h). The first matrix is for transfers
     * between layers, the second for transfers to a stage that has only the output. NULL: transfers take no
     * time. */
    const double (*transfer_ns)[TSR_MAX_DEVICES], (*output_transfer_ns)[TSR_MAX_DEVICES];
    const int *machine; /* [n_devices] of each device; NULL: all are on one */
    /* [TSR_PIPELINE_CLASSES] The part of the step that is a prompt in chunks, which are in flight together;
     * NULL: none. tsr_pipeline_optimize() disregards it. */
    const tsr_cost_class *chunked;
    /* By the number of stages; with more of them, the last. One stage has no chunks. */
    tsr_pipeline_chunks chunks[TSR_PIPELINE_LANES + 1];
    bool *no_room; /* as in tsr_cost_problem */
} tsr_pipeline_problem;

typedef struct tsr_pipeline_stage {
    tsr_device_set devices; /* the devices that hold granules */
    int64_t n_layers;
    /* Granules by class. Those of the output class are rows of the embedding matrix, of the output matrix, or
     * of both. */
    int64_t counts[TSR_PIPELINE_CLASSES][TSR_MAX_DEVICES];
} tsr_pipeline_stage;

typedef struct tsr_pipeline {
    int n_stages;
    tsr_pipeline_stage stages[TSR_MAX_DEVICES];
    double total_ns; /* of a step */
    bool proven;     /* no pipeline takes less */
} tsr_pipeline;

/* Whether a stage may end after the first `n_done` layers. */
static inline bool tsr_pipeline_may_end(const tsr_pipeline_problem *problem, int64_t n_done)
{
    return n_done == problem->n_layers || problem->n_layers - n_done >= problem->n_together;
}

/* What chunks of a prompt save, which takes `sum` on all stages one after another and `slowest` on the
 * slowest one; below 0 if smaller chunks lose more. */
static inline double tsr_pipeline_saved(const tsr_pipeline_chunks *by_stages, int n_stages, double sum,
                                        double slowest)
{
    const tsr_pipeline_chunks *c = &by_stages[TSR_MIN(n_stages, TSR_PIPELINE_LANES)];
    const double next = TSR_MAX(slowest, sum / TSR_PIPELINE_LANES); /* until the next chunk is done */
    return n_stages > 1 && c->n > 1 ? sum - c->slower * (sum + (c->n - 1) * next) / c->n : 0;
}

/* Time of given stages; the formula is in split/search/pipeline.h. */
double tsr_pipeline_evaluate(const tsr_pipeline_problem *problem, const tsr_pipeline *pipeline);

#endif
