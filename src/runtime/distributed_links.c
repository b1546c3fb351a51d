/* The links between the devices of several processes; see distributed.h.
 *
 * Each process has the links of its own devices, and shares them with the others, so that all of them join
 * the same parts (topo/links/join.c). Names of hosts say which processes are on one machine. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "runtime/distributed.h"
#include "topo/links/links.h"
#include "topo/network.h"

/* What a process sends before its links. */
typedef struct introduction {
    char host[64];
    char network[64]; /* of tsr_runtime_config; "": not given */
    tsr_machine adapters;
    int32_t n_wires;
} introduction;

/* Where nothing is known: what most servers have. */
static const double assumed_bytes_per_s = 10e9 / 8;

static tsr_status find_network(tsr_runtime *rt, const char *given, introduction *mine)
{
    tsr_machine *a = &mine->adapters;
    const char *origin = "given";
    (void)!gethostname(mine->host, sizeof mine->host - 1);
    snprintf(mine->network, sizeof mine->network, "%s", given ? given : "");
    if (given) {
        tsr_status status = tsr_network_parse(given, a);
        if (status != TSR_OK)
            return status;
    } else if (tsr_network_find("", a)) {
        origin = "the kernel's";
    } else {
        tsr_network_set(TSR_NETWORK_ETHERNET, 1, assumed_bytes_per_s, 0, a);
        origin = "assumed";
    }
    tsr_log(&rt->logger, TSR_LOG_DEBUG, "network to other machines: %d x %s %.3g Gb/s, %.3g us (%s)",
            a->n_adapters, tsr_network_kind_name(a->network), a->network_bytes_per_s / a->n_adapters * 8e-9,
            a->network_latency_ns * 1e-3, origin);
    return TSR_OK;
}

static tsr_status check_network(const introduction *first, const introduction *other, int r)
{
    const bool is_given = *first->network, other_is = *other->network;
    const tsr_machine *a = &first->adapters, *b = &other->adapters;
    if (is_given == other_is && (!is_given || (a->network == b->network && a->n_adapters == b->n_adapters &&
                                               a->network_bytes_per_s == b->network_bytes_per_s &&
                                               a->network_latency_ns == b->network_latency_ns)))
        return TSR_OK;
    return tsr_fail(TSR_ERR_INVALID,
                    "the network of the config is %s%s%s in process 0 and %s%s%s in process %d; give all "
                    "processes the same, or none",
                    is_given ? "'" : "", is_given ? first->network : "not given", is_given ? "'" : "",
                    other_is ? "'" : "", other_is ? other->network : "not given", other_is ? "'" : "", r);
}

/* Share *part of process r, which the other processes get. */
static tsr_status share_part(tsr_runtime *rt, int r, int n_devices, introduction *of, tsr_links **part)
{
    tsr_status status = TSR_OK;
    const char *what = "sharing links";
    TSR_TRY(tsr_processes_share(rt->processes, r, TSR_OK, of, sizeof *of, sizeof *of, 1, what));
    if (!*part)
        TSR_TRY(tsr_links_alloc(n_devices, of->n_wires, true, part));
    tsr_links *links = *part;
    const size_t wires = (size_t)links->n_wires * sizeof *links->wires;
    const size_t routes = (size_t)links->n_routes * sizeof *links->routes;
    TSR_TRY(tsr_processes_share(rt->processes, r, TSR_OK, links->wires, wires, wires, 1, what));
    TSR_TRY(tsr_processes_share(rt->processes, r, TSR_OK, links->routes, routes, routes, 1, what));
    TSR_TRY(tsr_processes_share(rt->processes, r, TSR_OK, links->is_gpu, sizeof links->is_gpu,
                                sizeof links->is_gpu, 1, what));
out:
    return status;
}

/* The number of the machine of process r: the first process on it. */
static int machine_of(const introduction *all, int r)
{
    int first = 0;
    while (strcmp(all[first].host, all[r].host) != 0)
        first++;
    return first;
}

tsr_status tsr_distributed_link(tsr_runtime *rt, const char *network, const tsr_topology *topo,
                                const tsr_device_list *list, const tsr_distributed_counts *counts)
{
    tsr_status status = TSR_OK;
    tsr_links *parts[TSR_MAX_DEVICES] = {NULL};
    tsr_links_process processes[TSR_MAX_DEVICES];
    introduction *all = NULL;
    const int n = tsr_processes_count(rt->processes), rank = tsr_processes_rank(rt->processes);
    if (n == 1)
        return TSR_OK;
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *all, "networks of processes", &all));
    TSR_TRY(find_network(rt, network, &all[rank]));
    TSR_TRY(tsr_links_create_part(topo, list, &all[rank].adapters, &parts[rank]));
    all[rank].n_wires = parts[rank]->n_wires;
    for (int r = 0; r < n; r++) {
        TSR_TRY(share_part(rt, r, counts->n_of[r], &all[r], &parts[r]));
        TSR_TRY(check_network(&all[0], &all[r], r));
        processes[r] = (tsr_links_process){.part = parts[r],
                                           .machine = machine_of(all, r),
                                           .network_latency_ns = all[r].adapters.network_latency_ns};
    }
    TSR_TRY(tsr_links_join(processes, n, &rt->links));
out:
    for (int r = 0; r < n; r++)
        tsr_links_destroy(parts[r]);
    tsr_mem_free(all);
    return status;
}
