/* Stages by time: the problem of split/search/pipeline.h made of a model's costs, and its solution as a
 * split. */
#ifndef TSR_PLAN_COST_STAGES_H
#define TSR_PLAN_COST_STAGES_H

#include "plan/cost/goal.h"
#include "split/search/pipeline.h"

typedef struct tsr_stages_problem {
    /* points into this struct and the cost; rooms and `allowed` are the cost's */
    tsr_pipeline_problem problem;
    tsr_cost_class classes[TSR_PIPELINE_CLASSES], chunked[TSR_PIPELINE_CLASSES];
    double transfer_ns[TSR_MAX_DEVICES][TSR_MAX_DEVICES],
        output_transfer_ns[TSR_MAX_DEVICES][TSR_MAX_DEVICES];
} tsr_stages_problem;

/* `cost` must stay; its classes get the same memory. class_bytes[TSR_CLASS_COUNT] over all layers, KV
 * included. */
void tsr_stages_problem_init(tsr_model_cost *cost, const tsr_weights *weights, const tsr_hparams *hparams,
                             const size_t *class_bytes, tsr_stages_problem *stages_out);

/* The prompts of the goal, which the problem's step has n_prompts times the share of, are in chunks. The goal
 * must stay. */
void tsr_stages_problem_chunk(const tsr_goal *goal, double n_prompts, tsr_stages_problem *stages);

/* The fastest stages of the problem, which is of `cost`, one of the goal's: single devices in their order, or
 * any. Those of several devices are not proven where a prompt is in chunks or in halves. */
tsr_status tsr_stages_find(tsr_goal *goal, tsr_model_cost *cost, const tsr_stages_problem *stages,
                           bool layers, tsr_pipeline *pipeline_out);

/* Bytes that a stage takes on a device. */
size_t tsr_stages_bytes(const tsr_stages_problem *stages, const tsr_pipeline *pipeline, int stage,
                        int device);

/* The pipeline as a split. Its mode is TSR_SPLIT_MODE_NONE for one device, TENSOR for one stage, LAYER for
 * single devices in their order, and otherwise AUTO. */
tsr_status tsr_stages_split(const tsr_stages_problem *stages, const tsr_model_shape *shape,
                            const tsr_pipeline *pipeline, tsr_model_split *split_out);

#endif
