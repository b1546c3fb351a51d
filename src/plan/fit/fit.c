/* The public functions of fits: what was wanted, what was cut, and the resulting placement. */
#include "plan/fit/fit.h"

#include <stdio.h>
#include <string.h>

#include "core/config.h"
#include "core/mem.h"
#include "model/config.h"
#include "plan/notes.h"
#include "plan/planner_init.h"
#include "plan/report.h"

tsr_fit_choice tsr_fit_choice_of(const tsr_model_shape *shape, const tsr_model_config *config)
{
    return (tsr_fit_choice){.n_ctx =
                                config->session.n_ctx ? config->session.n_ctx : shape->hparams.n_ctx_train,
                            .type_k = config->session.type_k,
                            .type_v = config->session.type_v,
                            .n_gpu_layers = config->offload.n_gpu_layers,
                            .n_cpu_moe = config->offload.n_cpu_moe};
}

/* -- limits -- */

size_t tsr_fit_config_init(tsr_fit_config *config_out, size_t size)
{
    const tsr_fit_config defaults = {
        .n_ctx_min = TSR_FIT_CTX_MIN, .type_k = TSR_TYPE_F32, .type_v = TSR_TYPE_F32};
    return tsr_config_write(&defaults, sizeof defaults, config_out, size);
}

static tsr_status check_limits(const tsr_fit_config *fit, int n_devices)
{
    if (fit->n_ctx_min < 1)
        return tsr_fail(TSR_ERR_INVALID, "n_ctx_min is %lld; it must be at least 1",
                        (long long)fit->n_ctx_min);
    if (!tsr_type_known(fit->type_k) || !tsr_type_known(fit->type_v))
        return tsr_fail(TSR_ERR_INVALID, "a fit's type_k or type_v is no type");
    if (fit->margins && fit->n_margins != 1 && fit->n_margins != n_devices)
        return tsr_fail(TSR_ERR_INVALID, "%d margins for %d device%s; give one for all, or one for each",
                        fit->n_margins, n_devices, tsr_plural(n_devices));
    return TSR_OK;
}

tsr_status tsr_fit_limits_read(const tsr_model_config *config, int n_devices, tsr_fit_config *limits_out)
{
    *limits_out = tsr_fit_config_default();
    tsr_status status =
        tsr_config_read("tsr_fit_config", config->plan.fit, offsetof(tsr_fit_config, context_only),
                        limits_out, sizeof *limits_out);
    return status == TSR_OK ? check_limits(limits_out, n_devices) : status;
}

void tsr_fit_set_margins(const tsr_fit_config *limits, const tsr_model_config *config,
                         tsr_device_props *props, int n)
{
    for (int d = 0; d < n; d++)
        if (limits->margins)
            props[d].margin = limits->margins[limits->n_margins == 1 ? 0 : d];
        else if (!config->margin.bytes && (!limits->context_only || props[d].kind == TSR_DEVICE_CUDA))
            props[d].margin = TSR_FIT_MARGIN;
}

/* -- what is missing -- */

/* n_gpu_layers above the number of layers means that no layer is offloaded. */
static bool offloads(const tsr_fitting *fitting, const tsr_fit_choice *choice)
{
    return choice->n_cpu_moe > 0 ||
           (choice->n_gpu_layers >= 0 && choice->n_gpu_layers <= fitting->planner->shape.hparams.n_layers);
}

/* Fail with the bytes that each device lacks after all cuts. */
static tsr_status fail_to_fit(const tsr_fitting *fitting)
{
    enum { TEXT = 560 };
    tsr_fit_choice choice = tsr_fit_choice_of(&fitting->planner->shape, &fitting->now->config);
    char text[TEXT] = "";
    size_t used = 0;
    int n_short = 0;
    for (int d = 0; d < fitting->planner->n_devices && used < TEXT - 160; d++) {
        const tsr_device_props *props = &fitting->planner->props[d];
        size_t wanted = tsr_used_total(fitting->now->choice.wanted[d]),
               missing = tsr_device_props_missing(props, wanted);
        if (missing)
            used += (size_t)snprintf(text + used, TEXT - used,
                                     "%s %s lacks %zu bytes (it has %zu, %zu stay free, %zu are wanted)",
                                     n_short++ ? "," : "", props->name, missing, props->memory_cap,
                                     TSR_MIN(props->margin, props->memory_cap), wanted);
    }
    return tsr_fail(TSR_ERR_MEMORY,
                    "the model does not fit with %lld tokens of context%s and KV in %s and %s, cut as far as "
                    "allowed:%s; allow less context, smaller KV types or margins, or add memory%s",
                    (long long)choice.n_ctx, offloads(fitting, &choice) ? ", parts offloaded" : "",
                    tsr_type_name(choice.type_k), tsr_type_name(choice.type_v),
                    n_short ? text : " the last granule or layer finds no device",
                    fitting->offload_device < 0 && !fitting->limits.context_only
                        ? " or a host device to offload to (-dev cuda,host:1)"
                        : "");
}

/* -- creation -- */

/* Find the device to offload to. All layers stay on the other devices at first: n_gpu_layers is one more than
 * the model has. */
static tsr_status set_apart(tsr_fitting *fitting, tsr_model_config *start)
{
    const tsr_planner *planner = fitting->planner;
    tsr_status status = TSR_OK;
    fitting->offload_device = -1;
    if (!fitting->limits.context_only)
        status = tsr_offload_spare_device(planner, &fitting->offload_device);
    if (status != TSR_OK)
        return status;
    memcpy(fitting->lenient, planner->props, (size_t)planner->n_devices * sizeof *fitting->lenient);
    if (fitting->offload_device < 0)
        return TSR_OK;
    fitting->lenient[fitting->offload_device].memory_cap = SIZE_MAX;
    if (start->offload.n_gpu_layers == -1)
        start->offload.n_gpu_layers = (int)planner->shape.hparams.n_layers + 1;
    return TSR_OK;
}

static void fill_wanted(const tsr_fitting *fitting)
{
    for (int d = 0; d < fitting->planner->n_devices; d++) {
        const tsr_device_props *props = &fitting->planner->props[d];
        tsr_plan_device *device = &fitting->fit->wanted[d];
        memcpy(device->name, props->name, sizeof device->name);
        memcpy(device->bytes, fitting->now->choice.wanted[d], sizeof device->bytes);
        device->total_bytes = tsr_used_total(device->bytes);
        device->used = device->total_bytes > 0;
        device->memory_cap = props->memory_cap;
        device->margin_bytes = props->margin;
        device->missing_bytes = tsr_device_props_missing(props, device->total_bytes);
    }
}

/* The plan of fitting->now, and the given config with what was chosen. */
static tsr_status fill_result(const tsr_fitting *fitting)
{
    tsr_status status = TSR_OK;
    tsr_fit *fit = fitting->fit;
    tsr_planner planner = *fitting->planner;
    TSR_TRY(tsr_planner_set_config(&planner, &fitting->now->config));
    TSR_TRY(tsr_plan_report(&planner, &fitting->now->choice, &fit->plan));
    fit->info.chosen = tsr_fit_choice_of(&planner.shape, &fitting->now->config);
    fit->plan->info.n_ctx_fitted = fit->info.chosen.n_ctx < fit->info.wanted.n_ctx;
    fit->config = *fitting->given;
    fit->config.session.n_ctx = fit->info.chosen.n_ctx;
    fit->config.session.type_k = fit->info.chosen.type_k;
    fit->config.session.type_v = fit->info.chosen.type_v;
    fit->config.offload.n_gpu_layers = fit->info.chosen.n_gpu_layers;
    fit->config.offload.n_cpu_moe = fit->info.chosen.n_cpu_moe;
    if (fit->config.split.experts == TSR_EXPERT_SPLIT_AUTO)
        fit->config.split.experts = tsr_expert_split_of(&planner.shape.hparams);
out:
    return status;
}

/* Plan the config as given, then cut it until it fits. */
static tsr_status run(tsr_fitting *fitting)
{
    tsr_status status = TSR_OK;
    tsr_model_config start = *fitting->given;
    TSR_TRY(set_apart(fitting, &start));
    fitting->fit->info.wanted = tsr_fit_choice_of(&fitting->planner->shape, &start);
    TSR_TRY(tsr_fit_attempt(fitting, false, &start, fitting->now));
    fill_wanted(fitting);
    TSR_TRY(tsr_fit_search(fitting));
    TSR_TRY(fitting->now->fits ? fill_result(fitting) : fail_to_fit(fitting));
out:
    return status;
}

tsr_status tsr_planner_fit(tsr_planner *planner, const tsr_model_config *given, tsr_fit **fit_out)
{
    tsr_status status = TSR_OK;
    const size_t n = (size_t)planner->n_devices;
    tsr_fitting *fitting = NULL;
    tsr_fit *fit = NULL;
    TSR_TRY(TSR_NEW(&fitting, "a fit"));
    TSR_TRY(TSR_NEW(&fit, "a fit"));
    TSR_TRY(tsr_mem_array(n, sizeof *fit->wanted, "a fit", &fit->wanted));
    TSR_TRY(tsr_mem_array(n, sizeof *fitting->lenient, "devices", &fitting->lenient));
    fit->info.n_devices = planner->n_devices;
    fitting->planner = planner;
    fitting->given = given;
    TSR_TRY(tsr_fit_limits_read(given, planner->n_devices, &fitting->limits));
    fitting->fit = fit;
    fitting->now = &fitting->attempts[0];
    fitting->next = &fitting->attempts[1];
    fitting->spare = &fitting->attempts[2];
    tsr_fit_set_margins(&fitting->limits, given, planner->props, planner->n_devices);
    TSR_TRY(run(fitting));
    *fit_out = fit;
    fit = NULL;
out:
    for (int i = 0; fitting && i < 3; i++)
        tsr_plan_choice_free(&fitting->attempts[i].choice);
    if (fitting)
        tsr_mem_free(fitting->lenient);
    tsr_mem_free(fitting);
    tsr_fit_destroy(fit);
    return status;
}

tsr_status tsr_fit_create(const tsr_gguf *gguf, const tsr_device_list *devices,
                          const tsr_model_config *config, tsr_fit **fit_out)
{
    tsr_status status = TSR_OK;
    tsr_model_config own;
    tsr_planner planner = {0};
    tsr_fit *fit = NULL;
    if (!fit_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_fit_create: fit_out must not be NULL");
    TSR_TRY(tsr_model_config_read(config, &own));
    TSR_TRY(tsr_planner_init_for_list(gguf, devices, &own, &planner));
    TSR_TRY(tsr_planner_fit(&planner, &own, &fit));
    TSR_TRY(tsr_plan_note_devices(devices, fit->plan));
    *fit_out = fit;
    fit = NULL;
out:
    tsr_fit_destroy(fit);
    tsr_planner_free(&planner);
    return status;
}

/* Views of the file are the system's cache, for which the system makes room as they are read, so that devices
 * with views are not limited. */
tsr_status tsr_planner_limit_to_free(tsr_planner *planner, const tsr_runtime *rt)
{
    tsr_status status = TSR_OK;
    for (int d = 0; d < rt->n_devices; d++) {
        size_t free_bytes, total_bytes;
        tsr_device_props *props = &planner->props[d];
        if (!rt->devices[d]->prefers_copies && !planner->config.load.copy_weights)
            continue;
        status = tsr_device_memory_info(rt->devices[d], &free_bytes, &total_bytes);
        if (status == TSR_OK)
            props->memory_cap = TSR_MIN(props->memory_cap, free_bytes);
        else if (status != TSR_ERR_UNSUPPORTED)
            return status;
        else /* the system does not report free memory */
            tsr_fail_clear();
    }
    return TSR_OK;
}

void tsr_fit_destroy(tsr_fit *fit)
{
    if (!fit)
        return;
    tsr_plan_destroy(fit->plan);
    tsr_mem_free(fit->wanted);
    tsr_mem_free(fit);
}

/* -- queries -- */

void tsr_fit_get_info(const tsr_fit *fit, tsr_fit_info *info_out)
{
    *info_out = fit->info;
}

tsr_status tsr_fit_wanted(const tsr_fit *fit, int device, tsr_plan_device *device_out,
                          size_t *missing_bytes_out)
{
    if (device < 0 || device >= fit->info.n_devices)
        return tsr_fail(TSR_ERR_INVALID, "device %d does not exist; the fit has %d", device,
                        fit->info.n_devices);
    *device_out = fit->wanted[device];
    *missing_bytes_out = fit->wanted[device].missing_bytes;
    return TSR_OK;
}

bool tsr_fit_step_at(const tsr_fit *fit, int index, tsr_fit_step *step_out)
{
    if (index < 0 || index >= fit->info.n_steps)
        return false;
    *step_out = fit->steps[index];
    return true;
}

const tsr_plan *tsr_fit_plan(const tsr_fit *fit)
{
    return fit->plan;
}

tsr_plan *tsr_fit_take_plan(tsr_fit *fit)
{
    tsr_plan *plan = fit->plan;
    fit->plan = NULL;
    return plan;
}

void tsr_fit_result(const tsr_fit *fit, tsr_model_config *config_out)
{
    tsr_config_write(&fit->config, sizeof fit->config, config_out, config_out->size);
}
