/* The topology value itself: one block that holds the struct and, after it, its arrays. */
#include "topo/topo.h"

#include <stdalign.h>
#include <stdio.h>
#include <string.h>

#include "core/config.h"
#include "core/mem.h"

/* The arrays in their order inside the block. The order is arbitrary: offsets are rounded up. */
struct layout {
    size_t packages, numa_nodes, cores, pus, caches, bridges, pci, machines, end;
};

static size_t place(size_t *end, int count, size_t bytes)
{
    size_t offset = tsr_align_up(*end, alignof(max_align_t));
    *end = offset + (size_t)count * bytes;
    return offset;
}

/* Counts are at most TSR_TOPO_MAX_OBJECTS, so no sum overflows. */
static struct layout layout_of(const tsr_topology *shape)
{
    struct layout l = {.end = sizeof(tsr_topology)};
    l.packages = place(&l.end, shape->n_packages, sizeof *shape->packages);
    l.numa_nodes = place(&l.end, shape->n_numa_nodes, sizeof *shape->numa_nodes);
    l.cores = place(&l.end, shape->n_cores, sizeof *shape->cores);
    l.pus = place(&l.end, shape->n_pus, sizeof *shape->pus);
    l.caches = place(&l.end, shape->n_caches, sizeof *shape->caches);
    l.bridges = place(&l.end, shape->n_bridges, sizeof *shape->bridges);
    l.pci = place(&l.end, shape->n_pci, sizeof *shape->pci);
    l.machines = place(&l.end, shape->n_machines, sizeof *shape->machines);
    return l;
}

size_t tsr_topo_bytes(const tsr_topology *shape)
{
    return layout_of(shape).end;
}

void tsr_topo_link(tsr_topology *topo)
{
    struct layout l = layout_of(topo);
    char *base = (char *)topo;
    topo->packages = (tsr_package *)(base + l.packages);
    topo->numa_nodes = (tsr_numa_node *)(base + l.numa_nodes);
    topo->cores = (tsr_core *)(base + l.cores);
    topo->pus = (tsr_pu *)(base + l.pus);
    topo->caches = (tsr_cache *)(base + l.caches);
    topo->bridges = (tsr_pci_bridge *)(base + l.bridges);
    topo->pci = (tsr_pci_device *)(base + l.pci);
    topo->machines = (tsr_machine *)(base + l.machines);
}

static tsr_status check_count(const char *what, int count)
{
    if (count >= 0 && count <= TSR_TOPO_MAX_OBJECTS)
        return TSR_OK;
    return tsr_fail(TSR_ERR_FORMAT, "the machine description has %d %s; at most %d are supported", count,
                    what, TSR_TOPO_MAX_OBJECTS);
}

tsr_status tsr_topo_alloc(const tsr_topology *shape, tsr_topology **topo_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(check_count("packages", shape->n_packages));
    TSR_TRY(check_count("NUMA nodes", shape->n_numa_nodes));
    TSR_TRY(check_count("cores", shape->n_cores));
    TSR_TRY(check_count("processing units", shape->n_pus));
    TSR_TRY(check_count("caches", shape->n_caches));
    TSR_TRY(check_count("PCI bridges", shape->n_bridges));
    TSR_TRY(check_count("PCI devices", shape->n_pci));
    TSR_TRY(check_count("machines", shape->n_machines));

    tsr_topology *topo;
    TSR_TRY(tsr_mem_array(1, tsr_topo_bytes(shape), "the topology", &topo));
    topo->n_packages = shape->n_packages;
    topo->n_numa_nodes = shape->n_numa_nodes;
    topo->n_cores = shape->n_cores;
    topo->n_pus = shape->n_pus;
    topo->n_caches = shape->n_caches;
    topo->n_bridges = shape->n_bridges;
    topo->n_pci = shape->n_pci;
    topo->n_machines = shape->n_machines;
    tsr_topo_link(topo);
    *topo_out = topo;
out:
    return status;
}

size_t tsr_topology_config_init(tsr_topology_config *config_out, size_t size)
{
    const tsr_topology_config defaults = {0};
    return tsr_config_write(&defaults, sizeof defaults, config_out, size);
}

tsr_status tsr_topo_config_read(const tsr_topology_config *config, tsr_topology_config *config_out)
{
    tsr_topology_config own = tsr_topology_config_default();
    tsr_status status = tsr_config_read("tsr_topology_config", config, offsetof(tsr_topology_config, cards),
                                        &own, sizeof own);
    if (status == TSR_OK)
        *config_out = own;
    return status;
}

void tsr_topology_destroy(tsr_topology *topo)
{
    tsr_mem_free(topo);
}

tsr_machine tsr_topo_machine(const tsr_topology *topo, int index)
{
    if (topo->n_machines > 0)
        return topo->machines[index];
    return (tsr_machine){.n_packages = topo->n_packages,
                         .n_numa_nodes = topo->n_numa_nodes,
                         .n_cores = topo->n_cores,
                         .n_gpus = topo->n_gpus};
}

int tsr_topo_machine_of_gpu(const tsr_topology *topo, int gpu)
{
    int m = topo->n_machines - 1;
    while (m > 0 && topo->machines[m].first_gpu > gpu)
        m--;
    return TSR_MAX(m, 0);
}

int tsr_topo_machine_of_core(const tsr_topology *topo, int core)
{
    int m = topo->n_machines - 1;
    while (m > 0 && topo->machines[m].first_core > core)
        m--;
    return TSR_MAX(m, 0);
}

const char *tsr_network_kind_name(tsr_network_kind kind)
{
    static const char *const names[] = {"none", "ib", "roce", "ethernet"};
    return (unsigned)kind < sizeof names / sizeof *names ? names[kind] : "unknown";
}

void tsr_topo_format_list(const int *list, int n, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < n;) {
        int last = i;
        while (last + 1 < n && list[last + 1] == list[last] + 1)
            last++;
        char piece[32];
        const char *comma = i ? "," : "";
        if (last == i)
            snprintf(piece, sizeof piece, "%s%d", comma, list[i]);
        else
            snprintf(piece, sizeof piece, "%s%d-%d", comma, list[i], list[last]);
        /* Keep room for the dots of a cut list. */
        if (used + strlen(piece) + sizeof ",..." > bytes) {
            snprintf(text + used, bytes - used, "%s...", comma);
            return;
        }
        memcpy(text + used, piece, strlen(piece) + 1);
        used += strlen(piece);
        i = last + 1;
    }
}
