/* Discovery of this machine, limited to the resources that this process may use.
 *
 * hwloc aborts on trees that no kernel shows. The kernel's own /sys is read in the caller's process, as every
 * MPI library does: fork() from an engine with many threads, page tables of gigabytes, registered memory or a
 * handler of SIGCHLD has a cost, and the one directory that containers cover and hwloc 2.9 trips over is
 * looked at first. Anything else, a tree that is mounted over /sys or a machine that hwloc's environment
 * variables name, is read in a child process (child.c), whose crash is an error here. */
#include <hwloc.h>

#include <dirent.h>
#include <errno.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/gpu.h"
#include "core/input/meminfo.h"
#include "core/mem.h"
#include "topo/import/builder.h"
#include "topo/import/gpus.h"
#include "topo/topo.h"

/* hwloc already excludes processors that the cgroup's cpuset forbids. It ignores the affinity mask
 * (taskset, numactl, a batch system), since a process may widen its own; here the mask counts as the
 * user's wish. The union over all threads is used, since the caller may have pinned the calling thread. */
static tsr_status keep_processors_of(hwloc_topology_t hw, pid_t pid)
{
    tsr_status status = TSR_OK;
    if (!hwloc_topology_is_thissystem(hw))
        return TSR_OK; /* the machine is replaced through hwloc's environment variables */
    hwloc_cpuset_t own = hwloc_bitmap_alloc();
    if (!own)
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory for a processor set");
    if (hwloc_get_proc_cpubind(hw, pid, own, HWLOC_CPUBIND_PROCESS) == 0 &&
        hwloc_bitmap_intersects(own, hwloc_topology_get_topology_cpuset(hw)) &&
        hwloc_topology_restrict(hw, own, HWLOC_RESTRICT_FLAG_ADAPT_IO) < 0)
        status = tsr_fail(TSR_ERR_MEMORY, "hwloc could not restrict the topology to this process: %s",
                          strerror(errno));
    hwloc_bitmap_free(own);
    return status;
}

bool tsr_topo_sysfs_shows_processors(const char *root)
{
    char path[4096];
    int used = snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu0/topology", root);
    if (used < 0 || (size_t)used >= sizeof path || access(path, R_OK) != 0)
        return false;
    snprintf(path, sizeof path, "%s/sys/devices/system/node", root);
    DIR *nodes = opendir(path);
    bool found = !nodes; /* a kernel without NUMA */
    for (struct dirent *entry; nodes && !found && (entry = readdir(nodes)) != NULL;)
        found = strncmp(entry->d_name, "node", 4) == 0 && entry->d_name[4] >= '0' && entry->d_name[4] <= '9';
    if (nodes)
        closedir(nodes);
    return found;
}

/* Missing is fine: hwloc does without. */
static bool is_covered(const char *path)
{
    struct statfs info;
    return statfs(path, &info) == 0 && info.f_type != SYSFS_MAGIC;
}

/* The variable by which hwloc reads another machine, NULL if there is none. */
static const char *named_by_environment(void)
{
    static const char *const variables[] = {"HWLOC_XMLFILE", "HWLOC_SYNTHETIC", "HWLOC_FSROOT",
                                            "HWLOC_CPUID_PATH"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (getenv(variables[i]))
            return variables[i];
    return NULL;
}

/* Guards libudev's state, which is shared by the whole process, so no handle can own the lock: libudev seeds
 * its hash tables on first use without a lock. */
static pthread_mutex_t hwloc_turn = PTHREAD_MUTEX_INITIALIZER;

/* Memory that new processes could have without swapping; 0 if unknown. */
static uint64_t read_available(void)
{
    size_t available, total;
    if (tsr_meminfo(-1, &available, &total) == TSR_OK)
        return available;
    tsr_fail_clear();
    return 0;
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
    topo->memory_available_bytes = read_available();
    if (topo->memory_limit_bytes)
        topo->memory_available_bytes = TSR_MIN(topo->memory_available_bytes, topo->memory_limit_bytes);
}

/* No GPU is no failure. */
static void add_gpus(tsr_topology *topo, const tsr_logger *logger)
{
    tsr_gpu_probe(topo, logger);
    if (topo->n_gpus == 0)
        tsr_log(logger, TSR_LOG_INFO, "no GPU is usable: %s", topo->gpu_note);
    for (int g = 0; g < topo->n_gpus; g++) /* the driver counts cached files as used, and NVML does not say */
        if (topo->gpus[g].integrated)
            topo->gpus[g].memory_free_bytes =
                TSR_MIN(topo->memory_available_bytes, topo->gpus[g].memory_bytes);
    tsr_topo_gpus_locate(topo, "");
    tsr_topo_gpus_link(topo);
    tsr_topo_gpus_rate(topo);
}

/* One of two components is skipped. Where Linux shows its processors, cpuid on each processor adds nothing,
 * costs a migration to every core, and prints under valgrind. Where Linux does not (/sys covered or not
 * mounted), cpuid is the only source, and hwloc's Linux part would print or abort. */
static tsr_status load_into(hwloc_topology_t hw, pid_t pid, tsr_topology **topo_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_topo_hwloc_configure(hw));
    (void)hwloc_topology_set_components(hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                        tsr_topo_sysfs_shows_processors("") ? "x86" : "linux:cpu");
    if (hwloc_topology_load(hw) < 0) {
        status = tsr_fail(TSR_ERR_UNSUPPORTED,
                          "hwloc cannot describe this machine (%s); describe it with tsr_topology_load()",
                          strerror(errno));
        goto out;
    }
    TSR_TRY(keep_processors_of(hw, pid));
    TSR_TRY(tsr_topo_from_hwloc(hw, topo_out));
out:
    return status;
}

tsr_status tsr_topo_load_this_machine(pid_t pid, tsr_topology **topo_out)
{
    hwloc_topology_t hw;
    if (hwloc_topology_init(&hw) < 0)
        return tsr_fail(TSR_ERR_MEMORY, "hwloc could not start: %s", strerror(errno));
    tsr_status status = load_into(hw, pid, topo_out);
    hwloc_topology_destroy(hw);
    return status;
}

static tsr_status load_where_it_is_safe(tsr_topology **topo_out)
{
    const char *variable = named_by_environment();
    if (variable || is_covered("/sys/devices/system/cpu") || is_covered("/sys/devices/system/node") ||
        is_covered("/sys/bus/pci/devices")) {
        tsr_topo_source source = {.kind = TSR_TOPO_THIS_MACHINE,
                                  .name = variable ? getenv(variable) : "/sys"};
        return tsr_topo_read_in_child(&source, topo_out);
    }
    pthread_mutex_lock(&hwloc_turn);
    tsr_status status = tsr_topo_load_this_machine(getpid(), topo_out);
    pthread_mutex_unlock(&hwloc_turn);
    return status;
}

tsr_status tsr_topology_discover(const tsr_topology_config *config, tsr_topology **topo_out)
{
    tsr_topology *topo = NULL;
    tsr_topology_config own;
    tsr_status status = tsr_topo_config_read(config, &own);
    if (status == TSR_OK)
        status = load_where_it_is_safe(&topo);
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
    tsr_log(&own.logger, TSR_LOG_INFO, "this machine: %d NUMA node%s, %d core%s, %d PCI device%s",
            topo->n_numa_nodes, tsr_plural(topo->n_numa_nodes), topo->n_cores, tsr_plural(topo->n_cores),
            topo->n_pci, tsr_plural(topo->n_pci));
    *topo_out = topo;
    return TSR_OK;
}
