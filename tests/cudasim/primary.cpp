/* Primary contexts: the GPUs that this process has begun to use, and the context that is current in a thread.
 *
 * A device's context is made by the first call that needs one, takes memory of the device, and stays. A
 * runtime call that needs a context uses the one that is current in the calling thread. If none is current,
 * the call takes that of the thread's device (of cudaSetDevice, at first 0) and makes it current. As since
 * CUDA 12, cudaSetDevice makes the context, too. */
#include "sim.h"

#include <algorithm>

struct CUctx_st {
    int device;
};

namespace cudasim
{

/* Of the primary context of a device: always the same one. */
static CUcontext handle_of(int ordinal)
{
    static CUctx_st contexts[CUDASIM_MAX_DEVICES];
    contexts[ordinal].device = ordinal;
    return &contexts[ordinal];
}

/* On an H100 a process without memory of its own takes 534 MiB of 132 multiprocessors, on an RTX 4060 Ti 107
 * of 34 (meta-pytorch/torchcomms, pull request 777; ggml-org/llama.cpp, pull request 23604): 2 KiB for each
 * thread that can be resident, and 8 MiB. */
size_t context_bytes_of_card()
{
    const cudasim_config &config = machine().config;
    return config.context_bytes != 0
               ? config.context_bytes
               : (size_t)config.n_sms * (size_t)limits().threads * 2048 + ((size_t)8 << 20);
}

size_t room(const Device &device)
{
    const size_t used = device.used + device.others + (device.has_context() ? device.context_bytes : 0);
    return device.total() > used ? device.total() - used : 0;
}

cudaError_t make_context(Device &device, bool by_runtime)
{
    if (machine().config.owned >> device.ordinal & 1)
        return cudaErrorDevicesUnavailable;
    if (!device.has_context() && room(device) < device.context_bytes)
        return cudaErrorMemoryAllocation;
    device.initialised = device.initialised || by_runtime;
    device.retained += !by_runtime;
    return cudaSuccess;
}

cudaError_t use_context(bool by_driver)
{
    Thread &thread = thread_state();
    if (thread.contexts.empty() && by_driver)
        return (cudaError_t)CUDA_ERROR_INVALID_CONTEXT;
    Device *device = current_device();
    if (device == NULL)
        return cudaErrorNoDevice;
    if (!thread.contexts.empty())
        return device->has_context() ? cudaSuccess : (cudaError_t)CUDA_ERROR_INVALID_CONTEXT;
    cudaError_t error = make_context(*device, true);
    if (error == cudaSuccess)
        thread.contexts.push_back(device->ordinal);
    return error;
}

} // namespace cudasim

using namespace cudasim;

static Device *device_of(CUdevice device)
{
    return device >= 0 && device < (int)machine().devices.size() ? &machine().devices[(size_t)device] : NULL;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
    Call call("cuDevicePrimaryCtxRetain", CALL_QUIET, CUDA_ERROR_OUT_OF_MEMORY);
    if (call.failed())
        return call.end_driver((CUresult)call.result());
    Device *device = device_of(ordinal);
    if (device == NULL)
        return call.end_driver(CUDA_ERROR_INVALID_DEVICE);
    cudaError_t error = make_context(*device, false);
    if (error == cudaSuccess)
        *context = handle_of(ordinal);
    return call.end_driver((CUresult)error);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
    Call call("cuDevicePrimaryCtxRelease", CALL_QUIET | CALL_RELEASE, CUDA_ERROR_UNKNOWN);
    Device *device = device_of(ordinal);
    if (device == NULL || device->retained == 0) {
        violate("cuDevicePrimaryCtxRelease: the context of device %d was not retained", ordinal);
        return call.end_driver(CUDA_ERROR_INVALID_CONTEXT);
    }
    device->retained--;
    return call.end_driver(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active)
{
    Call call("cuDevicePrimaryCtxGetState", CALL_QUIET, CUDA_ERROR_INVALID_VALUE);
    if (call.failed())
        return call.end_driver((CUresult)call.result());
    Device *device = device_of(ordinal);
    if (device == NULL)
        return call.end_driver(CUDA_ERROR_INVALID_DEVICE);
    *flags = 0;
    *active = device->has_context();
    return call.end_driver(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    Call call("cuCtxGetCurrent", CALL_QUIET, CUDA_ERROR_INVALID_VALUE);
    if (call.failed())
        return call.end_driver((CUresult)call.result());
    const std::vector<int> &stack = thread_state().contexts;
    *context = stack.empty() ? NULL : handle_of(stack.back());
    return call.end_driver(CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    Call call("cuCtxPushCurrent", CALL_QUIET, CUDA_ERROR_INVALID_VALUE);
    if (call.failed())
        return call.end_driver((CUresult)call.result());
    Device *device = context != NULL ? device_of(context->device) : NULL;
    if (device == NULL || !device->has_context())
        return call.end_driver(CUDA_ERROR_INVALID_CONTEXT);
    thread_state().contexts.push_back(context->device);
    return call.end_driver(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    Call call("cuCtxPopCurrent", CALL_QUIET | CALL_RELEASE, CUDA_ERROR_UNKNOWN);
    std::vector<int> &stack = thread_state().contexts;
    if (stack.empty()) {
        violate("cuCtxPopCurrent: no context is current");
        return call.end_driver(CUDA_ERROR_INVALID_CONTEXT);
    }
    *context = handle_of(stack.back());
    stack.pop_back();
    return call.end_driver(CUDA_SUCCESS);
}
