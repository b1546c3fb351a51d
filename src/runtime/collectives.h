/* The communicator of a runtime: which implementations there are for its devices, and who asked for which. */
#ifndef TSR_RUNTIME_COLLECTIVES_H
#define TSR_RUNTIME_COLLECTIVES_H

#include "core/runtime.h"

/* Make rt->comm for rt's devices. `name` as in tsr_runtime_config; NULL: "auto". */
tsr_status tsr_runtime_connect(tsr_runtime *rt, const char *name);

#endif
