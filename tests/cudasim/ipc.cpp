/* Device memory that other processes open (cudaIpcGetMemHandle and its like).
 *
 * A device's memory is a file (memory.cpp), so a handle says where in which file of which process it is, and
 * another process maps the same pages. The pages are open to kernels of the device that opened them only, as
 * they are mapped into its context. GPUs of the same number have peer access as the configuration of the
 * process that opens says; those of another process are other GPUs, whose kernels run at the same time.
 *
 * CUDA opens no handle in the process that made it, except where a test says that its threads are
 * processes. To free memory that is open elsewhere is undefined in CUDA; here the pages stay. */
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace cudasim;

namespace
{

struct Content {
    uint64_t magic;
    int64_t process;
    int32_t file, device;
    uint64_t offset, map_size, first, size; /* of the mapping, in the file; of the memory, in the mapping */
};
static_assert(sizeof(Content) <= sizeof(cudaIpcMemHandle_t), "a handle has 64 bytes");

const uint64_t magic = 0x7573206d656d6f72;

void settle(Device &device)
{
    wait_for([&] { return device.pending == 0 || device.sticky != cudaSuccess; });
}

Region *find_opened(const Device &device, const Content &content)
{
    for (auto &entry : machine().regions) {
        Region &region = entry.second;
        if (region.kind == Region::OPENED && region.device == device.ordinal &&
            region.process == content.process && region.owner == content.device &&
            region.offset == content.offset)
            return &region;
    }
    return NULL;
}

cudaError_t map_opened(Device &device, const Content &content, int file, void **pointer)
{
    const size_t bytes = content.map_size;
    const uintptr_t map = address_reserve(device, bytes, 4096);
    if (map == 0)
        return cudaErrorMemoryAllocation;
    void *alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)content.offset);
    if (alias == MAP_FAILED || mmap((void *)map, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file,
                                    (off_t)content.offset) == MAP_FAILED)
        return cudaErrorMapBufferObjectFailed;
    Region region = {};
    region.kind = Region::OPENED;
    region.va = map + content.first;
    region.size = content.size;
    region.map = map;
    region.map_size = bytes;
    region.device = device.ordinal;
    region.offset = content.offset;
    region.access = 1u << device.ordinal;
    region.protection = PROT_NONE;
    region.owner = content.device;
    region.n_opened = 1;
    region.process = content.process;
    region.alias = (unsigned char *)alias;
    region_access(region);
    machine().regions[region.va] = region;
    *pointer = (void *)region.va;
    return cudaSuccess;
}

cudaError_t open_content(const Content &content, void **pointer)
{
    Device &device = *current_device();
    if (content.magic != magic)
        return cudaErrorInvalidResourceHandle;
    if (content.process == getpid() && !machine().config.threads_are_processes)
        return cudaErrorDeviceUninitialized;
    if (content.device != device.ordinal && !can_peer(device.ordinal, content.device))
        return cudaErrorPeerAccessUnsupported;
    if (Region *region = find_opened(device, content)) {
        region->n_opened++;
        *pointer = (void *)region->va;
        return cudaSuccess;
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)content.process, (int)content.file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return cudaErrorMapBufferObjectFailed;
    const cudaError_t error = map_opened(device, content, file, pointer);
    close(file);
    return error;
}

} // namespace

void cudasim::ipc_forget(const Region &region)
{
    munmap(region.alias, region.map_size);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer)
{
    Call call("cudaIpcGetMemHandle", CALL_CONTEXT, cudaErrorMemoryAllocation);
    if (call.failed())
        return call.result();
    Region *region = region_of(pointer);
    if (region == NULL || region->kind != Region::MALLOC)
        return call.end(cudaErrorInvalidValue);
    const Content content = {magic,
                             getpid(),
                             machine().devices[(size_t)region->device].fd,
                             region->device,
                             region->offset,
                             region->map_size,
                             region->va - region->map,
                             region->size};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &content, sizeof content);
    return call.end(cudaSuccess);
}

cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned int flags)
{
    Call call("cudaIpcOpenMemHandle", CALL_CONTEXT | CALL_UNSAFE, cudaErrorMapBufferObjectFailed);
    if (call.failed())
        return call.result();
    if (pointer == NULL || flags != cudaIpcMemLazyEnablePeerAccess)
        return call.end(cudaErrorInvalidValue);
    Content content;
    memcpy(&content, &handle, sizeof content);
    return call.end(open_content(content, pointer));
}

cudaError_t cudaIpcCloseMemHandle(void *pointer)
{
    Call call("cudaIpcCloseMemHandle", CALL_UNSAFE | CALL_RELEASE, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    Region *region = region_of(pointer);
    if (region == NULL || region->kind != Region::OPENED || region->va != (uintptr_t)pointer) {
        violate("cudaIpcCloseMemHandle: %p was not opened", pointer);
        return call.end(cudaErrorInvalidValue);
    }
    settle(machine().devices[(size_t)region->device]);
    region = region_of(pointer);
    if (--region->n_opened == 0) {
        region_unmap(*region);
        ipc_forget(*region);
        machine().regions.erase(region->va);
    }
    return call.end(cudaSuccess);
}
