/* Opening a model: file -> shape -> plan -> weights on devices. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc/buffer/buffer.h"
#include "alloc/kv/kv.h"
#include "core/mem.h"
#include "graph/graph.h"
#include "plan/expert_split.h"
#include "plan/fit/fit.h"
#include "model/session/session.h"
#include "model/session/file.h"
#include "runtime/memory.h"

/* -- shape -- */

/* The vocabulary is as large as the embedding matrix has rows. */
static tsr_status read_vocab(const tsr_gguf *gguf, tsr_hparams *hp)
{
    const tsr_gguf_tensor *embedding = tsr_gguf_find_tensor(gguf, "token_embd.weight");
    if (!embedding)
        return tsr_fail(TSR_ERR_FORMAT, "%s: tensor token_embd.weight is missing", tsr_gguf_path(gguf));
    if (embedding->ne[1] > INT32_MAX)
        return tsr_fail(TSR_ERR_FORMAT, "%s: token_embd.weight has %lld rows", tsr_gguf_path(gguf),
                        (long long)embedding->ne[1]);
    hp->n_vocab = embedding->ne[1];
    return TSR_OK;
}

tsr_status tsr_model_shape_read(const tsr_gguf *gguf, tsr_model_shape *shape_out)
{
    tsr_status status = TSR_OK;
    tsr_model_shape shape = {.gguf = gguf};
    tsr_weights weights = {0};
    TSR_TRY(tsr_arch_find(gguf, &shape.arch));
    TSR_TRY(tsr_arch_read_hparams(shape.arch, gguf, &shape.hparams));
    TSR_TRY(read_vocab(gguf, &shape.hparams));
    TSR_TRY(tsr_weights_init(&weights, gguf, shape.hparams.n_layers));
    TSR_TRY(tsr_arch_declare(shape.arch, &weights, &shape.hparams));
    TSR_TRY(
        tsr_model_granules_find(&shape.hparams, tsr_weights_block(&weights, TSR_WEIGHT_Q_COLUMNS),
                                tsr_weights_block(&weights, shape.hparams.n_expert ? TSR_WEIGHT_EXPERT_COLUMNS
                                                                                   : TSR_WEIGHT_FFN_COLUMNS),
                                &shape.granules));
    *shape_out = shape;
out:
    tsr_weights_free(&weights);
    return status;
}

/* -- config -- */

static tsr_status check_range(const char *name, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high)
        return TSR_OK;
    return tsr_fail(TSR_ERR_INVALID, "%s is %lld; it must be in [%lld, %lld]", name, (long long)value,
                    (long long)low, (long long)high);
}

/* Which of them fit the heads of a model is the KV region's business. */
static tsr_status check_kv_type(const char *name, tsr_type type)
{
    static const tsr_type types[] = {TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (type == types[i])
            return TSR_OK;
    return tsr_fail(TSR_ERR_INVALID, "%s is %s; use F32, F16, BF16, Q8_0 or Q4_0", name, tsr_type_name(type));
}

tsr_status tsr_model_config_resolve(const tsr_model_shape *shape, const tsr_model_config *config,
                                    tsr_model_config *resolved_out)
{
    tsr_status status = TSR_OK;
    tsr_model_config c = TSR_MODEL_CONFIG_INIT;
    if (config && config->size != sizeof *config)
        return tsr_fail(TSR_ERR_INVALID, "tsr_model_config.size is %zu, not %zu; use TSR_MODEL_CONFIG_INIT",
                        config->size, sizeof *config);
    if (config)
        c = *config;
    if (c.n_ctx == 0)
        c.n_ctx = shape->hparams.n_ctx_train;
    if (c.n_outputs_max == 0)
        c.n_outputs_max = c.n_seq_max;
    TSR_TRY(check_range("n_ctx", c.n_ctx, 1, INT32_MAX / 2));
    TSR_TRY(check_range("n_seq_max", c.n_seq_max, 1, 1 << 16));
    TSR_TRY(check_range("n_sessions", c.n_sessions, 1, 1 << 10));
    TSR_TRY(check_range("n_batch", c.n_batch, 1, 1 << 16));
    TSR_TRY(check_range("n_outputs_max", c.n_outputs_max, 1, 1 << 16));
    TSR_TRY(check_range("split_mode", c.split_mode, TSR_SPLIT_MODE_NONE, TSR_SPLIT_MODE_AUTO));
    TSR_TRY(check_range("expert_split", c.expert_split, TSR_EXPERT_SPLIT_COLUMNS, TSR_EXPERT_SPLIT_AUTO));
    TSR_TRY(check_kv_type("type_k", c.type_k));
    TSR_TRY(check_kv_type("type_v", c.type_v));
    TSR_TRY(check_range("plan_tokens", c.plan_tokens, 1, 1 << 16));
    if (!tsr_activation_bits_known(c.activation_bits))
        TSR_TRY(tsr_fail(TSR_ERR_INVALID, "activation_bits is %d; it must be 16 or 8", c.activation_bits));
    TSR_TRY(check_range("reduction", c.reduction, TSR_REDUCTION_EXACT, TSR_REDUCTION_BF16));
    c.n_batch = (int)TSR_MIN((int64_t)c.n_batch, c.n_ctx);
    c.n_outputs_max = TSR_MIN(c.n_outputs_max, c.n_batch);
    *resolved_out = c;
out:
    return status;
}

/* -- loading -- */

/* The tensor of frequency factors, one per rotated pair: Llama 3's, or LongRoPE's for contexts as long as
 * this one may become. NULL: the model has none. */
static const char *rope_factors_name(const tsr_model *model)
{
    const tsr_rope_params *rope = &model->shape.hparams.rope[TSR_ROPE_MAIN];
    if (rope->scaling != TSR_ROPE_SCALING_LONGROPE)
        return "rope_freqs.weight";
    return (double)model->config.n_ctx > rope->n_ctx_orig ? "rope_factors_long.weight"
                                                          : "rope_factors_short.weight";
}

static tsr_status load_rope_factors(const tsr_model *model, float **factors_out)
{
    tsr_status status = TSR_OK;
    const tsr_gguf *gguf = model->shape.gguf; /* NULL: a stand-in of no file */
    const char *name = rope_factors_name(model);
    int64_t n = model->shape.hparams.rope[TSR_ROPE_MAIN].n_rot / 2;
    const tsr_gguf_tensor *source = gguf && n > 0 ? tsr_gguf_find_tensor(gguf, name) : NULL;
    if (source && (source->type != TSR_TYPE_F32 || source->ne[0] != n || source->n_dims != 1))
        return tsr_fail(TSR_ERR_FORMAT, "%s: tensor %s must be F32 [%lld]", tsr_gguf_path(gguf), name,
                        (long long)n);
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

/* The factors are of the stretched rotation; that of layers with a window is as trained. */
static tsr_status load_rope(tsr_model *model)
{
    tsr_status status = TSR_OK;
    float *factors = NULL;
    TSR_TRY(load_rope_factors(model, &factors));
    for (int i = 0; i < TSR_ROPE_SLOTS; i++)
        if (model->shape.hparams.rope[i].n_rot > 0)
            TSR_TRY(tsr_rope_tables_create(&model->shape.hparams.rope[i],
                                           i == TSR_ROPE_WINDOWED ? NULL : factors, &model->rope[i]));
out:
    tsr_mem_free(factors);
    return status;
}

/* What they lead to is the caller's, and need not be there later. */
static void forget_pointers(tsr_model_config *config)
{
    config->tensor_split = NULL;
    config->n_tensor_split = 0;
    config->rates = NULL;
    config->links = NULL;
    config->progress = NULL;
    config->progress_user = NULL;
    config->overrides = NULL;
    config->n_overrides = 0;
    config->offload_device = NULL;
    config->fit = NULL;
}

static void describe_model(const tsr_live *live, char *text, size_t size)
{
    const tsr_gguf *gguf = TSR_LIVE_OBJECT(live, tsr_model)->shape.gguf;
    snprintf(text, size, "%s", gguf ? tsr_gguf_path(gguf) : "without a file");
}

static const tsr_live_kind model_kind = {"model", describe_model, NULL};

unsigned tsr_model_weights_flags(const tsr_model_config *config)
{
    return (config->copy_weights ? TSR_WEIGHTS_COPY : 0u) | (config->verify_upload ? TSR_WEIGHTS_VERIFY : 0u);
}

tsr_status tsr_model_load(tsr_runtime *rt, const tsr_model_shape *shape, const tsr_model_config *resolved,
                          const tsr_model_split *split, const tsr_model_former *former, tsr_model **model_out)
{
    tsr_status status = TSR_OK;
    tsr_model *model = NULL;
    TSR_TRY(tsr_mem_array(1, sizeof *model, "a model", &model));
    model->rt = rt;
    model->shape = *shape;
    model->config = *resolved;
    forget_pointers(&model->config);
    TSR_TRY(tsr_model_split_copy(split, &model->split));
    TSR_TRY(load_rope(model));
    TSR_TRY(tsr_weights_init(&model->weights, shape->gguf, shape->hparams.n_layers));
    TSR_TRY(tsr_arch_declare(shape->arch, &model->weights, &shape->hparams));
    model->weights.ffn_columns = shape->granules.ffn_columns;
    tsr_weights_placing placing = {.flags = tsr_model_weights_flags(resolved),
                                   .progress = resolved->progress,
                                   .user = resolved->progress_user,
                                   .former = former ? &former->model->weights : NULL,
                                   .later = former ? former->exchanged : 0};
    TSR_TRY(tsr_weights_place(&model->weights, rt, &model->split, &placing));
    tsr_live_add(rt, &model->live, &model_kind);
    *model_out = model;
    model = NULL;
out:
    tsr_model_close(model);
    return status;
}

/* Plan as `config` says, and fit where it says so: *plan_out then belongs to *fit_out. */
static tsr_status plan_model(const tsr_runtime *rt, const tsr_model_shape *shape,
                             const tsr_model_config *config, tsr_model_config *resolved_out,
                             tsr_fit **fit_out, tsr_plan **plan_out)
{
    tsr_status status = TSR_OK;
    tsr_model_config fitted;
    TSR_TRY(tsr_model_config_resolve(shape, config, resolved_out));
    if (!resolved_out->fit)
        return tsr_plan_for_runtime(rt, shape, resolved_out, plan_out);
    TSR_TRY(tsr_fit_for_runtime(rt, shape, config, fit_out));
    *plan_out = (*fit_out)->plan;
    tsr_fit_result(*fit_out, &fitted);
    TSR_TRY(tsr_model_config_resolve(shape, &fitted, resolved_out));
out:
    return status;
}

/* Whether what was planned for still has its room: another process may have come meanwhile. Views of the file
 * are the system's cache, which makes room for itself. */
static tsr_status check_room(tsr_runtime *rt, const tsr_model_config *resolved, const tsr_plan *plan)
{
    tsr_status status = TSR_OK;
    size_t wanted[TSR_MAX_DEVICES];
    for (int d = 0; d < rt->n_devices; d++) {
        tsr_plan_device device;
        bool views = !resolved->copy_weights && !rt->devices[d]->prefers_copies;
        TSR_TRY(tsr_plan_describe_device(plan, d, &device));
        wanted[d] = device.total_bytes - (views ? device.bytes[TSR_MEMORY_WEIGHTS] : 0);
    }
    status = tsr_runtime_check_free(rt, wanted);
out:
    return status;
}

/* The fit's own plan goes with it. */
static void drop_plan(tsr_fit *fit, tsr_plan *plan)
{
    if (!fit || fit->plan != plan)
        tsr_plan_destroy(plan);
}

void tsr_model_set_plan(tsr_model *model, tsr_plan *plan)
{
    drop_plan(model->fit, model->plan);
    model->plan = plan;
}

/* Copies of what a plan was made of; the model was loaded without. */
static tsr_status keep_config(tsr_model *model, const tsr_model_config *resolved)
{
    tsr_model_config config = *resolved;
    tsr_status status = tsr_model_config_keep(&config, model->rt->n_devices, &model->kept);
    if (status != TSR_OK)
        return status;
    model->config.rates = config.rates;
    model->config.links = config.links;
    model->config.overrides = config.overrides;
    model->config.n_overrides = config.n_overrides;
    model->config.offload_device = config.offload_device;
    return TSR_OK;
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
    tsr_model_config resolved;

    TSR_TRY(tsr_gguf_open(path, NULL, &gguf));
    TSR_TRY(tsr_model_shape_read(gguf, &shape));
    TSR_TRY(tsr_model_shape_divide_for(&shape, rt, config));
    TSR_TRY(plan_model(rt, &shape, config, &resolved, &fit, &plan));
    TSR_TRY(check_room(rt, &resolved, plan));
    TSR_TRY(tsr_model_load(rt, &shape, &resolved, tsr_plan_split(plan), NULL, &model));
    TSR_TRY(keep_config(model, &resolved));
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
    tsr_gguf_close(gguf);
    return status;
}

/* What must be the same in every process: the model, and how it is divided and used. */
static uint64_t mark_of(const tsr_model *model)
{
    const tsr_model_config *c = &model->config;
    const int64_t numbers[] = {(int64_t)tsr_model_fingerprint(model),
                               c->n_ctx,
                               c->n_seq_max,
                               c->n_batch,
                               c->n_outputs_max,
                               (int64_t)c->type_k,
                               (int64_t)c->type_v,
                               (int64_t)c->reduction,
                               c->activation_bits,
                               c->copy_weights,
                               c->swa_full};
    uint64_t sum = tsr_checksum(0, numbers, sizeof numbers);
    for (int d = 0; d < model->rt->n_devices; d++)
        sum = tsr_checksum(sum, model->rt->devices[d]->used, sizeof model->rt->devices[d]->used);
    return sum;
}

tsr_status tsr_model_open(tsr_runtime *rt, const char *path, const tsr_model_config *config,
                          tsr_model **model_out)
{
    tsr_model *model = NULL;
    if (!rt || !path || !model_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_model_open: runtime, path and model_out must not be NULL");
    tsr_status status = open_file(rt, path, config, &model);
    if (rt->processes)
        status = tsr_processes_agree_on(rt->processes, status, "tsr_model_open", model ? mark_of(model) : 0);
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
    while (model->sessions) /* somebody's mistake, told when the runtime closes */
        tsr_session_leave_model(model->sessions);
    tsr_live_remove(&model->live);
    tsr_weights_free(&model->weights);
    for (int i = 0; i < TSR_ROPE_SLOTS; i++)
        tsr_rope_tables_free(&model->rope[i]);
    tsr_model_split_free(&model->split);
    drop_plan(model->fit, model->plan);
    tsr_fit_destroy(model->fit);
    tsr_kept_config_drop(&model->kept);
    tsr_gguf_close(model->own_gguf);
    tsr_mem_free(model);
}

/* -- queries -- */

void tsr_model_describe(const tsr_model *model, tsr_model_info *info_out)
{
    const tsr_hparams *hp = &model->shape.hparams;
    tsr_model_info info = {.n_layers = hp->n_layers,
                           .n_embd = hp->n_embd,
                           .n_head = hp->n_head,
                           .n_head_kv = hp->n_head_kv,
                           .head_dim = hp->head_dim,
                           .n_ff = hp->n_ff,
                           .n_vocab = hp->n_vocab,
                           .n_ctx_train = hp->n_ctx_train,
                           .weight_bytes = tsr_weights_bytes(&model->weights)};
    snprintf(info.architecture, sizeof info.architecture, "%s", hp->architecture);
    snprintf(info.name, sizeof info.name, "%s", hp->name);
    for (int i = 0; i < model->weights.n; i++)
        if (!model->weights.list[i]->tied)
            info.n_params += model->weights.list[i]->tensor.ne[0] * model->weights.list[i]->tensor.ne[1];
    *info_out = info;
}

const tsr_plan *tsr_model_plan(const tsr_model *model)
{
    return model->plan;
}

const tsr_fit *tsr_model_fit(const tsr_model *model)
{
    return model->fit;
}

const tsr_gguf *tsr_model_gguf(const tsr_model *model)
{
    return model->shape.gguf;
}

tsr_status tsr_model_tokenizer(const tsr_model *model, tsr_tokenizer **tokenizer_out)
{
    return tsr_tokenizer_create(model->shape.gguf, tokenizer_out);
}
