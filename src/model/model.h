/* A model in memory, on real or on measuring devices. */
#ifndef TSR_MODEL_MODEL_H
#define TSR_MODEL_MODEL_H

#include <tsr/model.h>
#include <tsr/session.h>

#include "arch/arch.h"
#include "arch/rope.h"

/* What a file says, before any device is involved. */
typedef struct tsr_model_shape {
    const tsr_gguf *gguf;
    const tsr_arch *arch;
    tsr_hparams hparams;
    tsr_model_granules granules;
    char remarks[3][320]; /* for a plan's notes */
    int n_remarks;
} tsr_model_shape;

/* Copies of what a config's pointers lead to, for planning once more after opening. */
typedef struct tsr_kept_config {
    tsr_device_rates *rates;
    tsr_links *links;
    tsr_override *overrides;
    char **texts; /* [n_texts] of the overrides, and the offload device */
    int n_texts;
} tsr_kept_config;

struct tsr_model {
    tsr_runtime *rt;
    tsr_live live;
    tsr_model *next;       /* in rt->models; only opened ones are in the list */
    tsr_session *sessions; /* a list through their `next` */
    tsr_gguf *own_gguf;    /* NULL: the caller's */
    tsr_model_shape shape;
    tsr_model_config config; /* with defaults filled in; what it points to is in `kept`, or NULL */
    tsr_kept_config kept;    /* of opened models */
    tsr_model_split split;
    tsr_weights weights;
    bool lost; /* a change of split failed, and so did going back: it has no weights on some device */
    tsr_rope_tables rope[TSR_ROPE_SLOTS]; /* n_rot 0: the model has no such rotation */
    tsr_plan *plan;                       /* NULL on measuring devices */
    tsr_fit *fit;                         /* NULL, or what the plan belonged to at first */
};

/* Read architecture, hyper-parameters and granules. */
tsr_status tsr_model_shape_read(const tsr_gguf *gguf, tsr_model_shape *shape_out);

/* Check a config (NULL: the defaults) against a shape and fill in what it leaves open. */
tsr_status tsr_model_config_resolve(const tsr_model_shape *shape, const tsr_model_config *config,
                                    tsr_model_config *resolved_out);

/* Copy the rates, links, overrides and offload device of `config`, which points to the copies afterwards. On
 * failure what was kept so far can be dropped. */
tsr_status tsr_model_config_keep(tsr_model_config *config, int n_devices, tsr_kept_config *kept);
void tsr_kept_config_drop(tsr_kept_config *kept);

/* The same model under another split, on the same devices. */
typedef struct tsr_model_former {
    const tsr_model *model;
    uint64_t exchanged; /* devices without room for both; their weights are left to tsr_weights_refill() */
} tsr_model_former;

/* Place the weights as `split` (copied) says. The same code loads a model, measures it, and loads it beside a
 * former one (else NULL). */
tsr_status tsr_model_load(tsr_runtime *rt, const tsr_model_shape *shape, const tsr_model_config *resolved,
                          const tsr_model_split *split, const tsr_model_former *former,
                          tsr_model **model_out);

/* Of tsr_weights_create(). */
unsigned tsr_model_weights_flags(const tsr_model_config *config);

/* Decide a split for the devices of `rt` and measure it on stand-ins for them. */
tsr_status tsr_plan_for_runtime(const tsr_runtime *rt, const tsr_model_shape *shape,
                                const tsr_model_config *resolved, tsr_plan **plan_out);

/* Make plan the model's, in place of the one it has. */
void tsr_model_set_plan(tsr_model *model, tsr_plan *plan);
const tsr_model_split *tsr_plan_split(const tsr_plan *plan);

#endif
