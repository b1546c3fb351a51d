/* The end of a trace with its runtime. */
#ifndef TSR_RUNTIME_TRACE_H
#define TSR_RUNTIME_TRACE_H

#include "core/runtime.h"

/* Free the spans of all devices, on which no program runs. */
void tsr_runtime_drop_trace(tsr_runtime *rt);

#endif
