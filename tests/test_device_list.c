/* --devices texts: what each asks for on known machines, and what is wrong with the wrong ones. */
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

#include <tsr/bytes.h>
#include <tsr/isa.h>
#include <tsr/machine.h>
#include <tsr/topology.h>

#include "support/failing_alloc.h"
#include "support/topology.h"

static tsr_topology *machine(const char *description)
{
    tsr_topology *topo = NULL;
    if (tsr_topology_load(description, NULL, &topo) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    return topo;
}

/* Counts warnings. */
static void count_line(tsr_log_level level, const char *text, void *user)
{
    assert_int_equal(level, TSR_LOG_WARN);
    assert_null(strchr(text, '\n'));
    ++*(int *)user;
}

static tsr_device_list *make(const tsr_topology *topo, const char *spec, int *warnings)
{
    tsr_logger logger = {count_line, warnings, TSR_LOG_DEBUG};
    tsr_device_list *list = NULL;
    *warnings = 0;
    if (tsr_device_list_create(topo, spec, &logger, &list) != TSR_OK)
        fail_msg("%s: %s", spec, tsr_last_error());
    const char *fault = device_list_fault(list, topo);
    if (fault)
        fail_msg("%s: does not hold: %s", spec, fault);
    return list;
}

/* "cores/threads" of each device: "0-3/4 4-7/4". */
static void describe(const tsr_device_list *list, char *text, size_t bytes)
{
    size_t used = 0;
    for (int i = 0; i < list->n_devices; i++) {
        const tsr_device_desc *d = &list->devices[i];
        used += (size_t)snprintf(text + used, bytes - used, "%s%d-%d/%d", i ? " " : "", d->cores[0],
                                 d->cores[d->n_cores - 1], d->n_threads);
    }
}

static void cores_are_cut_in_order_and_at_numa_nodes(void **state)
{
    (void)state;
    static const char two_nodes[] = "synthetic:pack:2 [numa(memory=8GiB)] core:4 pu:2";
    static const char big[] = "synthetic:numa:4(memory=8GiB) core:16 pu:1";
    static const char flat[] = "synthetic:core:4 pu:1";
    static const struct {
        const char *machine, *spec, *expected;
        int warnings;
    } cases[] = {
        {two_nodes, NULL, "0-3/4 4-7/4", 0},
        {two_nodes, " ", "0-3/4 4-7/4", 0},
        {two_nodes, "host", "0-3/4 4-7/4", 0},
        {two_nodes, "host,threads=2", "0-3/2 4-7/2", 0},
        {two_nodes, "host:1", "0-7/8", 0},
        {two_nodes, "host:4", "0-1/2 2-3/2 4-5/2 6-7/2", 0},
        {two_nodes, "host:2,threads=1", "0-3/1 4-7/1", 0},
        {two_nodes, " host:2 , threads=1 ", "0-3/1 4-7/1", 0},
        {two_nodes, "host:1,threads=2,host:1,threads=1", "0-3/2 4-7/1", 0},
        {two_nodes, "host:1,threads=6,host:1", "0-5/6 6-7/2", 0},
        {big, "host:1,threads=31,host:1,threads=33", "0-30/31 31-63/33", 0}, /* moving it would cost a core */
        {big, "host:1,threads=27,host:1,threads=31", "0-31/27 32-63/31", 0}, /* the cut, 29 + 3, is on it */
        {two_nodes, "host:8", "0-0/1 1-1/1 2-2/1 3-3/1 4-4/1 5-5/1 6-6/1 7-7/1", 0},
        {two_nodes, "host:1,threads=16", "0-7/16", 1},
        {two_nodes, "host:1,threads=17", "0-7/17", 1},
        {two_nodes, "host:2,threads=8", "0-3/8 4-7/8", 2},
        {big, "host:3", "0-20/21 21-41/21 42-63/22", 0}, /* edges are further than an eighth away */
        {big, "host:4", "0-15/16 16-31/16 32-47/16 48-63/16", 0},
        {big, "host:7", "0-8/9 9-17/9 18-26/9 27-35/9 36-44/9 45-53/9 54-63/10", 0},
        {big, "host,host:4", "0-7/8 8-15/8 16-23/8 24-31/8 32-39/8 40-47/8 48-55/8 56-63/8", 0},
        {flat, "host:2", "0-1/2 2-3/2", 0},
        {flat, "host:1,threads=3,host:1,threads=3", "0-1/3 2-3/3", 2},
        {flat, "host:1,threads=1,host:1,threads=4", "0-0/1 1-3/4", 1},
        {flat, "host:6", "0-0/1 0-0/1 1-1/1 2-2/1 2-2/1 3-3/1", 1}, /* shared */
        {flat, "host:6,threads=2", "0-0/2 0-0/2 1-1/2 2-2/2 2-2/2 3-3/2", 7},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_topology *topo = machine(cases[i].machine);
        int warnings;
        tsr_device_list *list = make(topo, cases[i].spec, &warnings);
        char text[512];
        describe(list, text, sizeof text);
        if (strcmp(text, cases[i].expected) != 0 || warnings != cases[i].warnings)
            fail_msg("%s on %s: %s with %d warnings", cases[i].spec, cases[i].machine, text, warnings);
        tsr_device_list_destroy(list);
        tsr_topology_destroy(topo);
    }
    tsr_device_list_destroy(NULL);
}

static void a_device_says_its_node_memory_and_cap(void **state)
{
    (void)state;
    int warnings;
    tsr_topology *topo = machine("synthetic:pack:2 [numa(memory=8GiB)] core:4 pu:2");
    tsr_device_list *list = make(topo, "host:1,mem=200MiB,host:1,mem=1.5GB,threads=2", &warnings);
    assert_int_equal(list->n_devices, 2);
    assert_string_equal(list->devices[0].name, "host0");
    assert_string_equal(list->devices[1].name, "host1");
    assert_string_equal(tsr_device_kind_name(list->devices[0].kind), "host");
    assert_int_equal(list->devices[0].mem_cap_bytes, 200 << 20);
    assert_int_equal(list->devices[1].mem_cap_bytes, 1500000000);
    assert_int_equal(warnings, 0);
    tsr_device_list_destroy(list);

    list = make(topo, "host:4", &warnings);
    assert_int_equal(list->devices[1].numa_node, 0);
    assert_int_equal(list->devices[2].numa_node, 1);
    assert_int_equal(list->devices[2].memory_total_bytes, UINT64_C(8) << 30);
    assert_int_equal(list->devices[2].mem_cap_bytes, 0);
    tsr_device_list_destroy(list);

    list = make(topo, "host:1", &warnings); /* spans both nodes */
    assert_int_equal(list->devices[0].numa_node, -1);
    assert_int_equal(list->devices[0].memory_total_bytes, UINT64_C(16) << 30);
    tsr_device_list_destroy(list);

    list = make(topo, "host:2,mem=9GiB", &warnings); /* more than the node has */
    assert_int_equal(warnings, 2);
    tsr_device_list_destroy(list);
    tsr_topology_destroy(topo);
}

/* The speed of its memory: all of its nodes, or the part of a node that it has of the node's cores. */
static void a_device_says_how_fast_its_memory_is(void **state)
{
    (void)state;
    static const struct {
        const char *machine, *spec;
        double bytes_per_s[2];
        bool assumed;
    } cases[] = {
        {"2x host 16 cores 64GiB 200GB/s", "host", {200e9, 200e9}, false},
        {"2x host 16 cores 64GiB 200GB/s", "host:1", {400e9}, false},
        {"2x host 16 cores 64GiB 200GB/s", "host:1,threads=4", {400e9}, false},
        {"host 16 cores 64GiB 200GB/s", "host:2", {100e9, 100e9}, false},
        {"host 16 cores 64GiB 40GB/s", "host:1,threads=12,host:1,threads=4", {30e9, 10e9}, false},
        {"synthetic:numa:2(memory=8GiB) core:4 pu:1", "host:1", {100e9}, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_topology *topo;
        int warnings;
        if (strncmp(cases[i].machine, "synthetic:", 10) == 0)
            topo = machine(cases[i].machine);
        else
            assert_int_equal(tsr_topology_parse(cases[i].machine, NULL, &topo), TSR_OK);
        tsr_device_list *list = make(topo, cases[i].spec, &warnings);
        for (int d = 0; d < list->n_devices; d++) {
            assert_true(fabs(list->devices[d].memory_bytes_per_s / cases[i].bytes_per_s[d] - 1) < 1e-9);
            assert_int_equal(list->devices[d].memory_rate_assumed, cases[i].assumed);
        }
        tsr_device_list_destroy(list);
        tsr_topology_destroy(topo);
    }
}

static void threads_take_cores_first_and_siblings_after(void **state)
{
    (void)state;
    int warnings;
    tsr_topology *topo = machine("synthetic:core:2 pu:2"); /* core 0: CPUs 0, 1; core 1: CPUs 2, 3 */
    tsr_device_list *list = make(topo, "host:1,threads=6", &warnings);
    static const int expected[] = {0, 2, 1, 3, -1, -1};
    assert_memory_equal(list->devices[0].thread_pus, expected, sizeof expected);
    tsr_device_list_destroy(list);
    tsr_topology_destroy(topo);
}

static void memory_without_cores_makes_no_device(void **state)
{
    (void)state;
    static const char path[] = "../shared/topo/hwloc/mpibind-knl-quad-flat-hwloc1.xml";
    if (access(path, R_OK) != 0) {
        print_message("skipped: no %s\n", path);
        skip();
    }
    int warnings;
    tsr_topology *topo = machine(path);
    tsr_device_list *list = make(topo, "host", &warnings);
    assert_int_equal(topo->n_numa_nodes, 2); /* DDR and MCDRAM, the same cores */
    assert_int_equal(list->n_devices, 1);
    assert_int_equal(list->devices[0].n_cores, 68);
    tsr_device_list_destroy(list);
    tsr_topology_destroy(topo);
}

static void wrong_texts_are_named_with_a_remedy(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        tsr_status status;
        const char *piece, *remedy;
    } cases[] = {
        {"cuda:0", TSR_ERR_UNSUPPORTED, "'cuda'", "use host devices"},
        {"host:2,cuda", TSR_ERR_UNSUPPORTED, "'cuda'", "use host devices"},
        {"cuda:-1", TSR_ERR_INVALID, "'cuda:-1'", "numbered from 0"},
        {"cuda:0,threads=1", TSR_ERR_INVALID, "'threads=1'", "host devices"},
        {"hst:2", TSR_ERR_INVALID, "'hst:2'", "the kinds are host and cuda"},
        {"hos", TSR_ERR_INVALID, "'hos'", "the kinds are host and cuda"},
        {"host2", TSR_ERR_INVALID, "'host2'", "the kinds are host and cuda"},
        {":2", TSR_ERR_INVALID, "':2'", "the kinds are host and cuda"},
        {"host:0", TSR_ERR_INVALID, "'host:0'", "1 to 64"},
        {"host:-1", TSR_ERR_INVALID, "'host:-1'", "1 to 64"},
        {"host:65", TSR_ERR_INVALID, "'host:65'", "1 to 64"},
        {"host:", TSR_ERR_INVALID, "'host:'", "1 to 64"},
        {"host:2x", TSR_ERR_INVALID, "'host:2x'", "1 to 64"},
        {"host:99999999999999999999", TSR_ERR_INVALID, "99999", "1 to 64"},
        {"host:40,host:40", TSR_ERR_INVALID, "80", "at most 64"},
        {"host,", TSR_ERR_INVALID, "'host,'", "between two commas"},
        {",host", TSR_ERR_INVALID, "',host'", "between two commas"},
        {"host,,host", TSR_ERR_INVALID, "'host,,host'", "between two commas"},
        {"threads=1,host", TSR_ERR_INVALID, "'threads=1'", "before any device"},
        {"host,threads=0", TSR_ERR_INVALID, "'threads=0'", "threads=1 to threads=1024"},
        {"host,threads=000000000000000000000000000000000000000000000000000000123", TSR_ERR_INVALID, "...'",
         "too long for an item"}, /* not 1 */
        {"host,threads=2000", TSR_ERR_INVALID, "'threads=2000'", "threads=1 to threads=1024"},
        {"host,threads=", TSR_ERR_INVALID, "'threads='", "threads=1 to threads=1024"},
        {"host,threads=1,threads=2", TSR_ERR_INVALID, "'threads=2'", "keep one"},
        {"host,isa=", TSR_ERR_INVALID, "'isa='", "isa=generic"},
        {"host,isa=avx512avx512avx5", TSR_ERR_INVALID, "'isa=avx512avx512avx5'", "isa=generic"},
        {"host,isa=mmx", TSR_ERR_INVALID, "'isa=mmx'", "avx512vnni, avx512, avxvnni and avx2"},
        {"host,isa=avx2,isa=avx2", TSR_ERR_INVALID, "'isa=avx2'", "keep one"},
        {"cuda,isa=avx2", TSR_ERR_INVALID, "'isa=avx2'", "host devices"},
        {"host,mem=1,mem=2", TSR_ERR_INVALID, "'mem=2'", "keep one"},
        {"host,mem=0", TSR_ERR_INVALID, "'mem=0'", "mem=200MiB"},
        {"host,mem=-1", TSR_ERR_INVALID, "'mem=-1'", "mem=200MiB"},
        {"host,mem=1XB", TSR_ERR_INVALID, "'mem=1XB'", "mem=200MiB"},
        {"host,mem=99999999TiB", TSR_ERR_INVALID, "'mem=99999999TiB'", "mem=200MiB"},
        {"host,memory=1", TSR_ERR_INVALID, "'memory=1'", "mem=BYTES, threads=N, isa=NAME"},
        {"host,duty=0%", TSR_ERR_INVALID, "'duty=0%'", "duty=1% to duty=100%"},
        {"host,duty=101", TSR_ERR_INVALID, "'duty=101'", "duty=1% to duty=100%"},
        {"host,duty=50,duty=50%", TSR_ERR_INVALID, "'duty=50%'", "keep one"},
        {"cuda,duty=50%", TSR_ERR_INVALID, "'duty=50%'", "host devices"},
    };
    tsr_topology *topo = machine("synthetic:core:4 pu:1");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_device_list *list = NULL;
        tsr_status status = tsr_device_list_create(topo, cases[i].spec, NULL, &list);
        const char *text = tsr_last_error();
        if (status != cases[i].status || !strstr(text, cases[i].piece) || !strstr(text, cases[i].remedy))
            fail_msg("%s: %s: %s", cases[i].spec, tsr_status_name(status), text);
        assert_null(list);
        assert_null(strchr(text, '\n'));
    }
    tsr_topology_destroy(topo);
}

static void byte_counts_are_read_as_people_write_them(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"4096", 4096},
        {"17B", 17},
        {"2KB", 2000},
        {"2KiB", 2048},
        {"2k", 2048},
        {"1MB", 1000000},
        {"200MiB", 200 << 20},
        {"1.5GiB", UINT64_C(3) << 29},
        {"1.5 GB", 1500000000},
        {"3g", UINT64_C(3) << 30},
        {".5K", 512},
        {"2TB", UINT64_C(2000000000000)},
        {"1TiB", UINT64_C(1) << 40},
    };
    static const char *const bad[] = {"",     "x",   "MiB",   "-1",    "+1",         "1e3", "0x10", "nan",
                                      "1,5G", "1 2", "1MiBs", "1 M B", "9000000TiB", ".",   "1..2"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t bytes = 1;
        assert_int_equal(tsr_bytes_parse(good[i].text, &bytes), TSR_OK);
        if (bytes != good[i].bytes)
            fail_msg("%s: %llu", good[i].text, (unsigned long long)bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t bytes = 77;
        if (tsr_bytes_parse(bad[i], &bytes) != TSR_ERR_INVALID || bytes != 77)
            fail_msg("'%s' was taken", bad[i]);
        assert_non_null(strstr(tsr_last_error(), bad[i]));
    }
    uint64_t bytes;
    assert_int_equal(tsr_bytes_parse(NULL, &bytes), TSR_ERR_INVALID);
}

/* Whatever is asked for, the placement holds what the naive checker checks; what is refused is named. */
static void random_texts_give_a_sound_list_or_an_error(void **state)
{
    (void)state;
    static const char *const machines[] = {"synthetic:pu:1", "synthetic:numa:3 core:5 pu:2",
                                           "synthetic:pack:2 l3:4 core:8 pu:2",
                                           "synthetic:numa:8 core:1 pu:1"};
    static const char *const pieces[] = {"host",     "host:1",    "host:2",    "host:3",
                                         "host:7",   "threads=1", "threads=3", "threads=9",
                                         "mem=1GiB", "mem=5",     "",          "cuda:0"};
    unsigned seed = 11;
    int made = 0;
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++) {
        tsr_topology *topo = machine(machines[m]);
        for (int round = 0; round < 500; round++) {
            char spec[256] = "";
            for (int n = 1 + rand_r(&seed) % 6; n > 0; n--) {
                strcat(spec, *spec ? "," : "");
                /* The bad pieces at the end of the list come up rarely. */
                unsigned pick = (unsigned)rand_r(&seed) % 60;
                strcat(spec, pieces[pick < 2 ? 10 + pick : pick % 10]);
            }
            tsr_device_list *list = NULL;
            tsr_status status = tsr_device_list_create(topo, spec, NULL, &list);
            const char *fault = status == TSR_OK ? device_list_fault(list, topo) : NULL;
            if (fault)
                fail_msg("%s on %s: does not hold: %s", spec, machines[m], fault);
            made += status == TSR_OK;
            tsr_device_list_destroy(list);
        }
        tsr_topology_destroy(topo);
    }
    assert_in_range(made, 200, 1900);
}

static void failing_allocations_leave_nothing_behind(void **state)
{
    (void)state;
    tsr_topology *topo = machine("synthetic:core:4 pu:1");
    int64_t blocks = failing_alloc_live();
    for (int n = 1;; n++) {
        tsr_device_list *list = NULL;
        failing_alloc_set(n);
        tsr_status status = tsr_device_list_create(topo, "host:2", NULL, &list);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (!fired) {
            assert_int_equal(status, TSR_OK);
            tsr_device_list_destroy(list);
            assert_true(n > 1);
            break;
        }
        assert_int_equal(status, TSR_ERR_MEMORY);
        assert_null(list);
        assert_int_equal(failing_alloc_live(), blocks);
    }
    tsr_topology_destroy(topo);
}

/* -- GPUs -- */

/* Two nodes of four cores with two hardware threads each; GPUs 0 and 1 near the first, 3 near the second (2
 * did not answer), 4 nowhere. */
static tsr_topology *machine_with_gpus(void)
{
    static const char *const uuids[] = {"GPU-8a56a4bc-9184-a047-2620-1ea8e3a1d8f0",
                                        "GPU-8a56ffff-9184-a047-2620-1ea8e3a1d8f1",
                                        "MIG-11111111-9184-a047-2620-1ea8e3a1d8f2", ""};
    static const char *const ids[] = {"0000:17:00.0", "0000:65:00.0", "0001:65:00.0", ""};
    static const int ordinals[] = {0, 1, 3, 4}, nodes[] = {0, 0, 1, -1};
    tsr_topology *topo = machine("synthetic:pack:2 [numa(memory=8GiB)] core:4 pu:2");
    topo->n_gpus = 4;
    for (int i = 0; i < 4; i++) {
        topo->gpus[i] = (tsr_gpu){.ordinal = ordinals[i],
                                  .numa_node = nodes[i],
                                  .memory_bytes = UINT64_C(24) << 30,
                                  .commit_bytes = 2 << 20};
        snprintf(topo->gpus[i].uuid, sizeof topo->gpus[i].uuid, "%s", uuids[i]);
        snprintf(topo->gpus[i].bus_id, sizeof topo->gpus[i].bus_id, "%s", ids[i]);
    }
    snprintf(topo->gpu_note, sizeof topo->gpu_note, "GPU 2 cannot be queried");
    return topo;
}

static void keep_line(tsr_log_level level, const char *text, void *user)
{
    assert_int_equal(level, TSR_LOG_WARN);
    snprintf(user, 256, "%s", text);
}

/* A machine without GPUs lacks nothing; on one with a GPU the default would otherwise be silent. */
static void a_gpu_that_cannot_be_used_is_reported_where_it_would_be_the_default(void **state)
{
    (void)state;
    static const struct {
        int vendor_id, class_id, driver;
        const char *spec;
        bool described, told;
    } cases[] = {{0x10de, 0x0302, 0, NULL, false, true},    {0x10de, 0x0300, 0, NULL, false, true},
                 {0x10de, 0x0302, 0, "host", false, false}, {0x10de, 0x0302, 0, NULL, true, false},
                 {0x10de, 0x0200, 0, NULL, false, false},   {0x1a03, 0x0300, 0, NULL, false, false},
                 {0x1a03, 0x0300, 12040, NULL, false, true}};
    tsr_topology *topo = machine("synthetic:core:2 pu:1");
    assert_int_equal(topo->n_pci, 0);
    tsr_pci_device *none = topo->pci;
    snprintf(topo->gpu_note, sizeof topo->gpu_note, "no NVIDIA driver is loaded; install it");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_pci_device pci = {.vendor_id = cases[i].vendor_id, .class_id = cases[i].class_id};
        char told[256] = "";
        tsr_logger logger = {keep_line, told, TSR_LOG_DEBUG};
        tsr_device_list *list = NULL;
        topo->is_this_machine = !cases[i].described;
        topo->cuda_driver_version = cases[i].driver;
        topo->pci = &pci;
        topo->n_pci = 1;
        assert_int_equal(tsr_device_list_create(topo, cases[i].spec, &logger, &list), TSR_OK);
        assert_int_equal(list->devices[0].kind, TSR_DEVICE_HOST);
        assert_string_equal(told, cases[i].told
                                      ? "no GPU is usable (no NVIDIA driver is loaded; install it); "
                                        "continuing with host devices"
                                      : "");
        tsr_device_list_destroy(list);
    }
    topo->pci = none;
    topo->n_pci = 0;
    tsr_topology_destroy(topo);
}

/* "name@gpu index cap in GiB" of each device. */
static void describe_gpus(const tsr_device_list *list, char *text, size_t bytes)
{
    size_t used = 0;
    for (int i = 0; i < list->n_devices; i++) {
        const tsr_device_desc *d = &list->devices[i];
        used += (size_t)snprintf(text + used, bytes - used, "%s%s@%d %.4g", i ? ", " : "", d->name, d->gpu,
                                 (double)d->mem_cap_bytes / 0x1p30);
    }
}

static void gpus_are_named_by_number_uuid_or_bus_id(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *expected;
    } cases[] = {
        {NULL, "cuda0@0 0, cuda1@1 0, cuda3@2 0, cuda4@3 0"}, /* every GPU, no host device */
        {"cuda", "cuda0@0 0, cuda1@1 0, cuda3@2 0, cuda4@3 0"},
        {"cuda,mem=2GiB", "cuda0@0 2, cuda1@1 2, cuda3@2 2, cuda4@3 2"},
        {"cuda:3,cuda:0", "cuda3@2 0, cuda0@0 0"},
        {"cuda:3,mem=24GiB", "cuda3@2 24"},
        {"cuda:GPU-8a56a", "cuda0@0 0"},
        {"cuda:gpu-8A56FFFF-9184-a047-2620-1ea8e3a1d8f1", "cuda1@1 0"},
        {"cuda:MIG-1", "cuda3@2 0"},
        {"cuda:0000:65:00.0, cuda:17:00.0", "cuda1@1 0, cuda0@0 0"},
        {"cuda:00000001:65:00.0,mem=1GiB", "cuda3@2 1"},
        {"cuda:65:00", "cuda1@1 0"},
        {"cuda:0,host:1,cuda:0", "cuda0@0 12, host0@-1 0, cuda0.1@0 12"},
        {"cuda:0,cuda:0,cuda:0", "cuda0@0 8, cuda0.1@0 8, cuda0.2@0 8"},
        {"cuda:0,mem=20GiB,cuda:0,cuda:0", "cuda0@0 20, cuda0.1@0 2, cuda0.2@0 2"},
        {"cuda:0,mem=20GiB,cuda:0,mem=4GiB", "cuda0@0 20, cuda0.1@0 4"},
    };
    tsr_topology *topo = machine_with_gpus();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_device_list *list = NULL;
        char text[512];
        if (tsr_device_list_create(topo, cases[i].spec, NULL, &list) != TSR_OK)
            fail_msg("%s: %s", cases[i].spec, tsr_last_error());
        describe_gpus(list, text, sizeof text);
        if (strcmp(text, cases[i].expected) != 0)
            fail_msg("%s: %s", cases[i].spec, text);
        tsr_device_list_destroy(list);
    }
    tsr_topology_destroy(topo);
}

static void assert_cpus(const tsr_topology *topo, const char *spec, const int *cpus, int n)
{
    tsr_device_list *list = NULL;
    if (tsr_device_list_create(topo, spec, NULL, &list) != TSR_OK)
        fail_msg("%s: %s", spec, tsr_last_error());
    const tsr_device_desc *d = &list->devices[list->n_devices - 1];
    assert_int_equal(d->kind, TSR_DEVICE_CUDA);
    assert_int_equal(d->n_threads, 0);
    assert_int_equal(d->n_pus, n);
    for (int i = 0, core = 0; i < n; i++) {
        assert_int_equal(d->pus[i], cpus[i]);
        while (core < d->n_cores &&
               topo->pus[topo->cores[d->cores[core]].first_pu].os_index / 2 != cpus[i] / 2)
            core++;
        assert_true(core < d->n_cores);
    }
    tsr_device_list_destroy(list);
}

static void a_gpus_host_thread_runs_near_it_or_where_asked(void **state)
{
    (void)state;
    tsr_topology *topo = machine_with_gpus();
    assert_cpus(topo, "cuda:0", (int[]){0, 1, 2, 3, 4, 5, 6, 7}, 8);
    assert_cpus(topo, "host:2,cuda:0,cuda:3", (int[]){8, 9, 10, 11, 12, 13, 14, 15}, 8);
    assert_cpus(topo, "cuda:4", NULL, 0); /* what is near is unknown */
    assert_cpus(topo, "cuda:3,cpus=2", (int[]){2}, 1);
    assert_cpus(topo, "cuda:0,cuda:3,mem=1GiB,cpus=0-2,9,14-15", (int[]){0, 1, 2, 9, 14, 15}, 6);
    tsr_topology_destroy(topo);
}

static void wrong_gpus_are_named_with_a_remedy(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        tsr_status status;
        const char *piece, *remedy;
    } cases[] = {
        {"cuda:2", TSR_ERR_NOT_FOUND, "'cuda:2'",
         "4 usable GPUs: 0-1,3-4; left out: GPU 2 cannot be queried"},
        {"cuda:99", TSR_ERR_NOT_FOUND, "'cuda:99'", "4 usable GPUs"},
        {"cuda:0000:99:00.0", TSR_ERR_NOT_FOUND, "'cuda:0000:99:00.0'", "4 usable GPUs"},
        {"cuda:GPU-77", TSR_ERR_NOT_FOUND, "'cuda:GPU-77'", "4 usable GPUs"},
        {"cuda:GPU-8a56", TSR_ERR_INVALID, "'cuda:GPU-8a56'", "write more of the UUID"},
        {"cuda:GPU-", TSR_ERR_INVALID, "'cuda:GPU-'", "a UUID or PCI bus id"},
        {"cuda:x", TSR_ERR_INVALID, "'cuda:x'", "numbered from 0"},
        {"cuda:", TSR_ERR_INVALID, "'cuda:'", "numbered from 0"},
        {"cuda:1:2:3:4:5", TSR_ERR_NOT_FOUND, "'cuda:1:2:3:4:5'", "4 usable GPUs"},
        {"cuda:0,mem=200GiB", TSR_ERR_INVALID, "200 GiB on GPU 0", "which has 24 GiB; use a smaller mem="},
        {"cuda:0,mem=20GiB,cuda:0,mem=5GiB", TSR_ERR_INVALID, "25 GiB on GPU 0 altogether", "24 GiB"},
        {"cuda:0,mem=24GiB,cuda:0", TSR_ERR_INVALID, "24 GiB on GPU 0", "nothing is left"},
        {"cuda:0,cpus=", TSR_ERR_INVALID, "'cpus='", "cpus=0-7,16-23"},
        {"cuda:0,cpus=3-1", TSR_ERR_INVALID, "'cpus=3-1'", "cpus=0-7,16-23"},
        {"cuda:0,cpus=1,x", TSR_ERR_INVALID, "'x'", "the kinds are host and cuda"},
        {"cuda:0,cpus=1,2-", TSR_ERR_INVALID, "'2-'", "cpus=0-7,16-23"},
        {"cuda:0,cpus=1,cpus=2", TSR_ERR_INVALID, "'cpus=2'", "keep one"},
        {"cuda:0,cpus=0-16", TSR_ERR_INVALID, "CPU 16", "does not have"},
        {"host:1,cpus=0", TSR_ERR_INVALID, "'cpus=0'", "cuda devices"},
        {"cuda:0,3", TSR_ERR_INVALID, "'3'", "the kinds are host and cuda"},
    };
    tsr_topology *topo = machine_with_gpus();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_device_list *list = NULL;
        tsr_status status = tsr_device_list_create(topo, cases[i].spec, NULL, &list);
        const char *text = tsr_last_error();
        if (status != cases[i].status || !strstr(text, cases[i].piece) || !strstr(text, cases[i].remedy))
            fail_msg("%s: %s: %s", cases[i].spec, tsr_status_name(status), text);
        assert_null(list);
        assert_null(strchr(text, '\n'));
    }
    tsr_topology_destroy(topo);
}

/* A kernel set that the text did not know could not be named. */
static void every_kernel_set_of_this_build_is_a_name(void **state)
{
    (void)state;
    tsr_isa_list isa;
    tsr_topology *topo = machine("synthetic:core:4 pu:1");
    assert_int_equal(tsr_isa_discover(&isa), TSR_OK);
    for (int i = 0; i < isa.n_levels; i++) {
        char spec[64];
        tsr_device_list *list = NULL;
        snprintf(spec, sizeof spec, "host:1,isa=%s", isa.levels[i].name);
        assert_int_equal(tsr_device_list_create(topo, spec, NULL, &list), TSR_OK);
        assert_string_equal(list->devices[0].isa, isa.levels[i].name);
        tsr_device_list_destroy(list);
    }
    tsr_topology_destroy(topo);
}

/* Each machine makes devices of the text, named as those of processes. */
static void several_machines_each_make_the_devices(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *expected;
    } cases[] = {
        {NULL, "cuda0@0 cuda1@0 host0@1 host1@1"}, /* a machine without a GPU has host devices */
        {"host:2,threads=3", "host0@0 host1@0 host0@1 host1@1"},
        {"host:1", "host0@0 host0@1"},
    };
    tsr_topology *topo = NULL;
    tsr_device_list *list;
    int warnings;
    assert_int_equal(
        tsr_topology_parse("1 node of 2x t4, host 4 cores 8GiB, 1 node of 2x host 8 cores 16GiB, "
                           "ethernet 25Gb/s",
                           NULL, &topo),
        TSR_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char names[128] = "";
        if (tsr_device_list_create(topo, cases[i].spec, NULL, &list) != TSR_OK)
            fail_msg("%s", tsr_last_error());
        for (int d = 0; d < list->n_devices; d++) {
            strcat(names, d ? " " : "");
            strcat(names, list->devices[d].name);
        }
        assert_string_equal(names, cases[i].expected);
        tsr_device_list_destroy(list);
    }
    char cores[64];
    list = make(topo, "host:2,threads=3", &warnings);
    describe(list, cores, sizeof cores);
    assert_string_equal(cores, "0-1/3 2-3/3 4-11/3 12-19/3"); /* cut at the machine and at the socket */
    assert_int_equal(warnings, 2);
    assert_int_equal(list->devices[2].thread_pus[0], 0); /* the machine's own number */
    assert_int_equal(list->devices[3].numa_node, 2);
    assert_int_equal(list->devices[3].memory_total_bytes, UINT64_C(16) << 30);
    tsr_device_list_destroy(list);
    list = make(topo, "host", &warnings);
    describe(list, cores, sizeof cores);
    assert_string_equal(cores, "0-3/4 4-11/8 12-19/8");
    tsr_device_list_destroy(list);
    assert_int_equal(tsr_device_list_create(topo, "cuda:0", NULL, &list), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "machine 1"));
    tsr_topology_destroy(topo);

    assert_int_equal(tsr_topology_parse("2 nodes of 2x t4, host 4 cores, ib 100Gb/s", NULL, &topo), TSR_OK);
    assert_int_equal(tsr_device_list_create(topo, "cuda:1,cpus=2-3", NULL, &list), TSR_OK);
    assert_int_equal(list->n_devices, 2);
    assert_string_equal(list->devices[1].name, "cuda1@1");
    assert_int_equal(list->devices[1].gpu, 3);
    assert_int_equal(list->devices[1].n_cores, 2);
    assert_int_equal(list->devices[1].cores[0], 6);
    assert_int_equal(list->devices[1].pus[0], 2);
    tsr_device_list_destroy(list);
    assert_int_equal(tsr_device_list_create(topo, "cuda:2", NULL, &list), TSR_ERR_NOT_FOUND);
    assert_non_null(strstr(tsr_last_error(), "machine 0: devices: 'cuda:2' does not exist"));
    assert_int_equal(tsr_device_list_create(topo, "cuda,cpus=4", NULL, &list), TSR_ERR_INVALID);
    tsr_topology_destroy(topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cores_are_cut_in_order_and_at_numa_nodes),
        cmocka_unit_test(a_device_says_its_node_memory_and_cap),
        cmocka_unit_test(a_device_says_how_fast_its_memory_is),
        cmocka_unit_test(threads_take_cores_first_and_siblings_after),
        cmocka_unit_test(memory_without_cores_makes_no_device),
        cmocka_unit_test(wrong_texts_are_named_with_a_remedy),
        cmocka_unit_test(byte_counts_are_read_as_people_write_them),
        cmocka_unit_test(random_texts_give_a_sound_list_or_an_error),
        cmocka_unit_test(failing_allocations_leave_nothing_behind),
        cmocka_unit_test(a_gpu_that_cannot_be_used_is_reported_where_it_would_be_the_default),
        cmocka_unit_test(gpus_are_named_by_number_uuid_or_bus_id),
        cmocka_unit_test(a_gpus_host_thread_runs_near_it_or_where_asked),
        cmocka_unit_test(every_kernel_set_of_this_build_is_a_name),
        cmocka_unit_test(several_machines_each_make_the_devices),
        cmocka_unit_test(wrong_gpus_are_named_with_a_remedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
