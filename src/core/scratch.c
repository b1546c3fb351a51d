/* A device's scratch: temporary memory from a pool whose blocks are ordinary allocations of the device (on
 * a GPU with virtual memory management those of a granule and more are mappings), charged as scratch. */
#include "core/device.h"

static tsr_status get(void *user, size_t bytes, const char *what, void **data_out)
{
    return tsr_device_alloc(user, TSR_MEMORY_SCRATCH, bytes, what, data_out);
}

static void put(void *user, void *data, size_t bytes)
{
    tsr_device_free(user, TSR_MEMORY_SCRATCH, data, bytes);
}

static tsr_status mark(void *user, int stream, void **point)
{
    tsr_device *device = user;
    return device->ops->stream_mark(device, stream, point);
}

static bool passed(void *user, void *point)
{
    tsr_device *device = user;
    return device->ops->stream_passed(device, point);
}

static tsr_status wait_for(void *user, int stream, void *point)
{
    tsr_device *device = user;
    return device->ops->stream_wait(device, stream, point);
}

static void drop(void *user, void *point)
{
    tsr_device *device = user;
    device->ops->stream_drop(device, point);
}

static const tsr_pool_source blocking = {.get = get, .put = put};
static const tsr_pool_source streaming = {get, put, mark, passed, wait_for, drop};

tsr_status tsr_device_scratch_take(tsr_device *device, size_t bytes, int stream, const char *what,
                                   tsr_pool_block **block_out)
{
    tsr_status status = TSR_OK;
    const tsr_pool_source *source = device->ops->stream_mark ? &streaming : &blocking;
    if (!device->scratch_pool)
        TSR_TRY(tsr_pool_create(source, device, "scratch", SIZE_MAX, &device->scratch_pool));
    TSR_TRY(tsr_pool_take(device->scratch_pool, bytes, stream, what, block_out));
out:
    return status;
}

void tsr_device_scratch_give(tsr_device *device, tsr_pool_block *block, int stream)
{
    if (block)
        tsr_pool_give(device->scratch_pool, block, stream);
}

void tsr_device_trim(tsr_device *device)
{
    if (device->scratch_pool)
        tsr_pool_trim(device->scratch_pool, 0);
    if (device->ops->trim)
        device->ops->trim(device);
}

tsr_status tsr_device_hold_scratch(tsr_device *device)
{
    tsr_status status = TSR_OK;
    if (device->scratch_users == 0 && device->scratch_bytes > 0) {
        TSR_TRY(tsr_device_scratch_take(device, device->scratch_bytes, TSR_STREAM_PROGRAMS,
                                        "the kernels' scratch", &device->scratch_block));
        device->scratch = device->scratch_block->data;
    }
    device->scratch_users++;
out:
    return status;
}

/* Programs are destroyed by now. A device without any keeps nothing, so that its use equals the plan. */
void tsr_device_drop_scratch(tsr_device *device)
{
    if (--device->scratch_users > 0)
        return;
    tsr_device_scratch_give(device, device->scratch_block, TSR_POOL_HOST);
    device->scratch_block = NULL;
    device->scratch = NULL;
    if (device->scratch_pool)
        tsr_pool_trim(device->scratch_pool, 0);
}
