/* NCCL's topology XML -> a builder.
 *
 * The format is NCCL's dump of a topology (version 1): `system` holds `cpu` elements (NUMA nodes), these
 * hold `pci` (switches and devices) and `nic`, a GPU's `pci` holds `gpu` with `nvlink` and `c2c`. There
 * are two dialects: dumps, which are complete, and files that clouds ship for their machine types, whose
 * gaps NCCL fills at run time; here the card table and the cards named by the user fill them. Classes and
 * link speeds are matched by prefix as in NCCL. An unknown link speed, which NCCL silently takes for
 * generation 3, stays unknown here until complete.c replaces and notes it. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/import/cards.h"
#include "topo/import/builder.h"
#include "topo/import/machine_file.h"
#include "topo/import/xml.h"

enum { MOST_LINKS = 64 /* of one GPU to one target; NVLink 5 has 18 in total */ };

struct reader {
    const char *name;
    tsr_topo_builder *builder;
    const char *host_hash; /* of the first cpu: the same in all */
    bool asked;            /* a <gpu> exists: NCCL has read its NVLinks from the driver */
};

static tsr_status bad(const struct reader *in, const tsr_xml_element *at, const char *what, const char *value)
{
    return tsr_fail(TSR_ERR_FORMAT, "machine file '%s', line %d: %s '%.60s' of <%.20s> is not valid",
                    in->name, at->line, what, value ? value : "", at->name);
}

/* An integer attribute in [least, most], in C's notation; `missing` if it is absent or empty. */
static tsr_status number(const struct reader *in, const tsr_xml_element *at, const char *attribute, int least,
                         int most, int missing, int *value_out)
{
    const char *text = tsr_xml_attribute_of(at, attribute);
    *value_out = missing;
    if (!text || !*text)
        return TSR_OK;
    char *end;
    long value = strtol(text, &end, 0);
    if (*end || value < least || value > most)
        return bad(in, at, attribute, text);
    *value_out = (int)value;
    return TSR_OK;
}

/* -- cpu -- */

/* "000000ff,ffff0000": 32 processors per word, the highest first. */
static tsr_status read_affinity(const struct reader *in, const tsr_xml_element *cpu, tsr_builder_node *node)
{
    const char *text = tsr_xml_attribute_of(cpu, "affinity");
    int words = text && *text ? 1 : 0;
    for (const char *p = text; p && *p; p++)
        words += *p == ',';
    for (int word = words - 1; word >= 0; word--) {
        char *end;
        unsigned long bits = strtoul(text, &end, 16);
        if (end == text || (*end != ',' && *end) || bits > 0xffffffff || 32 * word >= TSR_DRAFT_MAX_PUS)
            return bad(in, cpu, "affinity", text);
        node->pus[word / 2] |= (uint64_t)bits << (32 * (word % 2));
        text = end + 1;
    }
    return TSR_OK;
}

/* Everything the file has on the processor; links.c uses some of these names. */
static void name_cpu(const tsr_xml_element *cpu, char *model, size_t bytes)
{
    const char *vendor = tsr_xml_attribute_of(cpu, "vendor"), *arch = tsr_xml_attribute_of(cpu, "arch");
    const char *family = tsr_xml_attribute_of(cpu, "familyid"),
               *number_ = tsr_xml_attribute_of(cpu, "modelid");
    snprintf(model, bytes, "%.20s%s%.20s%s%.12s%s%.12s", vendor ? vendor : "", vendor && arch ? " " : "",
             arch ? arch : "", family ? " family " : "", family ? family : "", number_ ? " model " : "",
             number_ ? number_ : "");
}

/* A known node is continued: files repeat numaid. */
static tsr_status read_node(struct reader *in, const tsr_xml_element *cpu, int *node_out)
{
    tsr_status status = TSR_OK;
    tsr_builder_node *node = NULL;
    int numa, i;
    const char *hash = tsr_xml_attribute_of(cpu, "host_hash");
    TSR_TRY(number(in, cpu, "numaid", -1, TSR_DRAFT_MAX_PUS, -1, &numa));
    if (in->builder->n_nodes == 0)
        in->host_hash = hash;
    else if (hash && in->host_hash && strcmp(hash, in->host_hash) != 0) {
        status =
            tsr_fail(TSR_ERR_UNSUPPORTED,
                     "machine file '%s', line %d: a second machine (host_hash '%.24s'); give the file of one "
                     "machine",
                     in->name, cpu->line, hash);
        goto out;
    }
    for (i = 0; i < in->builder->n_nodes; i++)
        if (in->builder->nodes[i].os_index == numa)
            node = &in->builder->nodes[i];
    if (!node) {
        tsr_pci_bridge *host;
        TSR_TRY(tsr_builder_add_node(in->builder, &node));
        TSR_TRY(tsr_builder_add_bridge(in->builder, &host));
        node->os_index = numa;
        host->numa_node = in->builder->n_nodes - 1;
    }
    TSR_TRY(read_affinity(in, cpu, node));
    name_cpu(cpu, node->cpu_model, sizeof node->cpu_model);
    *node_out = (int)(node - in->builder->nodes);
out:
    return status;
}

/* -- pci -- */

/* "16 GT/s", "16.0 GT/s PCIe" (kernels after 5.6): one direction, line code subtracted; 0 if unknown. A
 * width of 0 means 16 in NCCL. */
static tsr_status read_speed(const struct reader *in, const tsr_xml_element *pci, double *bytes_per_s_out)
{
    static const struct {
        const char *prefix;
        int generation;
    } speeds[] = {{"2.5 GT/s", 1},  {"5 GT/s", 2},  {"5.0 GT/s", 2},  {"8 GT/s", 3},
                  {"8.0 GT/s", 3},  {"16 GT/s", 4}, {"16.0 GT/s", 4}, {"32 GT/s", 5},
                  {"32.0 GT/s", 5}, {"64 GT/s", 6}, {"64.0 GT/s", 6}, {"128.0 GT/s", 7}};
    tsr_status status = TSR_OK;
    const char *text = tsr_xml_attribute_of(pci, "link_speed");
    int width;
    *bytes_per_s_out = 0;
    TSR_TRY(number(in, pci, "link_width", 0, 64, 0, &width));
    for (size_t i = 0; text && i < sizeof speeds / sizeof *speeds; i++)
        if (strncmp(text, speeds[i].prefix, strlen(speeds[i].prefix)) == 0)
            *bytes_per_s_out = tsr_pcie_bytes_per_s(speeds[i].generation, width ? width : 16);
    if (text && *text && !(*bytes_per_s_out > 0) && strncasecmp(text, "unknown", 7) != 0)
        tsr_topo_note(in->builder->notes, sizeof in->builder->notes, "unknown link_speed '%.24s'", text);
out:
    return status;
}

/* The end of a link: 0x03.... a GPU, 0x068000 an NVSwitch, 0x068001 a processor. */
static tsr_nvlink_end_kind end_kind(const char *class)
{
    if (class && strncmp(class, "0x03", 4) == 0)
        return TSR_NVLINK_END_GPU;
    if (class && strncmp(class, "0x068000", 8) == 0)
        return TSR_NVLINK_END_SWITCH;
    if (class && strncmp(class, "0x068001", 8) == 0)
        return TSR_NVLINK_END_CPU;
    return TSR_NVLINK_END_UNKNOWN;
}

static tsr_status read_nvlink(struct reader *in, const tsr_xml_element *link, tsr_gpu *gpu)
{
    tsr_status status = TSR_OK;
    const char *target = tsr_xml_attribute_of(link, "target"), *class = tsr_xml_attribute_of(link, "tclass");
    tsr_nvlink_end end = {.kind = end_kind(class), .gpu = -1};
    TSR_TRY(number(in, link, "count", 1, MOST_LINKS, 1, &end.n_links));
    if (end.kind == TSR_NVLINK_END_UNKNOWN && class && *class) {
        status = bad(in, link, "tclass", class);
        goto out;
    }
    /* Dumps made without permission to query the switch have a placeholder as its bus id. */
    if ((!target || !tsr_bus_id_parse(target, end.bus_id)) && end.kind == TSR_NVLINK_END_GPU) {
        status = bad(in, link, "target", target);
        goto out;
    }
    if (gpu->n_nvlink_ends == TSR_MAX_NVLINK_ENDS) {
        status =
            tsr_fail(TSR_ERR_FORMAT, "machine file '%s', line %d: more than %d ends of one GPU's NVLinks",
                     in->name, link->line, TSR_MAX_NVLINK_ENDS);
        goto out;
    }
    gpu->nvlink_ends[gpu->n_nvlink_ends++] = end;
out:
    return status;
}

/* C2C goes to the processor, as POWER9's NVLinks do; `bw` is MB/s of each of `count` links. */
static tsr_status read_c2c(struct reader *in, const tsr_xml_element *link, tsr_gpu *gpu)
{
    tsr_status status = TSR_OK;
    int mb_per_s;
    tsr_nvlink_end end = {.kind = TSR_NVLINK_END_CPU, .gpu = -1};
    TSR_TRY(number(in, link, "count", 1, MOST_LINKS, 1, &end.n_links));
    TSR_TRY(number(in, link, "bw", 0, 10 * 1000 * 1000, 0, &mb_per_s));
    end.bytes_per_s = mb_per_s * 1e6 * end.n_links;
    if (gpu->n_nvlink_ends < TSR_MAX_NVLINK_ENDS)
        gpu->nvlink_ends[gpu->n_nvlink_ends++] = end;
out:
    return status;
}

static tsr_status read_gpu(struct reader *in, const tsr_xml_element *element, const tsr_pci_device *pci)
{
    tsr_status status = TSR_OK;
    tsr_gpu *gpu;
    TSR_TRY(tsr_builder_add_gpu(in->builder, &gpu));
    memcpy(gpu->bus_id, pci->bus_id, sizeof gpu->bus_id);
    gpu->numa_node = pci->numa_node;
    if (element) {
        in->asked = true;
        TSR_TRY(number(in, element, "sm", 0, 999, 0, &gpu->compute_capability));
        TSR_TRY(number(in, element, "dev", 0, 4096, gpu->ordinal, &gpu->ordinal));
    }
    for (const tsr_xml_element *e = element ? element->first_child : NULL; e; e = e->next) {
        if (strcmp(e->name, "nvlink") == 0)
            TSR_TRY(read_nvlink(in, e, gpu));
        else if (strcmp(e->name, "c2c") == 0)
            TSR_TRY(read_c2c(in, e, gpu));
    }
out:
    return status;
}

static const tsr_xml_element *child(const tsr_xml_element *parent, const char *name)
{
    const tsr_xml_element *e = parent->first_child;
    while (e && strcmp(e->name, name) != 0)
        e = e->next;
    return e;
}

static tsr_status read_switch(struct reader *in, const tsr_xml_element *element, int node, int parent,
                              int *out)
{
    tsr_status status = TSR_OK;
    tsr_pci_bridge *bridge;
    const char *bus_id = tsr_xml_attribute_of(element, "busid");
    TSR_TRY(tsr_builder_add_bridge(in->builder, &bridge));
    if (!bus_id || !tsr_bus_id_parse(bus_id, bridge->bus_id)) {
        status = bad(in, element, "busid", bus_id);
        goto out;
    }
    for (int b = parent; b >= 0; b = in->builder->bridges[b].parent)
        if (strcmp(in->builder->bridges[b].bus_id, bridge->bus_id) == 0) {
            status = tsr_fail(TSR_ERR_FORMAT, "machine file '%s', line %d: PCI switch %s is inside itself",
                              in->name, element->line, bridge->bus_id);
            goto out;
        }
    bridge->parent = parent;
    bridge->numa_node = node;
    TSR_TRY(read_speed(in, element, &bridge->link_bytes_per_s));
    *out = in->builder->n_bridges - 1;
out:
    return status;
}

static tsr_status read_device(struct reader *in, const tsr_xml_element *element, int node, int parent,
                              int class_id)
{
    tsr_status status = TSR_OK;
    tsr_pci_device *pci;
    const char *bus_id = tsr_xml_attribute_of(element, "busid");
    const tsr_xml_element *gpu = child(element, "gpu");
    TSR_TRY(tsr_builder_add_pci(in->builder, &pci));
    if (!bus_id || !tsr_bus_id_parse(bus_id, pci->bus_id)) {
        status = bad(in, element, "busid", bus_id);
        goto out;
    }
    for (const tsr_pci_device *other = in->builder->pci; other < pci; other++)
        if (strcmp(other->bus_id, pci->bus_id) == 0) {
            status = tsr_fail(TSR_ERR_FORMAT, "machine file '%s', line %d: PCI device %s is described twice",
                              in->name, element->line, pci->bus_id);
            goto out;
        }
    pci->bridge = parent;
    pci->numa_node = node;
    pci->class_id = class_id >> 8;
    TSR_TRY(number(in, element, "vendor", 0, 0xffff, 0, &pci->vendor_id));
    TSR_TRY(number(in, element, "device", 0, 0xffff, 0, &pci->device_id));
    TSR_TRY(read_speed(in, element, &pci->link_bytes_per_s));
    bool is_nvidias = !pci->vendor_id || pci->vendor_id == 0x10de; /* not a server's console */
    if (gpu || (class_id >> 16 == 0x03 && is_nvidias) || class_id == 0)
        TSR_TRY(read_gpu(in, gpu, pci));
    if (!gpu && class_id == 0)
        tsr_topo_note(in->builder->notes, sizeof in->builder->notes,
                      "PCI devices without a class may be GPUs: name the GPUs by number or bus id");
out:
    return status;
}

/* The depth of recursion is that of the tree, which xml.c bounds. */
static tsr_status read_pci(struct reader *in, const tsr_xml_element *parent, int node, int bridge)
{
    tsr_status status = TSR_OK;
    for (const tsr_xml_element *e = parent->first_child; e; e = e->next) {
        int class_id, below;
        if (strcmp(e->name, "pci") != 0)
            continue;
        TSR_TRY(number(in, e, "class", 0, 0xffffff, 0, &class_id));
        const char *text = tsr_xml_attribute_of(e, "class");
        if (text && strcmp(text, "0x03") == 0)
            class_id = 0x030000; /* NCCL's value where sysfs has no class */
        if (class_id >> 8 == 0x0604 || class_id == 0x080100 || child(e, "pci")) {
            TSR_TRY(read_switch(in, e, node, bridge, &below));
            TSR_TRY(read_pci(in, e, node, below));
        } else {
            TSR_TRY(read_device(in, e, node, bridge, class_id));
        }
    }
out:
    return status;
}

/* Sort by `dev`, the number in NVML and CUDA; files list GPUs in the order of the PCI tree. */
static void sort_gpus(tsr_topo_builder *builder)
{
    for (int i = 1; i < builder->n_gpus; i++) {
        tsr_gpu gpu = builder->gpus[i];
        int at = i;
        for (; at > 0 && builder->gpus[at - 1].ordinal > gpu.ordinal; at--)
            builder->gpus[at] = builder->gpus[at - 1];
        builder->gpus[at] = gpu;
    }
    for (int i = 0; i < builder->n_gpus; i++)
        builder->gpus[i].ordinal = i;
}

/* -- the document -- */

/* A dump has the GPUs that its program used, and their links to all others. NCCL would look up a missing
 * tclass on the machine; here such ends are GPUs if a GPU has the bus id. */
static tsr_status resolve_target(struct reader *in, const tsr_gpu *gpu, tsr_nvlink_end *end)
{
    if (end->kind != TSR_NVLINK_END_GPU && end->kind != TSR_NVLINK_END_UNKNOWN)
        return TSR_OK;
    for (int i = 0; *end->bus_id && i < in->builder->n_gpus; i++)
        if (strcmp(in->builder->gpus[i].bus_id, end->bus_id) == 0)
            end->gpu = i;
    if (end->gpu >= 0 && &in->builder->gpus[end->gpu] == gpu)
        return tsr_fail(TSR_ERR_FORMAT, "machine file '%s': an NVLink of GPU %s leads to itself", in->name,
                        gpu->bus_id);
    if (end->gpu >= 0)
        end->kind = TSR_NVLINK_END_GPU;
    else
        tsr_topo_note(in->builder->notes, sizeof in->builder->notes,
                      "NVLinks that lead to no GPU of the file are ignored");
    return TSR_OK;
}

static tsr_status resolve_targets(struct reader *in)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < in->builder->n_gpus; i++) {
        tsr_gpu *gpu = &in->builder->gpus[i];
        for (int e = 0; e < gpu->n_nvlink_ends; e++)
            TSR_TRY(resolve_target(in, gpu, &gpu->nvlink_ends[e]));
    }
out:
    return status;
}

static tsr_status read_system(struct reader *in, const tsr_xml_element *system)
{
    tsr_status status = TSR_OK;
    int version;
    if (strcmp(system->name, "system") != 0)
        return tsr_fail(TSR_ERR_FORMAT, "machine file '%s' begins with element '%.40s' instead of 'system'",
                        in->name, system->name);
    TSR_TRY(number(in, system, "version", 0, INT_MAX, 1, &version));
    if (version > 1) {
        status = tsr_fail(TSR_ERR_UNSUPPORTED,
                          "machine file '%s' is NCCL topology version %d; version 1 is supported", in->name,
                          version);
        goto out;
    }
    for (const tsr_xml_element *e = system->first_child; e; e = e->next) {
        int node;
        if (strcmp(e->name, "cpu") != 0)
            continue;
        TSR_TRY(read_node(in, e, &node));
        int host = 0;
        while (in->builder->bridges[host].parent >= 0 || in->builder->bridges[host].numa_node != node)
            host++;
        TSR_TRY(read_pci(in, e, node, host));
    }
    if (in->builder->n_nodes == 0) {
        status = tsr_fail(TSR_ERR_FORMAT,
                          "machine file '%s' describes no cpu; dump it again with "
                          "NCCL_TOPO_DUMP_FILE",
                          in->name);
        goto out;
    }
    sort_gpus(in->builder);
    TSR_TRY(resolve_targets(in));
out:
    return status;
}

tsr_status tsr_topo_read_nccl_xml(const char *text, size_t bytes, const char *name, tsr_topology **topo_out)
{
    tsr_status status = TSR_OK;
    tsr_xml *xml = NULL;
    struct reader in = {.name = name};
    TSR_TRY(tsr_builder_create(name, &in.builder));
    TSR_TRY(tsr_xml_parse(text, bytes, name, &xml));
    TSR_TRY(read_system(&in, tsr_xml_root(xml)));
    for (int i = 0; i < in.builder->n_nodes; i++)
        in.builder->nodes[i].own_package = *in.builder->nodes[i].cpu_model != '\0';
    TSR_TRY(tsr_topo_build(in.builder, topo_out));
    for (int a = 0; in.asked && a < (*topo_out)->n_gpus; a++)
        for (int b = 0; b < (*topo_out)->n_gpus; b++)
            if (a != b)
                (*topo_out)->gpu_pairs[a][b].path = tsr_topo_path_between(*topo_out, a, b);
out:
    tsr_xml_free(xml);
    tsr_builder_free(in.builder);
    return status;
}
