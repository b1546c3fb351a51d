/* The parts of a planner (plan/planner.h). */
#include "plan/planner.h"

#include "core/mem.h"
#include "model/config.h"

tsr_status tsr_planner_set_config(tsr_planner *planner, const tsr_model_config *config)
{
    tsr_status status = tsr_model_config_resolve(&planner->shape, config, &planner->config);
    if (status == TSR_OK && !planner->config.plan.rates)
        planner->config.plan.rates = planner->rates;
    return status;
}

tsr_status tsr_planner_read_split(tsr_planner *planner)
{
    const tsr_model_config *config = &planner->config;
    if (config->split.mode != TSR_SPLIT_MODE_NONE)
        return tsr_split_request_read(config->split.tensor_split, config->split.n_tensor_split,
                                      planner->n_devices, &planner->request);
    if (config->split.main_device < 0 || config->split.main_device >= planner->n_devices)
        return tsr_fail(TSR_ERR_INVALID, "main_device is %d; the last device is number %d",
                        config->split.main_device, planner->n_devices - 1);
    planner->request = (tsr_split_request){.n = planner->n_devices};
    planner->request.share[config->split.main_device] = 1;
    return TSR_OK;
}

tsr_status tsr_planner_declare_weights(tsr_planner *planner)
{
    const tsr_model_shape *shape = &planner->shape;
    tsr_weights_free(&planner->weights);
    planner->weights = (tsr_weights){0};
    tsr_status status = tsr_weights_init(&planner->weights, shape->gguf, shape->hparams.n_layers);
    if (status == TSR_OK)
        status = tsr_arch_declare(shape->arch, &planner->weights, &shape->hparams, &shape->granules);
    return status;
}

void tsr_step_profile_free(tsr_step_profile *profile)
{
    tsr_mem_free(profile->collectives);
    *profile = (tsr_step_profile){0};
}

void tsr_planner_free(tsr_planner *planner)
{
    tsr_weights_free(&planner->weights);
    tsr_step_profile_free(&planner->profile);
    tsr_mem_free(planner->props);
    tsr_mem_free(planner->rates);
    *planner = (tsr_planner){0};
}
