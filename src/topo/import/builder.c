/* The builder; see builder.h. Arrays grow by doubling up to bounds that no machine reaches, so that a
 * description cannot request unlimited memory. */
#include "topo/import/builder.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"

tsr_status tsr_builder_create(const char *name, tsr_topo_builder **builder_out)
{
    tsr_status status = TSR_OK;
    tsr_topo_builder *builder = NULL;
    TSR_TRY(TSR_NEW(&builder, "a machine description"));
    builder->name = name;
    TSR_TRY(tsr_mem_array(TSR_MAX_GPUS, sizeof *builder->gpus, "GPUs", &builder->gpus));
    TSR_TRY(tsr_mem_array(TSR_MAX_GPUS, sizeof *builder->pairs, "GPU pairs", &builder->pairs));
    *builder_out = builder;
    builder = NULL;
out:
    tsr_builder_free(builder);
    return status;
}

void tsr_builder_free(tsr_topo_builder *builder)
{
    if (!builder)
        return;
    tsr_mem_free(builder->nodes);
    tsr_mem_free(builder->bridges);
    tsr_mem_free(builder->pci);
    tsr_mem_free(builder->gpus);
    tsr_mem_free(builder->pairs);
    tsr_mem_free(builder->machines);
    tsr_mem_free(builder);
}

/* Room for one more element in the array at *array_io, zeroed. */
static tsr_status grow(const tsr_topo_builder *builder, void *array_io, int n, size_t bytes, int most,
                       const char *what)
{
    char *array;
    memcpy(&array, array_io, sizeof array);
    if (n >= most)
        return tsr_fail(TSR_ERR_FORMAT,
                        "'%s' has more than %d %s, the limit; the description may be malformed",
                        builder->name, most, what);
    if ((n & (n - 1)) == 0) { /* 0, 1, 2, 4, ...: the array is full */
        array = tsr_mem_realloc(array, n ? 2 * (size_t)n : 1, bytes);
        if (!array)
            return tsr_fail(TSR_ERR_MEMORY, "out of host memory for %d %s of '%s'", n + 1, what,
                            builder->name);
        memcpy(array_io, &array, sizeof array);
    }
    memset(array + (size_t)n * bytes, 0, bytes);
    return TSR_OK;
}

tsr_status tsr_builder_add_node(tsr_topo_builder *builder, tsr_builder_node **node_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(grow(builder, &builder->nodes, builder->n_nodes, sizeof *builder->nodes, TSR_DRAFT_MAX_NODES,
                 "NUMA nodes"));
    *node_out = &builder->nodes[builder->n_nodes++];
    (*node_out)->os_index = -1;
out:
    return status;
}

tsr_status tsr_builder_add_bridge(tsr_topo_builder *builder, tsr_pci_bridge **bridge_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(grow(builder, &builder->bridges, builder->n_bridges, sizeof *builder->bridges, TSR_DRAFT_MAX_PCI,
                 "PCI bridges"));
    *bridge_out = &builder->bridges[builder->n_bridges++];
    (*bridge_out)->parent = (*bridge_out)->numa_node = -1;
out:
    return status;
}

tsr_status tsr_builder_add_pci(tsr_topo_builder *builder, tsr_pci_device **pci_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(
        grow(builder, &builder->pci, builder->n_pci, sizeof *builder->pci, TSR_DRAFT_MAX_PCI, "PCI devices"));
    *pci_out = &builder->pci[builder->n_pci++];
    (*pci_out)->bridge = (*pci_out)->numa_node = -1;
out:
    return status;
}

tsr_status tsr_builder_add_gpu(tsr_topo_builder *builder, tsr_gpu **gpu_out)
{
    if (builder->n_gpus == TSR_MAX_GPUS)
        return tsr_fail(TSR_ERR_FORMAT, "'%s' has more than %d GPUs, the limit; describe a smaller machine",
                        builder->name, TSR_MAX_GPUS);
    *gpu_out = &builder->gpus[builder->n_gpus];
    (*gpu_out)->ordinal = builder->n_gpus++;
    (*gpu_out)->numa_node = -1;
    return TSR_OK;
}

tsr_status tsr_builder_add_machine(tsr_topo_builder *builder, tsr_machine **machine_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(grow(builder, &builder->machines, builder->n_machines, sizeof *builder->machines,
                 TSR_DRAFT_MAX_NODES, "machines"));
    *machine_out = &builder->machines[builder->n_machines++];
out:
    return status;
}

void tsr_topo_note(char *notes, size_t bytes, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t used = strlen(notes);
    if (strstr(notes, text) || used + strlen(text) + 2 > bytes)
        return;
    snprintf(notes + used, bytes - used, "%s%s", used ? "\n" : "", text);
}

bool tsr_bus_id_parse(const char *text, char bus_id[16])
{
    unsigned domain = 0, bus, slot, function;
    int used = -1;
    if (sscanf(text, "%8x:%2x:%2x.%1x%n", &domain, &bus, &slot, &function, &used) != 4 || used < 0) {
        domain = 0;
        used = -1;
        if (sscanf(text, "%2x:%2x.%1x%n", &bus, &slot, &function, &used) != 3 || used < 0)
            return false;
    }
    if (text[used] || text[0] == '-' || text[0] == '+' || text[0] == ' ' || domain > 0xfffff || slot > 0x1f ||
        function > 7)
        return false;
    snprintf(bus_id, 16, "%04x:%02x:%02x.%x", domain, bus, slot, function);
    return true;
}

/* -- builder -> topology -- */

static bool has_pu(const tsr_builder_node *node, int pu)
{
    return node->pus[pu / 64] >> (pu % 64) & 1;
}

/* Processors of each node, without those claimed by an earlier node. Nodes without any get the free
 * numbers after all of them. */
static int count_pus(const tsr_topo_builder *builder, int *next_free_out)
{
    uint64_t claimed[TSR_DRAFT_MAX_PUS / 64] = {0};
    int n = 0, last = -1;
    for (int i = 0; i < builder->n_nodes; i++) {
        int before = n;
        for (int pu = 0; pu < TSR_DRAFT_MAX_PUS; pu++) {
            if (!has_pu(&builder->nodes[i], pu) || (claimed[pu / 64] >> (pu % 64) & 1))
                continue;
            claimed[pu / 64] |= UINT64_C(1) << (pu % 64);
            last = TSR_MAX(last, pu);
            n++;
        }
        n += n == before;
    }
    *next_free_out = last + 1;
    return TSR_MAX(n, 1);
}

static void add_core(tsr_topology *topo, int *n, int node, int os_index)
{
    tsr_core *core = &topo->cores[*n];
    *core = (tsr_core){
        .os_index = -1, .package = -1, .numa_node = -1, .first_pu = *n, .n_pus = 1, .efficiency = -1};
    for (int level = 0; level < TSR_CACHE_LEVELS; level++)
        core->cache[level] = -1;
    if (node >= 0 && topo->numa_nodes[node].memory_bytes > 0)
        core->numa_node = node;
    topo->pus[*n] = (tsr_pu){.os_index = os_index, .core = *n};
    ++*n;
}

/* Place the cores node by node, so that each node is a range of cores. */
static void place_cores(const tsr_topo_builder *builder, int next_free, tsr_topology *topo)
{
    uint64_t claimed[TSR_DRAFT_MAX_PUS / 64] = {0};
    int n = 0;
    for (int i = 0; i < builder->n_nodes; i++) {
        tsr_numa_node *node = &topo->numa_nodes[i];
        node->first_core = n;
        for (int pu = 0; pu < TSR_DRAFT_MAX_PUS; pu++) {
            if (!has_pu(&builder->nodes[i], pu) || (claimed[pu / 64] >> (pu % 64) & 1))
                continue;
            claimed[pu / 64] |= UINT64_C(1) << (pu % 64);
            add_core(topo, &n, i, pu);
        }
        if (n == node->first_core)
            add_core(topo, &n, i, next_free++);
        node->n_cores = n - node->first_core;
    }
    if (n == 0)
        add_core(topo, &n, -1, 0);
}

static void place_packages(const tsr_topo_builder *builder, tsr_topology *topo)
{
    int n = 0;
    for (int i = 0; i < builder->n_nodes; i++) {
        const tsr_numa_node *node = &topo->numa_nodes[i];
        if (!builder->nodes[i].own_package)
            continue;
        tsr_package *package = &topo->packages[n];
        *package = (tsr_package){.os_index = n, .first_core = node->first_core, .n_cores = node->n_cores};
        memcpy(package->cpu_model, builder->nodes[i].cpu_model, sizeof package->cpu_model);
        for (int core = 0; core < node->n_cores; core++)
            topo->cores[node->first_core + core].package = n;
        n++;
    }
}

/* The ranges of machine m from those of its NUMA nodes; its processors and packages are numbered anew. */
static void place_machine(const tsr_topo_builder *builder, int m, tsr_topology *topo)
{
    tsr_machine *machine = &topo->machines[m];
    const int end = machine->first_numa_node + machine->n_numa_nodes;
    int first_pu = TSR_DRAFT_MAX_PUS;
    machine->first_core = topo->numa_nodes[machine->first_numa_node].first_core;
    for (int i = 0; i < machine->first_numa_node; i++)
        machine->first_package += builder->nodes[i].own_package;
    for (int i = machine->first_numa_node; i < end; i++) {
        machine->n_packages += builder->nodes[i].own_package;
        machine->n_cores += topo->numa_nodes[i].n_cores;
    }
    for (int c = 0; c < machine->n_cores; c++)
        first_pu = TSR_MIN(first_pu, topo->pus[machine->first_core + c].os_index);
    for (int c = 0; c < machine->n_cores; c++)
        topo->pus[machine->first_core + c].os_index -= first_pu;
    for (int i = 0; i < machine->n_packages; i++)
        topo->packages[machine->first_package + i].os_index = i;
}

tsr_status tsr_topo_build(const tsr_topo_builder *builder, tsr_topology **topo_out)
{
    tsr_status status = TSR_OK;
    tsr_topology shape = {.n_numa_nodes = builder->n_nodes,
                          .n_bridges = builder->n_bridges,
                          .n_pci = builder->n_pci,
                          .n_machines = builder->n_machines};
    tsr_topology *topo;
    int next_free;
    for (int i = 0; i < builder->n_nodes; i++)
        shape.n_packages += builder->nodes[i].own_package;
    shape.n_cores = shape.n_pus = count_pus(builder, &next_free);
    TSR_TRY(tsr_topo_alloc(&shape, &topo));
    for (int i = 0; i < builder->n_nodes; i++) {
        topo->numa_nodes[i].os_index = builder->nodes[i].os_index >= 0 ? builder->nodes[i].os_index : i;
        topo->numa_nodes[i].memory_bytes = builder->nodes[i].memory_bytes;
        topo->numa_nodes[i].bytes_per_s = builder->nodes[i].bytes_per_s;
        topo->numa_nodes[i].rate_guessed = builder->nodes[i].rate_guessed;
        topo->memory_bytes += builder->nodes[i].memory_bytes;
    }
    place_cores(builder, next_free, topo);
    place_packages(builder, topo);
    if (builder->n_bridges)
        memcpy(topo->bridges, builder->bridges, (size_t)builder->n_bridges * sizeof *builder->bridges);
    if (builder->n_pci)
        memcpy(topo->pci, builder->pci, (size_t)builder->n_pci * sizeof *builder->pci);
    if (builder->n_machines)
        memcpy(topo->machines, builder->machines, (size_t)builder->n_machines * sizeof *builder->machines);
    for (int m = 0; m < builder->n_machines; m++)
        place_machine(builder, m, topo);
    topo->n_gpus = builder->n_gpus;
    memcpy(topo->gpus, builder->gpus, sizeof topo->gpus);
    memcpy(topo->gpu_pairs, builder->pairs, sizeof topo->gpu_pairs);
    memcpy(topo->notes, builder->notes, sizeof topo->notes);
    *topo_out = topo;
out:
    return status;
}
