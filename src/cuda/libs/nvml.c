/* Queries to NVML; see nvml.h. Every query may fail for its own reason (a consumer card has no NVLink, a
 * container may not read power limits), so a failed query is logged and does not affect the others. */
#include "cuda/libs/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "core/status.h"
#include "cuda/libs/nvml_api.h"
#ifdef TSR_CUDASIM
#include "cudasim_nvml.h"
#endif

typedef struct nvml_library {
    void *handle;
    const tsr_logger *logger;
#define MEMBER(name, parameters) nvmlReturn_t(*name) parameters;
    TSR_NVML_CALLS(MEMBER, MEMBER)
#undef MEMBER
} nvml_library;

/* A GPU in NVML. */
typedef struct nvml_gpu {
    nvmlDevice_t device; /* CUDA's device: the card, or a MIG instance; NULL if NVML did not find it */
    nvmlDevice_t card;
} nvml_gpu;

/* -- the library -- */

static void *open_library(void)
{
#ifdef TSR_CUDASIM
    return cudasim_nvml_symbol("nvmlInit_v2");
#else
    return dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
#endif
}

static void *find_symbol(void *handle, const char *name)
{
#ifdef TSR_CUDASIM
    (void)handle;
    return cudasim_nvml_symbol(name);
#else
    return dlsym(handle, name);
#endif
}

static void close_library(void *handle)
{
#ifdef TSR_CUDASIM
    (void)handle;
#else
    dlclose(handle);
#endif
}

/* Load NVML. False if it cannot be used. */
static bool start(nvml_library *nvml, const tsr_logger *logger)
{
    bool complete = true;
    memset(nvml, 0, sizeof *nvml);
    nvml->logger = logger;
    nvml->handle = open_library();
    if (!nvml->handle) {
        tsr_log(logger, TSR_LOG_DEBUG, "NVML (libnvidia-ml.so.1) is not installed: links stay unknown");
        return false;
    }
#define FIND(name, parameters) *(void **)&nvml->name = find_symbol(nvml->handle, #name);
#define NEED(name, parameters) FIND(name, parameters) complete = complete && nvml->name;
    TSR_NVML_CALLS(NEED, FIND)
#undef NEED
#undef FIND
    nvmlReturn_t result = complete ? nvml->nvmlInit_v2() : NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS)
        return true;
    tsr_log(logger, TSR_LOG_DEBUG, "NVML does not start (%s, code %d): links stay unknown",
            complete ? "nvmlInit_v2" : "too old", (int)result);
    close_library(nvml->handle);
    return false;
}

static void stop(nvml_library *nvml)
{
    (void)nvml->nvmlShutdown();
    close_library(nvml->handle);
}

/* Whether a query succeeded. That a card lacks the feature is a valid result and not logged. */
static bool answered(const nvml_library *nvml, int ordinal, nvmlReturn_t result, const char *call)
{
    if (result != NVML_SUCCESS && result != NVML_ERROR_NOT_SUPPORTED)
        tsr_log(nvml->logger, TSR_LOG_DEBUG, "GPU %d: %s failed (code %d); the property stays unknown",
                ordinal, call, (int)result);
    return result == NVML_SUCCESS;
}

/* ASK(nvml, ordinal, nvmlCall, arguments...): whether the function exists and succeeded. */
#define ASK(nvml, ordinal, call, ...) \
    ((nvml)->call && answered((nvml), (ordinal), (nvml)->call(__VA_ARGS__), #call))

/* -- one GPU -- */

/* CUDA writes "GPU-" before every identifier; NVML expects "MIG-" before an instance's identifier. */
static bool find_by_uuid(const nvml_library *nvml, tsr_gpu *gpu, nvmlDevice_t *device_out)
{
    static const char *const prefixes[] = {"GPU-", "MIG-"};
    char uuid[sizeof gpu->uuid];
    for (int i = 0; i < 2 && *gpu->uuid; i++) {
        snprintf(uuid, sizeof uuid, "%s%s", prefixes[i], gpu->uuid + strlen(prefixes[i]));
        nvmlReturn_t result = nvml->nvmlDeviceGetHandleByUUID(uuid, device_out);
        if (result == NVML_SUCCESS) {
            memcpy(gpu->uuid, uuid, sizeof uuid);
            return true;
        }
        if (result != NVML_ERROR_NOT_FOUND && result != NVML_ERROR_INVALID_ARGUMENT)
            (void)answered(nvml, gpu->ordinal, result, "nvmlDeviceGetHandleByUUID");
    }
    return false;
}

static nvml_gpu find_gpu(const nvml_library *nvml, tsr_gpu *gpu)
{
    nvml_gpu found = {NULL, NULL};
    unsigned is_mig = 0;
    if (find_by_uuid(nvml, gpu, &found.device)) {
        found.card = found.device;
        if (ASK(nvml, gpu->ordinal, nvmlDeviceIsMigDeviceHandle, found.device, &is_mig) && is_mig) {
            gpu->is_mig = true;
            found.card = NULL;
            if (!ASK(nvml, gpu->ordinal, nvmlDeviceGetDeviceHandleFromMigDeviceHandle, found.device,
                     &found.card))
                found.card = NULL;
        }
    }
    if (!found.card && *gpu->bus_id &&
        !ASK(nvml, gpu->ordinal, nvmlDeviceGetHandleByPciBusId_v2, gpu->bus_id, &found.card))
        found.card = NULL;
    if (!found.device && !gpu->is_mig)
        found.device = found.card;
    return found;
}

/* A MIG instance's share of the memory bandwidth equals its share of the memory ("MIG User Guide": a memory
 * slice has an eighth of the capacity and of the bandwidth). */
static void describe_memory(const nvml_library *nvml, const nvml_gpu *at, tsr_gpu *gpu)
{
    nvmlMemory_t memory, whole;
    unsigned mhz = 0, bits = 0;
    if (at->device && ASK(nvml, gpu->ordinal, nvmlDeviceGetMemoryInfo, at->device, &memory))
        gpu->memory_free_bytes = TSR_MIN((uint64_t)memory.free, gpu->memory_bytes);
    if (gpu->memory_clock_khz == 0 && at->card &&
        ASK(nvml, gpu->ordinal, nvmlDeviceGetMaxClockInfo, at->card, NVML_CLOCK_MEM, &mhz))
        gpu->memory_clock_khz = (int)TSR_MIN(mhz, 1000000u) * 1000;
    if (gpu->memory_bus_bits == 0 && at->card &&
        ASK(nvml, gpu->ordinal, nvmlDeviceGetMemoryBusWidth, at->card, &bits))
        gpu->memory_bus_bits = (int)TSR_MIN(bits, 1u << 16);
    gpu->memory_bytes_per_s = gpu->memory_clock_khz * 1e3 * 2 * gpu->memory_bus_bits / 8;
    if (!gpu->is_mig)
        return;
    if (at->card && ASK(nvml, gpu->ordinal, nvmlDeviceGetMemoryInfo, at->card, &whole) && whole.total > 0)
        gpu->memory_bytes_per_s *=
            TSR_MIN((double)gpu->memory_bytes, (double)whole.total) / (double)whole.total;
    else
        gpu->memory_bytes_per_s = 0;
}

static int plausible(unsigned value, int most)
{
    return value <= (unsigned)most ? (int)value : 0;
}

static void describe_card(const nvml_library *nvml, nvmlDevice_t card, tsr_gpu *gpu)
{
    unsigned value = 0;
    if (ASK(nvml, gpu->ordinal, nvmlDeviceGetEnforcedPowerLimit, card, &value))
        gpu->power_limit_mw = plausible(value, 100 * 1000 * 1000);
    if (gpu->sm_clock_khz == 0 &&
        ASK(nvml, gpu->ordinal, nvmlDeviceGetMaxClockInfo, card, NVML_CLOCK_SM, &value))
        gpu->sm_clock_khz = plausible(value, 1000 * 1000) * 1000;
    if (ASK(nvml, gpu->ordinal, nvmlDeviceGetCurrPcieLinkGeneration, card, &value))
        gpu->pcie.generation = plausible(value, 16);
    if (ASK(nvml, gpu->ordinal, nvmlDeviceGetCurrPcieLinkWidth, card, &value))
        gpu->pcie.width = plausible(value, 32);
    if (ASK(nvml, gpu->ordinal, nvmlDeviceGetMaxPcieLinkGeneration, card, &value))
        gpu->pcie_max.generation = plausible(value, 16);
    if (ASK(nvml, gpu->ordinal, nvmlDeviceGetMaxPcieLinkWidth, card, &value))
        gpu->pcie_max.width = plausible(value, 32);
}

/* -- its links -- */

static double number_of(const nvmlFieldValue_t *field)
{
    if (field->valueType == NVML_VALUE_TYPE_DOUBLE)
        return field->value.dVal;
    if (field->valueType == NVML_VALUE_TYPE_UNSIGNED_LONG)
        return (double)field->value.ulVal;
    if (field->valueType == NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
        return (double)field->value.ullVal;
    return field->value.uiVal;
}

/* A field's value, 0 if unknown. */
static double ask_field(const nvml_library *nvml, const tsr_gpu *gpu, nvmlDevice_t card, unsigned field,
                        unsigned link)
{
    nvmlFieldValue_t value = {.fieldId = field, .scopeId = link, .nvmlReturn = NVML_ERROR_UNKNOWN};
    if (!ASK(nvml, gpu->ordinal, nvmlDeviceGetFieldValues, card, 1, &value) ||
        value.nvmlReturn != NVML_SUCCESS)
        return 0;
    double number = number_of(&value);
    return number > 0 && number < 1e9 ? number : 0;
}

/* The device at the other end of an active link. */
static tsr_nvlink_end look_along(const nvml_library *nvml, const tsr_gpu *gpu, nvmlDevice_t card,
                                 unsigned link)
{
    tsr_nvlink_end end = {.gpu = -1, .n_links = 1};
    nvmlIntNvLinkDeviceType_t type = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    nvmlPciInfo_t pci;
    unsigned version = 0;
    memset(&pci, 0, sizeof pci);
    if (ASK(nvml, gpu->ordinal, nvmlDeviceGetNvLinkRemoteDeviceType, card, link, &type))
        end.kind = type == NVML_NVLINK_DEVICE_TYPE_GPU      ? TSR_NVLINK_END_GPU
                   : type == NVML_NVLINK_DEVICE_TYPE_SWITCH ? TSR_NVLINK_END_SWITCH
                   : type == NVML_NVLINK_DEVICE_TYPE_IBMNPU ? TSR_NVLINK_END_CPU
                                                            : TSR_NVLINK_END_UNKNOWN;
    /* Guests of a virtual machine get invalid ids for switches that were not passed through. */
    if (ASK(nvml, gpu->ordinal, nvmlDeviceGetNvLinkRemotePciInfo_v2, card, link, &pci) &&
        pci.domain <= 0xffff && pci.bus <= 0xff && pci.device <= 0x1f)
        snprintf(end.bus_id, sizeof end.bus_id, "%04x:%02x:%02x.0", pci.domain & 0xffff, pci.bus & 0xff,
                 pci.device & 0x1f);
    if (ASK(nvml, gpu->ordinal, nvmlDeviceGetNvLinkVersion, card, link, &version))
        end.version = plausible(version, 100);
    return end;
}

static void add_end(const nvml_library *nvml, tsr_gpu *gpu, const tsr_nvlink_end *end)
{
    for (int i = 0; i < gpu->n_nvlink_ends; i++) {
        tsr_nvlink_end *known = &gpu->nvlink_ends[i];
        if (known->kind == end->kind && strcmp(known->bus_id, end->bus_id) == 0) {
            known->n_links += end->n_links;
            return;
        }
    }
    if (gpu->n_nvlink_ends < TSR_MAX_NVLINK_ENDS)
        gpu->nvlink_ends[gpu->n_nvlink_ends++] = *end;
    else
        tsr_log(nvml->logger, TSR_LOG_DEBUG,
                "GPU %d: its NVLinks lead to more than %d devices; one is left out", gpu->ordinal,
                TSR_MAX_NVLINK_ENDS);
}

/* All active links of a GPU run at one speed. */
static double link_speed(const nvml_library *nvml, const tsr_gpu *gpu, nvmlDevice_t card, unsigned link)
{
    double mbyte_per_s = ask_field(nvml, gpu, card, NVML_FI_DEV_NVLINK_GET_SPEED, link);
    if (mbyte_per_s == 0)
        mbyte_per_s = ask_field(nvml, gpu, card, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 0);
    return mbyte_per_s * 1e6;
}

static void describe_nvlinks(const nvml_library *nvml, nvmlDevice_t card, tsr_gpu *gpu)
{
    double speed = 0;
    for (unsigned link = 0; link < NVML_NVLINK_MAX_LINKS && nvml->nvmlDeviceGetNvLinkState; link++) {
        nvmlEnableState_t state = NVML_FEATURE_DISABLED;
        nvmlReturn_t result = nvml->nvmlDeviceGetNvLinkState(card, link, &state);
        if (result == NVML_ERROR_NOT_SUPPORTED || result == NVML_ERROR_INVALID_ARGUMENT)
            break; /* after the last link, or none exist */
        if (!answered(nvml, gpu->ordinal, result, "nvmlDeviceGetNvLinkState") ||
            state != NVML_FEATURE_ENABLED)
            continue;
        if (speed == 0)
            speed = link_speed(nvml, gpu, card, link);
        tsr_nvlink_end end = look_along(nvml, gpu, card, link);
        add_end(nvml, gpu, &end);
    }
    for (int i = 0; i < gpu->n_nvlink_ends; i++)
        gpu->nvlink_ends[i].bytes_per_s = speed * gpu->nvlink_ends[i].n_links;
}

/* The link to a Grace processor counts as NVLinks that lead to a CPU. */
static void describe_c2c(const nvml_library *nvml, nvmlDevice_t card, tsr_gpu *gpu)
{
    tsr_nvlink_end end = {.kind = TSR_NVLINK_END_CPU, .gpu = -1};
    int count = (int)TSR_MIN(ask_field(nvml, gpu, card, NVML_FI_DEV_C2C_LINK_COUNT, 0), 64.0);
    for (unsigned link = 0; link < (unsigned)count; link++) {
        if (ask_field(nvml, gpu, card, NVML_FI_DEV_C2C_LINK_GET_STATUS, link) != 1)
            continue;
        end.n_links++;
        end.bytes_per_s += 1e6 * ask_field(nvml, gpu, card, NVML_FI_DEV_C2C_LINK_GET_MAX_BW, link);
    }
    if (end.n_links > 0)
        add_end(nvml, gpu, &end);
}

/* -- pairs -- */

static tsr_gpu_path path_of(nvmlGpuTopologyLevel_t level)
{
    switch (level) {
    case NVML_TOPOLOGY_INTERNAL:
        return TSR_GPU_PATH_BOARD;
    case NVML_TOPOLOGY_SINGLE:
        return TSR_GPU_PATH_PIX;
    case NVML_TOPOLOGY_MULTIPLE:
        return TSR_GPU_PATH_PXB;
    case NVML_TOPOLOGY_HOSTBRIDGE:
        return TSR_GPU_PATH_PHB;
    case NVML_TOPOLOGY_NODE:
        return TSR_GPU_PATH_NODE;
    case NVML_TOPOLOGY_SYSTEM:
        return TSR_GPU_PATH_SYS;
    }
    return TSR_GPU_PATH_UNKNOWN;
}

static void describe_paths(const nvml_library *nvml, const nvml_gpu *at, tsr_topology *topo)
{
    for (int a = 0; a < topo->n_gpus; a++) {
        for (int b = 0; b < a; b++) {
            nvmlGpuTopologyLevel_t level = NVML_TOPOLOGY_SYSTEM;
            tsr_gpu_path path = TSR_GPU_PATH_UNKNOWN;
            if (!at[a].card || !at[b].card)
                continue;
            if (at[a].card == at[b].card)
                path = TSR_GPU_PATH_SAME;
            else if (ASK(nvml, topo->gpus[a].ordinal, nvmlDeviceGetTopologyCommonAncestor, at[a].card,
                         at[b].card, &level))
                path = path_of(level);
            topo->gpu_pairs[a][b].path = topo->gpu_pairs[b][a].path = path;
        }
    }
}

void tsr_nvml_describe(tsr_topology *topo, const tsr_logger *logger)
{
    nvml_library nvml;
    nvml_gpu at[TSR_MAX_GPUS];
    char version[80]; /* NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE */
    if (!start(&nvml, logger))
        return;
    if (ASK(&nvml, 0, nvmlSystemGetDriverVersion, version, sizeof version))
        snprintf(topo->driver_version, sizeof topo->driver_version, "%.*s",
                 (int)sizeof topo->driver_version - 1, version);
    for (int i = 0; i < topo->n_gpus; i++) {
        tsr_gpu *gpu = &topo->gpus[i];
        at[i] = find_gpu(&nvml, gpu);
        describe_memory(&nvml, &at[i], gpu);
        if (!at[i].card)
            continue;
        describe_card(&nvml, at[i].card, gpu);
        if (gpu->is_mig)
            continue; /* instances have no links */
        describe_nvlinks(&nvml, at[i].card, gpu);
        describe_c2c(&nvml, at[i].card, gpu);
    }
    describe_paths(&nvml, at, topo);
    stop(&nvml);
}
