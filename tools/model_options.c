/* The options of model and devices; see model_options.h. */
#include "model_options.h"

#include <string.h>

#include <tsr/bytes.h>

#include "tsr.h"

static int complain(const char *command, const char *name, const char *text, const char *choices)
{
    fprintf(stderr, "tsr %s: %s takes %s, not '%s'\n", command, name, choices, text);
    return TOOL_EXIT_USAGE;
}

bool tool_kv_type_parse(const char *text, tsr_type *type_out)
{
    static const tsr_type types[] = {TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    tsr_type found;
    if (tsr_type_parse(text, &found) != TSR_OK)
        return false;
    for (int i = 0; i < TOOL_COUNT(types); i++)
        if (types[i] == found) {
            *type_out = found;
            return true;
        }
    return false;
}

static int read_kv_type(const char *command, const char *name, const char *text, tsr_type *type)
{
    if (!text || tool_kv_type_parse(text, type))
        return TOOL_GO_ON;
    return complain(command, name, text, "f32, f16, bf16, q8_0 or q4_0");
}

static int read_reduction(const char *command, const char *text, tsr_reduction *reduction)
{
    if (!text)
        return TOOL_GO_ON;
    static const char *const names[] = {
        [TSR_REDUCTION_EXACT] = "exact", [TSR_REDUCTION_F32] = "f32", [TSR_REDUCTION_BF16] = "bf16"};
    for (int i = 0; i < TOOL_COUNT(names); i++)
        if (strcmp(text, names[i]) == 0) {
            *reduction = (tsr_reduction)i;
            return TOOL_GO_ON;
        }
    return complain(command, "--reduction", text, "exact, f32 or bf16");
}

const char *tool_next_part(const char *text, char *part, size_t capacity)
{
    size_t n = strcspn(text, ",");
    snprintf(part, capacity, "%.*s", n < capacity ? (int)n : 0, text);
    return text[n] ? text + n + 1 : NULL;
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

int tool_margins_read(const char *command, const char *name, const char *text,
                      size_t margins[TSR_MAX_DEVICES], int *n_out)
{
    char part[32];
    const char *rest = text;
    for (*n_out = 0; rest && *n_out < TSR_MAX_DEVICES; ++*n_out) {
        rest = tool_next_part(rest, part, sizeof part);
        if (parse_margin(part, &margins[*n_out]) != TSR_OK) {
            fprintf(stderr,
                    "tsr %s: %s takes a size such as 1024 (MiB) or 2GiB, one for all devices or one for "
                    "each, not '%s'\n",
                    command, name, part);
            return TOOL_EXIT_USAGE;
        }
    }
    if (!rest)
        return TOOL_GO_ON;
    fprintf(stderr, "tsr %s: %s has more than %d entries\n", command, name, TSR_MAX_DEVICES);
    return TOOL_EXIT_USAGE;
}

/* "decode" and "prompt" are the default without the tokens of the other phase. */
int tool_workload_read(const char *command, const char *text, tsr_model_config *config)
{
    int *prompt = &config->workload.n_prompt, *new = &config->workload.n_new;
    char end;
    if (!text)
        return TOOL_GO_ON;
    bool numbers = strspn(text, "0123456789:") == strlen(text);
    if (strcmp(text, "decode") == 0)
        *prompt = 0;
    else if (strcmp(text, "prompt") == 0)
        *new = 0;
    else if (!numbers || sscanf(text, "%9d:%9d%c", prompt, new, &end) != 2 || *prompt + *new == 0)
        return complain(command, "--for", text,
                        "decode, prompt, or the tokens of a prompt and of its answer, e.g. 512:128");
    return TOOL_GO_ON;
}

/* "3,1" or "auto". */
static int read_prompt_split(const char *command, tool_model_options *options, tsr_model_config *config)
{
    const char *text = options->prompt_split;
    if (!text)
        return TOOL_GO_ON;
    config->prompt.automatic = strcmp(text, "auto") == 0;
    if (config->prompt.automatic)
        return TOOL_GO_ON;
    if (tsr_split_parse(text, options->prompt_shares, TSR_MAX_DEVICES, &config->prompt.n_tensor_split) !=
        TSR_OK) {
        fprintf(stderr, "tsr %s: --prompt-split: %s\n", command, tsr_last_error());
        return TOOL_EXIT_USAGE;
    }
    config->prompt.tensor_split = options->prompt_shares;
    return TOOL_GO_ON;
}

int tool_model_options_read(const char *command, tool_model_options *options,
                            float tensor_split[TSR_MAX_DEVICES], tsr_model_config *config_out)
{
    tsr_model_config config = tsr_model_config_default();
    if (!options->model || !*options->model) {
        fprintf(stderr, "tsr %s: no model given; use -m FILE, or --synthetic SHAPE for a published shape\n",
                command);
        return TOOL_EXIT_USAGE;
    }
    if (options->split_mode && tsr_split_mode_parse(options->split_mode, &config.split.mode) != TSR_OK)
        return complain(command, "-sm", options->split_mode,
                        strcmp(options->split_mode, "row") == 0
                            ? "tensor (the row of llama.cpp), layer, none or auto"
                            : "tensor, layer, none or auto");
    if (options->expert_split &&
        tsr_expert_split_parse(options->expert_split, &config.split.experts) != TSR_OK)
        return complain(command, "--expert-split", options->expert_split, "columns, experts or auto");
    if (options->tensor_split && tsr_split_parse(options->tensor_split, tensor_split, TSR_MAX_DEVICES,
                                                 &config.split.n_tensor_split) != TSR_OK) {
        fprintf(stderr, "tsr %s: -ts: %s\n", command, tsr_last_error());
        return TOOL_EXIT_USAGE;
    }
    int code = read_kv_type(command, "-ctk", options->type_k, &config.session.type_k);
    if (code == TOOL_GO_ON)
        code = read_kv_type(command, "-ctv", options->type_v, &config.session.type_v);
    if (code == TOOL_GO_ON)
        code = read_reduction(command, options->reduction, &config.compute.reduction);
    if (code == TOOL_GO_ON && options->activations != 8 && options->activations != 16) {
        fprintf(stderr, "tsr %s: --activations takes 16 or 8, not %d\n", command, options->activations);
        code = TOOL_EXIT_USAGE;
    }
    if (code == TOOL_GO_ON)
        code = tool_offload_options_read(command, &options->offload, &config);
    if (code == TOOL_GO_ON)
        code = tool_workload_read(command, options->workload, &config);
    if (code == TOOL_GO_ON)
        code = read_prompt_split(command, options, &config);
    if (code == TOOL_GO_ON && options->margin)
        code = tool_margins_read(command, "--margin", options->margin, options->margins, &config.margin.n);
    config.margin.bytes = config.margin.n ? options->margins : NULL;
    if (code != TOOL_GO_ON)
        return code;
    config.split.tensor_split = config.split.n_tensor_split ? tensor_split : NULL;
    config.split.main_device = options->main_device;
    config.session.n_ctx = options->n_ctx < 0 ? 0 : options->n_ctx;
    config.session.n_seq_max = options->n_seq;
    config.session.n_batch = options->n_batch;
    config.load.copy_weights = options->no_mmap;
    config.session.swa_full = options->swa_full;
    config.prediction.load = options->prediction;
    config.output.embeddings = options->embeddings;
    config.compute.activation_bits = options->activations;
    *config_out = config;
    return TOOL_GO_ON;
}

void tool_model_open_context(tool_model_options *options, tsr_model_config *config)
{
    if (options->n_ctx >= 0 || config->plan.fit)
        return;
    options->context_fit = tsr_fit_config_default();
    options->context_fit.context_only = true;
    config->plan.fit = &options->context_fit;
}

const char *tool_model_devices(const tool_model_options *options, const tsr_topology *topo)
{
    return options->devices ? options->devices
                            : tool_offload_devices(&options->offload, options->model, topo);
}
