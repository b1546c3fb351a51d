/* The plan as its callers see it. */
#include "plan/plan.h"

#include "core/mem.h"
#include "core/status.h"

void tsr_plan_destroy(tsr_plan *plan)
{
    if (!plan)
        return;
    for (int i = 0; i < plan->n_notes; i++)
        tsr_mem_free(plan->notes[i]);
    tsr_model_split_free(&plan->split);
    tsr_mem_free(plan->devices);
    tsr_mem_free(plan->alternatives);
    tsr_mem_free(plan->decode_walks.list);
    tsr_mem_free(plan->prompt_walks.list);
    tsr_mem_free(plan);
}

const tsr_model_split *tsr_plan_split(const tsr_plan *plan)
{
    return &plan->split;
}

void tsr_plan_get_info(const tsr_plan *plan, tsr_plan_info *info_out)
{
    *info_out = plan->info;
}

tsr_status tsr_plan_get_device(const tsr_plan *plan, int device, tsr_plan_device *device_out)
{
    if (device < 0 || device >= plan->info.n_devices)
        return tsr_fail(TSR_ERR_INVALID, "device %d does not exist; the plan has %d", device,
                        plan->info.n_devices);
    *device_out = plan->devices[device];
    return TSR_OK;
}

const char *tsr_plan_note(const tsr_plan *plan, int index)
{
    return index >= 0 && index < plan->n_notes ? plan->notes[index] : NULL;
}
