/* Loading a model: rotary tables and weights on the devices, as a split says. */
#include "model/load.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc/buffer/buffer.h"
#include "core/mem.h"
#include "model/place.h"
#include "model/session/session.h"

/* The tensor of frequency factors, one per rotated pair: Llama 3's, or LongRoPE's for contexts as long as
 * this one may become. NULL: the model has none. */
static const char *rope_factors_name(const tsr_model *model)
{
    const tsr_rope_params *rope = &model->shape.hparams.rope[TSR_ROPE_MAIN];
    if (rope->scaling != TSR_ROPE_SCALING_LONGROPE)
        return "rope_freqs.weight";
    return (double)model->config.session.n_ctx > rope->n_ctx_orig ? "rope_factors_long.weight"
                                                                  : "rope_factors_short.weight";
}

static tsr_status load_rope_factors(const tsr_model *model, float **factors_out)
{
    tsr_status status = TSR_OK;
    const tsr_gguf *gguf = model->shape.gguf; /* NULL: a stand-in of no file */
    const char *name = rope_factors_name(model);
    const tsr_rope_params *rope = &model->shape.hparams.rope[TSR_ROPE_MAIN];
    int64_t n = rope->n_rot / 2, n_all = rope->n_factors > 0 ? rope->n_factors : n;
    const tsr_gguf_tensor *source = gguf && n > 0 ? tsr_gguf_find_tensor(gguf, name) : NULL;
    if (source && (source->type != TSR_TYPE_F32 || source->ne[0] != n_all || source->n_dims != 1))
        return tsr_fail(TSR_ERR_FORMAT, "%s: tensor %s must be F32 [%lld]", tsr_gguf_path(gguf), name,
                        (long long)n_all);
    if (!source || !source->data)
        return TSR_OK;
    TSR_TRY(tsr_mem_array((size_t)n, sizeof(float), "rotary factors", factors_out));
    memcpy(*factors_out, source->data, (size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++)
        if (!((*factors_out)[i] > 0 && isfinite((*factors_out)[i])))
            return tsr_fail(TSR_ERR_FORMAT, "%s: %s[%lld] is %g; factors are positive and finite",
                            tsr_gguf_path(gguf), name, (long long)i, (double)(*factors_out)[i]);
out:
    return status;
}

static tsr_status load_rope(tsr_model *model)
{
    tsr_status status = TSR_OK;
    float *factors = NULL;
    TSR_TRY(load_rope_factors(model, &factors));
    for (int i = 0; i < TSR_ROPE_SLOTS; i++) {
        const tsr_rope_params *rope = &model->shape.hparams.rope[i];
        if (rope->n_rot > 0)
            TSR_TRY(tsr_rope_tables_create(rope, rope->as_trained ? NULL : factors, &model->rope[i]));
    }
out:
    tsr_mem_free(factors);
    return status;
}

/* These pointers lead to memory of the caller, who may free that memory after loading. */
static void forget_pointers(tsr_model_config *config)
{
    config->split.tensor_split = NULL;
    config->split.n_tensor_split = 0;
    config->prompt.tensor_split = NULL;
    config->prompt.n_tensor_split = 0;
    config->plan.rates = NULL;
    config->plan.links = NULL;
    config->load.progress = NULL;
    config->load.progress_user = NULL;
    config->offload.rules = NULL;
    config->offload.n_rules = 0;
    config->offload.device = NULL;
    config->plan.fit = NULL;
    config->margin.bytes = NULL;
}

static void describe_model(const tsr_tracked *tracked, char *text, size_t size)
{
    const tsr_gguf *gguf = TSR_TRACKED_OBJECT(tracked, tsr_model)->shape.gguf;
    snprintf(text, size, "%s", gguf ? tsr_gguf_path(gguf) : "without a file");
}

static const tsr_tracked_kind model_kind = {"model", describe_model, NULL};

unsigned tsr_model_load_flags(const tsr_model_config *config)
{
    return (config->load.copy_weights ? TSR_LOAD_COPY : 0u) |
           (config->load.verify_upload ? TSR_LOAD_VERIFY : 0u);
}

tsr_weights *tsr_model_prompt_weights(const tsr_model *model)
{
    return model->split.prompt ? (tsr_weights *)&model->prompt_weights : NULL;
}

static tsr_status declare(const tsr_model_shape *shape, tsr_weights *weights)
{
    tsr_status status = tsr_weights_init(weights, shape->gguf, shape->hparams.n_layers);
    return status == TSR_OK ? tsr_arch_declare(shape->arch, weights, &shape->hparams, &shape->granules)
                            : status;
}

tsr_status tsr_model_load(tsr_runtime *rt, const tsr_model_shape *shape, const tsr_model_config *resolved,
                          const tsr_model_split *split, const tsr_model_previous *previous,
                          tsr_model **model_out)
{
    tsr_status status = TSR_OK;
    tsr_model *model = NULL;
    TSR_TRY(TSR_NEW(&model, "a model"));
    model->rt = rt;
    model->shape = *shape;
    model->half_tokens = TSR_MODEL_HALF_TOKENS;
    model->config = *resolved;
    forget_pointers(&model->config);
    TSR_TRY(tsr_model_split_copy(split, &model->split));
    TSR_TRY(load_rope(model));
    TSR_TRY(declare(shape, &model->weights));
    if (split->prompt)
        TSR_TRY(declare(shape, &model->prompt_weights));
    tsr_weights_placing placing = {.flags = tsr_model_load_flags(resolved),
                                   .progress = resolved->load.progress,
                                   .user = resolved->load.progress_user,
                                   .previous = previous ? &previous->model->weights : NULL,
                                   .previous_prompt =
                                       previous ? tsr_model_prompt_weights(previous->model) : NULL,
                                   .deferred = previous ? previous->exchanged : 0};
    TSR_TRY(tsr_weights_place(&model->weights, tsr_model_prompt_weights(model), rt, &model->split, &placing));
    tsr_track(&rt->tracked, &model->tracked, &model_kind);
    *model_out = model;
    model = NULL;
out:
    tsr_model_unload(model);
    return status;
}

void tsr_model_unload(tsr_model *model)
{
    if (!model)
        return;
    while (model->sessions) /* a bug of the caller, which tsr_runtime_close() reports */
        tsr_session_leave_model(model->sessions);
    tsr_untrack(&model->tracked);
    tsr_weights_free(&model->weights);
    tsr_weights_free(&model->prompt_weights);
    for (int i = 0; i < TSR_ROPE_SLOTS; i++)
        tsr_rope_tables_free(&model->rope[i]);
    tsr_model_split_free(&model->split);
    for (int d = 0; model->adapter && d < model->rt->n_devices; d++)
        model->rt->devices[d]->clock.timed = false;
    tsr_mem_free(model->adapter);
    tsr_mem_free(model);
}
