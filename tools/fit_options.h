/* The options that say what may be reduced so that a model fits: those of `tsr fit` and `tsr run --fit`. */
#ifndef TSR_TOOLS_FIT_OPTIONS_H
#define TSR_TOOLS_FIT_OPTIONS_H

#include <tsr/fit.h>

#include "plan_inputs.h"

/* As given; NULL where not. All zeros to begin with. */
typedef struct tool_fit_options {
    const char *kv, *margins;
    int n_ctx_min; /* 0: not given */
} tool_fit_options;

/* clang-format off */
#define TOOL_FIT_OPTION_ROWS(o)                                                                   \
    {NULL, "--fit-ctx", TOOL_INT, &(o).n_ctx_min, "N",                                            \
     "the smallest context that may be left, in tokens (default 4096)", 1, 1 << 30},              \
    {NULL, "--fit-kv", TOOL_STRING, &(o).kv, "TYPE[,TYPE]",                                       \
     "smaller types that keys and values may have, e.g. q8_0 (default: no change)", 0, 0},        \
    {NULL, "--fit-margin", TOOL_STRING, &(o).margins, "MIB,...",                                  \
     "memory left free on all devices, or on each: 512 (MiB) or 2GiB (default 1024)", 0, 0}
/* clang-format on */

/* Turn them into a fit that borrows `margins`; what `model` sets is not open to it. Returns TOOL_GO_ON, or
 * TOOL_EXIT_USAGE after one line on stderr. */
int tool_fit_options_read(const char *command, const tool_fit_options *options,
                          const tool_model_options *model, size_t margins[TSR_MAX_DEVICES],
                          tsr_fit_config *config_out);

/* Fit what `model` and `machine` name, as config->fit says, into `in` (zeros; closed by the caller in any
 * case). Where no devices were named and the GPUs alone have no room, however much is cut, a host device to
 * offload to joins them: model->devices then says so. `margins` are those that config->fit borrows. */
tsr_status tool_fit_create(tool_model_options *model, const tool_machine_options *machine,
                           const tsr_model_config *config, size_t margins[TSR_MAX_DEVICES],
                           tool_plan_inputs *in, tsr_fit **fit_out);

/* The options of `tsr run` that come to what the fit chose, on one line. */
void tool_fit_print_options(const tsr_fit *fit, FILE *out);

#endif
