/* The options of offloading; see offload_options.h. */
#include "offload_options.h"

#include <limits.h>
#include <string.h>
#include <strings.h>

#include <tsr/gguf.h>

#include "tsr.h"

/* One "regex=device" of `length` bytes, copied to options->text at *used. A pattern may contain '=', a device
 * does not. */
static int read_override(const char *command, const char *text, size_t length, size_t *used,
                         tool_offload_options *options, tsr_model_config *config)
{
    if (config->offload.n_rules == TOOL_MAX_OVERRIDES || *used + length + 1 > sizeof options->text) {
        fprintf(stderr, "tsr %s: -ot: at most %d rules of %d characters in all\n", command,
                TOOL_MAX_OVERRIDES, TOOL_OVERRIDE_BYTES);
        return TOOL_EXIT_USAGE;
    }
    char *pattern = options->text + *used;
    memcpy(pattern, text, length);
    pattern[length] = '\0';
    *used += length + 1;
    char *equals = strrchr(pattern, '=');
    if (!equals || equals == pattern || !equals[1]) {
        fprintf(stderr, "tsr %s: -ot takes REGEX=DEVICE,..., e.g. 'ffn=CPU', not '%s'\n", command, pattern);
        return TOOL_EXIT_USAGE;
    }
    *equals = '\0';
    options->list[config->offload.n_rules++] = (tsr_offload_rule){.pattern = pattern, .device = equals + 1};
    return TOOL_GO_ON;
}

/* A comma that does not follow "=device" is part of the pattern, as in "blk\\.\\d{1,2}=CPU". */
static size_t override_length(const char *text)
{
    size_t length = strcspn(text, ",");
    while (text[length] && !memchr(text, '=', length))
        length += 1 + strcspn(text + length + 1, ",");
    return length;
}

int tool_offload_options_read(const char *command, tool_offload_options *options, tsr_model_config *config)
{
    int code = TOOL_GO_ON;
    size_t used = 0;
    config->offload.n_gpu_layers = options->n_gpu_layers;
    config->offload.n_cpu_moe = options->cpu_moe ? INT_MAX : options->n_cpu_moe;
    config->offload.device = options->device;
    config->offload.rules = options->list;
    config->offload.n_rules = 0;
    for (int i = 0; i < options->offload_rules.n; i++) {
        const char *text = options->offload_rules.items[i];
        do {
            size_t length = override_length(text);
            code = read_override(command, text, length, &used, options, config);
            text += length + (text[length] == ',');
        } while (code == TOOL_GO_ON && *text);
        if (code != TOOL_GO_ON)
            break;
    }
    options->n_list = config->offload.n_rules;
    return code;
}

/* 0 if the number cannot be read; errors of the file are reported when it is opened for use. */
static uint64_t count_layers(const char *model)
{
    tsr_gguf_config config = tsr_gguf_config_default();
    tsr_gguf *gguf = NULL;
    tsr_gguf_string name;
    char key[128]; /* no supported architecture has a longer name */
    uint64_t n = 0;
    config.header_only = true;
    if (tsr_gguf_open(model, &config, &gguf) != TSR_OK)
        return 0;
    if (tsr_gguf_get_string(gguf, "general.architecture", &name) == TSR_OK && name.bytes < sizeof key) {
        snprintf(key, sizeof key, "%.*s.block_count", (int)name.bytes, name.data);
        if (tsr_gguf_get_u64(gguf, key, &n) != TSR_OK)
            n = 0;
    }
    tsr_gguf_close(gguf);
    return n;
}

static bool wants_host(const tool_offload_options *options, const char *model)
{
    for (int i = 0; i < options->n_list; i++)
        if (strcasecmp(options->list[i].device, "CPU") == 0 ||
            strncmp(options->list[i].device, "host", 4) == 0)
            return true;
    if (options->cpu_moe || options->n_cpu_moe > 0)
        return true;
    return options->n_gpu_layers >= 0 && (uint64_t)options->n_gpu_layers <= count_layers(model);
}

const char *tool_offload_devices(const tool_offload_options *options, const char *model,
                                 const tsr_topology *topo)
{
    return model && topo->n_gpus > 0 && wants_host(options, model) ? "cuda,host:1" : NULL;
}
