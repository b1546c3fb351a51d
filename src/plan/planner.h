/* The inputs of planning: devices, model, config. Deciding, measuring, fitting and reporting all take a
 * planner and return values. */
#ifndef TSR_PLAN_PLANNER_H
#define TSR_PLAN_PLANNER_H

#include "model/shape.h"
#include "runtime/device_props.h"
#include "split/request.h"

/* Collectives of a step that are alike. The devices of a group take part. */
typedef struct tsr_step_collective {
    tsr_split_class_id class_id; /* of the block that they belong to; OUTPUT: of the embedding, too */
    bool gathers;                /* an all-gather of floats; otherwise an all-reduce of partial sums */
    int64_t n_elems;             /* per token */
    int n;
} tsr_step_collective;

/* Of a step (plan/cost/profile.h). */
typedef struct tsr_step_profile {
    int n_ops[TSR_CLASS_COUNT]; /* of all layers */
    tsr_step_collective *collectives;
    int n_collectives, capacity;
} tsr_step_profile;

/* plan/planner_init.h makes planners. A shallow copy with another config or other props is a variant of the
 * planner; a variant borrows everything else and is never freed. */
typedef struct tsr_planner {
    int n_devices;
    tsr_device_props *props; /* [n_devices] */
    tsr_device_rates *rates; /* [n_devices] for a config without rates; NULL: no rates are known */
    tsr_model_shape shape;
    tsr_weights weights; /* declared: names, shapes and types without a buffer */
    tsr_step_profile profile;
    tsr_model_config config;   /* resolved, with rates where they are known */
    tsr_split_request request; /* read from the config; in split mode "none" the main device has it all */
    tsr_split_request prompt;  /* the split of prompts; automatic: none is given */
    bool uncapped;             /* caps are only compared with the bytes; automatic shares follow them */
} tsr_planner;

/* Resolve `config` for the planner's model and devices. planner->request does not change. */
tsr_status tsr_planner_set_config(tsr_planner *planner, const tsr_model_config *config);

/* Read planner->request from planner->config. TSR_ERR_INVALID names the entry of the tensor_split, or the
 * main device, that does not exist. */
tsr_status tsr_planner_read_split(tsr_planner *planner);

/* Declare the weights of planner->shape, in place of the weights that were declared before. */
tsr_status tsr_planner_declare_weights(tsr_planner *planner);

void tsr_step_profile_free(tsr_step_profile *profile);
void tsr_planner_free(tsr_planner *planner);

#endif
