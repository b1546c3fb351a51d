/* The machine's GPUs as values; tsr_gpu_probe() of core/gpu.h. No context is created on any GPU, so discovery
 * costs no GPU memory and little time. Facts that CUDA does not report come from NVML (nvml.h). */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "core/gpu.h"
#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/api/driver.h"
#include "cuda/libs/nvml.h"
#include "cuda/memory/memory.h"

/* Oldest GPU that the kernels are compiled for. */
enum { LEAST_COMPUTE_CAPABILITY = 80 };

typedef struct probe {
    tsr_topology *topo;
    const tsr_logger *logger;
    tsr_cuda_driver driver;
    int n_left_out;
} probe;

/* Whether a query of GPU `ordinal` succeeded; otherwise the property stays unknown, and a line is logged. */
static bool answered(const probe *p, int ordinal, cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return true;
    (void)cudaGetLastError();
    tsr_log(p->logger, TSR_LOG_DEBUG, "GPU %d: %.*s failed (%s); the property stays unknown", ordinal,
            (int)strcspn(call, "("), call, cudaGetErrorString(error));
    return false;
}
#define ANSWERED(p, ordinal, call) answered((p), (ordinal), (call), #call)

static int attribute(const probe *p, int ordinal, enum cudaDeviceAttr which)
{
    int value = 0;
    return ANSWERED(p, ordinal, cudaDeviceGetAttribute(&value, which, ordinal)) && value > 0 ? value : 0;
}

/* -- one GPU -- */

/* "GPU-8a56a4bc-9184-...", as nvidia-smi -L prints it; "" for a driver without uuids. */
static void format_uuid(const struct cudaDeviceProp *prop, char *text, size_t bytes)
{
    static const char zero[16];
    size_t used = 0;
    text[0] = '\0';
    if (memcmp(prop->uuid.bytes, zero, sizeof zero) == 0)
        return;
    used += (size_t)snprintf(text, bytes, "GPU-");
    for (int i = 0; i < 16; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%02x",
                                 i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                                 (unsigned char)prop->uuid.bytes[i]);
}

/* The properties that a device needs. */
static tsr_status describe_essentials(const probe *p, int ordinal, tsr_gpu *gpu)
{
    tsr_status status = TSR_OK;
    struct cudaDeviceProp prop;
    size_t granularity;
    CUdevice device;
    unsigned flags;
    int has_context;
    TSR_TRY(TSR_CUDA(cudaGetDeviceProperties(&prop, ordinal)));
    *gpu = (tsr_gpu){.ordinal = ordinal,
                     .numa_node = -1,
                     .n_sms = prop.multiProcessorCount,
                     .compute_capability = 10 * prop.major + prop.minor,
                     .memory_bytes = prop.totalGlobalMem,
                     .memory_bus_bits = prop.memoryBusWidth,
                     .integrated = prop.integrated != 0,
                     .pageable_access = prop.pageableMemoryAccess != 0};
    snprintf(gpu->name, sizeof gpu->name, "%.*s", (int)sizeof gpu->name - 1, prop.name);
    gpu->is_mig = strstr(gpu->name, " MIG ") != NULL; /* "NVIDIA A100-SXM4-40GB MIG 1g.5gb" */
    format_uuid(&prop, gpu->uuid, sizeof gpu->uuid);
    TSR_TRY(tsr_cuda_granularity(&p->driver, ordinal, &granularity));
    gpu->commit_bytes = granularity ? granularity : TSR_CUDA_PLAIN_GRANULARITY;
    TSR_TRY(TSR_CU(p->driver.cuDeviceGet(&device, ordinal)));
    TSR_TRY(TSR_CU(p->driver.cuDevicePrimaryCtxGetState(device, &flags, &has_context)));
    gpu->has_context = has_context != 0;
out:
    return status;
}

/* Peak memory speed = clock x 2 (double data rate) x bus width: "CUDA C++ Best Practices Guide", 10.2.1. Only
 * NVML reports a MIG instance's part. */
static void describe_rest(const probe *p, tsr_gpu *gpu)
{
    int ordinal = gpu->ordinal;
    if (!ANSWERED(p, ordinal, cudaDeviceGetPCIBusId(gpu->bus_id, sizeof gpu->bus_id, ordinal)))
        gpu->bus_id[0] = '\0';
    for (char *c = gpu->bus_id; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    gpu->sm_clock_khz = attribute(p, ordinal, cudaDevAttrClockRate);
    gpu->memory_clock_khz = attribute(p, ordinal, cudaDevAttrMemoryClockRate);
    if (!gpu->is_mig)
        gpu->memory_bytes_per_s = gpu->memory_clock_khz * 1e3 * 2 * gpu->memory_bus_bits / 8;
}

static void leave_out(probe *p, tsr_log_level level, const char *sentence)
{
    if (p->n_left_out++ == 0)
        snprintf(p->topo->gpu_note, sizeof p->topo->gpu_note, "%s", sentence);
    tsr_log(p->logger, level, "left out: %s", sentence);
}

static void add_gpu(probe *p, int ordinal)
{
    tsr_topology *topo = p->topo;
    tsr_gpu *gpu = &topo->gpus[topo->n_gpus];
    char sentence[256];
    if (describe_essentials(p, ordinal, gpu) != TSR_OK) {
        snprintf(sentence, sizeof sentence, "GPU %d cannot be queried: %s", ordinal, tsr_last_error());
        tsr_fail_clear();
        leave_out(p, TSR_LOG_WARN, sentence);
    } else if (gpu->compute_capability < LEAST_COMPUTE_CAPABILITY) {
        snprintf(sentence, sizeof sentence, "GPU %d, %s, has compute capability %d.%d; %d.%d is needed",
                 ordinal, gpu->name, gpu->compute_capability / 10, gpu->compute_capability % 10,
                 LEAST_COMPUTE_CAPABILITY / 10, LEAST_COMPUTE_CAPABILITY % 10);
        leave_out(p, TSR_LOG_INFO, sentence);
    } else {
        describe_rest(p, gpu);
        topo->n_gpus++;
        return;
    }
    memset(gpu, 0, sizeof *gpu);
}

/* -- pairs -- */

static tsr_tristate tristate_of(int value)
{
    return value ? TSR_YES : TSR_NO;
}

static void describe_pair(const probe *p, int from, int to, tsr_gpu_pair *pair)
{
    int a = p->topo->gpus[from].ordinal, b = p->topo->gpus[to].ordinal, value = 0;
    if (from == to) {
        *pair = (tsr_gpu_pair){.path = TSR_GPU_PATH_SAME, .peer_access = TSR_YES, .native_atomics = TSR_YES};
        return;
    }
    pair->performance_rank = -1;
    if (ANSWERED(p, a, cudaDeviceCanAccessPeer(&value, a, b)))
        pair->peer_access = tristate_of(value);
    if (pair->peer_access != TSR_YES)
        return;
    if (ANSWERED(p, a, cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrNativeAtomicSupported, a, b)))
        pair->native_atomics = tristate_of(value);
    if (ANSWERED(p, a, cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrPerformanceRank, a, b)))
        pair->performance_rank = TSR_MAX(value, 0);
}

/* -- all of them -- */

/* The first driver for the versions of CUDA with the same major number: NVIDIA, "CUDA Compatibility", minor
 * version compatibility. */
static const char *driver_for(int cuda_version)
{
    return cuda_version / 1000 == 12   ? " (driver 525 or newer)"
           : cuda_version / 1000 == 13 ? " (driver 580 or newer)"
                                       : "";
}

/* A note why there is no GPU. */
static void explain_none(tsr_topology *topo, cudaError_t error)
{
    char *note = topo->gpu_note;
    size_t bytes = sizeof topo->gpu_note;
    int has = topo->cuda_driver_version, wants = topo->cuda_version;
    if (error == cudaSuccess || error == cudaErrorNoDevice)
        snprintf(note, bytes,
                 "CUDA finds none; check nvidia-smi, and whether CUDA_VISIBLE_DEVICES hides them");
    else if (error == cudaErrorInsufficientDriver && has == 0)
        snprintf(note, bytes, "no NVIDIA driver is loaded; install it, or give the container access to it");
    else if (error == cudaErrorInsufficientDriver)
        snprintf(
            note, bytes,
            "the NVIDIA driver supports CUDA %d.%d and this build needs %d.0%s; update the driver, or build "
            "with CUDA %d",
            has / 1000, has % 1000 / 10, wants / 1000, driver_for(wants), has / 1000);
    else
        snprintf(note, bytes, "CUDA failed: %s; check nvidia-smi", cudaGetErrorString(error));
}

static void read_versions(const probe *p)
{
    tsr_topology *topo = p->topo;
    cudaError_t runtime = cudaRuntimeGetVersion(&topo->cuda_version);
    cudaError_t driver = cudaDriverGetVersion(&topo->cuda_driver_version);
    if (runtime == cudaSuccess && driver == cudaSuccess)
        return;
    (void)cudaGetLastError();
    topo->cuda_version = runtime == cudaSuccess ? topo->cuda_version : 0;
    topo->cuda_driver_version = driver == cudaSuccess ? topo->cuda_driver_version : 0;
    tsr_log(p->logger, TSR_LOG_DEBUG, "CUDA's version is unknown: %s",
            cudaGetErrorString(runtime == cudaSuccess ? driver : runtime));
}

void tsr_gpu_probe(tsr_topology *topo, const tsr_logger *logger)
{
    probe p = {.topo = topo, .logger = logger};
    int n = 0;
    read_versions(&p);
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess || n < 1) {
        (void)cudaGetLastError();
        explain_none(topo, error);
        return;
    }
    if (tsr_cuda_driver_load(&p.driver) != TSR_OK) {
        snprintf(topo->gpu_note, sizeof topo->gpu_note, "%s", tsr_last_error());
        tsr_fail_clear();
        return;
    }
    for (int ordinal = 0; ordinal < n; ordinal++) {
        if (topo->n_gpus < TSR_MAX_GPUS)
            add_gpu(&p, ordinal);
        else
            leave_out(&p, TSR_LOG_WARN, "a machine may have no more GPUs than TSR_MAX_GPUS");
    }
    if (topo->n_gpus > 0)
        tsr_nvml_describe(topo, logger);
    for (int a = 0; a < topo->n_gpus; a++)
        for (int b = 0; b < topo->n_gpus; b++)
            describe_pair(&p, a, b, &topo->gpu_pairs[a][b]);
}
