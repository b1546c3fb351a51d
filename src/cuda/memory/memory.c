/* Device memory; see memory.h. */
#include "cuda/memory/memory.h"

#include "core/input/meminfo.h"
#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/context/context.h"
#include "cuda/memory/vmm.h"

/* -- allocations -- */

/* Prefer GPU memory for managed memory; the excess stays in host memory. A hint: systems that do not support
 * it (WSL) return an error, and the memory works nevertheless. */
static void prefer_gpu(const tsr_cuda_device *cuda, const void *pointer, size_t bytes)
{
#if CUDART_VERSION >= 13000
    struct cudaMemLocation here = {.type = cudaMemLocationTypeDevice, .id = cuda->ordinal};
#else
    int here = cuda->ordinal;
#endif
    (void)cudaMemAdvise(pointer, bytes, cudaMemAdviseSetPreferredLocation, here);
    (void)cudaGetLastError();
}

static tsr_status alloc_managed(const tsr_cuda_device *cuda, size_t bytes, void **pointer_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(TSR_CUDA(cudaMallocManaged(pointer_out, bytes, cudaMemAttachGlobal)));
    prefer_gpu(cuda, *pointer_out, bytes);
out:
    return status;
}

/* Peers read partial sums and staging buffers, and NCCL writes a peer's results and scratch in place. The
 * rest stays private: over PCIe, memory that a peer may use takes as much of the BAR1 window, which has
 * 256 MiB where the firmware does not enlarge it. */
static bool peers_use(const tsr_cuda_device *cuda, tsr_memory_owner owner)
{
    return owner == TSR_MEMORY_COMM ||
           (cuda->nccl_writes && (owner == TSR_MEMORY_ARENA || owner == TSR_MEMORY_SCRATCH));
}

static tsr_status alloc_mapped(tsr_cuda_device *cuda, bool shared, size_t bytes, void **pointer_out)
{
    tsr_status status = TSR_OK;
    tsr_cuda_range *range = NULL;
    TSR_TRY(tsr_cuda_range_create(cuda, bytes, shared, &range));
    status = tsr_cuda_range_fill(cuda, range);
    if (status == TSR_OK)
        *pointer_out = range->base;
    else
        tsr_cuda_range_destroy(cuda, range);
out:
    return status;
}

/* Small allocations would waste most of a granule; cudaMalloc packs them. */
static tsr_status alloc_any(tsr_cuda_device *cuda, tsr_memory_owner owner, size_t bytes, void **pointer_out)
{
    if (cuda->managed)
        return alloc_managed(cuda, bytes, pointer_out);
    if (cuda->has_vmm && bytes >= cuda->base.granularity)
        return alloc_mapped(cuda, peers_use(cuda, owner), bytes, pointer_out);
    cudaError_t error = cudaMalloc(pointer_out, bytes);
    if (!cuda->has_vmm || error != cudaErrorMapBufferObjectFailed)
        return tsr_cuda_result(error, "cudaMalloc");
    /* BAR1 is full, and peers with access get access to all of cudaMalloc's memory. */
    (void)cudaGetLastError();
    return alloc_mapped(cuda, peers_use(cuda, owner), bytes, pointer_out);
}

tsr_status tsr_cuda_alloc(tsr_device *device, tsr_memory_owner owner, size_t bytes, void **pointer_out)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    void *pointer = NULL;
    tsr_status status = tsr_cuda_enter(cuda);
    if (status != TSR_OK)
        return status;
    status = alloc_any(cuda, owner, bytes, &pointer);
    tsr_cuda_leave(cuda);
    if (status != TSR_OK)
        return tsr_fail_in(status, "device %s: %zu bytes", device->name, bytes);
    *pointer_out = pointer;
    return TSR_OK;
}

void tsr_cuda_free(tsr_device *device, void *pointer, size_t bytes)
{
    (void)bytes;
    tsr_cuda_device *cuda = tsr_cuda(device);
    if (!pointer || !tsr_cuda_enter_to_release(cuda))
        return;
    tsr_cuda_range *range = tsr_cuda_range_find(cuda, pointer);
    if (range) {
        tsr_cuda_quiesce_to_release(cuda); /* unmapping does not wait for work that uses the memory */
        tsr_cuda_range_destroy(cuda, range);
    } else {
        (void)cudaFree(pointer); /* cudaFree waits */
    }
    (void)cudaGetLastError();
    tsr_cuda_leave(cuda);
}

tsr_status tsr_cuda_memory_now(const tsr_cuda_device *cuda, size_t *free_out, size_t *total_out)
{
    tsr_status status = TSR_CUDA(cudaMemGetInfo(free_out, total_out));
    size_t available, total;
    if (status != TSR_OK || !cuda->wrapping.integrated)
        return status;
    if (tsr_meminfo(-1, &available, &total) == TSR_OK)
        *free_out = TSR_MIN(available, *total_out);
    else
        tsr_fail_clear();
    return TSR_OK;
}

size_t tsr_cuda_free_bytes(void)
{
    size_t available = 0, total = 0;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return available;
}

tsr_status tsr_cuda_alloc_own(tsr_cuda_device *cuda, size_t bytes, void **pointer_out)
{
    tsr_status status = TSR_CUDA(cudaMalloc(pointer_out, bytes));
    if (status == TSR_OK)
        tsr_device_note_runtime(&cuda->base, bytes);
    return status;
}

void tsr_cuda_free_own(tsr_cuda_device *cuda, void *pointer, size_t bytes)
{
    if (!pointer)
        return;
    (void)cudaFree(pointer);
    tsr_device_forget_runtime(&cuda->base, bytes);
}

tsr_status tsr_cuda_memory_info(tsr_device *device, size_t *free_out, size_t *total_out)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    size_t available = 0, total = 0;
    tsr_status status = tsr_cuda_enter(cuda);
    if (status != TSR_OK)
        return status;
    status = tsr_cuda_memory_now(cuda, &available, &total);
    tsr_cuda_leave(cuda);
    if (status != TSR_OK)
        return tsr_fail_in(status, "device %s", device->name);
    *free_out = available;
    *total_out = total;
    return TSR_OK;
}

/* -- growing -- */

static tsr_status reserve_plain(tsr_cuda_device *cuda, size_t bytes, tsr_cuda_range **range_out)
{
    tsr_status status = TSR_OK;
    void *memory = NULL;
    bytes = tsr_align_up(bytes, cuda->base.granularity);
    TSR_TRY(cuda->managed ? alloc_managed(cuda, bytes, &memory) : TSR_CUDA(cudaMalloc(&memory, bytes)));
    status = tsr_cuda_range_of_memory(cuda, memory, bytes, range_out);
    if (status != TSR_OK)
        (void)cudaFree(memory);
out:
    return status;
}

tsr_status tsr_cuda_reserve(tsr_device *device, size_t bytes, void **base_out)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    tsr_cuda_range *range = NULL;
    tsr_status status = tsr_cuda_enter(cuda);
    if (status != TSR_OK)
        return status;
    status = cuda->has_vmm && !cuda->managed ? tsr_cuda_range_create(cuda, bytes, false, &range)
                                             : reserve_plain(cuda, bytes, &range);
    tsr_cuda_leave(cuda);
    if (status != TSR_OK)
        return tsr_fail_in(status, "device %s: %zu bytes of address space", device->name, bytes);
    *base_out = range->base;
    return TSR_OK;
}

void tsr_cuda_release(tsr_device *device, void *base, size_t bytes)
{
    tsr_cuda_free(device, base, bytes);
}

/* The granules of a commit or decommit, or an error. */
static tsr_status find_granules(tsr_cuda_device *cuda, void *base, size_t offset, size_t bytes,
                                tsr_cuda_range **range_out, size_t *begin_out, size_t *end_out)
{
    size_t granule = cuda->base.granularity;
    tsr_cuda_range *range = tsr_cuda_range_find(cuda, base);
    if (!range || range->whole || (offset | bytes) & (granule - 1) || offset > range->bytes ||
        bytes > range->bytes - offset)
        return tsr_fail(
            TSR_ERR_INVALID,
            "device %s: offset %zu and size %zu of a commit must be multiples of %zu bytes inside a "
            "reservation",
            cuda->base.name, offset, bytes, granule);
    *range_out = range;
    *begin_out = offset / granule;
    *end_out = (offset + bytes) / granule;
    return TSR_OK;
}

typedef tsr_status change_fn(tsr_cuda_device *cuda, tsr_cuda_range *range, size_t begin, size_t end);

static tsr_status change_granules(tsr_device *device, void *base, size_t offset, size_t bytes,
                                  change_fn *change, const char *what)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    tsr_cuda_range *range;
    size_t begin, end;
    tsr_status status = find_granules(cuda, base, offset, bytes, &range, &begin, &end);
    if (status != TSR_OK)
        return status;
    status = tsr_cuda_enter_to_copy(cuda);
    if (status != TSR_OK)
        return status;
    status = change(cuda, range, begin, end);
    tsr_cuda_leave(cuda);
    return status == TSR_OK ? TSR_OK
                            : tsr_fail_in(status, "device %s: %s of %zu bytes", device->name, what, bytes);
}

/* Wait for all work, which may use the decommitted memory, and decommit. */
static tsr_status settle_and_decommit(tsr_cuda_device *cuda, tsr_cuda_range *range, size_t begin, size_t end)
{
    tsr_status status = tsr_cuda_quiesce(cuda);
    return status == TSR_OK ? tsr_cuda_range_decommit(cuda, range, begin, end) : status;
}

tsr_status tsr_cuda_commit(tsr_device *device, void *base, size_t offset, size_t bytes)
{
    return change_granules(device, base, offset, bytes, tsr_cuda_range_commit, "commit");
}

tsr_status tsr_cuda_decommit(tsr_device *device, void *base, size_t offset, size_t bytes)
{
    return change_granules(device, base, offset, bytes, settle_and_decommit, "decommit");
}
