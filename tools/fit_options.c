/* The options of a fit; see fit_options.h. */
#include "fit_options.h"

#include <ctype.h>
#include <string.h>

#include "tsr.h"

static int read_kv(const char *command, const char *text, tsr_fit_config *config)
{
    char part[32];
    const char *rest = text;
    tsr_type types[2];
    bool good = true;
    int n = 0;
    while (rest && good && n < 2) {
        rest = tool_next_part(rest, part, sizeof part);
        good = tool_kv_type_parse(part, &types[n++]);
    }
    if (rest || !good) {
        fprintf(stderr,
                "tsr %s: --fit-kv takes f32, f16, bf16, q8_0 or q4_0, or a type for keys and one for values "
                "(q8_0,q4_0), not '%s'\n",
                command, text);
        return TOOL_EXIT_USAGE;
    }
    config->type_k = types[0];
    config->type_v = types[n - 1];
    return TOOL_GO_ON;
}

int tool_fit_options_read(const char *command, const tool_fit_options *options,
                          const tool_model_options *model, size_t margins[TSR_MAX_DEVICES],
                          tsr_fit_config *config_out)
{
    tsr_fit_config config = tsr_fit_config_default();
    int code = TOOL_GO_ON;
    if (options->n_ctx_min)
        config.n_ctx_min = options->n_ctx_min;
    if (options->kv)
        code = read_kv(command, options->kv, &config);
    if (code == TOOL_GO_ON && options->margins)
        code = tool_margins_read(command, "--fit-margin", options->margins, margins, &config.n_margins);
    if (config.n_margins)
        config.margins = margins;
    if (code != TOOL_GO_ON)
        return code;
    if (model->type_k)
        config.type_k = TSR_TYPE_F32;
    if (model->type_v)
        config.type_v = TSR_TYPE_F32;
    *config_out = config;
    return TOOL_GO_ON;
}

static tsr_status fit_into(const tool_model_options *model, const tool_machine_options *machine,
                           const tsr_model_config *config, tool_plan_inputs *in, tsr_fit **fit_out)
{
    tsr_status status = tool_plan_inputs_open(model, machine, config, in);
    if (status == TSR_OK)
        status = tsr_fit_create(in->gguf, in->devices, &in->config, fit_out);
    return status;
}

tsr_status tool_fit_create(tool_model_options *model, const tool_machine_options *machine,
                           const tsr_model_config *config, size_t margins[TSR_MAX_DEVICES],
                           tool_plan_inputs *in, tsr_fit **fit_out)
{
    tsr_status status = fit_into(model, machine, config, in, fit_out);
    int n = in->devices ? in->devices->n_devices : 0;
    if (status != TSR_ERR_MEMORY || model->devices || n == 0 || n == TSR_MAX_DEVICES ||
        in->devices->devices[n - 1].kind == TSR_DEVICE_HOST)
        return status;
    tsr_fit_config with_host = *config->plan.fit;
    tsr_model_config again = *config;
    if (with_host.n_margins == n && n > 1) /* there is one for each GPU */
        margins[with_host.n_margins++] = TSR_FIT_MARGIN;
    again.plan.fit = &with_host;
    model->devices = "cuda,host:1";
    tool_plan_inputs_close(in);
    *in = (tool_plan_inputs){.silent = in->silent};
    status = fit_into(model, machine, &again, in, fit_out);
    in->config.plan.fit = config->plan.fit;
    return status;
}

static void print_type(const char *option, tsr_type type, FILE *out)
{
    fprintf(out, " %s ", option);
    for (const char *c = tsr_type_name(type); *c; c++)
        fputc(tolower((unsigned char)*c), out);
}

/* Those of all devices at once where they are the same. */
static void print_margins(const tsr_fit *fit, FILE *out)
{
    tsr_fit_info info;
    tsr_plan_device device, first;
    bool same = true;
    tsr_fit_get_info(fit, &info);
    if (tsr_plan_get_device(tsr_fit_plan(fit), 0, &first) != TSR_OK)
        return;
    for (int d = 1; d < info.n_devices; d++)
        same = same && tsr_plan_get_device(tsr_fit_plan(fit), d, &device) == TSR_OK &&
               device.margin_bytes == first.margin_bytes;
    for (int d = 0; d < (same ? 1 : info.n_devices); d++)
        if (tsr_plan_get_device(tsr_fit_plan(fit), d, &device) == TSR_OK)
            fprintf(out, "%s%zuB", d ? "," : " --margin ", device.margin_bytes);
}

void tool_fit_print_options(const tsr_fit *fit, FILE *out)
{
    tsr_fit_info info;
    tsr_fit_get_info(fit, &info);
    fprintf(out, "Options: -c %lld", (long long)info.chosen.n_ctx);
    print_type("-ctk", info.chosen.type_k, out);
    print_type("-ctv", info.chosen.type_v, out);
    if (info.chosen.n_cpu_moe)
        fprintf(out, " -ncmoe %d", info.chosen.n_cpu_moe);
    if (info.chosen.n_gpu_layers >= 0)
        fprintf(out, " -ngl %d", info.chosen.n_gpu_layers);
    tsr_plan_info plan;
    tsr_plan_get_info(tsr_fit_plan(fit), &plan);
    if (plan.has_experts)
        fprintf(out, " --expert-split %s", tsr_expert_split_name(plan.expert_split));
    print_margins(fit, out);
    fprintf(out, "\n");
}
