/* Measuring a split: loading it on devices that allocate nothing, and reading their accounting. */
#ifndef TSR_PLAN_DRY_RUN_H
#define TSR_PLAN_DRY_RUN_H

#include "model/shape.h"
#include "plan/measurement.h"
#include "runtime/device_props.h"

tsr_status tsr_measurement_create(const tsr_device_props *props, int n_devices, const tsr_model_shape *shape,
                                  const tsr_model_config *resolved, const tsr_model_split *split,
                                  tsr_measurement *measurement_out);

#endif
