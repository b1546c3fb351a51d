/* Accounting and error texts around a device's own functions. */
#include "core/device.h"

#include "core/comm.h"
#include "core/mem.h"

const char *tsr_memory_owner_name(tsr_memory_owner owner)
{
    switch (owner) {
    case TSR_MEMORY_WEIGHTS:
        return "weights";
    case TSR_MEMORY_KV:
        return "kv";
    case TSR_MEMORY_ARENA:
        return "arena";
    case TSR_MEMORY_COMM:
        return "comm";
    case TSR_MEMORY_SCRATCH:
        return "scratch";
    case TSR_MEMORY_OTHER:
        return "other";
    case TSR_MEMORY_COUNT:
        break;
    }
    return "?";
}

void tsr_device_destroy(tsr_device *device)
{
    if (device)
        device->ops->destroy(device);
}

void tsr_comm_destroy(tsr_comm *comm)
{
    if (comm)
        comm->ops->destroy(comm);
}

size_t tsr_device_used(const tsr_device *device)
{
    size_t used = 0;
    for (int owner = 0; owner < TSR_MEMORY_COUNT; owner++)
        used += device->used[owner];
    return used;
}

tsr_status tsr_device_charge(tsr_device *device, tsr_memory_owner owner, size_t bytes, const char *what)
{
    size_t used = tsr_device_used(device);
    size_t left = device->memory_cap > used ? device->memory_cap - used : 0;
    if (bytes > left)
        return tsr_fail(
            TSR_ERR_MEMORY,
            "device %s: %s needs %zu bytes, %zu of %zu are left; give the device a smaller share, use a "
            "smaller context or raise its memory cap",
            device->name, what, bytes, left, device->memory_cap);
    device->used[owner] += bytes;
    return TSR_OK;
}

void tsr_device_uncharge(tsr_device *device, tsr_memory_owner owner, size_t bytes)
{
    device->used[owner] -= TSR_MIN(bytes, device->used[owner]);
}

tsr_status tsr_device_alloc(tsr_device *device, tsr_memory_owner owner, size_t bytes, const char *what,
                            void **pointer_out)
{
    tsr_status status = TSR_OK;
    *pointer_out = NULL;
    if (bytes == 0)
        return TSR_OK;
    TSR_TRY(tsr_device_charge(device, owner, bytes, what));
    status = device->ops->alloc(device, bytes, pointer_out);
    if (status != TSR_OK) {
        tsr_device_uncharge(device, owner, bytes);
        tsr_fail_in(status, "%s", what);
    }
out:
    return status;
}

void tsr_device_free(tsr_device *device, tsr_memory_owner owner, void *pointer, size_t bytes)
{
    if (!pointer)
        return;
    device->ops->free(device, pointer, bytes);
    tsr_device_uncharge(device, owner, bytes);
}

tsr_status tsr_device_hold_scratch(tsr_device *device)
{
    tsr_status status = TSR_OK;
    if (device->scratch_users == 0)
        status = tsr_device_alloc(device, TSR_MEMORY_SCRATCH, device->scratch_bytes, "the kernels' scratch",
                                  &device->scratch);
    device->scratch_users += status == TSR_OK;
    return status;
}

void tsr_device_drop_scratch(tsr_device *device)
{
    if (--device->scratch_users > 0)
        return;
    tsr_device_free(device, TSR_MEMORY_SCRATCH, device->scratch, device->scratch_bytes);
    device->scratch = NULL;
}

tsr_status tsr_device_upload(tsr_device *device, void *dst, const void *src, size_t bytes)
{
    return device->ops->upload(device, dst, bytes, src, bytes, bytes, 1);
}

tsr_status tsr_device_download(tsr_device *device, void *dst, const void *src, size_t bytes)
{
    return device->ops->download(device, dst, bytes, src, bytes, bytes, 1);
}

tsr_status tsr_device_copy(tsr_device *device, void *dst, const void *src, size_t bytes)
{
    return device->ops->copy(device, dst, bytes, src, bytes, bytes, 1);
}
