/* Inside a plan. */
#ifndef TSR_MODEL_PLAN_H
#define TSR_MODEL_PLAN_H

#include "model/model.h"
#include "runtime/measuring.h"

enum { TSR_PLAN_MAX_NOTES = TSR_MAX_DEVICES + 8 };

struct tsr_plan {
    tsr_plan_info info;
    tsr_plan_device *devices; /* [info.n_devices] */
    tsr_model_split split;
    char *notes[TSR_PLAN_MAX_NOTES];
    int n_notes;
};

/* What a split takes on every device, found by loading it on stand-ins. */
typedef struct tsr_measurement {
    size_t (*used)[TSR_MEMORY_COUNT]; /* [n_devices] */
    size_t *arena_bound;              /* [n_devices] */
    tsr_program_info program;
} tsr_measurement;

tsr_status tsr_measurement_create(const tsr_device_traits *traits, int n_devices,
                                  const tsr_model_shape *shape, const tsr_model_config *resolved,
                                  const tsr_model_split *split, tsr_measurement *measurement_out);
void tsr_measurement_free(tsr_measurement *measurement);

/* Choose granule counts (or layers) for the devices so that everything fits, and measure the result. On
 * failure the message names the device and the bytes that are missing. */
tsr_status tsr_plan_decide(const tsr_device_traits *traits, int n_devices, const tsr_model_shape *shape,
                           const tsr_model_config *resolved, tsr_model_split *split_out,
                           tsr_measurement *measurement_out);

#endif
