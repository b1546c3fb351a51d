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

/* The unknown error may be a call's own, or the error of all calls once a GPU has fallen off the bus. In the
 * second case any query of the context fails, too. */
static bool is_lost(cudaError_t error)
{
    size_t available, total;
    if (error != cudaErrorUnknown)
        return tsr_cuda_is_sticky(error);
    (void)cudaGetLastError();
    return cudaMemGetInfo(&available, &total) != cudaSuccess;
}

/* Length of the function's name at the start of a call's source text. */
static int name_length(const char *call)
{
    return (int)strcspn(call, "( ");
}

static tsr_status fail_with(cudaError_t error, const char *call)
{
    tsr_status status = is_lost(error) ? TSR_ERR_DEVICE_LOST : status_of(error);
    int device = -1;
    if (cudaGetDevice(&device) != cudaSuccess)
        device = -1;
    (void)cudaGetLastError(); /* clears it; sticky errors stay */
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
