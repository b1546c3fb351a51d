/* tsr run: open the devices and the model, generate, report. */
#include "tsr.h"

#include <stdlib.h>

#include "progress.h"
#include "rates_file.h"
#include "run.h"

static tsr_status discover(const tsr_runtime_config *config, tsr_topology **topo)
{
    tsr_topology_config topo_config = TSR_TOPOLOGY_CONFIG_INIT;
    topo_config.logger = config->logger;
    return tsr_topology_discover(&topo_config, topo);
}

/* Rates as `tsr bench` measured them, and links, so that what runs is what tsr plan shows. */
static tsr_status describe_devices(const tsr_topology *topo, const char *devices, tsr_device_rates *rates,
                                   tsr_links **links, tsr_model_config *config)
{
    tsr_device_list *list = NULL;
    tsr_status status = tsr_device_list_create(topo, devices, NULL, &list);
    if (status == TSR_OK && tool_rates_load(topo, list, rates))
        config->rates = rates;
    if (status == TSR_OK)
        status = tsr_links_create(topo, list, links);
    config->links = *links;
    tsr_device_list_destroy(list);
    return status;
}

static tsr_status open_engine(const run_options *options, const tsr_model_config *config, tsr_runtime **rt,
                              run_engine *engine)
{
    tsr_runtime_config runtime_config = TSR_RUNTIME_CONFIG_INIT;
    tsr_model_info info;
    runtime_config.devices = options->model.devices;
    runtime_config.isa = options->isa;
    runtime_config.collectives = options->collectives;
    runtime_config.logger = tool_logger(options->verbose);

    tsr_topology *topo = NULL;
    tsr_links *links = NULL;
    tsr_model_config with_rates = *config;
    tsr_device_rates rates[TSR_MAX_DEVICES];
    tsr_status status = discover(&runtime_config, &topo);
    runtime_config.topology = topo;
    if (status == TSR_OK)
        status = describe_devices(topo, options->model.devices, rates, &links, &with_rates);
    if (status == TSR_OK)
        status = tsr_runtime_open(&runtime_config, rt);
    tsr_topology_destroy(topo);
    if (status == TSR_OK)
        status = tsr_model_open(*rt, options->model.model, &with_rates, &engine->model);
    tsr_links_destroy(links);
    if (status == TSR_OK)
        status = tsr_model_tokenizer(engine->model, &engine->tokenizer);
    if (status == TSR_OK)
        status = tsr_session_create(engine->model, &engine->session);
    if (status == TSR_OK) {
        tsr_model_describe(engine->model, &info);
        status = tsr_sampler_create(&options->sampler, info.n_vocab, &engine->sampler);
    }
    return status;
}

static void close_engine(tsr_runtime *rt, run_engine *engine)
{
    tsr_sampler_destroy(engine->sampler);
    tsr_session_destroy(engine->session);
    tsr_tokenizer_destroy(engine->tokenizer);
    tsr_model_close(engine->model);
    tsr_runtime_close(rt);
}

/* Apart from the text that follows, since both may be on one terminal. */
static void show_plan(const tsr_plan *plan)
{
    fprintf(stderr, "\n");
    tsr_plan_print(plan, tool_write, stderr);
    fprintf(stderr, "\n");
}

static int run(const run_options *options, const tsr_model_config *config, const char *prompt,
               size_t prompt_bytes)
{
    tsr_runtime *rt = NULL;
    run_engine engine = {0};
    run_result result = {0};
    int code;
    double start = run_clock();
    tsr_status status = open_engine(options, config, &rt, &engine);
    result.load_s = run_clock() - start;
    tool_progress(1, NULL); /* a bar that a failure left behind */
    if (status != TSR_OK) {
        code = tool_fail("run", status);
    } else {
        if (options->verbose)
            show_plan(tsr_model_plan(engine.model));
        code = run_generate(&engine, options, prompt, prompt_bytes, &result);
    }
    if (code == TOOL_EXIT_OK)
        run_report(rt, &engine, options, &result);
    close_engine(rt, &engine);
    return result.interrupted ? TOOL_EXIT_INTERRUPTED : code;
}

int tsr_cmd_run(int argc, char **argv)
{
    run_options options;
    tsr_model_config config;
    float split[TSR_MAX_DEVICES];
    char *prompt = NULL;
    size_t prompt_bytes = 0;
    int code = run_options_read(argc, argv, &options);
    if (code == TOOL_GO_ON)
        code = tool_model_options_read("run", &options.model, split, &config);
    if (code == TOOL_GO_ON)
        code = run_prompt_read(&options, &prompt, &prompt_bytes);
    if (code == TOOL_GO_ON) {
        config.verify_upload = options.verify_upload;
        config.progress = tool_progress;
        config.progress_user = (void *)"loading";
        code = run(&options, &config, prompt, prompt_bytes);
    }
    free(prompt);
    return code;
}
