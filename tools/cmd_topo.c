/* tsr topo: a machine as a tree, and the devices of a --devices text. */
#include "tsr.h"

#include <errno.h>
#include <string.h>

#include <tsr/bytes.h>
#include <tsr/machine.h>
#include <tsr/memory.h>
#include <tsr/topology.h>

#include "cache_file.h"
#include "format.h"
#include "json.h"
#include "machine_options.h"
#include "links_file.h"
#include "measured.h"
#include "options.h"
#include "rates_file.h"
#include "replace_file.h"
#include "topo_isa.h"
#include "topo_links.h"

/* "0-3,8"; the list is ascending. */
static void print_ranges(const int *list, int n, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0, last; i < n && used < bytes; i = last + 1) {
        for (last = i; last + 1 < n && list[last + 1] == list[last] + 1;)
            last++;
        used += (size_t)snprintf(text + used, bytes - used, last > i ? "%s%d-%d" : "%s%d", i ? "," : "",
                                 list[i], list[last]);
    }
}

static void print_devices(const tsr_topology *topo, const tsr_device_list *list)
{
    char text[TSR_BYTES_TEXT], cores[64];
    tool_table table = {0};
    bool has_gpu = false;
    for (int i = 0; i < list->n_devices; i++)
        has_gpu = has_gpu || list->devices[i].kind == TSR_DEVICE_CUDA;
    tool_table_header(
        &table, has_gpu ? 9 : 8,
        (const char *[]){"device", "kind", "NUMA node", "cores", "n", "threads", "memory", "cap", "usable"});
    for (int i = 0; i < list->n_devices; i++) {
        const tsr_device_desc *d = &list->devices[i];
        print_ranges(d->cores, d->n_cores, cores, sizeof cores);
        tool_table_cell(&table, "%s", d->name);
        tool_table_cell(&table, "%s", tsr_device_kind_name(d->kind));
        if (d->numa_node >= 0)
            tool_table_cell(&table, "%d", topo->numa_nodes[d->numa_node].os_index);
        else
            tool_table_cell(&table, "%s", d->kind == TSR_DEVICE_CUDA ? "unknown" : "several");
        tool_table_cell(&table, "%s", d->n_cores ? cores : "-");
        tool_table_cell(&table, "%d", d->n_cores);
        if (d->kind == TSR_DEVICE_CUDA)
            tool_table_cell(&table, "%s", "-");
        else
            tool_table_cell(&table, "%d", d->n_threads);
        tool_table_cell(&table, "%s", tsr_bytes_text(d->memory_total_bytes, text));
        tool_table_cell(&table, "%s", d->mem_cap_bytes ? tsr_bytes_text(d->mem_cap_bytes, text) : "-");
        if (has_gpu)
            tool_table_cell(&table, "%s",
                            d->memory_usable_bytes ? tsr_bytes_text(d->memory_usable_bytes, text) : "-");
    }
    tool_table_print(&table, stdout);
    tool_table_free(&table);
}

/* `isa` NULL: the machine is only described. `links` NULL: not requested. */
static int print_all(const tsr_topology *topo, const tsr_device_list *list, const tsr_isa_list *isa,
                     const tsr_links *links, bool as_json)
{
    if (as_json) {
        json_t *root = json_pack("{s:o, s:o, s:o}", "topology", tool_json_topology(topo), "devices",
                                 tool_json_devices(list), "isa", isa ? tool_json_isa(isa) : json_null());
        if (root && links)
            json_object_set_new(root, "links", tool_json_links(links));
        return tool_json_print("topo", root);
    }
    tsr_topology_print(topo, tool_write, stdout);
    printf("\n");
    print_devices(topo, list);
    if (isa)
        tool_print_isa(isa);
    if (links)
        tool_print_links(links, list);
    return TOOL_EXIT_OK;
}

typedef struct xml_output {
    const tsr_topology *topo;
    tsr_status *status;
} xml_output;

static bool write_xml(FILE *file, const void *user)
{
    const xml_output *xml = user;
    *xml->status = tsr_topology_write_nccl_xml(xml->topo, tool_write, file);
    return *xml->status == TSR_OK;
}

static int write_nccl_xml(const tsr_topology *topo, const char *path)
{
    tsr_status status = TSR_OK;
    const xml_output xml = {topo, &status};
    bool to_stdout = strcmp(path, "-") == 0;
    if (to_stdout ? write_xml(stdout, &xml) && fflush(stdout) == 0 : tool_file_replace(path, write_xml, &xml))
        return TOOL_EXIT_OK;
    if (status != TSR_OK)
        return tool_fail("topo", status);
    fprintf(stderr, "tsr topo: cannot write '%s': %s\n", path, strerror(errno));
    return TOOL_EXIT_FAILED;
}

static int forget_rates(void)
{
    static const char *const files[] = {TOOL_RATES_FILE, TOOL_LINKS_FILE};
    for (int i = 0; i < TOOL_COUNT(files); i++)
        if (!tool_cache_forget(files[i])) {
            fprintf(stderr, "tsr topo: cannot delete %s: %s\n", files[i], strerror(errno));
            return TOOL_EXIT_FAILED;
        }
    printf("measured rates and links are forgotten; tsr bench measures them again\n");
    return TOOL_EXIT_OK;
}

int tsr_cmd_topo(int argc, char **argv)
{
    bool as_json = false, show_links = false, show_cards = false, forget = false;
    const char *devices = NULL, *nccl_xml = NULL;
    tool_machine_options machine = {0};
    const tool_option options[] = {
        TOOL_MACHINE_OPTION_ROWS(machine),
        TOOL_HEADING_ROW("devices and output"),
        {"-dev", "--devices", TOOL_STRING, &devices, "SPEC",
         "devices to make of the machine (default: all GPUs, otherwise host)", 0, 0},
        {NULL, "--nccl-xml", TOOL_STRING, &nccl_xml, "FILE",
         "write the machine for NCCL_TOPO_FILE; - is standard output", 0, 0},
        {NULL, "--cards", TOOL_FLAG, &show_cards, NULL, "show the cards that --machine and --card can name",
         0, 0},
        {NULL, "--links", TOOL_FLAG, &show_links, NULL, "show predicted speeds between the devices", 0, 0},
        {NULL, "--forget-rates", TOOL_FLAG, &forget, NULL,
         "delete the rates and links that tsr bench stored, and do nothing else", 0, 0},
        {NULL, "--json", TOOL_FLAG, &as_json, NULL, "print JSON", 0, 0},
    };
    const tool_command command = {.name = "topo",
                                  .summary = TOOL_TOPO_SUMMARY,
                                  .options = options,
                                  .n_options = TOOL_COUNT(options),
                                  .description = TOOL_MACHINE_DESCRIPTION,
                                  .examples =
                                      "tsr topo --devices host:2,mem=200MiB,threads=1\n"
                                      "tsr topo --devices cuda:0,mem=20GiB,cuda:1,host:1\n"
                                      "tsr topo --machine-file 'synthetic:pack:2 core:4 pu:2' --json\n"
                                      "tsr topo --machine '2x rtx3090 nvlink, 1x rtx4060ti pcie4x8'\n"
                                      "tsr topo --machine-file g5.xml --card 0-7=a10g",
                                  .pages = "machines devices json"};
    int code = tool_options_parse(&command, argc, argv, stdout, stderr);
    if (code == TOOL_GO_ON)
        code = tool_machine_options_check("topo", &machine);
    if (code != TOOL_GO_ON)
        return code;

    if (forget)
        return forget_rates();
    if (show_cards) {
        tsr_cards_print(tool_write, stdout);
        return TOOL_EXIT_OK;
    }

    tsr_topology *topo = NULL;
    tsr_device_list *list = NULL;
    tsr_links *links = NULL;
    tsr_isa_list isa;
    tsr_logger logger = tool_logger(false);
    tsr_status status = tool_machine_topology(&machine, &logger, &topo);
    if (status == TSR_OK && !nccl_xml)
        status = tsr_device_list_create(topo, devices, &logger, &list);
    if (status == TSR_OK && show_links && list)
        status = tool_measured_links(topo, list, &links);
    if (status == TSR_OK && topo->is_this_machine && list)
        status = tsr_isa_discover(&isa);
    if (status != TSR_OK && topo && !devices && !as_json) /* the tree shows what the devices lack */
        tsr_topology_print(topo, tool_write, stdout);
    if (status != TSR_OK)
        code = tool_fail("topo", status);
    else if (nccl_xml)
        code = write_nccl_xml(topo, nccl_xml);
    else
        code = print_all(topo, list, topo->is_this_machine ? &isa : NULL, links, as_json);
    tsr_links_destroy(links);
    tsr_device_list_destroy(list);
    tsr_topology_destroy(topo);
    return code;
}
