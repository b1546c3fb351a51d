/* Device memory, plain and virtual; see memory.h.
 *
 * A reservation is backed one granule at a time, each by a physical allocation of its own, because granules
 * may be given back one at a time, and a mapping can only be undone whole. The handle of an allocation is
 * released as soon as it is mapped: the mapping keeps the memory alive, and undoing it frees it. */
#include "cuda/memory.h"

#include <stdio.h>

#include "core/mem.h"
#include "cuda/check.h"
#include "cuda/gpu.h"

struct tsr_cuda_reservation {
    tsr_cuda_reservation *next;
    unsigned char *base;
    size_t bytes;
    bool *backed; /* [bytes / granularity] */
};

/* ---- plain ----------------------------------------------------------------------------------------------
 */

tsr_status tsr_cuda_alloc(tsr_device *device, size_t bytes, void **pointer_out)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    int previous;
    void *pointer = NULL;
    tsr_status status = tsr_cuda_enter(cuda, &previous);
    if (status != TSR_OK)
        return status;
    status = TSR_CUDA(cudaMalloc(&pointer, bytes));
    tsr_cuda_leave(previous);
    if (status != TSR_OK)
        return tsr_fail_in(status, "device %s: %zu bytes", device->name, bytes);
    *pointer_out = pointer;
    return TSR_OK;
}

void tsr_cuda_free(tsr_device *device, void *pointer, size_t bytes)
{
    (void)bytes;
    int previous;
    if (!pointer || !tsr_cuda_enter_to_release(tsr_cuda(device), &previous))
        return;
    (void)cudaFree(pointer); /* waits for what uses it */
    (void)cudaGetLastError();
    tsr_cuda_leave(previous);
}

tsr_status tsr_cuda_memory_info(tsr_device *device, size_t *free_out, size_t *total_out)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    size_t available = 0, total = 0, used = tsr_device_used(device);
    int previous;
    tsr_status status = tsr_cuda_enter(cuda, &previous);
    if (status != TSR_OK)
        return status;
    status = TSR_CUDA(cudaMemGetInfo(&available, &total));
    tsr_cuda_leave(previous);
    if (status != TSR_OK)
        return tsr_fail_in(status, "device %s", device->name);
    /* A cap counts for both: what is above it does not exist for this device. */
    *free_out = TSR_MIN(available, device->memory_cap > used ? device->memory_cap - used : 0);
    *total_out = TSR_MIN(total, device->memory_cap);
    return TSR_OK;
}

/* ---- virtual --------------------------------------------------------------------------------------------
 */

/* Undo the mappings of granules [begin, end), which are all backed. */
static tsr_status unmap_run(tsr_cuda_device *cuda, tsr_cuda_reservation *r, size_t begin, size_t end)
{
    size_t granule = cuda->base.granularity;
    tsr_status status = TSR_CU(cuda->driver.cuMemUnmap((CUdeviceptr)(uintptr_t)(r->base + begin * granule),
                                                       (end - begin) * granule));
    for (size_t i = begin; i < end && status == TSR_OK; i++)
        r->backed[i] = false;
    return status;
}

/* Undo what is backed of [begin, end), run by run; a run that fails, granule by granule. What fails even so
 * stays, the rest goes. */
static tsr_status unmap(tsr_cuda_device *cuda, tsr_cuda_reservation *r, size_t begin, size_t end)
{
    tsr_status status = TSR_OK;
    for (size_t i = begin, run; i < end; i = run) {
        run = i + 1;
        if (!r->backed[i])
            continue;
        while (run < end && r->backed[run])
            run++;
        if (unmap_run(cuda, r, i, run) == TSR_OK)
            continue;
        for (size_t j = i; j < run; j++) {
            tsr_status own = unmap_run(cuda, r, j, j + 1);
            status = own == TSR_OK ? status : own;
        }
    }
    return status;
}

/* Back one granule with new memory. */
static tsr_status map_granule(tsr_cuda_device *cuda, tsr_cuda_reservation *r, size_t index)
{
    tsr_status status = TSR_OK;
    const tsr_cuda_driver *driver = &cuda->driver;
    size_t granule = cuda->base.granularity;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)(r->base + index * granule);
    CUmemAllocationProp prop = tsr_cuda_memory_prop(cuda->ordinal);
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;

    TSR_TRY(TSR_CU(driver->cuMemCreate(&handle, granule, &prop, 0)));
    status = TSR_CU(driver->cuMemMap(at, granule, 0, handle, 0));
    (void)driver->cuMemRelease(handle); /* a mapping keeps the memory */
    if (status != TSR_OK)
        goto out;
    r->backed[index] = true;
    TSR_TRY(TSR_CU(driver->cuMemSetAccess(at, granule, &access, 1)));
    TSR_TRY(TSR_CUDA(cudaMemsetAsync(r->base + index * granule, 0, granule, cuda->stream)));
out:
    return status;
}

/* Back what is not backed yet of [begin, end); after a failure, none of it. */
static tsr_status map_missing(tsr_cuda_device *cuda, tsr_cuda_reservation *r, size_t begin, size_t end)
{
    tsr_status status = TSR_OK;
    bool *was_backed = NULL;
    TSR_TRY(tsr_mem_array(end - begin, sizeof *was_backed, "a commit", &was_backed));
    for (size_t i = begin; i < end; i++)
        was_backed[i - begin] = r->backed[i];
    for (size_t i = begin; i < end && status == TSR_OK; i++)
        if (!r->backed[i])
            status = map_granule(cuda, r, i);
    if (status != TSR_OK) {
        (void)!tsr_cuda_drain(cuda); /* zeroing may be under way */
        char first[512];
        snprintf(first, sizeof first, "%s", tsr_last_error());
        for (size_t i = begin; i < end; i++)
            if (r->backed[i] && !was_backed[i - begin])
                (void)!unmap(cuda, r, i, i + 1);
        tsr_fail(status, "%s", first);
    }
out:
    tsr_mem_free(was_backed);
    return status;
}

static tsr_status reserve_space(tsr_cuda_device *cuda, tsr_cuda_reservation *r)
{
    tsr_status status = TSR_OK;
    if (!cuda->has_vmm)
        return TSR_CUDA(cudaMalloc((void **)&r->base, r->bytes));
    CUdeviceptr base = 0;
    TSR_TRY(TSR_CU(cuda->driver.cuMemAddressReserve(&base, r->bytes, 0, 0, 0)));
    r->base = (unsigned char *)(uintptr_t)base;
out:
    return status;
}

tsr_status tsr_cuda_reserve(tsr_device *device, size_t bytes, void **base_out)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    tsr_cuda_reservation *r = NULL;
    int previous;
    tsr_status status = tsr_cuda_enter(cuda, &previous);
    if (status != TSR_OK)
        return status;
    TSR_TRY(tsr_mem_array(1, sizeof *r, "a reservation", &r));
    r->bytes = tsr_align_up(bytes, device->granularity);
    TSR_TRY(tsr_mem_array(r->bytes / device->granularity, sizeof *r->backed, "a reservation", &r->backed));
    TSR_TRY(reserve_space(cuda, r));
    r->next = cuda->reservations;
    cuda->reservations = r;
    *base_out = r->base;
    r = NULL;
out:
    if (r)
        tsr_mem_free(r->backed);
    tsr_mem_free(r);
    tsr_cuda_leave(previous);
    return status == TSR_OK
               ? TSR_OK
               : tsr_fail_in(status, "device %s: %zu bytes of address space", device->name, bytes);
}

static tsr_cuda_reservation **find(tsr_cuda_device *cuda, const void *base)
{
    tsr_cuda_reservation **link = &cuda->reservations;
    while (*link && (*link)->base != base)
        link = &(*link)->next;
    return link;
}

void tsr_cuda_release(tsr_device *device, void *base, size_t bytes)
{
    (void)bytes;
    tsr_cuda_device *cuda = tsr_cuda(device);
    tsr_cuda_reservation **link = find(cuda, base), *r = *link;
    int previous;
    if (!r)
        return;
    if (tsr_cuda_enter_to_release(cuda, &previous)) {
        (void)!tsr_cuda_drain(cuda);
        if (cuda->has_vmm) {
            (void)!unmap(cuda, r, 0, r->bytes / device->granularity);
            (void)cuda->driver.cuMemAddressFree((CUdeviceptr)(uintptr_t)r->base, r->bytes);
        } else {
            (void)cudaFree(r->base);
        }
        (void)cudaGetLastError();
        tsr_cuda_leave(previous);
    }
    *link = r->next;
    tsr_mem_free(r->backed);
    tsr_mem_free(r);
}

/* Common to commit and decommit: the granules meant, or what is wrong with them. */
static tsr_status find_granules(tsr_cuda_device *cuda, void *base, size_t offset, size_t bytes,
                                tsr_cuda_reservation **r_out, size_t *begin_out, size_t *end_out)
{
    size_t granule = cuda->base.granularity;
    tsr_cuda_reservation *r = *find(cuda, base);
    if (!r || (offset | bytes) & (granule - 1) || offset > r->bytes || bytes > r->bytes - offset)
        return tsr_fail(
            TSR_ERR_INVALID,
            "device %s: offset %zu and size %zu of a commit must be multiples of %zu bytes inside a "
            "reservation",
            cuda->base.name, offset, bytes, granule);
    *r_out = r;
    *begin_out = offset / granule;
    *end_out = (offset + bytes) / granule;
    return TSR_OK;
}

/* Without virtual memory, new granules are only zeroed. */
static tsr_status zero_missing(tsr_cuda_device *cuda, tsr_cuda_reservation *r, size_t begin, size_t end)
{
    tsr_status status = TSR_OK;
    size_t granule = cuda->base.granularity;
    for (size_t i = begin; i < end; i++) {
        if (!r->backed[i])
            TSR_TRY(TSR_CUDA(cudaMemsetAsync(r->base + i * granule, 0, granule, cuda->stream)));
        r->backed[i] = true;
    }
out:
    return status;
}

tsr_status tsr_cuda_commit(tsr_device *device, void *base, size_t offset, size_t bytes)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    tsr_cuda_reservation *r;
    size_t begin, end;
    int previous;
    tsr_status status = find_granules(cuda, base, offset, bytes, &r, &begin, &end);
    if (status != TSR_OK)
        return status;
    status = tsr_cuda_enter(cuda, &previous);
    if (status != TSR_OK)
        return status;
    status = cuda->has_vmm ? map_missing(cuda, r, begin, end) : zero_missing(cuda, r, begin, end);
    tsr_cuda_leave(previous);
    return status == TSR_OK ? TSR_OK
                            : tsr_fail_in(status, "device %s: commit of %zu bytes", device->name, bytes);
}

tsr_status tsr_cuda_decommit(tsr_device *device, void *base, size_t offset, size_t bytes)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    tsr_cuda_reservation *r;
    size_t begin, end;
    int previous;
    tsr_status status = find_granules(cuda, base, offset, bytes, &r, &begin, &end);
    if (status != TSR_OK)
        return status;
    status = tsr_cuda_enter(cuda, &previous);
    if (status != TSR_OK)
        return status;
    TSR_TRY(tsr_cuda_drain(cuda)); /* nothing may still use what goes */
    if (cuda->has_vmm)
        TSR_TRY(unmap(cuda, r, begin, end));
    for (size_t i = begin; i < end; i++)
        r->backed[i] = false; /* as unmap has noted; without virtual memory it is all there is to do */
out:
    tsr_cuda_leave(previous);
    return status == TSR_OK ? TSR_OK
                            : tsr_fail_in(status, "device %s: decommit of %zu bytes", device->name, bytes);
}
