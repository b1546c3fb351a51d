/* tsr run --survive: going on after a device or a process was lost. */
#ifndef TSR_TOOLS_RUN_LOSSES_H
#define TSR_TOOLS_RUN_LOSSES_H

#include <tsr/runtime.h>

#include "processes.h"

/* After TSR_ERR_DEVICE_LOST: go on without what is lost, and say so. Of several processes, those that are
 * gone get no messages any more. TSR_ERR_CANCELLED, after a message, without the first one, which writes the
 * text. Any other failure is final. */
tsr_status run_losses_go_on(tsr_runtime *rt, tool_processes *processes);

#endif
