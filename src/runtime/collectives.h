/* The communicator of a runtime: the implementations for its devices and the one that the config names. */
#ifndef TSR_RUNTIME_COLLECTIVES_H
#define TSR_RUNTIME_COLLECTIVES_H

#include "core/runtime.h"

/* Make rt->comm for rt's devices. `name` as in tsr_runtime_config; NULL: "auto". */
tsr_status tsr_runtime_connect(tsr_runtime *rt, const char *name);

/* Destroy it, and make do with one through host memory, in this process. No collective exists, but those that
 * an abandoned thread may be in. A failure leaves the old one. */
tsr_status tsr_runtime_disconnect(tsr_runtime *rt);

/* Make it anew after a device was dropped: that of the config or, if it cannot be made, with a warning one
 * through host memory. In several processes all make this call, and it succeeds in all or fails in all.
 * Collectives as above. A failure leaves the one through host memory, or the old one. */
tsr_status tsr_runtime_connect_again(tsr_runtime *rt);

#endif
