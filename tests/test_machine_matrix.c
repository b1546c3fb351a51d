/* What the matrix of `nvidia-smi topo -m` means, in the forms in which people have it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/topology.h>

#include "support/directory.h"
#include "support/topology.h"

static const char smi_text[] =
    "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n"
    "GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-2)\n"
    "GPU 2: NVIDIA L40S (UUID: GPU-3)\n"
    "\t\033[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\033[0m\n"
    "GPU0\t X \tNV4\tSYS\tPXB\t0-3,8\t0\t\tN/A\n"
    "GPU1\tNV4\t X \tSYS\tSYS\t0-3,8\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tNODE\t4-7\t1\t\tN/A\n"
    "NIC0\tPXB\tSYS\tNODE\t X \n"
    "\nLegend:\n\n  X    = Self\n";

static tsr_topology *load_text(const char *text)
{
    return topology_load(directory_write("machine", text, strlen(text)), NULL);
}

static void a_matrix_gives_links_and_places(void **state)
{
    (void)state;
    tsr_topology *topo = load_text(smi_text);
    assert_int_equal(topo->n_gpus, 3);
    assert_string_equal(topo->gpus[0].name, "NVIDIA A100-SXM4-80GB");
    assert_string_equal(topo->gpus[2].name, "NVIDIA L40S");
    assert_int_equal(topo->gpu_pairs[0][1].n_nvlinks, 4);
    assert_int_equal(topo->gpu_pairs[0][2].path, TSR_GPU_PATH_SYS);
    assert_int_equal(topo->n_numa_nodes, 2);
    assert_int_equal(topo->gpus[2].numa_node, 1);
    assert_int_equal(topo->numa_nodes[0].n_cores, 5);
    assert_int_equal(topo->pus[4].os_index, 8);
    assert_non_null(strstr(topo->notes, "bus ids are invented"));
    tsr_topology_destroy(topo);
}

/* Pasted into a forum post, tabs became blanks; older drivers say SOC and have no NUMA column. */
static void a_pasted_matrix_builds_its_tree(void **state)
{
    (void)state;
    tsr_topology *topo = load_text("        GPU0    GPU1    GPU2    GPU3    mlx5_0  CPU Affinity\n"
                                   "GPU0     X      PIX     PHB     SOC     PHB     0-7\n"
                                   "GPU1    PIX      X      PHB     SOC     PHB     0-7\n"
                                   "GPU2    PHB     PHB      X      SOC     PIX     0-7\n"
                                   "GPU3    SOC     SOC     SOC      X      SOC     8-15\n"
                                   "mlx5_0  PHB     PHB     PIX     SOC      X\n");
    assert_int_equal(topo->n_gpus, 4);
    assert_non_null(strstr(topo->gpu_note, "4 GPUs of unknown model"));
    assert_int_equal(topo->pci[0].bridge, topo->pci[1].bridge);
    assert_int_not_equal(topo->pci[0].bridge, topo->pci[2].bridge);
    assert_int_equal(topo->bridges[topo->pci[0].bridge].parent, topo->pci[2].bridge);
    assert_int_equal(topo->n_numa_nodes, 2);
    tsr_topology_destroy(topo);
}

/* An editor put a byte order mark in front; a forum wants text indented. */
static void pasting_loses_no_model(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "\xef\xbb\xbf"
        "GPU 0: NVIDIA L4 (UUID: GPU-1)\n\tGPU0\tCPU Affinity\nGPU0\tX\t0-7\n",
        "\xef\xbb\xbf\tGPU0\tCPU Affinity\nGPU0\tX\t0-7\n",
        "    GPU 0: NVIDIA L4 (UUID: GPU-1)\r\n"
        "    \tGPU0\tCPU Affinity\r\n    GPU0\tX\t0-7\r\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tsr_topology *topo = load_text(texts[i]);
        assert_int_equal(topo->n_pci, 1);
        assert_int_equal(topo->n_gpus, 1);
        assert_string_equal(topo->gpus[0].name, strstr(texts[i], "L4") ? "NVIDIA L4" : "");
        tsr_topology_destroy(topo);
    }
}

/* Older drivers call network cards what the system calls them. */
static void one_gpu_and_a_card_of_any_name_make_a_matrix(void **state)
{
    (void)state;
    tsr_topology *topo = load_text("GPU 0: NVIDIA L4 (UUID: GPU-1)\n\tGPU0\thfi1_0\tCPU Affinity\n"
                                   "GPU0\t X \tPIX\t0-7\nhfi1_0\tPIX\t X \t\n");
    assert_int_equal(topo->n_gpus, 1);
    assert_int_equal(topo->n_cores, 8);
    tsr_topology_destroy(topo);
}

/* Where sockets take turns in numbering processors, the list names each. */
static void long_lists_of_processors_are_read_to_their_end(void **state)
{
    (void)state;
    char text[4096] = "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\tX\t", cell[16];
    for (int cpu = 0; cpu < 512; cpu += 2) {
        snprintf(cell, sizeof cell, "%s%d", cpu ? "," : "", cpu);
        strcat(text, cell);
    }
    strcat(text, "\t0\n");
    tsr_topology *topo = load_text(text);
    assert_int_equal(topo->n_cores, 256);
    assert_int_equal(topo->pus[255].os_index, 510);
    tsr_topology_destroy(topo);
}

/* Modules in a virtual machine: the matrix shows no NVLinks, so there are none, whatever the boards have. */
static void a_matrix_without_nvlinks_means_it(void **state)
{
    (void)state;
    tsr_topology *topo = load_text("GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n"
                                   "GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-2)\n"
                                   "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tPHB\t0-7\nGPU1\tPHB\tX\t0-7\n");
    assert_int_equal(topo->n_gpus, 2);
    assert_int_equal(topo->gpu_pairs[0][1].n_nvlinks, 0);
    assert_int_equal(topo->gpu_pairs[0][1].path, TSR_GPU_PATH_PHB);
    assert_null(strstr(topo->notes, "NVLink"));
    tsr_topology_destroy(topo);
}

/* Eight GPUs, of which the first `n_joined` have 12 NVLinks to each of the others. */
static tsr_topology *load_switched(int n_joined)
{
    char text[4096] = "\t", cell[64];
    for (int g = 0; g < 8; g++) {
        snprintf(cell, sizeof cell, "GPU%d\t", g);
        strcat(text, cell);
    }
    strcat(text, "CPU Affinity\tNUMA Affinity\n");
    for (int a = 0; a < 8; a++) {
        snprintf(cell, sizeof cell, "GPU%d\t", a);
        strcat(text, cell);
        for (int b = 0; b < 8; b++)
            strcat(text, a == b ? "X\t" : a < n_joined && b < n_joined ? "NV12\t" : "SYS\t");
        strcat(text, a < 4 ? "0-63\t0\n" : "64-127\t1\n");
    }
    return topology_load(directory_write("switched.txt", text, strlen(text)), "all=a100");
}

static void nvswitches_show_by_more_links_than_a_card_has(void **state)
{
    (void)state;
    tsr_topology *topo = load_switched(8);
    assert_int_equal(topo->n_gpus, 8);
    assert_int_equal(topo->gpus[7].n_nvlink_ends, 1);
    assert_int_equal(topo->gpus[7].nvlink_ends[0].kind, TSR_NVLINK_END_SWITCH);
    assert_int_equal(topo->gpu_pairs[0][7].n_nvlinks, 12);
    assert_true(topo->gpu_pairs[0][7].nvlink_bytes_per_s == 300e9);
    tsr_topology_destroy(topo);
    /* One whose fabric did not come up leaves the others their switches. */
    topo = load_switched(7);
    assert_int_equal(topo->gpus[0].n_nvlink_ends, 1);
    assert_int_equal(topo->gpus[0].nvlink_ends[0].kind, TSR_NVLINK_END_SWITCH);
    assert_int_equal(topo->gpus[7].n_nvlink_ends, 0);
    assert_int_equal(topo->gpu_pairs[0][6].n_nvlinks, 12);
    assert_int_equal(topo->gpu_pairs[0][7].n_nvlinks, 0);
    tsr_topology_destroy(topo);
}

static void failing_allocations_leave_nothing_behind(void **state)
{
    (void)state;
    topology_check_allocations(directory_write("alloc", smi_text, strlen(smi_text)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_matrix_gives_links_and_places),
        cmocka_unit_test(a_pasted_matrix_builds_its_tree),
        cmocka_unit_test(a_matrix_without_nvlinks_means_it),
        cmocka_unit_test(one_gpu_and_a_card_of_any_name_make_a_matrix),
        cmocka_unit_test(long_lists_of_processors_are_read_to_their_end),
        cmocka_unit_test(pasting_loses_no_model),
        cmocka_unit_test(nvswitches_show_by_more_links_than_a_card_has),
        cmocka_unit_test(failing_allocations_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
