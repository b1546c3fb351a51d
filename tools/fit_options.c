/* The options of a fit; see fit_options.h. */
#include "fit_options.h"

#include <ctype.h>
#include <string.h>

#include <tsr/bytes.h>

#include "tsr.h"

/* The part of `text` up to the next comma; NULL after the last. */
static const char *next_part(const char *text, char *part, size_t capacity)
{
    size_t n = strcspn(text, ",");
    snprintf(part, capacity, "%.*s", (int)n, text);
    return text[n] ? text + n + 1 : NULL;
}

static int read_kv(const char *command, const char *text, tsr_fit_config *config)
{
    char part[32];
    const char *rest = text;
    tsr_type types[2];
    bool good = true;
    int n = 0;
    while (rest && good && n < 2) {
        rest = next_part(rest, part, sizeof part);
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

/* "1024" is MiB, the default unit of margins; "2GiB" has its own unit. */
static tsr_status parse_margin(const char *text, size_t *margin)
{
    char with_unit[40];
    uint64_t bytes;
    bool bare = *text && text[strspn(text, "0123456789.")] == '\0';
    snprintf(with_unit, sizeof with_unit, "%s%s", text, bare ? "MiB" : "");
    tsr_status status = tsr_bytes_parse(with_unit, &bytes);
    if (status == TSR_OK)
        *margin = bytes < SIZE_MAX ? (size_t)bytes : SIZE_MAX;
    return status;
}

static int read_margins(const char *command, const char *text, size_t margins[TSR_MAX_DEVICES],
                        tsr_fit_config *config)
{
    char part[32];
    const char *rest = text;
    config->margins = margins;
    while (rest && config->n_margins < TSR_MAX_DEVICES) {
        rest = next_part(rest, part, sizeof part);
        if (parse_margin(part, &margins[config->n_margins]) != TSR_OK) {
            fprintf(
                stderr,
                "tsr %s: --fit-margin takes a size such as 1024 (MiB) or 2GiB, one for all devices or one "
                "for each, not '%s'\n",
                command, part);
            return TOOL_EXIT_USAGE;
        }
        config->n_margins++;
    }
    if (rest) {
        fprintf(stderr, "tsr %s: --fit-margin has more than %d entries\n", command, TSR_MAX_DEVICES);
        return TOOL_EXIT_USAGE;
    }
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
        code = read_margins(command, options->margins, margins, &config);
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
    *in = (tool_plan_inputs){0};
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
    fprintf(out, "\n");
}
