/* The runtime API's chapter on memory: allocation, registration, copies. */
#include "sim.h"

#include <string.h>
#include <sys/mman.h>

#include <algorithm>

using namespace cudasim;

/* Allocation and release wait for the device, as CUDA's do in practice. */
static void settle(Device &device)
{
    wait_for([&] { return device.pending == 0 || device.sticky != cudaSuccess; });
}

cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    Call call("cudaMalloc", CALL_CONTEXT | CALL_UNSAFE, cudaErrorMemoryAllocation);
    if (call.failed())
        return call.result();
    if (pointer == NULL)
        return call.end(cudaErrorInvalidValue);
    if (bytes == 0) {
        *pointer = NULL;
        return call.end(cudaSuccess);
    }
    return call.end(device_alloc(*current_device(), bytes, pointer));
}

/* Works on a lost device too, so that leaks can be told from losses. */
cudaError_t cudaFree(void *pointer)
{
    Call call("cudaFree", CALL_UNSAFE | CALL_RELEASE, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    if (pointer == NULL)
        return call.end(cudaSuccess);
    Region *region = region_of(pointer);
    if (region == NULL || region->va != (uintptr_t)pointer) {
        violate("cudaFree: %p is not an allocation", pointer);
        return call.end(cudaErrorInvalidValue);
    }
    Device &device = machine().devices[(size_t)region->device];
    settle(device);
    cudaError_t error = device_free((uintptr_t)pointer);
    if (error != cudaSuccess)
        violate("cudaFree: %p was not allocated by cudaMalloc", pointer);
    return call.end(error != cudaSuccess ? error : device.sticky);
}

/* The stream-ordered forms, in their simplest legal behaviour. */
cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t)
{
    Call call("cudaMallocAsync", CALL_CONTEXT | CALL_UNSAFE, cudaErrorMemoryAllocation);
    return call.failed() ? call.result() : call.end(device_alloc(*current_device(), bytes, pointer));
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t)
{
    Call call("cudaFreeAsync", CALL_UNSAFE | CALL_RELEASE, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    settle(*current_device());
    return call.end(device_free((uintptr_t)pointer));
}

static size_t whole_pages(size_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

static cudaError_t host_alloc(void **pointer, size_t bytes, Region::Kind kind, unsigned flags)
{
    if (pointer == NULL || bytes == 0)
        return cudaErrorInvalidValue;
    size_t mapped = whole_pages(bytes) + 4096;
    void *map =
        mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    mprotect((char *)map + mapped - 4096, 4096, PROT_NONE);
    Region region = {};
    region.kind = kind;
    region.va = region.map = (uintptr_t)map;
    region.size = bytes;
    region.map_size = mapped;
    region.device = current_device()->ordinal;
    region.flags = flags;
    machine().regions[region.va] = region;
    *pointer = map;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    Call call("cudaHostAlloc", CALL_CONTEXT | CALL_UNSAFE, cudaErrorMemoryAllocation);
    return call.failed() ? call.result() : call.end(host_alloc(pointer, bytes, Region::PINNED, flags));
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes)
{
    Call call("cudaMallocHost", CALL_CONTEXT | CALL_UNSAFE, cudaErrorMemoryAllocation);
    return call.failed() ? call.result() : call.end(host_alloc(pointer, bytes, Region::PINNED, 0));
}

cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned int flags)
{
    Call call("cudaMallocManaged", CALL_CONTEXT | CALL_UNSAFE, cudaErrorMemoryAllocation);
    if (call.failed())
        return call.result();
    cudaError_t error = host_alloc(pointer, bytes, Region::MANAGED, flags);
    if (error == cudaSuccess)
        current_device()->used += (bytes + 511) / 512 * 512;
    return call.end(error);
}

static Region *host_region(void *pointer, Region::Kind kind)
{
    auto found = machine().regions.find((uintptr_t)pointer);
    return found != machine().regions.end() && found->second.kind == kind ? &found->second : NULL;
}

static void settle_all()
{
    for (Device &device : machine().devices)
        settle(device);
}

cudaError_t cudaFreeHost(void *pointer)
{
    Call call("cudaFreeHost", CALL_UNSAFE | CALL_RELEASE, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    if (pointer == NULL)
        return call.end(cudaSuccess);
    if (host_region(pointer, Region::PINNED) == NULL) {
        violate("cudaFreeHost: %p is not an allocation", pointer);
        return call.end(cudaErrorInvalidValue);
    }
    settle_all();
    Region *region = host_region(pointer, Region::PINNED);
    munmap((void *)region->map, region->map_size);
    machine().regions.erase(region->va);
    return call.end(cudaSuccess);
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags)
{
    Call call("cudaHostRegister", CALL_CONTEXT | CALL_UNSAFE, cudaErrorMemoryAllocation);
    if (call.failed())
        return call.result();
    if (pointer == NULL || bytes == 0 || is_device_range(pointer))
        return call.end(cudaErrorInvalidValue);
    if ((flags & cudaHostRegisterReadOnly) && !machine().config.register_read_only)
        return call.end(cudaErrorNotSupported);
    uintptr_t from = (uintptr_t)pointer;
    for (auto &entry : machine().regions)
        if (from < entry.second.va + entry.second.size && entry.second.va < from + bytes)
            return call.end(cudaErrorHostMemoryAlreadyRegistered);
    Region region = {};
    region.kind = Region::REGISTERED;
    region.va = region.map = from;
    region.size = region.map_size = bytes;
    region.device = current_device()->ordinal;
    region.flags = flags;
    machine().regions[from] = region;
    return call.end(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *pointer)
{
    Call call("cudaHostUnregister", CALL_UNSAFE | CALL_RELEASE, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    if (host_region(pointer, Region::REGISTERED) == NULL) {
        violate("cudaHostUnregister: %p is not registered", pointer);
        return call.end(cudaErrorHostMemoryNotRegistered);
    }
    settle_all();
    machine().regions.erase((uintptr_t)pointer);
    return call.end(cudaSuccess);
}

cudaError_t cudaHostGetDevicePointer(void **device_pointer, void *host_pointer, unsigned int flags)
{
    Call call("cudaHostGetDevicePointer", CALL_CONTEXT, cudaErrorInvalidValue);
    if (call.failed())
        return call.result();
    Region *region = region_of(host_pointer);
    if (region == NULL || !region->is_host() || flags != 0)
        return call.end(cudaErrorInvalidValue);
    *device_pointer = host_pointer;
    return call.end(cudaSuccess);
}

cudaError_t cudaHostGetFlags(unsigned int *flags, void *host_pointer)
{
    Call call("cudaHostGetFlags", CALL_CONTEXT, cudaErrorInvalidValue);
    if (call.failed())
        return call.result();
    Region *region = region_of(host_pointer);
    if (region == NULL || !region->is_host())
        return call.end(cudaErrorInvalidValue);
    *flags = region->flags;
    return call.end(cudaSuccess);
}

cudaError_t cudaMemAdvise(const void *pointer, size_t, enum cudaMemoryAdvise, struct cudaMemLocation)
{
    Call call("cudaMemAdvise", CALL_CONTEXT, cudaErrorInvalidValue);
    if (call.failed())
        return call.result();
    Region *region = region_of(pointer);
    return call.end(region != NULL && region->kind == Region::MANAGED ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t, struct cudaMemLocation, unsigned int,
                                 cudaStream_t)
{
    Call call("cudaMemPrefetchAsync", CALL_CONTEXT, cudaErrorInvalidValue);
    if (call.failed())
        return call.result();
    Region *region = region_of(pointer);
    return call.end(region != NULL && region->kind == Region::MANAGED ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    Call call("cudaMemGetInfo", CALL_CONTEXT, cudaErrorInvalidValue);
    if (call.failed())
        return call.result();
    const Device &device = *current_device();
    *free_bytes = room(device);
    if (machine().config.integrated)
        *free_bytes -= std::min(*free_bytes, machine().page_cache);
    *total_bytes = device.total();
    return call.end(cudaSuccess);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    Call call("cudaPointerGetAttributes", CALL_CONTEXT, cudaErrorInvalidValue);
    if (call.failed())
        return call.result();
    memset(attributes, 0, sizeof *attributes);
    Region *region = region_of(pointer);
    attributes->device = region != NULL ? region->device : cudaInvalidDeviceId;
    if (region == NULL)
        return call.end(cudaSuccess);
    attributes->type = region->is_host()                 ? cudaMemoryTypeHost
                       : region->kind == Region::MANAGED ? cudaMemoryTypeManaged
                                                         : cudaMemoryTypeDevice;
    attributes->devicePointer = (void *)pointer;
    if (!is_device_range(pointer))
        attributes->hostPointer = (void *)pointer;
    return call.end(cudaSuccess);
}

/* -- copies -- */

struct Copy {
    void *dst;
    size_t dst_pitch;
    const void *src;
    size_t src_pitch;
    size_t width, height;
};

static bool rows_ok(const void *pointer, size_t pitch, const Copy &copy)
{
    for (size_t row = 0; row < copy.height; row++)
        if (!range_ok((const char *)pointer + row * pitch, copy.width))
            return false;
    return true;
}

static cudaError_t carry_out(const Copy &copy)
{
    if (!rows_ok(copy.dst, copy.dst_pitch, copy) || !rows_ok(copy.src, copy.src_pitch, copy))
        return cudaErrorIllegalAddress;
    if (place_of(copy.dst) != place_of(copy.src))
        machine().link_bytes += copy.width * copy.height;
    for (size_t row = 0; row < copy.height; row++)
        copy_bytes((char *)copy.dst + row * copy.dst_pitch, (const char *)copy.src + row * copy.src_pitch,
                   copy.width);
    return cudaSuccess;
}

/* Whether a test wants this copy into `device`'s memory to arrive changed. */
static bool to_be_corrupted(Device &device, const Copy &copy)
{
    const Region *from = region_of(copy.src), *to = region_of(copy.dst);
    if (to == NULL || to->is_host() || to->device != device.ordinal)
        return false;
    if (is_device_range(copy.src))
        return from != NULL && (machine().corrupt_copies[device.ordinal] >> from->device & 1);
    return device.corrupt != 0 && copy.width * copy.height >= device.corrupt_bytes && --device.corrupt == 0;
}

static void corrupt(Device &device, const Copy &copy)
{
    size_t length;
    if (to_be_corrupted(device, copy))
        *host_view((char *)copy.dst + (copy.height - 1) * copy.dst_pitch + copy.width / 2, 1, &length) ^= 4;
}

/* A stream's device reaches mapped memory only where cuMemSetAccess says so; peer access does not count. */
static bool may_reach(const void *pointer, int device)
{
    Region *region = region_of(pointer);
    return region == NULL || region->kind != Region::VMM || (region->access >> device & 1) != 0;
}

static bool on_device(const void *pointer)
{
    return is_device_range(pointer) || region_of(pointer) != NULL;
}

static cudaError_t check_copy(const Copy &copy, cudaMemcpyKind kind)
{
    if (copy.width > copy.dst_pitch || copy.width > copy.src_pitch)
        return copy.height > 1 ? cudaErrorInvalidPitchValue : cudaErrorInvalidValue;
    if ((unsigned)kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind != cudaMemcpyDefault && ((to_device ? !on_device(copy.dst) : is_device_range(copy.dst)) ||
                                      (from_device ? !on_device(copy.src) : is_device_range(copy.src)))) {
        violate("a copy of kind %d between %p and %p: the pointers are not of that kind", kind, copy.dst,
                copy.src);
        return cudaErrorInvalidValue;
    }
    if (!rows_ok(copy.dst, copy.dst_pitch, copy) || !rows_ok(copy.src, copy.src_pitch, copy)) {
        violate("a copy of %zu x %zu bytes between %p and %p leaves an allocation", copy.width, copy.height,
                copy.dst, copy.src);
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

/* Pageable memory, in a copy that is not captured: the source is read before the call returns, and a copy to
 * it is complete when the call returns, both as CUDA documents for asynchronous copies. */
static cudaError_t copy_async(Call &call, Copy copy, cudaMemcpyKind kind, cudaStream_t stream)
{
    stream = find_stream(stream);
    if (stream == NULL)
        return call.end(cudaErrorInvalidResourceHandle);
    cudaError_t error = check_copy(copy, kind);
    if (error != cudaSuccess || copy.width == 0 || copy.height == 0)
        return call.end(error);
    int device = stream->device;
    if (!may_reach(copy.dst, device) || !may_reach(copy.src, device)) {
        violate("a copy by device %d between %p and %p: it has no access (cuMemSetAccess) to that mapping",
                device, copy.dst, copy.src);
        return call.end(cudaErrorInvalidValue);
    }
    auto body = std::make_shared<Body>();
    body->kind = Body::ACTION;
    body->device = device;
    body->name = "copy";
    bool captured = stream->capture != NULL;
    std::shared_ptr<std::vector<char>> keep;
    if (!captured && !on_device(copy.src)) {
        auto staged = std::make_shared<std::vector<char>>(copy.width * copy.height);
        for (size_t row = 0; row < copy.height; row++)
            memcpy(staged->data() + row * copy.width, (const char *)copy.src + row * copy.src_pitch,
                   copy.width);
        copy.src = staged->data();
        copy.src_pitch = copy.width;
        keep = staged;
    }
    body->action = [copy, keep, device] {
        cudaError_t result = carry_out(copy);
        corrupt(machine().devices[(size_t)device], copy);
        return result;
    };
    OpRef op;
    error = enqueue(stream, body, &op);
    if (error == cudaSuccess && !captured && !on_device(copy.dst)) {
        wait_for([&] { return op->done || machine().devices[(size_t)device].sticky != cudaSuccess; });
        error = machine().devices[(size_t)device].sticky;
    }
    return call.end(error);
}

/* The synchronous forms go through the legacy stream and wait. */
static cudaError_t copy_sync(Call &call, Copy copy, cudaMemcpyKind kind)
{
    Device &device = *current_device();
    cudaError_t error = check_copy(copy, kind);
    if (error != cudaSuccess || copy.width == 0 || copy.height == 0)
        return call.end(error);
    auto body = std::make_shared<Body>();
    body->kind = Body::ACTION;
    body->device = device.ordinal;
    body->name = "copy";
    body->action = [copy] { return carry_out(copy); };
    OpRef op;
    error = enqueue(device.legacy, body, &op);
    if (error != cudaSuccess)
        return call.end(error);
    wait_for([&] { return op->done || device.sticky != cudaSuccess; });
    return call.end(device.sticky);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    Call call("cudaMemcpy", CALL_CONTEXT | CALL_UNSAFE, cudaErrorUnknown);
    return call.failed() ? call.result() : copy_sync(call, {dst, bytes, src, bytes, bytes, 1}, kind);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    Call call("cudaMemcpyAsync", CALL_CONTEXT, cudaErrorUnknown);
    return call.failed() ? call.result() : copy_async(call, {dst, bytes, src, bytes, bytes, 1}, kind, stream);
}

cudaError_t cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                         size_t height, enum cudaMemcpyKind kind)
{
    Call call("cudaMemcpy2D", CALL_CONTEXT | CALL_UNSAFE, cudaErrorUnknown);
    return call.failed() ? call.result() : copy_sync(call, {dst, dpitch, src, spitch, width, height}, kind);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    Call call("cudaMemcpy2DAsync", CALL_CONTEXT, cudaErrorUnknown);
    return call.failed() ? call.result()
                         : copy_async(call, {dst, dpitch, src, spitch, width, height}, kind, stream);
}

cudaError_t cudaMemcpyPeer(void *dst, int, const void *src, int, size_t bytes)
{
    Call call("cudaMemcpyPeer", CALL_CONTEXT | CALL_UNSAFE, cudaErrorUnknown);
    return call.failed() ? call.result()
                         : copy_sync(call, {dst, bytes, src, bytes, bytes, 1}, cudaMemcpyDeviceToDevice);
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int, const void *src, int, size_t bytes, cudaStream_t stream)
{
    Call call("cudaMemcpyPeerAsync", CALL_CONTEXT, cudaErrorUnknown);
    return call.failed()
               ? call.result()
               : copy_async(call, {dst, bytes, src, bytes, bytes, 1}, cudaMemcpyDeviceToDevice, stream);
}

/* -- filling -- */

static cudaError_t fill(Call &call, Copy area, int value, cudaStream_t stream, OpRef *op_out)
{
    stream = find_stream(stream);
    if (stream == NULL)
        return call.end(cudaErrorInvalidResourceHandle);
    if (!on_device(area.dst) || !rows_ok(area.dst, area.dst_pitch, area))
        return call.end(cudaErrorInvalidValue);
    if (area.width > area.dst_pitch && area.height > 1)
        return call.end(cudaErrorInvalidPitchValue);
    auto body = std::make_shared<Body>();
    body->kind = Body::ACTION;
    body->device = stream->device;
    body->name = "memset";
    body->action = [=] {
        if (!rows_ok(area.dst, area.dst_pitch, area))
            return cudaErrorIllegalAddress;
        for (size_t row = 0; row < area.height; row++)
            set_bytes((char *)area.dst + row * area.dst_pitch, value, area.width);
        return cudaSuccess;
    };
    return call.end(enqueue(stream, body, op_out));
}

cudaError_t cudaMemset(void *pointer, int value, size_t bytes)
{
    Call call("cudaMemset", CALL_CONTEXT | CALL_UNSAFE, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    Device &device = *current_device();
    OpRef op;
    cudaError_t error = fill(call, {pointer, bytes, NULL, 0, bytes, 1}, value, NULL, &op);
    if (error == cudaSuccess && op != NULL)
        wait_for([&] { return op->done || device.sticky != cudaSuccess; });
    return call.end(error != cudaSuccess ? error : device.sticky);
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream)
{
    Call call("cudaMemsetAsync", CALL_CONTEXT, cudaErrorUnknown);
    return call.failed() ? call.result()
                         : fill(call, {pointer, bytes, NULL, 0, bytes, 1}, value, stream, NULL);
}

cudaError_t cudaMemset2DAsync(void *pointer, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream)
{
    Call call("cudaMemset2DAsync", CALL_CONTEXT, cudaErrorUnknown);
    return call.failed() ? call.result()
                         : fill(call, {pointer, pitch, NULL, 0, width, height}, value, stream, NULL);
}
