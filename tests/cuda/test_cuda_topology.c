/* What a topology says of the GPUs of simulated machines: with the driver's management library, without it,
 * with an old one, and with every call failing once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>
#include <cudasim_nvml.h>
#include <dirent.h>
#include <sched.h>
#include <tsr/runtime.h>

#include "core/device.h"
#include "core/gpu.h"
#include "cuda/device/device.h"
#include "cuda/libs/nvml_api.h"
#include "cuda/simulated.h"
#include "support/failing_alloc.h"
#include "support/topology.h"
#include "topo/import/gpus.h"

static void machine(int n_gpus, cudasim_fabric fabric, int n_links)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    cudasim_nvml_config nvml = CUDASIM_NVML_CONFIG_INIT;
    config.n_devices = n_gpus;
    nvml.fabric = fabric;
    nvml.n_links = n_links;
    cudasim_configure(&config);
    cudasim_nvml_configure(&nvml);
}

/* Debug lines and warnings, one per line. */
typedef struct lines {
    char text[16384];
    int n_warnings;
} lines;

static void keep_line(tsr_log_level level, const char *text, void *user)
{
    lines *all = user;
    assert_null(strchr(text, '\n'));
    size_t used = strlen(all->text);
    snprintf(all->text + used, sizeof all->text - used, "%s\n", text);
    all->n_warnings += level == TSR_LOG_WARN;
}

/* A host without GPUs, and on it those of the simulated machine; no file of the real machine is read. */
static tsr_topology *describe(lines *log)
{
    tsr_topology *topo = NULL;
    tsr_logger logger = {keep_line, log, TSR_LOG_DEBUG};
    assert_int_equal(tsr_topology_load("synthetic:pack:2 [numa(memory=8GiB)] core:4 pu:1", NULL, &topo),
                     TSR_OK);
    memset(log, 0, sizeof *log);
    tsr_gpu_probe(topo, &logger);
    for (int i = 0; i < topo->n_gpus; i++)
        topo->gpus[i].numa_node = topo->gpus[i].ordinal % 2;
    tsr_topo_gpus_locate(topo, "/nowhere");
    tsr_topo_gpus_link(topo);
    tsr_topo_gpus_rate(topo);
    assert_null(topology_fault(topo));
    nothing_is_left();
    assert_int_equal(cudasim_nvml_started(), 0);
    return topo;
}

static void append(const char *text, void *user)
{
    char *all = user;
    strncat(all, text, 8191 - strlen(all));
}

static void a_machine_is_printed_with_its_gpus_in_their_places(void **state)
{
    (void)state;
    lines log;
    char text[8192] = "";
    machine(4, CUDASIM_NVLINK_PAIRS, 4);
    cudasim_forbid_peer(0, 3);
    tsr_topology *topo = describe(&log);
    tsr_topology_print(topo, append, text);
    assert_string_equal(text, "synthetic:pack:2 [numa(memory=8GiB)] core:4 pu:1\n"
                              "  2 packages, 2 NUMA nodes, 8 cores, 8 CPUs, 16 GiB of memory\n"
                              "  4 GPUs, driver 580.65.06 with CUDA 13.0\n"
                              "  Package 0\n"
                              "    NUMA node 0: 8 GiB\n"
                              "      cores 0-3, CPU 0-3\n"
                              "      GPU 0 Simulated GPU, 296 MiB at 2.05 TB/s (296 MiB free),\n"
                              "        8 SMs at 1.50 GHz, sm_90, 700 W\n"
                              "        PCI 0000:01:00.0, PCIe 5 x16 63.0 GB/s (idle at PCIe 1),\n"
                              "          4 NVLinks 106 GB/s to GPU 1\n"
                              "      GPU 2 Simulated GPU, 296 MiB at 2.05 TB/s (296 MiB free),\n"
                              "        8 SMs at 1.50 GHz, sm_90, 700 W\n"
                              "        PCI 0000:03:00.0, PCIe 5 x16 63.0 GB/s (idle at PCIe 1),\n"
                              "          4 NVLinks 106 GB/s to GPU 3\n"
                              "  Package 1\n"
                              "    NUMA node 1: 8 GiB\n"
                              "      cores 4-7, CPU 4-7\n"
                              "      GPU 1 Simulated GPU, 296 MiB at 2.05 TB/s (296 MiB free),\n"
                              "        8 SMs at 1.50 GHz, sm_90, 700 W\n"
                              "        PCI 0000:02:00.0, PCIe 5 x16 63.0 GB/s (idle at PCIe 1),\n"
                              "          4 NVLinks 106 GB/s to GPU 0\n"
                              "      GPU 3 Simulated GPU, 296 MiB at 2.05 TB/s (296 MiB free),\n"
                              "        8 SMs at 1.50 GHz, sm_90, 700 W\n"
                              "        PCI 0000:04:00.0, PCIe 5 x16 63.0 GB/s (idle at PCIe 1),\n"
                              "          4 NVLinks 106 GB/s to GPU 2\n"
                              "          GPU0   GPU1   GPU2   GPU3\n"
                              "  GPU0       X    NV4    PIX   SYS!\n"
                              "  GPU1     NV4      X    SYS    PIX\n"
                              "  GPU2     PIX    SYS      X    NV4\n"
                              "  GPU3    SYS!    PIX    NV4      X\n"
                              "  NV4: 4 NVLinks 106 GB/s one way, PIX: one PCIe switch,\n"
                              "    SYS: between NUMA nodes, !: no peer access\n");
    assert_string_equal(log.text, "");
    tsr_topology_destroy(topo);
}

static void assert_cuda_facts(const tsr_topology *topo, int n_gpus)
{
    assert_int_equal(topo->n_gpus, n_gpus);
    assert_string_equal(topo->gpu_note, "");
    assert_int_equal(topo->cuda_version, 13000);
    assert_int_equal(topo->cuda_driver_version, 13000);
    for (int i = 0; i < n_gpus; i++) {
        const tsr_gpu *gpu = &topo->gpus[i];
        char bus_id[16];
        snprintf(bus_id, sizeof bus_id, "0000:%02x:00.0", i + 1);
        assert_int_equal(gpu->ordinal, i);
        assert_string_equal(gpu->bus_id, bus_id);
        assert_string_equal(gpu->name, "Simulated GPU");
        assert_int_equal(gpu->n_sms, 8);
        assert_int_equal(gpu->compute_capability, 90);
        assert_int_equal(gpu->memory_bytes, (256 << 20) + tsr_gpu_context_bytes(gpu));
        assert_false(gpu->has_context);
        assert_int_equal(gpu->commit_bytes, 64 << 10);
        assert_int_equal(gpu->sm_clock_khz, 1500000);
        assert_true(gpu->memory_bytes_per_s == 2e9 * 2 * 4096 / 8);
        for (int j = 0; j < n_gpus; j++)
            assert_int_equal(topo->gpu_pairs[i][j].peer_access, TSR_YES);
        assert_int_equal(topo->gpu_pairs[i][i].path, TSR_GPU_PATH_SAME);
    }
}

static void machines_of_every_size_with_and_without_nvml(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 5, 8};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int n = sizes[s];
        lines log;
        machine(n, CUDASIM_NVSWITCH, 18);
        tsr_topology *topo = describe(&log);
        assert_cuda_facts(topo, n);
        assert_string_equal(topo->driver_version, "580.65.06");
        for (int i = 0; i < n; i++) {
            const tsr_gpu *gpu = &topo->gpus[i];
            assert_int_equal(gpu->n_nvlink_ends, 4);
            assert_int_equal(gpu->nvlink_ends[0].kind, TSR_NVLINK_END_SWITCH);
            assert_string_equal(gpu->nvlink_ends[3].bus_id, "0000:c3:00.0");
            assert_int_equal(gpu->nvlink_ends[0].version, 4);
            assert_int_equal(gpu->nvlink_ends[0].n_links, 5);
            assert_int_equal(gpu->nvlink_ends[3].n_links, 4);
            assert_int_equal(gpu->pcie.generation, 1);
            assert_int_equal(gpu->pcie_max.generation, 5);
            assert_int_equal(gpu->power_limit_mw, 700000);
            assert_int_equal(gpu->memory_free_bytes, gpu->memory_bytes);
            for (int j = 0; j < n; j++)
                assert_int_equal(topo->gpu_pairs[i][j].n_nvlinks, i == j ? 0 : 18);
        }
        if (n > 1)
            assert_true(topo->gpu_pairs[0][n - 1].nvlink_bytes_per_s == 18 * 26562e6);
        assert_string_equal(log.text, "");
        tsr_topology_destroy(topo);

        cudasim_nvml_configure(NULL);
        topo = describe(&log);
        assert_cuda_facts(topo, n);
        assert_string_equal(topo->driver_version, "");
        assert_int_equal(topo->gpus[0].n_nvlink_ends, 0);
        assert_true(topo->gpus[0].pcie_bytes_per_s == 0);
        assert_non_null(strstr(log.text, "NVML (libnvidia-ml.so.1) is not installed"));
        assert_int_equal(log.n_warnings, 0);
        tsr_topology_destroy(topo);
    }
}

/* As drivers of other ages may. */
static void any_function_of_nvml_may_be_missing(void **state)
{
    (void)state;
#define NAME(name, parameters) #name,
    static const char *const names[] = {TSR_NVML_CALLS(NAME, NAME)};
#undef NAME
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        cudasim_nvml_config nvml = CUDASIM_NVML_CONFIG_INIT;
        lines log;
        machine(3, CUDASIM_NVLINK_MESH, 4);
        nvml.fabric = CUDASIM_NVLINK_MESH;
        nvml.n_links = 4;
        nvml.lacks = names[i];
        cudasim_nvml_configure(&nvml);
        tsr_topology *topo = describe(&log);
        assert_cuda_facts(topo, 3);
        assert_int_equal(log.n_warnings, 0);
        tsr_topology_destroy(topo);
    }
}

static void gpus_are_found_by_bus_id_where_uuids_are_not_known(void **state)
{
    (void)state;
    cudasim_nvml_config nvml = CUDASIM_NVML_CONFIG_INIT;
    lines log;
    machine(2, CUDASIM_NO_NVLINK, 0);
    nvml.knows_uuids = false;
    cudasim_nvml_configure(&nvml);
    tsr_topology *topo = describe(&log);
    assert_int_equal(topo->gpus[1].pcie_max.generation, 5);
    assert_string_equal(topo->gpus[1].uuid, "GPU-51420000-0000-0000-0000-000000000001");
    tsr_topology_destroy(topo);
}

/* Half a card's memory is half its bandwidth, and an instance has no NVLinks. */
static void a_mig_instance_has_its_part_of_the_card(void **state)
{
    (void)state;
    cudasim_nvml_config nvml = CUDASIM_NVML_CONFIG_INIT;
    lines log;
    machine(1, CUDASIM_NVSWITCH, 18);
    nvml.is_mig = true;
    nvml.fabric = CUDASIM_NVSWITCH;
    nvml.n_links = 18;
    cudasim_nvml_configure(&nvml);
    tsr_topology *topo = describe(&log);
    assert_true(topo->gpus[0].is_mig);
    assert_string_equal(topo->gpus[0].uuid, "MIG-51420000-0000-0000-0000-000000000000");
    assert_true(topo->gpus[0].memory_bytes_per_s == 2e9 * 2 * 4096 / 8 / 2);
    assert_int_equal(topo->gpus[0].n_nvlink_ends, 0);
    assert_int_equal(topo->gpus[0].pcie_max.width, 16);
    tsr_topology_destroy(topo);
}

static void why_there_is_no_gpu_is_said_in_a_few_words(void **state)
{
    (void)state;
    static const struct {
        int n_gpus, compute_capability, error, driver;
        const char *phrase;
    } cases[] = {
        {0, 90, 0, 0, "CUDA_VISIBLE_DEVICES"},
        {2, 75, 0, 0, "GPU 0, Simulated GPU, has compute capability 7.5; 8.0 is needed"},
        {1, 90, 0, 12020,
         "supports CUDA 12.2 and this build needs 13.0 (driver 580 or newer); update the driver"},
        {1, 90, cudaErrorInsufficientDriver, 13000, "update the driver"},
        {1, 90, cudaErrorUnknown, 0, "CUDA failed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cudasim_config config = CUDASIM_CONFIG_INIT;
        lines log;
        config.n_devices = cases[i].n_gpus;
        config.compute_capability = cases[i].compute_capability;
        config.driver_version = cases[i].driver;
        cudasim_configure(&config);
        if (cases[i].error)
            cudasim_fail_named("cudaGetDeviceCount", 1, cases[i].error);
        tsr_topology *topo = describe(&log);
        assert_int_equal(topo->n_gpus, 0);
        if (!strstr(topo->gpu_note, cases[i].phrase))
            fail_msg("%s", topo->gpu_note);
        assert_string_equal(tsr_last_error(), "");
        tsr_topology_destroy(topo);
    }
}

/* A GPU is left out with a warning and a note, or something stays unknown with a debug line; the calling
 * thread's CUDA device stays as it was. */
static void every_call_may_fail_once(void **state)
{
    (void)state;
    lines log;
    machine(3, CUDASIM_NVLINK_MESH, 4);
    tsr_topology_destroy(describe(&log));
    uint64_t n_calls = cudasim_calls();
    int n_left_out = 0, n_unknown = 0;
    assert_true(n_calls > 100);
    for (uint64_t call = 0; call < n_calls; call++) {
        int device = -1;
        machine(3, CUDASIM_NVLINK_MESH, 4);
        assert_int_equal(cudaSetDevice(1), cudaSuccess);
        cudasim_fail_call(call + 1, 0);
        tsr_topology *topo = describe(&log);
        assert_int_equal(cudasim_faults_hit(), 1);
        cudasim_clear_faults();
        const char *name = cudasim_call_name(call + 1);
        if (topo->n_gpus < 3) {
            n_left_out++;
            assert_true(topo->n_gpus == 2 || topo->n_gpus == 0);
            assert_true(strlen(topo->gpu_note) > 20);
            assert_null(strchr(topo->gpu_note, '\n'));
        } else {
            n_unknown++;
            assert_string_equal(topo->gpu_note, "");
            assert_int_equal(log.n_warnings, 0);
        }
        if (topo->n_gpus != 0 && strcmp(name, "nvmlShutdown") != 0 && !*log.text)
            fail_msg("%s failed and no message says so", name);
        assert_int_equal(cudaGetLastError(), cudaSuccess);
        assert_int_equal(cudaGetDevice(&device), cudaSuccess);
        assert_int_equal(device, 1);
        assert_string_equal(tsr_last_error(), "");
        tsr_topology_destroy(topo);
    }
    assert_true(n_left_out >= 3 * 3 + 1);
    assert_true(n_unknown > 60);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    machine(2, CUDASIM_NVSWITCH, 4);
    int64_t blocks = failing_alloc_live();
    for (int n = 1;; n++) {
        tsr_topology *topo = NULL;
        failing_alloc_set(n);
        tsr_status status = tsr_topology_discover(NULL, &topo);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (!fired) {
            assert_int_equal(status, TSR_OK);
            if (topo->is_this_machine)
                assert_int_equal(topo->n_gpus, 2);
            tsr_topology_destroy(topo);
            break;
        }
        assert_int_equal(status, TSR_ERR_MEMORY);
        assert_null(topo);
        assert_int_equal(failing_alloc_live(), blocks);
    }
}

/* -- host threads -- */

/* Threads of this process that may run on `cpu` and nowhere else. */
static int threads_bound_to(int cpu)
{
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        cpu_set_t set;
        pid_t id = (pid_t)strtol(entry->d_name, NULL, 10);
        if (id > 0 && sched_getaffinity(id, sizeof set, &set) == 0)
            n += CPU_COUNT(&set) == 1 && CPU_ISSET(cpu, &set);
    }
    closedir(tasks);
    return n;
}

static void a_host_thread_runs_where_asked(void **state)
{
    (void)state;
    cpu_set_t allowed;
    int last = CPU_SETSIZE - 1;
    char devices[64];
    lines log;
    tsr_runtime *rt = NULL;
    tsr_runtime_config config = tsr_runtime_config_default();
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    if (CPU_COUNT(&allowed) < 2) {
        print_message("skipped: one CPU only\n");
        skip();
    }
    while (!CPU_ISSET(last, &allowed))
        last--;
    machine(1, CUDASIM_NO_NVLINK, 0);
    snprintf(devices, sizeof devices, "cuda:0,cpus=%d", last);
    memset(&log, 0, sizeof log);
    config.devices = devices;
    config.logger = (tsr_logger){keep_line, &log, TSR_LOG_DEBUG};
    int before = threads_bound_to(last);
    if (tsr_runtime_open(&config, &rt) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    assert_int_equal(threads_bound_to(last), before + 1);
    snprintf(devices, sizeof devices, "device cuda0: host thread on CPU %d\n", last);
    assert_non_null(strstr(log.text, devices));
    tsr_runtime_close(rt);
}

static tsr_status refuse(void *n_calls, int thread)
{
    assert_int_equal(thread, 0);
    ++*(int *)n_calls;
    return tsr_fail(TSR_ERR_UNSUPPORTED, "not permitted");
}

static void a_thread_that_may_not_be_pinned_works_where_it_is(void **state)
{
    (void)state;
    lines log;
    int n_calls = 0;
    tsr_device *device = NULL;
    tsr_logger logger = {keep_line, &log, TSR_LOG_INFO};
    tsr_cuda_device_config config = {.name = "cuda0", .pin = refuse, .pin_user = &n_calls, .logger = &logger};
    memset(&log, 0, sizeof log);
    machine(1, CUDASIM_NO_NVLINK, 0);
    assert_int_equal(tsr_cuda_device_create(&config, &device), TSR_OK);
    assert_int_equal(n_calls, 1);
    assert_non_null(strstr(log.text, "device cuda0: its host thread stays unpinned"));
    assert_non_null(strstr(log.text, "not permitted"));
    assert_int_equal(log.n_warnings, 0);
    tsr_device_destroy(device);
    assert_int_equal(cudasim_leaks(stderr), 0);
}

static void gpus_of_a_described_machine_are_not_opened(void **state)
{
    (void)state;
    lines log;
    machine(1, CUDASIM_NO_NVLINK, 0);
    tsr_topology *topo = describe(&log);
    tsr_runtime *rt = NULL;
    tsr_runtime_config config = tsr_runtime_config_default();
    config.topology = topo;
    assert_int_equal(tsr_runtime_open(&config, &rt), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "is a description"));
    assert_null(rt);
    tsr_topology_destroy(topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_machine_is_printed_with_its_gpus_in_their_places),
        cmocka_unit_test(machines_of_every_size_with_and_without_nvml),
        cmocka_unit_test(any_function_of_nvml_may_be_missing),
        cmocka_unit_test(gpus_are_found_by_bus_id_where_uuids_are_not_known),
        cmocka_unit_test(a_mig_instance_has_its_part_of_the_card),
        cmocka_unit_test(why_there_is_no_gpu_is_said_in_a_few_words),
        cmocka_unit_test(every_call_may_fail_once),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_host_thread_runs_where_asked),
        cmocka_unit_test(a_thread_that_may_not_be_pinned_works_where_it_is),
        cmocka_unit_test(gpus_of_a_described_machine_are_not_opened),
    };
    return cmocka_run_group_tests_name("GPUs in a machine's description", tests, NULL, NULL);
}
