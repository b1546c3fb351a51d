/* tsr plan: bytes and times of a model on every device, without loading it. The devices may be another
 * machine's, and the file may be a header only. */
#include "tsr.h"

#include "json.h"
#include "json_plan.h"
#include "options.h"
#include "plan_inputs.h"
#include "remedies.h"

static void print_plan(const tsr_plan *plan, const tool_remedies *remedies, bool why)
{
    tsr_plan_print_summary(plan, tool_write, stdout);
    tool_remedies_print(remedies, stdout);
    printf("\n");
    tsr_plan_print_tables(plan, tool_write, stdout);
    if (why) {
        printf("\n");
        tsr_plan_explain(plan, tool_write, stdout);
    }
}

/* A plan, or without room for it the plan of a machine with more memory, and what would fit. */
static tsr_status make_plan(const tool_model_options *model, const tool_machine_options *machine,
                            const tool_plan_inputs *in, tsr_plan **plan_out, tool_remedies *remedies_out)
{
    tsr_plan_info info;
    tsr_plan *plan = NULL;
    tsr_status status = tsr_plan_create(in->gguf, in->devices, &in->config, plan_out);
    if (status != TSR_ERR_MEMORY)
        return status;
    if (tsr_plan_create_uncapped(in->gguf, in->devices, &in->config, &plan) != TSR_OK)
        return TSR_ERR_MEMORY;
    tsr_plan_get_info(plan, &info);
    if (info.fits) { /* the shortage was not the devices' */
        tsr_plan_destroy(plan);
        return TSR_ERR_MEMORY;
    }
    tool_remedies_find(model, machine, in, plan, remedies_out);
    *plan_out = plan;
    return TSR_OK;
}

int tsr_cmd_plan(int argc, char **argv)
{
    tool_model_options model = TOOL_MODEL_OPTIONS_INIT;
    tool_machine_options machine = {0};
    bool as_json = false, why = false;
    const tool_option options[] = {
        TOOL_MODEL_ROW(model),
        TOOL_SYNTHETIC_ROW(model),
        TOOL_RESULT_ROWS(model),
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

    tool_model_open_context(&model, &config);

    tsr_plan *plan = NULL;
    tool_plan_inputs in = {0};
    tool_remedies remedies = {0};
    tsr_status status = tool_plan_inputs_open(&model, &machine, &config, &in);
    if (status == TSR_OK)
        status = make_plan(&model, &machine, &in, &plan, &remedies);
    if (status != TSR_OK) {
        code = tool_fail("plan", status);
    } else if (as_json) {
        json_t *root = tool_json_plan(plan, model.synthetic ? model.synthetic : model.model);
        json_object_set_new(root, "next", tool_remedies_json(&remedies));
        code = tool_json_print("plan", root);
    } else {
        print_plan(plan, &remedies, why);
        code = TOOL_EXIT_OK;
    }
    if (code == TOOL_EXIT_OK && remedies.n)
        code = TOOL_EXIT_NO_ROOM;
    tsr_plan_destroy(plan);
    tool_plan_inputs_close(&in);
    return code;
}
