/* Making planners. */
#include "plan/planner_init.h"

#include <string.h>

#include "core/mem.h"
#include "plan/cost/profile.h"
#include "plan/expert_split.h"
#include "plan/header_only/header.h"

static tsr_status set_margins(tsr_planner *planner, const size_t *bytes, int n)
{
    if (!bytes)
        return TSR_OK;
    if (n != 1 && n != planner->n_devices)
        return tsr_fail(TSR_ERR_INVALID, "%d margins for %d device%s; give one for all, or one for each", n,
                        planner->n_devices, tsr_plural(planner->n_devices));
    for (int d = 0; d < planner->n_devices; d++)
        planner->props[d].margin = bytes[n == 1 ? 0 : d];
    return TSR_OK;
}

/* The part that is the same for all planners: `planner` has devices and shape. */
static tsr_status add_config(tsr_planner *planner, const tsr_model_config *config)
{
    tsr_status status = TSR_OK;
    bool by_expert;
    TSR_TRY(set_margins(planner, config->margin.bytes, config->margin.n));
    TSR_TRY(tsr_planner_set_config(planner, config));
    TSR_TRY(tsr_planner_read_split(planner));
    TSR_TRY(tsr_planner_declare_weights(planner));
    TSR_TRY(tsr_step_profile_create(planner, &planner->profile));
    if (planner->shape.hparams.n_expert == 0 || planner->shape.arch->header_only)
        return TSR_OK;
    TSR_TRY(tsr_expert_split_choose(planner, &by_expert));
    if (by_expert != planner->shape.hparams.by_expert) {
        tsr_expert_split_set(&planner->shape, by_expert);
        TSR_TRY(tsr_planner_declare_weights(planner));
    }
out:
    return status;
}

tsr_status tsr_planner_init_for_list(const tsr_gguf *gguf, const tsr_device_list *devices,
                                     const tsr_model_config *config, tsr_planner *planner_out)
{
    tsr_status status = TSR_OK;
    tsr_planner planner = {0};
    if (!gguf || !devices || devices->n_devices < 1)
        return tsr_fail(TSR_ERR_INVALID, "planning needs a file and at least one device");
    size_t n = (size_t)devices->n_devices;
    planner.n_devices = devices->n_devices;
    TSR_TRY(tsr_plan_shape_read(gguf, config->prediction.load, &planner.shape));
    TSR_TRY(tsr_mem_array(n, sizeof *planner.props, "devices", &planner.props));
    for (size_t d = 0; d < n; d++)
        tsr_device_props_of_desc(&devices->devices[d], &planner.props[d]);
    TSR_TRY(tsr_mem_array(n, sizeof *planner.rates, "rates", &planner.rates));
    tsr_device_rates_guess(devices->devices, devices->n_devices, planner.rates);
    TSR_TRY(add_config(&planner, config));
    *planner_out = planner;
    planner = (tsr_planner){0};
out:
    tsr_planner_free(&planner);
    return status;
}

tsr_status tsr_planner_init_for_runtime(const tsr_runtime *rt, const tsr_model_shape *shape,
                                        const tsr_model_config *config, tsr_planner *planner_out)
{
    tsr_status status = TSR_OK;
    tsr_planner planner = {.n_devices = rt->n_devices, .shape = *shape};
    tsr_model_config own = *config;
    size_t n = (size_t)rt->n_devices;
    TSR_TRY(tsr_mem_array(n, sizeof *planner.props, "devices", &planner.props));
    for (int d = 0; d < rt->n_devices; d++)
        tsr_device_props_of(rt->devices[d], &planner.props[d]);
    if (rt->rates) {
        TSR_TRY(tsr_mem_array(n, sizeof *planner.rates, "rates", &planner.rates));
        memcpy(planner.rates, rt->rates, n * sizeof *planner.rates);
    }
    if (!own.plan.links)
        own.plan.links = rt->links;
    TSR_TRY(add_config(&planner, &own));
    *planner_out = planner;
    planner = (tsr_planner){0};
out:
    tsr_planner_free(&planner);
    return status;
}
