/* A topology as text.
 *
 * Packages, NUMA nodes and shared caches are ranges of cores that nest, but in an order that differs
 * between machines (a NUMA node inside a package, or two packages inside one node; an L3 cache inside a
 * node, or across two). So the kinds are sorted by their largest range, and the tree is printed core by
 * core: at each depth, the object of the kind that contains the core. At the bottom, neighbouring equal
 * cores share a line. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/bytes.h>
#include <tsr/memory.h>

#include "core/mem.h"
#include "topo/print.h"
#include "topo/topo.h"

/* Possible levels of the tree; for equal ranges, outermost first. */
enum level { LEVEL_PACKAGE, LEVEL_NUMA, LEVEL_L4, LEVEL_L3, LEVEL_L2, N_LEVELS };

struct printer {
    tsr_topo_printer base;
    enum level order[N_LEVELS];
    int n_order;
};

void tsr_topo_put(tsr_topo_printer *p, int depth, const char *format, ...)
{
    size_t room = sizeof p->line - p->length;
    p->length += (size_t)snprintf(p->line + p->length, room, "%*s", TSR_MIN(2 * depth, 40), "");
    p->length = TSR_MIN(p->length, sizeof p->line - 1);
    room = sizeof p->line - p->length;
    va_list args;
    va_start(args, format);
    p->length += (size_t)vsnprintf(p->line + p->length, room, format, args);
    va_end(args);
    p->length = TSR_MIN(p->length, sizeof p->line - 1);
    if (format[strlen(format) - 1] != '\n')
        return;
    p->line[strcspn(p->line, "\n")] = '\0';
    tsr_clean_text(p->line, strlen(p->line), ""); /* names may be from a machine file */
    tsr_put_paragraph(p->line, true, p->write, p->user);
    p->length = 0;
}

#define put(p, ...) tsr_topo_put(&(p)->base, __VA_ARGS__)

/* "core 3", "cores 0-7". */
static const char *cores_text(int first, int n, char text[48])
{
    if (n == 1)
        snprintf(text, 48, "core %d", first);
    else
        snprintf(text, 48, "cores %d-%d", first, first + n - 1);
    return text;
}

static int cache_level_of(enum level level)
{
    return level == LEVEL_L4 ? 4 : level == LEVEL_L3 ? 3 : 2;
}

/* The object of a kind that contains a core, and its range; -1 if there is none. */
static int object_of(const tsr_topology *topo, enum level level, int core, int *first_out, int *n_out)
{
    const tsr_core *c = &topo->cores[core];
    int index = level == LEVEL_PACKAGE ? c->package
                : level == LEVEL_NUMA  ? c->numa_node
                                       : c->cache[cache_level_of(level) - 1];
    if (index < 0)
        return -1;
    *first_out = level == LEVEL_PACKAGE ? topo->packages[index].first_core
                 : level == LEVEL_NUMA  ? topo->numa_nodes[index].first_core
                                        : topo->caches[index].first_core;
    *n_out = level == LEVEL_PACKAGE ? topo->packages[index].n_cores
             : level == LEVEL_NUMA  ? topo->numa_nodes[index].n_cores
                                    : topo->caches[index].n_cores;
    return index;
}

/* Kinds that occur, largest range first. Caches of single cores are printed on the core's line instead. */
static void order_levels(struct printer *p)
{
    int largest[N_LEVELS] = {0};
    for (int level = 0; level < N_LEVELS; level++) {
        for (int core = 0, first, n; core < p->base.topo->n_cores; core++)
            if (object_of(p->base.topo, (enum level)level, core, &first, &n) >= 0)
                largest[level] = TSR_MAX(largest[level], n);
        if (largest[level] <= (level >= LEVEL_L4 ? 1 : 0))
            continue;
        int at = p->n_order++;
        for (; at > 0 && largest[p->order[at - 1]] < largest[level]; at--)
            p->order[at] = p->order[at - 1];
        p->order[at] = (enum level)level;
    }
}

static bool same_cores(const tsr_numa_node *a, const tsr_numa_node *b)
{
    return a->first_core == b->first_core && a->n_cores == b->n_cores;
}

static void put_numa_node(struct printer *p, int depth, int index, const char *where)
{
    const tsr_numa_node *node = &p->base.topo->numa_nodes[index];
    char bytes[TSR_BYTES_TEXT], speed[32];
    bool known = node->bytes_per_s > 0;
    put(p, depth, "NUMA node %d%s%s: %s%s%s%s\n", node->os_index, *node->kind ? " " : "", node->kind,
        tsr_bytes_text(node->memory_bytes, bytes), known ? " at " : "",
        known ? tsr_topo_speed_text(node->bytes_per_s, speed) : "", where);
}

/* Memory outside the tree: of no core, or of cores that each have nearer memory (a package's CXL memory in
 * addition to its clusters' own). */
static void put_far_memory(struct printer *p)
{
    const tsr_topology *topo = p->base.topo;
    for (int i = 0; i < topo->n_numa_nodes; i++) {
        const tsr_numa_node *node = &topo->numa_nodes[i];
        bool in_tree = node->n_cores > 0 && node->memory_bytes == 0;
        for (int c = node->first_core; c < node->first_core + node->n_cores && !in_tree; c++) {
            int own = topo->cores[c].numa_node;
            in_tree = own >= 0 && same_cores(node, &topo->numa_nodes[own]);
        }
        char cores[48], where[64] = "";
        if (node->n_cores > 0)
            snprintf(where, sizeof where, " near %s", cores_text(node->first_core, node->n_cores, cores));
        if (!in_tree)
            put_numa_node(p, 1, i, where);
    }
}

static void put_object(struct printer *p, int depth, enum level level, int index)
{
    const tsr_topology *topo = p->base.topo;
    char bytes[TSR_BYTES_TEXT], cores[48];
    if (level == LEVEL_PACKAGE) {
        const tsr_package *package = &topo->packages[index];
        put(p, depth, "Package");
        if (package->os_index >= 0)
            put(p, 0, " %d", package->os_index);
        put(p, 0, "%s%s\n", *package->cpu_model ? ": " : "", package->cpu_model);
    } else if (level == LEVEL_NUMA) {
        const tsr_numa_node *node = &topo->numa_nodes[index];
        put_numa_node(p, depth, index, "");
        for (int i = 0; i < topo->n_numa_nodes; i++) /* further memory of the same cores */
            if (i != index && same_cores(node, &topo->numa_nodes[i]))
                put_numa_node(p, depth, i, "");
    } else {
        const tsr_cache *cache = &topo->caches[index];
        put(p, depth, "L%d %s shared by %s\n", cache->level, tsr_bytes_text(cache->size_bytes, bytes),
            cores_text(cache->first_core, cache->n_cores, cores));
    }
}

static bool same_cache(const tsr_topology *topo, const tsr_core *a, const tsr_core *b, int level)
{
    int x = a->cache[level], y = b->cache[level];
    if (x < 0 || y < 0)
        return x == y;
    return topo->caches[x].size_bytes == topo->caches[y].size_bytes &&
           topo->caches[x].n_cores == topo->caches[y].n_cores;
}

static bool alike(const tsr_topology *topo, const tsr_core *a, const tsr_core *b)
{
    bool same = a->n_pus == b->n_pus && a->efficiency == b->efficiency;
    for (int level = 0; level < TSR_CACHE_LEVELS; level++)
        same = same && same_cache(topo, a, b, level);
    return same;
}

static int compare_ints(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static void put_pus(struct printer *p, int first, int n)
{
    enum { MOST = 1024 }; /* far more than fit in the text */
    const tsr_topology *topo = p->base.topo;
    int list[MOST], n_list = 0;
    for (int core = first; core < first + n; core++)
        for (int i = 0; i < topo->cores[core].n_pus && n_list < MOST; i++)
            list[n_list++] = topo->pus[topo->cores[core].first_pu + i].os_index;
    qsort(list, (size_t)n_list, sizeof *list, compare_ints);
    char text[160];
    tsr_topo_format_list(list, n_list, text, sizeof text);
    put(p, 0, ", CPU %s", text);
}

/* One line for cores [first, first + n), which are equal. */
static void put_cores(struct printer *p, int depth, int first, int n)
{
    const tsr_core *core = &p->base.topo->cores[first];
    char text[48];
    put(p, depth, "%s", cores_text(first, n, text));
    if (core->n_pus > 1)
        put(p, 0, " x %d threads", core->n_pus);
    put_pus(p, first, n);
    for (int level = TSR_CACHE_LEVELS - 1; level >= 0; level--) {
        int cache = core->cache[level];
        if (cache >= 0 && p->base.topo->caches[cache].n_cores == 1)
            put(p, 0, ", L%d%s %s", level + 1, level == 0 ? "d" : "",
                tsr_bytes_text(p->base.topo->caches[cache].size_bytes, text));
    }
    if (core->efficiency >= 0)
        put(p, 0, ", speed rank %d", core->efficiency);
    put(p, 0, "\n");
}

/* Cores [first, end) below the first `at` levels of the order. */
static void put_range(struct printer *p, int depth, int at, int first, int end)
{
    for (int core = first; core < end;) {
        int next = core + 1, from, n, index;
        if (at == p->n_order) {
            while (next < end && alike(p->base.topo, &p->base.topo->cores[core], &p->base.topo->cores[next]))
                next++;
            put_cores(p, depth, core, next - core);
        } else if ((index = object_of(p->base.topo, p->order[at], core, &from, &n)) >= 0) {
            next = TSR_MAX(next, TSR_MIN(end, from + n));
            put_object(p, depth, p->order[at], index);
            put_range(p, depth + 1, at + 1, core, next);
            if (p->order[at] == LEVEL_NUMA)
                tsr_topo_put_gpus_at(&p->base, depth + 1, index);
        } else {
            while (next < end && object_of(p->base.topo, p->order[at], next, &from, &n) < 0)
                next++;
            put_range(p, depth, at + 1, core, next);
        }
        core = next;
    }
}

/* Names of the devices of important PCI classes (PCI Code and ID Assignment Specification). */
static const char *class_name(int class_id)
{
    switch (class_id) {
    case 0x0108:
        return "NVMe";
    case 0x0200:
        return "Ethernet";
    case 0x0207:
        return "InfiniBand";
    case 0x0300:
        return "VGA";
    case 0x0302:
        return "3D";
    case 0x0380:
        return "display";
    }
    switch (class_id >> 8) {
    case 0x01:
        return "storage";
    case 0x02:
        return "network";
    case 0x03:
        return "display";
    case 0x0b:
        return "processor";
    case 0x12:
        return "accelerator";
    }
    return "device";
}

/* GPUs are printed separately. */
static bool is_gpu(const tsr_topology *topo, const tsr_pci_device *pci)
{
    for (int i = 0; i < topo->n_gpus; i++)
        if (strcmp(topo->gpus[i].bus_id, pci->bus_id) == 0)
            return true;
    return false;
}

static void put_pci(struct printer *p)
{
    for (int i = 0; i < p->base.topo->n_pci; i++) {
        const tsr_pci_device *pci = &p->base.topo->pci[i];
        if (is_gpu(p->base.topo, pci))
            continue;
        put(p, 1, "PCI %s %s %04x:%04x", pci->bus_id, class_name(pci->class_id), pci->vendor_id,
            pci->device_id);
        if (*pci->name)
            put(p, 0, " %s", pci->name);
        if (pci->numa_node >= 0)
            put(p, 0, ", NUMA node %d", p->base.topo->numa_nodes[pci->numa_node].os_index);
        if (pci->link_bytes_per_s > 0)
            put(p, 0, ", %.1f GB/s", pci->link_bytes_per_s / 1e9);
        put(p, 0, "\n");
    }
}

static void put_notes(struct printer *p)
{
    bool guessed = false, latency = false;
    for (int i = 0; i < p->base.topo->n_gpus; i++)
        guessed = guessed || p->base.topo->gpus[i].guessed;
    for (int i = 0; i < p->base.topo->n_machines; i++)
        latency = latency || p->base.topo->machines[i].latency_guessed;
    if (guessed || latency)
        put(p, 1, "~ not described: %s%s%s\n", guessed ? "taken from the table of cards" : "",
            guessed && latency ? "; " : "", latency ? "usual for the network" : "");
    for (const char *line = p->base.topo->notes; *line; line += strcspn(line, "\n"), line += *line == '\n')
        put(p, 1, "note: %.*s\n", (int)TSR_MIN(strcspn(line, "\n"), (size_t)400), line);
}

/* "Machine 1: 2 x ib 400 Gb/s, ~2.7 us" */
static void put_machine(struct printer *p, int index)
{
    const tsr_machine *machine = &p->base.topo->machines[index];
    put(p, 1, "Machine %d", index);
    if (machine->network != TSR_NETWORK_NONE) {
        put(p, 0, ": ");
        if (machine->n_adapters > 1)
            put(p, 0, "%d x ", machine->n_adapters);
        put(p, 0, "%s %.6g Gb/s, %s%.3g us", tsr_network_kind_name(machine->network),
            8e-9 * machine->network_bytes_per_s / machine->n_adapters, machine->latency_guessed ? "~" : "",
            1e-3 * machine->network_latency_ns);
    }
    put(p, 0, "\n");
}

static void put_tree(struct printer *p)
{
    const tsr_topology *topo = p->base.topo;
    if (topo->n_machines == 0)
        put_range(p, 1, 0, 0, topo->n_cores);
    for (int i = 0; i < topo->n_machines; i++) {
        const tsr_machine *machine = &topo->machines[i];
        put_machine(p, i);
        put_range(p, 2, 0, machine->first_core, machine->first_core + machine->n_cores);
    }
}

void tsr_topology_print(const tsr_topology *topo, tsr_write_fn write, void *user)
{
    struct printer p = {.base = {.topo = topo, .write = write, .user = user}};
    char bytes[TSR_BYTES_TEXT];
    put(&p, 0, "%s%s%s%s\n", topo->source, *topo->machine_name ? " (" : "", topo->machine_name,
        *topo->machine_name ? ")" : "");
    if (topo->n_machines > 1)
        put(&p, 1, "%d machines\n", topo->n_machines);
    put(&p, 1, "%d package%s, %d NUMA node%s, %d core%s, %d CPU%s, %s of memory", topo->n_packages,
        tsr_plural(topo->n_packages), topo->n_numa_nodes, tsr_plural(topo->n_numa_nodes), topo->n_cores,
        tsr_plural(topo->n_cores), topo->n_pus, tsr_plural(topo->n_pus),
        tsr_bytes_text(topo->memory_bytes, bytes));
    if (topo->memory_limit_bytes)
        put(&p, 0, ", limited to %s", tsr_bytes_text(topo->memory_limit_bytes, bytes));
    put(&p, 0, "\n");
    tsr_topo_put_gpu_summary(&p.base);
    order_levels(&p);
    put_tree(&p);
    put_far_memory(&p);
    tsr_topo_put_gpus_at(&p.base, 1, -1);
    put_pci(&p);
    tsr_topo_put_gpu_pairs(&p.base);
    put_notes(&p);
}
