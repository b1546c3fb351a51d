/* The simulated NVML. Its numbers are those of an H200 where they are not the machine's own: PCIe 5 x16, idle
 * at generation 1; NVLink 4 at 26562 Mbyte/s per link. Even GPUs hang off one NUMA node, odd ones off
 * another, two to a PCIe switch. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

#include "../../src/cuda/libs/nvml_api.h"
#include "cudasim_nvml.h"

using namespace cudasim;

struct nvmlDevice_st {
    int ordinal;
    bool is_instance;
};

static cudasim_nvml_config settings = {};
static int started;
static nvmlDevice_st cards[CUDASIM_MAX_DEVICES], instances[CUDASIM_MAX_DEVICES];

enum { LINK_MBYTE_PER_S = 26562, FIRST_SWITCH_BUS = 0xc0, N_SWITCHES = 4 };

void cudasim_nvml_configure(const cudasim_nvml_config *config)
{
    settings = config != NULL ? *config : cudasim_nvml_config{};
    started = 0;
    for (int i = 0; i < CUDASIM_MAX_DEVICES; i++) {
        cards[i] = {i, false};
        instances[i] = {i, true};
    }
}

int cudasim_nvml_started(void)
{
    return started;
}

/* A counted call that may be made to fail. */
class NvmlCall : public Call
{
  public:
    NvmlCall(const char *name, unsigned flags = 0) : Call(name, flags | CALL_QUIET, NVML_ERROR_UNKNOWN)
    {
    }
    nvmlReturn_t end(nvmlReturn_t result)
    {
        return injected() != 0 ? (nvmlReturn_t)injected() : started == 0 ? NVML_ERROR_UNINITIALIZED : result;
    }
};

/* The beginning of every call. */
#define BEGIN(name)       \
    NvmlCall call(#name); \
    if (call.failed())    \
    return call.end(NVML_SUCCESS)

static nvmlReturn_t sim_init(void)
{
    NvmlCall call("nvmlInit_v2");
    if (call.failed())
        return call.end(NVML_SUCCESS);
    if (machine().devices.empty())
        return NVML_ERROR_DRIVER_NOT_LOADED;
    started++;
    return call.end(NVML_SUCCESS);
}

static nvmlReturn_t sim_shutdown(void)
{
    NvmlCall call("nvmlShutdown", CALL_RELEASE);
    if (started == 0)
        violate("nvmlShutdown: it was not started");
    nvmlReturn_t result = call.end(NVML_SUCCESS);
    started -= started > 0;
    return result;
}

static nvmlReturn_t sim_driver_version(char *version, unsigned int length)
{
    BEGIN(nvmlSystemGetDriverVersion);
    snprintf(version, length, "580.65.06");
    return call.end(NVML_SUCCESS);
}

static bool exists(int ordinal)
{
    return ordinal >= 0 && ordinal < (int)machine().devices.size();
}

static nvmlReturn_t sim_by_uuid(const char *uuid, nvmlDevice_t *device)
{
    BEGIN(nvmlDeviceGetHandleByUUID);
    unsigned ordinal = 0;
    const char *format = settings.is_mig ? "MIG-51420000-0000-0000-0000-0000000000%2x"
                                         : "GPU-51420000-0000-0000-0000-0000000000%2x";
    if (!settings.knows_uuids || strlen(uuid) != 40 || sscanf(uuid, format, &ordinal) != 1 ||
        !exists((int)ordinal))
        return call.end(NVML_ERROR_NOT_FOUND);
    *device = settings.is_mig ? &instances[ordinal] : &cards[ordinal];
    return call.end(NVML_SUCCESS);
}

static nvmlReturn_t sim_by_bus_id(const char *id, nvmlDevice_t *device)
{
    BEGIN(nvmlDeviceGetHandleByPciBusId_v2);
    unsigned domain, bus, slot;
    if (sscanf(id, "%x:%x:%x.0", &domain, &bus, &slot) != 3 || !exists((int)bus - 1))
        return call.end(NVML_ERROR_NOT_FOUND);
    *device = &cards[bus - 1];
    return call.end(NVML_SUCCESS);
}

static nvmlReturn_t sim_is_mig(nvmlDevice_t device, unsigned int *is_mig)
{
    BEGIN(nvmlDeviceIsMigDeviceHandle);
    *is_mig = device->is_instance;
    return call.end(NVML_SUCCESS);
}

static nvmlReturn_t sim_card_of(nvmlDevice_t instance, nvmlDevice_t *device)
{
    BEGIN(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
    if (!instance->is_instance)
        return call.end(NVML_ERROR_INVALID_ARGUMENT);
    *device = &cards[instance->ordinal];
    return call.end(NVML_SUCCESS);
}

static nvmlReturn_t sim_memory(nvmlDevice_t device, nvmlMemory_t *memory)
{
    BEGIN(nvmlDeviceGetMemoryInfo);
    const Device &d = machine().devices[(size_t)device->ordinal];
    memory->total = d.total() * (settings.is_mig && !device->is_instance ? 2 : 1);
    memory->used = d.total() - room(d);
    memory->free = memory->total - memory->used;
    return call.end(NVML_SUCCESS);
}

static nvmlReturn_t sim_max_clock(nvmlDevice_t, nvmlClockType_t type, unsigned int *mhz)
{
    BEGIN(nvmlDeviceGetMaxClockInfo);
    *mhz = type == NVML_CLOCK_MEM ? 2000 : 1500;
    return call.end(NVML_SUCCESS);
}

/* The calls that answer every card with the same number. */
#define CONSTANT(function, name, value)                                 \
    static nvmlReturn_t function(nvmlDevice_t, unsigned int *value_out) \
    {                                                                   \
        BEGIN(name);                                                    \
        *value_out = value;                                             \
        return call.end(NVML_SUCCESS);                                  \
    }
CONSTANT(sim_bus_width, nvmlDeviceGetMemoryBusWidth, 4096)
CONSTANT(sim_power, nvmlDeviceGetEnforcedPowerLimit, 700000)
CONSTANT(sim_generation, nvmlDeviceGetCurrPcieLinkGeneration, 1)
CONSTANT(sim_width, nvmlDeviceGetCurrPcieLinkWidth, 16)
CONSTANT(sim_max_generation, nvmlDeviceGetMaxPcieLinkGeneration, 5)
CONSTANT(sim_max_width, nvmlDeviceGetMaxPcieLinkWidth, 16)

/* -- links -- */

static int n_links_of(int ordinal)
{
    int n = (int)machine().devices.size();
    if (settings.fabric == CUDASIM_NO_NVLINK || (settings.fabric == CUDASIM_NVLINK_MESH && n < 2) ||
        (settings.fabric == CUDASIM_NVLINK_PAIRS && (ordinal ^ 1) >= n))
        return 0;
    return settings.n_links;
}

/* The GPU at the other end. */
static int peer_of(int ordinal, int link)
{
    int others = (int)machine().devices.size() - 1;
    if (settings.fabric == CUDASIM_NVLINK_PAIRS)
        return ordinal ^ 1;
    int other = link / (settings.n_links / others);
    return other < ordinal ? other : other + 1;
}

static nvmlReturn_t sim_link_state(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *state)
{
    BEGIN(nvmlDeviceGetNvLinkState);
    if ((int)link >= n_links_of(device->ordinal))
        return call.end(settings.fabric == CUDASIM_NO_NVLINK ? NVML_ERROR_NOT_SUPPORTED
                                                             : NVML_ERROR_INVALID_ARGUMENT);
    *state = NVML_FEATURE_ENABLED;
    return call.end(NVML_SUCCESS);
}

static nvmlReturn_t sim_link_version(nvmlDevice_t, unsigned int, unsigned int *version)
{
    BEGIN(nvmlDeviceGetNvLinkVersion);
    *version = 4;
    return call.end(NVML_SUCCESS);
}

static nvmlReturn_t sim_link_remote(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    BEGIN(nvmlDeviceGetNvLinkRemotePciInfo_v2);
    memset(pci, 0, sizeof *pci);
    pci->bus = settings.fabric == CUDASIM_NVSWITCH ? FIRST_SWITCH_BUS + link % N_SWITCHES
                                                   : (unsigned)peer_of(device->ordinal, (int)link) + 1;
    return call.end(NVML_SUCCESS);
}

static nvmlReturn_t sim_link_type(nvmlDevice_t, unsigned int, nvmlIntNvLinkDeviceType_t *type)
{
    BEGIN(nvmlDeviceGetNvLinkRemoteDeviceType);
    *type =
        settings.fabric == CUDASIM_NVSWITCH ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
    return call.end(NVML_SUCCESS);
}

static nvmlReturn_t sim_fields(nvmlDevice_t, int n, nvmlFieldValue_t *values)
{
    BEGIN(nvmlDeviceGetFieldValues);
    for (int i = 0; i < n; i++) {
        bool known = values[i].fieldId == NVML_FI_DEV_NVLINK_GET_SPEED;
        values[i].nvmlReturn = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        values[i].value.uiVal = LINK_MBYTE_PER_S;
    }
    return call.end(NVML_SUCCESS);
}

static nvmlReturn_t sim_common_ancestor(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *level)
{
    BEGIN(nvmlDeviceGetTopologyCommonAncestor);
    *level = a->ordinal % 2 != b->ordinal % 2   ? NVML_TOPOLOGY_SYSTEM
             : a->ordinal / 4 != b->ordinal / 4 ? NVML_TOPOLOGY_NODE
                                                : NVML_TOPOLOGY_SINGLE;
    return call.end(NVML_SUCCESS);
}

/* -- by name -- */

void *cudasim_nvml_symbol(const char *name)
{
    static const struct {
        const char *name;
        void *function;
    } functions[] = {
        {"nvmlInit_v2", (void *)sim_init},
        {"nvmlShutdown", (void *)sim_shutdown},
        {"nvmlSystemGetDriverVersion", (void *)sim_driver_version},
        {"nvmlDeviceGetHandleByUUID", (void *)sim_by_uuid},
        {"nvmlDeviceGetHandleByPciBusId_v2", (void *)sim_by_bus_id},
        {"nvmlDeviceIsMigDeviceHandle", (void *)sim_is_mig},
        {"nvmlDeviceGetDeviceHandleFromMigDeviceHandle", (void *)sim_card_of},
        {"nvmlDeviceGetMemoryInfo", (void *)sim_memory},
        {"nvmlDeviceGetMaxClockInfo", (void *)sim_max_clock},
        {"nvmlDeviceGetMemoryBusWidth", (void *)sim_bus_width},
        {"nvmlDeviceGetEnforcedPowerLimit", (void *)sim_power},
        {"nvmlDeviceGetCurrPcieLinkGeneration", (void *)sim_generation},
        {"nvmlDeviceGetCurrPcieLinkWidth", (void *)sim_width},
        {"nvmlDeviceGetMaxPcieLinkGeneration", (void *)sim_max_generation},
        {"nvmlDeviceGetMaxPcieLinkWidth", (void *)sim_max_width},
        {"nvmlDeviceGetNvLinkState", (void *)sim_link_state},
        {"nvmlDeviceGetNvLinkVersion", (void *)sim_link_version},
        {"nvmlDeviceGetNvLinkRemotePciInfo_v2", (void *)sim_link_remote},
        {"nvmlDeviceGetNvLinkRemoteDeviceType", (void *)sim_link_type},
        {"nvmlDeviceGetFieldValues", (void *)sim_fields},
        {"nvmlDeviceGetTopologyCommonAncestor", (void *)sim_common_ancestor},
    };
    if (!settings.installed || (settings.lacks != NULL && strcmp(settings.lacks, name) == 0))
        return NULL;
    for (const auto &entry : functions)
        if (strcmp(entry.name, name) == 0)
            return entry.function;
    return NULL;
}
