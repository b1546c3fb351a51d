/* See topology.h. Quadratic and obvious on purpose; shares nothing with src/topo. */
#include "support/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/failing_alloc.h"

#define MUST(condition)        \
    do {                       \
        if (!(condition))      \
            return #condition; \
    } while (0)

static const char *range_fault(const tsr_topology *topo, int first, int n)
{
    MUST(first >= 0);
    MUST(n >= 0);
    MUST(first + n <= topo->n_cores);
    return NULL;
}

static const char *core_fault(const tsr_topology *topo, int index)
{
    const tsr_core *core = &topo->cores[index];
    MUST(core->n_pus >= 1);
    MUST(core->first_pu == (index ? topo->cores[index - 1].first_pu + topo->cores[index - 1].n_pus : 0));
    MUST(core->first_pu + core->n_pus <= topo->n_pus);
    for (int i = 0; i < core->n_pus; i++)
        MUST(topo->pus[core->first_pu + i].core == index);
    MUST(core->package >= -1 && core->package < topo->n_packages);
    MUST(core->numa_node >= -1 && core->numa_node < topo->n_numa_nodes);
    if (core->numa_node >= 0) {
        const tsr_numa_node *node = &topo->numa_nodes[core->numa_node];
        MUST(node->memory_bytes > 0);
        MUST(index >= node->first_core && index < node->first_core + node->n_cores);
    }
    for (int level = 0; level < TSR_CACHE_LEVELS; level++) {
        MUST(core->cache[level] >= -1 && core->cache[level] < topo->n_caches);
        if (core->cache[level] >= 0) {
            const tsr_cache *cache = &topo->caches[core->cache[level]];
            MUST(cache->level == level + 1);
            MUST(index >= cache->first_core && index < cache->first_core + cache->n_cores);
        }
    }
    return NULL;
}

static const char *pu_fault(const tsr_topology *topo)
{
    int machine = 0;
    for (int i = 0, first = 0; i < topo->n_pus; i++) {
        if (machine + 1 < topo->n_machines && topo->pus[i].core == topo->machines[machine + 1].first_core) {
            machine++;
            first = i; /* numbers are the machine's own */
        }
        MUST(topo->pus[i].os_index >= 0);
        MUST(topo->pus[i].core >= 0 && topo->pus[i].core < topo->n_cores);
        for (int j = first; j < i && topo->n_pus < 4096; j++)
            MUST(topo->pus[i].os_index != topo->pus[j].os_index);
    }
    return NULL;
}

static const char *pci_fault(const tsr_topology *topo)
{
    for (int i = 0; i < topo->n_pci; i++) {
        MUST(strlen(topo->pci[i].bus_id) == strlen("0000:17:00.0"));
        MUST(topo->pci[i].numa_node >= -1 && topo->pci[i].numa_node < topo->n_numa_nodes);
        MUST(topo->pci[i].link_bytes_per_s >= 0);
    }
    return NULL;
}

/* Machines divide each array into ranges, one after another; what refers to each other is in one machine. */
static const char *machine_fault(const tsr_topology *topo)
{
    int package = 0, node = 0, core = 0, gpu = 0;
    MUST(topo->n_machines >= 0);
    for (int i = 0; i < topo->n_machines; i++) {
        const tsr_machine *m = &topo->machines[i];
        MUST(m->first_package == package && m->first_numa_node == node && m->first_core == core &&
             m->first_gpu == gpu);
        MUST(m->n_packages >= 0 && m->n_numa_nodes >= 1 && m->n_cores >= 1 && m->n_gpus >= 0);
        package += m->n_packages;
        node += m->n_numa_nodes;
        core += m->n_cores;
        gpu += m->n_gpus;
        MUST(topo->n_machines == 1 || m->network != TSR_NETWORK_NONE);
        MUST(m->network == topo->machines[0].network);
        MUST((m->network != TSR_NETWORK_NONE) == (m->network_bytes_per_s > 0));
        MUST((m->network != TSR_NETWORK_NONE) == (m->network_latency_ns > 0));
        for (int c = m->first_core; c < core; c++)
            MUST(topo->cores[c].numa_node >= m->first_numa_node && topo->cores[c].numa_node < node);
        for (int g = m->first_gpu; g < gpu; g++) {
            MUST(topo->gpus[g].ordinal == g - m->first_gpu);
            MUST(topo->gpus[g].numa_node >= m->first_numa_node && topo->gpus[g].numa_node < node);
            for (int other = 0; other < topo->n_gpus; other++)
                MUST((topo->gpu_pairs[g][other].path == TSR_GPU_PATH_NET) ==
                     (other < m->first_gpu || other >= gpu));
        }
    }
    MUST(topo->n_machines == 0 || (package == topo->n_packages && node == topo->n_numa_nodes &&
                                   core == topo->n_cores && gpu == topo->n_gpus));
    return NULL;
}

const char *topology_fault(const tsr_topology *topo)
{
    const char *fault = NULL;
    MUST(topo->n_cores >= 1);
    MUST(topo->n_pus >= topo->n_cores);
    MUST(topo->cores[topo->n_cores - 1].first_pu + topo->cores[topo->n_cores - 1].n_pus == topo->n_pus);
    for (int i = 0; i < topo->n_packages && !fault; i++)
        fault = range_fault(topo, topo->packages[i].first_core, topo->packages[i].n_cores);
    for (int i = 0; i < topo->n_numa_nodes && !fault; i++)
        fault = range_fault(topo, topo->numa_nodes[i].first_core, topo->numa_nodes[i].n_cores);
    for (int i = 0; i < topo->n_caches && !fault; i++)
        fault = range_fault(topo, topo->caches[i].first_core, topo->caches[i].n_cores);
    for (int i = 0; i < topo->n_cores && !fault; i++)
        fault = core_fault(topo, i);
    if (!fault)
        fault = pu_fault(topo);
    if (!fault)
        fault = machine_fault(topo);
    return fault ? fault : pci_fault(topo);
}

static const char *device_fault(const tsr_device_desc *d, const tsr_topology *topo)
{
    MUST(d->kind == TSR_DEVICE_HOST);
    MUST(d->name[0] != '\0');
    MUST(d->n_threads >= 1);
    MUST(d->n_cores >= 1);
    int pu = 0;
    for (int i = 0; i < d->n_cores; i++) {
        MUST(d->cores[i] >= 0 && d->cores[i] < topo->n_cores);
        MUST(i == 0 || d->cores[i] == d->cores[i - 1] + 1);
        const tsr_core *core = &topo->cores[d->cores[i]];
        MUST(d->numa_node == -1 || d->numa_node == core->numa_node);
        for (int j = 0; j < core->n_pus; j++, pu++) {
            MUST(pu < d->n_pus);
            MUST(d->pus[pu] == topo->pus[core->first_pu + j].os_index);
        }
    }
    MUST(pu == d->n_pus);
    for (int i = 0; i < d->n_threads; i++) {
        bool found = d->thread_pus[i] == -1 && d->n_threads > d->n_pus;
        for (int j = 0; j < d->n_pus; j++)
            found = found || d->thread_pus[i] == d->pus[j];
        MUST(found);
        for (int j = 0; j < i; j++)
            MUST(d->thread_pus[i] == -1 || d->thread_pus[i] != d->thread_pus[j]);
    }
    return NULL;
}

const char *device_list_fault(const tsr_device_list *list, const tsr_topology *topo)
{
    MUST(list->n_devices >= 1 && list->n_devices <= TSR_MAX_DEVICES);
    for (int i = 0; i < list->n_devices; i++) {
        const char *fault = device_fault(&list->devices[i], topo);
        if (fault)
            return fault;
        for (int j = 0; j < i; j++) {
            MUST(strcmp(list->devices[i].name, list->devices[j].name) != 0);
            if (list->n_devices <= topo->n_cores) /* disjoint, in order */
                MUST(list->devices[i].cores[0] > list->devices[j].cores[list->devices[j].n_cores - 1]);
        }
    }
    return NULL;
}

tsr_topology *topology_load(const char *path, const char *cards)
{
    tsr_topology *topo = NULL;
    tsr_topology_config config = tsr_topology_config_default();
    config.cards = cards;
    tsr_status status = tsr_topology_load(path, &config, &topo);
    if (status != TSR_OK)
        fail_msg("%s: %s: %s", path, tsr_status_name(status), tsr_last_error());
    const char *fault = topology_fault(topo);
    if (fault)
        fail_msg("%s: does not hold: %s", path, fault);
    return topo;
}

void topology_check_allocations(const char *path)
{
    for (int n = 1;; n++) {
        int64_t blocks = failing_alloc_live();
        tsr_topology *topo = NULL;
        failing_alloc_set(n);
        tsr_status status = tsr_topology_load(path, NULL, &topo);
        failing_alloc_set(0);
        if (status == TSR_OK) {
            tsr_topology_destroy(topo);
            assert_int_equal(failing_alloc_live(), blocks);
            assert_true(n > 6);
            break;
        }
        if (status != TSR_ERR_MEMORY)
            fail_msg("allocation %d: %s: %s", n, tsr_status_name(status), tsr_last_error());
        assert_null(topo);
        assert_int_equal(failing_alloc_live(), blocks);
    }
}
