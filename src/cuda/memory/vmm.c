/* Ranges of virtual memory; see vmm.h.
 *
 * A growing range is backed one granule at a time, each by its own physical allocation, because granules may
 * be given back one at a time and a mapping can only be undone whole. An allocation that is freed as a whole
 * is one mapping: four driver calls, whatever its size. The handle of physical memory is released as soon as
 * it is mapped: the mapping keeps the memory alive, and undoing the mapping frees it. */
#include "cuda/memory/vmm.h"

#include <stdio.h>

#include <tsr/bytes.h>

#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/api/driver.h"
#include "cuda/context/context.h"

static CUdeviceptr address(const tsr_cuda_range *range, size_t offset)
{
    return (CUdeviceptr)(uintptr_t)(range->base + offset);
}

/* -- ranges -- */

static tsr_status make_range(tsr_cuda_device *cuda, size_t bytes, tsr_cuda_range **range_out)
{
    tsr_status status = TSR_OK;
    tsr_cuda_range *range = NULL;
    size_t granule = cuda->base.granularity;
    if (bytes > SIZE_MAX - granule)
        return tsr_fail(TSR_ERR_MEMORY, "%zu bytes exceed the address space", bytes);
    TSR_TRY(TSR_NEW(&range, "a range of device memory"));
    range->bytes = tsr_align_up(bytes, granule);
    TSR_TRY(tsr_mem_array(range->bytes / granule, sizeof *range->backed, "a range of device memory",
                          &range->backed));
    *range_out = range;
    range = NULL;
out:
    tsr_mem_free(range);
    return status;
}

static void free_range(tsr_cuda_range *range)
{
    if (range)
        tsr_mem_free(range->backed);
    tsr_mem_free(range);
}

static void enlist(tsr_cuda_device *cuda, tsr_cuda_range *range)
{
    range->next = cuda->ranges;
    cuda->ranges = range;
}

tsr_status tsr_cuda_range_create(tsr_cuda_device *cuda, size_t bytes, bool shared, tsr_cuda_range **range_out)
{
    tsr_status status = TSR_OK;
    tsr_cuda_range *range = NULL;
    CUdeviceptr base = 0;
    TSR_TRY(make_range(cuda, bytes, &range));
    TSR_TRY(TSR_CU(cuda->driver.cuMemAddressReserve(&base, range->bytes, 0, 0, 0)));
    range->base = (unsigned char *)(uintptr_t)base;
    range->shared = shared;
    enlist(cuda, range);
    *range_out = range;
    range = NULL;
out:
    free_range(range);
    return status;
}

tsr_status tsr_cuda_range_of_memory(tsr_cuda_device *cuda, void *memory, size_t bytes,
                                    tsr_cuda_range **range_out)
{
    tsr_cuda_range *range = NULL;
    tsr_status status = make_range(cuda, bytes, &range);
    if (status != TSR_OK)
        return status;
    range->base = memory;
    range->plain = true;
    enlist(cuda, range);
    *range_out = range;
    return TSR_OK;
}

tsr_cuda_range *tsr_cuda_range_find(const tsr_cuda_device *cuda, const void *base)
{
    tsr_cuda_range *range = cuda->ranges;
    while (range && range->base != base)
        range = range->next;
    return range;
}

/* Undo the mappings of a range, or free its plain memory. */
static void drop_memory(tsr_cuda_device *cuda, tsr_cuda_range *range)
{
    if (range->plain) {
        (void)cudaFree(range->base);
        return;
    }
    size_t granule = range->whole ? range->bytes : cuda->base.granularity;
    for (size_t i = 0; i < range->bytes / granule; i++)
        if (range->whole || range->backed[i]) /* one by one: a failure does not keep the other granules */
            (void)cuda->driver.cuMemUnmap(address(range, i * granule), granule);
    (void)cuda->driver.cuMemAddressFree(address(range, 0), range->bytes);
}

/* Lost peers to which no memory is closed any more are peers again. */
static void regain_peers(tsr_cuda_device *cuda)
{
    uint64_t closed_to = 0;
    for (const tsr_cuda_range *range = cuda->ranges; range; range = range->next)
        closed_to |= range->closed_to;
    cuda->peers |= cuda->lost_peers & ~closed_to;
    cuda->lost_peers &= closed_to;
}

void tsr_cuda_range_destroy(tsr_cuda_device *cuda, tsr_cuda_range *range)
{
    tsr_cuda_range **link = &cuda->ranges;
    while (*link != range)
        link = &(*link)->next;
    *link = range->next;
    drop_memory(cuda, range);
    (void)cudaGetLastError();
    if (range->closed_to)
        regain_peers(cuda);
    free_range(range);
}

void tsr_cuda_ranges_abandon(tsr_cuda_device *cuda)
{
    while (cuda->ranges) {
        tsr_cuda_range *range = cuda->ranges;
        cuda->ranges = range->next;
        free_range(range);
    }
}

/* -- access -- */

static CUmemAccessDesc access_of(int ordinal, CUmemAccess_flags flags)
{
    return (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
                             .flags = flags};
}

static tsr_status give_access(const tsr_cuda_device *cuda, const tsr_cuda_range *range, size_t offset,
                              size_t bytes, int ordinal)
{
    CUmemAccessDesc access = access_of(ordinal, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return TSR_CU(cuda->driver.cuMemSetAccess(address(range, offset), bytes, &access, 1));
}

/* Where access cannot be taken back, the range has room in the BAR1 window until it is freed. */
static void take_access(const tsr_cuda_device *cuda, const tsr_cuda_range *range, int ordinal)
{
    CUmemAccessDesc access = access_of(ordinal, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    (void)cuda->driver.cuMemSetAccess(address(range, 0), range->bytes, &access, 1);
}

/* The driver maps a peer's access over PCIe into the BAR1 window, and fails when the window is full. */
static void lose_peer(tsr_cuda_device *cuda, int ordinal, size_t bytes)
{
    char size[TSR_BYTES_TEXT];
    cuda->peers &= ~((uint64_t)1 << ordinal);
    cuda->lost_peers |= (uint64_t)1 << ordinal;
    tsr_log(
        &cuda->logger, TSR_LOG_WARN,
        "devices %s and cuda%d: %s of the first one's memory cannot be mapped for the second, so until it is "
        "freed their collectives avoid peer access; a larger BAR1 (\"Above 4G decoding\" and \"Resizable "
        "BAR\" in "
        "the firmware's setup) or a smaller n_batch leaves room: %s",
        cuda->base.name, ordinal, tsr_bytes_text(bytes, size), tsr_last_error());
    tsr_fail_clear();
}

/* Give access to the device's own GPU, and to peers if the range is shared. A peer for which that fails is
 * lost, which is no error unless the device is, too. */
static tsr_status set_access(tsr_cuda_device *cuda, tsr_cuda_range *range, size_t offset, size_t bytes)
{
    tsr_status status = TSR_OK;
    TSR_TRY(give_access(cuda, range, offset, bytes, cuda->ordinal));
    for (int i = 0; i < TSR_CUDA_MAX_GPUS && range->shared; i++) {
        if (i == cuda->ordinal || !(cuda->peers >> i & 1))
            continue;
        status = give_access(cuda, range, offset, bytes, i);
        if (status == TSR_ERR_DEVICE_LOST)
            goto out;
        if (status != TSR_OK)
            lose_peer(cuda, i, bytes);
        status = TSR_OK;
    }
    if (range->shared)
        range->closed_to = cuda->lost_peers;
out:
    return status;
}

tsr_status tsr_cuda_vmm_let_peer(tsr_cuda_device *cuda, int ordinal)
{
    tsr_status status = TSR_OK;
    const tsr_cuda_range *range, *end = NULL;
    if (ordinal >= TSR_CUDA_MAX_GPUS)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "GPU %d: peers are numbered 0 to %d", ordinal,
                        TSR_CUDA_MAX_GPUS - 1);
    for (range = cuda->ranges; range; range = range->next)
        if (range->whole && range->shared)
            TSR_TRY(give_access(cuda, range, 0, range->bytes, ordinal));
    cuda->peers |= (uint64_t)1 << ordinal;
out:
    if (status != TSR_OK && !((cuda->peers | cuda->lost_peers) >> ordinal & 1)) /* it had no access before */
        end = range;
    for (range = cuda->ranges; end && range != end; range = range->next)
        if (range->whole && range->shared)
            take_access(cuda, range, ordinal);
    return status;
}

/* -- backing -- */

static tsr_status map_new_memory(const tsr_cuda_device *cuda, const tsr_cuda_range *range, size_t offset,
                                 size_t bytes)
{
    tsr_status status = TSR_OK;
    CUmemAllocationProp prop = tsr_cuda_memory_prop(cuda->ordinal);
    CUmemGenericAllocationHandle handle;
    TSR_TRY(TSR_CU(cuda->driver.cuMemCreate(&handle, bytes, &prop, 0)));
    status = TSR_CU(cuda->driver.cuMemMap(address(range, offset), bytes, 0, handle, 0));
    (void)cuda->driver.cuMemRelease(handle); /* a mapping keeps the memory */
out:
    return status;
}

tsr_status tsr_cuda_range_fill(tsr_cuda_device *cuda, tsr_cuda_range *range)
{
    tsr_status status = TSR_OK;
    TSR_TRY(map_new_memory(cuda, range, 0, range->bytes));
    range->whole = true;
    TSR_TRY(set_access(cuda, range, 0, range->bytes));
out:
    return status;
}

/* The next run of granules in [*begin, end) without memory; false if there is none. */
static bool next_gap(const tsr_cuda_range *range, size_t end, size_t *begin, size_t *run_end)
{
    size_t i = *begin;
    while (i < end && range->backed[i])
        i++;
    *begin = i;
    while (i < end && !range->backed[i])
        i++;
    *run_end = i;
    return *begin < end;
}

/* Back granules [begin, end), none of which has memory: memory for each, then access and zeros for all
 * together. */
static tsr_status back_run(tsr_cuda_device *cuda, tsr_cuda_range *range, size_t begin, size_t end)
{
    tsr_status status = TSR_OK;
    size_t granule = cuda->base.granularity;
    for (size_t i = begin; i < end; i++) {
        if (!range->plain)
            TSR_TRY(map_new_memory(cuda, range, i * granule, granule));
        range->backed[i] = true;
    }
    if (!range->plain)
        TSR_TRY(set_access(cuda, range, begin * granule, (end - begin) * granule));
    TSR_TRY(
        TSR_CUDA(cudaMemsetAsync(range->base + begin * granule, 0, (end - begin) * granule, cuda->copies)));
    atomic_store(&cuda->copies_pending, true);
out:
    return status;
}

tsr_status tsr_cuda_range_commit(tsr_cuda_device *cuda, tsr_cuda_range *range, size_t begin, size_t end)
{
    tsr_status status = TSR_OK;
    bool *was_backed = NULL;
    TSR_TRY(tsr_mem_array(end - begin, sizeof *was_backed, "a commit", &was_backed));
    for (size_t i = begin; i < end; i++)
        was_backed[i - begin] = range->backed[i];
    for (size_t at = begin, run_end; status == TSR_OK && next_gap(range, end, &at, &run_end); at = run_end)
        status = back_run(cuda, range, at, run_end);
    if (status != TSR_OK) {
        char first[512];
        snprintf(first, sizeof first, "%s", tsr_last_error());
        (void)!tsr_cuda_quiesce(cuda); /* zeroing may be in flight */
        for (size_t i = begin; i < end; i++)
            if (range->backed[i] && !was_backed[i - begin])
                (void)!tsr_cuda_range_decommit(cuda, range, i, i + 1);
        tsr_fail(status, "%s", first);
    }
out:
    tsr_mem_free(was_backed);
    return status;
}

/* One at a time: the range given to cuMemUnmap "must be the entire contiguous address range that was mapped"
 * (CUDA Driver API, "Virtual Memory Management"), and each granule is a mapping. */
tsr_status tsr_cuda_range_decommit(tsr_cuda_device *cuda, tsr_cuda_range *range, size_t begin, size_t end)
{
    tsr_status status = TSR_OK;
    size_t granule = cuda->base.granularity;
    for (size_t i = begin; i < end; i++) {
        tsr_status own = TSR_OK;
        if (range->backed[i] && !range->plain)
            own = TSR_CU(cuda->driver.cuMemUnmap(address(range, i * granule), granule));
        if (own == TSR_OK)
            range->backed[i] = false;
        else
            status = own; /* continue with the other granules */
    }
    return status;
}
