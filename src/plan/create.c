/* Making a plan: decide, or fit, and report. */
#include "plan/create.h"

#include "core/mem.h"
#include "model/config.h"
#include "plan/fit/fit.h"
#include "plan/notes.h"
#include "plan/planner_init.h"
#include "plan/report.h"

tsr_status tsr_planner_plan(const tsr_planner *planner, tsr_plan **plan_out)
{
    tsr_status status = TSR_OK;
    tsr_plan_choice choice;
    TSR_TRY(tsr_plan_decide(planner, &choice));
    TSR_TRY(tsr_plan_report(planner, &choice, plan_out));
out:
    tsr_plan_choice_free(&choice);
    return status;
}

/* Give an open context the least value that the fit of `config` may leave. */
static tsr_status set_least_context(tsr_planner *planner, tsr_model_config *config)
{
    tsr_fit_config limits;
    tsr_status status = TSR_OK;
    if (!config->plan.fit || config->session.n_ctx)
        return TSR_OK;
    TSR_TRY(tsr_fit_limits_read(config, planner->n_devices, &limits));
    tsr_fit_set_margins(&limits, config, planner->props, planner->n_devices);
    config->session.n_ctx = TSR_MIN(limits.n_ctx_min, planner->shape.hparams.n_ctx_train);
    TSR_TRY(tsr_planner_set_config(planner, config));
out:
    return status;
}

/* Where the config has no split of prompts: what the planner's would be worth, and what devices then hold. */
static tsr_status add_pair(tsr_planner *planner, tsr_plan *plan)
{
    tsr_status status = TSR_OK;
    tsr_plan *with = NULL;
    if (!plan->times.automatic || plan->info.mode != TSR_SPLIT_MODE_TENSOR ||
        planner->config.prompt.automatic)
        return TSR_OK;
    planner->config.prompt.automatic = true;
    TSR_TRY(tsr_planner_plan(planner, &with));
    plan->pair_ns = with->split.prompt ? with->times.workload_ns : 0;
    for (int d = 0; d < planner->n_devices; d++)
        plan->pair_bytes[d] = with->devices[d].total_bytes;
out:
    tsr_plan_destroy(with);
    return status;
}

static tsr_status create(const tsr_gguf *gguf, const tsr_device_list *devices, const tsr_model_config *config,
                         bool uncapped, tsr_plan **plan_out)
{
    tsr_status status = TSR_OK;
    tsr_model_config own;
    tsr_planner planner = {0};
    tsr_fit *fit = NULL;
    tsr_plan *plan = NULL;
    if (!plan_out)
        return tsr_fail(TSR_ERR_INVALID, "plan_out must not be NULL");
    TSR_TRY(tsr_model_config_read(config, &own));
    TSR_TRY(tsr_planner_init_for_list(gguf, devices, &own, &planner));
    planner.uncapped = uncapped;
    if (uncapped) {
        TSR_TRY(set_least_context(&planner, &own));
        TSR_TRY(tsr_planner_plan(&planner, &plan));
    } else if (planner.config.plan.fit) {
        TSR_TRY(tsr_planner_fit(&planner, &own, &fit));
        plan = tsr_fit_take_plan(fit);
        TSR_TRY(tsr_planner_set_config(&planner, &fit->config));
    } else {
        TSR_TRY(tsr_planner_plan(&planner, &plan));
    }
    if (plan->info.fits)
        TSR_TRY(add_pair(&planner, plan));
    TSR_TRY(tsr_plan_note_devices(devices, plan));
    *plan_out = plan;
    plan = NULL;
out:
    tsr_plan_destroy(plan);
    tsr_fit_destroy(fit);
    tsr_planner_free(&planner);
    return status;
}

tsr_status tsr_plan_create(const tsr_gguf *gguf, const tsr_device_list *devices,
                           const tsr_model_config *config, tsr_plan **plan_out)
{
    return create(gguf, devices, config, false, plan_out);
}

tsr_status tsr_plan_create_uncapped(const tsr_gguf *gguf, const tsr_device_list *devices,
                                    const tsr_model_config *config, tsr_plan **plan_out)
{
    return create(gguf, devices, config, true, plan_out);
}
