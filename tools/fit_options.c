/* The options of a fit; see fit_options.h. */
#include "fit_options.h"

#include <ctype.h>
#include <stdarg.h>
#include <string.h>

#include "tsr.h"

enum { COLUMNS = 80 };

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

/* Options on one line, or on several that a shell reads as one. */
typedef struct option_line {
    FILE *out;
    int column;
} option_line;

static void put_option(option_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put_option(option_line *line, const char *format, ...)
{
    char text[16 * TSR_MAX_DEVICES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (line->column + 1 + n > COLUMNS - 2) { /* of which the last two are for the backslash */
        fprintf(line->out, " \\\n ");
        line->column = 1;
    }
    fprintf(line->out, " %s", text);
    line->column += 1 + n;
}

/* Nothing for the type that keys and values have anyway. */
static void put_type(option_line *line, const char *option, tsr_type type)
{
    char name[32];
    snprintf(name, sizeof name, "%s", tsr_type_name(type));
    for (char *c = name; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    if (type != TSR_TYPE_F16)
        put_option(line, "%s %s", option, name);
}

/* "1024", in MiB if there is no rest. */
static size_t write_margin(size_t bytes, const char *before, char *text, size_t size)
{
    const size_t mib = 1 << 20;
    bool whole = bytes % mib == 0;
    return (size_t)snprintf(text, size, whole ? "%s%zu" : "%s%zuB", before, whole ? bytes / mib : bytes);
}

/* One margin for all devices where they are the same. */
static void put_margins(option_line *line, const tsr_fit *fit)
{
    tsr_fit_info info;
    tsr_plan_device device, first;
    char text[16 * TSR_MAX_DEVICES];
    bool same = true;
    size_t used = 0;
    tsr_fit_get_info(fit, &info);
    if (tsr_plan_get_device(tsr_fit_plan(fit), 0, &first) != TSR_OK)
        return;
    for (int d = 1; d < info.n_devices; d++)
        same = same && tsr_plan_get_device(tsr_fit_plan(fit), d, &device) == TSR_OK &&
               device.margin_bytes == first.margin_bytes;
    for (int d = 0; d < (same ? 1 : info.n_devices) && used < sizeof text; d++)
        if (tsr_plan_get_device(tsr_fit_plan(fit), d, &device) == TSR_OK)
            used += write_margin(device.margin_bytes, d ? "," : "", text + used, sizeof text - used);
    put_option(line, "--margin %s", text);
}

void tool_fit_print_options(const tsr_fit *fit, FILE *out)
{
    tsr_fit_info info;
    tsr_plan_info plan;
    option_line line = {.out = out, .column = (int)strlen("Options:")};
    tsr_fit_get_info(fit, &info);
    tsr_plan_get_info(tsr_fit_plan(fit), &plan);
    fprintf(out, "Options:");
    put_option(&line, "-c %lld", (long long)info.chosen.n_ctx);
    put_type(&line, "-ctk", info.chosen.type_k);
    put_type(&line, "-ctv", info.chosen.type_v);
    if (info.chosen.n_cpu_moe >= plan.n_layers)
        put_option(&line, "--cpu-moe");
    else if (info.chosen.n_cpu_moe)
        put_option(&line, "-ncmoe %d", info.chosen.n_cpu_moe);
    if (info.chosen.n_gpu_layers >= 0)
        put_option(&line, "-ngl %d", info.chosen.n_gpu_layers);
    if (plan.has_experts)
        put_option(&line, "--expert-split %s", tsr_expert_split_name(plan.expert_split));
    put_margins(&line, fit);
    fprintf(out, "\n");
}
