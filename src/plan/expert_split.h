/* How the FFN of a mixture of experts is divided: columns of every expert, or whole experts. */
#ifndef TSR_PLAN_EXPERT_SPLIT_H
#define TSR_PLAN_EXPERT_SPLIT_H

#include "model/shape.h"
#include "runtime/device_props.h"

/* Take the FFN's granules from config->split.experts before anything is decided. Where
 * that is TSR_EXPERT_SPLIT_AUTO, what takes less time by the rates (config's, else `rates`) on these devices,
 * for steps of config->plan.n_tokens; columns where it is the same, or not known. Errors as
 * tsr_model_config_resolve() and tsr_offload_map_create(). */
tsr_status tsr_model_shape_divide(tsr_model_shape *shape, const tsr_device_props *props, int n_devices,
                                  const tsr_device_rates *rates, const tsr_model_config *config);

/* The same on the devices of a runtime. */
tsr_status tsr_model_shape_divide_for(tsr_model_shape *shape, const tsr_runtime *rt,
                                      const tsr_model_config *config);

#endif
