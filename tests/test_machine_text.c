/* Machines in a line of text: what each word means, and that errors say where and what would be right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/machine.h>
#include <tsr/topology.h>

#include "support/failing_alloc.h"
#include "support/topology.h"
#include "topo/network.h"

static tsr_topology *describe(const char *text)
{
    tsr_topology *topo = NULL;
    tsr_status status = tsr_topology_parse(text, NULL, &topo);
    if (status != TSR_OK)
        fail_msg("%s: %s: %s", text, tsr_status_name(status), tsr_last_error());
    const char *fault = topology_fault(topo);
    if (fault)
        fail_msg("%s: does not hold: %s", text, fault);
    assert_string_equal(topo->source, text);
    assert_false(topo->is_this_machine);
    return topo;
}

static void cards_come_with_the_figures_of_their_sheets(void **state)
{
    (void)state;
    tsr_topology *topo = describe("2x rtx3090 nvlink, 1x rtx4060ti pcie4x8");
    assert_int_equal(topo->n_gpus, 3);
    assert_string_equal(topo->gpus[1].name, "NVIDIA GeForce RTX 3090");
    assert_int_equal(topo->gpus[1].ordinal, 1);
    assert_int_equal(topo->gpus[1].memory_bytes, UINT64_C(24576) << 20);
    assert_true(topo->gpus[1].memory_bytes_per_s == 936e9);
    assert_int_equal(topo->gpus[1].guessed,
                     TSR_GPU_MEMORY | TSR_GPU_BANDWIDTH | TSR_GPU_COMPUTE | TSR_GPU_PCIE | TSR_GPU_NVLINK);
    assert_int_equal(topo->gpu_pairs[0][1].n_nvlinks, 4);
    assert_int_equal(topo->gpu_pairs[0][2].n_nvlinks, 0);
    assert_int_equal(topo->gpu_pairs[0][2].path, TSR_GPU_PATH_PHB);
    assert_int_equal(topo->gpus[2].pcie_max.width, 8);
    assert_false(topo->gpus[2].guessed & TSR_GPU_PCIE);
    /* Nothing was said of the host. */
    assert_int_equal(topo->n_cores, 16);
    assert_non_null(strstr(topo->notes, "guessed of each socket: 16 cores 64 GiB 50 GB/s"));
    tsr_topology_destroy(topo);
}

static void every_figure_can_be_said(void **state)
{
    (void)state;
    tsr_topology *topo = describe(
        "3x a100 20GiB 1.5TB/s nvlink2 node 1,RTX4090 switch node 0 , 2x host 4 cores 32GiB 100GB/s");
    assert_int_equal(topo->n_gpus, 4);
    for (int g = 0; g < 3; g++) {
        assert_int_equal(topo->gpus[g].memory_bytes, UINT64_C(20) << 30);
        assert_true(topo->gpus[g].memory_bytes_per_s == 1.5e12);
        assert_false(topo->gpus[g].guessed & (TSR_GPU_MEMORY | TSR_GPU_BANDWIDTH));
        assert_int_equal(topo->gpus[g].numa_node, 1);
        assert_int_equal(topo->gpu_pairs[g][(g + 1) % 3].n_nvlinks, 2);
    }
    assert_int_equal(topo->gpus[3].numa_node, 0);
    assert_int_equal(topo->gpu_pairs[0][3].path, TSR_GPU_PATH_SYS);
    assert_int_equal(topo->n_packages, 2);
    assert_int_equal(topo->n_numa_nodes, 2);
    assert_int_equal(topo->n_cores, 8);
    assert_int_equal(topo->memory_bytes, UINT64_C(64) << 30);
    assert_true(topo->numa_nodes[1].bytes_per_s == 100e9);
    assert_null(strstr(topo->notes, "guessed of each socket"));
    tsr_topology_destroy(topo);

    topo = describe("2x a6000 switch, 2x a6000 switch, 2x host");
    assert_int_equal(topo->gpu_pairs[0][1].path, TSR_GPU_PATH_PIX);
    assert_int_equal(topo->gpu_pairs[0][2].path, TSR_GPU_PATH_SYS);
    assert_int_equal(topo->gpus[0].numa_node, 0);
    assert_int_equal(topo->gpus[3].numa_node, 1);
    tsr_topology_destroy(topo);

    topo = describe("8x b200 nvswitch");
    assert_int_equal(topo->gpu_pairs[0][7].n_nvlinks, 18);
    assert_true(topo->gpu_pairs[0][7].nvlink_bytes_per_s == 900e9);
    tsr_topology_destroy(topo);

    topo = describe("host");
    assert_int_equal(topo->n_gpus, 0);
    tsr_topology_destroy(topo);
}

/* Nodes repeat the groups after them, up to the next nodes; a network joins all nodes before it that have
 * none. */
static void nodes_are_machines_on_a_network(void **state)
{
    (void)state;
    tsr_topology *topo =
        describe("2 nodes of 4x h100 nvswitch, 2x host 8 cores 64GiB 100GB/s, 4x ib 400Gb/s");
    assert_int_equal(topo->n_machines, 2);
    assert_int_equal(topo->n_gpus, 8);
    assert_int_equal(topo->n_cores, 32);
    for (int m = 0; m < 2; m++) {
        const tsr_machine *machine = &topo->machines[m];
        assert_int_equal(machine->n_gpus, 4);
        assert_int_equal(machine->n_packages, 2);
        assert_int_equal(machine->n_numa_nodes, 2);
        assert_int_equal(machine->n_cores, 16);
        assert_int_equal(machine->network, TSR_NETWORK_INFINIBAND);
        assert_int_equal(machine->n_adapters, 4);
        assert_true(machine->network_bytes_per_s == 4 * 50e9);
        assert_true(machine->network_latency_ns == 2700 && machine->latency_guessed);
        assert_int_equal(topo->packages[machine->first_package + 1].os_index, 1);
        assert_int_equal(topo->numa_nodes[machine->first_numa_node + 1].os_index, 1);
        assert_int_equal(topo->pus[topo->cores[machine->first_core].first_pu].os_index, 0);
    }
    assert_int_equal(topo->gpu_pairs[0][3].n_nvlinks, 18);
    assert_int_equal(topo->gpu_pairs[0][4].n_nvlinks, 0); /* no NVSwitch between machines */
    assert_int_equal(topo->gpu_pairs[0][4].path, TSR_GPU_PATH_NET);
    assert_int_equal(topo->gpu_pairs[0][4].peer_access, TSR_NO);
    tsr_topology_destroy(topo);

    /* Unequal machines, and 'node 1' of a card, which is a NUMA node. */
    topo = describe("1 node of 8x h100, 1 NODE of 2x t4 node 1, 2x host, RoCE 100Gbit/s 12.5us");
    assert_int_equal(topo->n_machines, 2);
    assert_int_equal(topo->machines[0].n_gpus, 8);
    assert_int_equal(topo->gpu_pairs[0][7].n_nvlinks, 18); /* the usual board of eight, not of ten */
    assert_int_equal(topo->machines[0].n_numa_nodes, 1);
    assert_int_equal(topo->machines[1].n_numa_nodes, 2);
    assert_int_equal(topo->gpus[8].numa_node, 2);
    assert_int_equal(topo->gpus[9].ordinal, 1);
    for (int m = 0; m < 2; m++) {
        assert_int_equal(topo->machines[m].network, TSR_NETWORK_ROCE);
        assert_true(topo->machines[m].network_bytes_per_s == 12.5e9);
        assert_true(topo->machines[m].network_latency_ns == 12500 && !topo->machines[m].latency_guessed);
    }
    tsr_topology_destroy(topo);

    topo = describe("1 node of host, 2x ethernet 25Gb/s, 3 nodes of t4, eth 10Gb/s");
    assert_int_equal(topo->n_machines, 4);
    assert_true(topo->machines[0].network_bytes_per_s == 6.25e9);
    assert_true(topo->machines[3].network_bytes_per_s == 1.25e9);
    assert_int_equal(topo->machines[3].first_gpu, 2);
    tsr_topology_destroy(topo);

    topo = describe("1 node of 2x t4"); /* one machine needs no network */
    assert_int_equal(topo->n_machines, 1);
    assert_int_equal(topo->machines[0].network, TSR_NETWORK_NONE);
    tsr_topology_destroy(topo);
}

/* As in forums and in the output of nvidia-smi. */
static void names_may_have_several_words(void **state)
{
    (void)state;
    static const struct {
        const char *text, *name;
        int n_gpus, memory_mib;
    } cases[] = {
        {"4090", "NVIDIA GeForce RTX 4090", 1, 24564},
        {"2x4090", "NVIDIA GeForce RTX 4090", 2, 24564},
        {"2x NVIDIA GeForce RTX 3090 nvlink", "NVIDIA GeForce RTX 3090", 2, 24576},
        {"2X rtx 3090 TI nvlink, host", "NVIDIA GeForce RTX 3090 Ti", 2, 24564},
        {"rtx4060ti 16GiB pcie4x8", "NVIDIA GeForce RTX 4060 Ti", 1, 16384},
        {"RTX 4060 Ti 16GB pcie4x8", "NVIDIA GeForce RTX 4060 Ti 16GB", 1, 16380},
        {"4x h100 pcie pcie4x16 node 0", "NVIDIA H100 PCIe", 4, 81100},
        {"8x H100 SXM5 nvswitch", "NVIDIA H100 80GB HBM3", 8, 81100},
        {"4x h200-nvl nvlink", "NVIDIA H200 NVL", 4, 143157},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_topology *topo = describe(cases[i].text);
        assert_int_equal(topo->n_gpus, cases[i].n_gpus);
        assert_string_equal(topo->gpus[0].name, cases[i].name);
        assert_int_equal(topo->gpus[0].memory_bytes >> 20, cases[i].memory_mib);
        tsr_topology_destroy(topo);
    }
}

static void cards_in_words_can_be_overridden(void **state)
{
    (void)state;
    tsr_topology *topo = NULL;
    tsr_topology_config config = tsr_topology_config_default();
    config.cards = "1=rtx3090ti";
    assert_int_equal(tsr_topology_parse("2x rtx3090", &config, &topo), TSR_OK);
    assert_string_equal(topo->gpus[0].name, "NVIDIA GeForce RTX 3090");
    assert_string_equal(topo->gpus[1].name, "NVIDIA GeForce RTX 3090 Ti");
    tsr_topology_destroy(topo);
}

static void errors_say_where_and_what_would_be_right(void **state)
{
    (void)state;
    static const struct {
        const char *text, *phrase;
    } cases[] = {
        {"", "column 1: the end is where a card should be"},
        {" , ", "column 2: ',' is where a card should be"},
        {"2x rtx3090,", "column 12: the end"},
        {"2x rtx309",
         "column 4: unknown card 'rtx309'; similar: rtx3090; `tsr topo --cards` lists all; a number "
         "of cards is written '2x rtx3090'"},
        {"2x rtx 6000 nvlink", "column 4: 'rtx 6000' may mean quadro-rtx6000, "},
        {"rtx 3090 ti foo", "column 13: 'foo' is unknown; words of a card are"},
        {"Foo Bar 24GiB", "column 1: unknown card 'Foo Bar'"},
        {"2 rtx3090", "column 1: '2' is not a card"},
        {"0x rtx3090", "column 1: '0x' is not a number of cards"},
        {"33x t4", "column 1: '33x' is not a number of cards"},
        {"20x t4, 20x t4", "40 cards; at most 32"},
        {"rtx3090 nvlink", "column 9: 'nvlink' joins the cards of a group"},
        {"2x rtx4090 nvlink", "column 12: 'nvlink' follows a card that has no NVLink"},
        {"3x a100 nvlink7", "column 9: 'nvlink7' asks for more links"},
        {"32x a100 nvlink", "write nvswitch"},
        {"3x rtx3090 nvlink",
         "column 12: 'nvlink' joins at most 2 cards rtx3090, by a bridge; write '2x rtx3090 "
         "nvlink, 1x rtx3090'"},
        {"4x a6000 nvlink2", "write '2x a6000 nvlink, 2x a6000 nvlink'"},
        {"5x h200-nvl nvlink", "joins at most 4 cards h200-nvl"},
        {"2x rtx3090 nvswitch", "this card takes a bridge; write nvlink"},
        {"2x rtx3090 pcie9x8", "column 12: 'pcie9x8' is not a PCIe link"},
        {"2x rtx3090 pcie4", "'pcie4' is not a PCIe link"},
        {"2x rtx3090 foo", "column 12: 'foo' is unknown; words of a card are"},
        {"2x rtx3090 node 1", "write '2x host'"},
        {"2x rtx3090 node x", "column 17: 'x' is not a NUMA node"},
        {"1x host 9999 cores", "is not a number of cores"},
        {"1x host 16 bananas", "column 12: 'bananas' follows a bare number"},
        {"1x host nvlink", "words of a host are"},
        {"host, host", "second host"},
        {"99x host", "1 to 32"},
        {"9x host", "9 sockets; at most 8"},
        {"2x rtx3090 0GiB", "'0GiB' is unknown"},
        {"2 nodes of 4x h100",
         "column 19: the end is where a network between the nodes should be; write e.g. "
         "', ib 400Gb/s'"},
        {"2x nodes of t4",
         "column 1: '2x' is not a number of nodes (1 to 32 altogether); write '2 nodes of "},
        {"nodes of t4", "column 1: 'nodes' is not a number of nodes"},
        {"33 nodes of host, ib 1Gb/s", "column 1: '33' is not a number of nodes"},
        {"30 nodes of host, 3 nodes of host, ib 1Gb/s", "column 19: '3' is not a number of nodes"},
        {"2 nodes 4x t4", "column 9: '4x' is where 'of' should be"},
        {"2 nodes of", "the end is where a card should be"},
        {"2 nodes of ib 400Gb/s", "column 12: 'ib' is where a card or host of the node should be"},
        {"t4, 1 node of t4", "column 5: '1' follows cards of no node; begin the text with '1 node of'"},
        {"4x t4, ib 400Gb/s", "column 8: 'ib' joins nodes, and the text has one machine; write '2 nodes of"},
        {"2 nodes of t4, ib", "the end is not the rate of a network adapter"},
        {"2 nodes of t4, ib 50GB/s", "column 19: '50GB/s' is not the rate of a network adapter, in bits"},
        {"2 nodes of t4, ib 400Gb/s 2", "column 27: '2' is not the latency of a network"},
        {"2 nodes of t4, ib 400Gb/s 2us host", "column 31: 'host' follows a network; write a comma"},
        {"2 nodes of t4, ib 400Gb/s, ib 400Gb/s", "column 28: 'ib' is a second network of the nodes; write "
                                                  "'2x ib 400Gb/s'"},
        {"1 node of t4, ib 1Gb/s, 1 node of t4, roce 1Gb/s",
         "'roce' is another kind of network than the first"},
        {"1 node of t4, ib 1Gb/s, 1 node of t4", "the end is where a network between the nodes should be"},
        {"2 nodes of host, 1x host, ib 1Gb/s", "second host"},
        {"9 nodes of 4x t4, ib 1Gb/s", "36 cards; at most 32"},
        {"9 nodes of 8x host, ib 1Gb/s", "72 sockets on all nodes; at most 64"},
        {"3 nodes of 4x host 512 cores, ib 1Gb/s", "6144 cores on all nodes; at most 4096"},
        {"2x rtx3090 99999999999999999999GiB", "is unknown"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_topology *topo = NULL;
        tsr_status status = tsr_topology_parse(cases[i].text, NULL, &topo);
        if (status != TSR_ERR_INVALID || !strstr(tsr_last_error(), cases[i].phrase))
            fail_msg("%s: %s: %s", cases[i].text, tsr_status_name(status), tsr_last_error());
        assert_null(strchr(tsr_last_error(), '\n'));
        assert_null(topo);
    }
    tsr_topology *topo = NULL;
    assert_int_equal(tsr_topology_parse(NULL, NULL, &topo), TSR_ERR_INVALID);
}

static void a_network_can_be_named_alone(void **state)
{
    (void)state;
    static const struct {
        const char *text, *phrase;
    } cases[] = {
        {"", "network, column 1: the end is not a network; write e.g. 'ib 400Gb/s'"},
        {"4x", "column 3: the end is not a network"},
        {"99x ib 400Gb/s", "column 1: '99x' is not a network"},
        {"2x myrinet 2Gb/s", "column 4: 'myrinet' is not a network"},
        {"ib", "column 3: the end is not the rate of a network adapter, in bits"},
        {"ib 50GB/s", "column 4: '50GB/s' is not the rate"},
        {"ib 400Gb/s 1us host", "'host' follows a network"},
        {"ib 400Gb/s, host", "column 11: ',' follows the network, which is one for all processes"},
    };
    tsr_machine network;
    assert_int_equal(tsr_network_parse("4x ib 400Gb/s", &network), TSR_OK);
    assert_true(network.network == TSR_NETWORK_INFINIBAND && network.n_adapters == 4);
    assert_true(network.network_bytes_per_s == 200e9 && network.network_latency_ns == 2700);
    assert_true(network.latency_guessed);
    assert_int_equal(tsr_network_parse("ethernet 25Gb/s 12us", &network), TSR_OK);
    assert_true(network.network == TSR_NETWORK_ETHERNET && network.network_latency_ns == 12000);
    assert_false(network.latency_guessed);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_status status = tsr_network_parse(cases[i].text, &network);
        if (status != TSR_ERR_INVALID || !strstr(tsr_last_error(), cases[i].phrase))
            fail_msg("%s: %s: %s", cases[i].text, tsr_status_name(status), tsr_last_error());
    }
}

static void check_allocations(const char *text)
{
    for (int n = 1;; n++) {
        int64_t blocks = failing_alloc_live();
        tsr_topology *topo = NULL;
        failing_alloc_set(n);
        tsr_status status = tsr_topology_parse(text, NULL, &topo);
        failing_alloc_set(0);
        if (status == TSR_OK) {
            tsr_topology_destroy(topo);
            assert_int_equal(failing_alloc_live(), blocks);
            assert_true(n > 5);
            break;
        }
        assert_int_equal(status, TSR_ERR_MEMORY);
        assert_null(topo);
        assert_int_equal(failing_alloc_live(), blocks);
    }
}

static void failing_allocations_leave_nothing_behind(void **state)
{
    (void)state;
    check_allocations("2x rtx3090 nvlink, host");
    check_allocations("2 nodes of 2x rtx3090 nvlink, host, ib 400Gb/s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cards_come_with_the_figures_of_their_sheets),
        cmocka_unit_test(every_figure_can_be_said),
        cmocka_unit_test(nodes_are_machines_on_a_network),
        cmocka_unit_test(names_may_have_several_words),
        cmocka_unit_test(cards_in_words_can_be_overridden),
        cmocka_unit_test(errors_say_where_and_what_would_be_right),
        cmocka_unit_test(a_network_can_be_named_alone),
        cmocka_unit_test(failing_allocations_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
