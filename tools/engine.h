/* What commands that compute have in common (tsr run, tsr embed, tsr perplexity): the options of devices,
 * model and messages; opening the devices, and models on them.
 *
 *     code = tool_engine_read("run", &options, &engine);                 TOOL_GO_ON, or an exit code
 *     status = tool_engine_open(&engine, &processes);                    the devices
 *     status = tool_engine_load(&engine, path, &config, &model);         config: engine.config, or a copy
 *     tsr_model_close(model);
 *     tool_engine_close(&engine); */
#ifndef TSR_TOOLS_ENGINE_H
#define TSR_TOOLS_ENGINE_H

#include <tsr/model.h>

#include "fit_options.h"
#include "measured.h"
#include "model_options.h"
#include "processes.h"
#include "progress.h"

typedef struct tool_engine_options {
    tool_model_options model;
    tool_fit_options fitting;
    const char *isa, *collectives, *network; /* as in tsr_runtime_config */
    int library_tokens;                      /* as in tsr_runtime_config */
    int process_timeout;                     /* seconds; 0: the default */
    bool fit, mpi, verify_upload, verbose, quiet;
} tool_engine_options;

#define TOOL_ENGINE_OPTIONS_INIT         \
    {                                    \
        .model = TOOL_MODEL_OPTIONS_INIT \
    }

/* Rows for a command's table of options; `o` is a tool_engine_options. */
/* clang-format off */
#define TOOL_ENGINE_OPTION_ROWS(o)                                                                \
    TOOL_MODEL_ROW((o).model),                                                                    \
    TOOL_MODEL_OPTION_ROWS((o).model),                                                            \
    TOOL_HEADING_ROW("fitting"),                                                                  \
    {NULL, "--fit", TOOL_FLAG, &(o).fit, NULL,                                                    \
     "reduce what no option sets until the model fits, as tsr fit shows", 0, 0},                  \
    TOOL_FIT_OPTION_ROWS((o).fitting),                                                            \
    TOOL_HEADING_ROW("kernels, collectives and processes"),                                       \
    {NULL, "--isa", TOOL_STRING, &(o).isa, "NAME",                                                \
     "kernels of host devices: generic, avx2, ...; see tsr topo (default: best)", 0, 0},          \
    {NULL, "--collectives", TOOL_STRING, &(o).collectives, "KIND",                                \
     "between GPUs: peer, pinned, nccl, staged (default auto: the fastest measured)", 0, 0,       \
     TOOL_COLLECTIVES},                                                                           \
    {NULL, "--library-tokens", TOOL_INT, &(o).library_tokens, "N",                                \
     "fewest tokens that cuBLASLt multiplies, -1 = never (default 32)", -1, INT32_MAX},           \
    {NULL, "--verify-upload", TOOL_FLAG, &(o).verify_upload, NULL,                                \
     "read copied weights back from their device and compare", 0, 0},                             \
    TOOL_PROCESS_ROWS(o),                                                                         \
    {NULL, "--process-timeout", TOOL_INT, &(o).process_timeout, "S",                              \
     "with --mpi: seconds until a process that does not answer is lost (default 60)", 1, 86400}
#define TOOL_MESSAGE_ROWS(o, quiet_help)                                                          \
    TOOL_HEADING_ROW("messages"),                                                                 \
    {"-v", "--verbose", TOOL_FLAG, &(o).verbose, NULL,                                            \
     "show the plan and what the library chose", 0, 0},                                           \
    {"-q", "--quiet", TOOL_FLAG, &(o).quiet, NULL, quiet_help, 0, 0}
/* clang-format on */

/* TOOL_GO_ON, or TOOL_EXIT_USAGE after one line on stderr about options that exclude each other. */
int tool_engine_check(const char *command, const tool_engine_options *options);

typedef struct tool_engine {
    tool_engine_options *options;
    float split[TSR_MAX_DEVICES];
    size_t margins[TSR_MAX_DEVICES];
    tsr_fit_config fit;
    tool_progress loading;
    tool_measured measured;
    tsr_model_config config; /* of models; points into this struct, which must not be moved */
    tsr_topology *topo;      /* this machine */
    tsr_runtime *rt;         /* NULL: not open */
} tool_engine;

/* Convert the options to engine_out->config, and discover the machine; the engine borrows the options.
 * Returns TOOL_GO_ON or an exit code, after an error message. Before processes join. */
int tool_engine_read(const char *command, tool_engine_options *options, tool_engine *engine_out);

/* Open the devices; with --fit decide before whether a host device has to join the GPUs. The devices of
 * several processes are those of --devices. */
tsr_status tool_engine_open(tool_engine *engine, const tool_processes *processes);

/* Open a model on the devices. */
tsr_status tool_engine_load(tool_engine *engine, const char *path, const tsr_model_config *config,
                            tsr_model **model_out);

/* Report what a fit reduced, and the plan with -v, on stderr. */
void tool_engine_show(const tool_engine *engine, const tsr_model *model);

void tool_engine_close(tool_engine *engine); /* after the models; of zeros, too */

#endif
