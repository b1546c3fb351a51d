/* A model in memory, on real devices or those of a dry run. */
#ifndef TSR_MODEL_MODEL_H
#define TSR_MODEL_MODEL_H

#include <tsr/fit.h>
#include <tsr/model.h>
#include <tsr/session.h>

#include "arch/rope.h"
#include "core/runtime.h"
#include "model/shape.h"

/* Copies of what a config's pointers lead to, for planning once more after opening. */
typedef struct tsr_config_copy {
    tsr_device_rates *rates;
    tsr_links *links;
    size_t *margins;
    float *prompt_split;
    tsr_offload_rule *offload_rules;
    char **texts; /* [n_texts] of the offload_rules, and the offload device */
    int n_texts;
} tsr_config_copy;

/* The fewest tokens of half a chunk of a prompt. A GPU's products of fewer tokens are bound by reading
 * weights, which halves do twice. */
enum { TSR_MODEL_HALF_TOKENS = 256 };

struct tsr_model {
    tsr_runtime *rt;
    tsr_tracked tracked;
    tsr_model *next;       /* in rt->models; only opened ones are in the list */
    tsr_session *sessions; /* a list through their `next` */
    tsr_gguf *own_gguf;    /* NULL: the caller's */
    tsr_model_shape shape;
    tsr_model_config config;     /* with defaults; pointers are NULL or lead to `config_copy` */
    tsr_config_copy config_copy; /* of opened models */
    tsr_model_split split;
    tsr_weights weights, prompt_weights; /* of split.prompt: the same tensors, in the buffer of the first;
                                          * empty without split.prompt */
    int64_t half_tokens;                 /* the fewest tokens of half a chunk (TSR_MODEL_HALF_TOKENS) */
    bool lost; /* a change of split failed, and so did going back: it has no weights on some device */
    tsr_rope_tables rope[TSR_ROPE_SLOTS]; /* n_rot 0: the model has no such rotation */
    tsr_plan *plan;                       /* NULL on measuring devices */
    tsr_fit *fit;                         /* NULL, or what the plan belonged to at first */
    struct tsr_adapter *adapter; /* of engine/adapt.c, one block of memory; NULL: times are not watched */
};

/* Of the architecture, whether the prediction layer is loaded, the shapes and types of all tensors, and the
 * first bytes of each. */
uint64_t tsr_model_fingerprint(const tsr_model *model);

#endif
