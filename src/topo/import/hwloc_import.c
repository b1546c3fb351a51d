/* hwloc's tree -> the plain topology value.
 *
 * hwloc keeps processors in logical order, in which everything that shares a parent is contiguous; so each
 * object's cpuset becomes a range of cores. Processors are read first and grouped into cores (a machine
 * without core objects gets one core per processor). Then the cores that each other object's cpuset covers
 * are looked up. No hwloc types leave this file. */
#include <hwloc.h>

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "topo/topo.h"

/* State of the import. */
struct import {
    hwloc_topology_t hw;
    tsr_topology *topo;
    int *core_of_pu; /* by the processor's os index; -1 where there is none */
    int n_os;        /* its length */
};

tsr_status tsr_topo_hwloc_configure(hwloc_topology_t hw)
{
    /* "pci" uses libpciaccess, which leaks and needs root for link speeds; the "linux" part reads the same
     * devices from /sys. The others look for GPUs through drivers, which is slow, may start a driver, and
     * is done by src/cuda. A missing component is no error. */
    static const char *const unwanted[] = {"pci", "opencl", "cuda", "nvml", "rsmi", "levelzero", "gl"};
    for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++)
        (void)hwloc_topology_set_components(hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, unwanted[i]);

    if (hwloc_topology_set_icache_types_filter(hw, HWLOC_TYPE_FILTER_KEEP_NONE) < 0 ||
        hwloc_topology_set_type_filter(hw, HWLOC_OBJ_MISC, HWLOC_TYPE_FILTER_KEEP_NONE) < 0 ||
        hwloc_topology_set_type_filter(hw, HWLOC_OBJ_BRIDGE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) < 0 ||
        hwloc_topology_set_type_filter(hw, HWLOC_OBJ_OS_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) < 0 ||
        hwloc_topology_set_type_filter(hw, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) < 0)
        return tsr_fail(TSR_ERR_MEMORY, "hwloc rejected its configuration; memory is probably short");
    return TSR_OK;
}

static int os_index_of(hwloc_obj_t obj)
{
    return obj->os_index <= INT_MAX ? (int)obj->os_index : -1;
}

static bool is_data_cache(hwloc_obj_t obj)
{
    return hwloc_obj_type_is_dcache(obj->type) && obj->attr->cache.depth >= 1 &&
           obj->attr->cache.depth <= TSR_CACHE_LEVELS;
}

/* The object that represents a processor's core: its core, or the processor itself where hwloc has none. */
static hwloc_obj_t core_object(hwloc_topology_t hw, hwloc_obj_t pu)
{
    hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(hw, HWLOC_OBJ_CORE, pu);
    return core ? core : pu;
}

/* The next data cache after `previous` (NULL to begin), level by level, in logical order. */
static hwloc_obj_t next_cache(hwloc_topology_t hw, hwloc_obj_t previous)
{
    if (previous && previous->next_cousin)
        return previous->next_cousin;
    for (int depth = previous ? previous->depth + 1 : 0; depth < hwloc_topology_get_depth(hw); depth++) {
        hwloc_obj_t first = hwloc_get_obj_by_depth(hw, depth, 0);
        if (first && is_data_cache(first)) /* a depth has one type and level only */
            return first;
    }
    return NULL;
}

static tsr_status count_objects(hwloc_topology_t hw, tsr_topology *shape, int *n_os_out)
{
    int n_os = 0;
    hwloc_obj_t obj = NULL, core = NULL;
    while ((obj = hwloc_get_next_obj_by_type(hw, HWLOC_OBJ_PU, obj)) != NULL) {
        if (obj->os_index >= TSR_TOPO_MAX_OBJECTS)
            return tsr_fail(TSR_ERR_FORMAT, "processor number %u is out of range; the largest accepted is %d",
                            obj->os_index, TSR_TOPO_MAX_OBJECTS - 1);
        n_os = TSR_MAX(n_os, (int)obj->os_index + 1);
        shape->n_pus++;
        shape->n_cores += core_object(hw, obj) != core;
        core = core_object(hw, obj);
    }
    if (shape->n_pus == 0)
        return tsr_fail(TSR_ERR_FORMAT, "no processor is described");

    shape->n_packages = hwloc_get_nbobjs_by_type(hw, HWLOC_OBJ_PACKAGE);
    shape->n_numa_nodes = hwloc_get_nbobjs_by_type(hw, HWLOC_OBJ_NUMANODE);
    shape->n_bridges = hwloc_get_nbobjs_by_type(hw, HWLOC_OBJ_BRIDGE);
    shape->n_pci = hwloc_get_nbobjs_by_type(hw, HWLOC_OBJ_PCI_DEVICE);
    for (obj = next_cache(hw, NULL); obj; obj = next_cache(hw, obj))
        shape->n_caches++;
    *n_os_out = n_os;
    return TSR_OK;
}

static int efficiency_of(struct import *in, hwloc_const_cpuset_t cpuset)
{
    int efficiency = -1;
    if (hwloc_cpukinds_get_nr(in->hw, 0) < 2)
        return -1;
    int kind = hwloc_cpukinds_get_by_cpuset(in->hw, cpuset, 0);
    if (kind >= 0 && hwloc_cpukinds_get_info(in->hw, (unsigned)kind, NULL, &efficiency, NULL, NULL, 0) < 0)
        efficiency = -1;
    return efficiency;
}

/* hwloc accepts files that give two processors the same number. */
static tsr_status import_cores(struct import *in)
{
    int n_cores = 0, n_pus = 0;
    hwloc_obj_t pu = NULL, current = NULL;
    for (int i = 0; i < in->n_os; i++)
        in->core_of_pu[i] = -1;
    while ((pu = hwloc_get_next_obj_by_type(in->hw, HWLOC_OBJ_PU, pu)) != NULL) {
        if (in->core_of_pu[pu->os_index] >= 0)
            return tsr_fail(TSR_ERR_FORMAT, "processor %u is described twice", pu->os_index);
        hwloc_obj_t obj = core_object(in->hw, pu);
        if (obj != current) {
            tsr_core *core = &in->topo->cores[n_cores++];
            core->os_index = os_index_of(obj);
            core->package = core->numa_node = -1;
            core->first_pu = n_pus;
            for (int level = 0; level < TSR_CACHE_LEVELS; level++)
                core->cache[level] = -1;
            core->efficiency = efficiency_of(in, obj->cpuset);
            current = obj;
        }
        in->topo->cores[n_cores - 1].n_pus++;
        in->topo->pus[n_pus++] = (tsr_pu){.os_index = (int)pu->os_index, .core = n_cores - 1};
        in->core_of_pu[pu->os_index] = n_cores - 1;
    }
    return TSR_OK;
}

/* The range of cores that a cpuset covers. */
static void core_range(const struct import *in, hwloc_const_cpuset_t cpuset, int *first_out, int *n_out)
{
    int first = INT_MAX, last = -1;
    if (cpuset) {
        for (int os = hwloc_bitmap_first(cpuset); os >= 0 && os < in->n_os;
             os = hwloc_bitmap_next(cpuset, os)) {
            int core = in->core_of_pu[os];
            if (core >= 0) {
                first = TSR_MIN(first, core);
                last = TSR_MAX(last, core);
            }
        }
    }
    *first_out = last < 0 ? 0 : first;
    *n_out = last < 0 ? 0 : last - first + 1;
}

/* Copies without the blanks that firmware pads names with. */
static void copy_text(char *dst, size_t bytes, const char *text)
{
    snprintf(dst, bytes, "%s", text ? text : "");
    for (size_t n = strlen(dst); n > 0 && dst[n - 1] == ' '; n--)
        dst[n - 1] = '\0';
}

static void import_packages(struct import *in)
{
    int n = 0;
    hwloc_obj_t obj = NULL;
    while ((obj = hwloc_get_next_obj_by_type(in->hw, HWLOC_OBJ_PACKAGE, obj)) != NULL) {
        tsr_package *package = &in->topo->packages[n];
        package->os_index = os_index_of(obj);
        copy_text(package->cpu_model, sizeof package->cpu_model, hwloc_obj_get_info_by_name(obj, "CPUModel"));
        core_range(in, obj->cpuset, &package->first_core, &package->n_cores);
        for (int i = 0; i < package->n_cores; i++)
            in->topo->cores[package->first_core + i].package = n;
        n++;
    }
}

/* If two nodes share cores, the operating system allocates from the first one with memory. */
static void import_numa_nodes(struct import *in)
{
    int n = 0;
    hwloc_obj_t obj = NULL;
    while ((obj = hwloc_get_next_obj_by_type(in->hw, HWLOC_OBJ_NUMANODE, obj)) != NULL) {
        tsr_numa_node *node = &in->topo->numa_nodes[n];
        node->os_index = os_index_of(obj);
        node->memory_bytes = obj->attr->numanode.local_memory;
        copy_text(node->kind, sizeof node->kind, obj->subtype);
        core_range(in, obj->cpuset, &node->first_core, &node->n_cores);
        if (__builtin_add_overflow(in->topo->memory_bytes, node->memory_bytes, &in->topo->memory_bytes))
            in->topo->memory_bytes = UINT64_MAX;
        for (int i = 0; node->memory_bytes && i < node->n_cores; i++) {
            tsr_core *core = &in->topo->cores[node->first_core + i];
            /* A smaller range is nearer: a node of the package wins over one of the whole machine. */
            if (core->numa_node < 0 || node->n_cores < in->topo->numa_nodes[core->numa_node].n_cores)
                core->numa_node = n;
        }
        n++;
    }
}

static void import_caches(struct import *in)
{
    int n = 0;
    for (hwloc_obj_t obj = next_cache(in->hw, NULL); obj; obj = next_cache(in->hw, obj)) {
        tsr_cache *cache = &in->topo->caches[n];
        cache->level = (int)obj->attr->cache.depth;
        cache->line_bytes = (int)TSR_MIN(obj->attr->cache.linesize, 4096U);
        cache->size_bytes = obj->attr->cache.size;
        core_range(in, obj->cpuset, &cache->first_core, &cache->n_cores);
        for (int i = 0; i < cache->n_cores; i++)
            in->topo->cores[cache->first_core + i].cache[cache->level - 1] = n;
        n++;
    }
}

/* The node that all cores near an I/O object belong to, -1 if they differ. */
static int nearest_node(const struct import *in, hwloc_obj_t io)
{
    hwloc_obj_t obj = hwloc_get_non_io_ancestor_obj(in->hw, io);
    int first, n;
    core_range(in, obj ? obj->cpuset : NULL, &first, &n);
    if (n == 0)
        return -1;
    int node = in->topo->cores[first].numa_node;
    for (int i = 1; i < n; i++)
        if (in->topo->cores[first + i].numa_node != node)
            return -1;
    return node;
}

/* hwloc's unit is GB/s; the comparison also drops invalid values of malformed files (negative, NaN). */
static double link_speed(const struct hwloc_pcidev_attr_s *attr)
{
    return attr->linkspeed > 0 && attr->linkspeed < 1e6F ? (double)attr->linkspeed * 1e9 : 0;
}

static void bus_id_of(const struct hwloc_pcidev_attr_s *attr, char bus_id[16])
{
    snprintf(bus_id, 16, "%04x:%02x:%02x.%x", attr->domain & 0xfffffU, attr->bus, attr->dev & 0x1fU,
             attr->func & 7U);
}

/* The index of the bridge above an object. hwloc numbers bridges so that an outer one precedes those below
 * it. */
static int bridge_above(const struct import *in, hwloc_obj_t obj)
{
    while (obj && obj->type != HWLOC_OBJ_BRIDGE)
        obj = obj->parent;
    return obj && (int)obj->logical_index < in->topo->n_bridges ? (int)obj->logical_index : -1;
}

static void import_bridges(struct import *in)
{
    hwloc_obj_t obj = NULL;
    while ((obj = hwloc_get_next_obj_by_type(in->hw, HWLOC_OBJ_BRIDGE, obj)) != NULL) {
        tsr_pci_bridge *bridge = &in->topo->bridges[obj->logical_index];
        int parent = bridge_above(in, obj->parent);
        bridge->parent = parent < (int)obj->logical_index ? parent : -1;
        bridge->numa_node = nearest_node(in, obj);
        if (obj->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI) {
            bus_id_of(&obj->attr->bridge.upstream.pci, bridge->bus_id);
            bridge->link_bytes_per_s = link_speed(&obj->attr->bridge.upstream.pci);
        }
    }
}

static void import_pci(struct import *in)
{
    int n = 0;
    hwloc_obj_t obj = NULL;
    while ((obj = hwloc_get_next_pcidev(in->hw, obj)) != NULL) {
        const struct hwloc_pcidev_attr_s *attr = &obj->attr->pcidev;
        tsr_pci_device *pci = &in->topo->pci[n++];
        bus_id_of(attr, pci->bus_id);
        const char *vendor = hwloc_obj_get_info_by_name(obj, "PCIVendor");
        const char *device = hwloc_obj_get_info_by_name(obj, "PCIDevice");
        snprintf(pci->name, sizeof pci->name, "%s%s%s", vendor ? vendor : "", vendor && device ? " " : "",
                 device ? device : "");
        pci->class_id = attr->class_id;
        pci->vendor_id = attr->vendor_id;
        pci->device_id = attr->device_id;
        pci->numa_node = nearest_node(in, obj);
        pci->bridge = bridge_above(in, obj->parent);
        pci->link_bytes_per_s = link_speed(attr);
    }
}

static void import_machine(struct import *in)
{
    hwloc_obj_t root = hwloc_get_root_obj(in->hw);
    const char *vendor = hwloc_obj_get_info_by_name(root, "DMISysVendor");
    const char *product = hwloc_obj_get_info_by_name(root, "DMIProductName");
    if (!product)
        product = hwloc_obj_get_info_by_name(root, "PlatformModel"); /* Power, Arm */
    tsr_topology *topo = in->topo;
    snprintf(topo->machine_name, sizeof topo->machine_name, "%s%s%s", vendor ? vendor : "",
             vendor && product ? " " : "", product ? product : "");
    topo->is_this_machine = hwloc_topology_is_thissystem(in->hw) != 0;
}

tsr_status tsr_topo_from_hwloc(hwloc_topology_t hw, tsr_topology **topo_out)
{
    tsr_status status = TSR_OK;
    tsr_topology shape = {0};
    struct import in = {.hw = hw};

    TSR_TRY(count_objects(hw, &shape, &in.n_os));
    TSR_TRY(tsr_topo_alloc(&shape, &in.topo));
    TSR_TRY(tsr_mem_array((size_t)in.n_os, sizeof *in.core_of_pu, "the processor map", &in.core_of_pu));
    TSR_TRY(import_cores(&in));
    import_packages(&in);
    import_numa_nodes(&in);
    import_caches(&in);
    import_bridges(&in);
    import_pci(&in);
    import_machine(&in);
    if (!in.topo->is_this_machine) /* GPUs of this machine are read by src/cuda */
        tsr_topo_import_gpus(hw, in.topo);
    *topo_out = in.topo;
    in.topo = NULL;
out:
    tsr_mem_free(in.core_of_pu);
    tsr_topology_destroy(in.topo);
    return status;
}
