/* Completes a description's GPUs with the facts that planning needs.
 *
 * Descriptions lack different facts: a cloud's NCCL file has only bus ids, sysfs has no memory sizes, a
 * recording of an idle machine shows its PCIe links at the lowest speed. Each gap is filled from the card
 * table (cards.c) or by the rule at the function, and marked in tsr_gpu.guessed or by a sentence in the
 * notes. Stated facts are kept, except the speed of an idle link. */
#include "topo/import/builder.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/mem.h"
#include "topo/import/cards.h"
#include "topo/import/gpus.h"

enum {
    NVIDIA = 0x10de,
    COMMIT_BYTES = 2 << 20 /* CUDA's unit of physical memory on every card of the table */
};

#define LEAST_NODE_BYTES ((uint64_t)1 << 20)
#define MOST_NODE_BYTES  ((uint64_t)1 << 50)

#define NOTE(topo, ...) tsr_topo_note((topo)->notes, sizeof(topo)->notes, __VA_ARGS__)

static tsr_pci_device *pci_of(const tsr_topology *topo, const tsr_gpu *gpu)
{
    for (int i = 0; i < topo->n_pci && *gpu->bus_id; i++)
        if (strcmp(topo->pci[i].bus_id, gpu->bus_id) == 0)
            return &topo->pci[i];
    return NULL;
}

/* -- plausibility -- */

/* Refuse memory sizes in other units than the file's, and bus ids of two GPUs. A node without memory and
 * MIG instances of one GPU are normal. */
static tsr_status check_believable(const tsr_topology *topo)
{
    for (int i = 0; i < topo->n_numa_nodes; i++) {
        uint64_t bytes = topo->numa_nodes[i].memory_bytes;
        if (bytes > MOST_NODE_BYTES || (bytes > 0 && bytes < LEAST_NODE_BYTES))
            return tsr_fail(TSR_ERR_FORMAT,
                            "'%s': %llu bytes of memory at NUMA node %d is out of range; sizes are in bytes",
                            topo->source, (unsigned long long)bytes, topo->numa_nodes[i].os_index);
    }
    for (int i = 0; i < topo->n_gpus; i++)
        for (int j = 0; j < i && *topo->gpus[i].bus_id; j++)
            if (strcmp(topo->gpus[i].bus_id, topo->gpus[j].bus_id) == 0 && !topo->gpus[i].is_mig)
                return tsr_fail(TSR_ERR_FORMAT, "'%s': two GPUs have PCI bus id %s; correct one of them",
                                topo->source, topo->gpus[i].bus_id);
    return TSR_OK;
}

/* -- which card -- */

/* "all", "3", "0-7" or a bus id: GPUs *first_out to *last_out. */
static bool parse_which(const tsr_topology *topo, const char *which, int *first_out, int *last_out)
{
    char bus_id[16], *end;
    long first = strtol(which, &end, 10), last = first;
    if (*end == '-' && isdigit((unsigned char)end[1]))
        last = strtol(end + 1, &end, 10);
    if (strcasecmp(which, "all") == 0) {
        first = 0;
        last = topo->n_gpus - 1;
    } else if (*end || first < 0 || last < first || last >= topo->n_gpus) {
        first = tsr_bus_id_parse(which, bus_id) ? 0 : topo->n_gpus;
        while (first < topo->n_gpus && strcmp(topo->gpus[first].bus_id, bus_id) != 0)
            first++;
        last = first;
    }
    *first_out = (int)first;
    *last_out = (int)last;
    return last < topo->n_gpus;
}

/* One "WHICH=CARD" of the text: the card, and the range of GPUs. */
static tsr_status parse_choice(const tsr_topology *topo, const char *piece, const tsr_card **card_out,
                               int *first_out, int *last_out)
{
    char which[32];
    const char *equals = strchr(piece, '=');
    if (!equals || (size_t)(equals - piece) >= sizeof which || equals == piece || !equals[1])
        return tsr_fail(TSR_ERR_INVALID,
                        "cards: cannot parse card assignment '%s'; write e.g. 0=rtx3090,1-3=a100 or all=t4",
                        piece);
    snprintf(which, sizeof which, "%.*s", (int)(equals - piece), piece);
    tsr_status status = tsr_card_typed(equals + 1, card_out);
    if (status != TSR_OK)
        return tsr_fail_in(status, "cards");
    if (!parse_which(topo, which, first_out, last_out))
        return tsr_fail(TSR_ERR_INVALID, "cards: '%s': the machine has %d NVIDIA GPU%s, numbered from 0",
                        piece, topo->n_gpus, tsr_plural(topo->n_gpus));
    return TSR_OK;
}

static tsr_status choose_cards(const tsr_topology *topo, const char *text,
                               const tsr_card *chosen[TSR_MAX_GPUS])
{
    tsr_status status = TSR_OK;
    char piece[80];
    while (text && *text) {
        size_t length = strcspn(text, ",");
        const tsr_card *card;
        int first, last;
        snprintf(piece, sizeof piece, "%.*s", (int)TSR_MIN(length, sizeof piece - 1), text);
        if (length >= sizeof piece) {
            status = tsr_fail(TSR_ERR_INVALID,
                              "cards: '%s...' is longer than any card's name; write e.g. 0=rtx3090", piece);
            goto out;
        }
        TSR_TRY(parse_choice(topo, piece, &card, &first, &last));
        for (int i = first; i <= last; i++)
            chosen[i] = card;
        text += length + (text[length] == ',');
    }
out:
    return status;
}

static const tsr_card *card_of(const tsr_topology *topo, const tsr_gpu *gpu)
{
    const tsr_pci_device *pci = pci_of(topo, gpu);
    const char *names[] = {gpu->name, pci ? pci->name : ""};
    const tsr_card *card = pci && pci->vendor_id == NVIDIA ? tsr_card_by_id(pci->device_id) : NULL;
    for (int i = 0; i < 2 && !card; i++) {
        card = tsr_card_by_name(names[i]);
        if (card && !gpu->memory_bytes && tsr_card_is_variant(card, names[i]))
            return NULL; /* a plan would use memory that the GPU lacks */
    }
    return card;
}

/* A PCI device of which the file says neither class nor model: a GPU or a network card. */
static bool may_be_no_gpu(const tsr_topology *topo, const tsr_gpu *gpu)
{
    const tsr_pci_device *pci = pci_of(topo, gpu);
    return pci && !pci->class_id && !*gpu->name && !gpu->memory_bytes;
}

/* The user who names cards says which devices are GPUs; the other devices of unknown class are none. Indices
 * are adjusted. */
static void drop_what_is_no_gpu(tsr_topology *topo, const tsr_card *cards[TSR_MAX_GPUS])
{
    int to[TSR_MAX_GPUS], n = 0;
    for (int i = 0; i < topo->n_gpus; i++)
        to[i] = may_be_no_gpu(topo, &topo->gpus[i]) ? -1 : n++;
    if (n == topo->n_gpus)
        return;
    for (int i = 0; i < topo->n_gpus; i++) {
        if (to[i] < 0)
            continue;
        topo->gpus[to[i]] = topo->gpus[i];
        cards[to[i]] = cards[i];
        for (int j = 0; j < topo->n_gpus; j++)
            if (to[j] >= 0)
                topo->gpu_pairs[to[i]][to[j]] = topo->gpu_pairs[i][j];
        for (int e = 0; e < topo->gpus[to[i]].n_nvlink_ends; e++) {
            tsr_nvlink_end *end = &topo->gpus[to[i]].nvlink_ends[e];
            end->gpu = end->gpu >= 0 ? to[end->gpu] : -1;
        }
    }
    for (int i = n; i < topo->n_gpus; i++)
        memset(&topo->gpus[i], 0, sizeof topo->gpus[i]);
    topo->n_gpus = n;
    for (int i = 0; i < n; i++)
        topo->gpus[i].ordinal = i;
}

/* A GPU whose memory is unknown can be shown, but no device can be made on it (devices/gpu_devices.c). */
static void note_unknown(tsr_topology *topo)
{
    int n = 0, first = -1;
    for (int i = 0; i < topo->n_gpus; i++) {
        n += topo->gpus[i].memory_bytes == 0;
        first = n == 1 && topo->gpus[i].memory_bytes == 0 ? i : first;
    }
    if (n == 0)
        return;
    const tsr_gpu *gpu = &topo->gpus[first];
    const tsr_pci_device *pci = pci_of(topo, gpu);
    char id[80] = "no model given";
    if (*gpu->name)
        snprintf(id, sizeof id, "'%.63s'", gpu->name);
    else if (pci && pci->device_id)
        snprintf(id, sizeof id, "PCI id %04x:%04x", pci->vendor_id, pci->device_id);
    snprintf(topo->gpu_note, sizeof topo->gpu_note,
             "%d GPU%s of unknown model (the first is number %d%s%s, %s)", n, tsr_plural(n), first,
             *gpu->bus_id ? " at " : "", gpu->bus_id, id);
}

/* -- PCIe -- */

static const char idle_note[] =
    "PCIe links that show 2.5 or 5 GT/s are assumed to be idle: the GPUs' own generation is used";

/* Lanes of a link that runs at 2.5 GT/s (or 5, where lanes would be more than 16), 0 if it runs faster:
 * generations 1 and 2 carry a multiple of 0.25 GB/s, newer ones a multiple of 0.985. */
static int lanes_if_slow(double bytes_per_s)
{
    double quarters = bytes_per_s / 0.25e9;
    if (!(quarters >= 0.99 && quarters < 32.5) || fabs(quarters - round(quarters)) > 0.005 * quarters)
        return 0;
    return (int)round(quarters) > 16 ? (int)round(quarters) / 2 : (int)round(quarters);
}

/* Use the link that the description states; the card table fills in the rest. A link at the speed of
 * generation 1 or 2 below a newer card is assumed to have been idle: drivers slow down the link of an idle
 * GPU, and the ports above follow. */
static void take_stated_link(tsr_topology *topo, tsr_gpu *gpu, const tsr_card *card)
{
    const tsr_pci_device *pci = pci_of(topo, gpu);
    double stated = pci ? pci->link_bytes_per_s : 0;
    int lanes = card && card->pcie_generation >= 3 ? lanes_if_slow(stated) : 0;
    if (gpu->pcie_bytes_per_s > 0)
        return;
    if (lanes) {
        gpu->pcie = (tsr_pcie_link){.generation = 1, .width = lanes};
        NOTE(topo, "%s", idle_note);
    } else if (stated > 0) {
        gpu->pcie_bytes_per_s = stated;
    } else if (card && card->pcie_generation) {
        NOTE(topo, "the speed of PCIe links to GPUs is not described: data sheet values are used");
    }
}

/* Bridges above GPUs: an unknown or idle link is assumed to be as fast as the GPU's, on its own lanes. */
static void settle_bridges(tsr_topology *topo)
{
    for (int i = 0; i < topo->n_gpus; i++) {
        const tsr_gpu *gpu = &topo->gpus[i];
        const tsr_pci_device *pci = pci_of(topo, gpu);
        for (int b = pci ? pci->bridge : -1; b >= 0; b = topo->bridges[b].parent) {
            tsr_pci_bridge *bridge = &topo->bridges[b];
            if (bridge->parent < 0 && !*bridge->bus_id)
                continue; /* a host bridge has no link */
            int lanes = lanes_if_slow(bridge->link_bytes_per_s);
            if (!(bridge->link_bytes_per_s > 0)) {
                bridge->link_bytes_per_s = gpu->pcie_bytes_per_s;
                NOTE(topo, "the speed of PCIe bridges above GPUs is not described: that of the GPUs is used");
            } else if (lanes && bridge->link_bytes_per_s < gpu->pcie_bytes_per_s) {
                int wide = TSR_MAX(gpu->pcie.width, TSR_MAX(gpu->pcie_max.width, 16));
                bridge->link_bytes_per_s = gpu->pcie_bytes_per_s * TSR_MIN(lanes, wide) / wide;
                NOTE(topo, "PCIe links that show 2.5 or 5 GT/s are assumed to be idle: the GPUs' own "
                           "generation is used");
            }
        }
    }
}

static int depth_of(const tsr_topology *topo, int bridge)
{
    int depth = 0;
    for (; bridge >= 0; bridge = topo->bridges[bridge].parent)
        depth++;
    return depth;
}

/* Counts the bridges above both and above each alone; the lower of two bridges is not above the other. */
tsr_gpu_path tsr_topo_path_between(const tsr_topology *topo, int gpu_a, int gpu_b)
{
    const tsr_pci_device *a = pci_of(topo, &topo->gpus[gpu_a]), *b = pci_of(topo, &topo->gpus[gpu_b]);
    if (!a || !b)
        return TSR_GPU_PATH_UNKNOWN;
    int x = a->bridge, y = b->bridge, below_a = 0, below_b = 0;
    while (x != y) {
        int depth_x = depth_of(topo, x), depth_y = depth_of(topo, y);
        if (depth_x >= depth_y) {
            x = topo->bridges[x].parent;
            below_a++;
        }
        if (depth_y >= depth_x) {
            y = topo->bridges[y].parent;
            below_b++;
        }
    }
    return tsr_topo_gpu_path(depth_of(topo, x), below_a, below_b, a->numa_node, b->numa_node);
}

/* -- NVLink -- */

/* hwloc gives a speed without a number of links, as it has the version only: 25 GB/s per link, unless the
 * card table has a rate (NVLink 2 to 4; hwloc's topology-nvml.c). */
static void settle_ends(const tsr_topology *topo, tsr_gpu *gpu, const tsr_card *card)
{
    double link_gbs = card ? card->nvlink_gbs : 0;
    for (int e = 0; e < gpu->n_nvlink_ends; e++) {
        tsr_nvlink_end *end = &gpu->nvlink_ends[e];
        if (end->gpu >= 0 && !*end->bus_id)
            memcpy(end->bus_id, topo->gpus[end->gpu].bus_id, sizeof end->bus_id);
        if (card && !end->version)
            end->version = card->nvlink_version;
        if (!(end->bytes_per_s > 0) && link_gbs > 0) {
            end->bytes_per_s = end->n_links * link_gbs * 1e9;
            gpu->guessed |= TSR_GPU_NVLINK;
        }
        if (!end->n_links && end->bytes_per_s > 0)
            end->n_links = TSR_MAX((int)lround(end->bytes_per_s / ((link_gbs > 0 ? link_gbs : 25) * 1e9)), 1);
    }
}

static bool is_wired(const tsr_card *card)
{
    return card->n_nvlinks > 0 && !card->bridge;
}

/* NVLinks of a machine's modules whose description has none at all. A description that states other paths is
 * taken to say that there are none: virtual machines often have modules without. Boards of eight and more
 * have NVSwitches since the A100 (HGX and DGX data sheets); boards of up to four join each pair by an equal
 * part of the links. */
static void guess_nvlinks(tsr_topology *topo, const tsr_card *cards[TSR_MAX_GPUS], int first, int n)
{
    const tsr_card *card = n > 0 ? cards[first] : NULL;
    /* on POWER9 links go to the CPU */
    bool power = topo->n_packages && strstr(topo->packages[0].cpu_model, "POWER");
    for (int i = first; i < first + n; i++)
        if (!cards[i] || cards[i] != card || !is_wired(card) || topo->gpus[i].n_nvlink_ends)
            return;
    bool is_switched = n >= 8 && n <= 16 && card->nvlink_version >= 3;
    if (n < 2 || power || (n > 4 && !is_switched) || topo->gpu_pairs[first][first + 1].path)
        return;
    for (int i = first; i < first + n; i++) {
        tsr_gpu *gpu = &topo->gpus[i];
        for (int j = first; j < first + n; j++) {
            int links = is_switched ? card->n_nvlinks : card->n_nvlinks / (n - 1);
            if (j == i || (is_switched && gpu->n_nvlink_ends))
                continue;
            gpu->nvlink_ends[gpu->n_nvlink_ends++] =
                (tsr_nvlink_end){.kind = is_switched ? TSR_NVLINK_END_SWITCH : TSR_NVLINK_END_GPU,
                                 .gpu = is_switched ? -1 : j,
                                 .n_links = links};
        }
        gpu->guessed |= TSR_GPU_NVLINK;
    }
    NOTE(topo, "NVLinks are not described: those of a usual board with %d such modules are assumed", n);
}

/* A chip-to-chip link is part of the module (Grace), so it is assumed if the description has none. */
static void guess_c2c(tsr_gpu *gpu, const tsr_card *card)
{
    bool found =
        !card || !(card->c2c_gbs > 0) || gpu->integrated || gpu->n_nvlink_ends == TSR_MAX_NVLINK_ENDS;
    for (int e = 0; e < gpu->n_nvlink_ends; e++)
        found = found || gpu->nvlink_ends[e].kind == TSR_NVLINK_END_CPU;
    if (found)
        return;
    gpu->nvlink_ends[gpu->n_nvlink_ends++] = (tsr_nvlink_end){
        .kind = TSR_NVLINK_END_CPU, .gpu = -1, .n_links = 1, .bytes_per_s = card->c2c_gbs * 1e9};
    gpu->guessed |= TSR_GPU_NVLINK;
}

static void settle_pair(const tsr_topology *topo, int a, int b, tsr_gpu_pair *pair)
{
    pair->performance_rank = -1;
    if (a == b) {
        pair->path = TSR_GPU_PATH_SAME;
        pair->peer_access = pair->native_atomics = TSR_YES;
        return;
    }
    if (tsr_topo_machine_of_gpu(topo, a) != tsr_topo_machine_of_gpu(topo, b)) {
        pair->path = TSR_GPU_PATH_NET;
        pair->peer_access = pair->native_atomics = TSR_NO;
        return;
    }
    if (!pair->path)
        pair->path = tsr_topo_path_between(topo, a, b);
    if (pair->n_nvlinks > 0)
        pair->peer_access = pair->native_atomics = TSR_YES;
}

/* -- all completions -- */

static void note_old_gpus(tsr_topology *topo)
{
    for (int i = 0; i < topo->n_gpus; i++)
        if (topo->gpus[i].compute_capability && topo->gpus[i].compute_capability < 80)
            NOTE(topo,
                 "GPUs older than compute capability 8.0 can be planned for, but this library does not run "
                 "on them");
}

tsr_status tsr_topo_complete(tsr_topology *topo, const char *cards_text)
{
    tsr_status status = TSR_OK;
    const tsr_card *chosen[TSR_MAX_GPUS] = {0}, *cards[TSR_MAX_GPUS] = {0};
    TSR_TRY(check_believable(topo));
    TSR_TRY(choose_cards(topo, cards_text, chosen));
    for (int i = 0; i < topo->n_gpus; i++) {
        tsr_gpu *gpu = &topo->gpus[i];
        const tsr_pci_device *pci = pci_of(topo, gpu);
        cards[i] = chosen[i] ? chosen[i] : card_of(topo, gpu);
        take_stated_link(topo, gpu, cards[i]);
        if (cards[i])
            tsr_card_complete(cards[i], chosen[i] != NULL, gpu);
        if (pci && gpu->numa_node < 0)
            gpu->numa_node = pci->numa_node;
        gpu->commit_bytes = COMMIT_BYTES;
    }
    if (cards_text && *cards_text)
        drop_what_is_no_gpu(topo, cards);
    note_unknown(topo);
    for (int m = 0; m < TSR_MAX(topo->n_machines, 1); m++)
        guess_nvlinks(topo, cards, tsr_topo_machine(topo, m).first_gpu, tsr_topo_machine(topo, m).n_gpus);
    for (int i = 0; i < topo->n_gpus; i++) {
        settle_ends(topo, &topo->gpus[i], cards[i]);
        guess_c2c(&topo->gpus[i], cards[i]);
    }
    settle_bridges(topo);
    tsr_topo_gpus_link(topo);
    for (int a = 0; a < topo->n_gpus; a++)
        for (int b = 0; b < topo->n_gpus; b++)
            settle_pair(topo, a, b, &topo->gpu_pairs[a][b]);
    note_old_gpus(topo);
out:
    return status;
}
