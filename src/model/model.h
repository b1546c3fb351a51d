/* A model in memory, on real or on measuring devices. */
#ifndef TSR_MODEL_MODEL_H
#define TSR_MODEL_MODEL_H

#include <tsr/model.h>
#include <tsr/session.h>

#include "model/arch.h"
#include "model/rope.h"

/* What a file says, before any device is involved. */
typedef struct tsr_model_shape {
    const tsr_gguf *gguf;
    const tsr_arch *arch;
    tsr_hparams hparams;
    tsr_model_granules granules;
    char remarks[3][320]; /* for a plan's notes */
    int n_remarks;
} tsr_model_shape;

struct tsr_model {
    tsr_runtime *rt;
    tsr_gguf *own_gguf; /* NULL: the caller's */
    tsr_model_shape shape;
    tsr_model_config config; /* with defaults filled in; tensor_split and fit are not kept */
    tsr_model_split split;
    tsr_weights weights;
    tsr_rope_tables rope;
    tsr_plan *plan; /* NULL on measuring devices */
    tsr_fit *fit;   /* NULL, or what the plan belongs to */
};

/* Read architecture, hyper-parameters and granules. */
tsr_status tsr_model_shape_read(const tsr_gguf *gguf, tsr_model_shape *shape_out);

/* Check a config (NULL: the defaults) against a shape and fill in what it leaves open. */
tsr_status tsr_model_config_resolve(const tsr_model_shape *shape, const tsr_model_config *config,
                                    tsr_model_config *resolved_out);

/* Place the weights as `split` (copied) says. The same code loads a model and measures it. */
tsr_status tsr_model_load(tsr_runtime *rt, const tsr_model_shape *shape, const tsr_model_config *resolved,
                          const tsr_model_split *split, tsr_model **model_out);

/* Decide a split for the devices of `rt` and measure it on stand-ins for them. */
tsr_status tsr_plan_for_runtime(const tsr_runtime *rt, const tsr_model_shape *shape,
                                const tsr_model_config *resolved, tsr_plan **plan_out);
const tsr_model_split *tsr_plan_split(const tsr_plan *plan);

#endif
