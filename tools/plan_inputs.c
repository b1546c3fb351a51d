/* Inputs of planning; see plan_inputs.h. */
#include "plan_inputs.h"

#include <errno.h>
#include <string.h>

#include "synth/synth.h"
#include "tsr.h"

int tool_plan_synthetic(const char *command, tool_model_options *options, char path[64])
{
    synth_model model;
    if (!options->synthetic)
        return TOOL_GO_ON;
    int code = synth_parse(command, options->synthetic, &model);
    if (code != TOOL_GO_ON)
        return code;
    if (options->model) {
        fprintf(stderr, "tsr %s: -m and --synthetic each name a model; give only one\n", command);
        return TOOL_EXIT_USAGE;
    }
    if (synth_in_memory(&model, 1, true, path) < 0) { /* stays open until the process ends */
        fprintf(stderr, "tsr %s: cannot create the header of %s: %s\n", command, options->synthetic,
                strerror(errno));
        return TOOL_EXIT_FAILED;
    }
    options->model = path;
    return TOOL_GO_ON;
}

tsr_status tool_plan_inputs_open(const tool_model_options *options, const tool_machine_options *machine,
                                 const tsr_model_config *config, tool_plan_inputs *in)
{
    tsr_logger logger = in->silent ? (tsr_logger){0} : tool_logger(false);
    tsr_gguf_config gguf_config = tsr_gguf_config_default();
    gguf_config.header_only = true;
    in->config = *config;

    tsr_status status = tsr_gguf_open(options->model, &gguf_config, &in->gguf);
    if (status == TSR_OK)
        status = tool_machine_topology(machine, &logger, &in->topo);
    if (status == TSR_OK)
        status =
            tsr_device_list_create(in->topo, tool_model_devices(options, in->topo), &logger, &in->devices);
    if (status == TSR_OK)
        status = tool_measured_apply(in->topo, in->devices, &in->measured, &in->config);
    return status;
}

void tool_plan_inputs_close(tool_plan_inputs *inputs)
{
    tool_measured_free(&inputs->measured);
    tsr_gguf_close(inputs->gguf);
    tsr_device_list_destroy(inputs->devices);
    tsr_topology_destroy(inputs->topo);
}
