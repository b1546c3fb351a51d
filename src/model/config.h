/* A model's config, checked and completed. */
#ifndef TSR_MODEL_CONFIG_H
#define TSR_MODEL_CONFIG_H

#include "model/shape.h"

/* Read the caller's config (NULL: the defaults) into this version's struct. */
tsr_status tsr_model_config_read(const tsr_model_config *config, tsr_model_config *config_out);

/* Check a config that was read (NULL: the defaults) against a shape, and fill in the values that it leaves
 * open. */
tsr_status tsr_model_config_resolve(const tsr_model_shape *shape, const tsr_model_config *config,
                                    tsr_model_config *resolved_out);

#endif
