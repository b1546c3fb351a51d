/* Translation of CUDA's and NCCL's error codes into statuses and sentences; see check.h. */
#include "cuda/api/check.h"

#include <string.h>

/* Errors of which cudaError_t's documentation says that they leave the process in an inconsistent state, that
 * further work returns the same error, or that the context is destroyed (CUDA Runtime API 13.0, "Data types
 * used by CUDA Runtime"; CUresult's documentation says the same of the same numbers), and memory errors that
 * the hardware could not correct, after which the driver ends the context's work (NVIDIA, "GPU Memory Error
 * Management"). By number where an older toolkit has no name. */
bool tsr_cuda_is_sticky(cudaError_t error)
{
    enum { CONTAINED = 226, TENSOR_MEMORY_LEAK = 721, MPS_CLIENT_TERMINATED = 810, EXTERNAL_DEVICE = 911 };
    switch ((int)error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case CONTAINED:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case TENSOR_MEMORY_LEAK:
    case MPS_CLIENT_TERMINATED:
    case EXTERNAL_DEVICE:
        return true;
    default:
        return false;
    }
}

static tsr_status status_of(cudaError_t error)
{
    switch (error) {
    case cudaErrorMemoryAllocation:
        return TSR_ERR_MEMORY;
    case cudaErrorNotSupported:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDeviceFunction: /* both: the library was not built for this GPU */
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorPeerAccessUnsupported:
        return TSR_ERR_UNSUPPORTED;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
        return TSR_ERR_NOT_FOUND;
    default:
        return TSR_ERR_DEVICE;
    }
}

/* The requested version of the driver's functions: the oldest driver that the oldest toolkit supports. */
enum { ENTRY_POINT_VERSION = 12000 };

cudaError_t tsr_cuda_entry_point(const char *name, void **function_out)
{
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSuccess;
    *function_out = NULL;
#if CUDART_VERSION >= 12050
    return cudaGetDriverEntryPointByVersion(name, function_out, ENTRY_POINT_VERSION, cudaEnableDefault,
                                            &result);
#else
    return cudaGetDriverEntryPoint(name, function_out, cudaEnableDefault, &result);
#endif
}

/* Whether a context is current in the calling thread. */
static bool has_context(void)
{
    CUresult (*get_current)(CUcontext *) = NULL;
    CUcontext context = NULL;
    return tsr_cuda_entry_point("cuCtxGetCurrent", (void **)&get_current) == cudaSuccess && get_current &&
           get_current(&context) == CUDA_SUCCESS && context;
}

/* The unknown error may be a call's own, or the error of all calls once a GPU has fallen off the bus. In the
 * second case any query of the context fails, too. Without a context the query would create one. */
static bool is_lost(cudaError_t error)
{
    size_t available, total;
    if (error != cudaErrorUnknown)
        return tsr_cuda_is_sticky(error);
    (void)cudaGetLastError();
    return has_context() && cudaMemGetInfo(&available, &total) != cudaSuccess;
}

/* Length of the function's name at the start of a call's source text. */
static int name_length(const char *call)
{
    return (int)strcspn(call, "( ");
}

static const char *remedy_for(cudaError_t error, tsr_status status)
{
    if (status == TSR_ERR_DEVICE_LOST)
        return "; the device is unusable until the process restarts";
    if (error == cudaErrorDevicesUnavailable)
        return "; another process has the GPU in exclusive mode, or its compute mode is prohibited: "
               "nvidia-smi shows both";
    return "";
}

tsr_status tsr_cuda_result_of(int ordinal, cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return TSR_OK;
    tsr_status status = is_lost(error) ? TSR_ERR_DEVICE_LOST : status_of(error);
    (void)cudaGetLastError(); /* clears it; sticky errors stay */
    return tsr_fail(status, "CUDA device %d: %.*s failed: %s (%s)%s", ordinal, name_length(call), call,
                    cudaGetErrorString(error), cudaGetErrorName(error), remedy_for(error, status));
}

tsr_status tsr_cuda_result(cudaError_t error, const char *call)
{
    int device = -1;
    if (error != cudaSuccess && cudaGetDevice(&device) != cudaSuccess)
        device = -1;
    return tsr_cuda_result_of(device, error, call);
}

tsr_status tsr_cu_result(CUresult result, const char *call)
{
    return tsr_cuda_result((cudaError_t)result, call);
}
