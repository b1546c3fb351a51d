/* The links of several processes, joined: each process knows those of its own machine.
 *
 * A route between processes is the end of one device followed by the end of the other, at the network's
 * adapters, or in the memory of their machine. The latter is an assumption: what MPI and NCCL do between two
 * processes of one machine depends on them, and NCCL may copy between GPUs directly. */
#include "topo/links/links.h"

#include <string.h>

#include "core/mem.h"

/* A copy into memory that processes share and one out of it; twice the host_hop_ns of links.c. */
static const double shared_memory_ns = 1000;

struct join {
    const tsr_links_process *processes;
    tsr_links *links;
    int process[TSR_MAX_DEVICES];    /* of each device */
    int first[TSR_MAX_DEVICES];      /* device of each process */
    int first_wire[TSR_MAX_DEVICES]; /* of each process */
    int adapters[TSR_MAX_DEVICES];   /* of each process: the wire of the network in its part */
};

/* The first process on the machine of process p. */
static int first_there(const struct join *j, int p)
{
    int q = 0;
    while (j->processes[q].machine != j->processes[p].machine)
        q++;
    return q;
}

/* Append the hops of a route in the part of process p. */
static tsr_status append(const struct join *j, int p, const tsr_link_route *piece, tsr_link_route *route)
{
    if (route->n_hops + piece->n_hops > TSR_LINKS_MAX_HOPS)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "process %d: its PCI tree is deeper than %d", p,
                        TSR_LINKS_MAX_HOPS / 2);
    for (int i = 0; i < piece->n_hops; i++) {
        const int wire = piece->hops[i] / 2, owner = wire == j->adapters[p] ? first_there(j, p) : p;
        const int joined = j->first_wire[owner] + (owner == p ? wire : j->adapters[owner]);
        route->hops[route->n_hops++] = (uint16_t)(2 * joined + piece->hops[i] % 2);
    }
    route->latency_ns += piece->latency_ns;
    route->guessed = route->guessed || piece->guessed;
    return TSR_OK;
}

static tsr_status join_route(const struct join *j, int from, int to, tsr_link_route *route)
{
    tsr_status status = TSR_OK;
    const int p = j->process[from], q = j->process[to];
    const tsr_links_process *x = &j->processes[p], *y = &j->processes[q];
    const bool is_near = x->machine == y->machine;
    const tsr_links_end_kind end = is_near ? TSR_LINKS_MEMORY : TSR_LINKS_NETWORK;
    if (p == q) {
        const tsr_link_route *own = tsr_links_route(x->part, from - j->first[p], to - j->first[p]);
        *route = (tsr_link_route){.kind = own->kind};
        return append(j, p, own, route);
    }
    *route = (tsr_link_route){.kind = is_near ? TSR_LINK_STAGED : TSR_LINK_NETWORK, .guessed = true};
    route->latency_ns = is_near ? shared_memory_ns : TSR_MAX(x->network_latency_ns, y->network_latency_ns);
    TSR_TRY(append(j, p, tsr_links_end(x->part, from - j->first[p], end, 0), route));
    TSR_TRY(append(j, q, tsr_links_end(y->part, to - j->first[q], end, 1), route));
out:
    return status;
}

/* Wires and devices of process p, which is the next. */
static void add_process(struct join *j, int p)
{
    const tsr_links *part = j->processes[p].part;
    tsr_links *links = j->links;
    j->first[p] = links->n_devices;
    j->first_wire[p] = links->n_wires;
    j->adapters[p] = part->n_devices ? tsr_links_end(part, 0, TSR_LINKS_NETWORK, 0)->hops[0] / 2 : -1;
    memcpy(links->wires + links->n_wires, part->wires, (size_t)part->n_wires * sizeof *part->wires);
    links->n_wires += part->n_wires;
    for (int d = 0; d < part->n_devices; d++) {
        const int at = links->n_devices++;
        links->is_gpu[at] = part->is_gpu[d];
        links->machine[at] = j->process[at] = p;
        links->host[at] = j->processes[p].machine;
    }
}

tsr_status tsr_links_join(const tsr_links_process *processes, int n, tsr_links **links_out)
{
    tsr_status status = TSR_OK;
    struct join j = {.processes = processes};
    int n_devices = 0, n_wires = 0;
    for (int p = 0; p < n; p++) {
        n_devices += processes[p].part->n_devices;
        n_wires += processes[p].part->n_wires;
    }
    if (n_wires > TSR_LINKS_MAX_WIRES)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "the processes have more than %d links between their devices",
                        TSR_LINKS_MAX_WIRES);
    TSR_TRY(tsr_links_alloc(n_devices, n_wires, false, &j.links));
    j.links->n_devices = j.links->n_wires = 0;
    j.links->n_machines = n;
    for (int p = 0; p < n; p++)
        add_process(&j, p);
    for (int from = 0; from < n_devices; from++)
        for (int to = 0; to < n_devices; to++)
            TSR_TRY(join_route(&j, from, to, &j.links->routes[from * n_devices + to]));
    tsr_links_order_ring(j.links);
    *links_out = j.links;
    j.links = NULL;
out:
    tsr_links_destroy(j.links);
    return status;
}
