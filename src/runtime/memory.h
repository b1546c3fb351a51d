/* A runtime's memory: reports, leaks, and whether a plan still has its room. */
#ifndef TSR_RUNTIME_MEMORY_H
#define TSR_RUNTIME_MEMORY_H

#include "core/runtime.h"

/* Record the free bytes of each device: the runtime is open, and nothing has been loaded. */
void tsr_runtime_note_free(tsr_runtime *rt);

/* Before anything is allocated: check that wanted[d] bytes are still free on each device. TSR_ERR_MEMORY
 * if they were free when the runtime was opened and are not now, since another program has taken memory. A
 * warning if memory was taken but suffices, and if there never was enough. Devices that cannot report free
 * memory are skipped. */
tsr_status tsr_runtime_check_free(tsr_runtime *rt, const size_t *wanted);

/* Log the objects that still exist and the bytes still in use, and clear both. */
void tsr_runtime_report_leaks(tsr_runtime *rt);

#endif
