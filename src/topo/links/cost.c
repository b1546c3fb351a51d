/* The time of an all-reduce; formulas at tsr_links_all_reduce_ns().
 *
 * The bandwidth term counts, for every wire and direction, the routes in use that cross it. The constants
 * are guesses until measured: ring_base is NCCL's (src/graph/tuning.cc, ring, LL); a collective of this
 * library runs inside the captured step, so its base is the time of setting and polling a flag, without a
 * launch. */
#include "topo/links/links.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"

static const double gpu_base_ns = 2000, host_base_ns = 1000, ring_base_ns = 6600;

/* The devices of a mask. */
struct set {
    int n, devices[TSR_MAX_DEVICES];
};

/* Crossings of each wire and direction by the routes added so far. */
struct load {
    const tsr_links *links;
    float crossings[2 * TSR_LINKS_MAX_WIRES];
    double latency_ns; /* largest */
    tsr_link_kind slowest;
    bool guessed;
};

static struct set set_of(const tsr_links *links, tsr_device_set mask)
{
    struct set set = {0};
    for (int i = 0; i < links->n_devices; i++) {
        int device = links->ring[i];
        if (tsr_device_set_has(mask, device))
            set.devices[set.n++] = device;
    }
    return set;
}

static void begin(struct load *load, const tsr_links *links)
{
    load->links = links;
    load->latency_ns = 0;
    load->slowest = TSR_LINK_SAME;
    load->guessed = false;
    memset(load->crossings, 0, 2 * (size_t)links->n_wires * sizeof *load->crossings);
}

static void add_route(struct load *load, int from, int to)
{
    const tsr_link_route *route = tsr_links_route(load->links, from, to);
    for (int i = 0; i < route->n_hops; i++)
        load->crossings[route->hops[i]] += 1;
    load->latency_ns = TSR_MAX(load->latency_ns, route->latency_ns);
    load->slowest = TSR_MAX(load->slowest, route->kind);
    load->guessed = load->guessed || route->guessed;
}

/* Nanoseconds per byte carried by every route: those of the most loaded wire. */
static double ns_per_byte(const struct load *load)
{
    double most = 0;
    for (int i = 0; i < 2 * load->links->n_wires; i++) {
        double rate = load->links->wires[i / 2].bytes_per_s;
        if (load->crossings[i] > 0 && rate > 0)
            most = TSR_MAX(most, load->crossings[i] / rate);
    }
    return most * 1e9;
}

static void take_if_less(tsr_all_reduce_cost *cost, const struct load *load,
                         tsr_all_reduce_algorithm algorithm, double latency_ns, double bytes_ns)
{
    if (cost->algorithm != TSR_ALL_REDUCE_NONE && cost->ns <= latency_ns + bytes_ns)
        return;
    *cost = (tsr_all_reduce_cost){.ns = latency_ns + bytes_ns,
                                  .latency_ns = latency_ns,
                                  .algorithm = algorithm,
                                  .slowest = load->slowest,
                                  .guessed = load->guessed};
}

void tsr_links_all_reduce_narrow(const tsr_links *links, uint64_t device_mask, uint64_t bytes,
                                 uint64_t narrow_bytes, tsr_all_reduce_cost *cost_out)
{
    struct set set = set_of(links, device_mask);
    struct load load;
    bool all_gpus = true, any_gpu = false;
    double n = set.n, size = (double)bytes;
    memset(cost_out, 0, sizeof *cost_out);
    if (set.n < 2)
        return;

    begin(&load, links);
    for (int i = 0; i < set.n; i++) {
        all_gpus = all_gpus && links->is_gpu[set.devices[i]];
        any_gpu = any_gpu || links->is_gpu[set.devices[i]];
        for (int j = 0; j < set.n; j++)
            if (i != j)
                add_route(&load, set.devices[i], set.devices[j]);
    }
    const double wire = any_gpu ? (double)narrow_bytes : size;
    double base = all_gpus ? gpu_base_ns : host_base_ns, per_byte = ns_per_byte(&load);
    take_if_less(cost_out, &load, TSR_ALL_REDUCE_ONE_SHOT, base + load.latency_ns, per_byte * wire);
    if (!all_gpus || load.slowest != TSR_LINK_STAGED) /* kernels without peer access push to all others */
        take_if_less(cost_out, &load, TSR_ALL_REDUCE_TWO_SHOT, base + 2 * load.latency_ns,
                     per_byte * 2 * wire / n);

    double measured = tsr_links_measured_ns(links, -1, device_mask, bytes);
    if (measured >= 0) {
        *cost_out = (tsr_all_reduce_cost){
            .ns = measured, .algorithm = TSR_ALL_REDUCE_MEASURED, .slowest = load.slowest, .guessed = false};
        return;
    }
    if (!all_gpus)
        return;
    begin(&load, links);
    for (int i = 0; i < set.n; i++)
        add_route(&load, set.devices[i], set.devices[(i + 1) % set.n]);
    take_if_less(cost_out, &load, TSR_ALL_REDUCE_RING, ring_base_ns + 2 * (n - 1) * load.latency_ns,
                 ns_per_byte(&load) * 2 * (n - 1) / n * size);
}

void tsr_links_all_reduce(const tsr_links *links, uint64_t device_mask, uint64_t bytes,
                          tsr_all_reduce_cost *cost_out)
{
    tsr_links_all_reduce_narrow(links, device_mask, bytes, bytes, cost_out);
}

double tsr_links_all_reduce_ns(const tsr_links *links, uint64_t device_mask, uint64_t bytes)
{
    tsr_all_reduce_cost cost;
    tsr_links_all_reduce(links, device_mask, bytes, &cost);
    return cost.ns;
}

const char *tsr_all_reduce_algorithm_name(tsr_all_reduce_algorithm algorithm)
{
    static const char *const names[] = {"none", "one-shot", "two-shot", "ring", "measured"};
    return (unsigned)algorithm < sizeof names / sizeof *names ? names[algorithm] : "unknown";
}
