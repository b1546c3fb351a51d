/* tsr topo: a machine as a tree, and the devices that a --devices text makes of it. */
#include "tsr.h"

#include <tsr/memory.h>
#include <tsr/topology.h>

#include "format.h"
#include "json.h"
#include "options.h"

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
    tool_table_header(
        &table, 8, (const char *[]){"device", "kind", "NUMA node", "cores", "n", "threads", "memory", "cap"});
    for (int i = 0; i < list->n_devices; i++) {
        const tsr_device_desc *d = &list->devices[i];
        print_ranges(d->cores, d->n_cores, cores, sizeof cores);
        tool_table_cell(&table, "%s", d->name);
        tool_table_cell(&table, "%s", tsr_device_kind_name(d->kind));
        if (d->numa_node >= 0)
            tool_table_cell(&table, "%d", topo->numa_nodes[d->numa_node].os_index);
        else
            tool_table_cell(&table, "%s", "several");
        tool_table_cell(&table, "%s", cores);
        tool_table_cell(&table, "%d", d->n_cores);
        tool_table_cell(&table, "%d", d->n_threads);
        tool_table_cell(&table, "%s", tsr_bytes_text(d->memory_total_bytes, text));
        tool_table_cell(&table, "%s", d->mem_cap_bytes ? tsr_bytes_text(d->mem_cap_bytes, text) : "-");
    }
    tool_table_print(&table, stdout);
    tool_table_free(&table);
}

static int print_all(const tsr_topology *topo, const tsr_device_list *list, bool as_json)
{
    if (as_json)
        return tool_json_print("topo", json_pack("{s:o, s:o}", "topology", tool_json_topology(topo),
                                                 "devices", tool_json_devices(list)));
    tsr_topology_print(topo, tool_write, stdout);
    printf("\n");
    print_devices(topo, list);
    return TOOL_EXIT_OK;
}

int tsr_cmd_topo(int argc, char **argv)
{
    bool as_json = false;
    const char *machine = NULL, *devices = NULL;
    const tool_option options[] = {
        {NULL, "--machine-file", TOOL_STRING, &machine, "FILE",
         "another machine: hwloc XML, a Linux root directory, or synthetic:...", 0, 0},
        {"-dev", "--devices", TOOL_STRING, &devices, "SPEC", "devices to make of it (default host)", 0, 0},
        {NULL, "--json", TOOL_FLAG, &as_json, NULL, "print JSON", 0, 0},
    };
    const tool_command command = {"topo", "show a machine and the devices made from it", options,
                                  TOOL_COUNT(options),
                                  "examples:\n"
                                  "  tsr topo --devices host:2,mem=200MiB,threads=1\n"
                                  "  tsr topo --machine-file 'synthetic:pack:2 core:4 pu:2' --json\n"};
    int code = tool_options_parse(&command, argc, argv, stdout, stderr);
    if (code != TOOL_GO_ON)
        return code;

    tsr_topology *topo = NULL;
    tsr_device_list *list = NULL;
    tsr_topology_config config = TSR_TOPOLOGY_CONFIG_INIT;
    tsr_logger logger = tool_logger(false);
    config.logger = logger;
    tsr_status status =
        machine ? tsr_topology_load(machine, &config, &topo) : tsr_topology_discover(&config, &topo);
    if (status == TSR_OK)
        status = tsr_device_list_create(topo, devices, &logger, &list);
    code = status == TSR_OK ? print_all(topo, list, as_json) : tool_fail("topo", status);
    tsr_device_list_destroy(list);
    tsr_topology_destroy(topo);
    return code;
}
