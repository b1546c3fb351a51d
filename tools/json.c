/* Topologies and devices as JSON; see json.h. */
#include "json.h"

#include <stdio.h>
#include <string.h>

#include "json_gpus.h"
#include "options.h"
#include "text.h"

static json_t *ints(const int *values, int n)
{
    json_t *array = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(array, json_integer(values[i]));
    return array;
}

static json_t *packages(const tsr_topology *topo)
{
    json_t *array = json_array();
    for (int i = 0; i < topo->n_packages; i++) {
        const tsr_package *p = &topo->packages[i];
        json_array_append_new(array, json_pack("{s:i, s:o, s:i, s:i}", "os_index", p->os_index, "cpu_model",
                                               tool_text_json(p->cpu_model), "first_core", p->first_core,
                                               "n_cores", p->n_cores));
    }
    return array;
}

static json_t *numa_nodes(const tsr_topology *topo)
{
    json_t *array = json_array();
    for (int i = 0; i < topo->n_numa_nodes; i++) {
        const tsr_numa_node *n = &topo->numa_nodes[i];
        json_array_append_new(array, json_pack("{s:i, s:o, s:I, s:f, s:i, s:i}", "os_index", n->os_index,
                                               "kind", tool_text_json(n->kind), "memory_bytes",
                                               (json_int_t)n->memory_bytes, "bytes_per_s", n->bytes_per_s,
                                               "first_core", n->first_core, "n_cores", n->n_cores));
    }
    return array;
}

static json_t *cores(const tsr_topology *topo)
{
    json_t *array = json_array();
    for (int i = 0; i < topo->n_cores; i++) {
        const tsr_core *c = &topo->cores[i];
        json_t *pus = json_array();
        for (int j = 0; j < c->n_pus; j++)
            json_array_append_new(pus, json_integer(topo->pus[c->first_pu + j].os_index));
        json_array_append_new(array,
                              json_pack("{s:i, s:i, s:i, s:o, s:o, s:i}", "os_index", c->os_index, "package",
                                        c->package, "numa_node", c->numa_node, "pus", pus, "caches",
                                        ints(c->cache, TSR_CACHE_LEVELS), "efficiency", c->efficiency));
    }
    return array;
}

static json_t *caches(const tsr_topology *topo)
{
    json_t *array = json_array();
    for (int i = 0; i < topo->n_caches; i++) {
        const tsr_cache *c = &topo->caches[i];
        json_array_append_new(array, json_pack("{s:i, s:I, s:i, s:i, s:i}", "level", c->level, "size_bytes",
                                               (json_int_t)c->size_bytes, "line_bytes", c->line_bytes,
                                               "first_core", c->first_core, "n_cores", c->n_cores));
    }
    return array;
}

static json_t *pci(const tsr_topology *topo)
{
    json_t *array = json_array();
    for (int i = 0; i < topo->n_pci; i++) {
        const tsr_pci_device *p = &topo->pci[i];
        json_array_append_new(array,
                              json_pack("{s:s, s:o, s:i, s:i, s:i, s:i, s:i, s:f}", "bus_id", p->bus_id,
                                        "name", tool_text_json(p->name), "class_id", p->class_id, "vendor_id",
                                        p->vendor_id, "device_id", p->device_id, "numa_node", p->numa_node,
                                        "bridge", p->bridge, "link_bytes_per_s", p->link_bytes_per_s));
    }
    return array;
}

/* The notes of a description, one sentence each; they are separated by newlines. */
static json_t *notes(const tsr_topology *topo)
{
    json_t *array = json_array();
    for (const char *at = topo->notes; *at;) {
        size_t length = strcspn(at, "\n");
        if (length > 0)
            json_array_append_new(array, json_stringn(at, length));
        at += length + (at[length] == '\n');
    }
    return array;
}

static json_t *bridges(const tsr_topology *topo)
{
    json_t *array = json_array();
    for (int i = 0; i < topo->n_bridges; i++) {
        const tsr_pci_bridge *b = &topo->bridges[i];
        json_array_append_new(array, json_pack("{s:o, s:i, s:i, s:f}", "bus_id", tool_text_json(b->bus_id),
                                               "parent", b->parent, "numa_node", b->numa_node,
                                               "link_bytes_per_s", b->link_bytes_per_s));
    }
    return array;
}

/* 13000 -> "13.0"; null if unknown. */
static json_t *cuda_version(int version)
{
    char text[24];
    snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
    return version > 0 ? json_string(text) : json_null();
}

static json_t *machines(const tsr_topology *topo)
{
    json_t *array = json_array();
    for (int i = 0; i < topo->n_machines; i++) {
        const tsr_machine *m = &topo->machines[i];
        json_array_append_new(array,
                              json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:i, s:f, s:f, s:b}",
                                        "first_package", m->first_package, "n_packages", m->n_packages,
                                        "first_numa_node", m->first_numa_node, "n_numa_nodes",
                                        m->n_numa_nodes, "first_core", m->first_core, "n_cores", m->n_cores,
                                        "first_gpu", m->first_gpu, "n_gpus", m->n_gpus, "network",
                                        tsr_network_kind_name(m->network), "n_adapters", m->n_adapters,
                                        "network_bytes_per_s", m->network_bytes_per_s, "network_latency_ns",
                                        m->network_latency_ns, "latency_guessed", m->latency_guessed));
    }
    return array;
}

json_t *tool_json_topology(const tsr_topology *topo)
{
    json_t *machine =
        json_pack("{s:o, s:o, s:b, s:I, s:I, s:o}", "source", tool_text_json(topo->source), "machine_name",
                  tool_text_json(topo->machine_name), "is_this_machine", topo->is_this_machine,
                  "memory_bytes", (json_int_t)topo->memory_bytes, "memory_limit_bytes",
                  (json_int_t)topo->memory_limit_bytes, "notes", notes(topo));
    json_t *parts = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "packages", packages(topo), "numa_nodes",
                              numa_nodes(topo), "cores", cores(topo), "caches", caches(topo), "bridges",
                              bridges(topo), "pci", pci(topo));
    json_t *gpus =
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "gpus", tool_json_gpus(topo), "gpu_pairs",
                  tool_json_gpu_pairs(topo), "gpu_note", tool_text_json(topo->gpu_note), "driver_version",
                  tool_text_json(topo->driver_version), "cuda_driver_version",
                  cuda_version(topo->cuda_driver_version), "cuda_version", cuda_version(topo->cuda_version));
    if (topo->n_machines > 0)
        json_object_set_new(parts, "machines", machines(topo));
    if (!machine || json_object_update(machine, parts) != 0 || json_object_update(machine, gpus) != 0) {
        json_decref(machine);
        machine = NULL;
    }
    json_decref(parts);
    json_decref(gpus);
    return machine;
}

static json_t *device_object(const tsr_device_desc *d)
{
    return json_pack("{s:s, s:s, s:i, s:i, s:I, s:I, s:I, s:f, s:b, s:b, s:b, s:i, s:s?, s:i, s:o, s:o, s:o}",
                     "name", d->name, "kind", tsr_device_kind_name(d->kind), "gpu", d->gpu, "numa_node",
                     d->numa_node, "memory_total_bytes", (json_int_t)d->memory_total_bytes, "mem_cap_bytes",
                     (json_int_t)d->mem_cap_bytes, "memory_usable_bytes", (json_int_t)d->memory_usable_bytes,
                     "memory_bytes_per_s", d->memory_bytes_per_s, "memory_rate_assumed",
                     d->memory_rate_assumed, "managed", d->managed, "wrap", d->wrap, "n_threads",
                     d->n_threads, "isa", *d->isa ? d->isa : NULL, "duty_percent", d->duty_percent, "cores",
                     ints(d->cores, d->n_cores), "pus", ints(d->pus, d->n_pus), "thread_pus",
                     ints(d->thread_pus, d->thread_pus ? d->n_threads : 0));
}

json_t *tool_json_devices(const tsr_device_list *list)
{
    json_t *array = json_array();
    for (int i = 0; i < list->n_devices; i++)
        json_array_append_new(array, device_object(&list->devices[i]));
    return array;
}

int tool_json_print(const char *command, json_t *root)
{
    int code = TOOL_EXIT_OK;
    if (!root || json_dumpf(root, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER) != 0 ||
        putchar('\n') == EOF) {
        fprintf(stderr, "tsr %s: cannot write JSON: out of memory or standard output is closed\n", command);
        code = TOOL_EXIT_FAILED;
    }
    json_decref(root);
    return code;
}
