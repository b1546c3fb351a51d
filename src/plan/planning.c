/* Planning for a list of devices, open or only described. */
#include "plan/planning.h"

#include "core/mem.h"
#include "plan/header_only/header.h"

tsr_status tsr_planning_of_list(const tsr_gguf *gguf, const tsr_device_list *devices,
                                tsr_planning *planning_out)
{
    tsr_status status = TSR_OK;
    tsr_planning planning = {0};
    if (!gguf || !devices || devices->n_devices < 1)
        return tsr_fail(TSR_ERR_INVALID, "planning needs a file and at least one device");
    size_t n = (size_t)devices->n_devices;
    planning.n_devices = devices->n_devices;
    TSR_TRY(tsr_plan_shape_read(gguf, &planning.shape));
    TSR_TRY(tsr_mem_array(n, sizeof *planning.props, "devices", &planning.props));
    for (size_t d = 0; d < n; d++)
        tsr_device_props_of_desc(&devices->devices[d], &planning.props[d]);
    TSR_TRY(tsr_mem_array(n, sizeof *planning.rates, "rates", &planning.rates));
    tsr_device_rates_guess(devices->devices, devices->n_devices, planning.rates);
    *planning_out = planning;
    planning = (tsr_planning){0};
out:
    tsr_planning_free(&planning);
    return status;
}

void tsr_planning_free(tsr_planning *planning)
{
    tsr_mem_free(planning->props);
    tsr_mem_free(planning->rates);
    *planning = (tsr_planning){0};
}
