/* The graph of wires, and the route of every pair of devices.
 *
 * Sources of values that topologies lack, all marked as guessed:
 *   NVLink carries 0.8 of its nominal rate, PCIe 0.76 of what its line code leaves: the ratio of NCCL's
 *   constants (src/graph/topo.h: 20 of 25 GB/s, 40.1 of 50; 12 of 15.75 for PCIe 3 x16) to the nominal rates.
 *   Latency of a hop: 0.6 us over NVLink, 1.0 us over PCIe (NCCL src/graph/tuning.cc, LL protocol).
 *   One link between sockets: UPI 10.4 GT/s x 2 bytes (Xeon Scalable), 16 and 20 GT/s (4th and 5th
 *   generation), xGMI 16 lanes at 18 GT/s (EPYC 7003), 32 GT/s (EPYC 9004 and later): the makers' data
 *   sheets; POWER9's X bus 64 GB/s (IBM AC922 manual). Boards have two to four, but one route uses one.
 *   Two NUMA nodes of one socket: twice that.
 *   Host memory: memory_rate.c. 12 GB/s per core of a host device: measured by this project on small
 *   servers.
 *   Peer access that is not described: NVLink has it; over PCIe by the card table, and not between
 *   sockets.
 *   A network carries its rate less the headers of its packets: InfiniBand 26 of 4122 bytes (local header,
 *   base transport header, two check sums; InfiniBand architecture specification 1, 5.2), RoCE v2 82 of 4178
 *   (Ethernet with preamble and gap, IP, UDP, base transport header, check sum), TCP 90 of 1538 (Ethernet, IP
 *   and TCP with time stamps, frames of 1500 bytes).
 *   Adapters reach a GPU's memory directly (GPUDirect RDMA) over InfiniBand and RoCE where the driver lets
 *   other devices access such a card over PCIe: data-centre and professional cards (NVIDIA, "GPUDirect RDMA",
 *   supported platforms). Otherwise bytes go through host memory. Every adapter is as near to every GPU. */
#include "topo/links/links.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/import/cards.h"
#include "topo/topo.h"

static const double nvlink_efficiency = 0.8, pcie_efficiency = 0.76;
static const double nvlink_hop_ns = 600, pcie_hop_ns = 1000, socket_hop_ns = 300, host_hop_ns = 500;
static const double guessed_core_bytes_per_s = 12e9;
static const double guessed_pcie_bytes_per_s = 15.75e9; /* generation 3 x16, if not even the card is known */
static const double network_efficiency[] = {[TSR_NETWORK_NONE] = 1,
                                            [TSR_NETWORK_INFINIBAND] = 4096.0 / 4122,
                                            [TSR_NETWORK_ROCE] = 4096.0 / 4178,
                                            [TSR_NETWORK_ETHERNET] = 1448.0 / 1538};

enum { UNSET = 0xffff };

struct build {
    const tsr_topology *topo;
    const tsr_device_list *devices;
    tsr_links *links;
    uint16_t *bridge_wires; /* per bridge, UNSET until one needs it */
    uint16_t gpu_pcie[TSR_MAX_GPUS], gpu_port[TSR_MAX_GPUS], gpu_c2c[TSR_MAX_GPUS], gpu_memory[TSR_MAX_GPUS];
    uint16_t nvlink[TSR_MAX_GPUS][TSR_MAX_GPUS];
    uint16_t host_port[TSR_MAX_DEVICES], memory[TSR_MAX_DEVICES], network[TSR_MAX_DEVICES];
    int machine_at[TSR_MAX_DEVICES]; /* index into the topology's, of links->machine */
    const tsr_machine *outside;      /* of a part: the network of its machine; NULL: as the topology says */
    uint16_t between[TSR_MAX_DEVICES][TSR_MAX_DEVICES]; /* sites */
    int site_of[TSR_MAX_DEVICES]; /* of each device: NUMA nodes that devices are at, in order of appearance */
    int node_of[TSR_MAX_DEVICES]; /* of each site; -1: unknown */
    int n_sites;
};

/* -- wires -- */

/* The wire in *slot, made at its first use. */
static tsr_status wire_of(struct build *b, uint16_t *slot, double bytes_per_s, bool guessed, int *wire_out)
{
    if (*slot == UNSET) {
        if (b->links->n_wires == TSR_LINKS_MAX_WIRES)
            return tsr_fail(TSR_ERR_UNSUPPORTED, "'%s' has more than %d links between its devices",
                            b->topo->source, TSR_LINKS_MAX_WIRES);
        b->links->wires[b->links->n_wires] = (tsr_wire){.bytes_per_s = bytes_per_s, .guessed = guessed};
        *slot = (uint16_t)b->links->n_wires++;
    }
    *wire_out = *slot;
    return TSR_OK;
}

/* Append a hop; a rate of 0 is not known and takes no time. */
static tsr_status hop(struct build *b, tsr_link_route *route, uint16_t *slot, double bytes_per_s,
                      bool guessed, int direction)
{
    tsr_status status = TSR_OK;
    int wire;
    if (route->n_hops == TSR_LINKS_MAX_HOPS)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "'%s' has a PCI tree deeper than %d", b->topo->source,
                        TSR_LINKS_MAX_HOPS / 2);
    TSR_TRY(wire_of(b, slot, bytes_per_s, guessed, &wire));
    route->hops[route->n_hops++] = (uint16_t)(2 * wire + direction);
    route->guessed = route->guessed || b->links->wires[wire].guessed;
out:
    return status;
}

/* -- places -- */

static const tsr_gpu *gpu_of(const struct build *b, int device)
{
    int gpu = b->devices->devices[device].gpu;
    return gpu >= 0 ? &b->topo->gpus[gpu] : NULL;
}

static int bridge_of(const struct build *b, int device)
{
    const tsr_gpu *gpu = gpu_of(b, device);
    for (int i = 0; gpu && *gpu->bus_id && i < b->topo->n_pci; i++)
        if (strcmp(b->topo->pci[i].bus_id, gpu->bus_id) == 0)
            return b->topo->pci[i].bridge;
    return -1;
}

static void find_sites(struct build *b)
{
    for (int d = 0; d < b->devices->n_devices; d++) {
        const tsr_device_desc *desc = &b->devices->devices[d];
        int node = desc->numa_node;
        if (node < 0 && desc->kind == TSR_DEVICE_HOST && desc->n_cores > 0)
            node = b->topo->cores[desc->cores[0]].numa_node;
        int site = 0;
        while (site < b->n_sites && b->node_of[site] != node)
            site++;
        if (site == b->n_sites)
            b->node_of[b->n_sites++] = node;
        b->site_of[d] = site;
    }
}

/* The machines that devices are on, in order of appearance. */
static void find_machines(struct build *b)
{
    tsr_links *links = b->links;
    for (int d = 0; d < b->devices->n_devices; d++) {
        const tsr_device_desc *desc = &b->devices->devices[d];
        int index = desc->gpu >= 0      ? tsr_topo_machine_of_gpu(b->topo, desc->gpu)
                    : desc->n_cores > 0 ? tsr_topo_machine_of_core(b->topo, desc->cores[0])
                                        : 0;
        int m = 0;
        while (m < links->n_machines && b->machine_at[m] != index)
            m++;
        if (m == links->n_machines)
            b->machine_at[links->n_machines++] = index;
        links->machine[d] = links->host[d] = m;
    }
}

static int package_of_node(const tsr_topology *topo, int node)
{
    if (node < 0 || topo->numa_nodes[node].n_cores == 0)
        return -1;
    return topo->cores[topo->numa_nodes[node].first_core].package;
}

/* One link between sockets, by the processor's name. */
static double socket_rate(const tsr_topology *topo)
{
    static const struct {
        const char *name;
        double bytes_per_s;
    } rates[] = {
        {"EPYC 9", 64e9},    {"EPYC", 36e9},      {"AuthenticAMD", 36e9}, {"POWER9", 64e9},
        {"model 207", 40e9}, {"model 143", 32e9}, {"Platinum 85", 40e9},  {"Platinum 84", 32e9},
        {"Gold 65", 40e9},   {"Gold 64", 32e9},
    };
    const char *model = topo->n_packages > 0 ? topo->packages[0].cpu_model : "";
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (strstr(model, rates[i].name))
            return rates[i].bytes_per_s;
    return 20.8e9;
}

/* -- parts of routes -- */

/* Host memory of a site. Bytes that are staged in it are written and read: two hops over the same wire. */
static tsr_status memory_hop(struct build *b, tsr_link_route *route, int site)
{
    int node = b->node_of[site];
    bool assumed;
    double rate = tsr_topo_memory_rate(b->topo, node, &assumed);
    return hop(b, route, &b->memory[site], rate, assumed, 0);
}

static tsr_status socket_hop(struct build *b, tsr_link_route *route, int from, int to)
{
    int low = TSR_MIN(from, to), high = TSR_MAX(from, to);
    if (from == to)
        return TSR_OK;
    int x = package_of_node(b->topo, b->node_of[from]), y = package_of_node(b->topo, b->node_of[to]);
    route->latency_ns += socket_hop_ns;
    return hop(b, route, &b->between[low][high], socket_rate(b->topo) * (x >= 0 && x == y ? 2 : 1), true,
               from > to);
}

/* Between a GPU and its host: the link and the bridges up to, and without, `top`; direction 0 is up. */
static tsr_status pcie_hops(struct build *b, tsr_link_route *route, int device, int top, int direction)
{
    tsr_status status = TSR_OK;
    int g = b->devices->devices[device].gpu;
    const tsr_gpu *gpu = &b->topo->gpus[g];
    bool known = gpu->pcie_bytes_per_s > 0;
    double rate = known ? gpu->pcie_bytes_per_s : guessed_pcie_bytes_per_s;
    TSR_TRY(hop(b, route, &b->gpu_pcie[g], rate * pcie_efficiency, !known || gpu->guessed & TSR_GPU_PCIE,
                direction));
    for (int i = bridge_of(b, device); i >= 0 && i != top; i = b->topo->bridges[i].parent)
        if (b->topo->bridges[i].link_bytes_per_s > 0)
            TSR_TRY(hop(b, route, &b->bridge_wires[i], b->topo->bridges[i].link_bytes_per_s * pcie_efficiency,
                        false, direction));
out:
    return status;
}

/* Links of a GPU to its own processor, and their rate. */
static double c2c_rate(const struct build *b, int device)
{
    double sum = 0;
    const tsr_gpu *gpu = gpu_of(b, device);
    for (int e = 0; gpu && e < gpu->n_nvlink_ends; e++)
        if (gpu->nvlink_ends[e].kind == TSR_NVLINK_END_CPU)
            sum += gpu->nvlink_ends[e].bytes_per_s;
    return sum * nvlink_efficiency;
}

/* Between a device and its site's host memory. */
static tsr_status host_hops(struct build *b, tsr_link_route *route, int device, int direction)
{
    const tsr_device_desc *desc = &b->devices->devices[device];
    double c2c = c2c_rate(b, device);
    if (desc->kind == TSR_DEVICE_HOST)
        return hop(b, route, &b->host_port[device], guessed_core_bytes_per_s * TSR_MAX(desc->n_cores, 1),
                   true, direction);
    if (b->topo->gpus[desc->gpu].integrated)
        return TSR_OK; /* its memory is the host's */
    if (c2c > 0) {
        route->latency_ns += nvlink_hop_ns;
        return hop(b, route, &b->gpu_c2c[desc->gpu], c2c, true, direction);
    }
    route->latency_ns += pcie_hop_ns;
    return pcie_hops(b, route, device, -1, direction);
}

/* The lowest bridge above both, -1 if there is none. */
static int common_bridge(const struct build *b, int from, int to)
{
    for (int i = bridge_of(b, from); i >= 0; i = b->topo->bridges[i].parent)
        for (int j = bridge_of(b, to); j >= 0; j = b->topo->bridges[j].parent)
            if (i == j)
                return i;
    return -1;
}

/* -- routes -- */

static tsr_status route_nvlink(struct build *b, tsr_link_route *route, int from, int to,
                               const tsr_gpu_pair *pair)
{
    tsr_status status = TSR_OK;
    int x = b->devices->devices[from].gpu, y = b->devices->devices[to].gpu;
    double direct = 0, ports[2] = {0, 0};
    const int ends[2] = {x, y};
    for (int side = 0; side < 2; side++) {
        const tsr_gpu *gpu = &b->topo->gpus[ends[side]];
        for (int e = 0; e < gpu->n_nvlink_ends; e++) {
            const tsr_nvlink_end *end = &gpu->nvlink_ends[e];
            if (end->kind == TSR_NVLINK_END_SWITCH)
                ports[side] += end->bytes_per_s;
            else if (side == 0 && end->kind == TSR_NVLINK_END_GPU && end->gpu == y)
                direct += end->bytes_per_s;
        }
    }
    route->latency_ns = nvlink_hop_ns;
    if (direct > 0 || !(ports[0] > 0 && ports[1] > 0)) {
        double rate = direct > 0 ? direct : pair->nvlink_bytes_per_s;
        route->kind = TSR_LINK_NVLINK;
        return hop(b, route, &b->nvlink[TSR_MIN(x, y)][TSR_MAX(x, y)], rate * nvlink_efficiency,
                   b->topo->gpus[x].guessed & TSR_GPU_NVLINK, x > y);
    }
    route->kind = TSR_LINK_NVSWITCH;
    for (int side = 0; side < 2; side++)
        TSR_TRY(hop(b, route, &b->gpu_port[ends[side]], ports[side] * nvlink_efficiency,
                    b->topo->gpus[ends[side]].guessed & TSR_GPU_NVLINK, side));
out:
    return status;
}

static bool has_peer_access(const struct build *b, int from, int to, const tsr_gpu_pair *pair,
                            bool *guessed_out)
{
    *guessed_out = pair->peer_access == TSR_UNKNOWN;
    if (!*guessed_out)
        return pair->peer_access == TSR_YES;
    const tsr_card *x = tsr_card_by_name(gpu_of(b, from)->name), *y = tsr_card_by_name(gpu_of(b, to)->name);
    return x && y && x->peer_access == TSR_YES && y->peer_access == TSR_YES &&
           b->site_of[from] == b->site_of[to];
}

static tsr_status route_pcie(struct build *b, tsr_link_route *route, int from, int to)
{
    tsr_status status = TSR_OK;
    int top = common_bridge(b, from, to);
    route->kind = b->site_of[from] == b->site_of[to] ? TSR_LINK_PCIE : TSR_LINK_SOCKET;
    route->latency_ns = pcie_hop_ns;
    TSR_TRY(pcie_hops(b, route, from, top, 0));
    if (top < 0)
        TSR_TRY(socket_hop(b, route, b->site_of[from], b->site_of[to]));
    TSR_TRY(pcie_hops(b, route, to, top, 1));
out:
    return status;
}

/* Through host memory where `from` is: written there, read from there. */
static tsr_status route_host(struct build *b, tsr_link_route *route, int from, int to)
{
    tsr_status status = TSR_OK;
    bool both_host = !gpu_of(b, from) && !gpu_of(b, to), same = b->site_of[from] == b->site_of[to];
    route->kind = !both_host ? TSR_LINK_STAGED : same ? TSR_LINK_MEMORY : TSR_LINK_SOCKET;
    route->latency_ns = host_hop_ns;
    TSR_TRY(host_hops(b, route, from, 0));
    TSR_TRY(memory_hop(b, route, b->site_of[from]));
    if (!both_host)
        TSR_TRY(memory_hop(b, route, b->site_of[from]));
    TSR_TRY(socket_hop(b, route, b->site_of[from], b->site_of[to]));
    TSR_TRY(host_hops(b, route, to, 1));
    if (!both_host && (c2c_rate(b, from) > 0 || !gpu_of(b, from)) && (c2c_rate(b, to) > 0 || !gpu_of(b, to)))
        route->kind = TSR_LINK_C2C;
out:
    return status;
}

/* Whether network adapters reach the device's own memory. */
static bool is_reached_directly(const struct build *b, int device, tsr_network_kind network)
{
    const tsr_gpu *gpu = gpu_of(b, device);
    const tsr_card *card = gpu ? tsr_card_by_name(gpu->name) : NULL;
    return card && card->peer_access == TSR_YES && !gpu->integrated && network != TSR_NETWORK_ETHERNET;
}

/* Between a device and host memory from which others copy; direction 0 is out. */
static tsr_status staging_hops(struct build *b, tsr_link_route *route, int device, int direction)
{
    tsr_status status = TSR_OK;
    TSR_TRY(host_hops(b, route, device, direction));
    TSR_TRY(memory_hop(b, route, b->site_of[device]));
    if (gpu_of(b, device)) /* written and read */
        TSR_TRY(memory_hop(b, route, b->site_of[device]));
out:
    return status;
}

/* The machine of a device, for its network. */
static const tsr_machine *machine_of(const struct build *b, int device)
{
    return b->outside ? b->outside : &b->topo->machines[b->machine_at[b->links->machine[device]]];
}

/* Between a device and the adapters of its machine; direction 0 is out. */
static tsr_status adapter_hops(struct build *b, tsr_link_route *route, int device, int direction)
{
    tsr_status status = TSR_OK;
    const tsr_machine *machine = machine_of(b, device);
    TSR_TRY(hop(b, route, &b->network[b->links->machine[device]],
                machine->network_bytes_per_s * network_efficiency[machine->network], false, direction));
    status = is_reached_directly(b, device, machine->network) ? pcie_hops(b, route, device, -1, direction)
                                                              : staging_hops(b, route, device, direction);
out:
    return status;
}

static tsr_status route_network(struct build *b, tsr_link_route *route, int from, int to)
{
    tsr_status status = TSR_OK;
    const int ends[2] = {from, to};
    route->kind = TSR_LINK_NETWORK;
    route->guessed = true; /* how adapters reach devices */
    for (int side = 0; side < 2; side++)
        route->latency_ns = TSR_MAX(route->latency_ns, machine_of(b, ends[side])->network_latency_ns);
    for (int side = 0; side < 2; side++)
        TSR_TRY(adapter_hops(b, route, ends[side], side));
out:
    return status;
}

static tsr_status find_route(struct build *b, int from, int to, tsr_link_route *route)
{
    const tsr_gpu *x = gpu_of(b, from), *y = gpu_of(b, to);
    bool guessed;
    *route = (tsr_link_route){.kind = TSR_LINK_SAME};
    if (from == to)
        return TSR_OK;
    if (b->links->machine[from] != b->links->machine[to])
        return route_network(b, route, from, to);
    if (!x || !y)
        return route_host(b, route, from, to);
    int i = b->devices->devices[from].gpu, j = b->devices->devices[to].gpu;
    if (i == j) {
        route->latency_ns = host_hop_ns;
        return hop(b, route, &b->gpu_memory[i], x->memory_bytes_per_s / 2, x->guessed & TSR_GPU_BANDWIDTH, 0);
    }
    const tsr_gpu_pair *pair = &b->topo->gpu_pairs[i][j];
    if (pair->n_nvlinks > 0 && pair->nvlink_bytes_per_s > 0)
        return route_nvlink(b, route, from, to, pair);
    bool peer = has_peer_access(b, from, to, pair, &guessed);
    route->guessed = guessed;
    return peer ? route_pcie(b, route, from, to) : route_host(b, route, from, to);
}

static double route_rate(const tsr_links *links, const tsr_link_route *route)
{
    double rate = INFINITY;
    for (int i = 0; i < route->n_hops; i++) {
        int crossings = 0; /* a wire may be crossed twice: staged bytes are written and read */
        for (int j = 0; j < route->n_hops; j++)
            crossings += route->hops[j] == route->hops[i];
        double wire = links->wires[route->hops[i] / 2].bytes_per_s / crossings;
        if (wire > 0 && wire < rate)
            rate = wire;
    }
    return rate;
}

/* A ring continues with the nearest device not yet visited, of the same machine while there is one, so that
 * neighbours in the machine are neighbours in the ring and each uplink is crossed as rarely as possible. */
void tsr_links_order_ring(tsr_links *links)
{
    bool visited[TSR_MAX_DEVICES] = {false};
    int at = 0;
    for (int i = 0; i < links->n_devices; i++) {
        int next = -1;
        double best = -1;
        for (int d = 0; i > 0 && d < links->n_devices; d++) {
            const tsr_link_route *route = tsr_links_route(links, at, d);
            /* as fast, then as near, as can be */
            double score = route_rate(links, route) / (1 + route->n_hops);
            score *= links->machine[at] == links->machine[d] ? 1 : 1e-12;
            if (!visited[d] && score > best) {
                best = score;
                next = d;
            }
        }
        at = i > 0 ? next : 0;
        visited[at] = true;
        links->ring[i] = at;
    }
}

/* -- the object -- */

static tsr_status build_routes(struct build *b)
{
    tsr_status status = TSR_OK;
    find_sites(b);
    find_machines(b);
    for (int from = 0; from < b->devices->n_devices; from++)
        for (int to = 0; to < b->devices->n_devices; to++)
            TSR_TRY(find_route(b, from, to, &b->links->routes[from * b->devices->n_devices + to]));
    for (int d = 0; b->outside && d < b->devices->n_devices; d++)
        for (int direction = 0; direction < 2; direction++) {
            TSR_TRY(staging_hops(b, tsr_links_end(b->links, d, TSR_LINKS_MEMORY, direction), d, direction));
            TSR_TRY(adapter_hops(b, tsr_links_end(b->links, d, TSR_LINKS_NETWORK, direction), d, direction));
        }
out:
    return status;
}

static void unset(uint16_t *slots, size_t n)
{
    for (size_t i = 0; i < n; i++)
        slots[i] = UNSET;
}

static void start_build(struct build *b)
{
    unset(b->bridge_wires, (size_t)b->topo->n_bridges);
    unset(b->gpu_pcie, TSR_MAX_GPUS);
    unset(b->gpu_port, TSR_MAX_GPUS);
    unset(b->gpu_c2c, TSR_MAX_GPUS);
    unset(b->gpu_memory, TSR_MAX_GPUS);
    unset(&b->nvlink[0][0], (size_t)TSR_MAX_GPUS * TSR_MAX_GPUS);
    unset(b->host_port, TSR_MAX_DEVICES);
    unset(b->memory, TSR_MAX_DEVICES);
    unset(b->network, TSR_MAX_DEVICES);
    unset(&b->between[0][0], (size_t)TSR_MAX_DEVICES * TSR_MAX_DEVICES);
}

tsr_status tsr_links_alloc(int n_devices, int n_wires, bool is_part, tsr_links **links_out)
{
    tsr_status status = TSR_OK;
    tsr_links *links = NULL;
    TSR_TRY(TSR_NEW(&links, "the link model"));
    links->n_devices = n_devices;
    links->n_wires = n_wires;
    links->n_routes = n_devices * (n_devices + (is_part ? TSR_LINKS_ENDS : 0));
    TSR_TRY(tsr_mem_array((size_t)links->n_routes, sizeof *links->routes, "routes between devices",
                          &links->routes));
    TSR_TRY(tsr_mem_array((size_t)n_wires, sizeof *links->wires, "links between devices", &links->wires));
    *links_out = links;
    links = NULL;
out:
    tsr_links_destroy(links);
    return status;
}

static tsr_status create(const tsr_topology *topo, const tsr_device_list *devices, const tsr_machine *outside,
                         tsr_links **links_out)
{
    tsr_status status = TSR_OK;
    tsr_links *links = NULL;
    struct build *b = NULL;
    TSR_TRY(tsr_links_alloc(devices->n_devices, TSR_LINKS_MAX_WIRES, outside != NULL, &links));
    links->n_wires = 0;
    TSR_TRY(TSR_NEW(&b, "the link model"));
    *b = (struct build){.topo = topo, .devices = devices, .links = links, .outside = outside};
    TSR_TRY(tsr_mem_array((size_t)topo->n_bridges, sizeof *b->bridge_wires, "PCI bridges", &b->bridge_wires));
    start_build(b);
    TSR_TRY(build_routes(b));
    for (int d = 0; d < devices->n_devices; d++)
        links->is_gpu[d] = devices->devices[d].kind == TSR_DEVICE_CUDA;
    tsr_links_order_ring(links);
    *links_out = links;
    links = NULL;
out:
    if (b)
        tsr_mem_free(b->bridge_wires);
    tsr_mem_free(b);
    tsr_links_destroy(links);
    return status;
}

tsr_status tsr_links_create(const tsr_topology *topo, const tsr_device_list *devices, tsr_links **links_out)
{
    return create(topo, devices, NULL, links_out);
}

tsr_status tsr_links_create_part(const tsr_topology *topo, const tsr_device_list *devices,
                                 const tsr_machine *network, tsr_links **links_out)
{
    return create(topo, devices, network, links_out);
}

tsr_status tsr_links_copy(const tsr_links *links, tsr_links **copy_out)
{
    tsr_status status = TSR_OK;
    tsr_links *copy = NULL;
    TSR_TRY(tsr_links_alloc(links->n_devices, links->n_wires, false, &copy));
    tsr_wire *const wires = copy->wires;
    tsr_link_route *const routes = copy->routes;
    *copy = *links;
    copy->wires = wires;
    copy->routes = routes;
    copy->n_routes = links->n_devices * links->n_devices;
    copy->measured = NULL;
    copy->n_measured = copy->n_room = 0;
    TSR_TRY(tsr_links_reserve(copy, links->n_measured));
    memcpy(copy->wires, links->wires, (size_t)links->n_wires * sizeof *copy->wires);
    memcpy(copy->routes, links->routes, (size_t)copy->n_routes * sizeof *copy->routes);
    if (links->n_measured > 0)
        memcpy(copy->measured, links->measured, (size_t)links->n_measured * sizeof *copy->measured);
    copy->n_measured = links->n_measured;
    *copy_out = copy;
    copy = NULL;
out:
    tsr_links_destroy(copy);
    return status;
}

void tsr_links_destroy(tsr_links *links)
{
    if (!links)
        return;
    tsr_mem_free(links->measured);
    tsr_mem_free(links->wires);
    tsr_mem_free(links->routes);
    tsr_mem_free(links);
}

int tsr_links_n_devices(const tsr_links *links)
{
    return links->n_devices;
}

tsr_status tsr_links_pair(const tsr_links *links, int from, int to, tsr_link *link_out)
{
    if (from < 0 || to < 0 || from >= links->n_devices || to >= links->n_devices)
        return tsr_fail(TSR_ERR_INVALID, "no link from device %d to device %d of %d device%s", from, to,
                        links->n_devices, tsr_plural(links->n_devices));
    const tsr_link_route *route = tsr_links_route(links, from, to);
    *link_out = (tsr_link){.kind = route->kind,
                           .bytes_per_s = route_rate(links, route),
                           .latency_ns = route->latency_ns,
                           .guessed = route->guessed};
    (void)tsr_links_measured_link(links, from, to, link_out);
    return TSR_OK;
}

double tsr_links_copy_ns(const tsr_links *links, int from, int to, uint64_t bytes)
{
    if (from == to || from < 0 || to < 0 || from >= links->n_devices || to >= links->n_devices)
        return 0;
    double measured = tsr_links_measured_ns(links, from, tsr_device_set_one(to), bytes);
    if (measured >= 0)
        return measured;
    const tsr_link_route *route = tsr_links_route(links, from, to);
    return route->latency_ns + (double)bytes / route_rate(links, route) * 1e9;
}

const char *tsr_link_kind_name(tsr_link_kind kind)
{
    static const char *const names[] = {"same", "nvlink", "nvswitch", "c2c",    "memory",
                                        "pcie", "socket", "staged",   "network"};
    return (unsigned)kind < sizeof names / sizeof *names ? names[kind] : "unknown";
}
