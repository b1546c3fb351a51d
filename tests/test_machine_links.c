/* The link model: routes and all-reduce times of described machines, worked out by hand; measured values. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include <tsr/links.h>
#include <tsr/machine.h>

#include "support/failing_alloc.h"
#include "topo/links/links.h"
#include "topo/network.h"

static const double nvlink = 0.8, pcie = 0.76; /* parts of the nominal rates */

typedef struct world {
    tsr_topology *topo;
    tsr_device_list *devices;
    tsr_links *links;
} world;

static void ok(tsr_status status, const char *what)
{
    if (status != TSR_OK)
        fail_msg("%s: %s: %s", what, tsr_status_name(status), tsr_last_error());
}

static world open_world(const char *machine, const char *file, const char *cards, const char *devices)
{
    world w = {0};
    tsr_topology_config config = tsr_topology_config_default();
    config.cards = cards;
    ok(machine ? tsr_topology_parse(machine, &config, &w.topo) : tsr_topology_load(file, &config, &w.topo),
       machine ? machine : file);
    ok(tsr_device_list_create(w.topo, devices, NULL, &w.devices), devices ? devices : "devices");
    ok(tsr_links_create(w.topo, w.devices, &w.links), "links");
    return w;
}

static void close_world(world *w)
{
    tsr_links_destroy(w->links);
    tsr_device_list_destroy(w->devices);
    tsr_topology_destroy(w->topo);
}

static tsr_link pair(const world *w, int a, int b)
{
    tsr_link link;
    ok(tsr_links_pair(w->links, a, b, &link), "pair");
    return link;
}

static void assert_near(double value, double expected)
{
    if (!(value > expected * 0.999 && value < expected * 1.001))
        fail_msg("%g instead of %g", value, expected);
}

static void assert_pair(const world *w, int a, int b, tsr_link_kind kind, double bytes_per_s)
{
    tsr_link link = pair(w, a, b);
    if (link.kind != kind)
        fail_msg("%d to %d: %s instead of %s", a, b, tsr_link_kind_name(link.kind), tsr_link_kind_name(kind));
    assert_near(link.bytes_per_s, bytes_per_s);
}

/* -- machines in words -- */

static void a_bridge_of_nvlinks_joins_two_cards(void **state)
{
    (void)state;
    world w = open_world("2x rtx3090 nvlink, 1x rtx4060ti pcie4x8", NULL, NULL, NULL);
    assert_int_equal(tsr_links_n_devices(w.links), 3);
    assert_pair(&w, 0, 1, TSR_LINK_NVLINK, 4 * 14.0625e9 * nvlink);
    assert_true(pair(&w, 0, 1).latency_ns == 600);
    assert_true(pair(&w, 0, 1).guessed);
    /* GeForce cards reach each other through host memory only: up one link, down the slower other. */
    assert_pair(&w, 0, 2, TSR_LINK_STAGED, 15.7538e9 * pcie);
    assert_pair(&w, 2, 1, TSR_LINK_STAGED, 15.7538e9 * pcie);

    /* 1 MB over the bridge: one-shot is the same two ways and costs least: 2000 + 600 + 1e6 / 45 GB/s. */
    tsr_all_reduce_cost cost;
    tsr_links_all_reduce(w.links, 3, 1000000, &cost);
    assert_int_equal(cost.algorithm, TSR_ALL_REDUCE_ONE_SHOT);
    assert_int_equal(cost.slowest, TSR_LINK_NVLINK);
    assert_near(cost.ns, 2600 + 1e6 / 45.0);
    assert_near(cost.latency_ns, 2600);
    assert_near(tsr_links_all_reduce_ns(w.links, 3, 1000000), cost.ns);
    assert_near(tsr_links_copy_ns(w.links, 0, 1, 1000000), 600 + 1e6 / 45.0);
    assert_true(tsr_links_all_reduce_ns(w.links, 7, 1000000) > 2 * cost.ns);
    assert_true(tsr_links_all_reduce_ns(w.links, 1, 1000000) == 0);
    assert_true(tsr_links_all_reduce_ns(w.links, 0, 1000000) == 0);
    assert_true(tsr_links_all_reduce_ns(w.links, ~UINT64_C(7) | 1, 1000000) == 0);
    close_world(&w);
}

static void an_nvswitch_gives_every_pair_all_links(void **state)
{
    (void)state;
    world w = open_world("8x h100 nvswitch", NULL, NULL, NULL);
    for (int a = 0; a < 8; a++)
        for (int b = 0; b < 8; b++)
            if (a != b)
                assert_pair(&w, a, b, TSR_LINK_NVSWITCH, 450e9 * nvlink);
    /* Eight at once: each port takes in 7 times 2 / 8 of the bytes. */
    tsr_all_reduce_cost cost;
    tsr_links_all_reduce(w.links, 255, 64000000, &cost);
    assert_int_equal(cost.algorithm, TSR_ALL_REDUCE_TWO_SHOT);
    assert_near(cost.ns, 2000 + 2 * 600 + 64e6 * 7 * 2 / 8 / 360);
    tsr_links_all_reduce_bytes(w.links, 255, (tsr_sum_bytes){.part = 64000000, .narrow = 32000000}, &cost);
    assert_int_equal(cost.algorithm, TSR_ALL_REDUCE_TWO_SHOT);
    assert_near(cost.ns, 2000 + 2 * 600 + 32e6 * 7 * 2 / 8 / 360);
    tsr_links_all_reduce(w.links, 255, 4096, &cost);
    assert_int_equal(cost.algorithm, TSR_ALL_REDUCE_ONE_SHOT);
    assert_near(cost.ns, 2000 + 600 + 4096 * 7 / 360.0);
    close_world(&w);
}

/* Four cards, two behind each of two switches: routes between the halves share the uplinks. */
static void uplinks_are_shared(void **state)
{
    (void)state;
    world w = open_world("2x a100-pcie switch, 2x a100-pcie switch", NULL, NULL, NULL);
    double link = 31.5077e9 * pcie;
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++)
            if (a != b)
                assert_pair(&w, a, b, TSR_LINK_PCIE, link);
    tsr_all_reduce_cost inside, across, all;
    tsr_links_all_reduce(w.links, 3, 1 << 20, &inside);
    tsr_links_all_reduce(w.links, 5, 1 << 20, &across);
    assert_near(inside.ns, across.ns); /* alone, a route across is as fast */
    assert_near(inside.ns, 2000 + 1000 + (1 << 20) / link * 1e9);
    /* Two-shot over all: 4 routes of bytes / 2 through each uplink; a ring crosses it once, with 3 / 2. */
    tsr_links_all_reduce(w.links, 15, 1 << 30, &all);
    assert_int_equal(all.algorithm, TSR_ALL_REDUCE_RING);
    assert_near(all.ns, 6600 + 6 * 1000 + 1.5 * (1 << 30) / link * 1e9);
    tsr_links_all_reduce(w.links, 15, 65536, &all);
    assert_int_equal(all.algorithm, TSR_ALL_REDUCE_TWO_SHOT);
    assert_near(all.ns, 2000 + 2 * 1000 + 4 * 0.5 * 65536 / link * 1e9);
    close_world(&w);
}

/* Without peer access kernels push whole parts through host memory: two leave and two enter each card. A ring
 * has fewer bytes, and more steps. */
static void cards_without_peer_access_push_whole_parts(void **state)
{
    (void)state;
    world w = open_world("3x rtx4090, 1x host 64GiB 400GB/s", NULL, NULL, NULL);
    const double link = 31.5077e9 * pcie;
    tsr_all_reduce_cost cost;
    assert_pair(&w, 0, 1, TSR_LINK_STAGED, link);
    tsr_links_all_reduce(w.links, 7, 262144, &cost);
    assert_int_equal(cost.algorithm, TSR_ALL_REDUCE_ONE_SHOT);
    assert_int_equal(cost.slowest, TSR_LINK_STAGED);
    assert_near(cost.ns, 2000 + 2500 + 2 * 262144 / link * 1e9);
    tsr_links_all_reduce(w.links, 7, 1 << 20, &cost);
    assert_int_equal(cost.algorithm, TSR_ALL_REDUCE_RING);
    assert_near(cost.ns, 6600 + 4 * 2500 + 4.0 / 3 * (1 << 20) / link * 1e9);
    close_world(&w);
}

static void sockets_are_crossed_by_one_link(void **state)
{
    (void)state;
    world w = open_world("2x l4, 2x host 64GiB 100GB/s", NULL, NULL, NULL);
    /* No peer access between sockets: through host memory and the interconnect, 20.8 GB/s of UPI. */
    assert_pair(&w, 0, 1, TSR_LINK_STAGED, 20.8e9);
    assert_true(pair(&w, 0, 1).guessed);
    assert_near(pair(&w, 0, 1).latency_ns, 500 + 2 * 1000 + 300);
    close_world(&w);

    w = open_world("2x l4, 1x host", NULL, NULL, NULL);
    assert_pair(&w, 0, 1, TSR_LINK_PCIE, 31.5077e9 * pcie);
    close_world(&w);
}

static void host_devices_meet_in_memory(void **state)
{
    (void)state;
    world w = open_world("2x host 4cores 40GB/s 8GiB", NULL, NULL, "host:4");
    assert_pair(&w, 0, 1, TSR_LINK_MEMORY, 24e9); /* two cores at 12 GB/s */
    assert_pair(&w, 0, 2, TSR_LINK_SOCKET, 20.8e9);
    tsr_all_reduce_cost cost;
    tsr_links_all_reduce(w.links, 15, 32768, &cost);
    assert_true(cost.algorithm == TSR_ALL_REDUCE_ONE_SHOT || cost.algorithm == TSR_ALL_REDUCE_TWO_SHOT);
    assert_int_equal(cost.slowest, TSR_LINK_SOCKET);
    close_world(&w);

    w = open_world("1x rtx4090, 1x host 8cores", NULL, NULL, "cuda,host:1");
    assert_int_equal(pair(&w, 0, 1).kind, TSR_LINK_STAGED);
    tsr_links_all_reduce(w.links, 3, 1 << 30, &cost);
    assert_int_not_equal(cost.algorithm, TSR_ALL_REDUCE_RING); /* NCCL knows GPUs only */
    close_world(&w);
}

/* Grace and its GPU: 450 GB/s each way, and the host's memory is the narrowest. */
static void a_chip_to_chip_link_leads_to_the_host(void **state)
{
    (void)state;
    world w = open_world("1x gh200, host 72cores 480GiB 500GB/s", NULL, NULL, "cuda,host:1");
    assert_pair(&w, 0, 1, TSR_LINK_C2C, 500e9 / 2);
    assert_true(pair(&w, 0, 1).guessed);
    close_world(&w);
}

static void virtual_devices_share_a_gpu(void **state)
{
    (void)state;
    world w = open_world("1x rtx3090", NULL, NULL, "cuda:0,cuda:0");
    assert_pair(&w, 0, 1, TSR_LINK_SAME, 936e9 / 2);
    assert_true(tsr_links_copy_ns(w.links, 0, 0, 100) == 0);
    close_world(&w);
}

/* -- several machines -- */

static const double ib = 4096.0 / 4122, roce = 4096.0 / 4178, tcp = 1448.0 / 1538;

static void assert_all_reduce(const world *w, uint64_t devices, uint64_t bytes,
                              tsr_all_reduce_algorithm algorithm, double ns)
{
    tsr_all_reduce_cost cost;
    tsr_links_all_reduce(w->links, devices, bytes, &cost);
    if (cost.algorithm != algorithm)
        fail_msg("%s instead of %s", tsr_all_reduce_algorithm_name(cost.algorithm),
                 tsr_all_reduce_algorithm_name(algorithm));
    assert_near(cost.ns, ns);
}

/* All GPUs of a machine send over its adapters, which few bytes or the PCIe link of one pair do not fill. */
static void gpus_of_several_machines_have_the_ring_and_trees_of_nccl(void **state)
{
    (void)state;
    world w = open_world("2 nodes of 4x h100 nvswitch, ib 400Gb/s", NULL, NULL, NULL);
    const double link = 63.0154 * pcie, port = 450 * nvlink, net = 50 * ib;
    assert_pair(&w, 0, 1, TSR_LINK_NVSWITCH, port * 1e9);
    assert_pair(&w, 0, 4, TSR_LINK_NETWORK, link * 1e9);
    assert_true(pair(&w, 0, 4).latency_ns == 2700);
    assert_string_equal(tsr_link_kind_name(TSR_LINK_NETWORK), "network");
    assert_near(tsr_links_copy_ns(w.links, 7, 2, 1000000), 2700 + 1e6 / link);
    assert_all_reduce(&w, 255, 4096, TSR_ALL_REDUCE_RING, 6600 + 12 * 600 + 2 * 2700 + 1.75 * 4096 / net);
    assert_all_reduce(&w, 255, 64000000, TSR_ALL_REDUCE_TREE, 6800 + 6 * 600 + 2 * 5000 + 64e6 / net / 0.9);
    assert_all_reduce(&w, 0x11, 64000000, TSR_ALL_REDUCE_RING, 6600 + 2 * 2700 + 64e6 / link);
    /* Inside a machine what the machine has by itself: kernels over peer memory. */
    world alone = open_world("4x h100 nvswitch", NULL, NULL, NULL);
    tsr_all_reduce_cost cost;
    tsr_links_all_reduce(alone.links, 3, 4096, &cost);
    assert_int_equal(cost.algorithm, TSR_ALL_REDUCE_ONE_SHOT);
    assert_all_reduce(&w, 3, 4096, TSR_ALL_REDUCE_ONE_SHOT, cost.ns);
    close_world(&alone);
    close_world(&w);

    /* With an adapter for each, the PCIe links are the narrowest: each carries a quarter. */
    w = open_world("2 nodes of 4x h100 nvswitch, 4x ib 400Gb/s 5us", NULL, NULL, NULL);
    assert_true(pair(&w, 0, 4).latency_ns == 5000);
    assert_all_reduce(&w, 255, 64000000, TSR_ALL_REDUCE_TREE,
                      6800 + 6 * 600 + 2 * 5000 * 5 / 2.7 + 64e6 / (4 * link) / 0.9);
    close_world(&w);

    /* Eight machines: two trees have fewer steps than a ring. */
    w = open_world("8 nodes of t4, ib 100Gb/s", NULL, NULL, NULL);
    assert_all_reduce(&w, 255, 4096, TSR_ALL_REDUCE_TREE,
                      6800 + 2 * 3 * 5000 + 1.75 * 4096 / (15.7538 * pcie) / 0.9);
    close_world(&w);

    /* Unequal machines: the slower adapter, the higher latency. */
    w = open_world("1 node of t4, 2x ib 100Gb/s 3us, 1 node of t4, ib 10Gb/s 2us", NULL, NULL, NULL);
    assert_pair(&w, 0, 1, TSR_LINK_NETWORK, 1.25e9 * ib);
    assert_true(pair(&w, 0, 1).latency_ns == 3000);
    close_world(&w);
}

/* GeForce cards, and TCP, go through host memory: up a PCIe link, written, read. */
static void other_bytes_go_through_host_memory(void **state)
{
    (void)state;
    static const char *const machines[] = {
        "2 nodes of 2x rtx3090 nvlink, host 8 cores 64GiB 40GB/s, roce 400Gb/s 30us",
        "2 nodes of 2x a100 nvlink, host 8 cores 64GiB 40GB/s, ethernet 400Gb/s 30us"};
    for (int i = 0; i < 2; i++) {
        world w = open_world(machines[i], NULL, NULL, NULL);
        assert_pair(&w, 0, 2, TSR_LINK_NETWORK, 40e9 / 2);
        assert_true(pair(&w, 0, 2).latency_ns == 30000 + 2 * 1000);
        close_world(&w);
    }
    world w = open_world("2 nodes of 2x rtx3090 nvlink, ethernet 25Gb/s", NULL, NULL, NULL);
    assert_pair(&w, 0, 2, TSR_LINK_NETWORK, 25e9 / 8 * tcp);
    assert_true(pair(&w, 0, 2).latency_ns == 25000 + 2 * 1000);
    close_world(&w);
}

/* Parts are added up in each machine, at its first device; then MPI; then all read the sum. */
static void host_devices_of_several_machines_add_up_twice(void **state)
{
    (void)state;
    world w = open_world("2 nodes of host 8 cores 64GiB 100GB/s, roce 100Gb/s", NULL, NULL, "host:2");
    const double net = 12.5 * roce, port = 48; /* four cores at 12 GB/s */
    tsr_all_reduce_cost cost;
    assert_pair(&w, 0, 2, TSR_LINK_NETWORK, net * 1e9);
    assert_true(pair(&w, 0, 2).latency_ns == 3000);
    assert_all_reduce(&w, 15, 4096, TSR_ALL_REDUCE_MACHINES,
                      1000 + 2 * 500 + 4096 / port + 3000 + 4096 / net);
    assert_all_reduce(&w, 5, 4096, TSR_ALL_REDUCE_MACHINES, 1000 + 3000 + 4096 / net);
    assert_int_not_equal(pair(&w, 0, 1).kind, TSR_LINK_NETWORK);
    tsr_links_all_reduce(w.links, 3, 4096, &cost);
    assert_int_equal(cost.algorithm, TSR_ALL_REDUCE_ONE_SHOT); /* of one process */
    tsr_links_all_reduce_bytes(
        w.links, 15, (tsr_sum_bytes){.part = 8000000, .narrow = 8000000, .between = 4000000, .n_messages = 4},
        &cost);
    assert_near(cost.ns, 1000 + 2 * 500 + 8e6 / port + 4 * 3000 + 4e6 / net);
    close_world(&w);

    /* Four machines: two exchanges of all bytes, or four of halves and quarters. */
    w = open_world("4 nodes of host 8 cores 64GiB 100GB/s, roce 100Gb/s", NULL, NULL, NULL);
    assert_all_reduce(&w, 15, 4096, TSR_ALL_REDUCE_MACHINES, 1000 + 2 * 3000 + 2 * 4096 / net);
    assert_all_reduce(&w, 15, 40000000, TSR_ALL_REDUCE_MACHINES, 1000 + 4 * 3000 + 1.5 * 4e7 / net);
    close_world(&w);

    /* A GPU and a host device of different machines have MPI; NCCL knows GPUs only. */
    w = open_world("2 nodes of t4, host 8 cores, ib 100Gb/s", NULL, NULL, "cuda,host:1");
    tsr_links_all_reduce(w.links, 15, 4096, &cost);
    assert_int_equal(cost.algorithm, TSR_ALL_REDUCE_MACHINES);
    assert_int_equal(cost.slowest, TSR_LINK_NETWORK);
    tsr_links_all_reduce(w.links, 5, 4096, &cost);
    assert_int_equal(cost.algorithm, TSR_ALL_REDUCE_RING);
    close_world(&w);
}

/* -- processes of a run -- */

enum { MOST_PROCESSES = 4 };

/* Of n processes whose machines are all like `machine`; process p is on machines[p]. */
static tsr_links *join(const char *machine, const char *devices, const char *network, const int *machines,
                       int n)
{
    tsr_links *parts[MOST_PROCESSES], *joined = NULL;
    tsr_links_process processes[MOST_PROCESSES];
    tsr_machine joining;
    world w = open_world(machine, NULL, NULL, devices);
    ok(tsr_network_parse(network, &joining), network);
    for (int p = 0; p < n; p++) {
        ok(tsr_links_create_part(w.topo, w.devices, &joining, &parts[p]), machine);
        processes[p] = (tsr_links_process){parts[p], machines[p], joining.network_latency_ns};
    }
    ok(tsr_links_join(processes, n, &joined), machine);
    for (int p = 0; p < n; p++)
        tsr_links_destroy(parts[p]);
    close_world(&w);
    return joined;
}

static void assert_same_links(const tsr_links *a, const tsr_links *b)
{
    const int n = tsr_links_n_devices(a);
    assert_int_equal(tsr_links_n_devices(b), n);
    for (int from = 0; from < n; from++)
        for (int to = 0; to < n; to++) {
            tsr_link x = {0}, y = {0};
            ok(tsr_links_pair(a, from, to, &x), "pair");
            ok(tsr_links_pair(b, from, to, &y), "pair");
            assert_int_equal(x.kind, y.kind);
            assert_true(x.bytes_per_s == y.bytes_per_s && x.latency_ns == y.latency_ns);
            assert_int_equal(x.guessed, y.guessed);
        }
    for (uint64_t devices = 0; devices < UINT64_C(1) << n; devices++)
        for (uint64_t bytes = 4096; bytes < 1 << 26; bytes *= 64) {
            tsr_all_reduce_cost x, y;
            tsr_links_all_reduce(a, devices, bytes, &x);
            tsr_links_all_reduce(b, devices, bytes, &y);
            assert_true(x.ns == y.ns && x.latency_ns == y.latency_ns);
            assert_true(x.algorithm == y.algorithm && x.slowest == y.slowest && x.guessed == y.guessed);
        }
}

/* Kernels add up between the GPUs of processes of one machine, through host memory as far as is known. */
static void gpus_of_processes_of_a_machine_have_kernels(void **state)
{
    (void)state;
    tsr_all_reduce_cost cost;
    for (int near = 0; near < 2; near++) {
        tsr_links *links = join("t4, host 8 cores", "cuda,host:1", "ib 100Gb/s", (int[]){0, near ? 0 : 1}, 2);
        tsr_links_all_reduce(links, 5, 4096, &cost);
        assert_int_equal(cost.algorithm, near ? TSR_ALL_REDUCE_ONE_SHOT : TSR_ALL_REDUCE_RING);
        assert_int_equal(cost.slowest, near ? TSR_LINK_STAGED : TSR_LINK_NETWORK);
        tsr_links_all_reduce(links, 15, 4096, &cost);
        assert_int_equal(cost.algorithm, TSR_ALL_REDUCE_MACHINES);
        tsr_links_destroy(links);
    }
}

/* Each process knows its own machine; together they have the links of a text that describes all machines. */
static void processes_on_machines_have_the_links_of_a_description(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"4x h100 nvswitch", NULL, "ib 400Gb/s"},
        {"2x rtx3090 nvlink, host 8 cores 64GiB 40GB/s", "cuda,host:1", "2x roce 100Gb/s 5us"},
        {"2x a100 switch, 2x l4, 2x host 8 cores 64GiB 40GB/s", NULL, "ethernet 25Gb/s"},
        {"2x host 8 cores 64GiB 100GB/s", "host:4", "ib 100Gb/s"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[160];
        snprintf(text, sizeof text, "2 nodes of %s, %s", cases[i][0], cases[i][2]);
        world w = open_world(text, NULL, NULL, cases[i][1]);
        tsr_links *joined = join(cases[i][0], cases[i][1], cases[i][2], (int[]){0, 1}, 2);
        assert_same_links(joined, w.links);
        tsr_links_destroy(joined);
        close_world(&w);
    }
}

/* Two processes on one machine, then one on another: the first two share its memory and its adapter. */
static void processes_on_one_machine_do_not_use_the_network(void **state)
{
    (void)state;
    const double net = 12.5 * ib, port = 24; /* two cores at 12 GB/s */
    tsr_all_reduce_cost cost;
    world w = {.links = join("host 2 cores 64GiB 100GB/s", NULL, "ib 100Gb/s", (int[]){0, 0, 1}, 3)};
    assert_pair(&w, 0, 1, TSR_LINK_STAGED, port * 1e9);
    assert_pair(&w, 1, 2, TSR_LINK_NETWORK, net * 1e9);
    assert_true(pair(&w, 0, 1).latency_ns == 1000);
    assert_true(pair(&w, 1, 2).latency_ns == 2700);
    assert_all_reduce(&w, 3, 4096, TSR_ALL_REDUCE_MACHINES, 1000 + 1000 + 4096 / port);
    tsr_links_all_reduce(w.links, 3, 4096, &cost);
    assert_int_equal(cost.slowest, TSR_LINK_STAGED);
    assert_all_reduce(&w, 5, 4096, TSR_ALL_REDUCE_MACHINES, 1000 + 2700 + 4096 / net);
    tsr_links_all_reduce(w.links, 7, 4096, &cost);
    assert_int_equal(cost.slowest, TSR_LINK_NETWORK);
    tsr_links_destroy(w.links);

    /* Transfers of both processes of the first machine to those of the second pass the same two adapters. */
    w.links = join("2x t4, host 2 cores 64GiB 100GB/s", NULL, "ethernet 10Gb/s", (int[]){0, 0, 1, 1}, 4);
    assert_pair(&w, 0, 2, TSR_LINK_STAGED, 15.7538 * pcie * 1e9);
    assert_true(pair(&w, 0, 2).latency_ns == 3000);
    assert_int_equal(tsr_links_route(w.links, 0, 4)->hops[0], tsr_links_route(w.links, 3, 7)->hops[0]);
    assert_int_not_equal(tsr_links_route(w.links, 0, 4)->hops[0], tsr_links_route(w.links, 4, 0)->hops[0]);
    tsr_links_destroy(w.links);
}

/* -- recorded machines -- */

#define SHARED "../shared/topo"

static bool has_recordings(void)
{
    bool found = access(SHARED "/nccl", R_OK) == 0;
    if (!found)
        print_message("skipped: no recorded machines at " SHARED "\n");
    return found;
}

static void recorded_machines_have_their_links(void **state)
{
    (void)state;
    if (!has_recordings())
        skip();
    world w = open_world(NULL, SHARED "/nccl/hgx-8xH200-4nvswitch-2numa.xml", NULL, NULL);
    assert_pair(&w, 0, 7, TSR_LINK_NVSWITCH, 18 * 25e9 * nvlink);
    close_world(&w);

    w = open_world(NULL, SHARED "/nccl/hgx-8xB200-nvswitch-sentinel-2numa.xml", NULL, NULL);
    assert_pair(&w, 0, 7, TSR_LINK_NVSWITCH, 18 * 50e9 * nvlink);
    close_world(&w);

    w = open_world(NULL, SHARED "/nccl/perlmutter-4xA100-NV4mesh-4numa.xml", NULL, NULL);
    for (int b = 1; b < 4; b++)
        assert_pair(&w, 0, b, TSR_LINK_NVLINK, 4 * 25e9 * nvlink);
    close_world(&w);

    w = open_world(NULL, SHARED "/hwloc/prrte-turin-4gpu-nvml.xml", NULL, NULL);
    assert_pair(&w, 0, 3, TSR_LINK_NVLINK, 150e9 * nvlink);
    close_world(&w);

    w = open_world(NULL, SHARED "/hwloc/hwloctest-nvidiaDGX2.xml", NULL, NULL);
    assert_pair(&w, 0, 15, TSR_LINK_NVSWITCH, 6 * 25e9 * nvlink);
    close_world(&w);

    /* Two P100 behind one switch; peers at the speed of PCIe 3 x16. */
    w = open_world(NULL, SHARED "/hwloc/mpibind-cts1-pascal.xml", NULL, NULL);
    assert_int_equal(w.topo->gpu_pairs[0][1].path, TSR_GPU_PATH_PIX);
    assert_pair(&w, 0, 1, TSR_LINK_PCIE, 15.753846e9 * pcie);
    close_world(&w);
}

/* -- measured values -- */

static tsr_status set_measured(const world *w, int from, uint64_t devices, uint64_t bytes, double ns)
{
    const tsr_links_value value = {from, devices, bytes, ns};
    return tsr_links_set_measured(w->links, &value);
}

static void measured_values_override_and_are_interpolated(void **state)
{
    (void)state;
    tsr_all_reduce_cost cost;
    world w = open_world("3x l4", NULL, NULL, NULL);
    double guess = tsr_links_all_reduce_ns(w.links, 5, 3000);
    ok(set_measured(&w, -1, 3, 4000, 9000), "set");
    ok(set_measured(&w, -1, 3, 1000, 5000), "set");
    ok(set_measured(&w, -1, 3, 2000, 1), "set");
    ok(set_measured(&w, -1, 3, 2000, 6000), "set"); /* replaces */
    assert_near(tsr_links_all_reduce_ns(w.links, 3, 10), 5000);
    assert_near(tsr_links_all_reduce_ns(w.links, 3, 1500), 5500);
    assert_near(tsr_links_all_reduce_ns(w.links, 3, 3000), 7500);
    assert_near(tsr_links_all_reduce_ns(w.links, 3, 8000), 15000);
    assert_near(tsr_links_all_reduce_ns(w.links, 5, 3000), guess); /* another set */
    tsr_links_all_reduce(w.links, 3, 3000, &cost);
    assert_int_equal(cost.algorithm, TSR_ALL_REDUCE_MEASURED);
    assert_false(cost.guessed);
    close_world(&w);
}

static void measured_transfers_are_of_one_direction(void **state)
{
    (void)state;
    world w = open_world("3x l4", NULL, NULL, NULL);
    tsr_link before = pair(&w, 1, 0);
    double all_reduce = tsr_links_all_reduce_ns(w.links, 3, 4096);
    ok(set_measured(&w, 0, 2, 4096, 3000), "set"); /* from 0 to 1 */
    ok(set_measured(&w, 0, 2, 1 << 20, 103000), "set");
    assert_near(tsr_links_copy_ns(w.links, 0, 1, 100), 3000);
    assert_near(tsr_links_copy_ns(w.links, 0, 1, (4096 + (1 << 20)) / 2), 53000);
    assert_near(pair(&w, 0, 1).latency_ns, 3000);
    assert_near(pair(&w, 0, 1).bytes_per_s, (1 << 20) / 103000e-9);
    assert_true(pair(&w, 0, 1).measured);
    assert_near(pair(&w, 1, 0).bytes_per_s, before.bytes_per_s);
    assert_false(pair(&w, 1, 0).measured);
    assert_near(tsr_links_all_reduce_ns(w.links, 3, 4096), all_reduce);
    close_world(&w);
}

static void all_measured_values_can_be_read_back(void **state)
{
    (void)state;
    world w = open_world("3x l4", NULL, NULL, NULL);
    assert_int_equal(tsr_links_n_measured(w.links), 0);
    assert_null(tsr_links_measured(w.links, 0));
    ok(set_measured(&w, 2, 1, 10, 30), "set");
    ok(set_measured(&w, -1, 7, 10, 20), "set");
    ok(set_measured(&w, -1, 3, 20, 10), "set");
    ok(set_measured(&w, -1, 3, 10, 5), "set");
    assert_int_equal(tsr_links_n_measured(w.links), 4);
    static const double expected[] = {5, 10, 20, 30};
    for (int i = 0; i < 4; i++)
        assert_near(tsr_links_measured(w.links, i)->ns, expected[i]);
    assert_int_equal(tsr_links_measured(w.links, 3)->from, 2);
    assert_null(tsr_links_measured(w.links, 4));
    assert_null(tsr_links_measured(w.links, -1));
    close_world(&w);
}

/* With measured values, and after the original is gone; every allocation of copying fails once. */
static void a_copy_says_the_same(void **state)
{
    (void)state;
    world w = open_world("3x l4", NULL, NULL, NULL);
    tsr_links *copy = NULL;
    ok(set_measured(&w, -1, 3, 1000, 5000), "set");
    double ns = tsr_links_all_reduce_ns(w.links, 3, 1000), far_ns = tsr_links_copy_ns(w.links, 0, 1, 1 << 20);
    for (int n = 1; !copy; n++) {
        int64_t blocks = failing_alloc_live();
        failing_alloc_set(n);
        tsr_status status = tsr_links_copy(w.links, &copy);
        failing_alloc_set(0);
        assert_int_equal(status, copy ? TSR_OK : TSR_ERR_MEMORY);
        if (!copy)
            assert_int_equal(failing_alloc_live(), blocks);
    }
    close_world(&w);
    assert_int_equal(tsr_links_n_measured(copy), 1);
    assert_float_equal(tsr_links_all_reduce_ns(copy, 3, 1000), ns, 0);
    assert_float_equal(tsr_links_copy_ns(copy, 0, 1, 1 << 20), far_ns, 0);
    tsr_links_destroy(copy);
}

static void values_that_measure_nothing_are_refused(void **state)
{
    (void)state;
    world w = open_world("3x l4", NULL, NULL, NULL);
    static const tsr_links_value wrong[] = {
        {-1, 1, 1000, 5000}, /* one device */
        {-1, 8, 1000, 5000}, /* which is not there */
        {-1, 3, 1000, 0},    {-1, 3, 1000, -1},  {-1, 3, 1000, NAN}, {0, 1, 1000, 5000}, /* to itself */
        {0, 6, 1000, 5000},                                                              /* to two */
        {0, 0, 1000, 5000},  {3, 1, 1000, 5000},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(tsr_links_set_measured(w.links, &wrong[i]), TSR_ERR_INVALID);
    assert_int_equal(tsr_links_n_measured(w.links), 0);
    close_world(&w);
}

/* -- what must hold of every machine -- */

static void more_devices_and_more_bytes_never_take_less(void **state)
{
    (void)state;
    static const char *const machines[] = {"8x rtx4090, 2x host", "4x a100 nvlink, 2x rtx3090 nvlink 16GiB",
                                           "8x h200", "3x l40s switch, 2x t4 pcie3x8, 2x host 32cores",
                                           "2x gh200, 2x gb10"};
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++) {
        world w = open_world(machines[m], NULL, NULL, "cuda,host");
        int n = tsr_links_n_devices(w.links);
        for (uint64_t mask = 0; mask < UINT64_C(1) << n; mask++) {
            double small = tsr_links_all_reduce_ns(w.links, mask, 1024);
            double large = tsr_links_all_reduce_ns(w.links, mask, 1 << 20);
            assert_true(large >= small && small >= 0);
            assert_true((small > 0) == ((mask & (mask - 1)) != 0));
        }
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++)
                if (a != b)
                    assert_near(pair(&w, a, b).bytes_per_s, pair(&w, b, a).bytes_per_s);
        tsr_link link;
        assert_int_equal(tsr_links_pair(w.links, 0, n, &link), TSR_ERR_INVALID);
        close_world(&w);
    }
    tsr_links_destroy(NULL);
}

static void failing_allocations_leave_nothing_behind(void **state)
{
    (void)state;
    world w = open_world("2x rtx3090 nvlink", NULL, NULL, NULL);
    tsr_links_destroy(w.links);
    for (int n = 1;; n++) {
        int64_t blocks = failing_alloc_live();
        w.links = NULL;
        failing_alloc_set(n);
        tsr_status status = tsr_links_create(w.topo, w.devices, &w.links);
        failing_alloc_set(0);
        if (status == TSR_OK) {
            assert_true(n > 4);
            break;
        }
        assert_int_equal(status, TSR_ERR_MEMORY);
        assert_null(w.links);
        assert_int_equal(failing_alloc_live(), blocks);
    }
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpus_of_processes_of_a_machine_have_kernels),
        cmocka_unit_test(a_bridge_of_nvlinks_joins_two_cards),
        cmocka_unit_test(an_nvswitch_gives_every_pair_all_links),
        cmocka_unit_test(uplinks_are_shared),
        cmocka_unit_test(cards_without_peer_access_push_whole_parts),
        cmocka_unit_test(sockets_are_crossed_by_one_link),
        cmocka_unit_test(host_devices_meet_in_memory),
        cmocka_unit_test(a_chip_to_chip_link_leads_to_the_host),
        cmocka_unit_test(virtual_devices_share_a_gpu),
        cmocka_unit_test(gpus_of_several_machines_have_the_ring_and_trees_of_nccl),
        cmocka_unit_test(other_bytes_go_through_host_memory),
        cmocka_unit_test(host_devices_of_several_machines_add_up_twice),
        cmocka_unit_test(processes_on_machines_have_the_links_of_a_description),
        cmocka_unit_test(processes_on_one_machine_do_not_use_the_network),
        cmocka_unit_test(recorded_machines_have_their_links),
        cmocka_unit_test(measured_values_override_and_are_interpolated),
        cmocka_unit_test(measured_transfers_are_of_one_direction),
        cmocka_unit_test(all_measured_values_can_be_read_back),
        cmocka_unit_test(a_copy_says_the_same),
        cmocka_unit_test(values_that_measure_nothing_are_refused),
        cmocka_unit_test(more_devices_and_more_bytes_never_take_less),
        cmocka_unit_test(failing_allocations_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
