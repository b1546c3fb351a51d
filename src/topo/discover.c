/* Discovery of this machine, limited to the resources that this process may use. */
#include <hwloc.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/gpu.h"
#include "topo/import/builder.h"
#include "topo/import/gpus.h"
#include "topo/topo.h"

/* hwloc already excludes processors that the cgroup's cpuset forbids. It ignores the affinity mask
 * (taskset, numactl, a batch system), since a process may widen its own; here the mask counts as the
 * user's wish. The union over all threads is used, since the caller may have pinned the calling thread. */
static tsr_status keep_own_processors(hwloc_topology_t hw)
{
    tsr_status status = TSR_OK;
    if (!hwloc_topology_is_thissystem(hw))
        return TSR_OK; /* the machine is replaced through hwloc's environment variables */
    hwloc_cpuset_t own = hwloc_bitmap_alloc();
    if (!own)
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory for a processor set");
    if (hwloc_get_cpubind(hw, own, HWLOC_CPUBIND_PROCESS) == 0 &&
        hwloc_bitmap_intersects(own, hwloc_topology_get_topology_cpuset(hw)) &&
        hwloc_topology_restrict(hw, own, HWLOC_RESTRICT_FLAG_ADAPT_IO) < 0)
        status = tsr_fail(TSR_ERR_MEMORY, "hwloc could not restrict the topology to this process: %s",
                          strerror(errno));
    hwloc_bitmap_free(own);
    return status;
}

void tsr_topo_hwloc_avoid_noise(hwloc_topology_t hw)
{
    bool has_sysfs = access("/sys/devices/system/cpu/cpu0/topology", R_OK) == 0;
    (void)hwloc_topology_set_components(hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                        has_sysfs ? "x86" : "linux");
}

/* Guards libudev's state, which is shared by the whole process, so no handle can own the lock. */
static pthread_mutex_t hwloc_turn = PTHREAD_MUTEX_INITIALIZER;

int tsr_topo_hwloc_load(hwloc_topology_t hw)
{
    pthread_mutex_lock(&hwloc_turn);
    int result = hwloc_topology_load(hw), error = errno;
    pthread_mutex_unlock(&hwloc_turn);
    errno = error;
    return result;
}

/* In a guest whose hypervisor provides memory as it is touched, the NUMA node shows only the part in use;
 * the kernel's total is the machine's. With several nodes the distribution of the rest is unknown. */
static void count_memory(tsr_topology *topo)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t total = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
    if (topo->n_numa_nodes == 1 && total > topo->memory_bytes)
        topo->memory_bytes = topo->numa_nodes[0].memory_bytes = total;
    uint64_t limit = tsr_topo_cgroup_memory_limit("");
    topo->memory_limit_bytes = limit < topo->memory_bytes ? limit : 0;
}

/* No GPU is no failure. */
static void add_gpus(tsr_topology *topo, const tsr_logger *logger)
{
    tsr_gpu_probe(topo, logger);
    if (topo->n_gpus == 0)
        tsr_log(logger, TSR_LOG_INFO, "no GPU is usable: %s", topo->gpu_note);
    tsr_topo_gpus_locate(topo, "");
    tsr_topo_gpus_link(topo);
    tsr_topo_gpus_rate(topo);
}

static tsr_status load_this_machine(hwloc_topology_t hw, tsr_topology **topo_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_topo_hwloc_configure(hw));
    tsr_topo_hwloc_avoid_noise(hw);
    if (tsr_topo_hwloc_load(hw) < 0) {
        status = tsr_fail(TSR_ERR_UNSUPPORTED,
                          "hwloc cannot describe this machine (%s); describe it with tsr_topology_load()",
                          strerror(errno));
        goto out;
    }
    TSR_TRY(keep_own_processors(hw));
    TSR_TRY(tsr_topo_from_hwloc(hw, topo_out));
out:
    return status;
}

tsr_status tsr_topology_discover(const tsr_topology_config *config, tsr_topology **topo_out)
{
    hwloc_topology_t hw;
    tsr_topology *topo = NULL;
    tsr_topology_config own;
    tsr_status status = tsr_topo_config_read(config, &own);
    if (status != TSR_OK)
        return status;
    if (hwloc_topology_init(&hw) < 0)
        return tsr_fail(TSR_ERR_MEMORY, "hwloc could not start: %s", strerror(errno));
    status = load_this_machine(hw, &topo);
    hwloc_topology_destroy(hw);
    if (status != TSR_OK)
        return status;

    snprintf(topo->source, sizeof topo->source, "this machine");
    if (topo->is_this_machine)
        count_memory(topo);
    if (topo->is_this_machine)
        add_gpus(topo, &own.logger);
    else /* hwloc's variables name another machine */
        status = tsr_topo_complete(topo, NULL);
    if (status != TSR_OK) {
        tsr_topology_destroy(topo);
        return status;
    }
    tsr_log(&own.logger, TSR_LOG_INFO, "this machine: %d NUMA nodes, %d cores, %d PCI devices",
            topo->n_numa_nodes, topo->n_cores, topo->n_pci);
    *topo_out = topo;
    return TSR_OK;
}
