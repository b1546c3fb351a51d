/* A topology as NCCL's XML, version 1; nccl_xml.c reads it back. NCCL reads missing facts from the
 * machine, but requires a busid, class, link speed and width of every pci, and arch, vendor and affinity
 * of a cpu. Host bridges are not elements of the format: devices below one are written below its cpu. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "topo/import/cards.h"
#include "topo/topo.h"

struct writer {
    const tsr_topology *topo;
    tsr_write_fn write;
    void *user;
};

static void TSR_PRINTF(3, 4) put(const struct writer *w, int depth, const char *format, ...)
{
    char text[1536]; /* the longest line is a cpu with 4096 processors in its affinity: 1152 bytes and its
                      * names */
    int indent = depth * 2 < 64 ? depth * 2 : 64;
    memset(text, ' ', (size_t)indent);
    va_list args;
    va_start(args, format);
    vsnprintf(text + indent, sizeof text - (size_t)indent, format, args);
    va_end(args);
    w->write(text, w->user);
}

/* The nearest generation and width of a rate; in the spelling of Linux since 5.7, as NCCL expects. */
static const char *speed_text(double bytes_per_s, int *width_out)
{
    static const char *const names[] = {"2.5 GT/s PCIe",  "5.0 GT/s PCIe",  "8.0 GT/s PCIe",
                                        "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe"};
    double best = INFINITY;
    int generation = 0;
    *width_out = 0;
    for (int width = 16; width >= 1 && bytes_per_s > 0; width /= 2) /* of equal speeds, more lanes are
                                                                     * tried first */
        for (int g = 1; g <= 6; g++) {
            double error = fabs(tsr_pcie_bytes_per_s(g, width) / bytes_per_s - 1);
            if (error < best - 0.01) {
                best = error;
                generation = g;
                *width_out = width;
            }
        }
    return generation ? names[generation - 1] : "";
}

/* Whether a written device (a GPU or a network card) is below a bridge. */
static bool is_written(const tsr_pci_device *pci)
{
    return pci->class_id >> 8 == 0x03 || pci->class_id >> 8 == 0x02;
}

static bool has_written_below(const tsr_topology *topo, int bridge)
{
    for (int i = 0; i < topo->n_pci; i++)
        if (is_written(&topo->pci[i]))
            for (int b = topo->pci[i].bridge; b >= 0; b = topo->bridges[b].parent)
                if (b == bridge)
                    return true;
    return false;
}

static int gpu_at(const tsr_topology *topo, const char *bus_id)
{
    for (int g = 0; g < topo->n_gpus; g++)
        if (strcmp(topo->gpus[g].bus_id, bus_id) == 0)
            return g;
    return -1;
}

static void put_nvlinks(const struct writer *w, int depth, const tsr_gpu *gpu)
{
    for (int e = 0; e < gpu->n_nvlink_ends; e++) {
        const tsr_nvlink_end *end = &gpu->nvlink_ends[e];
        if (end->kind == TSR_NVLINK_END_GPU && end->gpu >= 0)
            put(w, depth, "<nvlink target=\"%s\" count=\"%d\" tclass=\"0x030200\"/>\n",
                w->topo->gpus[end->gpu].bus_id, end->n_links);
        else if (end->kind == TSR_NVLINK_END_SWITCH)
            put(w, depth, "<nvlink target=\"%s\" count=\"%d\" tclass=\"0x068000\"/>\n",
                *end->bus_id ? end->bus_id : "fffffff:ffff:ff", end->n_links);
        else if (end->kind == TSR_NVLINK_END_CPU && end->n_links > 0)
            put(w, depth, "<c2c count=\"%d\" bw=\"%.0f\"/>\n", end->n_links,
                end->bytes_per_s / 1e6 / end->n_links);
    }
}

static void put_device(const struct writer *w, int depth, const tsr_pci_device *pci)
{
    int width, g = gpu_at(w->topo, pci->bus_id);
    const char *speed =
        speed_text(g >= 0 ? w->topo->gpus[g].pcie_bytes_per_s : pci->link_bytes_per_s, &width);
    put(w, depth,
        "<pci busid=\"%s\" class=\"0x%04x00\" vendor=\"0x%04x\" device=\"0x%04x\" "
        "subsystem_vendor=\"0x0000\" "
        "subsystem_device=\"0x0000\" link_speed=\"%s\" link_width=\"%d\"",
        pci->bus_id, (unsigned)pci->class_id, (unsigned)pci->vendor_id, (unsigned)pci->device_id, speed,
        width);
    if (g < 0) {
        put(w, 0, "/>\n");
        return;
    }
    const tsr_gpu *gpu = &w->topo->gpus[g];
    put(w, 0, ">\n");
    put(w, depth + 1, "<gpu dev=\"%d\" sm=\"%d\" rank=\"%d\" gdr=\"0\"%s>\n", g, gpu->compute_capability, g,
        gpu->n_nvlink_ends ? "" : "/");
    if (gpu->n_nvlink_ends) {
        put_nvlinks(w, depth + 2, gpu);
        put(w, depth + 1, "</gpu>\n");
    }
    put(w, depth, "</pci>\n");
}

/* Write the devices directly below `bridge`; -1: below node `node` itself. Host bridges are skipped. */
static void put_below(const struct writer *w, int depth, int bridge, int node)
{
    const tsr_topology *topo = w->topo;
    for (int i = 0; i < topo->n_pci; i++)
        if (is_written(&topo->pci[i]) && topo->pci[i].bridge == bridge &&
            (bridge >= 0 || topo->pci[i].numa_node == node))
            put_device(w, depth, &topo->pci[i]);
    for (int b = 0; b < topo->n_bridges; b++) {
        const tsr_pci_bridge *below = &topo->bridges[b];
        int width;
        if (below->parent != bridge || (bridge < 0 && below->numa_node != node) ||
            !has_written_below(topo, b))
            continue;
        if (below->parent < 0 || !*below->bus_id) {
            put_below(w, depth, b, node);
            continue;
        }
        const char *speed = speed_text(below->link_bytes_per_s, &width);
        put(w, depth, "<pci busid=\"%s\" class=\"0x060400\" link_speed=\"%s\" link_width=\"%d\">\n",
            below->bus_id, speed, width);
        put_below(w, depth + 1, b, node);
        put(w, depth, "</pci>\n");
    }
}

/* "ffffffff,0000ffff": the node's processors, 32 per word, the highest first. */
static void affinity_text(const tsr_topology *topo, int node, char *text, size_t bytes)
{
    enum { WORDS = 4096 / 32 };
    uint32_t words[WORDS] = {0};
    int last = 0;
    size_t used = 0;
    for (int i = 0; i < topo->n_pus; i++) {
        int core = topo->pus[i].core, os = topo->pus[i].os_index;
        bool is_near =
            node < 0 || (core >= topo->numa_nodes[node].first_core &&
                         core < topo->numa_nodes[node].first_core + topo->numa_nodes[node].n_cores);
        if (is_near && os >= 0 && os / 32 < WORDS) {
            words[os / 32] |= UINT32_C(1) << (os % 32);
            last = os / 32 > last ? os / 32 : last;
        }
    }
    for (int i = last; i >= 0 && used < bytes; i--)
        used += (size_t)snprintf(text + used, bytes - used, "%08x%s", words[i], i ? "," : "");
}

static void put_cpu(const struct writer *w, int node)
{
    char affinity[1200];
    const tsr_topology *topo = w->topo;
    int first = node >= 0 ? topo->numa_nodes[node].first_core : 0;
    int package = topo->n_cores ? topo->cores[first].package : -1;
    const char *model = package >= 0 ? topo->packages[package].cpu_model : "";
    const char *vendor = strstr(model, "AMD") ? "AuthenticAMD" : "GenuineIntel";
    const char *arch = strstr(model, "POWER") ? "ppc64"
                       : strstr(model, "arm64") || strstr(model, "Grace") || strstr(model, "Neoverse")
                           ? "arm64"
                           : "x86_64";
    int family = 6, number = 85;
    const char *at = strstr(model, " family ");
    if (!at || sscanf(at, " family %d model %d", &family, &number) != 2)
        family = strcmp(vendor, "AuthenticAMD") == 0 ? 23 : 6, number = 85;
    affinity_text(topo, node, affinity, sizeof affinity);
    put(w, 1,
        "<cpu numaid=\"%d\" affinity=\"%s\" arch=\"%s\" vendor=\"%s\" familyid=\"%d\" modelid=\"%d\">\n",
        node >= 0 ? topo->numa_nodes[node].os_index : -1, affinity, arch, vendor, family, number);
    put_below(w, 2, -1, node);
    put(w, 1, "</cpu>\n");
}

tsr_status tsr_topology_write_nccl_xml(const tsr_topology *topo, tsr_write_fn write, void *user)
{
    struct writer w = {.topo = topo, .write = write, .user = user};
    bool unplaced = false;
    if (topo->n_gpus == 0)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "'%s' has no GPU; an NCCL topology needs at least one",
                        topo->source);
    if (topo->n_machines > 1)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "'%s' has %d machines, and an NCCL topology has one; describe the nodes one by one",
                        topo->source, topo->n_machines);
    put(&w, 0, "<system version=\"1\">\n");
    for (int node = 0; node < topo->n_numa_nodes; node++)
        if (topo->numa_nodes[node].n_cores > 0)
            put_cpu(&w, node);
    for (int i = 0; i < topo->n_pci; i++)
        unplaced = unplaced || (is_written(&topo->pci[i]) && topo->pci[i].numa_node < 0);
    if (unplaced)
        put_cpu(&w, -1);
    put(&w, 0, "</system>\n");
    return TSR_OK;
}
