/* Loading a model onto devices, real ones or those of a dry run. */
#ifndef TSR_MODEL_LOAD_H
#define TSR_MODEL_LOAD_H

#include "core/device_set.h"
#include "model/model.h"

/* The model that a change of split replaces: its weights under the previous split, on the same devices. */
typedef struct tsr_model_previous {
    const tsr_model *model;
    tsr_device_set
        exchanged; /* devices without room for both splits; tsr_weights_refill() loads their weights */
} tsr_model_previous;

/* Place the weights as `split` (copied) says: to load a model, to measure it, or to load it together with
 * `previous` (NULL: none). */
tsr_status tsr_model_load(tsr_runtime *rt, const tsr_model_shape *shape, const tsr_model_config *resolved,
                          const tsr_model_split *split, const tsr_model_previous *previous,
                          tsr_model **model_out);

/* Free the memory of tsr_model_load(); NULL is fine. Sessions of the model continue to exist without a
 * model. */
void tsr_model_unload(tsr_model *model);

/* The weights of split.prompt; NULL: there is none. */
tsr_weights *tsr_model_prompt_weights(const tsr_model *model);

/* Flags for tsr_buffer_load(). */
unsigned tsr_model_load_flags(const tsr_model_config *config);

#endif
