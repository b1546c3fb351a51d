/* A runtime's memory: reports, what was left over, and whether a plan still finds its room. */
#ifndef TSR_RUNTIME_MEMORY_H
#define TSR_RUNTIME_MEMORY_H

#include "core/runtime.h"

/* Note what is free on each device: the runtime is open, and nothing has been loaded. */
void tsr_runtime_note_free(tsr_runtime *rt);

/* Before anything is allocated: whether wanted[d] bytes are still free on each device. TSR_ERR_MEMORY where
 * they were when the runtime was opened and are not now, since somebody else took memory meanwhile; a warning
 * where they are in spite of that, and where there never were as many. Devices that do not tell are passed
 * by. */
tsr_status tsr_runtime_check_free(tsr_runtime *rt, const size_t *wanted);

/* Tell the logger what still exists and what is still in use, and forget it. */
void tsr_runtime_report_leaks(tsr_runtime *rt);

#endif
