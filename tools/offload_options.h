/* The options that move parts of a model to another device, with llama.cpp's names. */
#ifndef TSR_TOOLS_OFFLOAD_OPTIONS_H
#define TSR_TOOLS_OFFLOAD_OPTIONS_H

#include <tsr/plan.h>
#include <tsr/topology.h>

#include "options.h"

enum { TOOL_MAX_OVERRIDES = 64, TOOL_OVERRIDE_BYTES = 4096 };

typedef struct tool_offload_options {
    int n_gpu_layers, n_cpu_moe;
    bool cpu_moe;
    tool_list offload_rules;
    const char *device;

    /* The config points to these. */
    tsr_offload_rule list[TOOL_MAX_OVERRIDES];
    int n_list;
    char text[TOOL_OVERRIDE_BYTES];
} tool_offload_options;

#define TOOL_OFFLOAD_OPTIONS_INIT \
    {                             \
        .n_gpu_layers = -1        \
    }

/* Rows for a command's table of options; `o` is a tool_offload_options. */
/* clang-format off */
#define TOOL_OFFLOAD_OPTION_ROWS(o)                                                               \
    TOOL_HEADING_ROW("offload"),                                                                  \
    {"-ngl", "--n-gpu-layers", TOOL_INT, &(o).n_gpu_layers, "N",                                  \
     "keep the last N layers, offload the others (default -1: offload none)", -1, 1 << 20},       \
    {NULL, "--gpu-layers", TOOL_INT, &(o).n_gpu_layers, "N", "the same as -ngl", -1, 1 << 20},    \
    {"-ncmoe", "--n-cpu-moe", TOOL_INT, &(o).n_cpu_moe, "N",                                      \
     "offload the experts of the first N layers", 0, 1 << 20},                                    \
    {"-cmoe", "--cpu-moe", TOOL_FLAG, &(o).cpu_moe, NULL,                                         \
     "offload the experts of all layers", 0, 0},                                                  \
    {"-ot", "--override-tensor", TOOL_LIST, &(o).offload_rules, "REGEX=DEV,...",                      \
     "send the blocks of these tensors to a device; CPU: the offload device", 0, 0},              \
    {NULL, "--offload-device", TOOL_STRING, &(o).device, "DEV",                                   \
     "offload device, by name or number (default: the last host device)", 0, 0}
/* clang-format on */

/* Put them into a config, which borrows `options`. Returns TOOL_GO_ON, or TOOL_EXIT_USAGE after one line
 * on stderr. */
int tool_offload_options_read(const char *command, tool_offload_options *options, tsr_model_config *config);

/* The default devices: NULL, the library's default, unless that is GPUs and parts of `model` (a file) are
 * offloaded to a host device, which is added. To be called after tool_offload_options_read(). */
const char *tool_offload_devices(const tool_offload_options *options, const char *model,
                                 const tsr_topology *topo);

#endif
