/* The driver's functions for virtual memory and for contexts, found at run time: the library links no
 * libcuda, so it loads on machines without a driver. */
#ifndef TSR_CUDA_API_DRIVER_H
#define TSR_CUDA_API_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda.h>

#include "core/status.h"

typedef struct tsr_cuda_driver {
    CUresult (*cuDeviceGet)(CUdevice *device, int ordinal);
    CUresult (*cuDeviceGetAttribute)(int *value, CUdevice_attribute attribute, CUdevice device);
    CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *context, CUdevice device);
    CUresult (*cuDevicePrimaryCtxRelease)(CUdevice device);
    CUresult (*cuDevicePrimaryCtxGetState)(CUdevice device, unsigned *flags, int *active);
    CUresult (*cuCtxPushCurrent)(CUcontext context);
    CUresult (*cuCtxPopCurrent)(CUcontext *context);
    CUresult (*cuMemGetAllocationGranularity)(size_t *granularity, const CUmemAllocationProp *prop,
                                              CUmemAllocationGranularity_flags option);
    CUresult (*cuMemAddressReserve)(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr hint,
                                    unsigned long long flags);
    CUresult (*cuMemAddressFree)(CUdeviceptr pointer, size_t size);
    CUresult (*cuMemCreate)(CUmemGenericAllocationHandle *handle, size_t size,
                            const CUmemAllocationProp *prop, unsigned long long flags);
    CUresult (*cuMemRelease)(CUmemGenericAllocationHandle handle);
    CUresult (*cuMemMap)(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags);
    CUresult (*cuMemUnmap)(CUdeviceptr pointer, size_t size);
    CUresult (*cuMemSetAccess)(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access, size_t count);
} tsr_cuda_driver;

/* TSR_ERR_UNSUPPORTED if the driver lacks one of them. */
tsr_status tsr_cuda_driver_load(tsr_cuda_driver *driver_out);

/* The properties of a device's physical memory. */
CUmemAllocationProp tsr_cuda_memory_prop(int ordinal);

/* Granularity in bytes of the device's virtual memory; 0 if it has none. */
tsr_status tsr_cuda_granularity(const tsr_cuda_driver *driver, int ordinal, size_t *bytes_out);

#endif
