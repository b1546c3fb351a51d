/* NVIDIA's GPUs in an hwloc topology.
 *
 * A GPU is a PCI device; the facts from the CUDA and NVML parts of hwloc are OS devices below it ("cuda0",
 * "nvml0"), if the machine was recorded with them. NVLinks are a matrix of bandwidths named
 * "NVLinkBandwidth" (MB/s, one direction) between NVML's devices, NVSwitches (PCI devices) and, on POWER9,
 * bridges. hwloc multiplies links by a nominal rate, so complete.c derives numbers of links from the card. */
#include <hwloc.h>
#include <hwloc/distances.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/topo.h"

enum { NVIDIA = 0x10de };

/* Of a GPU's OS devices, those of CUDA have the most facts; in recordings without CUDA, those of OpenCL. */
static void read_os_devices(hwloc_obj_t pci, tsr_gpu *gpu)
{
    for (hwloc_obj_t os = pci->io_first_child; os; os = os->next_sibling) {
        const char *backend = hwloc_obj_get_info_by_name(os, "Backend");
        const char *model = hwloc_obj_get_info_by_name(os, "GPUModel");
        const char *kib = hwloc_obj_get_info_by_name(os, "CUDAGlobalMemorySize");
        const char *sms = hwloc_obj_get_info_by_name(os, "CUDAMultiProcessors");
        const char *uuid = hwloc_obj_get_info_by_name(os, "NVIDIAUUID");
        if (os->type != HWLOC_OBJ_OS_DEVICE || !backend)
            continue;
        if (!kib && !gpu->memory_bytes)
            kib = hwloc_obj_get_info_by_name(os, "OpenCLGlobalMemorySize");
        if (!sms && !gpu->n_sms)
            sms = hwloc_obj_get_info_by_name(os, "OpenCLComputeUnits");
        if (model && !*gpu->name)
            snprintf(gpu->name, sizeof gpu->name, "%s", model);
        if (uuid && !*gpu->uuid)
            snprintf(gpu->uuid, sizeof gpu->uuid, "%s", uuid);
        unsigned long long memory_kib = kib ? strtoull(kib, NULL, 10) : 0;
        if (memory_kib > 0 && memory_kib < UINT64_C(1) << 36)
            gpu->memory_bytes = (uint64_t)memory_kib << 10;
        long n_sms = sms ? strtol(sms, NULL, 10) : 0;
        if (n_sms > 0 && n_sms < 100000)
            gpu->n_sms = (int)n_sms;
    }
}

/* The GPU of an end of the matrix, or of the GPU that the end belongs to; -1 if none. */
static int gpu_of_object(const tsr_topology *topo, hwloc_obj_t obj)
{
    char bus_id[16];
    while (obj && obj->type != HWLOC_OBJ_PCI_DEVICE)
        obj = obj->parent;
    if (!obj)
        return -1;
    const struct hwloc_pcidev_attr_s *attr = &obj->attr->pcidev;
    snprintf(bus_id, sizeof bus_id, "%04x:%02x:%02x.%x", attr->domain & 0xfffffU, attr->bus,
             attr->dev & 0x1fU, attr->func & 7U);
    for (int g = 0; g < topo->n_gpus; g++)
        if (strcmp(topo->gpus[g].bus_id, bus_id) == 0)
            return g;
    return -1;
}

static tsr_nvlink_end_kind kind_of_object(const tsr_topology *topo, hwloc_obj_t obj)
{
    if (gpu_of_object(topo, obj) >= 0)
        return TSR_NVLINK_END_GPU;
    if (obj->subtype && strcmp(obj->subtype, "NVSwitch") == 0)
        return TSR_NVLINK_END_SWITCH;
    return TSR_NVLINK_END_CPU; /* POWER9: the bridge object represents the processor */
}

static void add_end(tsr_topology *topo, tsr_gpu *gpu, hwloc_obj_t to, hwloc_uint64_t mb_per_s)
{
    tsr_nvlink_end end = {.kind = kind_of_object(topo, to), .gpu = gpu_of_object(topo, to)};
    end.bytes_per_s = (double)mb_per_s * 1e6;
    if (end.kind == TSR_NVLINK_END_SWITCH && to->type == HWLOC_OBJ_PCI_DEVICE)
        snprintf(end.bus_id, sizeof end.bus_id, "%04x:%02x:%02x.%x", to->attr->pcidev.domain & 0xfffffU,
                 to->attr->pcidev.bus, to->attr->pcidev.dev & 0x1fU, to->attr->pcidev.func & 7U);
    if (gpu->n_nvlink_ends < TSR_MAX_NVLINK_ENDS)
        gpu->nvlink_ends[gpu->n_nvlink_ends++] = end;
}

/* The diagonal is a GPU's own memory, as a large number. */
static void read_matrix(tsr_topology *topo, const struct hwloc_distances_s *matrix)
{
    for (unsigned row = 0; row < matrix->nbobjs; row++) {
        int g = matrix->objs[row] ? gpu_of_object(topo, matrix->objs[row]) : -1;
        for (unsigned column = 0; g >= 0 && column < matrix->nbobjs; column++) {
            hwloc_uint64_t value = matrix->values[(size_t)row * matrix->nbobjs + column];
            if (column != row && matrix->objs[column] && value > 0 && value < 10 * 1000 * 1000 &&
                gpu_of_object(topo, matrix->objs[column]) != g)
                add_end(topo, &topo->gpus[g], matrix->objs[column], value);
        }
    }
}

void tsr_topo_import_gpus(hwloc_topology_t hw, tsr_topology *topo)
{
    hwloc_obj_t obj = NULL;
    for (int n = 0; (obj = hwloc_get_next_pcidev(hw, obj)) != NULL && n < topo->n_pci; n++) {
        const tsr_pci_device *pci = &topo->pci[n];
        if (pci->vendor_id != NVIDIA || pci->class_id >> 8 != 0x03 || topo->n_gpus == TSR_MAX_GPUS)
            continue;
        tsr_gpu *gpu = &topo->gpus[topo->n_gpus];
        gpu->ordinal = topo->n_gpus++;
        gpu->numa_node = pci->numa_node;
        memcpy(gpu->bus_id, pci->bus_id, sizeof gpu->bus_id);
        read_os_devices(obj, gpu);
    }
    unsigned n = 1;
    struct hwloc_distances_s *matrix = NULL;
    if (hwloc_distances_get_by_name(hw, "NVLinkBandwidth", &n, &matrix, 0) == 0 && n > 0 && matrix) {
        read_matrix(topo, matrix);
        hwloc_distances_release(hw, matrix);
    }
}
