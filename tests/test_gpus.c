/* What GPUs mean for each other, from bus ids, NVLinks and a copy of /sys; no GPU is involved. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "support/directory.h"
#include "topo/import/gpus.h"

static void __attribute__((format(printf, 1, 2))) shell(const char *format, ...)
{
    char command[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    assert_int_equal(system(command), 0);
}

/* A device below /sys at the end of `path`, which begins with the root complex. */
static void put_device(const char *path, const char *speed, int width, const char *most, int most_width,
                       int node)
{
    const char *id = strrchr(path, '/') + 1;
    shell("d='%s/sys/devices/%s' && b='%s/sys/bus/pci/devices' && mkdir -p \"$d\" \"$b\" && "
          "ln -s ../../../devices/%s \"$b/%s\" && echo '%s' >\"$d/current_link_speed\" && "
          "echo %d >\"$d/current_link_width\" && echo '%s' >\"$d/max_link_speed\" && "
          "echo %d >\"$d/max_link_width\" && echo %d >\"$d/numa_node\"",
          directory_path(), path, directory_path(), path, id, speed, width, most, most_width, node);
}

static tsr_topology *two_nodes(int n_gpus)
{
    tsr_topology *topo = NULL;
    assert_int_equal(tsr_topology_load("synthetic:pack:2 [numa(memory=8GiB)] core:2 pu:1", NULL, &topo),
                     TSR_OK);
    topo->n_gpus = n_gpus;
    for (int i = 0; i < n_gpus; i++)
        topo->gpus[i] = (tsr_gpu){.ordinal = i, .numa_node = -1};
    return topo;
}

static void set_bus_id(tsr_gpu *gpu, const char *id)
{
    snprintf(gpu->bus_id, sizeof gpu->bus_id, "%s", id);
}

/* GPUs 0 and 1 at one switch, 2 at another below the same root port, 3 at a root port of its own, 4 and 5 in
 * two root complexes of the other node, 6 nowhere. */
static void sysfs_tells_links_nodes_and_where_paths_meet(void **state)
{
    (void)state;
    static const char *const expected[7] = {"X PIX PXB PHB SYS SYS ?",
                                            "PIX X PXB PHB SYS SYS ?",
                                            "PXB PXB X PHB SYS SYS ?",
                                            "PHB PHB PHB X SYS SYS ?",
                                            "SYS SYS SYS SYS X NODE ?",
                                            "SYS SYS SYS SYS NODE X ?",
                                            "? ? ? ? ? ? X"};
    static const char *const ids[7] = {"0000:04:00.0", "0000:05:00.0", "0000:08:00.0", "0000:0a:00.0",
                                       "0000:81:00.0", "0000:c1:00.0", "0000:ff:00.0"};
    put_device("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0/0000:04:00.0", "2.5 GT/s PCIe",
               16, "32.0 GT/s PCIe", 16, 0);
    put_device("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:01.0/0000:05:00.0",
               "16.0 GT/s PCIe", 8, "16.0 GT/s PCIe", 16, 0);
    put_device("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:06:00.0/0000:07:00.0/0000:08:00.0",
               "Unknown", 0, "Unknown", 255, 0);
    put_device("pci0000:00/0000:00:02.0/0000:0a:00.0", "8.0 GT/s PCIe", 16, "16.0 GT/s PCIe", 16, 0);
    put_device("pci0000:80/0000:80:01.0/0000:81:00.0", "32.0 GT/s PCIe", 16, "32.0 GT/s PCIe", 16, 1);
    put_device("pci0000:c0/0000:c0:01.0/0000:c1:00.0", "32.0 GT/s PCIe", 16, "32.0 GT/s PCIe", 16, 1);
    /* The slot above GPU 3 is older and narrower than the card. */
    shell("cd '%s/sys/devices/pci0000:00/0000:00:02.0' && echo '8.0 GT/s PCIe' >max_link_speed && "
          "echo 8 >max_link_width",
          directory_path());

    tsr_topology *topo = two_nodes(7);
    for (int i = 0; i < 7; i++)
        set_bus_id(&topo->gpus[i], ids[i]);
    topo->gpus[4].pcie_max = (tsr_pcie_link){4, 8}; /* from a better source */
    tsr_topo_gpus_locate(topo, directory_path());
    tsr_topo_gpus_link(topo);
    tsr_topo_gpus_rate(topo);

    for (int a = 0; a < 7; a++) {
        char row[64] = "", word[16];
        for (int b = 0; b < 7; b++) {
            strcat(row, b ? " " : "");
            strcat(row, tsr_topo_gpu_pair_word(topo, a, b, word));
        }
        assert_string_equal(row, expected[a]);
        assert_int_equal(topo->gpus[a].numa_node, a < 4 ? 0 : a < 6 ? 1 : -1);
    }
    const tsr_gpu *gpus = topo->gpus;
    assert_int_equal(gpus[0].pcie.generation, 1);
    assert_int_equal(gpus[0].pcie_max.generation, 5);
    assert_true(gpus[0].pcie_bytes_per_s > 62e9 && gpus[0].pcie_bytes_per_s < 64e9);
    assert_true(gpus[1].pcie_bytes_per_s > 15e9 && gpus[1].pcie_bytes_per_s < 16e9); /* 8 lanes */
    assert_int_equal(gpus[2].pcie.generation, 0);
    assert_int_equal(gpus[2].pcie_max.width, 0);
    assert_true(gpus[2].pcie_bytes_per_s == 0);
    assert_int_equal(gpus[3].pcie_max.generation, 3);
    assert_int_equal(gpus[3].pcie_max.width, 8);
    assert_int_equal(gpus[4].pcie_max.generation, 4);
    assert_int_equal(gpus[4].pcie_max.width, 8);
    assert_int_equal(gpus[6].pcie.generation, 0);
    tsr_topology_destroy(topo);
}

static void add_end(tsr_gpu *gpu, tsr_nvlink_end_kind kind, const char *bus_id, int n, double speed)
{
    tsr_nvlink_end *end = &gpu->nvlink_ends[gpu->n_nvlink_ends++];
    *end = (tsr_nvlink_end){.kind = kind, .gpu = -1, .n_links = n, .bytes_per_s = speed};
    snprintf(end->bus_id, sizeof end->bus_id, "%s", bus_id);
}

static void nvlinks_join_pairs_directly_or_through_switches(void **state)
{
    (void)state;
    tsr_topology *topo = two_nodes(5);
    tsr_gpu *gpus = topo->gpus;
    set_bus_id(&gpus[0], "0000:01:00.0");
    set_bus_id(&gpus[1], "0000:02:00.0");
    add_end(&gpus[0], TSR_NVLINK_END_UNKNOWN, "0000:02:00.0", 4, 56.25e9); /* recognised by its bus id */
    add_end(&gpus[1], TSR_NVLINK_END_GPU, "0000:01:00.0", 4, 56.25e9);
    add_end(&gpus[1], TSR_NVLINK_END_GPU, "0000:99:00.0", 2, 50e9); /* hidden from this process */
    add_end(&gpus[2], TSR_NVLINK_END_SWITCH, "0000:c0:00.0", 9, 225e9);
    add_end(&gpus[2], TSR_NVLINK_END_SWITCH, "", 9, 225e9);
    add_end(&gpus[3], TSR_NVLINK_END_SWITCH, "", 12, 300e9);
    add_end(&gpus[4], TSR_NVLINK_END_CPU, "", 10, 450e9);
    tsr_topo_gpus_link(topo);
    assert_int_equal(gpus[0].nvlink_ends[0].kind, TSR_NVLINK_END_GPU);
    assert_int_equal(gpus[0].nvlink_ends[0].gpu, 1);
    assert_int_equal(gpus[1].nvlink_ends[0].gpu, 0);
    assert_int_equal(gpus[1].nvlink_ends[1].gpu, -1);
    assert_int_equal(topo->gpu_pairs[0][1].n_nvlinks, 4);
    assert_true(topo->gpu_pairs[1][0].nvlink_bytes_per_s == 56.25e9);
    assert_int_equal(topo->gpu_pairs[2][3].n_nvlinks, 12);
    assert_true(topo->gpu_pairs[3][2].nvlink_bytes_per_s == 300e9);
    assert_int_equal(topo->gpu_pairs[0][2].n_nvlinks, 0);
    assert_int_equal(topo->gpu_pairs[4][2].n_nvlinks, 0);
    tsr_topology_destroy(topo);
}

static void what_the_driver_does_not_know_the_card_table_may(void **state)
{
    (void)state;
    tsr_topology *topo = two_nodes(4);
    tsr_gpu *gpus = topo->gpus;
    static const char *const names[] = {"NVIDIA GB10", "NVIDIA A100-SXM4-80GB",
                                        "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA Zonk 1"};
    for (int i = 0; i < 4; i++)
        snprintf(gpus[i].name, sizeof gpus[i].name, "%s", names[i]);
    gpus[1].memory_bytes_per_s = 2.039e12;
    gpus[2].is_mig = true;
    gpus[2].memory_bytes = UINT64_C(10) << 30;
    gpus[1].n_sms = 108;
    gpus[2].n_sms = 14;
    tsr_topo_gpus_rate(topo);
    assert_true(gpus[0].memory_bytes_per_s > 2.7e11 && gpus[0].memory_bytes_per_s < 3.1e11);
    assert_int_equal(gpus[0].guessed, TSR_GPU_BANDWIDTH);
    assert_int_equal(gpus[1].guessed, 0);
    assert_true(gpus[1].tensor_flops == 312e12);
    assert_true(gpus[2].memory_bytes_per_s > 2.4e11 && gpus[2].memory_bytes_per_s < 2.7e11);
    assert_true(gpus[2].tensor_flops > 40e12 && gpus[2].tensor_flops < 41e12);
    assert_true(gpus[3].memory_bytes_per_s == 0 && gpus[3].tensor_flops == 0);
    tsr_topology_destroy(topo);
}

static void proc_tells_the_drivers_version(void **state)
{
    (void)state;
    tsr_topology *topo = two_nodes(1);
    tsr_topo_gpus_locate(topo, directory_path());
    assert_string_equal(topo->driver_version, "");
    shell(
        "mkdir -p '%s/proc/driver/nvidia' && echo 'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "
        "580.65.06  Release Build  (dvs-builder@U22)  Sun Jul 27 07:20:12 UTC 2025' "
        ">'%s/proc/driver/nvidia/version'",
        directory_path(), directory_path());
    tsr_topo_gpus_locate(topo, directory_path());
    assert_string_equal(topo->driver_version, "580.65.06");
    snprintf(topo->driver_version, sizeof topo->driver_version, "1"); /* NVML's word counts */
    tsr_topo_gpus_locate(topo, directory_path());
    assert_string_equal(topo->driver_version, "1");
    tsr_topology_destroy(topo);
}

static void append(const char *text, void *user)
{
    char *all = user;
    strncat(all, text, 4095 - strlen(all));
}

static void what_is_guessed_or_unknown_is_printed_so(void **state)
{
    (void)state;
    char text[4096] = "";
    tsr_topology *topo = two_nodes(3);
    tsr_gpu *gpus = topo->gpus;
    gpus[0] = (tsr_gpu){.name = "NVIDIA GeForce RTX 3090",
                        .memory_bytes = UINT64_C(24) << 30,
                        .memory_bytes_per_s = 936e9,
                        .pcie = {1, 16},
                        .guessed = TSR_GPU_MEMORY | TSR_GPU_BANDWIDTH};
    gpus[1].ordinal = 1;
    gpus[2] = (tsr_gpu){.ordinal = 2, .name = "A", .numa_node = 1, .pcie_bytes_per_s = 4e9};
    gpus[2].guessed = TSR_GPU_PCIE | TSR_GPU_NVLINK;
    set_bus_id(&gpus[2], "0000:02:00.0");
    add_end(&gpus[2], TSR_NVLINK_END_GPU, "0000:99:00.0", 2, 50e9);
    add_end(&gpus[2], TSR_NVLINK_END_CPU, "", 1, 0);
    tsr_topology_print(topo, append, text);
    assert_non_null(strstr(text, "      GPU 0 NVIDIA GeForce RTX 3090, ~24 GiB at ~936 GB/s\n"
                                 "        PCI at an unknown address, PCIe of unknown speed (now 1 x16,\n"
                                 "          perhaps idle)\n"));
    assert_non_null(strstr(text,
                           "      GPU 2 A\n"
                           "        PCI 0000:02:00.0, PCIe ~4.0 GB/s, 2 NVLinks ~50.0 GB/s to GPUs not\n"
                           "          listed, 1 NVLink to the processor\n"));
    assert_non_null(strstr(text, "\n  GPU 1 of unknown model\n    PCI at an unknown address\n"));
    assert_non_null(strstr(text, "  ?: unknown\n"));
    tsr_topology_destroy(topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sysfs_tells_links_nodes_and_where_paths_meet),
        cmocka_unit_test(nvlinks_join_pairs_directly_or_through_switches),
        cmocka_unit_test(what_the_driver_does_not_know_the_card_table_may),
        cmocka_unit_test(proc_tells_the_drivers_version),
        cmocka_unit_test(what_is_guessed_or_unknown_is_printed_so),
    };
    return cmocka_run_group_tests_name("GPUs among themselves", tests, NULL, NULL);
}
