/* The communicator of a runtime: the implementations for its devices and the one that the config names. */
#ifndef TSR_RUNTIME_COLLECTIVES_H
#define TSR_RUNTIME_COLLECTIVES_H

#include "core/runtime.h"

/* Make rt->comm for rt's devices. `name` as in tsr_runtime_config; NULL: "auto". */
tsr_status tsr_runtime_connect(tsr_runtime *rt, const char *name);

#endif
