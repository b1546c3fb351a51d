/* tsr run: open the devices and the model, generate, report. */
#include "tsr.h"

#include <stdlib.h>
#include <string.h>

#include "run.h"

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

static tsr_status open_engine(const run_options *options, tool_engine *devices, tool_processes *processes,
                              run_engine *engine)
{
    tsr_model_info info;
    tsr_status status = tool_engine_open(devices, processes);
    engine->rt = devices->rt;
    if (status == TSR_OK)
        status = tool_engine_load(devices, options->engine.model.model, &devices->config, &engine->model);
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

static void close_engine(run_engine *engine)
{
    tsr_sampler_destroy(engine->sampler);
    tsr_session_destroy(engine->session);
    tsr_tokenizer_destroy(engine->tokenizer);
    tsr_model_close(engine->model);
}

static int run(const run_options *options, tool_engine *devices, tool_processes *processes,
               const char *prompt, size_t prompt_bytes)
{
    tool_trace trace = {.command = "run", .path = options->trace, .processes = processes};
    run_engine engine = {.trace = &trace, .processes = processes};
    run_result result = {0};
    int code;
    double start = tool_clock();
    tsr_status status = open_engine(options, devices, processes, &engine);
    if (status == TSR_OK)
        status = tool_trace_begin(&trace, devices->rt);
    result.load_s = tool_clock() - start;
    if (status != TSR_OK) {
        code = tool_fail("run", status);
    } else {
        tool_engine_show(devices, engine.model);
        code = (options->interactive ? run_converse : run_generate)(&engine, options, prompt, prompt_bytes,
                                                                    &result);
    }
    if (code == TOOL_EXIT_OK && !options->engine.quiet)
        run_report(devices->rt, &engine, options, &result);
    const int of_trace = tool_trace_end(&trace, options->engine.quiet);
    code = code == TOOL_EXIT_OK ? of_trace : code;
    close_engine(&engine);
    return result.interrupted ? TOOL_EXIT_INTERRUPTED : code;
}

/* In all processes, for the first, which writes the file. */
static int check_trace(const run_options *options, const tool_processes *processes)
{
    int32_t code = TOOL_GO_ON;
    if (tool_processes_is_first(processes))
        code = tool_trace_check(&(tool_trace){.command = "run", .path = options->trace});
    return tool_processes_share(processes, 0, &code, sizeof code) ? code : TOOL_EXIT_FAILED;
}

static int run_in_processes(run_options *options, tool_engine *devices)
{
    tool_processes processes;
    char *prompt = NULL;
    size_t prompt_bytes = 0;
    int code = tool_processes_join("run", options->engine.mpi, &processes);
    if (code == TOOL_GO_ON &&
        !tool_processes_share(&processes, 0, &options->sampler.seed, sizeof options->sampler.seed))
        code = TOOL_EXIT_FAILED;
    if (code == TOOL_GO_ON)
        code = check_trace(options, &processes);
    if (code == TOOL_GO_ON)
        code = run_prompt_read(options, &processes, &prompt, &prompt_bytes);
    if (code == TOOL_GO_ON)
        code = run(options, devices, &processes, prompt, prompt_bytes);
    free(prompt);
    return code;
}

int tsr_cmd_run(int argc, char **argv)
{
    run_options options;
    tool_engine devices = {0};
    int code = run_options_read(argc, argv, &options);
    if (code == TOOL_GO_ON)
        code = tool_engine_read("run", &options.engine, &devices);
    if (code == TOOL_GO_ON)
        code = run_in_processes(&options, &devices);
    tool_engine_close(&devices);
    return code;
}
