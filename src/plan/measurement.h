/* What a split takes of every device. */
#ifndef TSR_PLAN_MEASUREMENT_H
#define TSR_PLAN_MEASUREMENT_H

#include "graph/graph.h"

/* What a split takes on every device, found by loading it on stand-ins. */
typedef struct tsr_measurement {
    size_t (*used)[TSR_MEMORY_COUNT]; /* [n_devices] */
    size_t *kv_windowed;              /* [n_devices] of TSR_MEMORY_KV, of layers with a window */
    size_t *arena_bound;              /* [n_devices] */
    tsr_program_info program;
} tsr_measurement;

void tsr_measurement_free(tsr_measurement *measurement);

/* Arrays of zeros; tsr_measurement_free() takes what a failure leaves. */
tsr_status tsr_measurement_init(tsr_measurement *measurement, int n_devices);

#endif
