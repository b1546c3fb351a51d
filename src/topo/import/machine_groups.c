/* A --machine text -> a builder; see machine_groups.h. Bus ids are invented in PCI domain ffff. */
#include "topo/import/machine_groups.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "topo/network.h"

enum { INVENTED_DOMAIN = 0xffff };

/* Defaults of a text without "host": a desktop with two memory channels. Noted as a guess. */
enum { GUESSED_CORES = 16 };
static const uint64_t guessed_memory = UINT64_C(64) << 30;
static const double guessed_bytes_per_s = 50e9;

/* A machine under construction. */
struct site {
    const tsr_machine_text *text;
    const tsr_text_nodes *nodes;
    int first_node, first_bridge; /* of its sockets, which are equally many */
    int first_pu;
    int n_sockets, n_gpus;
};

static const tsr_text_group *host_group(const tsr_machine_text *text, const tsr_text_nodes *nodes)
{
    for (int i = nodes->first; i < nodes->end; i++)
        if (!text->groups[i].card)
            return &text->groups[i];
    return NULL;
}

static int count_gpus(const tsr_machine_text *text, const tsr_text_nodes *nodes)
{
    int n = 0;
    for (int i = nodes->first; i < nodes->end; i++)
        n += text->groups[i].card ? text->groups[i].count : 0;
    return n;
}

static int count_sockets(const tsr_text_group *host)
{
    return host ? host->count : 1;
}

static int cores_of(const tsr_text_group *host)
{
    return host && host->cores ? host->cores : GUESSED_CORES;
}

/* The sums over all machines, before anything is added. */
static tsr_status check_sizes(const tsr_machine_text *text)
{
    int n_gpus = 0, n_sockets = 0, n_cores = 0;
    for (int i = 0; i < text->n_nodes; i++) {
        const tsr_text_nodes *nodes = &text->nodes[i];
        const tsr_text_group *host = host_group(text, nodes);
        const int n = TSR_MAX(nodes->count, 1), sockets = count_sockets(host);
        if (sockets > TSR_TEXT_SOCKETS)
            return tsr_fail(TSR_ERR_INVALID, "machine: %d sockets; at most %d are supported", sockets,
                            TSR_TEXT_SOCKETS);
        n_gpus += n * count_gpus(text, nodes);
        n_sockets += n * sockets;
        n_cores += n * sockets * cores_of(host);
    }
    if (n_gpus > TSR_MAX_GPUS)
        return tsr_fail(TSR_ERR_INVALID, "machine: %d cards; at most %d are supported", n_gpus, TSR_MAX_GPUS);
    if (n_sockets > TSR_DRAFT_MAX_NODES)
        return tsr_fail(TSR_ERR_INVALID, "machine: %d sockets on all nodes; at most %d are supported",
                        n_sockets, TSR_DRAFT_MAX_NODES);
    if (n_cores > TSR_DRAFT_MAX_PUS)
        return tsr_fail(TSR_ERR_INVALID, "machine: %d cores on all nodes; at most %d are supported", n_cores,
                        TSR_DRAFT_MAX_PUS);
    return TSR_OK;
}

/* Sockets, each with one NUMA node and one host bridge: those of socket i are i places after the first. */
static tsr_status add_sockets(const struct site *site, tsr_topo_builder *builder)
{
    tsr_status status = TSR_OK;
    const tsr_text_group *host = host_group(site->text, site->nodes);
    const int cores = cores_of(host);
    int pu = site->first_pu;
    for (int i = 0; i < site->n_sockets; i++) {
        tsr_builder_node *node;
        tsr_pci_bridge *bridge;
        TSR_TRY(tsr_builder_add_node(builder, &node));
        node->os_index = i;
        node->own_package = true;
        node->memory_bytes = host && host->memory_bytes ? host->memory_bytes : guessed_memory;
        node->rate_guessed = !host || !(host->bytes_per_s > 0);
        node->bytes_per_s = node->rate_guessed ? guessed_bytes_per_s : host->bytes_per_s;
        for (int end = pu + cores; pu < end; pu++)
            node->pus[pu / 64] |= UINT64_C(1) << (pu % 64);
        TSR_TRY(tsr_builder_add_bridge(builder, &bridge));
        bridge->numa_node = site->first_node + i;
    }
    if (!host || !host->cores || !host->memory_bytes || !(host->bytes_per_s > 0))
        tsr_topo_note(builder->notes, sizeof builder->notes, "guessed of each socket:%s%s%s",
                      host && host->cores ? "" : " 16 cores", host && host->memory_bytes ? "" : " 64 GiB",
                      host && host->bytes_per_s > 0 ? "" : " 50 GB/s");
out:
    return status;
}

/* Describe GPU `index` of the group with the facts in the text; the card table and complete.c add the
 * rest. */
static void describe_gpu(const tsr_text_group *group, int first, int index, tsr_gpu *gpu)
{
    const tsr_card *card = group->card;
    gpu->memory_bytes = group->memory_bytes;
    gpu->memory_bytes_per_s = group->bytes_per_s;
    if (group->pcie.generation) {
        gpu->pcie = gpu->pcie_max = group->pcie;
        gpu->pcie_bytes_per_s = tsr_pcie_bytes_per_s(group->pcie.generation, group->pcie.width);
    }
    /* Variants of the same name differ in memory, so the card is given. */
    tsr_card_complete(card, false, gpu);
    if (group->wiring == TSR_TEXT_NVSWITCH)
        gpu->nvlink_ends[gpu->n_nvlink_ends++] =
            (tsr_nvlink_end){.kind = TSR_NVLINK_END_SWITCH, .gpu = -1, .n_links = card->n_nvlinks};
    for (int other = 0; group->wiring == TSR_TEXT_NVLINK_PAIRS && other < group->count; other++) {
        int links = group->n_links ? group->n_links : card->n_nvlinks / (group->count - 1);
        if (other != index && gpu->n_nvlink_ends < TSR_MAX_NVLINK_ENDS)
            gpu->nvlink_ends[gpu->n_nvlink_ends++] =
                (tsr_nvlink_end){.kind = TSR_NVLINK_END_GPU, .gpu = first + other, .n_links = links};
    }
}

/* `before`: GPUs of the machine that have been added. */
static tsr_status add_gpus(const struct site *site, const tsr_text_group *group, int before,
                           tsr_topo_builder *builder)
{
    tsr_status status = TSR_OK;
    const int n_sockets = site->n_sockets, first = builder->n_gpus;
    int shared = -1;
    if (group->node >= n_sockets)
        return tsr_fail(TSR_ERR_INVALID, "machine: 'node %d' of %d; write '%dx host' for as many sockets",
                        group->node, n_sockets, group->node + 1);
    for (int i = 0; i < group->count; i++) {
        tsr_pci_device *pci;
        tsr_gpu *gpu;
        int socket = group->node >= 0       ? group->node
                     : group->behind_switch ? before * n_sockets / site->n_gpus
                                            : (before + i) * n_sockets / site->n_gpus;
        if (group->behind_switch && shared < 0) {
            tsr_pci_bridge *bridge;
            TSR_TRY(tsr_builder_add_bridge(builder, &bridge));
            snprintf(bridge->bus_id, sizeof bridge->bus_id, "%04x:fe:%02x.0", INVENTED_DOMAIN, first & 0x1f);
            bridge->parent = site->first_bridge + socket;
            bridge->numa_node = site->first_node + socket;
            shared = builder->n_bridges - 1;
        }
        TSR_TRY(tsr_builder_add_pci(builder, &pci));
        TSR_TRY(tsr_builder_add_gpu(builder, &gpu));
        snprintf(pci->bus_id, sizeof pci->bus_id, "%04x:%02x:00.0", INVENTED_DOMAIN, first + i);
        memcpy(gpu->bus_id, pci->bus_id, sizeof gpu->bus_id);
        gpu->ordinal = before + i;
        pci->class_id = 0x0302;
        pci->vendor_id = 0x10de;
        pci->device_id = group->card->ids[0];
        pci->numa_node = gpu->numa_node = site->first_node + socket;
        pci->bridge = shared >= 0 ? shared : site->first_bridge + socket;
        describe_gpu(group, first, i, gpu);
        pci->link_bytes_per_s = gpu->pcie_bytes_per_s;
    }
out:
    return status;
}

static tsr_status add_machine(const tsr_text_network *network, const struct site *site,
                              tsr_topo_builder *builder)
{
    tsr_status status = TSR_OK;
    tsr_machine *machine;
    TSR_TRY(tsr_builder_add_machine(builder, &machine));
    machine->first_numa_node = site->first_node;
    machine->n_numa_nodes = site->n_sockets;
    machine->first_gpu = builder->n_gpus - site->n_gpus;
    machine->n_gpus = site->n_gpus;
    tsr_network_set(network->kind, network->n_adapters, network->bytes_per_s, network->latency_ns, machine);
out:
    return status;
}

/* One of the machines `nodes`. Its processors are numbered from *first_pu on, which advances. */
static tsr_status add_site(const tsr_machine_text *text, const tsr_text_nodes *nodes, int *first_pu,
                           tsr_topo_builder *builder)
{
    tsr_status status = TSR_OK;
    const struct site site = {.text = text,
                              .nodes = nodes,
                              .first_node = builder->n_nodes,
                              .first_bridge = builder->n_bridges,
                              .first_pu = *first_pu,
                              .n_sockets = count_sockets(host_group(text, nodes)),
                              .n_gpus = count_gpus(text, nodes)};
    int n_gpus = 0;
    TSR_TRY(add_sockets(&site, builder));
    for (int i = nodes->first; i < nodes->end; i++) {
        const tsr_text_group *group = &text->groups[i];
        if (group->card) {
            TSR_TRY(add_gpus(&site, group, n_gpus, builder));
            n_gpus += group->count;
        }
    }
    if (nodes->count > 0)
        TSR_TRY(add_machine(&nodes->network, &site, builder));
    *first_pu += site.n_sockets * cores_of(host_group(text, nodes));
out:
    return status;
}

tsr_status tsr_machine_text_add(const tsr_machine_text *text, tsr_topo_builder *builder)
{
    tsr_status status = TSR_OK;
    int first_pu = 0;
    TSR_TRY(check_sizes(text));
    for (int i = 0; i < text->n_nodes; i++)
        for (int n = 0; n < TSR_MAX(text->nodes[i].count, 1); n++)
            TSR_TRY(add_site(text, &text->nodes[i], &first_pu, builder));
out:
    return status;
}
