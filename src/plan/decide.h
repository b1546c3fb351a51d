/* Deciding which device gets which granules. */
#ifndef TSR_PLAN_DECIDE_H
#define TSR_PLAN_DECIDE_H

#include "model/shape.h"
#include "plan/measurement.h"
#include "plan/offload.h"
#include "runtime/device_props.h"

typedef struct tsr_plan_choice {
    tsr_offload_map map;
    tsr_model_split split;
    tsr_measurement measurement;
    bool automatic, proven; /* as in tsr_plan_times */
} tsr_plan_choice;

/* What deciding found out about memory on its way, whether or not it came to a choice. */
typedef struct tsr_memory_demand {
    /* [n_devices], the caller's: what the devices would hold if memory were no object. */
    size_t (*wanted)[TSR_MEMORY_COUNT];
    bool no_room; /* TSR_ERR_MEMORY is about the devices' memory, not the host's own */
} tsr_memory_demand;

/* Choose granule counts (or layers) for the devices so that everything fits, and measure the result. Without
 * a tensor_split the counts are those that take the least time by resolved->rates. On failure the message
 * names the device and the bytes that are missing. `demand` may be NULL. */
tsr_status tsr_plan_decide(const tsr_device_props *props, int n_devices, const tsr_model_shape *shape,
                           const tsr_weights *weights, const tsr_model_config *resolved,
                           tsr_memory_demand *demand, tsr_plan_choice *choice_out);
void tsr_plan_choice_free(tsr_plan_choice *choice);

#endif
