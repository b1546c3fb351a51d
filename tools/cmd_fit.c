/* tsr fit: reduces open settings until a model fits, without loading it. */
#include "tsr.h"

#include "fit_options.h"
#include "json.h"
#include "json_fit.h"
#include "options.h"
#include "plan_inputs.h"

static void show(const tsr_fit *fit)
{
    tsr_fit_print(fit, tool_write, stdout);
    printf("\n");
    tool_fit_print_options(fit, stdout);
}

int tsr_cmd_fit(int argc, char **argv)
{
    tool_model_options model = TOOL_MODEL_OPTIONS_INIT;
    tool_machine_options machine = {0};
    tool_fit_options fitting = {0};
    bool as_json = false;
    const tool_option options[] = {
        TOOL_MODEL_ROW(model),
        TOOL_SYNTHETIC_ROW(model),
        TOOL_RESULT_ROWS(model),
        TOOL_MODEL_OPTION_ROWS(model),
        {"-np", "--parallel", TOOL_INT, &model.n_seq, "N", "sequences held at the same time (default 1)", 1,
         1 << 16},
        TOOL_HEADING_ROW("fitting"),
        TOOL_FIT_OPTION_ROWS(fitting),
        TOOL_MACHINE_OPTION_ROWS(machine),
        TOOL_HEADING_ROW("output"),
        {NULL, "--json", TOOL_FLAG, &as_json, NULL, "print JSON, all sizes in bytes", 0, 0},
    };
    const tool_command command = {
        .name = "fit",
        .summary = TOOL_FIT_SUMMARY,
        .options = options,
        .n_options = TOOL_COUNT(options),
        .description =
            "What an option sets stays as it is. The rest is reduced in this order, and no further "
            "than needed: the KV types, to `--fit-kv`; the context, in steps of 256 tokens down to "
            "`--fit-ctx`. Then, where there is a device to offload to, experts (`-ncmoe`) and layers "
            "(`-ngl`) are offloaded.\n\n" TOOL_MACHINE_DESCRIPTION,
        .examples = "tsr fit -m model.gguf --devices host:2,mem=8GiB --fit-margin 512\n"
                    "tsr fit -m model.gguf --machine '2x rtx3090 nvlink' --fit-ctx 8192\n"
                    "tsr fit -m model.gguf --devices cuda,host:1",
        .pages = "fitting devices machines offload precision json"};
    int code = tool_options_parse(&command, argc, argv, stdout, stderr);
    if (code == TOOL_GO_ON)
        code = tool_machine_options_check("fit", &machine);
    if (code != TOOL_GO_ON)
        return code;

    char path[64];
    float split[TSR_MAX_DEVICES];
    size_t margins[TSR_MAX_DEVICES];
    tsr_model_config config;
    tsr_fit_config fit_config;
    code = tool_plan_synthetic("fit", &model, path);
    if (code == TOOL_GO_ON)
        code = tool_model_options_read("fit", &model, split, &config);
    if (code == TOOL_GO_ON)
        code = tool_fit_options_read("fit", &fitting, &model, margins, &fit_config);
    if (code != TOOL_GO_ON)
        return code;
    config.plan.fit = &fit_config;

    tsr_fit *fit = NULL;
    tool_plan_inputs in = {0};
    tsr_status status = tool_fit_create(&model, &machine, &config, margins, &in, &fit);
    code = TOOL_EXIT_OK;
    if (status != TSR_OK)
        code = tool_fail("fit", status);
    else if (as_json)
        code = tool_json_print("fit", tool_json_fit(fit, model.synthetic ? model.synthetic : model.model));
    else
        show(fit);
    tsr_fit_destroy(fit);
    tool_plan_inputs_close(&in);
    return code;
}
