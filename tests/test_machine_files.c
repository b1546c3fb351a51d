/* Machines from files: every recorded one, what NCCL's and hwloc's XML mean field by field, and what cannot
 * be read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <unistd.h>

#include <tsr/machine.h>
#include <tsr/topology.h>

#include "support/directory.h"
#include "support/topology.h"
#include "topo/import/cards.h"

#define SHARED "../shared/topo"

/* Two sockets: a switch with two GPUs joined by NVLinks under the first, a GPU with an idle link and a
 * network card under the second. */
static const char nccl_xml[] =
    "<!-- a comment -->\n"
    "<system version=\"1\">\n"
    " <cpu numaid=\"0\" affinity=\"00000000,0000000f\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\""
    " modelid=\"143\">\n"
    "  <pci busid=\"0000:10:00.0\" class=\"0x060400\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\n"
    "   <pci busid=\"0000:12:00.0\" class=\"0x030200\" vendor=\"0x10de\" device=\"0x20b2\""
    " link_speed=\"16 GT/s\" link_width=\"16\">\n"
    "    <gpu dev=\"2\" sm=\"80\" rank=\"2\" gdr=\"1\">\n"
    "     <nvlink target=\"0000:11:00.0\" count=\"12\" tclass=\"0x030200\"/>\n"
    "    </gpu>\n"
    "   </pci>\n"
    "   <pci busid=\"0000:11:00.0\" class=\"0x030200\" vendor=\"0x10de\" device=\"0x20b2\""
    " link_speed=\"16.0 GT/s PCIe\" link_width=\"8\">\n"
    "    <gpu dev=\"0\" sm=\"80\" rank=\"0\" gdr=\"1\">\n"
    "     <nvlink target=\"0000:12:00.0\" count=\"12\" tclass=\"0x030200\"/>\n"
    "    </gpu>\n"
    "   </pci>\n"
    "  </pci>\n"
    " </cpu>\n"
    " <cpu numaid=\"1\" affinity=\"00000000,000000f0\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\""
    " modelid=\"143\">\n"
    "  <pci busid=\"0000:81:00.0\" class=\"0x030000\" vendor=\"0x10de\" device=\"0x2684\""
    " link_speed=\"2.5 GT/s PCIe\" link_width=\"16\"/>\n"
    "  <pci busid=\"0000:82:00.0\" class=\"0x020700\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">\n"
    "   <nic><net name=\"mlx5_0\" speed=\"200000\"/></nic>\n"
    "  </pci>\n"
    " </cpu>\n"
    "</system>\n";

static tsr_topology *load_text(const char *text)
{
    return topology_load(directory_write("machine", text, strlen(text)), NULL);
}

/* -- NCCL -- */

static void an_nccl_file_gives_every_field(void **state)
{
    (void)state;
    tsr_topology *topo = load_text(nccl_xml);
    assert_int_equal(topo->n_numa_nodes, 2);
    assert_int_equal(topo->n_cores, 8);
    assert_int_equal(topo->numa_nodes[1].first_core, 4);
    assert_int_equal(topo->pus[4].os_index, 4);
    assert_int_equal(topo->n_bridges, 3); /* two host bridges and a switch */
    assert_int_equal(topo->n_pci, 4);
    assert_int_equal(topo->n_gpus, 3);
    /* In the order of dev, which has a gap. */
    assert_string_equal(topo->gpus[0].bus_id, "0000:11:00.0");
    assert_string_equal(topo->gpus[1].bus_id, "0000:12:00.0");
    assert_string_equal(topo->gpus[2].bus_id, "0000:81:00.0");
    assert_int_equal(topo->gpus[1].ordinal, 1);
    assert_int_equal(topo->gpus[2].numa_node, 1);
    assert_string_equal(topo->gpus[0].name, "NVIDIA A100-SXM4-80GB");
    assert_true(topo->gpus[0].guessed & TSR_GPU_MEMORY);
    assert_false(topo->gpus[0].guessed & TSR_GPU_PCIE);
    assert_true(topo->gpus[0].pcie_bytes_per_s > 15.7e9 && topo->gpus[0].pcie_bytes_per_s < 15.8e9);
    assert_true(topo->gpus[1].pcie_bytes_per_s > 31.5e9 && topo->gpus[1].pcie_bytes_per_s < 31.6e9);
    assert_int_equal(topo->gpu_pairs[0][1].n_nvlinks, 12);
    assert_int_equal(topo->gpu_pairs[0][1].peer_access, TSR_YES);
    assert_int_equal(topo->gpu_pairs[0][1].path, TSR_GPU_PATH_PIX);
    assert_int_equal(topo->gpu_pairs[0][2].path, TSR_GPU_PATH_SYS);
    assert_int_equal(topo->gpu_pairs[0][2].n_nvlinks, 0);
    /* The RTX 4090 was idle: its own generation on its lanes, as a guess with a note. */
    assert_int_equal(topo->gpus[2].pcie.generation, 1);
    assert_int_equal(topo->gpus[2].pcie_max.generation, 4);
    assert_true(topo->gpus[2].guessed & TSR_GPU_PCIE);
    assert_true(topo->gpus[2].pcie_bytes_per_s > 31.5e9);
    assert_non_null(strstr(topo->notes, "assumed to be idle"));
    tsr_topology_destroy(topo);
}

static void unknown_speeds_are_noted_and_not_taken_for_generation_3(void **state)
{
    (void)state;
    static const char text[] =
        "<system version=\"1\"><cpu numaid=\"-1\">"
        "<pci busid=\"0000:01:00.0\" class=\"0x030200\" vendor=\"0x10de\" device=\"0x2330\""
        " link_speed=\"Unknown\" link_width=\"0\"/>"
        "<pci busid=\"0000:02:00.0\" class=\"0x030200\" vendor=\"0x10de\" device=\"0x2330\""
        " link_speed=\"47 GT/s\" link_width=\"16\"/>"
        "</cpu></system>";
    tsr_topology *topo = load_text(text);
    for (int g = 0; g < 2; g++) {
        assert_true(topo->gpus[g].pcie_bytes_per_s > 63e9); /* the data sheet's generation 5 */
        assert_true(topo->gpus[g].guessed & TSR_GPU_PCIE);
    }
    assert_non_null(strstr(topo->notes, "unknown link_speed '47 GT/s'"));
    assert_non_null(strstr(topo->notes, "not described"));
    /* Two such modules are joined on their board. */
    assert_int_equal(topo->gpu_pairs[0][1].n_nvlinks, 18);
    assert_true(topo->gpus[0].guessed & TSR_GPU_NVLINK);
    tsr_topology_destroy(topo);
}

#define SYSTEM(gpus) "<system version=\"1\"><cpu numaid=\"0\" affinity=\"f\">" gpus "</cpu></system>"
#define A100(bus, links)                                                                       \
    "<pci busid=\"0000:" bus ":00.0\" class=\"0x030200\" device=\"0x20b2\" vendor=\"0x10de\">" \
    "<gpu>" links "</gpu></pci>"
#define LINK(bus, class) "<nvlink target=\"0000:" bus ":00.0\" count=\"4\"" class "/>"
#define GPU_CLASS        " tclass=\"0x030200\""

/* Four GPUs are joined, each with each; the program that wrote the file used two. NCCL reads it again. */
static void links_to_gpus_that_a_program_did_not_use_are_no_fault(void **state)
{
    (void)state;
    static const char text[] =
        SYSTEM(A100("01", LINK("02", GPU_CLASS) LINK("03", GPU_CLASS) LINK("04", GPU_CLASS))
                   A100("02", LINK("01", GPU_CLASS) LINK("03", GPU_CLASS) LINK("04", GPU_CLASS)));
    tsr_topology *topo = load_text(text);
    assert_int_equal(topo->n_gpus, 2);
    assert_int_equal(topo->gpu_pairs[0][1].n_nvlinks, 4);
    assert_true(topo->gpu_pairs[0][1].nvlink_bytes_per_s == 100e9);
    assert_non_null(strstr(topo->notes, "lead to no GPU of the file"));
    tsr_topology_destroy(topo);
}

/* NCCL looks up a missing tclass on the machine; here the file must do. */
static void a_link_without_a_class_leads_to_the_gpu_there(void **state)
{
    (void)state;
    tsr_topology *topo = load_text(SYSTEM(A100("01", LINK("02", "")) A100("02", LINK("01", ""))));
    assert_int_equal(topo->gpu_pairs[0][1].n_nvlinks, 4);
    assert_string_equal(topo->notes,
                        "the speed of PCIe links to GPUs is not described: data sheet values are used");
    tsr_topology_destroy(topo);
}

/* A dump without any, unlike a cloud's file, which has no <gpu>: the driver knew of none. */
static void modules_without_links_in_a_dump_have_none(void **state)
{
    (void)state;
    tsr_topology *topo = load_text(SYSTEM(A100("01", "") A100("02", "")));
    assert_int_equal(topo->n_gpus, 2);
    assert_int_equal(topo->gpu_pairs[0][1].n_nvlinks, 0);
    assert_int_equal(topo->gpu_pairs[0][1].path, TSR_GPU_PATH_PHB);
    assert_null(strstr(topo->notes, "NVLink"));
    tsr_topology_destroy(topo);
}

static void append(const char *text, void *user)
{
    char *all = user;
    strncat(all, text, 65535 - strlen(all));
}

static void assert_same_machine(const tsr_topology *a, const tsr_topology *b)
{
    assert_int_equal(a->n_gpus, b->n_gpus);
    assert_int_equal(a->n_cores, b->n_cores);
    assert_int_equal(a->n_numa_nodes, b->n_numa_nodes);
    for (int i = 0; i < a->n_gpus; i++) {
        const tsr_gpu *x = &a->gpus[i], *y = &b->gpus[i];
        assert_string_equal(x->name, y->name);
        assert_string_equal(x->bus_id, y->bus_id);
        assert_int_equal(x->numa_node, y->numa_node);
        assert_int_equal(x->memory_bytes, y->memory_bytes);
        assert_int_equal(x->compute_capability, y->compute_capability);
        assert_int_equal(x->n_nvlink_ends, y->n_nvlink_ends);
        assert_true(x->pcie_bytes_per_s < y->pcie_bytes_per_s * 1.02 &&
                    y->pcie_bytes_per_s < x->pcie_bytes_per_s * 1.02);
        for (int j = 0; j < a->n_gpus; j++) {
            assert_int_equal(a->gpu_pairs[i][j].n_nvlinks, b->gpu_pairs[i][j].n_nvlinks);
            assert_int_equal(a->gpu_pairs[i][j].path, b->gpu_pairs[i][j].path);
        }
    }
}

static void machines_survive_nccl_xml(void **state)
{
    (void)state;
    static const char *const described[] = {"2x a100 nvlink, 2x host", "8x h100 nvswitch, 2x host 32cores",
                                            "2x l40s switch, 1x rtx4060ti pcie4x8, 1x gh200"};
    char *text = malloc(65536);
    for (size_t i = 0; i <= sizeof described / sizeof *described; i++) {
        tsr_topology *first = NULL;
        if (i == 0)
            first = load_text(nccl_xml);
        else
            assert_int_equal(tsr_topology_parse(described[i - 1], NULL, &first), TSR_OK);
        text[0] = '\0';
        assert_int_equal(tsr_topology_write_nccl_xml(first, append, text), TSR_OK);
        tsr_topology *second = load_text(text);
        assert_same_machine(first, second);
        tsr_topology_destroy(first);
        tsr_topology_destroy(second);
    }
    tsr_topology *none = topology_load("synthetic:pack:1 core:2 pu:1", NULL);
    assert_int_equal(tsr_topology_write_nccl_xml(none, append, text), TSR_ERR_UNSUPPORTED);
    tsr_topology_destroy(none);
    free(text);
}

/* -- hwloc -- */

#define HWLOC_GPU(bus, n, api)                                                                         \
    "<object type=\"PCIDev\" gp_index=\"1" n "\" pci_busid=\"0000:" bus ":00.0\" "                     \
    "pci_type=\"0302 [10de:9999] [10de:0000] a1\" pci_link_speed=\"31.5\">"                            \
    "<object type=\"OSDev\" gp_index=\"2" n "\" name=\"nvml" n "\" subtype=\"NVML\" osdev_type=\"1\">" \
    "<info name=\"Backend\" value=\"NVML\"/><info name=\"GPUModel\" value=\"NVIDIA Foo 9000\"/>"       \
    "<info name=\"" api "GlobalMemorySize\" value=\"50331648\"/></object></object>"

#define GPUS HWLOC_GPU("01", "1", "CUDA") HWLOC_GPU("02", "2", "OpenCL")
#define ALL  "cpuset=\"0x1\" complete_cpuset=\"0x1\" nodeset=\"0x1\" complete_nodeset=\"0x1\""

static const char hwloc_xml[] =
    "<topology version=\"2.0\">"
    "<object type=\"Machine\" os_index=\"0\" gp_index=\"1\" " ALL
    " allowed_cpuset=\"0x1\" allowed_nodeset=\"0x1\">"
    "<object type=\"NUMANode\" os_index=\"0\" gp_index=\"2\" " ALL " local_memory=\"68719476736\"/>"
    "<object type=\"PU\" os_index=\"0\" gp_index=\"3\" " ALL "/>"
    "<object type=\"Bridge\" gp_index=\"4\" bridge_type=\"0-1\" depth=\"0\" "
    "bridge_pci=\"0000:[00-ff]\">" GPUS "</object></object>"
    "<distances2 type=\"OSDev\" nbobjs=\"2\" kind=\"9\" name=\"NVLinkBandwidth\" indexing=\"gp\">"
    "<indexes length=\"6\">21 22 </indexes>"
    "<u64values length=\"30\">1000000 100000 100000 1000000 </u64values>"
    "</distances2></topology>";

/* The file says how fast the links are, and no table how many that makes. */
static void nvlinks_of_a_card_that_is_not_known_count(void **state)
{
    (void)state;
    tsr_topology *topo = load_text(hwloc_xml);
    assert_int_equal(topo->n_gpus, 2);
    assert_true(topo->gpu_pairs[0][1].nvlink_bytes_per_s == 100e9);
    assert_int_equal(topo->gpu_pairs[0][1].n_nvlinks, 4);
    assert_int_equal(topo->gpu_pairs[0][1].peer_access, TSR_YES);
    tsr_topology_destroy(topo);
}

/* Which of hwloc's parts were there when the machine was recorded is chance. */
static void memory_is_what_cuda_or_opencl_said(void **state)
{
    (void)state;
    tsr_topology *topo = load_text(hwloc_xml);
    assert_int_equal(topo->n_gpus, 2);
    for (int g = 0; g < 2; g++)
        assert_int_equal(topo->gpus[g].memory_bytes, UINT64_C(48) << 30);
    tsr_topology_destroy(topo);
}

/* -- cards -- */

static void cards_can_be_named(void **state)
{
    (void)state;
    const char *path = directory_write("named.xml", nccl_xml, strlen(nccl_xml));
    tsr_topology *topo = topology_load(path, "0=rtx3090,0000:81:00.0=t4");
    assert_string_equal(topo->gpus[0].name, "NVIDIA GeForce RTX 3090");
    assert_int_equal(topo->gpus[0].memory_bytes, UINT64_C(24576) << 20);
    assert_int_equal(topo->gpus[0].compute_capability, 86);
    assert_string_equal(topo->gpus[1].name, "NVIDIA A100-SXM4-80GB");
    assert_string_equal(topo->gpus[2].name, "Tesla T4");
    tsr_topology_destroy(topo);
    topo = topology_load(path, "1-2=l4");
    assert_string_equal(topo->gpus[0].name, "NVIDIA A100-SXM4-80GB");
    assert_string_equal(topo->gpus[1].name, "NVIDIA L4");
    assert_string_equal(topo->gpus[2].name, "NVIDIA L4");
    tsr_topology_destroy(topo);

    static const struct {
        const char *cards, *phrase;
    } wrong[] = {{"0=rtx3091", "cards: unknown card 'rtx3091'; similar: rtx3090"},
                 {"0=rtx3090                                                                       x",
                  "longer than any card's name"},
                 {"7=t4", "has 3 NVIDIA GPUs"},
                 {"t4", "0=rtx3090"},
                 {"=t4", "0=rtx3090"},
                 {"0=", "0=rtx3090"},
                 {"0=t4,,", "0=rtx3090"},
                 {"-1=t4", "has 3 NVIDIA GPUs"},
                 {"1-3=t4", "has 3 NVIDIA GPUs"},
                 {"2-1=t4", "has 3 NVIDIA GPUs"},
                 {"0-=t4", "has 3 NVIDIA GPUs"},
                 {"1-2-2=t4", "has 3 NVIDIA GPUs"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tsr_topology_config config = tsr_topology_config_default();
        config.cards = wrong[i].cards;
        topo = NULL;
        assert_int_equal(tsr_topology_load(path, &config, &topo), TSR_ERR_INVALID);
        if (!strstr(tsr_last_error(), wrong[i].phrase))
            fail_msg("%s: %s", wrong[i].cards, tsr_last_error());
        assert_null(topo);
    }
}

/* A name alone would promise memory that a laptop's GPU has not. */
static void a_variant_of_a_card_is_not_the_card(void **state)
{
    (void)state;
    tsr_topology *topo = load_text("GPU 0: NVIDIA GeForce RTX 4090 Laptop GPU (UUID: GPU-1)\n"
                                   "\tGPU0\tCPU Affinity\nGPU0\tX\t0-7\n");
    assert_int_equal(topo->gpus[0].memory_bytes, 0);
    assert_non_null(strstr(topo->gpu_note, "RTX 4090 Laptop GPU"));
    tsr_topology_destroy(topo);
}

static void a_model_that_is_not_known_is_named(void **state)
{
    (void)state;
    tsr_topology *topo =
        load_text("GPU 0: NVIDIA Foo 9000 (UUID: GPU-1)\n\tGPU0\tCPU Affinity\nGPU0\tX\t0-7\n");
    assert_int_equal(topo->gpus[0].memory_bytes, 0);
    assert_non_null(strstr(topo->gpu_note, "number 0 at ffff:00:00.0, 'NVIDIA Foo 9000'"));
    tsr_topology_destroy(topo);
}

/* A server's console, and in the file of a cloud devices of which it says nothing but where they are. */
static void what_is_no_gpu_is_not_taken_for_one(void **state)
{
    (void)state;
    static const char text[] =
        "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" class=\"0x030000\" "
        "vendor=\"0x1a03\"/>"
        "<pci busid=\"0000:02:00.0\"/><pci busid=\"0000:03:00.0\"/></cpu></system>";
    tsr_topology *topo = load_text(text);
    assert_int_equal(topo->n_gpus, 2);
    assert_non_null(strstr(topo->gpu_note, "2 GPUs of unknown model"));
    tsr_topology_destroy(topo);
    topo = topology_load(directory_write("cloud.xml", text, strlen(text)), "0000:03:00.0=a10g");
    assert_int_equal(topo->n_gpus, 1);
    assert_string_equal(topo->gpus[0].bus_id, "0000:03:00.0");
    assert_int_equal(topo->gpus[0].ordinal, 0);
    assert_string_equal(topo->gpu_note, "");
    tsr_topology_destroy(topo);
}

/* A plan for the others, or for the host, would be a plan for another machine. */
static void devices_on_gpus_of_unknown_model_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *devices, *phrase;
    } cases[] = {
        {NULL, "the model and memory of GPU 1 at ffff:01:00.0 of "},
        {"cuda", "name its card, as in `--card 1=rtx3090`"},
        {"cuda:0,cuda:1", "or name devices without it"},
        {"cuda:1,mem=8GiB", "are unknown"}, /* its speed is, too */
        {"cuda:0", NULL},
        {"host", NULL},
    };
    static const char text[] = "GPU 0: NVIDIA L4 (UUID: GPU-1)\nGPU 1: NVIDIA Foo 9000 (UUID: GPU-2)\n"
                               "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tSYS\t0-7\nGPU1\tSYS\tX\t0-7\n";
    tsr_topology *topo = load_text(text);
    tsr_device_list *devices = NULL;
    assert_int_equal(topo->n_gpus, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_status status = tsr_device_list_create(topo, cases[i].devices, NULL, &devices);
        if (cases[i].phrase && (status != TSR_ERR_UNSUPPORTED || !strstr(tsr_last_error(), cases[i].phrase)))
            fail_msg("%s: %s: %s", cases[i].devices, tsr_status_name(status), tsr_last_error());
        if (!cases[i].phrase)
            assert_int_equal(status, TSR_OK);
        tsr_device_list_destroy(devices);
        devices = NULL;
    }
    tsr_topology_destroy(topo);

    tsr_topology_config config = tsr_topology_config_default();
    config.cards = "1=rtx 4060 ti 16gb";
    assert_int_equal(tsr_topology_load(directory_write("two", text, strlen(text)), &config, &topo), TSR_OK);
    assert_int_equal(tsr_device_list_create(topo, NULL, NULL, &devices), TSR_OK);
    assert_int_equal(devices->n_devices, 2);
    tsr_device_list_destroy(devices);
    tsr_topology_destroy(topo);
}

/* -- every recorded machine -- */

static int n_loaded, n_with_gpus;

static void load_folder(const char *folder)
{
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        char path[600];
        tsr_topology *topo = NULL;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        topo = topology_load(path, NULL);
        n_loaded++;
        n_with_gpus += topo->n_gpus > 0;
        if (topo->n_gpus > 0) { /* and comes back from NCCL's format */
            char *text = calloc(1, 65536);
            assert_int_equal(tsr_topology_write_nccl_xml(topo, append, text), TSR_OK);
            tsr_topology *again = load_text(text);
            int n_shown = 0; /* a device without a class is not written */
            for (int i = 0; i < topo->n_pci; i++)
                n_shown += topo->pci[i].class_id >> 8 == 3 &&
                           (!topo->pci[i].vendor_id || topo->pci[i].vendor_id == 0x10de);
            assert_int_equal(again->n_gpus, n_shown);
            tsr_topology_destroy(again);
            free(text);
        }
        tsr_topology_destroy(topo);
    }
    closedir(listing);
}

static void every_recorded_machine_loads(void **state)
{
    (void)state;
    if (access(SHARED "/nccl", R_OK) != 0) {
        print_message("skipped: no recorded machines at " SHARED "\n");
        skip();
    }
    load_folder(SHARED "/hwloc");
    load_folder(SHARED "/nccl");
    load_folder(SHARED "/hwloc-fsroot");
    print_message("%d machines, %d with GPUs\n", n_loaded, n_with_gpus);
    assert_true(n_loaded >= 40 && n_with_gpus >= 12);
}

/* -- what cannot be read -- */

static void errors_name_file_place_and_remedy(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        tsr_status status;
        const char *phrase;
    } cases[] = {
        {"<system version=\"1\"><cpu numaid=\"0\">", TSR_ERR_FORMAT, "line 1: no element found"},
        {"<system version=\"2\"><cpu/></system>", TSR_ERR_UNSUPPORTED, "version 2"},
        {"<system version=\"1\"/>", TSR_ERR_FORMAT, "describes no cpu"},
        {"<system><cpu host_hash=\"0x1\"/><cpu host_hash=\"0x2\"/></system>", TSR_ERR_UNSUPPORTED,
         "second machine"},
        {"<system><cpu numaid=\"99999999999\"/></system>", TSR_ERR_FORMAT, "numaid"},
        {"<system><cpu affinity=\"xyz\"/></system>", TSR_ERR_FORMAT, "affinity"},
        {"<system><cpu affinity=\"x&#10;&#9;y\"/></system>", TSR_ERR_FORMAT, "affinity 'x  y'"},
        {"<system><cpu>\n<pci/></cpu></system>", TSR_ERR_FORMAT, "line 2: busid"},
        {"<system><cpu><pci busid=\"0:1\"/></cpu></system>", TSR_ERR_FORMAT, "busid '0:1'"},
        {"<system><cpu><pci busid=\"0000:01:00.0\" class=\"0x03\" link_width=\"1e9\"/></cpu></system>",
         TSR_ERR_FORMAT, "link_width"},
        {"<system><cpu><pci busid=\"0000:01:00.0\"/><pci busid=\"0000:01:00.0\"/></cpu></system>",
         TSR_ERR_FORMAT, "described twice"},
        {"<system><cpu><pci busid=\"0000:01:00.0\"><gpu><nvlink target=\"0000:01:00.0\" count=\"4\" "
         "tclass=\"0x030200\"/></gpu></pci></cpu></system>",
         TSR_ERR_FORMAT, "leads to itself"},
        {"<system><cpu><pci busid=\"0000:01:00.0\"><gpu><nvlink count=\"4000000\" "
         "tclass=\"0x068000\"/></gpu></pci>"
         "</cpu></system>",
         TSR_ERR_FORMAT, "count"},
        {"<system><cpu><pci busid=\"0000:01:00.0\"><gpu><nvlink count=\"4\" "
         "tclass=\"0x99\"/></gpu></pci></cpu>"
         "</system>",
         TSR_ERR_FORMAT, "tclass"},
        {"<!DOCTYPE system [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]>\n<system><cpu/></system>",
         TSR_ERR_FORMAT, "DOCTYPE"},
        {"<!DOCTYPE topology [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><topology "
         "version=\"2.0\">&b;</topology>",
         TSR_ERR_FORMAT, "defines XML entities"},
        {"<system a=\"\xff\xfe\"/>", TSR_ERR_FORMAT, "not well-formed"},
        {"\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tNV4\t0\n", TSR_ERR_FORMAT, "GPU1 has a column and no row"},
        {"\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tNV4\t0\nGPU1\tNV2\tX\t0\n", TSR_ERR_FORMAT, "disagree"},
        {"\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tQPI\t0\n", TSR_ERR_FORMAT, "'QPI' in column 2"},
        {"\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\n", TSR_ERR_FORMAT, "ends after 1 of 2"},
        {"\tGPU0\tGPU2\tCPU Affinity\n", TSR_ERR_FORMAT, "in order"},
        {"GPU0 is nice\n", TSR_ERR_FORMAT, "no matrix"},
        {"\tGPU0\tGPU1\tCPU Affinity\nGPU0\tNV4\tNV4\t0\nGPU1\tNV4\tX\t0\n", TSR_ERR_FORMAT,
         "GPU0 has 'NV4'"},
        {"\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tNV999\t0\n", TSR_ERR_FORMAT, "not a number of links"},
        {"\tGPU0\tCPU Affinity\nGPU0\tX\t0-4294967295\n", TSR_ERR_FORMAT, "CPU affinity '0-4294967295'"},
        {"\tGPU0\tCPU Affinity\nGPU0\tX\t9-3\n", TSR_ERR_FORMAT, "CPU affinity '9-3'"},
        {"\tGPU0\tCPU Affinity\nGPU0\tX\t,,,\n", TSR_ERR_FORMAT, "CPU affinity ',,,'"},
        {"\tGPU0\tCPU Affinity\nGPU0\tX\t0-3x\n", TSR_ERR_FORMAT, "CPU affinity '0-3x'"},
        {"\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\tX\t0-3\t99999999999\n", TSR_ERR_FORMAT,
         "NUMA affinity '99999999999'"},
        {"<system><cpu><pci busid=\"0000:10:00.0\" class=\"0x060400\">\n<pci busid=\"0000:10:00.0\" "
         "class=\"0x060400\"/></pci></cpu></system>",
         TSR_ERR_FORMAT, "line 2: PCI switch 0000:10:00.0 is inside itself"},
        {"<system><cpu><pci busid=\"0000:01:00.0\" class=\"0x030200\"><gpu><c2c count=\"2\" "
         "bw=\"-25000\"/></gpu></pci></cpu></system>",
         TSR_ERR_FORMAT, "bw '-25000'"},
        {"<system><cpu><pci busid=\"0000:01:00.0\" class=\"0x03\" link_width=\"x16\"/></cpu></system>",
         TSR_ERR_FORMAT, "link_width 'x16'"},
        {"<system><cpu/></system><system><cpu/></system>", TSR_ERR_FORMAT, "junk after"},
        {"BZh and no archive", TSR_ERR_FORMAT, "no tar archive"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = directory_write("bad", cases[i].text, strlen(cases[i].text));
        tsr_topology *topo = NULL;
        tsr_status status = tsr_topology_load(path, NULL, &topo);
        if (status != cases[i].status || !strstr(tsr_last_error(), cases[i].phrase))
            fail_msg("%s: %s: %s", cases[i].text, tsr_status_name(status), tsr_last_error());
        assert_non_null(strstr(tsr_last_error(), path));
        assert_null(strchr(tsr_last_error(), '\n'));
        assert_null(topo);
    }
}

/* hwloc takes "64GiB" for 64; nothing is that small, nor 8 PiB large. */
static void memory_in_other_units_is_refused(void **state)
{
    (void)state;
    static const char *const machines[] = {"synthetic:numa:1(memory=64) pu:1",
                                           "synthetic:numa:1(memory=9007199254740993) pu:1"};
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        tsr_topology *topo = NULL;
        assert_int_equal(tsr_topology_load(machines[i], NULL, &topo), TSR_ERR_FORMAT);
        assert_non_null(strstr(tsr_last_error(), "sizes are in bytes"));
        assert_null(topo);
    }
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    char *text = malloc(32 * DEPTH);
    size_t used = (size_t)sprintf(text, "<system><cpu>");
    for (int i = 0; i < DEPTH; i++)
        used += (size_t)sprintf(text + used, "<pci busid=\"0:0.0\">");
    tsr_topology *topo = NULL;
    assert_int_equal(tsr_topology_load(directory_write("deep.xml", text, used), NULL, &topo), TSR_ERR_FORMAT);
    assert_non_null(strstr(tsr_last_error(), "64 levels"));
    free(text);
}

static void failing_allocations_leave_nothing_behind(void **state)
{
    (void)state;
    topology_check_allocations(directory_write("alloc", nccl_xml, strlen(nccl_xml)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_nccl_file_gives_every_field),
        cmocka_unit_test(unknown_speeds_are_noted_and_not_taken_for_generation_3),
        cmocka_unit_test(links_to_gpus_that_a_program_did_not_use_are_no_fault),
        cmocka_unit_test(a_link_without_a_class_leads_to_the_gpu_there),
        cmocka_unit_test(modules_without_links_in_a_dump_have_none),
        cmocka_unit_test(machines_survive_nccl_xml),
        cmocka_unit_test(memory_is_what_cuda_or_opencl_said),
        cmocka_unit_test(nvlinks_of_a_card_that_is_not_known_count),
        cmocka_unit_test(cards_can_be_named),
        cmocka_unit_test(a_variant_of_a_card_is_not_the_card),
        cmocka_unit_test(a_model_that_is_not_known_is_named),
        cmocka_unit_test(what_is_no_gpu_is_not_taken_for_one),
        cmocka_unit_test(devices_on_gpus_of_unknown_model_are_refused),
        cmocka_unit_test(every_recorded_machine_loads),
        cmocka_unit_test(errors_name_file_place_and_remedy),
        cmocka_unit_test(memory_in_other_units_is_refused),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(failing_allocations_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
