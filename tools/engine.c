/* Opening devices and models; see engine.h. */
#include "engine.h"

#include "machine_options.h"
#include "plan_inputs.h"
#include "tsr.h"

int tool_engine_check(const char *command, const tool_engine_options *o)
{
    const char *wrong = NULL;
    if (!o->fit && (o->fitting.n_ctx_min || o->fitting.kv || o->fitting.margins))
        wrong = "--fit-ctx, --fit-kv and --fit-margin need --fit";
    if (o->network && !o->mpi)
        wrong = TOOL_NETWORK_ALONE;
    if (!wrong)
        return TOOL_GO_ON;
    fprintf(stderr, "tsr %s: %s\n", command, wrong);
    return TOOL_EXIT_USAGE;
}

int tool_engine_read(const char *command, tool_engine_options *options, tool_engine *engine)
{
    *engine = (tool_engine){.options = options, .loading = {.what = "loading", .quiet = options->quiet}};
    int code = tool_model_options_read(command, &options->model, engine->split, &engine->config);
    if (code == TOOL_GO_ON)
        code =
            tool_fit_options_read(command, &options->fitting, &options->model, engine->margins, &engine->fit);
    if (code != TOOL_GO_ON)
        return code;
    engine->config.plan.fit = options->fit ? &engine->fit : NULL;
    tool_model_open_context(&options->model, &engine->config);
    engine->config.load.verify_upload = options->verify_upload;
    engine->config.load.progress = tool_progress_show;
    engine->config.load.progress_user = &engine->loading;
    const tool_machine_options here = {0};
    const tsr_logger logger = tool_logger(options->verbose);
    const tsr_status status = tool_machine_topology(&here, &logger, &engine->topo);
    return status == TSR_OK ? TOOL_GO_ON : tool_fail(command, status);
}

/* Whether a host device has to join the GPUs is decided before any device is opened. */
static tsr_status find_devices(tool_engine *engine)
{
    const tool_machine_options here = {0};
    tool_plan_inputs in = {.silent = true}; /* what it warns of is found again when the devices are opened */
    tsr_fit *fit = NULL;
    tsr_fit_info info = {0};
    tsr_status status =
        tool_fit_create(&engine->options->model, &here, &engine->config, engine->margins, &in, &fit);
    if (status == TSR_OK)
        tsr_fit_get_info(fit, &info);
    if (status == TSR_OK && engine->fit.n_margins > 1)
        engine->fit.n_margins = info.n_devices;
    tsr_fit_destroy(fit);
    tool_plan_inputs_close(&in);
    return status;
}

/* Set measured rates and links, so that the plan is that of tsr plan. In several processes once the runtime
 * is open: until then one may have failed, and would not take part. */
static tsr_status describe_devices(tool_engine *engine, const tool_processes *processes, const char *devices)
{
    const tsr_topology *topo = engine->topo;
    tsr_device_list *list = NULL;
    tsr_status status = tsr_device_list_create(topo, devices, NULL, &list);
    if (processes->transport)
        tool_measured_apply_together(processes, topo, list, tsr_runtime_n_devices(engine->rt),
                                     &engine->measured, &engine->config);
    else if (status == TSR_OK)
        status = tool_measured_apply(topo, list, &engine->measured, &engine->config);
    tsr_device_list_destroy(list);
    return processes->transport ? TSR_OK : status;
}

tsr_status tool_engine_open(tool_engine *engine, const tool_processes *processes)
{
    const tool_engine_options *options = engine->options;
    tsr_runtime_config config = tsr_runtime_config_default();
    config.isa = options->isa;
    config.collectives = options->collectives;
    config.library_tokens = options->library_tokens;
    config.transport = processes->transport;
    config.transport_timeout_ns = UINT64_C(1000000000) * (uint64_t)options->process_timeout;
    config.network = options->network;
    config.logger = tool_logger(options->verbose);
    config.topology = engine->topo;
    config.devices = tool_model_devices(&options->model, engine->topo);
    const bool chooses = options->fit && !processes->transport; /* processes would choose differently */
    tsr_status status = chooses ? find_devices(engine) : TSR_OK;
    if (status == TSR_OK && !processes->transport)
        status = describe_devices(engine, processes, config.devices);
    if (status == TSR_OK)
        status = tsr_runtime_open(&config, &engine->rt);
    if (status == TSR_OK && processes->transport)
        status = describe_devices(engine, processes, config.devices);
    return status;
}

tsr_status tool_engine_load(tool_engine *engine, const char *path, const tsr_model_config *config,
                            tsr_model **model_out)
{
    tsr_status status = tsr_model_open(engine->rt, path, config, model_out);
    tool_progress_end(&engine->loading);
    return status;
}

/* Printed without -v, too: the result is less than the model allows. */
static void show_cuts(const tool_engine_options *options, const tsr_fit *fit)
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

void tool_engine_show(const tool_engine *engine, const tsr_model *model)
{
    show_cuts(engine->options, tsr_model_fit(model));
    if (!engine->options->verbose)
        return;
    fprintf(stderr, "\n"); /* generated text may be on the same terminal */
    tsr_plan_print(tsr_model_plan(model), tool_write, stderr);
    fprintf(stderr, "\n");
}

void tool_engine_close(tool_engine *engine)
{
    tool_measured_free(&engine->measured);
    tsr_runtime_close(engine->rt);
    tsr_topology_destroy(engine->topo);
    engine->rt = NULL;
    engine->topo = NULL;
}
