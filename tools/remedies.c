/* What would make a model fit; see remedies.h. A trial is a plan with one thing changed, so that a remedy is
 * never a guess. Planning takes some hundredths of a second. */
#include "remedies.h"

#include <stdarg.h>
#include <string.h>

#include <tsr/bytes.h>

#include "fit_options.h"

/* What all trials begin with. */
typedef struct trial {
    const tool_model_options *model;
    const tool_machine_options *machine;
    const tool_plan_inputs *in;
    tsr_plan_info info; /* of the plan without room */
    tool_remedies *found;
} trial;

static void add(trial *t, const char *options, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void add(trial *t, const char *options, const char *format, ...)
{
    tool_remedy *remedy = &t->found->list[t->found->n++];
    va_list args;
    va_start(args, format);
    snprintf(remedy->options, sizeof remedy->options, "%s", options);
    vsnprintf(remedy->text, sizeof remedy->text, format, args);
    va_end(args);
}

static bool fits(const tool_plan_inputs *in, const tsr_model_config *config, tsr_plan_info *info_out)
{
    tsr_plan *plan = NULL;
    if (tsr_plan_create(in->gguf, in->devices, config, &plan) != TSR_OK)
        return false;
    tsr_plan_get_info(plan, info_out);
    tsr_plan_destroy(plan);
    return true;
}

/* -- one change each -- */

static void try_split(trial *t)
{
    tsr_model_config config = t->in->config;
    tsr_plan_info info;
    config.split.tensor_split = NULL;
    if (t->in->config.split.tensor_split && fits(t->in, &config, &info))
        add(t, "no -ts", "shares by the planner");
    config.split.mode = TSR_SPLIT_MODE_TENSOR;
    if (t->in->config.split.mode != TSR_SPLIT_MODE_TENSOR && fits(t->in, &config, &info))
        add(t, "-sm tensor", "every matrix divided over the devices");
}

static void try_margin(trial *t)
{
    tsr_model_config config = t->in->config;
    tsr_plan_info info;
    static const size_t none = 0;
    config.margin.bytes = &none;
    config.margin.n = 1;
    if (t->model->margin && fits(t->in, &config, &info))
        add(t, "--margin 0", "no memory left free");
}

static void try_context(trial *t)
{
    tsr_model_config config = t->in->config;
    tsr_fit_config fit = tsr_fit_config_default();
    tsr_plan_info info;
    char options[32];
    fit.context_only = true;
    fit.n_ctx_min = TSR_FIT_CTX_STEP;
    config.session.n_ctx = 0;
    config.plan.fit = &fit;
    if (t->info.n_ctx <= TSR_FIT_CTX_STEP || !fits(t->in, &config, &info) || info.n_ctx >= t->info.n_ctx)
        return;
    snprintf(options, sizeof options, "-c %lld", (long long)info.n_ctx);
    add(t, options, "a smaller context");
}

static void try_kv_types(trial *t)
{
    static const struct {
        tsr_type type;
        const char *options;
    } kinds[] = {{TSR_TYPE_Q8_0, "-ctk q8_0 -ctv q8_0"}, {TSR_TYPE_Q4_0, "-ctk q4_0 -ctv q4_0"}};
    for (int i = 0; i < TOOL_COUNT(kinds); i++) {
        tsr_model_config config = t->in->config;
        tsr_plan_info info;
        config.session.type_k = config.session.type_v = kinds[i].type;
        if (!fits(t->in, &config, &info))
            continue;
        add(t, kinds[i].options, "smaller keys and values");
        return;
    }
}

/* The experts in the host's memory; without --devices a host device joins the GPUs. */
static void try_experts(trial *t)
{
    tool_model_options model = *t->model;
    tsr_model_config config = t->in->config;
    tool_plan_inputs in = {.silent = true};
    tsr_plan_info info;
    if (!t->info.has_experts || config.offload.n_cpu_moe > 0)
        return;
    model.offload.cpu_moe = true;
    config.offload.n_cpu_moe = (int)t->info.n_layers;
    config.plan.rates = NULL;
    if (tool_plan_inputs_open(&model, t->machine, &config, &in) == TSR_OK && fits(&in, &in.config, &info))
        add(t, "--cpu-moe", "experts in the host's memory");
    tool_plan_inputs_close(&in);
}

/* What `tsr fit` offloads. A fit that cuts nothing but the context is not worth a line. */
static void try_fit(trial *t)
{
    tool_model_options model = *t->model;
    tsr_model_config config = t->in->config;
    tsr_fit_config limits = tsr_fit_config_default();
    tsr_fit_info info;
    tool_plan_inputs in = {.silent = true};
    tsr_fit *fit = NULL;
    size_t margins[TSR_MAX_DEVICES];
    config.plan.rates = NULL;
    config.plan.fit = &limits;
    if (tool_fit_create(&model, t->machine, &config, margins, &in, &fit) == TSR_OK) {
        tsr_fit_get_info(fit, &info);
        int n = (int)t->info.n_layers - info.chosen.n_gpu_layers;
        if (info.chosen.n_gpu_layers >= 0 && n >= 0)
            add(t, "tsr fit", "offloads %d of %lld layers to the host, context %lld", n,
                (long long)t->info.n_layers, (long long)info.chosen.n_ctx);
        else if (info.chosen.n_cpu_moe)
            add(t, "tsr fit", "offloads experts of %d of %lld layers, context %lld", info.chosen.n_cpu_moe,
                (long long)t->info.n_layers, (long long)info.chosen.n_ctx);
    }
    tsr_fit_destroy(fit);
    tool_plan_inputs_close(&in);
}

/* Weights in place of these, with everything else as it is. */
static void add_quantization(trial *t, const tsr_plan *uncapped)
{
    char now[TSR_BYTES_TEXT], most[TSR_BYTES_TEXT];
    size_t weights = 0, missing = 0;
    tsr_plan_device device;
    for (int d = 0; tsr_plan_get_device(uncapped, d, &device) == TSR_OK; d++) {
        weights += device.bytes[TSR_MEMORY_WEIGHTS];
        missing += device.missing_bytes;
    }
    tsr_bytes_text(weights, now);
    if (missing < weights)
        add(t, "", "a smaller quantization: its weights may take %s, these take %s",
            tsr_bytes_text(weights - missing, most), now);
    else
        add(t, "", "more or larger devices");
}

void tool_remedies_find(const tool_model_options *model, const tool_machine_options *machine,
                        const tool_plan_inputs *in, const tsr_plan *uncapped, tool_remedies *remedies_out)
{
    trial t = {.model = model, .machine = machine, .in = in, .found = remedies_out};
    remedies_out->n = 0;
    tsr_plan_get_info(uncapped, &t.info);
    try_split(&t);
    try_margin(&t);
    try_context(&t);
    try_kv_types(&t);
    try_experts(&t);
    try_fit(&t);
    add_quantization(&t, uncapped);
}

void tool_remedies_print(const tool_remedies *remedies, FILE *out)
{
    for (int i = 0; i < remedies->n; i++) {
        const tool_remedy *r = &remedies->list[i];
        fprintf(out, "%s", i == 0 ? "Try: " : "     ");
        fprintf(out, *r->options ? "%-20s  %s\n" : "%s%s\n", r->options, r->text);
    }
}

json_t *tool_remedies_json(const tool_remedies *remedies)
{
    json_t *array = json_array();
    for (int i = 0; i < remedies->n; i++)
        json_array_append_new(array, json_pack("{s:s?, s:s}", "options",
                                               *remedies->list[i].options ? remedies->list[i].options : NULL,
                                               "text", remedies->list[i].text));
    return array;
}
