/* Accounting and error texts around a device's own functions. */
#include "core/device.h"

#include <stdio.h>

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
    if (!device)
        return;
    tsr_pool_destroy(device->scratch_pool);
    device->scratch_pool = NULL;
    tsr_device_own_ops(device)->destroy(device);
}

bool tsr_device_is_lost(tsr_device *device)
{
    char sentence[1024];
    size_t available, total;
    if (device->lost || !device->is_gpu || device->elsewhere)
        return device->lost;
    snprintf(sentence, sizeof sentence, "%s", tsr_last_error());
    device->lost = device->ops->memory_info(device, &available, &total) == TSR_ERR_DEVICE_LOST;
    tsr_fail_store("%s", sentence);
    return device->lost;
}

size_t tsr_device_used(const tsr_device *device)
{
    size_t used = 0;
    for (int owner = 0; owner < TSR_MEMORY_COUNT; owner++)
        used += device->used[owner];
    return used;
}

/* Check that the cap leaves `bytes`. */
static tsr_status check_cap(const tsr_device *device, size_t bytes, const char *what)
{
    size_t used = tsr_device_used(device);
    size_t left = device->memory_cap > used ? device->memory_cap - used : 0;
    if (bytes > left)
        return tsr_fail(
            TSR_ERR_MEMORY,
            "device %s: %s needs %zu bytes, %zu of %zu are left; give the device a smaller share, use a "
            "smaller context or raise its memory cap",
            device->name, what, bytes, left, device->memory_cap);
    return TSR_OK;
}

/* Charge bytes that the device has allocated. */
static void enter(tsr_device *device, tsr_memory_owner owner, size_t bytes)
{
    tsr_accounting *accounting = &device->accounting;
    device->used[owner] += bytes;
    accounting->peak[owner] = TSR_MAX(accounting->peak[owner], device->used[owner]);
    accounting->peak_total = TSR_MAX(accounting->peak_total, tsr_device_used(device));
}

tsr_status tsr_device_charge(tsr_device *device, tsr_memory_owner owner, size_t bytes, const char *what)
{
    tsr_status status = check_cap(device, bytes, what);
    if (status == TSR_OK)
        enter(device, owner, bytes);
    return status;
}

void tsr_device_uncharge(tsr_device *device, tsr_memory_owner owner, size_t bytes)
{
    device->used[owner] -= TSR_MIN(bytes, device->used[owner]);
}

/* Bytes of device memory that the system uses for an allocation. */
static size_t taken_for(const tsr_device *device, size_t bytes)
{
    bool mapped = device->mapped_bytes && bytes >= device->mapped_bytes;
    return tsr_align_up(bytes, mapped ? device->granularity : device->alloc_unit ? device->alloc_unit : 1);
}

tsr_status tsr_device_alloc(tsr_device *device, tsr_memory_owner owner, size_t bytes, const char *what,
                            void **pointer_out)
{
    tsr_status status = TSR_OK;
    *pointer_out = NULL;
    if (bytes == 0)
        return TSR_OK;
    TSR_TRY(check_cap(device, bytes, what));
    status = device->ops->alloc(device, owner, bytes, pointer_out);
    if (status != TSR_OK)
        return tsr_fail_in(status, "%s", what);
    enter(device, owner, bytes);
    device->accounting.taken += taken_for(device, bytes);
out:
    return status;
}

void tsr_device_free_uncharged(tsr_device *device, void *pointer, size_t bytes)
{
    if (pointer && !tsr_watch_has_abandoned(device->watch))
        device->ops->free(device, pointer, bytes);
}

void tsr_device_free(tsr_device *device, tsr_memory_owner owner, void *pointer, size_t bytes)
{
    if (!pointer)
        return;
    tsr_device_free_uncharged(device, pointer, bytes);
    device->accounting.taken -= taken_for(device, bytes);
    tsr_device_uncharge(device, owner, bytes);
}

void tsr_device_note_runtime(tsr_device *device, size_t bytes)
{
    device->accounting.runtime += bytes;
    device->accounting.taken += taken_for(device, bytes);
}

void tsr_device_forget_runtime(tsr_device *device, size_t bytes)
{
    device->accounting.runtime -= bytes;
    device->accounting.taken -= taken_for(device, bytes);
}

/* Account for reserved addresses that get memory (note) or lose memory (forget). */
static void note_committed(tsr_device *device, size_t bytes)
{
    device->accounting.uncommitted -= bytes;
    device->accounting.taken += bytes;
}

static void note_decommitted(tsr_device *device, size_t bytes)
{
    device->accounting.uncommitted += bytes;
    device->accounting.taken -= bytes;
}

tsr_status tsr_device_reserve(tsr_device *device, tsr_memory_owner owner, size_t bytes, const char *what,
                              void **base_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(check_cap(device, bytes, what));
    TSR_TRY(device->ops->reserve(device, bytes, base_out));
    enter(device, owner, bytes);
    if (device->reserves_whole)
        device->accounting.taken += bytes;
    else
        device->accounting.uncommitted += bytes;
out:
    return status;
}

tsr_status tsr_device_commit(tsr_device *device, void *base, size_t offset, size_t bytes)
{
    tsr_status status = device->ops->commit(device, base, offset, bytes);
    if (status == TSR_OK && !device->reserves_whole)
        note_committed(device, bytes);
    return status;
}

tsr_status tsr_device_decommit(tsr_device *device, void *base, size_t offset, size_t bytes)
{
    if (tsr_watch_has_abandoned(device->watch))
        return tsr_watch_check(device->watch);
    tsr_status status = device->ops->decommit(device, base, offset, bytes);
    if (status == TSR_OK && !device->reserves_whole)
        note_decommitted(device, bytes);
    return status;
}

void tsr_device_release(tsr_device *device, tsr_memory_owner owner, void *base, size_t bytes,
                        size_t committed)
{
    if (!tsr_watch_has_abandoned(device->watch))
        device->ops->release(device, base, bytes);
    if (device->reserves_whole)
        committed = bytes;
    device->accounting.taken -= committed;
    device->accounting.uncommitted -= bytes - committed;
    tsr_device_uncharge(device, owner, bytes);
}

tsr_status tsr_device_wrap(tsr_device *device, tsr_memory_owner owner, const void *pointer, size_t bytes,
                           size_t charged, const char *what, const void **wrapped_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(check_cap(device, charged, what));
    TSR_TRY(device->ops->wrap(device, pointer, bytes, wrapped_out));
    enter(device, owner, charged);
    device->accounting.viewed += charged;
out:
    return status;
}

void tsr_device_unwrap(tsr_device *device, tsr_memory_owner owner, const void *wrapped, size_t bytes,
                       size_t charged)
{
    if (!tsr_watch_has_abandoned(device->watch))
        device->ops->unwrap(device, wrapped, bytes);
    device->accounting.viewed -= TSR_MIN(charged, device->accounting.viewed);
    tsr_device_uncharge(device, owner, charged);
}

/* TSR_ERR_UNSUPPORTED from memory_info() is a result like any other and is shared. */
tsr_status tsr_device_ask_memory(tsr_device *device, size_t *free_out, size_t *total_out)
{
    struct {
        uint64_t free_bytes, total_bytes;
        int32_t status, gap;
    } answer = {0};
    size_t free_bytes = 0, total_bytes = 0;
    if (!device->processes)
        return device->ops->memory_info(device, free_out, total_out);
    if (!device->elsewhere)
        answer.status = device->ops->memory_info(device, &free_bytes, &total_bytes);
    answer.free_bytes = free_bytes;
    answer.total_bytes = total_bytes;
    tsr_status status = tsr_processes_share(device->processes, device->process, TSR_OK, &answer,
                                            sizeof answer, sizeof answer, 1, "reading free memory");
    if (status != TSR_OK)
        return status;
    if (answer.status != TSR_OK && device->elsewhere)
        return tsr_fail((tsr_status)answer.status, "device %s cannot report its free memory", device->name);
    *free_out = (size_t)answer.free_bytes;
    *total_out = (size_t)answer.total_bytes;
    return (tsr_status)answer.status;
}

tsr_status tsr_device_memory_info(tsr_device *device, size_t *free_out, size_t *total_out)
{
    size_t available = 0, total = 0, used = tsr_device_used(device), cap = device->memory_cap;
    tsr_status status = tsr_device_ask_memory(device, &available, &total);
    if (status != TSR_OK)
        return status;
    size_t left = cap > used ? cap - used : 0;
    *free_out = device->may_exceed ? left : TSR_MIN(available, left);
    *total_out = device->may_exceed ? cap : TSR_MIN(total, cap);
    return TSR_OK;
}

tsr_status tsr_device_fetch(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                            size_t src_stride, size_t width, size_t height)
{
    tsr_status status = TSR_OK;
    if (!device->elsewhere)
        status = device->ops->download(device, dst, dst_stride, src, src_stride, width, height);
    return tsr_processes_share(device->processes, device->process, status, dst, dst_stride, width, height,
                               "reading a device's memory");
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
