/* Translation of CUDA's and NCCL's error codes into statuses and sentences; see check.h. */
#include "cuda/check.h"

#include <string.h>

bool tsr_cuda_is_sticky(cudaError_t error)
{
    switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalAddress:
    case cudaErrorAssert:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
        return true;
    default:
        return false;
    }
}

static tsr_status status_of(cudaError_t error)
{
    if (tsr_cuda_is_sticky(error))
        return TSR_ERR_DEVICE_LOST;
    switch (error) {
    case cudaErrorMemoryAllocation:
        return TSR_ERR_MEMORY;
    case cudaErrorNotSupported:
    case cudaErrorInsufficientDriver:
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

/* Length of the function's name at the start of a call's source text. */
static int name_length(const char *call)
{
    return (int)strcspn(call, "( ");
}

static tsr_status fail_with(cudaError_t error, const char *call)
{
    tsr_status status = status_of(error);
    int device = -1;
    if (cudaGetDevice(&device) != cudaSuccess)
        device = -1;
    (void)cudaGetLastError(); /* clears it; sticky errors stay, which is what sticky means */
    return tsr_fail(status, "CUDA device %d: %.*s failed: %s (%s)%s", device, name_length(call), call,
                    cudaGetErrorString(error), cudaGetErrorName(error),
                    status == TSR_ERR_DEVICE_LOST ? "; the device is unusable until the process restarts"
                                                  : "");
}

tsr_status tsr_cuda_result(cudaError_t error, const char *call)
{
    return error == cudaSuccess ? TSR_OK : fail_with(error, call);
}

tsr_status tsr_cu_result(CUresult result, const char *call)
{
    return result == CUDA_SUCCESS ? TSR_OK : fail_with((cudaError_t)result, call);
}

tsr_status tsr_cuda_push_device(int ordinal, int *previous_out)
{
    tsr_status status = TSR_OK;
    int previous = 0;

    TSR_TRY(TSR_CUDA(cudaGetDevice(&previous)));
    if (previous != ordinal)
        TSR_TRY(TSR_CUDA(cudaSetDevice(ordinal)));
    *previous_out = previous;
out:
    return status;
}

void tsr_cuda_pop_device(int previous)
{
    int current = -1;
    if (cudaGetDevice(&current) != cudaSuccess ||
        (current != previous && cudaSetDevice(previous) != cudaSuccess))
        (void)cudaGetLastError();
}
