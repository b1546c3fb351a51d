/* The options that allow reductions so that a model fits: of `tsr fit` and `tsr run --fit`. */
#ifndef TSR_TOOLS_FIT_OPTIONS_H
#define TSR_TOOLS_FIT_OPTIONS_H

#include <tsr/fit.h>

#include "plan_inputs.h"

/* As given; NULL if not. Initially all zeros. */
typedef struct tool_fit_options {
    const char *kv, *margins;
    int n_ctx_min; /* 0: not given */
} tool_fit_options;

/* clang-format off */
#define TOOL_FIT_OPTION_ROWS(o)                                                                   \
    {NULL, "--fit-ctx", TOOL_INT, &(o).n_ctx_min, "N",                                            \
     "the smallest context that may be left, in tokens (default 4096)", 1, 1 << 30},              \
    {NULL, "--fit-kv", TOOL_STRING, &(o).kv, "TYPE[,TYPE]",                                       \
     "smaller types that keys and values may have, e.g. q8_0 (default: no change)", 0, 0, TOOL_KV_TYPES}, \
    {NULL, "--fit-margin", TOOL_STRING, &(o).margins, "MIB,...",                                  \
     "memory left free on all devices, or on each: 512 (MiB) or 2GiB (default 1024)", 0, 0}
/* clang-format on */

/* Convert them to a fit that borrows `margins`; settings of `model` are fixed. Returns TOOL_GO_ON, or
 * TOOL_EXIT_USAGE after one line on stderr. */
int tool_fit_options_read(const char *command, const tool_fit_options *options,
                          const tool_model_options *model, size_t margins[TSR_MAX_DEVICES],
                          tsr_fit_config *config_out);

/* Fit the model of `model` to `machine`, by config->fit, into `in` (zeros; closed by the caller in any
 * case). If no devices were named and no reduction fits on the GPUs alone, a host device to offload to is
 * added, and model->devices is set. `margins` are those that config->fit borrows. */
tsr_status tool_fit_create(tool_model_options *model, const tool_machine_options *machine,
                           const tsr_model_config *config, size_t margins[TSR_MAX_DEVICES],
                           tool_plan_inputs *in, tsr_fit **fit_out);

/* Print the options of `tsr run` that are equivalent to the fit, without defaults. */
void tool_fit_print_options(const tsr_fit *fit, FILE *out);

#endif
