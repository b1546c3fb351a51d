/* GPUs as text: two lines each, at their place in the machine, and a matrix of their links in the words of
 * `nvidia-smi topo -m`, in parts if there are many GPUs. Unknown facts are omitted; values from the table of
 * cards have a "~". */
#include <stdio.h>
#include <string.h>

#include <tsr/bytes.h>
#include <tsr/memory.h>

#include "core/mem.h"
#include "topo/import/gpus.h"
#include "topo/print.h"
#include "topo/topo.h"

#define put tsr_topo_put

enum { LIST_BYTES = 128, MOST_COLUMNS = 10 /* of the matrix, in lines of 80 columns */ };

/* "450 GB/s", "4.92 TB/s". */
const char *tsr_topo_speed_text(double bytes_per_s, char text[32])
{
    if (bytes_per_s >= 0.9995e12)
        snprintf(text, 32, "%.2f TB/s", bytes_per_s / 1e12);
    else
        snprintf(text, 32, "%.*f GB/s", bytes_per_s < 99.5e9 ? 1 : 0, bytes_per_s / 1e9);
    return text;
}

static const char *mark(const tsr_gpu *gpu, tsr_gpu_fact fact)
{
    return gpu->guessed & (unsigned)fact ? "~" : "";
}

/* -- a GPU -- */

/* Its arithmetic and its memory. */
static void put_rates(tsr_topo_printer *p, int depth, const tsr_gpu *gpu)
{
    char text[TSR_BYTES_TEXT], speed[32];
    put(p, depth, "GPU %d %s", gpu->ordinal, *gpu->name ? gpu->name : "of unknown model");
    if (gpu->memory_bytes)
        put(p, 0, ", %s%s", mark(gpu, TSR_GPU_MEMORY), tsr_bytes_text(gpu->memory_bytes, text));
    if (gpu->memory_bytes_per_s > 0)
        put(p, 0, " at %s%s", mark(gpu, TSR_GPU_BANDWIDTH),
            tsr_topo_speed_text(gpu->memory_bytes_per_s, speed));
    if (gpu->memory_free_bytes)
        put(p, 0, " (%s free)", tsr_bytes_text(gpu->memory_free_bytes, text));
    if (gpu->integrated)
        put(p, 0, " shared with the host");
    if (gpu->n_sms)
        put(p, 0, ", %s%d SMs", mark(gpu, TSR_GPU_COMPUTE), gpu->n_sms);
    if (gpu->n_sms && gpu->sm_clock_khz)
        put(p, 0, " at %.2f GHz", gpu->sm_clock_khz / 1e6);
    if (gpu->compute_capability)
        put(p, 0, ", sm_%d", gpu->compute_capability);
    if (gpu->power_limit_mw)
        put(p, 0, ", %d W", gpu->power_limit_mw / 1000);
    put(p, 0, "\n");
}

static void put_pcie(tsr_topo_printer *p, const tsr_gpu *gpu)
{
    const tsr_pcie_link *now = &gpu->pcie, *most = &gpu->pcie_max;
    char speed[32];
    if (gpu->pcie_bytes_per_s > 0 && most->generation)
        put(p, 0, ", PCIe %d x%d %s%s", most->generation, now->width ? now->width : most->width,
            mark(gpu, TSR_GPU_PCIE), tsr_topo_speed_text(gpu->pcie_bytes_per_s, speed));
    else if (gpu->pcie_bytes_per_s > 0)
        put(p, 0, ", PCIe %s%s", mark(gpu, TSR_GPU_PCIE), tsr_topo_speed_text(gpu->pcie_bytes_per_s, speed));
    else if (now->generation)
        put(p, 0, ", PCIe of unknown speed (now %d x%d, perhaps idle)", now->generation, now->width);
    if (gpu->pcie_bytes_per_s > 0 && now->generation && now->generation != most->generation)
        put(p, 0, " (idle at PCIe %d)", now->generation);
}

static void put_link_count(tsr_topo_printer *p, const tsr_gpu *gpu, int n_links, double bytes_per_s)
{
    char speed[32];
    put(p, 0, ", %d NVLink%s", n_links, tsr_plural(n_links));
    if (bytes_per_s > 0)
        put(p, 0, " %s%s", mark(gpu, TSR_GPU_NVLINK), tsr_topo_speed_text(bytes_per_s, speed));
}

static bool leads_to_gpu(const tsr_nvlink_end *end)
{
    return end->kind == TSR_NVLINK_END_GPU && end->gpu >= 0;
}

/* All links to switches, a processor or an unknown end: each kind in one piece. */
static void put_other_links(tsr_topo_printer *p, const tsr_gpu *gpu)
{
    static const char *const places[] = {"somewhere", "GPUs not listed", "NVSwitches", "the processor"};
    for (int kind = TSR_NVLINK_END_UNKNOWN; kind <= TSR_NVLINK_END_CPU; kind++) {
        int n = 0;
        double speed = 0;
        for (int i = 0; i < gpu->n_nvlink_ends; i++) {
            const tsr_nvlink_end *end = &gpu->nvlink_ends[i];
            if ((int)end->kind != kind || leads_to_gpu(end))
                continue;
            n += end->n_links;
            speed += end->bytes_per_s;
        }
        if (n > 0) {
            put_link_count(p, gpu, n, speed);
            put(p, 0, " to %s", places[kind]);
        }
    }
}

/* The links to GPUs; equal neighbours in the list share a piece: "4 NVLinks 100 GB/s to each of GPUs
 * 1-3". */
static void put_gpu_links(tsr_topo_printer *p, const tsr_gpu *gpu)
{
    for (int i = 0, next; i < gpu->n_nvlink_ends; i = next) {
        const tsr_nvlink_end *end = &gpu->nvlink_ends[i];
        for (next = i + 1; next < gpu->n_nvlink_ends; next++) {
            const tsr_nvlink_end *other = &gpu->nvlink_ends[next];
            if (!leads_to_gpu(other) || other->n_links != end->n_links ||
                other->bytes_per_s != end->bytes_per_s)
                break;
        }
        if (!leads_to_gpu(end)) {
            next = i + 1;
            continue;
        }
        put_link_count(p, gpu, end->n_links, end->bytes_per_s);
        int others[TSR_MAX_NVLINK_ENDS], n = next - i;
        char list[LIST_BYTES];
        for (int j = 0, at; j < n; j++) { /* sorted; drivers list links in any order */
            int ordinal = p->topo->gpus[gpu->nvlink_ends[i + j].gpu].ordinal;
            for (at = j; at > 0 && others[at - 1] > ordinal; at--)
                others[at] = others[at - 1];
            others[at] = ordinal;
        }
        tsr_topo_format_list(others, n, list, sizeof list);
        put(p, 0, n > 1 ? " to each of GPUs %s" : " to GPU %s", list);
    }
}

/* Its bus id and its PCIe link. */
static void put_place(tsr_topo_printer *p, int depth, const tsr_gpu *gpu)
{
    put(p, depth + 1, "PCI %s", *gpu->bus_id ? gpu->bus_id : "at an unknown address");
    put_pcie(p, gpu);
    put_other_links(p, gpu);
    put_gpu_links(p, gpu);
    put(p, 0, "\n");
}

void tsr_topo_put_gpus_at(tsr_topo_printer *p, int depth, int numa_node)
{
    for (int i = 0; i < p->topo->n_gpus; i++) {
        const tsr_gpu *gpu = &p->topo->gpus[i];
        if (p->gpu_printed[i] || (numa_node >= 0 && gpu->numa_node != numa_node))
            continue;
        put_rates(p, depth, gpu);
        put_place(p, depth, gpu);
        p->gpu_printed[i] = true;
    }
}

/* -- all GPUs -- */

void tsr_topo_put_gpu_summary(tsr_topo_printer *p)
{
    const tsr_topology *topo = p->topo;
    int version = topo->cuda_driver_version;
    if (topo->n_gpus > 0) {
        put(p, 1, "%d GPU%s", topo->n_gpus, tsr_plural(topo->n_gpus));
        if (*topo->driver_version)
            put(p, 0, ", driver %s", topo->driver_version);
        if (version)
            put(p, 0, "%s CUDA %d.%d", *topo->driver_version ? " with" : ", driver for", version / 1000,
                version % 1000 / 10);
        put(p, 0, "\n");
    }
    if (*topo->gpu_note)
        put(p, 1, "%s: %s\n",
            topo->n_gpus == 0       ? "no GPU is usable"
            : topo->is_this_machine ? "left out"
                                    : "unknown",
            topo->gpu_note);
}

static bool has_path(const tsr_topology *topo, tsr_gpu_path path)
{
    for (int a = 0; a < topo->n_gpus; a++)
        for (int b = 0; b < topo->n_gpus; b++)
            if (a != b && topo->gpu_pairs[a][b].n_nvlinks == 0 && topo->gpu_pairs[a][b].path == path)
                return true;
    return false;
}

static void put_legend(tsr_topo_printer *p, bool no_peer)
{
    static const char *const meanings[] = {"unknown",
                                           "one card",
                                           "one board",
                                           "one PCIe switch",
                                           "several PCIe switches",
                                           "one host bridge",
                                           "host bridges of one NUMA node",
                                           "between NUMA nodes",
                                           "between machines"};
    char speed[32];
    uint64_t shown = 0;
    for (int a = 0; a < p->topo->n_gpus; a++) {
        for (int b = 0; b < a; b++) {
            const tsr_gpu_pair *pair = &p->topo->gpu_pairs[a][b];
            if (pair->n_nvlinks <= 0 || pair->n_nvlinks > 63 || shown >> pair->n_nvlinks & 1)
                continue;
            put(p, shown ? 0 : 1, "%sNV%d: %d NVLink%s", shown ? ", " : "", pair->n_nvlinks, pair->n_nvlinks,
                tsr_plural(pair->n_nvlinks));
            if (pair->nvlink_bytes_per_s > 0)
                put(p, 0, " %s one way", tsr_topo_speed_text(pair->nvlink_bytes_per_s, speed));
            shown |= UINT64_C(1) << pair->n_nvlinks;
        }
    }
    for (int path = 0; path <= TSR_GPU_PATH_NET; path++) {
        if (!has_path(p->topo, (tsr_gpu_path)path))
            continue;
        put(p, shown ? 0 : 1, "%s%s: %s", shown ? ", " : "", tsr_gpu_path_name((tsr_gpu_path)path),
            meanings[path]);
        shown = 1;
    }
    if (no_peer)
        put(p, 0, ", !: no peer access");
    put(p, 0, "\n");
}

/* "GPU0"; of several machines "GPU0@1", as devices are named. */
static const char *gpu_name(const tsr_topology *topo, int gpu, char name[20])
{
    if (topo->n_machines > 1)
        snprintf(name, 20, "GPU%d@%d", topo->gpus[gpu].ordinal, tsr_topo_machine_of_gpu(topo, gpu));
    else
        snprintf(name, 20, "GPU%d", topo->gpus[gpu].ordinal);
    return name;
}

/* Rows for all GPUs, columns for GPUs [first, end). */
static bool put_columns(tsr_topo_printer *p, int first, int end)
{
    const tsr_topology *topo = p->topo;
    const int width = topo->n_machines > 1 ? 7 : 5;
    bool no_peer = false;
    char word[16], cell[20];
    put(p, 1, "%*s", width, "");
    for (int b = first; b < end; b++)
        put(p, 0, " %6s", gpu_name(topo, b, cell));
    put(p, 0, "\n");
    for (int a = 0; a < topo->n_gpus; a++) {
        put(p, 1, "%-*s", width, gpu_name(topo, a, cell));
        for (int b = first; b < end; b++) {
            const tsr_gpu_pair *pair = &topo->gpu_pairs[a][b];
            bool none = pair->peer_access == TSR_NO && pair->path != TSR_GPU_PATH_NET;
            snprintf(cell, sizeof cell, "%s%s", tsr_topo_gpu_pair_word(topo, a, b, word), none ? "!" : "");
            put(p, 0, " %6s", cell);
            no_peer = no_peer || none;
        }
        put(p, 0, "\n");
    }
    return no_peer;
}

void tsr_topo_put_gpu_pairs(tsr_topo_printer *p)
{
    const int n = p->topo->n_gpus, n_parts = (n + MOST_COLUMNS - 1) / MOST_COLUMNS;
    bool no_peer = false;
    if (n < 2)
        return;
    for (int part = 0; part < n_parts; part++)
        no_peer = put_columns(p, n * part / n_parts, n * (part + 1) / n_parts) || no_peer;
    put_legend(p, no_peer);
}
