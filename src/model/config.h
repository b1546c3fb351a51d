/* A model's config, checked and completed. */
#ifndef TSR_MODEL_CONFIG_H
#define TSR_MODEL_CONFIG_H

#include "model/shape.h"

/* The caller's config (NULL: the defaults) as this version of the library has it. */
tsr_status tsr_model_config_read(const tsr_model_config *config, tsr_model_config *config_out);

/* Check a config that was read (NULL: the defaults) against a shape and fill in what it leaves open. */
tsr_status tsr_model_config_resolve(const tsr_model_shape *shape, const tsr_model_config *config,
                                    tsr_model_config *resolved_out);

#endif
