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

static const double gpu_base_ns = 2000, host_base_ns = 1000, ring_base_ns = 6600, tree_base_ns = 6800;
static const double tree_step = 5.0 / 2.7, tree_efficiency = 0.9; /* over a network; of bandwidth */

/* The devices of a mask in the order of the ring: those of machine i are [first[i], first[i + 1]). */
struct set {
    int n, devices[TSR_MAX_DEVICES];
    int n_machines, first[TSR_MAX_DEVICES + 1];
    bool all_gpus, any_gpu, one_host;
};

/* Crossings of each wire and direction by the routes added so far. */
struct load {
    const tsr_links *links;
    float crossings[2 * TSR_LINKS_MAX_WIRES];
    double latency_ns, between_ns; /* largest inside a machine, and between machines */
    tsr_link_kind slowest;
    bool guessed;
};

static struct set set_of(const tsr_links *links, tsr_device_set mask)
{
    struct set set = {.all_gpus = true, .one_host = true};
    for (int i = 0; i < links->n_devices; i++) {
        int device = links->ring[i];
        if (!tsr_device_set_has(mask, device))
            continue;
        if (set.n == 0 || links->machine[device] != links->machine[set.devices[set.n - 1]])
            set.first[set.n_machines++] = set.n;
        set.devices[set.n++] = device;
        set.one_host = set.one_host && links->host[device] == links->host[set.devices[0]];
        set.all_gpus = set.all_gpus && links->is_gpu[device];
        set.any_gpu = set.any_gpu || links->is_gpu[device];
    }
    set.first[set.n_machines] = set.n;
    return set;
}

static int count_on(const struct set *set, int machine)
{
    return set->first[machine + 1] - set->first[machine];
}

static void begin(struct load *load, const tsr_links *links)
{
    load->links = links;
    load->latency_ns = load->between_ns = 0;
    load->slowest = TSR_LINK_SAME;
    load->guessed = false;
    memset(load->crossings, 0, 2 * (size_t)links->n_wires * sizeof *load->crossings);
}

static void add_route(struct load *load, int from, int to, double weight)
{
    const tsr_link_route *route = tsr_links_route(load->links, from, to);
    const int *machine = load->links->machine;
    double *latency_ns = machine[from] != machine[to] ? &load->between_ns : &load->latency_ns;
    for (int i = 0; i < route->n_hops; i++)
        load->crossings[route->hops[i]] += (float)weight;
    *latency_ns = TSR_MAX(*latency_ns, route->latency_ns);
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

/* -- by kernels: inside a process, or between GPUs of a machine -- */

static void add_all_pairs(const struct set *set, struct load *load)
{
    for (int i = 0; i < set->n; i++)
        for (int j = 0; j < set->n; j++)
            if (i != j)
                add_route(load, set->devices[i], set->devices[j], 1);
}

static void take_kernels(const struct set *set, tsr_sum_bytes bytes, struct load *load,
                         tsr_all_reduce_cost *cost)
{
    const double wire = (double)(set->any_gpu ? bytes.narrow : bytes.part);
    const double base = set->all_gpus ? gpu_base_ns : host_base_ns, per_byte = ns_per_byte(load);
    const double latency_ns = TSR_MAX(load->latency_ns, load->between_ns);
    take_if_less(cost, load, TSR_ALL_REDUCE_ONE_SHOT, base + latency_ns, per_byte * wire);
    if (!set->all_gpus ||
        load->slowest != TSR_LINK_STAGED) /* without peer access kernels push to all others */
        take_if_less(cost, load, TSR_ALL_REDUCE_TWO_SHOT, base + 2 * latency_ns,
                     per_byte * 2 * wire / set->n);
}

/* -- NCCL -- */

/* Routes along the devices of each machine, with `between` on those to the next machine. Over several
 * machines the devices take turns in being the first of their machine, as in NCCL's channels; `both_ways`:
 * also back along the devices. */
static void add_chain(const struct set *set, double between, bool both_ways, struct load *load)
{
    for (int m = 0; m < set->n_machines; m++) {
        const int next = (m + 1) % set->n_machines, k = count_on(set, m);
        const int turns = TSR_MAX(k, count_on(set, next));
        const int *here = &set->devices[set->first[m]], *there = &set->devices[set->first[next]];
        const double inside = set->n_machines > 1 ? (k - 1.0) / k : 1;
        for (int i = 0; i < k && k > 1; i++) {
            add_route(load, here[i], here[(i + 1) % k], inside);
            if (both_ways)
                add_route(load, here[(i + 1) % k], here[i], inside);
        }
        for (int i = 0; i < turns && set->n_machines > 1; i++)
            add_route(load, here[i % k], there[i % count_on(set, next)], between / turns);
    }
}

static void take_ring(const struct set *set, uint64_t bytes, struct load *load, tsr_all_reduce_cost *cost)
{
    const double n = set->n, m = set->n_machines;
    begin(load, load->links);
    add_chain(set, 1, false, load);
    take_if_less(cost, load, TSR_ALL_REDUCE_RING,
                 ring_base_ns + 2 * (n - m) * load->latency_ns + 2 * (m - 1) * load->between_ns,
                 ns_per_byte(load) * 2 * (n - 1) / n * (double)bytes);
}

static void take_tree(const struct set *set, uint64_t bytes, struct load *load, tsr_all_reduce_cost *cost)
{
    const double m = set->n_machines;
    int most = 1;
    if (set->n_machines < 2)
        return;
    for (int i = 0; i < set->n_machines; i++)
        most = TSR_MAX(most, count_on(set, i));
    begin(load, load->links);
    add_chain(set, 2 * (m - 1) / m, true, load);
    take_if_less(cost, load, TSR_ALL_REDUCE_TREE,
                 tree_base_ns + 2 * (most - 1) * load->latency_ns +
                     2 * floor(log2(m)) * tree_step * load->between_ns,
                 ns_per_byte(load) * (double)bytes / tree_efficiency);
}

/* -- MPI between processes -- */

static void take_machines(const struct set *set, tsr_sum_bytes bytes, struct load *load,
                          tsr_all_reduce_cost *cost)
{
    const double m = set->n_machines, steps = ceil(log2(m));
    begin(load, load->links);
    for (int i = 0; i < set->n_machines; i++)
        add_route(load, set->devices[set->first[i]], set->devices[set->first[(i + 1) % set->n_machines]], 1);
    const double net_ns = bytes.n_messages * load->between_ns, B = ns_per_byte(load) * (double)bytes.between;
    const tsr_link_kind slowest = load->slowest;
    begin(load, load->links);
    for (int i = 0; i < set->n_machines; i++)
        for (int d = set->first[i] + 1; d < set->first[i + 1]; d++) {
            add_route(load, set->devices[d], set->devices[set->first[i]], 1);
            add_route(load, set->devices[set->first[i]], set->devices[d], 1);
        }
    const double base = host_base_ns + 2 * load->latency_ns;
    const double local_ns = ns_per_byte(load) * (double)(set->any_gpu ? bytes.narrow : bytes.part);
    load->slowest = TSR_MAX(load->slowest, slowest);
    load->guessed = true;
    take_if_less(cost, load, TSR_ALL_REDUCE_MACHINES, base + steps * net_ns, local_ns + steps * B);
    take_if_less(cost, load, TSR_ALL_REDUCE_MACHINES, base + 2 * steps * net_ns,
                 local_ns + 2 * (m - 1) / m * B);
}

void tsr_links_all_reduce_bytes(const tsr_links *links, uint64_t device_mask, tsr_sum_bytes bytes,
                                tsr_all_reduce_cost *cost_out)
{
    const struct set set = set_of(links, device_mask);
    struct load load;
    memset(cost_out, 0, sizeof *cost_out);
    if (set.n < 2)
        return;
    begin(&load, links);
    add_all_pairs(&set, &load);
    double measured = tsr_links_measured_ns(links, -1, device_mask, bytes.part);
    if (measured >= 0) {
        *cost_out = (tsr_all_reduce_cost){
            .ns = measured, .algorithm = TSR_ALL_REDUCE_MEASURED, .slowest = load.slowest, .guessed = false};
        return;
    }
    if (!set.all_gpus && set.n_machines > 1) {
        take_machines(&set, bytes, &load, cost_out);
        return;
    }
    if (set.n_machines == 1 || (set.all_gpus && set.one_host))
        take_kernels(&set, bytes, &load, cost_out);
    if (set.all_gpus) {
        take_ring(&set, bytes.part, &load, cost_out);
        take_tree(&set, bytes.part, &load, cost_out);
    }
}

void tsr_links_all_reduce(const tsr_links *links, uint64_t device_mask, uint64_t bytes,
                          tsr_all_reduce_cost *cost_out)
{
    tsr_links_all_reduce_bytes(
        links, device_mask,
        (tsr_sum_bytes){.part = bytes, .narrow = bytes, .between = bytes, .n_messages = 1}, cost_out);
}

double tsr_links_all_reduce_ns(const tsr_links *links, uint64_t device_mask, uint64_t bytes)
{
    tsr_all_reduce_cost cost;
    tsr_links_all_reduce(links, device_mask, bytes, &cost);
    return cost.ns;
}

const char *tsr_all_reduce_algorithm_name(tsr_all_reduce_algorithm algorithm)
{
    static const char *const names[] = {"none",     "one-shot", "two-shot", "ring",
                                        "measured", "tree",     "machines"};
    return (unsigned)algorithm < sizeof names / sizeof *names ? names[algorithm] : "unknown";
}
