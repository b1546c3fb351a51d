/* Arrays of a measurement (plan/measurement.h). */
#include "plan/measurement.h"

#include "core/mem.h"
#include "core/status.h"

tsr_status tsr_measurement_init(tsr_measurement *m, int n_devices)
{
    tsr_status status = TSR_OK;
    const size_t n = (size_t)n_devices;
    TSR_TRY(tsr_mem_array(n, sizeof *m->used, "a measurement", &m->used));
    TSR_TRY(tsr_mem_array(n, sizeof *m->kv_windowed, "a measurement", &m->kv_windowed));
    TSR_TRY(tsr_mem_array(n, sizeof *m->arena_bound, "a measurement", &m->arena_bound));
out:
    return status;
}

void tsr_measurement_free(tsr_measurement *measurement)
{
    tsr_mem_free(measurement->used);
    tsr_mem_free(measurement->kv_windowed);
    tsr_mem_free(measurement->arena_bound);
    *measurement = (tsr_measurement){0};
}
