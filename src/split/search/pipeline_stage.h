/* One stage of a pipeline as a split problem, and functions that all searches for pipelines use. */
#ifndef TSR_SPLIT_SEARCH_PIPELINE_STAGE_H
#define TSR_SPLIT_SEARCH_PIPELINE_STAGE_H

#include "core/device_set.h"
#include "split/search/pipeline_problem.h"

/* The position of a stage in the pipeline; a single stage is both first and last. */
typedef enum tsr_stage_role {
    TSR_STAGE_INNER = 0,
    TSR_STAGE_FIRST = 1,
    TSR_STAGE_LAST = 2,
    TSR_STAGE_ONLY = 3
} tsr_stage_role;

enum { TSR_STAGE_ROLES = 4 };

/* A stage as a split problem of its own. */
typedef struct tsr_stage_problem {
    tsr_cost_problem cost; /* points into this struct */
    tsr_cost_class classes[TSR_PIPELINE_CLASSES];
    const tsr_pipeline_problem *pipeline;
    tsr_stage_role role;
} tsr_stage_problem;

void tsr_stage_problem_init(const tsr_pipeline_problem *pipeline, int64_t n_layers, tsr_stage_role role,
                            tsr_stage_problem *stage_out);

/* Bytes of a granule of the output class in a stage, 0 for an inner one. */
size_t tsr_stage_row_bytes(const tsr_pipeline_problem *pipeline, tsr_stage_role role);

/* Bytes of one whole layer. The caller has checked the problem. */
int64_t tsr_pipeline_layer_bytes(const tsr_pipeline_problem *pipeline);
/* Bytes of the output class in a stage. The caller has checked the problem. */
int64_t tsr_stage_end_bytes(const tsr_pipeline_problem *pipeline, tsr_stage_role role);

/* Bytes that a device has for granules, at most INT64_MAX / 4. */
int64_t tsr_pipeline_room(const tsr_pipeline_problem *pipeline, int device);

/* TSR_ERR_INVALID: values out of range. */
tsr_status tsr_pipeline_check(const tsr_pipeline_problem *pipeline);

/* TSR_ERR_MEMORY with the bytes that are missing; sets *no_room. */
tsr_status tsr_pipeline_fail(const tsr_pipeline_problem *pipeline);

/* The time of a transfer, by the problem's matrix of transfers between layers or that of `output`. */
double tsr_pipeline_transfer(const tsr_pipeline_problem *pipeline, bool output, tsr_device_set from,
                             tsr_device_set to);

#endif
