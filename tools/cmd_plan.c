/* tsr plan: bytes and times of a model on every device, without loading it. The devices may be another
 * machine's, and the file may be a header only. */
#include "tsr.h"

#include "json.h"
#include "json_plan.h"
#include "options.h"
#include "plan_inputs.h"

int tsr_cmd_plan(int argc, char **argv)
{
    tool_model_options model = TOOL_MODEL_OPTIONS_INIT;
    tool_machine_options machine = {0};
    bool as_json = false, why = false;
    const tool_option options[] = {
        TOOL_MODEL_ROW(model),
        TOOL_SYNTHETIC_ROW(model),
        TOOL_MODEL_OPTION_ROWS(model),
        {"-np", "--parallel", TOOL_INT, &model.n_seq, "N", "sequences held at the same time (default 1)", 1,
         1 << 16},
        TOOL_MACHINE_OPTION_ROWS(machine),
        TOOL_HEADING_ROW("output"),
        {NULL, "--why", TOOL_FLAG, &why, NULL,
         "show predicted times by part and device, and those of other layouts", 0, 0},
        {NULL, "--json", TOOL_FLAG, &as_json, NULL, "print JSON, all sizes in bytes", 0, 0},
    };
    const tool_command command = {
        .name = "plan",
        .summary = TOOL_PLAN_SUMMARY,
        .options = options,
        .n_options = TOOL_COUNT(options),
        .description = TOOL_MACHINE_DESCRIPTION,
        .examples = "tsr plan -m model.gguf --devices host:2 -ts 3,1\n"
                    "tsr plan -m model.gguf --machine-file server.xml -c 8192 -ctk q8_0 --json\n"
                    "tsr plan -m model.gguf --machine '2x rtx3090 nvlink, 1x rtx4060ti pcie4x8'",
        .pages = "splitting devices machines offload precision json"};
    int code = tool_options_parse(&command, argc, argv, stdout, stderr);
    if (code == TOOL_GO_ON)
        code = tool_machine_options_check("plan", &machine);
    if (code != TOOL_GO_ON)
        return code;

    char path[64];
    float split[TSR_MAX_DEVICES];
    tsr_model_config config;
    code = tool_plan_synthetic("plan", &model, path);
    if (code == TOOL_GO_ON)
        code = tool_model_options_read("plan", &model, split, &config);
    if (code != TOOL_GO_ON)
        return code;

    tsr_plan *plan = NULL;
    tool_plan_inputs in = {0};
    tsr_status status = tool_plan_inputs_open(&model, &machine, &config, &in);
    if (status == TSR_OK)
        status = tsr_plan_create(in.gguf, in.devices, &in.config, &plan);
    tool_plan_inputs_close(&in);
    if (status != TSR_OK) {
        code = tool_fail("plan", status);
    } else if (as_json) {
        code = tool_json_print("plan", tool_json_plan(plan, model.synthetic ? model.synthetic : model.model));
    } else {
        tsr_plan_print(plan, tool_write, stdout);
        if (why) {
            printf("\n");
            tsr_plan_explain(plan, tool_write, stdout);
        }
        code = TOOL_EXIT_OK;
    }
    tsr_plan_destroy(plan);
    return code;
}
