/* Finding the driver's functions; see driver.h. */
#include "cuda/api/driver.h"

#include "cuda/api/check.h"

static tsr_status find_call(const char *name, void *pointer_out)
{
    tsr_status status = TSR_OK;
    void *found = NULL;
    TSR_TRY(tsr_cuda_result(tsr_cuda_entry_point(name, &found), CUDART_VERSION >= 12050
                                                                    ? "cudaGetDriverEntryPointByVersion"
                                                                    : "cudaGetDriverEntryPoint"));
    if (!found)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "the CUDA driver has no %s; install a newer one", name);
    *(void **)pointer_out = found;
out:
    return status;
}

tsr_status tsr_cuda_driver_load(tsr_cuda_driver *driver_out)
{
    tsr_status status = TSR_OK;
    tsr_cuda_driver d = {0};
    TSR_TRY(find_call("cuDeviceGet", &d.cuDeviceGet));
    TSR_TRY(find_call("cuDeviceGetAttribute", &d.cuDeviceGetAttribute));
    TSR_TRY(find_call("cuDevicePrimaryCtxRetain", &d.cuDevicePrimaryCtxRetain));
    TSR_TRY(find_call("cuDevicePrimaryCtxRelease", &d.cuDevicePrimaryCtxRelease));
    TSR_TRY(find_call("cuDevicePrimaryCtxGetState", &d.cuDevicePrimaryCtxGetState));
    TSR_TRY(find_call("cuCtxPushCurrent", &d.cuCtxPushCurrent));
    TSR_TRY(find_call("cuCtxPopCurrent", &d.cuCtxPopCurrent));
    TSR_TRY(find_call("cuMemGetAllocationGranularity", &d.cuMemGetAllocationGranularity));
    TSR_TRY(find_call("cuMemAddressReserve", &d.cuMemAddressReserve));
    TSR_TRY(find_call("cuMemAddressFree", &d.cuMemAddressFree));
    TSR_TRY(find_call("cuMemCreate", &d.cuMemCreate));
    TSR_TRY(find_call("cuMemRelease", &d.cuMemRelease));
    TSR_TRY(find_call("cuMemMap", &d.cuMemMap));
    TSR_TRY(find_call("cuMemUnmap", &d.cuMemUnmap));
    TSR_TRY(find_call("cuMemSetAccess", &d.cuMemSetAccess));
    *driver_out = d;
out:
    return status;
}

CUmemAllocationProp tsr_cuda_memory_prop(int ordinal)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal}};
}

tsr_status tsr_cuda_granularity(const tsr_cuda_driver *driver, int ordinal, size_t *bytes_out)
{
    tsr_status status = TSR_OK;
    CUdevice device;
    int supported = 0;
    size_t bytes = 0;
    CUmemAllocationProp prop = tsr_cuda_memory_prop(ordinal);
    TSR_TRY(TSR_CU(driver->cuDeviceGet(&device, ordinal)));
    TSR_TRY(TSR_CU(driver->cuDeviceGetAttribute(
        &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device)));
    if (supported)
        TSR_TRY(TSR_CU(
            driver->cuMemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)));
    *bytes_out = bytes;
out:
    return status;
}
