/* The inputs of planning, from the command line: the file's header, the devices of this machine or
 * another, and their rates and links. */
#ifndef TSR_TOOLS_PLAN_INPUTS_H
#define TSR_TOOLS_PLAN_INPUTS_H

#include <tsr/gguf.h>
#include <tsr/plan.h>
#include <tsr/topology.h>

#include "machine_options.h"
#include "measured.h"
#include "model_options.h"

typedef struct tool_plan_inputs {
    bool silent;    /* no warnings: they were given, or will be */
    tsr_gguf *gguf; /* header only */
    tsr_topology *topo;
    tsr_device_list *devices;
    tool_measured measured;
    tsr_model_config config; /* points into `measured`, so this struct must not be moved */
} tool_plan_inputs;

/* Make the header of --synthetic's shape in memory and set options->model to its name, which is stored in
 * `path`; nothing to do without --synthetic. Returns TOOL_GO_ON or an exit code, after a message. */
int tool_plan_synthetic(const char *command, tool_model_options *options, char path[64]);

/* `inputs_out` starts as zeros, but for `silent`, and is closed by the caller in any case. */
tsr_status tool_plan_inputs_open(const tool_model_options *options, const tool_machine_options *machine,
                                 const tsr_model_config *config, tool_plan_inputs *inputs_out);
void tool_plan_inputs_close(tool_plan_inputs *inputs);

#endif
