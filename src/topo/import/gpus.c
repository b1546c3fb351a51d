/* Links between GPUs, and their places in the machine's tree; see gpus.h.
 *
 * /sys shows a PCI device as a link to its place below the root complex; every bridge on the way is a
 * folder: /sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0. The common part of two such paths gives the
 * path between two GPUs. */
#include "topo/import/gpus.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/import/cards.h"
#include "topo/topo.h"

enum { PATH_BYTES = 1024, LINE_BYTES = 192 };

/* -- NVLinks -- */

static int gpu_at(const tsr_topology *topo, const char *bus_id)
{
    for (int i = 0; *bus_id && i < topo->n_gpus; i++)
        if (strcmp(topo->gpus[i].bus_id, bus_id) == 0 && !topo->gpus[i].is_mig)
            return i;
    return -1;
}

static void sum_links(const tsr_gpu *gpu, tsr_nvlink_end_kind kind, int to, int *n_out, double *speed_out)
{
    bool known = true;
    *n_out = 0;
    *speed_out = 0;
    for (int i = 0; i < gpu->n_nvlink_ends; i++) {
        const tsr_nvlink_end *end = &gpu->nvlink_ends[i];
        if (end->kind != kind || (kind == TSR_NVLINK_END_GPU && end->gpu != to))
            continue;
        *n_out += end->n_links;
        *speed_out += end->bytes_per_s;
        known = known && end->bytes_per_s > 0;
    }
    if (!known)
        *speed_out = 0;
}

static void link_pair(const tsr_topology *topo, int a, int b, tsr_gpu_pair *pair)
{
    int n, n_back;
    double speed, speed_back;
    sum_links(&topo->gpus[a], TSR_NVLINK_END_GPU, b, &n, &speed);
    if (n == 0 && tsr_topo_machine_of_gpu(topo, a) == tsr_topo_machine_of_gpu(topo, b)) {
        sum_links(&topo->gpus[a], TSR_NVLINK_END_SWITCH, -1, &n, &speed);
        sum_links(&topo->gpus[b], TSR_NVLINK_END_SWITCH, -1, &n_back, &speed_back);
        n = TSR_MIN(n, n_back);
        speed = TSR_MIN(speed, speed_back);
    }
    pair->n_nvlinks = n;
    pair->nvlink_bytes_per_s = n > 0 ? speed : 0;
}

void tsr_topo_gpus_link(tsr_topology *topo)
{
    for (int g = 0; g < topo->n_gpus; g++) {
        for (int i = 0; i < topo->gpus[g].n_nvlink_ends; i++) {
            tsr_nvlink_end *end = &topo->gpus[g].nvlink_ends[i];
            if (end->kind != TSR_NVLINK_END_GPU && end->kind != TSR_NVLINK_END_UNKNOWN)
                continue;
            end->gpu = gpu_at(topo, end->bus_id);
            if (end->gpu >= 0)
                end->kind = TSR_NVLINK_END_GPU;
        }
    }
    for (int a = 0; a < topo->n_gpus; a++)
        for (int b = 0; b < topo->n_gpus; b++)
            if (a != b)
                link_pair(topo, a, b, &topo->gpu_pairs[a][b]);
}

/* -- sysfs -- */

/* The first line of a small file; false if there is none. */
static bool read_line(const char *folder, const char *name, char line[LINE_BYTES])
{
    char path[PATH_BYTES];
    int used = snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = used > 0 && (size_t)used < sizeof path ? fopen(path, "re") : NULL;
    if (!file)
        return false;
    bool got = fgets(line, LINE_BYTES, file) != NULL;
    fclose(file);
    return got;
}

/* A whole number at the start of a file, `otherwise` if there is none. */
static int read_int(const char *folder, const char *name, int otherwise)
{
    char line[LINE_BYTES], *end;
    if (!read_line(folder, name, line))
        return otherwise;
    errno = 0;
    long value = strtol(line, &end, 10);
    return end == line || errno || value < -1 || value > 1 << 16 ? otherwise : (int)value;
}

/* "16.0 GT/s PCIe" -> 4; 0 for an unknown speed ("Unknown"). */
static int read_generation(const char *folder, const char *name)
{
    static const double gts[] = {2.5, 5, 8, 16, 32, 64, 128};
    char line[LINE_BYTES];
    double speed = read_line(folder, name, line) ? strtod(line, NULL) : 0;
    for (int i = 0; i < (int)(sizeof gts / sizeof *gts); i++)
        if (speed == gts[i])
            return i + 1;
    return 0;
}

/* The smaller of the known numbers. */
static int lesser(int a, int b)
{
    return a == 0 ? b : b == 0 ? a : TSR_MIN(a, b);
}

static int read_width(const char *folder, const char *name)
{
    int width = read_int(folder, name, 0);
    return width >= 1 && width <= 32 ? width : 0;
}

/* The current speed of the link may be that of an idle GPU; the maximum is the lesser of the card's and
 * the slot's, which is the bridge above. */
static void read_pcie(const char *folder, tsr_gpu *gpu)
{
    char above[PATH_BYTES];
    snprintf(above, sizeof above, "%s", folder);
    char *slash = strrchr(above, '/');
    if (slash)
        *slash = '\0';
    if (gpu->pcie.generation == 0)
        gpu->pcie.generation = read_generation(folder, "current_link_speed");
    if (gpu->pcie.width == 0)
        gpu->pcie.width = read_width(folder, "current_link_width");
    if (gpu->pcie_max.generation == 0)
        gpu->pcie_max.generation = lesser(read_generation(folder, "max_link_speed"),
                                          slash ? read_generation(above, "max_link_speed") : 0);
    if (gpu->pcie_max.width == 0)
        gpu->pcie_max.width =
            lesser(read_width(folder, "max_link_width"), slash ? read_width(above, "max_link_width") : 0);
}

/* -- places -- */

static int node_with_os_index(const tsr_topology *topo, int os_index)
{
    for (int i = 0; i < topo->n_numa_nodes; i++)
        if (os_index >= 0 && topo->numa_nodes[i].os_index == os_index)
            return i;
    return -1;
}

static int depth_of(const char *path, size_t length)
{
    int depth = 0;
    for (size_t i = 0; i < length; i++)
        depth += path[i] == '/';
    return depth;
}

/* A switch is a bridge with further bridges right below it, so two devices are below one switch if at most
 * one bridge of its own is between each device and the lowest common bridge. */
tsr_gpu_path tsr_topo_gpu_path(int common, int below_a, int below_b, int node_a, int node_b)
{
    if (common > 1)
        return below_a <= 1 && below_b <= 1 ? TSR_GPU_PATH_PIX : TSR_GPU_PATH_PXB;
    if (common == 1)
        return TSR_GPU_PATH_PHB;
    if (node_a < 0 || node_b < 0)
        return TSR_GPU_PATH_UNKNOWN;
    return node_a == node_b ? TSR_GPU_PATH_NODE : TSR_GPU_PATH_SYS;
}

/* The path between two folders below /sys/devices: each piece from "/pci0000:16" on is a bridge, the last
 * one the device. */
static tsr_gpu_path path_between(const char *a, const char *b, int node_a, int node_b)
{
    const char *complex_a = strstr(a, "/pci"), *complex_b = strstr(b, "/pci");
    size_t same = 0, last = 0;
    if (!complex_a || !complex_b)
        return TSR_GPU_PATH_UNKNOWN;
    if (strcmp(a, b) == 0)
        return TSR_GPU_PATH_SAME;
    for (; complex_a[same] && complex_a[same] == complex_b[same]; same++)
        if (complex_a[same] == '/')
            last = same;
    int common = last == 0 ? 0 : depth_of(complex_a, last);
    return tsr_topo_gpu_path(common, depth_of(complex_a + last, strlen(complex_a + last)) - 1,
                             depth_of(complex_b + last, strlen(complex_b + last)) - 1, node_a, node_b);
}

static void locate_pairs(tsr_topology *topo, char (*folders)[PATH_BYTES])
{
    for (int a = 0; a < topo->n_gpus; a++) {
        for (int b = 0; b < topo->n_gpus; b++) {
            tsr_gpu_path *path = &topo->gpu_pairs[a][b].path;
            if (a == b)
                *path = TSR_GPU_PATH_SAME;
            else if (*path == TSR_GPU_PATH_UNKNOWN)
                *path =
                    path_between(folders[a], folders[b], topo->gpus[a].numa_node, topo->gpus[b].numa_node);
        }
    }
}

/* "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build ...": the first word
 * that begins like a version. */
static void read_driver_version(tsr_topology *topo, const char *root)
{
    char folder[PATH_BYTES], line[LINE_BYTES];
    int used = snprintf(folder, sizeof folder, "%s/proc/driver/nvidia", root);
    if (*topo->driver_version || used < 0 || (size_t)used >= sizeof folder ||
        !read_line(folder, "version", line))
        return;
    for (const char *word = line; (word = strchr(word, ' ')) != NULL; word++) {
        size_t length = strspn(word + 1, "0123456789.");
        if (length >= 5 && strchr(" \n", word[1 + length]) && length < sizeof topo->driver_version) {
            snprintf(topo->driver_version, sizeof topo->driver_version, "%.*s", (int)length, word + 1);
            return;
        }
    }
}

void tsr_topo_gpus_locate(tsr_topology *topo, const char *root)
{
    char folders[TSR_MAX_GPUS][PATH_BYTES];
    for (int g = 0; g < topo->n_gpus; g++) {
        tsr_gpu *gpu = &topo->gpus[g];
        char link[PATH_BYTES], real[PATH_MAX];
        folders[g][0] = '\0';
        snprintf(link, sizeof link, "%s/sys/bus/pci/devices/%s", root, gpu->bus_id);
        if (*gpu->bus_id && realpath(link, real) && strlen(real) < PATH_BYTES) {
            memcpy(folders[g], real, strlen(real) + 1);
            read_pcie(folders[g], gpu);
        }
        for (int i = 0; i < topo->n_pci; i++)
            if (gpu->numa_node < 0 && strcmp(topo->pci[i].bus_id, gpu->bus_id) == 0)
                gpu->numa_node = topo->pci[i].numa_node;
        if (gpu->numa_node < 0 && *folders[g])
            gpu->numa_node = node_with_os_index(topo, read_int(folders[g], "numa_node", -1));
        if (gpu->numa_node < 0 && topo->n_numa_nodes == 1)
            gpu->numa_node = 0;
    }
    locate_pairs(topo, folders);
    if (topo->n_gpus > 0)
        read_driver_version(topo, root);
}

/* -- rates -- */

/* If the driver cannot report the clock (unified memory), use the card's data sheet. A MIG instance has
 * the same part of the bandwidth as of the memory. */
static void guess_bandwidth(const tsr_card *card, tsr_gpu *gpu)
{
    double whole = card->memory_mib * 0x1p20;
    double part = gpu->is_mig && whole > 0 ? TSR_MIN((double)gpu->memory_bytes / whole, 1.0) : 1;
    if (gpu->memory_bytes_per_s > 0 || card->memory_gbs <= 0)
        return;
    gpu->memory_bytes_per_s = card->memory_gbs * 1e9 * part;
    gpu->guessed |= TSR_GPU_BANDWIDTH;
}

/* If only the current speed of the PCIe link is known, it may be that of an idle GPU, and the rate stays
 * unknown. */
void tsr_topo_gpus_rate(tsr_topology *topo)
{
    for (int g = 0; g < topo->n_gpus; g++) {
        tsr_gpu *gpu = &topo->gpus[g];
        const tsr_card *card = tsr_card_by_name(gpu->name);
        int width = gpu->pcie.width > 0 ? gpu->pcie.width : gpu->pcie_max.width;
        if (gpu->pcie_bytes_per_s == 0 && gpu->pcie_max.generation > 0 && width > 0)
            gpu->pcie_bytes_per_s = tsr_pcie_bytes_per_s(gpu->pcie_max.generation, width);
        if (!card)
            continue;
        guess_bandwidth(card, gpu);
        if (gpu->tensor_flops == 0 && card->n_sms > 0)
            gpu->tensor_flops =
                card->f16_tflops * 1e12 * TSR_MIN(gpu->n_sms, card->n_sms) / (double)card->n_sms;
    }
}

const char *tsr_gpu_path_name(tsr_gpu_path path)
{
    static const char *const names[] = {"?", "same", "board", "PIX", "PXB", "PHB", "NODE", "SYS", "NET"};
    return path >= 0 && path <= TSR_GPU_PATH_NET ? names[path] : "?";
}

const char *tsr_topo_gpu_pair_word(const tsr_topology *topo, int a, int b, char word[16])
{
    const tsr_gpu_pair *pair = &topo->gpu_pairs[a][b];
    if (a == b)
        snprintf(word, 16, "X");
    else if (pair->n_nvlinks > 0)
        snprintf(word, 16, "NV%d", pair->n_nvlinks);
    else
        snprintf(word, 16, "%s", tsr_gpu_path_name(pair->path));
    return word;
}
