/* Devices on a machine: the list for a --devices text. This file assigns cores, hardware threads and
 * memory to host devices; gpu_devices.c does GPUs.
 *
 * The cores are a line (logical order), and devices are consecutive pieces of it. So placement chooses
 * cuts: first the number of cores of each device, then cuts move to nearby edges of NUMA nodes, since
 * reading half of the weights through another socket is slower than having one core less. */
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "topo/devices/devices.h"
#include "topo/topo.h"

/* -- how many devices -- */

/* Whether "host" makes a device for a node: the node has memory, and cores whose nearest node it is. */
static bool node_has_device(const tsr_topology *topo, int node, int *first_out, int *n_out)
{
    int first = -1, n = 0;
    for (int core = 0; core < topo->n_cores; core++) {
        if (topo->cores[core].numa_node == node) {
            first = first < 0 ? core : first;
            n++;
        }
    }
    *first_out = first;
    *n_out = n;
    return n > 0 && topo->numa_nodes[node].memory_bytes > 0;
}

static int count_node_devices(const tsr_topology *topo, const tsr_machine *machine)
{
    int count = 0, first, n;
    for (int node = 0; node < machine->n_numa_nodes; node++)
        count += node_has_device(topo, machine->first_numa_node + node, &first, &n);
    return TSR_MAX(count, 1);
}

static tsr_status add_host_item(const tsr_device_item *item, tsr_topo_placement *p)
{
    const tsr_machine machine = tsr_topo_machine(p->topo, p->machine);
    int count = item->count ? item->count : count_node_devices(p->topo, &machine);
    if (count > TSR_MAX_DEVICES - p->n_devices - p->n_gpu_devices)
        return tsr_fail(TSR_ERR_INVALID, "devices: %d or more devices; at most %d are supported",
                        p->n_devices + p->n_gpu_devices + count, TSR_MAX_DEVICES);
    for (int j = 0; j < count; j++) {
        p->order[p->n_devices + p->n_gpu_devices].machine = p->machine;
        p->order[p->n_devices + p->n_gpu_devices].gpu = -1;
        p->devices[p->n_devices++] = (tsr_topo_placing){
            .threads = item->threads, .cap = item->mem_cap_bytes, .isa = item->isa, .duty = item->duty};
    }
    p->n_host_items++;
    p->one_per_node = item->count == 0;
    return TSR_OK;
}

static tsr_status expand_items(const tsr_device_spec *spec, tsr_topo_placement *p)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < spec->n_items; i++) {
        const tsr_device_item *item = &spec->items[i];
        TSR_TRY(item->kind == TSR_DEVICE_CUDA ? tsr_topo_add_gpus(item, p) : add_host_item(item, p));
    }
out:
    return status;
}

/* -- which cores -- */

/* The host devices of one machine, and its cores. */
typedef struct part {
    const tsr_topology *topo;
    tsr_machine machine;
    tsr_topo_placing *devices;
    int n;
} part;

/* "host" alone: a device per node, however unequal. False if no node has both cores and memory. */
static bool place_by_node(part *p)
{
    const int first_node = p->machine.first_numa_node;
    int device = 0;
    for (int node = first_node; node < first_node + p->machine.n_numa_nodes && device < p->n; node++) {
        int first, n;
        if (node_has_device(p->topo, node, &first, &n)) {
            p->devices[device].first = first;
            p->devices[device++].n = n;
        }
    }
    return device == p->n;
}

/* More devices than cores: each has one core, taken in turn. */
static void place_shared(part *p)
{
    for (int i = 0; i < p->n; i++) {
        p->devices[i].first = p->machine.first_core + (int)((int64_t)i * p->machine.n_cores / p->n);
        p->devices[i].n = 1;
    }
}

static int wish_of(const tsr_topo_placing *device)
{
    return TSR_MAX(device->threads, 1);
}

/* Distribute `extra` cores evenly, over all devices or only over those without a thread count. */
static void spread(part *p, int extra, bool only_open)
{
    int takers = 0, taker = 0;
    for (int i = 0; i < p->n; i++)
        takers += !only_open || p->devices[i].threads == 0;
    for (int i = 0; i < p->n; i++) {
        if (only_open && p->devices[i].threads != 0)
            continue;
        int from = (int)((int64_t)extra * taker / takers);
        taker++;
        p->devices[i].n += (int)((int64_t)extra * taker / takers) - from;
    }
}

/* Cores per device, at least one each; all cores are assigned. */
static void choose_sizes(part *p)
{
    int n_cores = p->machine.n_cores, open = 0;
    int64_t wishes = 0;
    for (int i = 0; i < p->n; i++) {
        wishes += wish_of(&p->devices[i]);
        open += p->devices[i].threads == 0;
    }
    if (wishes <= n_cores) {
        for (int i = 0; i < p->n; i++)
            p->devices[i].n = wish_of(&p->devices[i]);
        spread(p, n_cores - (int)wishes, open > 0);
        return;
    }
    /* Too few cores: one each, then in proportion to the remaining wishes. */
    int64_t extra = n_cores - p->n, beyond = wishes - p->n, sum = 0;
    for (int i = 0; i < p->n; i++) {
        int64_t from = extra * sum / beyond;
        sum += wish_of(&p->devices[i]) - 1;
        p->devices[i].n = 1 + (int)(extra * sum / beyond - from);
    }
}

/* The edge between NUMA nodes nearest to a cut, within `reach` cores; the cut itself if there is no edge. */
static int snap(const part *p, int cut, int reach)
{
    const tsr_core *cores = p->topo->cores;
    const int first = p->machine.first_core, end = first + p->machine.n_cores;
    for (int distance = 0; distance <= reach; distance++) {
        for (int sign = -1; sign <= 1; sign += 2) {
            int at = cut + sign * distance;
            if (at > first && at < end && cores[at].numa_node != cores[at - 1].numa_node)
                return at;
        }
    }
    return cut;
}

/* A cut may move by an eighth of the smaller neighbour: more would make devices unequal that were
 * requested equal. So cuts also stay in order, and every device keeps a core. No cut moves so that a
 * neighbour that had enough cores for its threads has too few. */
static void place_disjoint(part *p)
{
    choose_sizes(p);
    for (int i = 0, first = p->machine.first_core; i < p->n; first += p->devices[i++].n)
        p->devices[i].first = first;
    for (int i = 1; i < p->n; i++) {
        tsr_topo_placing *left = &p->devices[i - 1], *right = &p->devices[i];
        int move = snap(p, right->first, TSR_MIN(left->n, right->n) / 8) - right->first;
        bool fits_left = move > 0 || left->n + move >= left->threads || left->n < left->threads;
        bool fits_right = move < 0 || right->n - move >= right->threads || right->n < right->threads;
        if (fits_left && fits_right) {
            left->n += move;
            right->first += move;
            right->n -= move;
        }
    }
}

static void place(const tsr_topo_placement *placement, tsr_topo_placing *devices, const tsr_logger *logger)
{
    part p = {.topo = placement->topo,
              .machine = tsr_topo_machine(placement->topo, placement->machine),
              .devices = devices,
              .n = placement->n_devices - placement->first_device};
    if (p.n == 0 || (placement->n_host_items == 1 && placement->one_per_node && place_by_node(&p)))
        return;
    if (p.n > p.machine.n_cores) {
        tsr_log(logger, TSR_LOG_WARN,
                "%d devices on %d core%s: devices share cores and slow each other down; name fewer devices",
                p.n, p.machine.n_cores, tsr_plural(p.machine.n_cores));
        place_shared(&p);
        return;
    }
    place_disjoint(&p);
}

/* -- the list -- */

/* Allocate the list, its descriptions and all their numbers as one block; `numbers_out` is the start of
 * the numbers. */
static tsr_status allocate(const tsr_topo_placement *p, tsr_device_list **list_out, int **numbers_out)
{
    size_t head = tsr_align_up(sizeof(tsr_device_list), _Alignof(max_align_t));
    size_t n_descs = (size_t)(p->n_devices + p->n_gpu_devices);
    size_t descs = tsr_align_up(n_descs * sizeof(tsr_device_desc), _Alignof(max_align_t));
    size_t numbers = tsr_topo_gpu_numbers(p); /* together at most TSR_MAX_DEVICES * (2 *
                                               * TSR_TOPO_MAX_OBJECTS + 1024) */
    for (int i = 0; i < p->n_devices; i++) {
        const tsr_topo_placing *device = &p->devices[i];
        numbers += (size_t)device->n + (size_t)(device->threads ? device->threads : device->n);
        for (int j = 0; j < device->n; j++)
            numbers += (size_t)p->topo->cores[device->first + j].n_pus;
    }
    char *block;
    tsr_status status = tsr_mem_array(1, head + descs + numbers * sizeof(int), "the device list", &block);
    if (status != TSR_OK)
        return status;
    *list_out = (tsr_device_list *)block;
    (*list_out)->n_devices = (int)n_descs;
    (*list_out)->devices = (tsr_device_desc *)(block + head);
    *numbers_out = (int *)(block + head + descs);
    return TSR_OK;
}

/* Memory of the nodes that the device's cores belong to, and the node if there is only one. Nodes are
 * contiguous ranges of cores, so each change of number is a new node. Devices on one node work at the same
 * time, so each has the part of the node's rate that it has of the node's cores. */
static void describe_memory(const tsr_topology *topo, tsr_device_desc *desc)
{
    int previous = -2;
    double core_rate = 0;
    desc->numa_node = topo->cores[desc->cores[0]].numa_node;
    for (int i = 0; i < desc->n_cores; i++) {
        int node = topo->cores[desc->cores[i]].numa_node, n_cores = 0;
        if (node != previous) {
            bool assumed;
            for (int core = 0; core < topo->n_cores; core++)
                n_cores += topo->cores[core].numa_node == node;
            core_rate = tsr_topo_memory_rate(topo, node, &assumed) / n_cores;
            desc->memory_rate_assumed |= assumed;
            desc->memory_total_bytes += node >= 0 ? topo->numa_nodes[node].memory_bytes : 0;
        }
        desc->memory_bytes_per_s += core_rate;
        if (node != desc->numa_node)
            desc->numa_node = -1;
        previous = node;
    }
    if (topo->memory_limit_bytes)
        desc->memory_total_bytes = TSR_MIN(desc->memory_total_bytes, topo->memory_limit_bytes);
    desc->memory_available_bytes = TSR_MIN(topo->memory_available_bytes, desc->memory_total_bytes);
}

/* Threads use the first hardware thread of each core, then the second ones. Further threads are not pinned
 * to a processor of their own; the operating system may move them among the device's cores. */
static void place_threads(const tsr_topology *topo, const tsr_device_desc *desc, int *thread_pus)
{
    int placed = 0, most = 0;
    for (int i = 0; i < desc->n_cores; i++)
        most = TSR_MAX(most, topo->cores[desc->cores[i]].n_pus);
    for (int sibling = 0; sibling < most; sibling++) {
        for (int i = 0; i < desc->n_cores && placed < desc->n_threads; i++) {
            const tsr_core *core = &topo->cores[desc->cores[i]];
            if (sibling < core->n_pus)
                thread_pus[placed++] = topo->pus[core->first_pu + sibling].os_index;
        }
    }
    while (placed < desc->n_threads)
        thread_pus[placed++] = -1;
}

void tsr_topo_name_device(const tsr_topology *topo, int machine, const char *name, tsr_device_desc *desc)
{
    if (topo->n_machines > 1)
        snprintf(desc->name, sizeof desc->name, "%.24s@%d", name, machine);
    else
        snprintf(desc->name, sizeof desc->name, "%s", name);
}

/* Fill one description; its numbers are stored at *numbers, which advances. `index`: among the host devices
 * of its machine. */
static void describe(const tsr_topology *topo, int machine, const tsr_topo_placing *device, int index,
                     int **numbers, tsr_device_desc *desc)
{
    char name[32];
    snprintf(name, sizeof name, "host%d", index);
    tsr_topo_name_device(topo, machine, name, desc);
    desc->kind = TSR_DEVICE_HOST;
    desc->gpu = -1;
    desc->mem_cap_bytes = device->cap;
    desc->n_threads = device->threads ? device->threads : device->n;
    desc->n_cores = device->n;
    snprintf(desc->isa, sizeof desc->isa, "%s", device->isa);
    desc->duty_percent = device->duty ? device->duty : 100;

    int *cores = *numbers;
    int *pus = cores + device->n;
    for (int i = 0; i < device->n; i++) {
        const tsr_core *core = &topo->cores[device->first + i];
        cores[i] = device->first + i;
        for (int j = 0; j < core->n_pus; j++)
            pus[desc->n_pus++] = topo->pus[core->first_pu + j].os_index;
    }
    int *thread_pus = pus + desc->n_pus;
    *numbers = thread_pus + desc->n_threads;
    desc->cores = cores;
    desc->pus = pus;
    desc->thread_pus = thread_pus;
    describe_memory(topo, desc);
    place_threads(topo, desc, thread_pus);
}

static void warn_of_excess(const tsr_device_desc *desc, const tsr_logger *logger)
{
    if (desc->n_threads > desc->n_cores)
        tsr_log(logger, TSR_LOG_WARN, "%s: %d threads on %d core%s; threads=%d or fewer is usually faster",
                desc->name, desc->n_threads, desc->n_cores, tsr_plural(desc->n_cores), desc->n_cores);
    if (desc->mem_cap_bytes && desc->memory_total_bytes && desc->mem_cap_bytes > desc->memory_total_bytes)
        tsr_log(logger, TSR_LOG_WARN, "%s: mem= is %llu bytes, but its memory has %llu", desc->name,
                (unsigned long long)desc->mem_cap_bytes, (unsigned long long)desc->memory_total_bytes);
}

/* The devices that the text makes of one machine. */
static tsr_status add_machine(const tsr_device_spec *spec, int machine, const tsr_logger *logger,
                              tsr_topo_placement *p)
{
    tsr_status status = TSR_OK;
    p->machine = machine;
    p->first_device = p->n_devices;
    p->n_host_items = 0;
    TSR_TRY(expand_items(spec, p));
    place(p, &p->devices[p->first_device], logger);
out:
    return status == TSR_OK || p->topo->n_machines < 2 ? status : tsr_fail_in(status, "machine %d", machine);
}

/* Every machine makes devices of the text, as every process of a run does. */
static tsr_status add_machines(const char *text, const tsr_logger *logger, tsr_device_spec specs[2],
                               tsr_topo_placement *p)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_device_spec_parse(text, "host", &specs[0]));
    TSR_TRY(tsr_device_spec_parse(text, "cuda", &specs[1]));
    for (int m = 0; m < TSR_MAX(p->topo->n_machines, 1); m++)
        TSR_TRY(add_machine(&specs[tsr_topo_machine(p->topo, m).n_gpus > 0], m, logger, p));
    TSR_TRY(tsr_topo_check_gpus(p));
out:
    return status;
}

tsr_status tsr_device_list_create(const tsr_topology *topo, const char *spec_text, const tsr_logger *logger,
                                  tsr_device_list **list_out)
{
    tsr_status status = TSR_OK;
    tsr_device_spec specs[2];
    tsr_topo_placement p = {.topo = topo};
    tsr_device_list *list = NULL;
    int *numbers = NULL;

    if (topo->n_cores < 1) {
        status = tsr_fail(TSR_ERR_INVALID, "the topology '%s' has no cores to make devices of", topo->source);
        goto out;
    }
    if (!spec_text)
        tsr_topo_warn_of_no_gpu(topo, logger);
    TSR_TRY(add_machines(spec_text, logger, specs, &p));
    TSR_TRY(allocate(&p, &list, &numbers));
    for (int i = 0, host = 0, first = 0; i < list->n_devices; i++) {
        const int machine = p.order[i].machine;
        if (i > 0 && machine != p.order[i - 1].machine)
            first = host;
        if (p.order[i].gpu >= 0) {
            tsr_topo_describe_gpu_device(&p, i, &numbers, &list->devices[i]);
        } else {
            describe(topo, machine, &p.devices[host], host - first, &numbers, &list->devices[i]);
            warn_of_excess(&list->devices[i], logger);
            host++;
        }
    }
    *list_out = list;
out:
    return status;
}

void tsr_device_list_destroy(tsr_device_list *list)
{
    tsr_mem_free(list);
}

const char *tsr_device_kind_name(tsr_device_kind kind)
{
    return kind == TSR_DEVICE_CUDA ? "cuda" : "host";
}
