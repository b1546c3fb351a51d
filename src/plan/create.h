/* Making plans. */
#ifndef TSR_PLAN_CREATE_H
#define TSR_PLAN_CREATE_H

#include "core/runtime.h"
#include "model/shape.h"
#include "plan/plan.h"
#include "runtime/device_props.h"

/* Decide a split for the devices of `rt` and measure it on stand-ins for them. */
tsr_status tsr_plan_for_runtime(const tsr_runtime *rt, const tsr_model_shape *shape,
                                const tsr_model_config *resolved, tsr_plan **plan_out);

/* Plan for devices of these props; resolved->rates must be there. */
tsr_status tsr_plan_for_devices(const tsr_device_props *props, int n_devices, const tsr_model_shape *shape,
                                const tsr_model_config *resolved, tsr_plan **plan_out);

#endif
