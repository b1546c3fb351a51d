/* The machine's GPUs as values; tsr_gpu_probe() of core/gpu.h. No context is made on any GPU, so looking
 * costs no GPU memory and little time. */
#include <ctype.h>
#include <stdio.h>

#include "core/gpu.h"
#include "core/mem.h"
#include "cuda/check.h"
#include "cuda/driver.h"
#include "cuda/memory.h"

/* Oldest GPU that the kernels are compiled for. */
enum { LEAST_COMPUTE_CAPABILITY = 80 };

static tsr_status attribute(int ordinal, enum cudaDeviceAttr which, int *value_out)
{
    return TSR_CUDA(cudaDeviceGetAttribute(value_out, which, ordinal));
}

/* Peak = clock (kHz) x 2 (double data rate) x bus width: "CUDA C++ Best Practices Guide", 10.2.1. */
static tsr_status memory_speed(int ordinal, double *bytes_per_s_out)
{
    tsr_status status = TSR_OK;
    int khz, bits;
    TSR_TRY(attribute(ordinal, cudaDevAttrMemoryClockRate, &khz));
    TSR_TRY(attribute(ordinal, cudaDevAttrGlobalMemoryBusWidth, &bits));
    *bytes_per_s_out = khz * 1e3 * 2 * bits / 8;
out:
    return status;
}

static tsr_status describe(const tsr_cuda_driver *driver, int ordinal, tsr_gpu *gpu)
{
    tsr_status status = TSR_OK;
    struct cudaDeviceProp prop;
    size_t granularity;
    TSR_TRY(TSR_CUDA(cudaGetDeviceProperties(&prop, ordinal)));
    *gpu = (tsr_gpu){.ordinal = ordinal,
                     .numa_node = -1,
                     .n_sms = prop.multiProcessorCount,
                     .compute_capability = 10 * prop.major + prop.minor,
                     .memory_bytes = prop.totalGlobalMem};
    snprintf(gpu->name, sizeof gpu->name, "%.*s", (int)sizeof gpu->name - 1, prop.name);
    TSR_TRY(TSR_CUDA(cudaDeviceGetPCIBusId(gpu->bus_id, sizeof gpu->bus_id, ordinal)));
    for (char *c = gpu->bus_id; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    TSR_TRY(memory_speed(ordinal, &gpu->memory_bytes_per_s));
    TSR_TRY(tsr_cuda_granularity(driver, ordinal, &granularity));
    gpu->commit_bytes = granularity ? granularity : TSR_CUDA_PLAIN_GRANULARITY;
out:
    return status;
}

tsr_status tsr_gpu_probe(tsr_gpu *gpus, int max, int *n_out)
{
    tsr_status status = TSR_OK;
    tsr_cuda_driver driver;
    int n = 0, n_usable = 0, too_old = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess || n == 0) {
        (void)cudaGetLastError();
        return tsr_fail(TSR_ERR_NOT_FOUND, "CUDA says: %s",
                        error == cudaSuccess ? "no GPU" : cudaGetErrorString(error));
    }
    TSR_TRY(tsr_cuda_driver_load(&driver));
    for (int i = 0; i < n && n_usable < max; i++) {
        TSR_TRY(describe(&driver, i, &gpus[n_usable]));
        if (gpus[n_usable].compute_capability >= LEAST_COMPUTE_CAPABILITY)
            n_usable++;
        else
            too_old++;
    }
    if (n_usable == 0)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%d found, all older than compute capability %d.%d", too_old,
                        LEAST_COMPUTE_CAPABILITY / 10, LEAST_COMPUTE_CAPABILITY % 10);
    *n_out = n_usable;
out:
    return status;
}
