/* A runtime of dry-run devices: planning runs the loader on it. */
#ifndef TSR_RUNTIME_DEVICE_PROPS_H
#define TSR_RUNTIME_DEVICE_PROPS_H

#include <tsr/runtime.h>

#include "core/runtime.h"

/* Properties that a dry-run device shares with the device it represents. */
typedef struct tsr_device_props {
    char name[32];
    tsr_device_kind kind;
    size_t memory_cap; /* compared with the plan's bytes; a dry run itself is unlimited */
    size_t margin;     /* bytes of the cap that a plan leaves free */
    size_t alignment, granularity, max_alloc, scratch_bytes;
    bool prefers_copies; /* as of struct tsr_device */
} tsr_device_props;

/* Bytes of the device that a plan may use: SIZE_MAX without a cap. */
static inline size_t tsr_device_props_room(const tsr_device_props *props)
{
    if (props->memory_cap == SIZE_MAX)
        return SIZE_MAX;
    return props->memory_cap > props->margin ? props->memory_cap - props->margin : 0;
}

/* Bytes of `wanted` that exceed the room. */
static inline size_t tsr_device_props_missing(const tsr_device_props *props, size_t wanted)
{
    size_t room = tsr_device_props_room(props);
    return wanted > room ? wanted - room : 0;
}

/* Bytes over all owners. */
static inline size_t tsr_used_total(const size_t used[TSR_MEMORY_COUNT])
{
    size_t bytes = 0;
    for (int o = 0; o < TSR_MEMORY_COUNT; o++)
        bytes += used[o];
    return bytes;
}

/* Properties of a device that is described but not opened, and of an open device (its cap is what is left
 * of it). */
void tsr_device_props_of_desc(const tsr_device_desc *desc, tsr_device_props *props_out);
void tsr_device_props_of(const tsr_device *device, tsr_device_props *props_out);

/* Closed with tsr_runtime_close(). */
tsr_status tsr_runtime_open_dry(const tsr_device_props *props, int n_devices, tsr_runtime **rt_out);

#endif
