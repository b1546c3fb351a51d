/* Opening a model: file -> shape -> plan -> weights on devices. */
#include "engine/open.h"

#include <string.h>

#include "core/checksum.h"
#include "core/mem.h"
#include "engine/config_copy.h"
#include "model/config.h"
#include "model/load.h"
#include "plan/create.h"
#include "plan/fit/fit.h"
#include "plan/planner_init.h"
#include "runtime/memory.h"

/* Plan `config`, and fit it if config->plan.fit is set: *plan_out then belongs to *fit_out. The config that
 * was planned is in planner->config afterwards. */
static tsr_status plan_model(const tsr_runtime *rt, const tsr_model_config *config, tsr_planner *planner,
                             tsr_fit **fit_out, tsr_plan **plan_out)
{
    tsr_status status = TSR_OK;
    tsr_model_config fitted = {.size = sizeof fitted};
    if (!planner->config.plan.fit)
        return tsr_planner_plan(planner, plan_out);
    TSR_TRY(tsr_planner_limit_to_free(planner, rt));
    TSR_TRY(tsr_planner_fit(planner, config, fit_out));
    *plan_out = (*fit_out)->plan;
    tsr_fit_result(*fit_out, &fitted);
    TSR_TRY(tsr_planner_set_config(planner, &fitted));
out:
    return status;
}

/* Check that the plan still fits: other processes may have taken memory since. Views of the file need no
 * check, since they are in the system's page cache, which shrinks on demand. */
static tsr_status check_room(tsr_runtime *rt, const tsr_model_config *resolved, const tsr_plan *plan)
{
    tsr_status status = TSR_OK;
    size_t wanted[TSR_MAX_DEVICES];
    for (int d = 0; d < rt->n_devices; d++) {
        tsr_plan_device device;
        bool views = !resolved->load.copy_weights && !rt->devices[d]->prefers_copies;
        TSR_TRY(tsr_plan_get_device(plan, d, &device));
        wanted[d] = device.total_bytes - (views ? device.bytes[TSR_MEMORY_WEIGHTS] : 0);
    }
    status = tsr_runtime_check_free(rt, wanted);
out:
    return status;
}

/* The fit owns its plan. */
static void drop_plan(tsr_fit *fit, tsr_plan *plan)
{
    if (!fit || fit->plan != plan)
        tsr_plan_destroy(plan);
}

/* Copy the config's objects into the model, which was loaded without copies. */
static tsr_status keep_config(tsr_model *model, const tsr_model_config *resolved)
{
    tsr_model_config config = *resolved;
    tsr_status status = tsr_model_config_copy(&config, model->rt->n_devices, &model->config_copy);
    if (status != TSR_OK)
        return status;
    model->config.plan.rates = config.plan.rates;
    model->config.plan.links = config.plan.links;
    model->config.margin.bytes = config.margin.bytes;
    model->config.prompt.tensor_split = config.prompt.tensor_split;
    model->config.prompt.n_tensor_split = config.prompt.n_tensor_split;
    model->config.offload.rules = config.offload.rules;
    model->config.offload.n_rules = config.offload.n_rules;
    model->config.offload.device = config.offload.device;
    return TSR_OK;
}

/* Threads that were abandoned may still read the weights. */
static void close_file(const tsr_runtime *rt, tsr_gguf *gguf)
{
    if (!tsr_watch_has_abandoned(rt->watch))
        tsr_gguf_close(gguf);
}

/* A GPU reports progress once per step. Slow kernels and long contexts take several times the predicted time
 * of the longest step. */
static void allow_longest_step(const tsr_runtime *rt, const tsr_plan *plan)
{
    const double times_predicted = 20, most_ns = 1e18;
    tsr_plan_info info;
    tsr_plan_times times;
    tsr_plan_get_info(plan, &info);
    tsr_plan_predict(plan, &times);
    if (!times.known)
        return;
    const double ns = times.prompt.total_ns * (double)info.n_batch / (double)times.prompt.n_tokens;
    for (int d = 0; d < rt->n_devices; d++)
        if (rt->devices[d]->ops->kind == TSR_DEVICE_CUDA)
            tsr_watch_allow(rt->watch, (uint64_t)TSR_MIN(times_predicted * ns, most_ns));
}

void tsr_model_set_plan(tsr_model *model, tsr_plan *plan)
{
    drop_plan(model->fit, model->plan);
    model->plan = plan;
    allow_longest_step(model->rt, plan);
}

static tsr_status open_file(tsr_runtime *rt, const char *path, const tsr_model_config *config,
                            tsr_model **model_out)
{
    tsr_status status = TSR_OK;
    tsr_gguf *gguf = NULL;
    tsr_fit *fit = NULL;
    tsr_plan *plan = NULL;
    tsr_model *model = NULL;
    tsr_model_shape shape;
    tsr_model_config own;
    tsr_planner planner = {0};

    TSR_TRY(tsr_model_config_read(config, &own));
    TSR_TRY(tsr_gguf_open(path, NULL, &gguf));
    TSR_TRY(tsr_model_shape_read(gguf, own.prediction.load, &shape));
    TSR_TRY(tsr_planner_init_for_runtime(rt, &shape, &own, &planner));
    TSR_TRY(plan_model(rt, &own, &planner, &fit, &plan));
    TSR_TRY(check_room(rt, &planner.config, plan));
    TSR_TRY(tsr_model_load(rt, &planner.shape, &planner.config, tsr_plan_split(plan), NULL, &model));
    TSR_TRY(keep_config(model, &planner.config));
    allow_longest_step(rt, plan);
    model->own_gguf = gguf;
    model->plan = plan;
    model->fit = fit;
    model->next = rt->models;
    rt->models = model;
    gguf = NULL;
    plan = NULL;
    fit = NULL;
    *model_out = model;
    model = NULL;
out:
    tsr_model_close(model);
    drop_plan(fit, plan);
    tsr_fit_destroy(fit);
    tsr_planner_free(&planner);
    close_file(rt, gguf);
    return status;
}

/* A hash of the facts that must be the same in every process: the model, its split and its config. */
static uint64_t fingerprint_of(const tsr_model *model)
{
    const tsr_model_config *c = &model->config;
    const int64_t numbers[] = {(int64_t)tsr_model_fingerprint(model),
                               c->session.n_ctx,
                               c->session.n_seq_max,
                               c->session.n_batch,
                               c->session.n_outputs_max,
                               (int64_t)c->session.type_k,
                               (int64_t)c->session.type_v,
                               (int64_t)c->compute.reduction,
                               c->compute.activation_bits,
                               c->load.copy_weights,
                               c->session.swa_full,
                               c->output.embeddings};
    uint64_t sum = tsr_hash_words(0, numbers, sizeof numbers);
    if (model->split.prompt) {
        const tsr_split_group *group = &model->split.prompt->groups[0];
        const size_t bytes = ((size_t)model->rt->n_devices + 1) * sizeof group->ffn.begin[0];
        sum = tsr_hash_words(sum, &model->split.prompt_tokens, sizeof model->split.prompt_tokens);
        sum = tsr_hash_words(sum, group->ffn.begin, bytes);
        sum = tsr_hash_words(sum, group->vocab.begin, bytes);
    }
    for (int d = 0; d < model->rt->n_devices; d++)
        sum = tsr_hash_words(sum, model->rt->devices[d]->used, sizeof model->rt->devices[d]->used);
    return sum;
}

tsr_status tsr_model_open(tsr_runtime *rt, const char *path, const tsr_model_config *config,
                          tsr_model **model_out)
{
    tsr_model *model = NULL;
    if (!rt)
        return tsr_fail(TSR_ERR_INVALID, "tsr_model_open: runtime must not be NULL");
    tsr_status status =
        path && model_out ? open_file(rt, path, config, &model)
                          : tsr_fail(TSR_ERR_INVALID, "tsr_model_open: path and model_out must not be NULL");
    if (rt->processes)
        status = tsr_processes_agree_on(rt->processes, status, "tsr_model_open",
                                        model ? fingerprint_of(model) : 0);
    if (status == TSR_OK)
        *model_out = model;
    else
        tsr_model_close(model);
    return status;
}

void tsr_model_close(tsr_model *model)
{
    if (!model)
        return;
    for (tsr_model **at = &model->rt->models; *at; at = &(*at)->next)
        if (*at == model) {
            *at = model->next;
            break;
        }
    tsr_runtime *rt = model->rt;
    tsr_gguf *gguf = model->own_gguf; /* weights may be views of the file */
    drop_plan(model->fit, model->plan);
    tsr_fit_destroy(model->fit);
    tsr_config_copy_free(&model->config_copy);
    tsr_model_unload(model);
    close_file(rt, gguf);
}

const tsr_plan *tsr_model_plan(const tsr_model *model)
{
    return model->plan;
}

const tsr_fit *tsr_model_fit(const tsr_model *model)
{
    return model->fit;
}
