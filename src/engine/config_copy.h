/* Copies of what a model's config points to, so that the model can be planned again. */
#ifndef TSR_ENGINE_CONFIG_COPY_H
#define TSR_ENGINE_CONFIG_COPY_H

#include "model/model.h"

/* Copy the rates, links, overrides and offload device of `config`, which points to the copies afterwards. On
 * failure what was kept so far can be dropped. */
tsr_status tsr_model_config_keep(tsr_model_config *config, int n_devices, tsr_kept_config *kept);
void tsr_kept_config_drop(tsr_kept_config *kept);

#endif
