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

/* Tensor mode alone has a split of prompts: in the other modes devices work one after another. */
static tsr_status read_prompt_split(tsr_planner *planner)
{
    const tsr_model_config *config = &planner->config;
    const tsr_split_mode mode = config->split.mode;
    tsr_status status = tsr_split_request_read(config->prompt.tensor_split, config->prompt.n_tensor_split,
                                               planner->n_devices, &planner->prompt);
    if (status != TSR_OK || planner->prompt.automatic)
        return status;
    if (mode != TSR_SPLIT_MODE_TENSOR && mode != TSR_SPLIT_MODE_AUTO)
        return tsr_fail(
            TSR_ERR_INVALID,
            "a split of prompts (prompt.tensor_split) is for tensor mode, and the mode is %s; use "
            "tensor mode, or drop the split of prompts",
            tsr_split_mode_name(mode));
    if (planner->shape.arch->header_only)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: models that can be planned, but not run, have no split of prompts "
                        "(prompt.tensor_split); drop it",
                        planner->shape.gguf ? tsr_gguf_path(planner->shape.gguf) : "the model");
    if (config->session.n_batch < 2 || config->prompt.n_tokens > config->session.n_batch)
        return tsr_fail(TSR_ERR_INVALID,
                        "a split of prompts for steps of %d tokens and more, and steps have at most %d "
                        "(n_batch); use a larger n_batch, or drop the split of prompts",
                        TSR_MAX(config->prompt.n_tokens, 2), config->session.n_batch);
    return TSR_OK;
}

tsr_status tsr_planner_read_split(tsr_planner *planner)
{
    const tsr_model_config *config = &planner->config;
    tsr_status status = read_prompt_split(planner);
    if (status != TSR_OK)
        return status;
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
