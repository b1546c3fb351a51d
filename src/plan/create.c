/* Making a plan: decide, or fit, and report. */
#include "plan/create.h"

#include "core/mem.h"
#include "model/config.h"
#include "plan/expert_split.h"
#include "plan/fit/fit.h"
#include "plan/notes.h"
#include "plan/planning.h"
#include "plan/report.h"

tsr_status tsr_plan_for_devices(const tsr_device_props *props, int n_devices, const tsr_model_shape *shape,
                                const tsr_model_config *resolved, tsr_plan **plan_out)
{
    tsr_status status = TSR_OK;
    tsr_plan_choice choice = {0};
    tsr_weights weights = {0};
    TSR_TRY(tsr_weights_init(&weights, shape->gguf, shape->hparams.n_layers));
    TSR_TRY(tsr_arch_declare(shape->arch, &weights, &shape->hparams));
    TSR_TRY(tsr_plan_decide(props, n_devices, shape, &weights, resolved, NULL, &choice));
    TSR_TRY(tsr_plan_report(props, n_devices, shape, &weights, resolved, &choice, plan_out));
out:
    tsr_plan_choice_free(&choice);
    tsr_weights_free(&weights);
    return status;
}

/* What the fit decided, without its report. */
static tsr_status plan_fitted(const tsr_gguf *gguf, const tsr_device_list *devices,
                              const tsr_model_config *config, tsr_plan **plan_out)
{
    tsr_fit *fit;
    tsr_status status = tsr_fit_create(gguf, devices, config, &fit);
    if (status != TSR_OK)
        return status;
    *plan_out = tsr_fit_take_plan(fit);
    tsr_fit_destroy(fit);
    return TSR_OK;
}

tsr_status tsr_plan_create(const tsr_gguf *gguf, const tsr_device_list *devices,
                           const tsr_model_config *config, tsr_plan **plan_out)
{
    tsr_status status = TSR_OK;
    tsr_planning planning = {0};
    tsr_model_config own, resolved;
    tsr_plan *plan = NULL;
    if (!plan_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_plan_create: plan_out must not be NULL");
    TSR_TRY(tsr_model_config_read(config, &own));
    TSR_TRY(tsr_planning_of_list(gguf, devices, &planning));
    TSR_TRY(
        tsr_model_shape_divide(&planning.shape, planning.props, planning.n_devices, planning.rates, &own));
    TSR_TRY(tsr_model_config_resolve(&planning.shape, &own, &resolved));
    if (resolved.plan.fit) {
        TSR_TRY(plan_fitted(gguf, devices, &own, plan_out));
        goto out;
    }
    if (!resolved.plan.rates)
        resolved.plan.rates = planning.rates;
    TSR_TRY(tsr_plan_for_devices(planning.props, planning.n_devices, &planning.shape, &resolved, &plan));
    TSR_TRY(tsr_plan_note_shared_memory(devices, plan));
    *plan_out = plan;
    plan = NULL;
out:
    tsr_plan_destroy(plan);
    tsr_planning_free(&planning);
    return status;
}

tsr_status tsr_plan_for_runtime(const tsr_runtime *rt, const tsr_model_shape *shape,
                                const tsr_model_config *resolved, tsr_plan **plan_out)
{
    tsr_status status = TSR_OK;
    tsr_model_config config = *resolved;
    tsr_device_props *props = NULL;
    TSR_TRY(tsr_mem_array((size_t)rt->n_devices, sizeof *props, "devices", &props));
    for (int d = 0; d < rt->n_devices; d++)
        tsr_device_props_of(rt->devices[d], &props[d]);
    if (!config.plan.rates)
        config.plan.rates = rt->rates;
    TSR_TRY(tsr_plan_for_devices(props, rt->n_devices, shape, &config, plan_out));
out:
    tsr_mem_free(props);
    return status;
}
