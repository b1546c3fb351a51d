/* What planning starts from: a model's shape, and devices with their rates. */
#ifndef TSR_PLAN_PLANNING_H
#define TSR_PLAN_PLANNING_H

#include "model/shape.h"
#include "runtime/device_props.h"

/* What a plan is made of. */
typedef struct tsr_planning {
    tsr_model_shape shape;
    tsr_device_props *props; /* [n_devices] */
    tsr_device_rates *rates; /* [n_devices] guessed, for a config without any */
    int n_devices;
} tsr_planning;

tsr_status tsr_planning_of_list(const tsr_gguf *gguf, const tsr_device_list *devices,
                                tsr_planning *planning_out);
void tsr_planning_free(tsr_planning *planning);

#endif
