/* A device that allocates nothing and only counts. Planning runs the code that loads a model on dry-run
 * devices and then reads device->used[].
 *
 * alloc and reserve hand out addresses that are unique, aligned and never mapped; wrap gives the pointer
 * back; copies do nothing; programs are accepted and dropped; launching one is TSR_ERR_UNSUPPORTED.
 * Accounting, the memory cap and max_alloc work as on a real device. */
#ifndef TSR_ALLOC_BUFFER_DRY_DEVICE_H
#define TSR_ALLOC_BUFFER_DRY_DEVICE_H

#include "core/device.h"

/* alignment and granularity are powers of two; memory_cap and max_alloc may be SIZE_MAX (no limit). */
tsr_status tsr_measure_device_create(const char *name, int index, size_t memory_cap, size_t alignment,
                                     size_t max_alloc, size_t granularity, tsr_device **device_out);

/* A device that is lost becomes a stand-in for itself, without room: objects on it keep their accounts and
 * can be destroyed, and what they had there is never accessed again. tsr_device_destroy() closes the real
 * device. */
void tsr_device_become_dry(tsr_device *device);

#endif
