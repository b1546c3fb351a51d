/* Machine descriptions: synthetic ones with the structure that is expected of them, recorded machines, and
 * broken files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tsr/machine.h>
#include <tsr/topology.h>

#include "support/directory.h"
#include "support/failing_alloc.h"
#include "support/topology.h"

/* A machine small enough to damage a thousand times: CPU numbers interleave, one package has SMT, a 3D
 * controller hangs off the first. */
static const char small_xml[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
    "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
    "<topology version=\"2.0\">\n"
    " <object type=\"Machine\" os_index=\"0\" cpuset=\"0xf\" complete_cpuset=\"0xf\" allowed_cpuset=\"0xf\""
    " nodeset=\"0x3\" complete_nodeset=\"0x3\" allowed_nodeset=\"0x3\" gp_index=\"1\">\n"
    "  <info name=\"DMIProductName\" value=\"Tiny\"/>\n"
    "  <object type=\"Package\" os_index=\"0\" cpuset=\"0x5\" complete_cpuset=\"0x5\" nodeset=\"0x1\""
    " complete_nodeset=\"0x1\" gp_index=\"2\">\n"
    "   <info name=\"CPUModel\" value=\"Model A  \"/>\n"
    "   <object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x5\" complete_cpuset=\"0x5\" nodeset=\"0x1\""
    " complete_nodeset=\"0x1\" gp_index=\"3\" local_memory=\"4294967296\"/>\n"
    "   <object type=\"L3Cache\" cpuset=\"0x5\" complete_cpuset=\"0x5\" nodeset=\"0x1\" "
    "complete_nodeset=\"0x1\""
    " gp_index=\"4\" cache_size=\"8388608\" depth=\"3\" cache_linesize=\"64\" cache_associativity=\"0\""
    " cache_type=\"0\">\n"
    "    <object type=\"Core\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" nodeset=\"0x1\""
    " complete_nodeset=\"0x1\" gp_index=\"5\">\n"
    "     <object type=\"PU\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" nodeset=\"0x1\""
    " complete_nodeset=\"0x1\" gp_index=\"6\"/>\n"
    "    </object>\n"
    "    <object type=\"Core\" os_index=\"1\" cpuset=\"0x4\" complete_cpuset=\"0x4\" nodeset=\"0x1\""
    " complete_nodeset=\"0x1\" gp_index=\"7\">\n"
    "     <object type=\"PU\" os_index=\"2\" cpuset=\"0x4\" complete_cpuset=\"0x4\" nodeset=\"0x1\""
    " complete_nodeset=\"0x1\" gp_index=\"8\"/>\n"
    "    </object>\n"
    "   </object>\n"
    "   <object type=\"Bridge\" gp_index=\"9\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[17-18]\">\n"
    "    <object type=\"PCIDev\" gp_index=\"10\" pci_busid=\"0000:17:00.0\""
    " pci_type=\"0302 [10de:2335] [10de:18be] a1\" pci_link_speed=\"31.5\">\n"
    "     <info name=\"PCIVendor\" value=\"NVIDIA\"/>\n"
    "     <info name=\"PCIDevice\" value=\"GH100\"/>\n"
    "    </object>\n"
    "   </object>\n"
    "  </object>\n"
    "  <object type=\"Package\" os_index=\"1\" cpuset=\"0xa\" complete_cpuset=\"0xa\" nodeset=\"0x2\""
    " complete_nodeset=\"0x2\" gp_index=\"11\">\n"
    "   <object type=\"NUMANode\" os_index=\"1\" cpuset=\"0xa\" complete_cpuset=\"0xa\" nodeset=\"0x2\""
    " complete_nodeset=\"0x2\" gp_index=\"12\" local_memory=\"2147483648\"/>\n"
    "   <object type=\"Core\" os_index=\"2\" cpuset=\"0xa\" complete_cpuset=\"0xa\" nodeset=\"0x2\""
    " complete_nodeset=\"0x2\" gp_index=\"13\">\n"
    "    <object type=\"PU\" os_index=\"1\" cpuset=\"0x2\" complete_cpuset=\"0x2\" nodeset=\"0x2\""
    " complete_nodeset=\"0x2\" gp_index=\"14\"/>\n"
    "    <object type=\"PU\" os_index=\"3\" cpuset=\"0x8\" complete_cpuset=\"0x8\" nodeset=\"0x2\""
    " complete_nodeset=\"0x2\" gp_index=\"15\"/>\n"
    "   </object>\n"
    "  </object>\n"
    " </object>\n"
    "</topology>\n";

static tsr_topology *load(const char *path)
{
    tsr_topology *topo = NULL;
    tsr_status status = tsr_topology_load(path, NULL, &topo);
    if (status != TSR_OK)
        fail_msg("%s: %s: %s", path, tsr_status_name(status), tsr_last_error());
    const char *fault = topology_fault(topo);
    if (fault)
        fail_msg("%s: does not hold: %s", path, fault);
    assert_string_equal(topo->source, path);
    assert_false(topo->is_this_machine);
    return topo;
}

/* -- descriptions with known content -- */

static void synthetic_machines_have_the_structure_they_describe(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int packages, nodes, cores, pus, caches;
        uint64_t memory;
    } cases[] = {
        {"synthetic:pack:2 core:4 pu:2", 2, 1, 8, 16, 0, UINT64_C(1) << 30},
        {"synthetic:pack:2 [numa(memory=4GiB)] core:4 pu:2", 2, 2, 8, 16, 0, UINT64_C(8) << 30},
        {"synthetic:numa:4(memory=1GiB) l3:2 l2:4 core:1 pu:1", 0, 4, 32, 32, 8 + 32, UINT64_C(4) << 30},
        {"synthetic:pack:1 l3:1 l2:2 l1d:2 core:1 pu:1", 1, 1, 4, 4, 1 + 2 + 4, UINT64_C(1) << 30},
        {"synthetic:core:1 pu:1", 0, 1, 1, 1, 0, UINT64_C(1) << 30},
        {"synthetic:pu:3", 0, 1, 3, 3, 0, UINT64_C(1) << 30}, /* cores unknown: one per processor */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_topology *topo = load(cases[i].text);
        assert_int_equal(topo->n_packages, cases[i].packages);
        assert_int_equal(topo->n_numa_nodes, cases[i].nodes);
        assert_int_equal(topo->n_cores, cases[i].cores);
        assert_int_equal(topo->n_pus, cases[i].pus);
        assert_int_equal(topo->n_caches, cases[i].caches);
        assert_int_equal(topo->memory_bytes, cases[i].memory);
        tsr_topology_destroy(topo);
    }
}

static void an_xml_file_gives_every_field(void **state)
{
    (void)state;
    tsr_topology *topo = load(directory_write("small.xml", small_xml, strlen(small_xml)));
    assert_string_equal(topo->machine_name, "Tiny");
    assert_int_equal(topo->memory_bytes, UINT64_C(6) << 30);
    assert_int_equal(topo->n_packages, 2);
    assert_string_equal(topo->packages[0].cpu_model, "Model A"); /* without the padding */
    assert_string_equal(topo->packages[1].cpu_model, "");
    assert_int_equal(topo->packages[1].first_core, 2);
    assert_int_equal(topo->packages[1].n_cores, 1);
    assert_int_equal(topo->numa_nodes[0].memory_bytes, UINT64_C(4) << 30);
    assert_int_equal(topo->numa_nodes[1].os_index, 1);
    assert_int_equal(topo->n_cores, 3);
    assert_int_equal(topo->cores[1].numa_node, 0);
    assert_int_equal(topo->cores[2].numa_node, 1);
    assert_int_equal(topo->cores[2].n_pus, 2);
    static const int os[] = {0, 2, 1, 3};
    for (int i = 0; i < 4; i++)
        assert_int_equal(topo->pus[i].os_index, os[i]);
    assert_int_equal(topo->n_caches, 1);
    assert_int_equal(topo->caches[0].size_bytes, 8 << 20);
    assert_int_equal(topo->caches[0].line_bytes, 64);
    assert_int_equal(topo->cores[0].cache[2], 0);
    assert_int_equal(topo->cores[2].cache[2], -1);
    assert_int_equal(topo->n_pci, 1);
    assert_string_equal(topo->pci[0].bus_id, "0000:17:00.0");
    assert_string_equal(topo->pci[0].name, "NVIDIA GH100");
    assert_int_equal(topo->pci[0].class_id, 0x0302);
    assert_int_equal(topo->pci[0].vendor_id, 0x10de);
    assert_int_equal(topo->pci[0].device_id, 0x2335);
    assert_int_equal(topo->pci[0].numa_node, 0);
    assert_true(topo->pci[0].link_bytes_per_s == 31.5e9);
    tsr_topology_destroy(topo);
}

static void append(const char *text, void *user)
{
    char *all = user;
    strncat(all, text, 4095 - strlen(all));
}

static void append_all(const char *text, void *user)
{
    strcat(user, text); /* of a buffer that is large enough */
}

static void the_tree_nests_what_contains_what(void **state)
{
    (void)state;
    char text[4096] = "";
    char *path = strdup(directory_write("small.xml", small_xml, strlen(small_xml)));
    tsr_topology *topo = load(path);
    char expected[4096];
    snprintf(expected, sizeof expected,
             "%s (Tiny)\n"
             "  2 packages, 2 NUMA nodes, 3 cores, 4 CPUs, 6 GiB of memory\n"
             "  1 GPU\n"
             "  Package 0: Model A\n"
             "    NUMA node 0: 4 GiB\n"
             "      L3 8 MiB shared by cores 0-1\n"
             "        cores 0-1, CPU 0,2\n"
             "      GPU 0 NVIDIA H200, ~140 GiB at ~4.80 TB/s, ~132 SMs at 1.98 GHz, sm_90\n"
             "        PCI 0000:17:00.0, PCIe 31.5 GB/s\n"
             "  Package 1\n"
             "    NUMA node 1: 2 GiB\n"
             "      core 2 x 2 threads, CPU 1,3\n"
             "  ~ not described: taken from the table of cards\n",
             path);
    tsr_topology_print(topo, append, text);
    assert_string_equal(text, expected);
    tsr_topology_destroy(topo);
    free(path);

    /* One node around two packages: the order of levels turns. */
    text[0] = '\0';
    topo = load("synthetic:pack:2 core:2 pu:1");
    tsr_topology_print(topo, append, text);
    assert_string_equal(text, "synthetic:pack:2 core:2 pu:1\n"
                              "  2 packages, 1 NUMA node, 4 cores, 4 CPUs, 1 GiB of memory\n"
                              "  NUMA node 0: 1 GiB\n"
                              "    Package 0\n"
                              "      cores 0-1, CPU 0-1\n"
                              "    Package 1\n"
                              "      cores 2-3, CPU 2-3\n");
    tsr_topology_destroy(topo);
}

/* Links to equal GPUs are ranges, and the matrix has its columns in parts. */
static void sixteen_gpus_are_printed_within_80_columns(void **state)
{
    (void)state;
    static char text[1 << 15];
    tsr_topology *topo;
    assert_int_equal(tsr_topology_parse("16x h100 nvlink, host 16 cores 64GiB", NULL, &topo), TSR_OK);
    topo->gpu_pairs[2][15].peer_access = TSR_NO;
    tsr_topology_print(topo, append_all, text);
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        if (strcspn(line, "\n") > 80)
            fail_msg("longer than 80 columns: %.*s", (int)strcspn(line, "\n"), line);
    assert_non_null(strstr(text, "          1 NVLink ~25.0 GB/s to each of GPUs 0-2,4-15\n"));
    assert_non_null(strstr(text, "\n          GPU0   GPU1   GPU2   GPU3   GPU4   GPU5   GPU6   GPU7\n"
                                 "  GPU0       X    NV1    NV1    NV1    NV1    NV1    NV1    NV1\n"));
    assert_non_null(strstr(text, "\n          GPU8   GPU9  GPU10  GPU11  GPU12  GPU13  GPU14  GPU15\n"
                                 "  GPU0     NV1    NV1    NV1    NV1    NV1    NV1    NV1    NV1\n"));
    assert_non_null(strstr(text, "  GPU2     NV1    NV1    NV1    NV1    NV1    NV1    NV1   NV1!\n"));
    assert_non_null(strstr(text, ", !: no peer access\n"));
    tsr_topology_destroy(topo);
}

/* A package's CXL memory beside the memory of each of its clusters. */
static void memory_that_no_core_has_nearest_is_printed(void **state)
{
    (void)state;
    char text[4096] = "";
    tsr_topology *topo = load("synthetic:pack:1 [numa(memory=68719476736)] group:2 "
                              "[numa(memory=4294967296)] core:1 pu:1");
    topo->packages[0].os_index = -1; /* some machines do not number them */
    tsr_topology_print(topo, append, text);
    assert_non_null(strstr(text, "  Package\n"
                                 "    NUMA node 0: 4 GiB\n"
                                 "      core 0, CPU 0\n"
                                 "    NUMA node 1: 4 GiB\n"
                                 "      core 1, CPU 1\n"
                                 "  NUMA node 2: 64 GiB near cores 0-1\n"));
    tsr_topology_destroy(topo);
}

/* -- recorded machines -- */

#define SHARED "../shared/topo"

static bool has_recordings(void)
{
    bool found = access(SHARED "/hwloc", R_OK) == 0;
    if (!found)
        print_message("skipped: no recorded machines at " SHARED "\n");
    return found;
}

/* One line, and it names the file. */
static void assert_good_error(const char *path)
{
    const char *text = tsr_last_error();
    assert_true(strlen(text) > 20);
    assert_null(strchr(text, '\n'));
    assert_non_null(strstr(text, path));
}

static void every_recorded_machine_loads(void **state)
{
    (void)state;
    if (!has_recordings())
        skip();
    DIR *listing = opendir(SHARED "/hwloc");
    assert_non_null(listing);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        if (!strstr(entry->d_name, ".xml"))
            continue;
        char path[512];
        snprintf(path, sizeof path, SHARED "/hwloc/%s", entry->d_name);
        tsr_topology_destroy(load(path));
        n++;
    }
    closedir(listing);
    assert_true(n > 20);
}

static int count_pci(const tsr_topology *topo, int class_id, int vendor_id)
{
    int n = 0;
    for (int i = 0; i < topo->n_pci; i++)
        n += topo->pci[i].class_id == class_id && topo->pci[i].vendor_id == vendor_id;
    return n;
}

/* The figures are the machines' public specifications: 2x EPYC 9555 (64 cores) with 4 H200; DGX-2 with 16
 * V100 (recorded with 2 cores per socket allowed); KNL 7250 (68 cores x 4 threads) in flat mode; Power9 with
 * 4 V100. */
static void recorded_machines_have_what_their_makers_say(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        int packages, nodes, cores, pus, gpus;
    } cases[] = {
        {"prrte-turin-4gpu-nvml.xml", 2, 8, 128, 256, 4},
        {"hwloctest-nvidiaDGX2.xml", 2, 2, 4, 4, 16},
        {"mpibind-knl-quad-flat-hwloc1.xml", 1, 2, 68, 272, 0},
        {"mpibind-coral-lassen.xml", 2, 2, 40, 160, 4},
        {"mpibind-g4dnmetal.xml", 2, 2, 48, 96, 8},
    };
    if (!has_recordings())
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[512];
        snprintf(path, sizeof path, SHARED "/hwloc/%s", cases[i].file);
        tsr_topology *topo = load(path);
        print_message("%s\n", cases[i].file);
        assert_int_equal(topo->n_packages, cases[i].packages);
        assert_int_equal(topo->n_numa_nodes, cases[i].nodes);
        assert_int_equal(topo->n_cores, cases[i].cores);
        assert_int_equal(topo->n_pus, cases[i].pus);
        assert_int_equal(count_pci(topo, 0x0302, 0x10de), cases[i].gpus);
        tsr_topology_destroy(topo);
    }
}

static void hbm_beside_ddr_gives_cores_one_node(void **state)
{
    (void)state;
    if (!has_recordings())
        skip();
    tsr_topology *topo = load(SHARED "/hwloc/mpibind-knl-quad-flat-hwloc1.xml");
    assert_string_equal(topo->numa_nodes[1].kind, "MCDRAM");
    for (int core = 0; core < topo->n_cores; core++)
        assert_int_equal(topo->cores[core].numa_node, 0);
    tsr_topology_destroy(topo);
}

/* -- what cannot be loaded -- */

static void assert_refused(const char *path, tsr_status expected, const char *phrase)
{
    tsr_topology *topo = NULL;
    tsr_status status = tsr_topology_load(path, NULL, &topo);
    if (status != expected || !strstr(tsr_last_error(), phrase))
        fail_msg("%s: %s: %s", path, tsr_status_name(status), tsr_last_error());
    assert_good_error(path);
    assert_null(topo);
}

static void errors_name_the_file_and_the_remedy(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        tsr_status status;
        const char *phrase;
    } cases[] = {
        {"", TSR_ERR_FORMAT, "is neither XML"},
        {"hello", TSR_ERR_FORMAT, "is neither XML"},
        {"<!-- <topology> ", TSR_ERR_FORMAT, "is neither XML"},
        {"<html></html>", TSR_ERR_FORMAT, "begins with element 'html'"},
        {"<topologydiff></topologydiff>", TSR_ERR_FORMAT, "begins with element 'topologydiff'"},
        {"<system version=\"1\"></system>", TSR_ERR_FORMAT, "describes no cpu"},
        {"<topology version=\"3.0\"></topology>", TSR_ERR_UNSUPPORTED, "lstopo --export-xml-flags v2"},
        {"<topology version=\"2.0\"><object", TSR_ERR_FORMAT, "cut off after 31 bytes"},
        {"<topology version=\"2.0\"></topology>", TSR_ERR_FORMAT, "malformed"},
        {"<topology version=\"2.0\"><object type=\"Machine\"/></topology>", TSR_ERR_FORMAT, "malformed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(directory_write("bad.xml", cases[i].text, strlen(cases[i].text)), cases[i].status,
                       cases[i].phrase);
    assert_refused(directory_write("zeros.xml", "<topology>\0</topology>", 22), TSR_ERR_FORMAT,
                   "is neither XML");
    assert_refused(directory_file("missing.xml"), TSR_ERR_NOT_FOUND, "No such file");
    assert_refused(directory_path(), TSR_ERR_FORMAT, "sys/devices/system/cpu");
    assert_refused("/dev/null", TSR_ERR_IO, "not a regular file");
    assert_refused("synthetic:", TSR_ERR_FORMAT, "not a synthetic machine");
    assert_refused("synthetic:pack:0 pu:1", TSR_ERR_FORMAT, "not a synthetic machine");
    assert_refused("synthetic:pack:2 core", TSR_ERR_FORMAT, "not a synthetic machine");
    assert_refused("synthetic:pack:100000000 core:1000 pu:2", TSR_ERR_FORMAT, "more than 65536 processors");
    assert_refused("synthetic:pack:2 core:40000 pu:2", TSR_ERR_FORMAT, "more than 65536 processors");

    tsr_topology *topo = NULL;
    assert_int_equal(tsr_topology_load(NULL, NULL, &topo), TSR_ERR_INVALID);
    assert_int_equal(tsr_topology_load("", NULL, &topo), TSR_ERR_INVALID);
    tsr_topology_config config = {.size = 1};
    assert_int_equal(tsr_topology_load("synthetic:pu:1", &config, &topo), TSR_ERR_INVALID);
    assert_int_equal(tsr_topology_discover(&config, &topo), TSR_ERR_INVALID);
    assert_null(topo);
    tsr_topology_destroy(NULL);
}

/* hwloc itself would take the processors of the machine that reads it. */
static void a_root_directory_cut_short_is_refused(void **state)
{
    (void)state;
    directory_write("cut/sys/devices/system/cpu/cpu1/topology/thread_siblings", "3\n", 2);
    directory_write("cut/sys/devices/system/cpu/cpu0/topology/core_id", "0\n", 2);
    assert_refused(directory_file("cut"), TSR_ERR_FORMAT, "cut short");
    directory_write("cut/sys/devices/system/cpu/cpu0/topology/thread_siblings", "3\n", 2);
    tsr_topology *topo = load(directory_file("cut"));
    assert_int_equal(topo->n_pus, 2);
    assert_int_equal(topo->n_cores, 1);
    tsr_topology_destroy(topo);
    assert_null(getenv("HWLOC_FSROOT")); /* set in the child only */
}

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

/* One to four of: a byte replaced, a stretch removed, a digit changed, a number made of nines, the end
 * cut. */
static size_t damage(char *text, size_t bytes, uint64_t *seed)
{
    for (uint64_t n = 1 + next_random(seed) % 4; n > 0 && bytes > 64; n--) {
        size_t at = next_random(seed) % (bytes - 48), length = next_random(seed) % 40;
        switch (next_random(seed) % 8) {
        case 0:
            text[at] = (char)(32 + next_random(seed) % 95);
            break;
        case 1:
            memmove(text + at, text + at + length, bytes - at - length);
            bytes -= length;
            break;
        case 2:
            bytes = at + 1;
            break;
        default: /* numbers do the most harm */
            at += strcspn(text + at, "0123456789");
            for (bool all = next_random(seed) % 2; at < bytes && text[at] >= '0' && text[at] <= '9'; at++) {
                text[at] = all ? '9' : (char)('0' + next_random(seed) % 10);
                if (!all)
                    break;
            }
        }
        text[bytes] = '\0';
    }
    return bytes;
}

/* hwloc alone crashes on some of these, and prints about others. */
static void damaged_files_give_an_error_or_a_sound_topology_in_silence(void **state)
{
    (void)state;
    enum { ROUNDS = 250 };
    uint64_t seed = 20240229;
    int loaded = 0;
    char *text = malloc(sizeof small_xml);
    int old_stderr = dup(STDERR_FILENO);
    int noise = open(directory_file("noise"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(noise >= 0);

    fflush(stderr);
    assert_int_equal(dup2(noise, STDERR_FILENO), STDERR_FILENO);
    const char *fault = NULL;
    for (int round = 0; round < ROUNDS && !fault; round++) {
        memcpy(text, small_xml, sizeof small_xml);
        const char *path = directory_write("damaged.xml", text, damage(text, sizeof small_xml - 1, &seed));
        tsr_topology *topo = NULL;
        tsr_status status = tsr_topology_load(path, NULL, &topo);
        if (status == TSR_OK) {
            fault = topology_fault(topo);
            loaded++;
        } else if (topo || !tsr_last_error()[0] || strchr(tsr_last_error(), '\n')) {
            fault = "a failure leaves no topology and one line";
        }
        tsr_topology_destroy(topo);
    }
    struct stat info;
    fflush(stderr);
    fstat(noise, &info);
    dup2(old_stderr, STDERR_FILENO);
    close(old_stderr);
    close(noise);
    free(text);
    if (fault)
        fail_msg("%s: does not hold: %s", directory_file("damaged.xml"), fault);
    assert_int_equal(info.st_size, 0);
    print_message("%d of %d damaged files still loaded\n", loaded, ROUNDS);
    assert_in_range(loaded, ROUNDS / 20, ROUNDS - ROUNDS / 20); /* else the damage tests nothing */
}

/* -- allocation failures -- */

static tsr_status discover_it(tsr_topology **topo_out)
{
    return tsr_topology_discover(NULL, topo_out);
}

static tsr_status load_synthetic(tsr_topology **topo_out)
{
    return tsr_topology_load("synthetic:pack:2 core:4 pu:2", NULL, topo_out);
}

static tsr_status load_xml(tsr_topology **topo_out)
{
    return tsr_topology_load(directory_file("small.xml"), NULL, topo_out);
}

/* The child counts on its own and cannot tell us that its allocation was the one to fail, so the walk goes on
 * until a call succeeds. */
static void failing_allocations_leave_nothing_behind(void **state)
{
    (void)state;
    static const struct {
        tsr_status (*call)(tsr_topology **);
        int at_least;
    } cases[] = {{discover_it, 2}, {load_synthetic, 2}, {load_xml, 3}};
    directory_write("small.xml", small_xml, strlen(small_xml));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int failures = 0;
        for (int n = 1;; n++) {
            int64_t blocks = failing_alloc_live();
            tsr_topology *topo = NULL;
            failing_alloc_set(n);
            tsr_status status = cases[i].call(&topo);
            failing_alloc_set(0);
            if (status == TSR_OK) {
                tsr_topology_destroy(topo);
                assert_int_equal(failing_alloc_live(), blocks);
                break;
            }
            failures++;
            assert_int_equal(status, TSR_ERR_MEMORY);
            assert_null(topo);
            assert_int_equal(failing_alloc_live(), blocks);
            assert_true(n < 20);
        }
        assert_true(failures >= cases[i].at_least);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(synthetic_machines_have_the_structure_they_describe),
        cmocka_unit_test(an_xml_file_gives_every_field),
        cmocka_unit_test(sixteen_gpus_are_printed_within_80_columns),
        cmocka_unit_test(memory_that_no_core_has_nearest_is_printed),
        cmocka_unit_test(the_tree_nests_what_contains_what),
        cmocka_unit_test(every_recorded_machine_loads),
        cmocka_unit_test(recorded_machines_have_what_their_makers_say),
        cmocka_unit_test(hbm_beside_ddr_gives_cores_one_node),
        cmocka_unit_test(a_root_directory_cut_short_is_refused),
        cmocka_unit_test(errors_name_the_file_and_the_remedy),
        cmocka_unit_test(damaged_files_give_an_error_or_a_sound_topology_in_silence),
        cmocka_unit_test(failing_allocations_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
