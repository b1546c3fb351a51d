/* See fitted.h. */
#include "support/fitted.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/device_list.h>
#include <tsr/fit.h>
#include <tsr/runtime.h>
#include <tsr/session.h>

#include "support/directory.h"
#include "support/plan_check.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { MAX_DEVICES = 8 };

void fitted_models_write(fitted_models *models)
{
    static const tsr_type types[] = {TSR_TYPE_F16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    uint64_t seed = 71;
    for (int i = 0; i < FITTED_MODELS; i++) {
        struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
        config.n_layers = 1 + (int)random_below(&seed, 5);
        config.n_kv_heads = 1 << random_below(&seed, 4);
        config.n_heads = config.n_kv_heads * (1 + (int)random_below(&seed, 2));
        config.head_dim = random_below(&seed, 2) ? 32 : 64;
        config.n_ff = 256 * (1 + (int)random_below(&seed, 4));
        config.n_ctx = 1000 + (int)random_below(&seed, 9000);
        config.weight_type = types[i % 3];
        config.tied_output = random_below(&seed, 2);
        if (i >= FITTED_DENSE_MODELS) {
            config.n_experts = 4 + i;
            config.n_ff /= 2;
        }
        close(directory_new(models->paths[i]));
        synth_model_write(&config, models->paths[i]);
    }
}

void fitted_models_remove(const fitted_models *models)
{
    for (int i = 0; i < FITTED_MODELS; i++)
        unlink(models->paths[i]);
}

/* One random question. */
typedef struct question {
    const char *path;
    char spec[512], offload_device[16];
    float split[MAX_DEVICES];
    size_t margins[MAX_DEVICES];
    tsr_fit_config fit;
    tsr_model_config config; /* .fit is set by the user of this struct, which may be moved */
} question;

/* All that the model could take, on one device of this kind. */
static size_t largest(const tsr_gguf *gguf, const tsr_topology *topo, const char *device,
                      tsr_model_config config)
{
    tsr_device_list *list;
    tsr_plan *plan;
    tsr_plan_device only;
    config.split.mode = TSR_SPLIT_MODE_NONE;
    config.split.main_device = 0;
    config.offload.device = NULL;
    runner_ok(tsr_device_list_create(topo, device, NULL, &list), device);
    runner_ok(tsr_plan_create(gguf, list, &config, &plan), "all on one device");
    runner_ok(tsr_plan_get_device(plan, 0, &only), device);
    tsr_plan_destroy(plan);
    tsr_device_list_destroy(list);
    return only.total_bytes;
}

static void ask(uint64_t *seed, const tsr_gguf *gguf, const tsr_topology *topo, const char *device,
                int n_devices, question *q)
{
    static const tsr_type types[] = {TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    size_t used = 0;
    q->fit = tsr_fit_config_default();
    q->config = tsr_model_config_default();
    q->config.split.mode = (tsr_split_mode)random_below(seed, TSR_SPLIT_MODE_AUTO + 1);
    q->config.split.main_device = (int)random_below(seed, (uint64_t)n_devices);
    q->config.session.n_seq_max = 1 + (int)random_below(seed, 3);
    q->config.session.n_batch = 1 + (int)random_below(seed, 128);
    q->config.session.type_k = types[1 + random_below(seed, 2)];
    q->config.session.type_v = types[1 + random_below(seed, 2)];
    q->config.session.n_ctx = random_below(seed, 5) ? 0 : 2000;
    q->config.split.experts = random_below(seed, 2) ? TSR_EXPERT_SPLIT_EXPERTS : TSR_EXPERT_SPLIT_COLUMNS;
    q->fit.n_ctx_min = 1 + (int64_t)random_below(seed, 900);
    q->fit.type_k = types[random_below(seed, 4)];
    q->fit.type_v = types[random_below(seed, 4)];
    q->fit.margins = q->margins;
    q->fit.n_margins = random_below(seed, 2) ? 1 : n_devices;
    if (random_below(seed, 2)) {
        q->config.split.tensor_split = q->split;
        q->config.split.n_tensor_split = n_devices;
    }
    int n_split = n_devices; /* devices that share the model's memory */
    if (n_devices > 1 && random_below(seed, 2)) {
        n_split--;
        snprintf(q->offload_device, sizeof q->offload_device, "%d", n_split);
        q->config.offload.device = q->offload_device;
        q->config.split.n_tensor_split = q->config.split.n_tensor_split ? n_split : 0;
        q->config.split.main_device %= n_split;
    }
    /* GPUs have scratch memory each, which is not divided. */
    size_t scratch = strncmp(device, "cuda", 4) == 0 ? (size_t)24 << 20 : 0;
    size_t whole = largest(gguf, topo, device, q->config) - scratch;
    size_t shared = q->config.split.mode == TSR_SPLIT_MODE_NONE ? whole : whole / (size_t)n_split + whole / 4;
    for (int d = 0; d < n_devices; d++) {
        size_t cap = scratch + shared / 3 + random_below(seed, shared);
        if (d >= n_split)
            cap = whole / 4 + random_below(seed, 2 * whole);
        q->split[d] = (float)(1 + random_below(seed, 4));
        q->margins[d] = random_below(seed, cap / 8);
        used += (size_t)snprintf(q->spec + used, sizeof q->spec - used, "%s%s,mem=%zu", d ? "," : "",
                                 d < n_split ? device : "host:1,threads=1", cap);
    }
}

/* Whether this very config is planned under the same margins. Types and context cannot be cut then, layers
 * that are set neither; experts can, unless there are some to offload already. */
static bool fits_with(const question *q, const tsr_gguf *gguf, const tsr_device_list *list,
                      tsr_model_config config, int64_t n_ctx)
{
    tsr_fit_config limits = q->fit;
    tsr_fit *fit = NULL;
    tsr_fit_info info;
    limits.type_k = limits.type_v = TSR_TYPE_F32;
    config.plan.fit = &limits;
    config.session.n_ctx = n_ctx;
    tsr_status status = tsr_fit_create(gguf, list, &config, &fit);
    if (status == TSR_ERR_MEMORY)
        return false;
    runner_ok(status, q->spec);
    tsr_fit_get_info(fit, &info);
    tsr_fit_destroy(fit);
    return info.chosen.n_cpu_moe == config.offload.n_cpu_moe;
}

static void check_margins(const question *q, const tsr_plan *plan, int n_devices)
{
    for (int d = 0; d < n_devices; d++) {
        tsr_plan_device device;
        runner_ok(tsr_plan_get_device(plan, d, &device), "device");
        size_t margin = q->margins[q->fit.n_margins == 1 ? 0 : d];
        assert_int_equal(device.margin_bytes, margin);
        if (device.total_bytes && device.total_bytes + margin > device.memory_cap)
            fail_msg("%s: device %d holds %zu bytes of %zu, and %zu were to stay free", q->spec, d,
                     device.total_bytes, device.memory_cap, margin);
    }
}

/* What the user said is as it was; what was cut is within its limits, and no more than needed. */
static void check_cuts(const question *q, const tsr_fit *fit, const tsr_gguf *gguf,
                       const tsr_device_list *list)
{
    tsr_fit_info info;
    tsr_model_config result = {.size = sizeof result};
    tsr_fit_get_info(fit, &info);
    tsr_fit_result(fit, &result);
    assert_int_equal(result.session.n_ctx, info.chosen.n_ctx);
    assert_ptr_equal(result.split.tensor_split, q->config.split.tensor_split);
    assert_int_equal(result.split.mode, q->config.split.mode);
    assert_int_equal(result.session.n_batch, q->config.session.n_batch);
    assert_int_equal(result.split.experts, q->config.split.experts);
    if (q->config.session.n_ctx)
        assert_int_equal(info.chosen.n_ctx, q->config.session.n_ctx);
    assert_true(info.chosen.type_k == q->config.session.type_k || info.chosen.type_k == q->fit.type_k);
    assert_true(info.chosen.type_v == q->config.session.type_v || info.chosen.type_v == q->fit.type_v);
    if (info.chosen.n_ctx == info.wanted.n_ctx)
        return;
    assert_true(info.chosen.n_ctx >= q->fit.n_ctx_min && info.chosen.n_ctx < info.wanted.n_ctx);
    assert_true(info.chosen.n_ctx == q->fit.n_ctx_min || info.chosen.n_ctx % TSR_FIT_CTX_STEP == 0);
    int64_t next = (info.chosen.n_ctx / TSR_FIT_CTX_STEP + 1) * TSR_FIT_CTX_STEP;
    next = next < info.wanted.n_ctx ? next : info.wanted.n_ctx;
    if (fits_with(q, gguf, list, result, next))
        fail_msg("%s: %lld tokens were chosen, but %lld fit", q->spec, (long long)info.chosen.n_ctx,
                 (long long)next);
}

/* A later step was taken only where the ones before, used up, did not fit. */
static void check_order(const question *q, const tsr_fit *fit, const tsr_gguf *gguf,
                        const tsr_device_list *list)
{
    tsr_fit_info info;
    tsr_model_config config = q->config;
    tsr_fit_get_info(fit, &info);
    int64_t least = q->config.session.n_ctx                ? q->config.session.n_ctx
                    : q->fit.n_ctx_min < info.wanted.n_ctx ? q->fit.n_ctx_min
                                                           : info.wanted.n_ctx;
    config.offload.n_gpu_layers = info.wanted.n_gpu_layers;
    if (info.chosen.type_k != q->config.session.type_k || info.chosen.type_v != q->config.session.type_v)
        assert_false(fits_with(q, gguf, list, config, info.wanted.n_ctx));
    config.session.type_k = info.chosen.type_k;
    config.session.type_v = info.chosen.type_v;
    if (info.chosen.n_cpu_moe != info.wanted.n_cpu_moe) {
        assert_false(fits_with(q, gguf, list, config, least));
        config.offload.n_cpu_moe = info.chosen.n_cpu_moe - 1;
        assert_false(fits_with(q, gguf, list, config, least));
        config.offload.n_cpu_moe = info.chosen.n_cpu_moe;
    }
    if (info.chosen.n_gpu_layers == info.wanted.n_gpu_layers)
        return;
    assert_false(fits_with(q, gguf, list, config, least));
    config.offload.n_gpu_layers = info.chosen.n_gpu_layers + 1;
    assert_false(fits_with(q, gguf, list, config, least));
}

static void load(const question *q, const tsr_fit *fit, const tsr_topology *topo)
{
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = q->config;
    tsr_fit_info info, again;
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *session;
    config.plan.fit = &q->fit;
    runtime_config.devices = q->spec;
    runtime_config.topology = topo;
    runtime_config.collectives =
        strstr(q->spec, "cuda") ? "staged" : NULL; /* no memory besides the accounting's */
    runner_ok(tsr_runtime_open(&runtime_config, &rt), q->spec);
    runner_ok(tsr_model_open(rt, q->path, &config, &model), q->path);
    assert_non_null(tsr_model_fit(model));
    assert_ptr_equal(tsr_fit_plan(tsr_model_fit(model)), tsr_model_plan(model));
    tsr_fit_get_info(fit, &info);
    tsr_fit_get_info(tsr_model_fit(model), &again);
    assert_int_equal(again.chosen.n_ctx, info.chosen.n_ctx);
    plan_check_equal(tsr_fit_plan(fit), tsr_model_plan(model));
    runner_ok(tsr_session_create(model, &session), q->path);
    for (int d = 0; d < info.n_devices; d++) {
        tsr_device_info device;
        tsr_plan_device planned;
        runner_ok(tsr_runtime_device(rt, d, &device), "device");
        runner_ok(tsr_plan_get_device(tsr_fit_plan(fit), d, &planned), "device");
        assert_memory_equal(device.used, planned.bytes, sizeof planned.bytes);
    }
    tsr_session_destroy(session);
    tsr_model_close(model);
    tsr_runtime_close(rt);
}

void fitted_check(const fitted_models *models, uint64_t *seed, const tsr_topology *topo, const char *device,
                  int n_devices, fitted_look *look)
{
    question q = {.path = models->paths[random_below(seed, FITTED_MODELS)]};
    tsr_gguf *gguf;
    tsr_device_list *list;
    tsr_fit *fit;
    tsr_fit_info info;
    assert_true(n_devices <= MAX_DEVICES);
    runner_ok(tsr_gguf_open(q.path, NULL, &gguf), q.path);
    ask(seed, gguf, topo, device, n_devices, &q);
    runner_ok(tsr_device_list_create(topo, q.spec, NULL, &list), q.spec);
    tsr_model_config config = q.config;
    config.plan.fit = &q.fit;
    tsr_status status = tsr_fit_create(gguf, list, &config, &fit);
    if (status == TSR_ERR_MEMORY) {
        assert_non_null(strstr(tsr_last_error(), "does not fit"));
        look->n_short++;
    } else {
        runner_ok(status, q.spec);
        tsr_fit_get_info(fit, &info);
        look->n_cut += info.n_steps > 0;
        check_margins(&q, tsr_fit_plan(fit), n_devices);
        check_cuts(&q, fit, gguf, list);
        check_order(&q, fit, gguf, list);
        look->n_offloaded += info.chosen.n_gpu_layers < info.wanted.n_gpu_layers;
        tsr_model_config result = {.size = sizeof result};
        tsr_plan *plan;
        tsr_fit_result(fit, &result);
        runner_ok(tsr_plan_create(gguf, list, &result, &plan), "with the result");
        plan_check_equal(plan, tsr_fit_plan(fit));
        tsr_plan_destroy(plan);
        load(&q, fit, topo);
        tsr_fit_destroy(fit);
    }
    tsr_device_list_destroy(list);
    tsr_gguf_close(gguf);
}

tsr_status fitted_over(const tsr_topology *topo, const tsr_gguf *gguf, const char *devices,
                       const tsr_model_config *config, tsr_fit **fit_out)
{
    tsr_device_list *list;
    runner_ok(tsr_device_list_create(topo, devices, NULL, &list), devices);
    tsr_status status = tsr_fit_create(gguf, list, config, fit_out);
    tsr_device_list_destroy(list);
    return status;
}

tsr_fit_info fitted_info(const tsr_fit *fit)
{
    tsr_fit_info info;
    tsr_fit_get_info(fit, &info);
    return info;
}

tsr_fit_step fitted_step(const tsr_fit *fit, int index)
{
    tsr_fit_step step;
    assert_true(tsr_fit_step_at(fit, index, &step));
    return step;
}
