/* The driver API: virtual memory management, and how the runtime hands out the driver's functions. */
#include "sim.h"

#include <string.h>

#include <algorithm>

using namespace cudasim;

static CUresult device_of(const CUmemAllocationProp *prop, Device **out)
{
    Machine &m = machine();
    if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.id < 0 || prop->location.id >= (int)m.devices.size())
        return CUDA_ERROR_INVALID_DEVICE;
    *out = &m.devices[(size_t)prop->location.id];
    return CUDA_SUCCESS;
}

static bool granular(size_t n)
{
    return n != 0 && n % machine().config.vmm_granularity == 0;
}

CUresult cuInit(unsigned int)
{
    Call call("cuInit", 0, CUDA_ERROR_NOT_INITIALIZED);
    if (call.failed())
        return call.end_driver((CUresult)call.injected());
    return call.end_driver(machine().devices.empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS);
}

CUresult cuDriverGetVersion(int *version)
{
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult result, const char **name)
{
    *name = cudaGetErrorName((cudaError_t)result);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult result, const char **text)
{
    *text = cudaGetErrorString((cudaError_t)result);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    Call call("cuDeviceGet", 0, CUDA_ERROR_INVALID_DEVICE);
    if (call.failed())
        return call.end_driver((CUresult)call.injected());
    if (ordinal < 0 || ordinal >= (int)machine().devices.size())
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return call.end_driver(CUDA_SUCCESS);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice)
{
    Call call("cuDeviceGetAttribute", 0, CUDA_ERROR_INVALID_VALUE);
    if (call.failed())
        return call.end_driver((CUresult)call.injected());
    *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED && !machine().config.no_vmm;
    return call.end_driver(CUDA_SUCCESS);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags)
{
    Call call("cuMemGetAllocationGranularity", CALL_QUIET, CUDA_ERROR_INVALID_VALUE);
    if (call.failed())
        return call.end_driver((CUresult)call.result());
    Device *device;
    CUresult result = device_of(prop, &device);
    if (result == CUDA_SUCCESS)
        *granularity = machine().config.vmm_granularity;
    return call.end_driver(result);
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr,
                             unsigned long long flags)
{
    Call call("cuMemAddressReserve", CALL_QUIET | CALL_CONTEXT | CALL_DRIVER | CALL_UNSAFE,
              CUDA_ERROR_OUT_OF_MEMORY);
    if (call.failed())
        return call.end_driver((CUresult)call.result());
    if (!granular(size) || (alignment & (alignment - 1)) != 0 || flags != 0)
        return call.end_driver(CUDA_ERROR_INVALID_VALUE);
    uintptr_t at =
        address_reserve(*current_device(), size, std::max(alignment, machine().config.vmm_granularity));
    if (at == 0)
        return call.end_driver(CUDA_ERROR_OUT_OF_MEMORY);
    machine().reservations[at] = size;
    *pointer = at;
    return call.end_driver(CUDA_SUCCESS);
}

/* Whether any mapping touches [from, from + size). */
static bool mapped_in(uintptr_t from, size_t size)
{
    for (auto &entry : machine().regions)
        if (entry.second.kind == Region::VMM && entry.second.va < from + size &&
            from < entry.second.va + entry.second.size)
            return true;
    return false;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
    Call call("cuMemAddressFree", CALL_QUIET | CALL_RELEASE, CUDA_ERROR_UNKNOWN);
    if (call.failed())
        return call.end_driver((CUresult)call.injected());
    auto found = machine().reservations.find((uintptr_t)pointer);
    if (found == machine().reservations.end() || found->second != size ||
        mapped_in((uintptr_t)pointer, size)) {
        violate("cuMemAddressFree: not a whole reservation, or something is mapped in it");
        return call.end_driver(CUDA_ERROR_INVALID_VALUE);
    }
    machine().reservations.erase(found);
    return call.end_driver(CUDA_SUCCESS);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
    Call call("cuMemCreate", CALL_QUIET | CALL_CONTEXT | CALL_DRIVER | CALL_UNSAFE, CUDA_ERROR_OUT_OF_MEMORY);
    if (call.failed())
        return call.end_driver((CUresult)call.result());
    Device *device;
    CUresult result = device_of(prop, &device);
    if (result != CUDA_SUCCESS || !granular(size) || flags != 0)
        return call.end_driver(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE);
    Handle made = {};
    made.device = device->ordinal;
    made.size = size;
    if (size > room(*device) || !physical_alloc(*device, size, &made.offset))
        return call.end_driver(CUDA_ERROR_OUT_OF_MEMORY);
    device->used += size;
    device->peak = std::max(device->peak, device->used);
    *handle = machine().next_handle++;
    machine().handles[*handle] = made;
    return call.end_driver(CUDA_SUCCESS);
}

/* Physical memory lives until it is released and mapped nowhere. */
static void drop_if_unused(uint64_t id)
{
    Handle &handle = machine().handles[id];
    if (!handle.released || handle.mapped != 0)
        return;
    Device &device = machine().devices[(size_t)handle.device];
    physical_free(device, handle.offset, handle.size);
    device.used -= handle.size;
    machine().handles.erase(id);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    Call call("cuMemRelease", CALL_QUIET | CALL_RELEASE, CUDA_ERROR_UNKNOWN);
    if (call.failed())
        return call.end_driver((CUresult)call.injected());
    auto found = machine().handles.find(handle);
    if (found == machine().handles.end() || found->second.released) {
        violate("cuMemRelease: no such handle");
        return call.end_driver(CUDA_ERROR_INVALID_VALUE);
    }
    found->second.released = true;
    drop_if_unused(handle);
    return call.end_driver(CUDA_SUCCESS);
}

static bool reserved(uintptr_t from, size_t size)
{
    auto after = machine().reservations.upper_bound(from);
    if (after == machine().reservations.begin())
        return false;
    auto found = std::prev(after);
    return from + size <= found->first + found->second;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    Call call("cuMemMap", CALL_QUIET | CALL_CONTEXT | CALL_DRIVER | CALL_UNSAFE, CUDA_ERROR_OUT_OF_MEMORY);
    if (call.failed())
        return call.end_driver((CUresult)call.result());
    auto found = machine().handles.find(handle);
    uintptr_t at = (uintptr_t)pointer;
    if (found == machine().handles.end() || !granular(size) || offset != 0 || flags != 0 ||
        size > found->second.size || at % machine().config.vmm_granularity != 0 || !reserved(at, size) ||
        mapped_in(at, size))
        return call.end_driver(CUDA_ERROR_INVALID_VALUE);
    Region region = {};
    region.kind = Region::VMM;
    region.va = region.map = at;
    region.size = region.map_size = size;
    region.device = found->second.device;
    region.offset = found->second.offset;
    region.handle = handle;
    found->second.mapped++;
    region_map(region);
    machine().regions[at] = region;
    return call.end_driver(CUDA_SUCCESS);
}

/* The mappings that fill [at, at + size) exactly; empty if there is a gap or an overhang. */
static std::vector<uintptr_t> mappings_of(uintptr_t at, size_t size)
{
    std::vector<uintptr_t> found;
    uintptr_t end = at + size;
    while (at < end) {
        auto entry = machine().regions.find(at);
        if (entry == machine().regions.end() || entry->second.kind != Region::VMM ||
            at + entry->second.size > end)
            return {};
        found.push_back(at);
        at += entry->second.size;
    }
    return found;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    Call call("cuMemUnmap", CALL_QUIET | CALL_UNSAFE | CALL_RELEASE, CUDA_ERROR_UNKNOWN);
    if (call.failed())
        return call.end_driver((CUresult)call.result());
    std::vector<uintptr_t> mappings = mappings_of((uintptr_t)pointer, size);
    if (mappings.size() != 1) { /* drivers take several as well, which is not documented */
        violate("cuMemUnmap: the range is not the whole of one mapping");
        return call.end_driver(CUDA_ERROR_INVALID_VALUE);
    }
    Region &region = machine().regions[mappings[0]];
    uint64_t handle = region.handle;
    region_unmap(region);
    machine().regions.erase(mappings[0]);
    machine().handles[handle].mapped--;
    drop_if_unused(handle);
    return call.end_driver(CUDA_SUCCESS);
}

/* Over PCIe the driver maps a peer's access into the owner's BAR1. With a full window, cudaMalloc and
 * cudaDeviceEnablePeerAccess return error 205 (reported by users of GPUs with a small BAR1). For this call
 * the documentation names no such error; the same one is assumed. */
static bool fits_window(const std::vector<uintptr_t> &mappings, const CUmemAccessDesc &access)
{
    size_t more = 0;
    int owner = -1;
    for (uintptr_t at : mappings) {
        const Region &region = machine().regions[at];
        owner = region.device;
        if (access.location.id != owner && (region.access & ~(1u << owner)) == 0)
            more += region.map_size;
    }
    return access.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || more == 0 || bar1_fits(owner, more);
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access, size_t count)
{
    Call call("cuMemSetAccess", CALL_QUIET | CALL_CONTEXT | CALL_DRIVER | CALL_UNSAFE, CUDA_ERROR_UNKNOWN);
    if (call.failed())
        return call.end_driver((CUresult)call.result());
    Machine &m = machine();
    std::vector<uintptr_t> mappings = mappings_of((uintptr_t)pointer, size);
    if (mappings.empty())
        return call.end_driver(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        int id = access[i].location.id;
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || id < 0 || id >= (int)m.devices.size())
            return call.end_driver(CUDA_ERROR_INVALID_VALUE);
        for (uintptr_t at : mappings) {
            int owner = m.regions[at].device;
            if (id != owner && (!m.config.peer_access || (m.no_peer[id] >> owner & 1)))
                return call.end_driver(CUDA_ERROR_INVALID_DEVICE);
        }
        if (!fits_window(mappings, access[i]))
            return call.end_driver(CUDA_ERROR_MAP_FAILED);
    }
    for (uintptr_t at : mappings) {
        Region &region = m.regions[at];
        for (size_t i = 0; i < count; i++) {
            uint32_t bit = 1u << access[i].location.id;
            region.access =
                access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? region.access & ~bit : region.access | bit;
        }
        region_access(region);
    }
    return call.end_driver(CUDA_SUCCESS);
}

/* -- entry points -- */

static void *entry_point(const char *symbol)
{
    static const struct {
        const char *name;
        void *function;
    } functions[] = {
#define ENTRY(f) {#f, (void *)f}
        ENTRY(cuInit),
        ENTRY(cuDriverGetVersion),
        ENTRY(cuGetErrorName),
        ENTRY(cuGetErrorString),
        ENTRY(cuDeviceGet),
        ENTRY(cuDeviceGetAttribute),
        ENTRY(cuDevicePrimaryCtxRetain),
        ENTRY(cuDevicePrimaryCtxRelease),
        ENTRY(cuDevicePrimaryCtxGetState),
        ENTRY(cuCtxGetCurrent),
        ENTRY(cuCtxPushCurrent),
        ENTRY(cuCtxPopCurrent),
        ENTRY(cuMemGetAllocationGranularity),
        ENTRY(cuMemAddressReserve),
        ENTRY(cuMemAddressFree),
        ENTRY(cuMemCreate),
        ENTRY(cuMemRelease),
        ENTRY(cuMemMap),
        ENTRY(cuMemUnmap),
        ENTRY(cuMemSetAccess),
#undef ENTRY
    };
    for (const auto &entry : functions)
        if (strcmp(entry.name, symbol) == 0)
            return entry.function;
    return NULL;
}

static cudaError_t find_entry(const char *name, const char *symbol, void **function,
                              cudaDriverEntryPointQueryResult *status)
{
    Call call(name, 0, cudaErrorInsufficientDriver);
    if (call.failed())
        return call.result();
    void *found = machine().devices.empty() ? NULL : entry_point(symbol);
    if (status != NULL)
        *status = found != NULL ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    *function = found;
    return call.end(found != NULL || status != NULL ? cudaSuccess : cudaErrorSymbolNotFound);
}

cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long,
                                    cudaDriverEntryPointQueryResult *status)
{
    return find_entry("cudaGetDriverEntryPoint", symbol, function, status);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int,
                                             unsigned long long, cudaDriverEntryPointQueryResult *status)
{
    return find_entry("cudaGetDriverEntryPointByVersion", symbol, function, status);
}
