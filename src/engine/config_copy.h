/* Copies of the memory that a model's config points to, so that the model can be planned again. */
#ifndef TSR_ENGINE_CONFIG_COPY_H
#define TSR_ENGINE_CONFIG_COPY_H

#include "model/model.h"

/* Copy the rates, links, margins, split of prompts, overrides and offload device of `config`, which points to
 * the copies afterwards. On failure *copy has the copies made so far, for tsr_config_copy_free(). */
tsr_status tsr_model_config_copy(tsr_model_config *config, int n_devices, tsr_config_copy *copy);
void tsr_config_copy_free(tsr_config_copy *copy);

#endif
