/* The runtime API's chapters on errors, versions, devices and peers. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

using namespace cudasim;

const char *cudaGetErrorName(cudaError_t error)
{
#define X(name, number, text) \
    case number:              \
        return #name;
    switch ((int)error) {
        CUDASIM_ERRORS(X)
    default:
        return "unrecognized error code";
    }
#undef X
}

const char *cudaGetErrorString(cudaError_t error)
{
#define X(name, number, text) \
    case number:              \
        return text;
    switch ((int)error) {
        CUDASIM_ERRORS(X)
    default:
        return "unrecognized error code";
    }
#undef X
}

/* A lost context says so from then on; other errors are told once. */
static cudaError_t last_error(bool clear)
{
    Thread &thread = thread_state();
    Device *device = current_device();
    cudaError_t error = device != NULL && device->sticky != cudaSuccess ? device->sticky : thread.last;
    if (clear)
        thread.last = cudaSuccess;
    return error;
}

cudaError_t cudaGetLastError(void)
{
    Call call("cudaGetLastError", CALL_QUIET, cudaErrorUnknown);
    return call.failed() ? call.result() : last_error(true);
}

cudaError_t cudaPeekAtLastError(void)
{
    Call call("cudaPeekAtLastError", CALL_QUIET, cudaErrorUnknown);
    return call.failed() ? call.result() : last_error(false);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    Call call("cudaDriverGetVersion", 0, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    *version = machine().devices.empty()             ? 0
               : machine().config.driver_version > 0 ? machine().config.driver_version
                                                     : CUDA_VERSION;
    return call.end(cudaSuccess);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    Call call("cudaRuntimeGetVersion", 0, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    *version = CUDART_VERSION;
    return call.end(cudaSuccess);
}

cudaError_t cudaGetDeviceCount(int *count)
{
    Call call("cudaGetDeviceCount", 0, cudaErrorInsufficientDriver);
    if (call.failed())
        return call.result();
    const int driver = machine().config.driver_version;
    if (driver > 0 && driver / 1000 < CUDA_VERSION / 1000) /* minor versions are compatible */
        return call.end(cudaErrorInsufficientDriver);
    *count = (int)machine().devices.size();
    return call.end(*count != 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device)
{
    Call call("cudaGetDevice", 0, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    if (machine().devices.empty())
        return call.end(cudaErrorNoDevice);
    *device = current_device()->ordinal;
    return call.end(cudaSuccess);
}

static bool is_device(int device)
{
    return device >= 0 && device < (int)machine().devices.size();
}

/* As since CUDA 12, it also makes the context. A lost one stays lost. */
cudaError_t cudaSetDevice(int device)
{
    Call call("cudaSetDevice", 0, cudaErrorDevicesUnavailable);
    if (call.failed())
        return call.result();
    if (!is_device(device))
        return call.end(cudaErrorInvalidDevice);
    cudaError_t error = make_context(machine().devices[(size_t)device], true);
    if (error != cudaSuccess)
        return call.end(error);
    Thread &thread = thread_state();
    thread.device = device;
    if (!thread.contexts.empty())
        thread.contexts.pop_back();
    thread.contexts.push_back(device);
    return call.end(machine().devices[(size_t)device].sticky);
}

cudaError_t cudaInitDevice(int device, unsigned int, unsigned int)
{
    Call call("cudaInitDevice", 0, cudaErrorDevicesUnavailable);
    if (call.failed())
        return call.result();
    return call.end(is_device(device) ? make_context(machine().devices[(size_t)device], true)
                                      : cudaErrorInvalidDevice);
}

cudaError_t cudaSetDeviceFlags(unsigned int)
{
    Call call("cudaSetDeviceFlags", 0, cudaErrorUnknown);
    return call.failed() ? call.result() : call.end(cudaSuccess);
}

cudaError_t cudaDeviceSetLimit(enum cudaLimit, size_t)
{
    Call call("cudaDeviceSetLimit", CALL_CONTEXT, cudaErrorUnknown);
    return call.failed() ? call.result() : call.end(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void)
{
    Call call("cudaDeviceSynchronize", CALL_CONTEXT | CALL_UNSAFE, cudaErrorLaunchFailure);
    if (call.failed())
        return call.result();
    Device &device = *current_device();
    wait_for([&] { return device.pending == 0 || device.sticky != cudaSuccess; });
    return call.end(device.sticky);
}

cudaError_t cudaDeviceReset(void)
{
    Call call("cudaDeviceReset", 0, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    current_device()->sticky = cudaSuccess;
    return call.end(cudaSuccess);
}

static int attribute_of(const Device &device, cudaDeviceAttr attribute)
{
    const cudasim_config &config = machine().config;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
        return 1024;
    case cudaDevAttrMaxBlockDimZ:
        return 64;
    case cudaDevAttrMaxGridDimX:
        return 0x7fffffff;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
        return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        return 48 << 10;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        return (int)(limits().shared_bytes - limits().reserved_bytes);
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        return (int)limits().shared_bytes;
    case cudaDevAttrReservedSharedMemoryPerBlock:
        return (int)limits().reserved_bytes;
    case cudaDevAttrTotalConstantMemory:
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
        return 65536;
    case cudaDevAttrWarpSize:
        return 32;
    case cudaDevAttrClockRate:
        return 1500000; /* kHz */
    case cudaDevAttrMemoryClockRate:
        return 2000000; /* kHz */
    case cudaDevAttrGlobalMemoryBusWidth:
        return 4096;
    case cudaDevAttrL2CacheSize:
        return 32 << 20;
    case cudaDevAttrMultiProcessorCount:
        return config.n_sms;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        return limits().threads;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
        return limits().blocks;
    case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrPageableMemoryAccessUsesHostPageTables:
        return config.coherent || (config.integrated && !config.registers);
    case cudaDevAttrIntegrated:
    case cudaDevAttrDirectManagedMemAccessFromHost:
    case cudaDevAttrHostNativeAtomicSupported:
        return config.integrated;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrHostRegisterSupported:
        return 1;
    case cudaDevAttrHostRegisterReadOnlySupported:
        return config.register_read_only;
    case cudaDevAttrAsyncEngineCount:
        return 2;
    case cudaDevAttrPciBusId:
        return device.ordinal + 1;
    case cudaDevAttrComputeCapabilityMajor:
        return config.compute_capability / 10;
    case cudaDevAttrComputeCapabilityMinor:
        return config.compute_capability % 10;
    case cudaDevAttrNumaId:
    case cudaDevAttrHostNumaId:
        return -1;
    default:
        return 0;
    }
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    Call call("cudaDeviceGetAttribute", 0, cudaErrorInvalidValue);
    if (call.failed())
        return call.result();
    if (!is_device(device))
        return call.end(cudaErrorInvalidDevice);
    *value = attribute_of(machine().devices[(size_t)device], attribute);
    return call.end(cudaSuccess);
}

static void fill_properties(struct cudaDeviceProp *prop, const Device &device)
{
    auto get = [&](cudaDeviceAttr attribute) { return attribute_of(device, attribute); };
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "Simulated GPU");
    prop->uuid.bytes[0] = 0x51;
    prop->uuid.bytes[1] = 0x42;
    prop->uuid.bytes[15] = (char)device.ordinal;
    prop->totalGlobalMem = device.total();
    prop->sharedMemPerBlock = (size_t)get(cudaDevAttrMaxSharedMemoryPerBlock);
    prop->sharedMemPerBlockOptin = (size_t)get(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    prop->sharedMemPerMultiprocessor = (size_t)get(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    prop->regsPerBlock = get(cudaDevAttrMaxRegistersPerBlock);
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024;
    prop->maxThreadsDim[2] = 64;
    prop->maxGridSize[0] = get(cudaDevAttrMaxGridDimX);
    prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
    prop->totalConstMem = 65536;
    prop->major = get(cudaDevAttrComputeCapabilityMajor);
    prop->minor = get(cudaDevAttrComputeCapabilityMinor);
    prop->multiProcessorCount = get(cudaDevAttrMultiProcessorCount);
    prop->integrated = get(cudaDevAttrIntegrated);
    prop->canMapHostMemory = prop->concurrentKernels = prop->unifiedAddressing = prop->managedMemory = 1;
    prop->pciBusID = get(cudaDevAttrPciBusId);
    prop->asyncEngineCount = get(cudaDevAttrAsyncEngineCount);
    prop->memoryBusWidth = get(cudaDevAttrGlobalMemoryBusWidth);
    prop->l2CacheSize = get(cudaDevAttrL2CacheSize);
    prop->maxThreadsPerMultiProcessor = get(cudaDevAttrMaxThreadsPerMultiProcessor);
    prop->maxBlocksPerMultiProcessor = get(cudaDevAttrMaxBlocksPerMultiprocessor);
    prop->concurrentManagedAccess = prop->cooperativeLaunch = prop->hostRegisterSupported = 1;
    prop->pageableMemoryAccess = get(cudaDevAttrPageableMemoryAccess);
    prop->pageableMemoryAccessUsesHostPageTables = get(cudaDevAttrPageableMemoryAccessUsesHostPageTables);
    prop->hostRegisterReadOnlySupported = get(cudaDevAttrHostRegisterReadOnlySupported);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    Call call("cudaGetDeviceProperties", 0, cudaErrorInvalidValue);
    if (call.failed())
        return call.result();
    if (!is_device(device))
        return call.end(cudaErrorInvalidDevice);
    fill_properties(prop, machine().devices[(size_t)device]);
    return call.end(cudaSuccess);
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device)
{
    Call call("cudaDeviceGetPCIBusId", 0, cudaErrorInvalidValue);
    if (call.failed())
        return call.result();
    if (!is_device(device))
        return call.end(cudaErrorInvalidDevice);
    if (length < 13)
        return call.end(cudaErrorInvalidValue);
    snprintf(id, (size_t)length, "0000:%02X:00.0", device + 1);
    return call.end(cudaSuccess);
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id)
{
    Call call("cudaDeviceGetByPCIBusId", 0, cudaErrorInvalidValue);
    if (call.failed())
        return call.result();
    unsigned domain, bus;
    if (sscanf(id, "%x:%x:", &domain, &bus) != 2 || !is_device((int)bus - 1))
        return call.end(cudaErrorInvalidDevice);
    *device = (int)bus - 1;
    return call.end(cudaSuccess);
}

bool cudasim::can_peer(int a, int b)
{
    const Machine &m = machine();
    return a != b && m.config.peer_access && !(m.no_peer[a] >> b & 1);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    Call call("cudaDeviceCanAccessPeer", 0, cudaErrorInvalidDevice);
    if (call.failed())
        return call.result();
    if (!is_device(device) || !is_device(peer))
        return call.end(cudaErrorInvalidDevice);
    *can = can_peer(device, peer);
    return call.end(cudaSuccess);
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attribute, int src, int dst)
{
    Call call("cudaDeviceGetP2PAttribute", 0, cudaErrorInvalidDevice);
    if (call.failed())
        return call.result();
    if (!is_device(src) || !is_device(dst) || src == dst)
        return call.end(cudaErrorInvalidDevice);
    *value = attribute == cudaDevP2PAttrPerformanceRank ? 0 : can_peer(src, dst);
    return call.end(cudaSuccess);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    Call call("cudaDeviceEnablePeerAccess", CALL_CONTEXT, cudaErrorPeerAccessUnsupported);
    if (call.failed())
        return call.result();
    Device &device = *current_device();
    if (!is_device(peer))
        return call.end(cudaErrorInvalidDevice);
    if (flags != 0)
        return call.end(cudaErrorInvalidValue);
    if (!can_peer(device.ordinal, peer))
        return call.end(cudaErrorPeerAccessUnsupported);
    if (device.peers >> peer & 1)
        return call.end(cudaErrorPeerAccessAlreadyEnabled);
    cudaError_t error = make_context(machine().devices[(size_t)peer], true);
    if (error != cudaSuccess)
        return call.end(error);
    device.peers |= 1u << peer;
    if (!bar1_fits(peer, 0)) {
        device.peers &= ~(1u << peer);
        return call.end(cudaErrorMapBufferObjectFailed);
    }
    revoke(); /* what was granted is looked at again */
    return call.end(cudaSuccess);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    Call call("cudaDeviceDisablePeerAccess", CALL_CONTEXT | CALL_RELEASE, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    Device &device = *current_device();
    if (!is_device(peer))
        return call.end(cudaErrorInvalidDevice);
    if (!(device.peers >> peer & 1))
        return call.end(cudaErrorPeerAccessNotEnabled);
    device.peers &= ~(1u << peer);
    revoke();
    return call.end(cudaSuccess);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    Call call("cudaDeviceGetStreamPriorityRange", CALL_CONTEXT, cudaErrorUnknown);
    if (call.failed())
        return call.result();
    *least = 0;
    *greatest = -5;
    return call.end(cudaSuccess);
}
