/* The part of NVML that TSR calls: types, constants and signatures of NVIDIA's public header nvml.h (CUDA
 * toolkit, package cuda-nvml-dev 13; described in the "NVML API Reference Guide",
 * docs.nvidia.com/deploy/nvml-api). Declared here because the toolkit's core packages lack that header.
 * Nothing links NVML: its functions are found by name at run time. */
#ifndef TSR_CUDA_LIBS_NVML_API_H
#define TSR_CUDA_LIBS_NVML_API_H

typedef struct nvmlDevice_st *nvmlDevice_t;

typedef enum nvmlReturn_t {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_UNKNOWN = 999
} nvmlReturn_t;

typedef struct nvmlPciInfo_t {
    char busIdLegacy[16];
    unsigned int domain, bus, device;
    unsigned int pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct nvmlMemory_t { /* bytes */
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef enum nvmlClockType_t { NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2 } nvmlClockType_t;
typedef enum nvmlEnableState_t { NVML_FEATURE_DISABLED = 0, NVML_FEATURE_ENABLED = 1 } nvmlEnableState_t;

/* The kind of device at the other end of an NVLink. */
typedef enum nvmlIntNvLinkDeviceType_t {
    NVML_NVLINK_DEVICE_TYPE_GPU = 0,
    NVML_NVLINK_DEVICE_TYPE_IBMNPU = 1,
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2,
    NVML_NVLINK_DEVICE_TYPE_UNKNOWN = 0xff
} nvmlIntNvLinkDeviceType_t;

enum { NVML_NVLINK_MAX_LINKS = 36 }; /* link numbers are below it */

typedef enum nvmlGpuTopologyLevel_t {
    NVML_TOPOLOGY_INTERNAL = 0,
    NVML_TOPOLOGY_SINGLE = 10,
    NVML_TOPOLOGY_MULTIPLE = 20,
    NVML_TOPOLOGY_HOSTBRIDGE = 30,
    NVML_TOPOLOGY_NODE = 40,
    NVML_TOPOLOGY_SYSTEM = 50
} nvmlGpuTopologyLevel_t;

/* "Fields": further facts, queried by number. */
enum {
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 90, /* of all active links, one direction */
    NVML_FI_DEV_NVLINK_GET_SPEED = 164,        /* of link scopeId, Mbyte/s, one direction */
    NVML_FI_DEV_C2C_LINK_COUNT = 170,
    NVML_FI_DEV_C2C_LINK_GET_STATUS = 171, /* of link scopeId; 1 = active */
    NVML_FI_DEV_C2C_LINK_GET_MAX_BW = 172  /* of link scopeId, Mbyte/s */
};

typedef union nvmlValue_t {
    double dVal;
    unsigned int uiVal;
    unsigned long ulVal;
    unsigned long long ullVal;
} nvmlValue_t;

typedef enum nvmlValueType_t {
    NVML_VALUE_TYPE_DOUBLE = 0,
    NVML_VALUE_TYPE_UNSIGNED_INT = 1,
    NVML_VALUE_TYPE_UNSIGNED_LONG = 2,
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3
} nvmlValueType_t;

typedef struct nvmlFieldValue_t {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    nvmlValueType_t valueType;
    nvmlReturn_t nvmlReturn; /* the other members are set if this is NVML_SUCCESS */
    nvmlValue_t value;
} nvmlFieldValue_t;

/* NEED(name, parameters): without the function NVML is not used; LIKE: without it a property stays unknown.
 * All return nvmlReturn_t. */
#define TSR_NVML_CALLS(NEED, LIKE)                                                                          \
    NEED(nvmlInit_v2, (void))                                                                               \
    NEED(nvmlShutdown, (void))                                                                              \
    NEED(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *device))                               \
    NEED(nvmlDeviceGetHandleByPciBusId_v2, (const char *bus_id, nvmlDevice_t *device))                      \
    LIKE(nvmlSystemGetDriverVersion, (char *version, unsigned int length))                                  \
    LIKE(nvmlDeviceIsMigDeviceHandle, (nvmlDevice_t device, unsigned int *is_mig))                          \
    LIKE(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (nvmlDevice_t instance, nvmlDevice_t * device))      \
    LIKE(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t * memory))                             \
    LIKE(nvmlDeviceGetMaxClockInfo, (nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz))         \
    LIKE(nvmlDeviceGetMemoryBusWidth, (nvmlDevice_t device, unsigned int *bits))                            \
    LIKE(nvmlDeviceGetEnforcedPowerLimit, (nvmlDevice_t device, unsigned int *milliwatts))                  \
    LIKE(nvmlDeviceGetCurrPcieLinkGeneration, (nvmlDevice_t device, unsigned int *generation))              \
    LIKE(nvmlDeviceGetCurrPcieLinkWidth, (nvmlDevice_t device, unsigned int *lanes))                        \
    LIKE(nvmlDeviceGetMaxPcieLinkGeneration, (nvmlDevice_t device, unsigned int *generation))               \
    LIKE(nvmlDeviceGetMaxPcieLinkWidth, (nvmlDevice_t device, unsigned int *lanes))                         \
    LIKE(nvmlDeviceGetNvLinkState, (nvmlDevice_t device, unsigned int link, nvmlEnableState_t *state))      \
    LIKE(nvmlDeviceGetNvLinkVersion, (nvmlDevice_t device, unsigned int link, unsigned int *version))       \
    LIKE(nvmlDeviceGetNvLinkRemotePciInfo_v2, (nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)) \
    LIKE(nvmlDeviceGetNvLinkRemoteDeviceType,                                                               \
         (nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t *type))                         \
    LIKE(nvmlDeviceGetFieldValues, (nvmlDevice_t device, int n_values, nvmlFieldValue_t *values))           \
    LIKE(nvmlDeviceGetTopologyCommonAncestor,                                                               \
         (nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t * level))

#endif
