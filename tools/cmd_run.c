/* tsr run: open the devices and the model, generate, report. */
#include "tsr.h"

#include <stdlib.h>
#include <string.h>

#include "machine_options.h"
#include "measured.h"
#include "processes.h"
#include "progress.h"
#include "plan_inputs.h"
#include "run.h"

/* Set measured rates and links, so that the plan is that of tsr plan. */
static tsr_status describe_devices(const tsr_topology *topo, const char *devices, tool_measured *measured,
                                   tsr_model_config *config)
{
    tsr_device_list *list = NULL;
    tsr_status status = tsr_device_list_create(topo, devices, NULL, &list);
    if (status == TSR_OK)
        status = tool_measured_apply(topo, list, measured, config);
    tsr_device_list_destroy(list);
    return status;
}

/* The named template, or the one recognised in the file, which is reported on stderr. */
static tsr_status find_chat(const run_options *options, run_engine *engine)
{
    if (!options->chat)
        return TSR_OK;
    if (strcmp(options->chat, "auto") != 0)
        return tsr_chat_find(options->chat, &engine->chat);
    tsr_status status = tsr_chat_guess(tsr_model_gguf(engine->model), &engine->chat);
    if (status == TSR_OK)
        fprintf(stderr, "chat template: %s, recognised in the file; --chat NAME selects another\n",
                tsr_chat_name(engine->chat));
    return status;
}

static tsr_status open_engine(const run_options *options, const tsr_model_config *config,
                              const tool_processes *processes, tsr_runtime **rt, run_engine *engine)
{
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_info info;
    runtime_config.isa = options->isa;
    runtime_config.collectives = options->collectives;
    runtime_config.library_tokens = options->library_tokens;
    runtime_config.transport = processes->transport;
    runtime_config.logger = tool_logger(options->verbose);
    runtime_config.logger.user = processes->log;

    tsr_topology *topo = NULL;
    tool_machine_options here = {0};
    tool_measured measured = {0};
    tsr_model_config with_rates = *config;
    tsr_status status = tool_machine_topology(&here, &runtime_config.logger, &topo);
    runtime_config.topology = topo;
    if (status == TSR_OK)
        runtime_config.devices = tool_model_devices(&options->model, topo);
    if (status == TSR_OK && !processes->transport) /* measures devices of this machine only */
        status = describe_devices(topo, runtime_config.devices, &measured, &with_rates);
    if (status == TSR_OK)
        status = tsr_runtime_open(&runtime_config, rt);
    tsr_topology_destroy(topo);
    if (status == TSR_OK)
        status = tsr_model_open(*rt, options->model.model, &with_rates, &engine->model);
    tool_measured_free(&measured);
    if (status == TSR_OK)
        status = tsr_model_tokenizer(engine->model, &engine->tokenizer);
    if (status == TSR_OK)
        status = tsr_session_create(engine->model, &engine->session);
    if (status == TSR_OK)
        status = find_chat(options, engine);
    if (status == TSR_OK) {
        tsr_model_get_info(engine->model, &info);
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

/* Printed without -v, too: the result is less than the model allows. */
static void show_cuts(const run_options *options, const tsr_fit *fit)
{
    tsr_fit_info info = {.n_steps = 0};
    if (fit)
        tsr_fit_get_info(fit, &info);
    if (info.n_steps && options->fit)
        tsr_fit_print_cuts(fit, tool_write, stderr);
    else if (info.n_steps)
        fprintf(stderr, "context: %lld of %lld tokens, the most that fit; -c N sets another\n",
                (long long)info.chosen.n_ctx, (long long)info.wanted.n_ctx);
}

/* Separated from the generated text, since both may be on one terminal. */
static void show_plan(const tsr_plan *plan)
{
    fprintf(stderr, "\n");
    tsr_plan_print(plan, tool_write, stderr);
    fprintf(stderr, "\n");
}

static int run(const run_options *options, const tsr_model_config *config, const tool_processes *processes,
               const char *prompt, size_t prompt_bytes)
{
    tsr_runtime *rt = NULL;
    run_engine engine = {0};
    run_result result = {0};
    int code;
    double start = tool_clock();
    tsr_status status = open_engine(options, config, processes, &rt, &engine);
    result.load_s = tool_clock() - start;
    tool_progress_end(config->load.progress_user);
    if (status != TSR_OK) {
        code = tool_fail("run", status);
    } else {
        show_cuts(options, tsr_model_fit(engine.model));
        if (options->verbose)
            show_plan(tsr_model_plan(engine.model));
        code = (options->interactive ? run_converse : run_generate)(&engine, options, prompt, prompt_bytes,
                                                                    &result);
    }
    if (code == TOOL_EXIT_OK && !options->quiet)
        run_report(rt, &engine, options, &result);
    close_engine(rt, &engine);
    return result.interrupted ? TOOL_EXIT_INTERRUPTED : code;
}

/* Whether a host device has to join the GPUs is decided before any device is opened. */
static tsr_status find_devices(tool_model_options *model, tsr_fit_config *fit_config,
                               const tsr_model_config *config, size_t margins[TSR_MAX_DEVICES])
{
    const tool_machine_options here = {0};
    tool_plan_inputs in = {.silent = true}; /* what it warns of is found again when the devices are opened */
    tsr_fit *fit = NULL;
    tsr_fit_info info = {0};
    tsr_status status = tool_fit_create(model, &here, config, margins, &in, &fit);
    if (status == TSR_OK)
        tsr_fit_get_info(fit, &info);
    if (status == TSR_OK && fit_config->n_margins > 1)
        fit_config->n_margins = info.n_devices;
    tsr_fit_destroy(fit);
    tool_plan_inputs_close(&in);
    return status;
}

static int run_in_processes(run_options *options, const tsr_model_config *config, const char *prompt,
                            size_t prompt_bytes)
{
    tool_processes processes;
    if (!tool_processes_join("run", options->mpi, &processes))
        return TOOL_EXIT_FAILED;
    int code = TOOL_EXIT_FAILED;
    if (tool_processes_share("run", &processes, &options->sampler.seed, sizeof options->sampler.seed))
        code = run(options, config, &processes, prompt, prompt_bytes);
    fflush(stdout); /* before mpirun sees that this process is done */
    tool_processes_leave(&processes);
    return code;
}

int tsr_cmd_run(int argc, char **argv)
{
    run_options options;
    tsr_model_config config;
    float split[TSR_MAX_DEVICES];
    size_t margins[TSR_MAX_DEVICES];
    tsr_fit_config fit_config;
    tool_progress loading = {.what = "loading"};
    char *prompt = NULL;
    size_t prompt_bytes = 0;
    int code = run_options_read(argc, argv, &options);
    if (code == TOOL_GO_ON)
        code = tool_model_options_read("run", &options.model, split, &config);
    if (code == TOOL_GO_ON)
        code = tool_fit_options_read("run", &options.fitting, &options.model, margins, &fit_config);
    if (code == TOOL_GO_ON)
        code = run_prompt_read(&options, &prompt, &prompt_bytes);
    if (code == TOOL_GO_ON) {
        config.plan.fit = options.fit ? &fit_config : NULL;
        if (!options.mpi) /* each process would choose by the memory of its own machine */
            tool_model_open_context(&options.model, &config);
        config.load.verify_upload = options.verify_upload;
        loading.quiet = options.quiet;
        config.load.progress = tool_progress_show;
        config.load.progress_user = &loading;
        tsr_status status = TSR_OK;
        if (options.fit)
            status = find_devices(&options.model, &fit_config, &config, margins);
        code = status == TSR_OK ? run_in_processes(&options, &config, prompt, prompt_bytes)
                                : tool_fail("run", status);
    }
    free(prompt);
    return code;
}
